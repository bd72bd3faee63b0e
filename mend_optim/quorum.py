"""When to seal: how many are enough, and how long to wait for more."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from .errors import is_number, require
from .lineage import PeerId


@dataclass(frozen=True, kw_only=True)
class Quorum:
    """The fewest offers a seal may have. `minimum=None`: more than half of the roster, at least 2. Raises
    `UsageError`."""

    minimum: int | None = None

    def __post_init__(self) -> None:
        if self.minimum is not None:
            require(
                type(self.minimum) is int and self.minimum >= 1, "quorum.minimum", self.minimum, "None or an int >= 1"
            )

    def needed(self, roster: int) -> int:
        """Offers needed when `roster` learners (this one included, evicted ones not) are known."""
        return self.minimum if self.minimum is not None else max(2, roster // 2 + 1)


@dataclass(frozen=True, kw_only=True)
class Grace:
    """How long to wait for more once quorum is met: `max_s` seconds. Raises `UsageError`."""

    max_s: float = 10.0

    def __post_init__(self) -> None:
        require(is_number(self.max_s) and self.max_s >= 0, "grace.max_s", self.max_s, "a number of seconds >= 0")


@dataclass(frozen=True, slots=True)
class Decision:
    """Seal now or not, and why. `wake_at` is when to ask again if nothing new arrives (None: only on news)."""

    seal: bool
    reason: str
    wake_at: float | None = None


def decide(
    now: float,
    *,
    present: Collection[PeerId],
    expected: Collection[PeerId],
    needed: int,
    grace_s: float,
    quorum_at: float | None,
    not_before: float,
) -> Decision:
    """Seal when all expected have offered ("all_present"), or when quorum is met and grace has run out
    ("grace_expired").

    `quorum_at` is when quorum was met, None while it is not. `not_before` holds back a seal that leaves somebody out:
    rounds that fire too often over-drive the outer momentum. Never seals below `needed`."""
    if len(present) < needed:
        return Decision(False, "below_quorum")
    if set(expected) <= set(present):
        return Decision(True, "all_present")
    patience = max(not_before, (now if quorum_at is None else quorum_at) + grace_s)
    if now >= patience:
        return Decision(True, "grace_expired")
    return Decision(False, "waiting", patience)
