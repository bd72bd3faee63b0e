"""Whether large messages get through to the peers, and from them.

Some networks pass small packets and drop large ones without a word, such as a tunnel with a smaller
MTU than the machines at its ends. Beats pass there, so nobody is suspected. But offers or anchors
do not, so a learner trains on by itself, and nothing else shows that. Each such transfer fails, and
is begun again."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mend_optim.engine.ledger import Event
from mend_optim.engine.state import EngineState
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.transfer_fault import Cause, TransferFault

#: Failures are not one after the other if so many times the longest that a transfer may stand
#: still lies between the end of one and the beginning of the next.
LASTING = 2


class Way(Enum):
    """What goes which way, and what it means that it does not."""

    TO = "no offer of this learner gets through to it", "its work is not merged"
    FROM = "no anchor comes from it", "this learner falls behind"


@dataclass(slots=True)
class _Failure:
    """Transfers of one fragment that failed one after the other, and none between them that did
    not."""

    #: When the first one did. This learner's stops don't count.
    since: float
    #: The peer's steps at that time.
    step: int
    #: When the last one did.
    last: float


class Passages:
    """Tells the user of live peers with whom transfers fail, for as long as one may stand still.

    Each fragment counts by itself: a link may be fast enough for the small ones alone."""

    def __init__(self, state: EngineState) -> None:
        self.state = state
        #: By incarnation, so that a peer that starts again begins anew, and by fragment.
        self._failing: dict[tuple[PeerId, Way, int], _Failure] = {}
        #: Those of whom the user has been told.
        self._told: set[tuple[PeerId, Way]] = set()

    def failed(
        self, now: float, peer: PeerId, way: Way, p: int, *, began: float, fault: TransferFault
    ) -> None:
        """A transfer of fragment `p` that `began` then has failed."""
        if peer not in self.state.roster.alive() or not self.state.joined:
            return
        awake_s, step = self.state.stops.awake_s(now), self._step_of(peer)
        failure = self._failing.setdefault((peer, way, p), _Failure(awake_s, step, now))
        if began - failure.last > self._lasting_s:
            failure.since, failure.step = awake_s, step  # nothing was tried in between
        failure.last = now
        for_s = awake_s - failure.since
        if way is Way.FROM and step == failure.step:
            return  # it may have trained alone: then its anchor comes with its next step
        if for_s >= self._patience_s and (peer, way) not in self._told:
            self._told.add((peer, way))
            text = (_HEARD + _REMEDIES[fault.cause]).format(
                peer.name, *way.value, for_s, fault.words
            )
            facts = {"peer": peer.name, "incarnation": peer.incarnation, "for_s": for_s}
            facts |= {"cause": fault.cause.value, "refusal": fault.words}
            self.state.emit(Event("stuck", text, facts))

    def passed(self, now: float, peer: PeerId, way: Way, p: int) -> None:
        """A whole message of fragment `p` has got through."""
        self._failing.pop((peer, way, p), None)
        if (peer, way) in self._told and not self._fails(now, peer, way):
            self._told.remove((peer, way))
            text = _PASSED.format(peer.name)
            facts = {"peer": peer.name, "incarnation": peer.incarnation}
            self.state.emit(Event("unstuck", text, facts, lifts="stuck"))

    def review(self) -> None:
        """Forget what failed before a peer was suspected: no more than its silence showed. That the
        user was told is kept until the peer is gone."""
        if not self._failing and not self._told:
            return
        roster = self.state.roster
        alive = roster.alive()
        self._told = {(peer, way) for peer, way in self._told if roster.find(peer)}
        self._failing = {
            (peer, way, p): failure
            for (peer, way, p), failure in self._failing.items()
            if peer in alive
        }

    def _fails(self, now: float, peer: PeerId, way: Way) -> bool:
        """Whether transfers of a fragment have failed lately."""
        return any(
            (other, its_way) == (peer, way) and now - failure.last <= self._lasting_s
            for (other, its_way, _), failure in self._failing.items()
        )

    @property
    def _patience_s(self) -> float:
        return self.state.policies.timing.round_timeout_s

    @property
    def _lasting_s(self) -> float:
        return LASTING * self._patience_s

    def _step_of(self, peer: PeerId) -> int:
        known = self.state.roster.find(peer)
        return known.beat.step if known and known.beat else 0


_HEARD = "{0} is heard, but {1}, for {3:.0f} s by now: training goes on, and {2}; "
_REMEDIES = {
    Cause.BROKEN: "look whether a firewall keeps this learner from dialling {0}, or whether the "
    "network drops large packets, as a tunnel may that has a smaller MTU than this machine, or "
    "carries less than 10 kB a second",
    Cause.ENDED: "{0} itself has ended the last transfer, with {4!a}: look at its log and its "
    "status().refused",
    Cause.DAMAGED: "bytes of the last one changed on the way: look for what damages them between "
    "{0} and this machine, such as a router, a tunnel or a network card",
    Cause.UNTRUSTED: "this learner does not accept the certificate that {0} shows now: compare the "
    "authorities and dates of both, and issue one of the two again",
    Cause.UNANSWERED: "{0} has not answered the last question: look whether it trains, and at its "
    "log",
}
_PASSED = "large messages get through again between {} and this learner"
