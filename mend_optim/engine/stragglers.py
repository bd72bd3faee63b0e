"""Which learners are slow, and whether there are enough of them for a quorum. Every learner times
itself, reports the result with its beats, and judges all learners by the same rule.

Rounds stop waiting for a learner that fails slow, or whose offers always come late (`lateness.py`);
nothing else happens to it. An offer that it
makes in time is merged, and work that comes late travels in its next offer."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from mend_optim.engine.lateness import awaited, limit_s
from mend_optim.engine.ledger import Event
from mend_optim.engine.pending import NEVER
from mend_optim.engine.round import Round
from mend_optim.engine.state import EngineState
from mend_optim.membership.failslow import Pace, Verdict, Watch
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Level, Seal

COMPUTE, LINK = "compute", "link"
# Step time is the median of the last 9 steps, so one pause does not count.
STEPS = 9
# A link on which an offer takes less than this part of a period, or so many seconds, delays no
# round. The time of a shorter one tells more of the machine's load.
SHARE, SHORT_S = 0.1, 0.05


class Stragglers:
    """The times of this learner, and its verdicts about all learners."""

    def __init__(self, state: EngineState) -> None:
        self.state = state
        policy = state.policies.failslow
        self._watch = Watch(policy) if policy else None
        self._compute, self._link = Pace(), Pace(block=1, skip=0)
        self._steps: deque[float] = deque(maxlen=STEPS)
        self._sent_s = 0.0
        #: Since when there has been no quorum; None if there is one; infinite once told.
        self._short_since: float | None = None

    def stepped(self, seconds: float, tokens: int) -> None:
        """An inner step on `tokens` tokens took `seconds`, without the time of this library."""
        self._steps.append(seconds)
        self.state.step_s = median(self._steps)
        self._compute.add(seconds, tokens)

    def delivered(self, seconds: float, nbytes: int) -> None:
        """An offer of `nbytes` bytes took `seconds` to send."""
        self._sent_s = seconds
        self._link.add(seconds, nbytes)

    def levels(self) -> tuple[tuple[str, Level], ...]:
        """The levels of this learner, for its beats. A link that delays no round is left out."""
        found = []
        if self._compute.level:
            found.append((COMPUTE, self._compute.level))
        period_s = self.state.schedule.sync_every * self.state.step_s
        if self._link.level and self._sent_s >= max(SHARE * period_s, SHORT_S):
            found.append((LINK, self._link.level))
        return tuple(found)

    @property
    def failing(self) -> Mapping[PeerId, Verdict]:
        """The learners that have become slow: no round needs to wait for them."""
        return self._watch.failing if self._watch else {}

    @property
    def judges(self) -> bool:
        """Whether rounds may depend on how long anything takes. In lockstep they must be the same
        again."""
        return self._watch is not None and not self.state.schedule.lockstep

    def awaited(
        self, now: float, round: Round, expected: Sequence[PeerId], needed: int
    ) -> list[PeerId]:
        """Those of the expected learners that a round waits for, whose quorum is `needed` offers.
        In lockstep a round that is to be the same again must not depend on how long offers take."""
        failing = {id: verdict.ratio for id, verdict in self.failing.items()}
        late = frozenset[PeerId]()
        if self.judges:
            limit_s = self.late_after_s(round)
            late = round.lateness.late(now, limit_s)
            self.state.wake_by(round.lateness.wake_at(now, limit_s))
        return awaited(expected, needed, failing, late, round.inbox)

    def sealed(self, round: Round) -> None:
        """The seal of a round is made: note which answers it lacks. A round that had to be merged
        again, without an offer that was refused, counts once."""
        known = {self.state.me, *self._peers()}
        late_after_s = self.late_after_s(round)
        round.lateness.sealed(round.decided_at, round.absent, known, late_after_s)

    def followed(self, round: Round, seal: Seal) -> None:
        """Another learner's round was sealed: note which answers it lacks. Ours may be among them,
        but they will have no way to go if this learner seals."""
        members = (entry.peer for entry in seal.members)
        round.lateness.followed(members, seal.absent, self._peers())

    def _peers(self) -> set[PeerId]:
        return {peer.id for peer in self.state.roster}

    def late_after_s(self, round: Round) -> float:
        """After how long the answer to a call of a round is late."""
        state, step_s = self.state, self.step_s()
        period_s = 0.0 if state.policies.auto else state.schedule.sync_every * step_s
        usual_s = NEVER if round.delays.are_known else self._usual_round_s()
        return limit_s(round.delays, usual_s, step_s, period_s)

    def _usual_round_s(self) -> float:
        """How long rounds of any fragment take by the word of most learners, in seconds; infinite
        if most don't know."""
        told = [beat.latency * beat.seconds_per_step or NEVER for beat in self.state.live_beats()]
        return median(told or (NEVER,))

    def step_s(self) -> float:
        """The learners' median of an inner step, in seconds."""
        told = [beat.seconds_per_step for beat in self.state.beats() if beat.seconds_per_step]
        return median([self.state.step_s, *told])

    def least_step_s(self, peers: Iterable[PeerId]) -> float:
        """The time of an inner step of the fastest of these learners, in seconds; 0 if it is not
        known."""
        told = {beat.peer: beat.seconds_per_step for beat in self.state.beats()}
        told[self.state.me] = self.state.step_s
        return min((told[peer] for peer in peers if told.get(peer)), default=0.0)

    def review(self, now: float) -> None:
        """Judge all learners of this model by their last beats, and report new verdicts."""
        # Nobody lacks a quorum, or loses work, by a stop of this learner.
        awake_s = self.state.stops.awake_s(now)
        self._count_live(awake_s)
        if self._watch is None:
            return
        beats = [
            p.beat
            for p in self.state.roster.peers.values()
            if p.beat and p.beat.genesis == self.state.genesis
        ]
        levels = {beat.peer: dict(beat.paces) for beat in beats if beat.paces}
        # A learner alone has no rounds that could wait for it: it is forgotten, with its verdict.
        if not self.state.alone:
            levels[self.state.me] = dict(self.levels())
        for kind, verdict in self._watch.judge(awake_s, levels):
            self.state.emit(_event(awake_s, kind, verdict))

    def _count_live(self, awake_s: float) -> None:
        """Tell the user once if offers have waited for a quorum longer than a round may take."""
        roster, policies = self.state.roster, self.state.policies
        here, needed = 1 + len(roster.alive()), policies.quorum.needed(roster.heard)
        offers = any(fragment.pending for fragment in self.state.fragments)
        told = self._short_since == NEVER
        if here >= needed or self.state.alone:
            self._short_since = None
            if told and not self.state.alone:
                self._tell_quorum(here, needed)
        elif not offers:
            self._short_since = NEVER if told else None
        elif self._short_since is None:
            self._short_since = awake_s
        elif awake_s - self._short_since >= policies.timing.round_timeout_s:
            self._short_since = NEVER
            self.state.emit(
                Event("below_quorum", _SHORT.format(needed, here), {"here": here, "needed": needed})
            )

    def _tell_quorum(self, here: int, needed: int) -> None:
        text = _ENOUGH.format(needed, here)
        facts = {"here": here, "needed": needed}
        self.state.emit(Event("quorum", text, facts, lifts="below_quorum"))


