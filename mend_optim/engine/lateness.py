"""Which learners a round waits for: not for those whose offers come so late, again and again, that
the wait takes longer than all the rest of the round.

    launch ── call ──▶ quorum ── merge ──▶ new anchor ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄ the late offer
    ├──── quorum_s ───┤├───── sync_s ─────┤
                       ├─── limit_s: as long again as both ───┤

A weak link or a very slow step makes a learner late in every round. If all waited for it, all would
have as few rounds as it can take part in. If none waits, it has as many, and the others have more.
A late offer loses nothing: it is the first of the next round.

A learner that has *become* slow is another matter: see `stragglers.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mend_optim.engine.quorum import Delays
from mend_optim.protocol.lineage import PeerId

#: Answers in a row that come too late, or that a round misses, before no round waits for a learner.
#: After one answer in time, rounds wait for it again.
LATE_ANSWERS = 2
#: Inner steps that anybody may be late by, as a call may come early in the step of a learner that
#: is four times slower; and seconds, because a wait this short is hardly noticed.
LATE_STEPS, LATE_S = 4, 0.25


def limit_s(delays: Delays, step_s: float, period_s: float) -> float:
    """Return how many seconds after a call an offer is late; infinite before there are estimates.

    Args:
        delays: of the fragment's rounds so far.
        step_s: the learners' median of an inner step.
        period_s: how long a fixed period takes. It does not matter how long a round takes that ends
            before the next one begins. 0 if the run makes its period as long as rounds take.
    """
    if delays.quorum_s is None or delays.sync_s is None:
        return float("inf")
    again = delays.quorum_s + delays.sync_s
    return delays.quorum_s + max(again, LATE_STEPS * step_s, LATE_S, period_s)


@dataclass(slots=True)
class _Call:
    """A call that has not been answered yet."""

    #: When it came, if it was repeated since.
    at: float
    #: Whether a round was sealed without the answer.
    missed: bool = False


@dataclass(slots=True)
class Lateness:
    """How late the learners' answers to the calls of one fragment are."""

    _calls: dict[PeerId, _Call] = field(default_factory=dict)
    #: By learner, how many answers in a row were too late, or missed by a round.
    _times: dict[PeerId, int] = field(default_factory=dict)

    def called(self, now: float, peers: Iterable[PeerId]) -> None:
        """These were called for their offers."""
        for peer in peers:
            self._calls.setdefault(peer, _Call(now))

    def came(self, now: float, peer: PeerId, limit_s: float) -> None:
        """An offer came. One that nobody has called for says nothing about calls."""
        call = self._calls.pop(peer, None)
        if call is None or call.missed:
            return
        if now - call.at > limit_s:
            self._add(peer)
        else:
            self._times.pop(peer, None)

    def sealed(self, now: float, expected: Iterable[PeerId], limit_s: float) -> None:
        """A round was sealed without the answers that have not come. Learners that take part no
        more are forgotten."""
        here = set(expected)
        self._calls = {peer: call for peer, call in self._calls.items() if peer in here}
        self._times = {peer: times for peer, times in self._times.items() if peer in here}
        for peer, call in self._calls.items():
            if now - call.at > limit_s:
                call.missed = True
                self._add(peer)

    def void(self) -> None:
        """Another learner seals: it makes the calls."""
        self._calls.clear()

    def late(self) -> frozenset[PeerId]:
        """The learners that rounds need not wait for."""
        return frozenset(peer for peer, times in self._times.items() if times >= LATE_ANSWERS)

    def _add(self, peer: PeerId) -> None:
        self._times[peer] = min(LATE_ANSWERS, self._times.get(peer, 0) + 1)


def awaited(
    expected: Sequence[PeerId],
    needed: int,
    failing: Mapping[PeerId, float],
    late: frozenset[PeerId] = frozenset(),
) -> list[PeerId]:
    """Return those that a round waits for: all but the failing and the late; or as many of these as
    quorum needs, the late first, and of the failing the least slow.

    Args:
        expected: the learners that take part.
        needed: the fewest offers of a seal.
        failing: how many times slower each failing learner is than it was.
        late: those whose answers come too late.
    """
    prompt = [id for id in expected if id not in failing and id not in late]
    others = [id for id in expected if id in failing or id in late]
    others.sort(key=lambda id: (failing.get(id, 1.0), id))
    return prompt + others[: max(0, needed - len(prompt))]
