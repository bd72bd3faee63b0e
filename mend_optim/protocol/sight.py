"""A learner as a watcher sees it: plain numbers, and no part of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mend_optim.protocol.lineage import PeerId

#: Of the meaning of the fields.
VERSION = 1
#: Numbers that a script may report, and characters of their names.
REPORTED_LIMIT = 16
REPORTED_NAME = 32
#: Rounds that stay away for longer than this, and than so many of them take, have stopped.
QUIET_S = 60.0
QUIET_ROUNDS = 10
#: Rounds in a row without a learner, after which it is called late: one may be missed by chance.
LATE_ROUNDS = 2
#: The last rounds that are shown, and the members that are named of each.
ROUNDS_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenPeer:
    """A peer as the watched learner sees it: see `PeerStatus`."""

    name: str
    incarnation: int
    address: str
    state: str
    step: int
    tokens: int
    slow: float = 0.0
    finishing: bool = False
    zone: str = ""
    declines: bool = False
    missed: tuple[int, ...] = ()

    @property
    def is_late(self) -> bool:
        """Whether rounds were sealed without it again and again."""
        return max(self.missed, default=0) >= LATE_ROUNDS

    @property
    def tells(self) -> bool:
        """Whether it says more of the peer than that it is alive."""
        is_slow = self.slow > 0 or self.declines or self.is_late
        return self.state != "alive" or self.finishing or is_slow


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRound:
    """A merged round, with the names of its members."""

    fragment: int
    version: int
    tokens: int
    reason: str
    sealer: str
    members: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """Where a learner stands: see `Status`. `seconds_per_step` is 0 until it is known, and
    `quiet_s`, the seconds since it adopted an anchor, until there was one."""

    peer: PeerId
    address: str
    joined: bool
    step: int
    tokens: int
    position: int
    cluster_step: int
    cluster_tokens: int
    seconds_per_step: float = 0.0
    sync_every: int = 0
    latency: int = 0
    rounds: int = 0
    quiet_s: float = 0.0
    unmerged_tokens: int = 0
    dropped_tokens: int = 0
    superseded_tokens: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    codec: str = ""
    roster: tuple[SeenPeer, ...] = ()
    last: tuple[SeenRound, ...] = ()
    reported: tuple[tuple[str, float], ...] = ()
    zone: str = ""

    @property
    def tokens_per_s(self) -> float:
        """Tokens of a mean step, by the time of a recent one; 0 if that is not known."""
        if not self.step or not self.seconds_per_step:
            return 0.0
        return self.tokens / self.step / self.seconds_per_step

    @property
    def is_merging(self) -> bool:
        """Whether it has joined, some other learner is alive, and rounds merge its work."""
        alive = any(peer.state == "alive" for peer in self.roster)
        merged = any(len(each.members) > 1 for each in self.last)
        return self.joined and alive and merged and not self.is_quiet

    @property
    def is_quiet(self) -> bool:
        """Whether rounds that came before have stayed away for much longer than they take."""
        usual_s = (self.sync_every + self.latency) * self.seconds_per_step
        return self.quiet_s > max(QUIET_S, QUIET_ROUNDS * usual_s)


def late_text(missed: Sequence[int]) -> str:
    """Which rounds a learner has missed, in words; empty if it is not late. `missed`: of each
    fragment, how many of its last rounds in a row."""
    late = [p for p, rounds in enumerate(missed) if rounds >= LATE_ROUNDS]
    if not late:
        return ""
    which = f"fragment{'s' * (len(late) > 1)} {', '.join(map(str, late))}"
    which = which if len(missed) > len(late) or len(missed) == 1 else "all fragments"
    return f"late: not in the last {max(missed)} rounds of {which}"