def _event(now: float, kind: str, verdict: Verdict) -> Event:
    facts = {
        "peer": verdict.peer.name,
        "incarnation": verdict.peer.incarnation,
        "cause": verdict.cause,
        "ratio": verdict.ratio,
        "for_s": now - verdict.since,
        "lost_s": verdict.lost_s,
        "lost_per_hour_s": verdict.lost_per_hour_s,
    }
    lifts = ("costly" if verdict.costly else "slow") if kind == "recovered" else ""
    return Event(kind, _TEXTS[kind].format(**facts), facts, lifts)


_SHORT = (
    "nothing can be merged: quorum needs {} learners, and {} are here; training goes on, and "
    "offers wait; start the others again, or pass a smaller quorum to all"
)
_ENOUGH = "rounds go on: quorum needs {} learners, and {} are here"

_TEXTS = {
    "slow": "{peer} is {ratio:.1f} times slower than it was ({cause}): "
    "rounds no longer wait for it",
    "costly": "{peer} has been {ratio:.1f} times slower than it was ({cause}) for {for_s:.0f} s. "
    "This has cost {lost_s:.0f} s of its work, and costs {lost_per_hour_s:.0f} s more every hour: "
    "replacing it would have paid by now",
    "recovered": "{peer} is as fast as it was, after {for_s:.0f} s: rounds wait for it again",
}
