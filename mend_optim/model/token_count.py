"""The tokens of the coming step: counted by the user, dropped with the gradients they belong to."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import islice

from torch import Tensor
from torch.optim import Optimizer


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


def any_gradient(parameters: Sequence[Tensor]) -> bool:
    return any(p.grad is not None and bool(p.grad.any()) for p in parameters)


def stamp(parameters: Sequence[Tensor]) -> tuple[tuple[int, int], ...]:
    """Changes when gradients are computed, accumulated, scaled or cleared; a few tell for all.
    After clearing, new ones may lie where the old ones lay and have their stamp."""
    gradients = (p.grad for p in parameters if p.grad is not None)
    return tuple((id(grad), grad._version) for grad in islice(gradients, 4))


def is_phantom(inner: Optimizer) -> bool:
    """Whether the coming step can do nothing but make the inner optimizer's first state:
    torch.distributed.checkpoint takes such a step, with `lr=0`, of every optimizer that has
    none."""
    groups = inner.param_groups
    if inner.state or any(group.get("lr") is None or bool(group["lr"] != 0) for group in groups):
        return False
    return not any_gradient([p for group in groups for p in group["params"]])
