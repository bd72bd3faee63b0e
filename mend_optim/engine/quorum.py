"""When to seal: how many offers are enough, and how long to wait for more."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from mend_optim.errors import is_number, require, take_plain_numbers
from mend_optim.protocol.lineage import PeerId


@dataclass(frozen=True, kw_only=True)
class Quorum:
    """The fewest offers that a seal may have.

    Args:
        minimum: an int of at least 1. None: more than half of the roster, and at least 2.

    Raises:
        UsageError: `minimum` is out of its bounds.

    Example:
        >>> Quorum().needed(5), Quorum(minimum=2).needed(5)
        (3, 2)
    """

    minimum: int | None = None

    def __post_init__(self) -> None:
        take_plain_numbers(self)
        if self.minimum is not None:
            require(
                type(self.minimum) is int and self.minimum >= 1,
                "quorum.minimum",
                self.minimum,
                "None or an int >= 1",
            )

    def needed(self, roster: int) -> int:
        """The offers that a seal needs. `roster` counts the known learners, with this one and
        without evicted ones."""
        return self.minimum if self.minimum is not None else max(2, roster // 2 + 1)


# The part of its distance to each new value by which an estimate moves.
FOLLOW = 0.2
#: Rounds that are remembered one by one.
LAST_ROUNDS = 9


@dataclass(frozen=True, kw_only=True)
class Grace:
    """How long a round waits for more offers once it has its quorum.

    Without a fraction, it waits `max_s` seconds. With a fraction γ, it waits for that part of the
    time that the overlap of τ inner steps hides anyway (Decoupled DiLoCo, arXiv 2604.21428, eq. 3):

        ξ_grace = min(max_s, γ · max(0, τ·ξ_step − ξ_quorum − ξ_sync))

    Args:
        max_s: the longest wait, in seconds, at least 0.
        fraction: γ, from 0 to 1. None: always `max_s`.

    Raises:
        UsageError: an argument is out of its bounds.

    Example:
        >>> Grace(max_s=5, fraction=0.5)
        Grace(max_s=5, fraction=0.5)
    """

    max_s: float = 10.0
    fraction: float | None = None

    def __post_init__(self) -> None:
        take_plain_numbers(self)
        require(
            is_number(self.max_s) and self.max_s >= 0,
            "grace.max_s",
            self.max_s,
            "a number of seconds >= 0",
        )
        part = self.fraction is None or (is_number(self.fraction) and 0 <= self.fraction <= 1)
        require(part, "grace.fraction", self.fraction, "None or a number in [0, 1]")

    def seconds(self, overlap_s: float, delays: Delays) -> float:
        """ξ_grace in seconds, for an overlap of `overlap_s` seconds.

        It is `max_s` until there are estimates. It is `max_s` also without an overlap: learners
        wait for the anchor in any case, so they had better wait for all offers."""
        if (
            self.fraction is None
            or delays.quorum_s is None
            or delays.sync_s is None
            or not overlap_s
        ):
            return self.max_s
        return min(
            self.max_s, self.fraction * max(0.0, overlap_s - delays.quorum_s - delays.sync_s)
        )


@dataclass(slots=True)
class Delays:
    """Running estimates of how long one fragment's rounds take, in seconds. None: no round yet."""

    #: From the launch until quorum.
    quorum_s: float | None = None
    #: From the decision until the sealer itself has the new anchor.
    sync_s: float | None = None
    #: The same of the last rounds, one by one.
    quorums: deque[float] = field(default_factory=lambda: deque(maxlen=LAST_ROUNDS))
    syncs: deque[float] = field(default_factory=lambda: deque(maxlen=LAST_ROUNDS))

    @property
    def are_known(self) -> bool:
        """Whether a round has ended here."""
        return bool(self.quorums and self.syncs)

    def quorum_took(self, seconds: float) -> None:
        """A round met quorum so many seconds after its launch."""
        self.quorum_s = _follow(self.quorum_s, seconds)
        self.quorums.append(seconds)

    def sync_took(self, seconds: float) -> None:
        """The sealer had the new anchor so many seconds after its decision."""
        self.sync_s = _follow(self.sync_s, seconds)
        self.syncs.append(seconds)


def _follow(estimate: float | None, value: float) -> float:
    return value if estimate is None else estimate + FOLLOW * (value - estimate)


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to seal now, and why. `wake_at` is when to ask again if nothing arrives; None: there
    is nothing to decide until something arrives."""

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
    """Seal once all expected learners have offered ("all_present"), or once quorum is met and grace
    has expired ("grace_expired"). Below quorum nothing is sealed, however late it is.

    Args:
        now: the time, in seconds, as all times here.
        present: the learners that have offered.
        expected: the learners that the round waits for.
        needed: the fewest offers of a seal.
        grace_s: how long to wait for more offers once quorum is met.
        quorum_at: when quorum was met; None while it is not.
        not_before: the earliest time of a seal that leaves a learner out: rounds that come too
            often over-drive the outer momentum.
    """
    if len(present) < needed:
        return Decision(False, "below_quorum")
    if set(expected) <= set(present):
        return Decision(True, "all_present")
    patience = max(not_before, (now if quorum_at is None else quorum_at) + grace_s)
    if now >= patience:
        return Decision(True, "grace_expired")
    return Decision(False, "waiting", patience)
