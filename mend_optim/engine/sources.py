"""Whom a learner asks for whole anchors, where several peers have them.

A learner that joins, or that comes back after many rounds, lacks all fragments. One peer would send
them as fast as its uplink allows, and do little else meanwhile. So each peer is asked for a few of
them at a time, and for the next one as soon as one has come. A peer with a slow link thus sends
fewer of them, and one that dies takes no more than these with it. Once all are asked for, a peer
that has sent its own is asked for one that a far slower peer still sends, too. The first that comes
is taken.

Peers of the learner's own zone go first, as what crosses between zones is dear; then those whose
links are not so weak that they decline to seal."""

from __future__ import annotations

from collections.abc import Iterator

from mend_optim.engine.majority import Majority
from mend_optim.engine.model_parts import MEETING_BEATS
from mend_optim.engine.progress import Progress
from mend_optim.engine.state import EngineState
from mend_optim.engine.wanted import Wanted
from mend_optim.membership.peer import Peer
from mend_optim.membership.zones import are_neighbours
from mend_optim.protocol.lineage import NOWHERE, Key, PeerId
from mend_optim.protocol.messages import Beat

#: Fragments that one peer is asked for at a time, at most: on a long way, so many connections are
#: faster than one.
MOST_AT_ONCE = 4
#: A peer is overtaken that takes so many times as long for an anchor as an idle one took for its
#: last one.
SLOWER = 2


def at_once(fragments: int, peers: int) -> int:
    """Return for how many of a model's fragments each of so many peers is asked at a time: half of
    its share, so that a faster one sends more. A newcomer hears its peers one after the other, and
    leaves something to the next."""
    return min(max(fragments // (2 * peers), 1), MOST_AT_ONCE) if peers > 1 else 1


class Sources:
    """Divides the anchors that this learner lacks among the peers that have them."""

    def __init__(self, state: EngineState, majority: Majority) -> None:
        self.state = state
        self.majority = majority
        #: By peer, for how long its last whole anchor was on its way, in seconds.
        self._took_s: dict[PeerId, float] = {}

    def may_ask(self, now: float, fragment: Progress, peer: PeerId, key: Key) -> bool:
        """Whether to ask a peer now for the whole anchor of a fragment that it shows. If not, there
        are others to ask, or this peer later. In a switch, that is an anchor of the other model."""
        state, known = self.state, self.state.roster.find(peer)
        if known is None or known.beat is None:
            return True
        own, asked_at = self._rank(peer, known.beat), self._asked_at(peer)
        is_alone = bool(asked_at) and self._was_heard_alone(now, min(asked_at))
        if len(asked_at) >= MOST_AT_ONCE and not is_alone:
            return False
        ranks = [self._rank(id, beat) for id, beat in self._others(fragment, peer, key)]
        if any(rank < own for rank in ranks):
            return False
        if len(asked_at) < at_once(len(state.fragments), 1 + ranks.count(own)):
            return True
        return is_alone and own not in ranks

    def came(self, now: float, p: int, peer: PeerId) -> None:
        """The whole anchor of a fragment has come from a peer."""
        wanted = self.state.wants.get(p)
        if wanted and wanted.peer == peer:
            here = {known.id for known in self.state.roster.peers.values()}
            self._took_s = {id: took_s for id, took_s in self._took_s.items() if id in here}
            self._took_s[peer] = now - wanted.since

    def overtaken(self, now: float, peer: PeerId) -> Progress | None:
        """The fragment whose anchor a peer had better send, too, that owes none itself: another one
        is far slower with it."""
        took_s = self._took_s.get(peer)
        if took_s is None or self._asked_at(peer):
            return None
        patience_s = max(SLOWER * took_s, self.state.policies.timing.beat_s)
        late = [
            (wanted.since, p)
            for p, wanted in self.state.wants.items()
            if now - wanted.since >= patience_s and self._overtakes(peer, p, wanted)
        ]
        return self.state.fragments[min(late)[1]] if late else None

    def _overtakes(self, peer: PeerId, p: int, wanted: Wanted) -> bool:
        """Whether a peer may be asked for what another one was asked for. Two peers send one anchor
        at most, and none that is dear if the other one is not."""
        is_free = wanted.catches_up and not (wanted.overtaken or wanted.held)
        fragment, slower = self.state.fragments[p], self.state.roster.find(wanted.peer)
        if not is_free or fragment.is_about_to_move:
            return False
        ranks = [
            self._rank(id, beat)
            for id, beat in self._others(fragment, wanted.peer, wanted.key)
            if id == peer
        ]
        if slower is None or slower.beat is None:
            return bool(ranks)
        return any(rank <= self._rank(slower.id, slower.beat) for rank in ranks)

    def _rank(self, peer: PeerId, beat: Beat) -> tuple[bool, bool]:
        """Those with the lowest are asked first."""
        roster = self.state.roster
        return not are_neighbours(roster, roster.me, peer), beat.declines

    def _others(self, fragment: Progress, peer: PeerId, key: Key) -> Iterator[tuple[PeerId, Beat]]:
        """The other peers that this learner would ask for as good an anchor, which lacks one seal
        at most: of the model on its way, or a greater one of its own that is believed."""
        state, p = self.state, fragment.fragment
        genesis = state.switch.genesis if state.switch else state.genesis
        least = NOWHERE if state.switch else fragment.lineage.key
        most = None if state.switch else self.majority.believed(fragment)
        for other in state.roster.peers.values():
            beat = other.beat
            if beat is None or other.id == peer or not self._can_answer(other):
                continue
            if beat.genesis != genesis or p >= len(beat.reports):
                continue
            shown = beat.reports[p].key
            is_sought = shown > least and (most is None or shown <= most)
            if is_sought and shown.version + 1 >= key.version:
                yield other.id, beat

    def _can_answer(self, other: Peer) -> bool:
        return other.linked and not other.suspected and not self.state.claims.doubts(other.id)

    def _asked_at(self, peer: PeerId) -> list[float]:
        """When a peer was asked for whole anchors that have not come yet."""
        wants = self.state.wants.values()
        return [wanted.since for wanted in wants if wanted.peer == peer and wanted.whole]

    def _was_heard_alone(self, now: float, since: float) -> bool:
        """Whether the others would have shown their anchors by now, if they had them."""
        return now - since >= MEETING_BEATS * self.state.policies.timing.beat_s
