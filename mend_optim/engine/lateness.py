"""Which learners a round waits for: not for those whose offers come so late, again and again, that
the wait takes longer than all the rest of the round.

    launch ── call ──▶ quorum ── merge ──▶ new anchor ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄ the late offer
    ├──── quorum_s ───┤├───── sync_s ─────┤
                       ├─── limit_s: as long again as both ───┤

A weak link or a very slow step makes a learner late in every round. If all waited for it, all would
have as few rounds as it can take part in. If none waits, it has as many, and the others have more.
A late offer loses nothing: it is the first of the next round.

A newcomer may be such a learner. So until it has answered in time once, a round waits for it only
as long as an answer in time takes. A sealer knows from the seals of the former one which learners
are late, and which are no newcomers.

A learner that has *become* slow is another matter: see `stragglers.py`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from mend_optim.engine.pending import NEVER
from mend_optim.engine.quorum import Delays
from mend_optim.protocol.lineage import PeerId

#: Answers that come too late, or that a round misses, before no round waits for a learner; and as
#: many in time, before rounds wait for it again. An answer may seem to be in time because it was on
#: its way before the call.
LATE_ANSWERS = 2
#: Inner steps that anybody may be late by, as a call may come early in the step of a learner that
#: is four times slower; and seconds, because a wait this short is hardly noticed.
LATE_STEPS, LATE_S = 4, 1.0


def limit_s(delays: Delays, usual_s: float, step_s: float, period_s: float) -> float:
    """Return how many seconds after a call an offer is late; infinite before there are estimates.

    Args:
        delays: of the fragment's rounds so far.
        usual_s: how long rounds take by the word of most learners, which counts before the first
            round here; infinite if they don't know.
        step_s: the learners' median of an inner step.
        period_s: how long a fixed period takes. It does not matter how long a round takes that ends
            before the next one begins. 0 if the run makes its period as long as rounds take.
    """
    quorum_s, sync_s = usual_s, 0.0
    if delays.are_known:
        # Means would follow one long wait for a long time, as at the start of a run.
        quorum_s, sync_s = median(delays.quorums), median(delays.syncs)
    return quorum_s + max(quorum_s + sync_s, LATE_STEPS * step_s, LATE_S, period_s)


@dataclass(slots=True)
class _Call:
    """A call that has not been answered yet."""

    #: When it was first sent. It may have been repeated since.
    at: float
    #: Whether a round was sealed without the answer.
    missed: bool = False


@dataclass(slots=True)
class Lateness:
    """How late the learners' answers to the calls of one fragment are."""

    _calls: dict[PeerId, _Call] = field(default_factory=dict)
    #: By learner, how many more answers were too late, or missed by a round, than in time: from 0
    #: to `LATE_ANSWERS`.
    _times: dict[PeerId, int] = field(default_factory=dict)
    #: Those that have reached the most and not come back to 0 since.
    _late: set[PeerId] = field(default_factory=set)
    #: Those that have answered in time at least once.
    _proven: set[PeerId] = field(default_factory=set)

    def called(self, now: float, peers: Iterable[PeerId]) -> None:
        """These were called for their offers."""
        for peer in peers:
            self._calls.setdefault(peer, _Call(now))

    def came(self, now: float, peer: PeerId, limit_s: float) -> None:
        """An offer came. One that nobody has called for says nothing about calls."""
        call = self._calls.pop(peer, None)
        if call is None or call.missed:
            return
        self._judge(peer, now - call.at > limit_s)

    def sealed(
        self, now: float, absent: Collection[str], known: Collection[PeerId], limit_s: float
    ) -> None:
        """A round was sealed without the offers of the expected learners of these names. Verdicts
        about learners that are not `known` any more are forgotten."""
        self._calls = {peer: call for peer, call in self._calls.items() if peer.name in absent}
        self._forget_all_but(known)
        for peer, call in self._calls.items():
            if now - call.at > limit_s:
                call.missed = True
                self._judge(peer, True)

    def followed(
        self, members: Iterable[PeerId], absent: Collection[str], known: Collection[PeerId]
    ) -> None:
        """Another learner has sealed a round of these members. This one may be the next to seal,
        and would wait for the late anew."""
        self._forget_all_but(known)
        here = set(members)
        for peer in known:
            if peer in here or peer.name in absent:
                self._judge(peer, peer not in here)

    def _forget_all_but(self, known: Collection[PeerId]) -> None:
        self._times = {peer: times for peer, times in self._times.items() if peer in known}
        self._late.intersection_update(known)
        self._proven.intersection_update(known)

    def took_part(self, peers: Iterable[PeerId]) -> None:
        """These are no newcomers, though no call reaches them."""
        self._proven.update(peers)

    def void(self) -> None:
        """Another learner seals: it makes the calls."""
        self._calls.clear()

    def late(self, now: float, limit_s: float) -> frozenset[PeerId]:
        """The learners that rounds need not wait for."""
        overdue = {peer for peer, at in self._due(limit_s).items() if now >= at}
        return frozenset(self._late | overdue)

    def wake_at(self, now: float, limit_s: float) -> float:
        """When rounds need not wait for one more newcomer, unless it answers."""
        return min((at for at in self._due(limit_s).values() if at > now), default=NEVER)

    def _due(self, limit_s: float) -> dict[PeerId, float]:
        """By when each newcomer that was called has to answer."""
        calls = self._calls.items()
        return {peer: call.at + limit_s for peer, call in calls if peer not in self._proven}

    def _judge(self, peer: PeerId, is_late: bool) -> None:
        if not is_late:
            self._proven.add(peer)
        times = self._times.get(peer, 0) + (1 if is_late else -1)
        self._times[peer] = min(max(times, 0), LATE_ANSWERS)
        if times >= LATE_ANSWERS:
            self._late.add(peer)
        elif times <= 0:
            self._late.discard(peer)


def awaited(
    expected: Sequence[PeerId],
    needed: int,
    failing: Mapping[PeerId, float],
    late: Collection[PeerId] = (),
    present: Collection[PeerId] = (),
) -> list[PeerId]:
    """Return those that a round waits for: all but the failing and the late; or as many of these as
    quorum needs. Then the late go first, beginning with those whose offers are here, and of the
    failing the least slow.

    Args:
        expected: the learners that take part.
        needed: the fewest offers of a seal.
        failing: how many times slower each failing learner is than it was.
        late: those whose answers come too late.
        present: those whose offers are here.
    """
    prompt = [id for id in expected if id not in failing and id not in late]
    others = [id for id in expected if id in failing or id in late]
    others.sort(key=lambda id: (failing.get(id, 1.0), id not in present, id))
    return prompt + others[: max(0, needed - len(prompt))]
