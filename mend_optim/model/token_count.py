"""The tokens of the coming step: counted by the user, dropped with the gradients they belong to."""

from __future__ import annotations

from collections.abc import Hashable


class TokenCount:
    """What `count_tokens` said since the last step.

    A step that never comes (a GradScaler met an overflow) must not leave its tokens to the next
    one. That it was left out shows when gradients are cleared which no step has used. Then only
    tokens counted for the next step stay: some users count before they clear, which is seen by the
    count at an earlier clearing, and no gradient has changed since such a count. `stamp` is
    anything that changes whenever gradients do until they are cleared; new gradients may have an
    old one's."""

    def __init__(self) -> None:
        self._counts: list[tuple[int, Hashable]] = []
        self._clears = 0
        self._early = False  # whether some were counted before the gradients were cleared for them
        self._used = False  # whether a step has used the gradients there are

    @property
    def doubtful(self) -> bool:
        """Whether, if gradients are cleared now, it matters that there are some."""
        return bool(self._counts) and not self._used

    def add(self, n: int, stamp: Hashable) -> None:
        self._counts.append((n, (self._clears, stamp)))

    def take(self, default: int) -> int:
        """The tokens of the step just taken; `default` if none were counted."""
        counted = sum(n for n, _ in self._counts)
        self._counts, self._early, self._used = [], False, True
        return counted or default

    def cleared(self, unused: bool, stamp: Hashable) -> None:
        """Gradients are cleared; `unused`: there were some, and no step since they were computed
        has used them."""
        if unused and not self._used:
            self._counts = [
                (n, at) for n, at in self._counts if self._early and at == (self._clears, stamp)
            ]
        self._clears += 1
        self._early, self._used = bool(self._counts), False
