"""What is in an anchor, as learners attest it: whether they all have the same under its key.

A key stands for one history. A seal proves itself, as the key is a chain over the bytes of all
seals. Nothing ties the bytes of a *whole* anchor to its key: that would take all seals that led to
it. So an insider could hand over other bytes under a key that all believe. Therefore each learner
takes digests of its anchors, and its beats tell the last one, with its key.

Only a *contradiction* counts. Two honest learners never attest different digests of one key. A
digest that is late, or missing, or of another anchor, is evidence of nothing: rounds may be faster
than beats, and a peer may be of a former version.

    a whole anchor is handed over    it is refused if more than half of those that attest its key,
                                     and at least two, attest another digest. Its sender is one of
                                     them: it stands for what it hands over, unless it attests
                                     something else itself
    a beat attests something else    this learner's user is told, once for each process and fragment
    than this learner has
    more than half of all learners   if its own came from a peer, and most have never had the same,
    attest one and the same thing    it was deceived: it takes theirs (`repairs.py`)
    that this learner has not

Of two learners that differ, neither knows which one is right. So it keeps what it has, and believes
the other as before. Once most learners have attested the same as it has, it keeps its anchors
whatever they attest later: if one of three deceives another, these two are not to deceive the
third. A learner that is new to the run may hear few of the others yet. So nothing is settled for
good until it has adopted some anchors.

All learners are those that this one hears and that have trained, and itself, also if they attest
nothing of that anchor."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from mend_optim.engine.ledger import Event
from mend_optim.engine.majority import Majority
from mend_optim.engine.progress import Progress
from mend_optim.engine.state import EngineState
from mend_optim.protocol.lineage import Key, PeerId
from mend_optim.protocol.messages import Beat, Content, State

#: Stands for a digest that nobody has to match.
ANY = b""
#: Digests of each peer and fragment that are remembered. A peer that is ahead tells of anchors to
#: which this learner comes later.
TOLD = 8
FORKED = "{} has something else in its anchor of fragment {} than this learner, under the same key"


@dataclass(slots=True)
class _Told:
    """The digests that one process attests."""

    #: The model that it has.
    genesis: bytes
    #: By fragment and key.
    digests: dict[int, dict[Key, bytes]] = field(default_factory=dict)
    #: The fragments of which the user was told that it has something else.
    forked: set[int] = field(default_factory=set)


class Attestations:
    """The digests that peers attest in their beats to this learner."""

    def __init__(self, state: EngineState, majority: Majority) -> None:
        self.state = state
        self.majority = majority
        self._told: dict[PeerId, _Told] = {}
        #: By fragment: the content that most learners have under a key, and this one has not.
        self._wrong: dict[int, Content] = {}

    def heard(self, beat: Beat) -> None:
        """Remember what a beat attests, and compare it with what this learner has."""
        roster = self.state.roster
        if len(self._told) > len(roster.peers):
            self._told = {id: told for id, told in self._told.items() if roster.find(id)}
        told = self._told.get(beat.peer)
        if told is None:
            told = self._told[beat.peer] = _Told(beat.genesis)
        if told.genesis != beat.genesis:
            told.genesis, told.digests = beat.genesis, {}
        for fragment, report in zip(self.state.fragments, beat.reports, strict=False):
            if report.content:
                _remember(told.digests.setdefault(fragment.fragment, {}), report.content)
                if beat.genesis == self.state.genesis:
                    self._compare(beat.peer, told, fragment, report.content)

    def _compare(self, peer: PeerId, told: _Told, fragment: Progress, content: Content) -> None:
        """Tell the user if this learner has something else. If its anchor is in question, settle
        that if most learners attest this."""
        p, held = fragment.fragment, fragment.held
        own = held.has(content.key)
        if _differs(fragment, content):
            self._tell(peer, told, p)
        if not own or not held.is_in_question:
            return
        if not self._most_have(p, content, own == content.digest):
            return
        if own != content.digest:
            self._wrong[p] = content
        elif not self.state.is_young:
            held.confirm()

    def _most_have(self, p: int, content: Content, we_have: bool) -> bool:
        """Whether more than half of all learners attest this, or have it themselves."""
        learners = 1 + len(self.majority.voters(p))
        return 2 * (len(self._with(p, content)) + we_have) > learners

    def _tell(self, peer: PeerId, told: _Told, p: int) -> None:
        """Tell the user, once, that a peer has something else."""
        if p not in told.forked:
            told.forked.add(p)
            facts = {"peer": peer.name, "incarnation": peer.incarnation, "fragment": p}
            self.state.emit(Event("forked", FORKED.format(peer.name, p), facts))

    def _with(self, p: int, content: Content) -> list[PeerId]:
        """The live peers that attest this."""
        said = self._said(p, content.key, self.state.genesis)
        return sorted(id for id, digest in said.items() if digest == content.digest)

    def outvoted_by(self, fragment: Progress) -> list[PeerId]:
        """The live peers that have what most learners have, where this one was handed something
        else over; empty if it was not, or there is no majority."""
        p = fragment.fragment
        content = self._wrong.get(p)
        if content is None or not self.state.policies.limits.majority:
            return []
        is_over = not (fragment.held.is_in_question and _differs(fragment, content))
        if is_over or not self._most_have(p, content, we_have=False):
            del self._wrong[p]
            return []
        return self._with(p, content)

    def is_of_most(self, anchor: State) -> bool:
        """Whether more than half of all learners attest what an anchor is expected to be."""
        content = Content(anchor.lineage.key, self.expected(anchor))
        return bool(content.digest) and self._most_have(anchor.fragment, content, we_have=False)

    def expected(self, anchor: State) -> bytes:
        """The digest that a whole anchor must have when it is handed over; `ANY` if any will do. A
        learner that is stuck takes anything that is not under its own key."""
        if self.state.is_me(anchor.peer) or not self.state.policies.limits.majority:
            return ANY
        said = self._said(anchor.fragment, anchor.lineage.key, anchor.lineage.genesis)
        words = len(said.keys() | {anchor.peer})
        ((most, count),) = Counter(said.values()).most_common(1) or [(ANY, 0)]
        if count == 1 or 2 * count <= words:
            return ANY
        is_new = anchor.lineage.key != self.state.fragments[anchor.fragment].lineage.key
        return ANY if is_new and self.majority.is_stuck(anchor) else most

    def _said(self, p: int, key: Key, genesis: bytes) -> dict[PeerId, bytes]:
        """The digests that live peers attest of one anchor, if they have trained its model."""
        said: dict[PeerId, bytes] = {}
        for beat in self.state.live_beats():
            told = self._told.get(beat.peer)
            digest = told.digests.get(p, {}).get(key) if told else None
            if digest and beat.step > 0 and beat.genesis == genesis:
                said[beat.peer] = digest
        return said


def _remember(digests: dict[Key, bytes], content: Content) -> None:
    digests.pop(content.key, None)
    digests[content.key] = content.digest
    if len(digests) > TOLD:
        del digests[next(iter(digests))]


def _differs(fragment: Progress, content: Content) -> bool:
    """Whether this learner has something else under the key."""
    return fragment.held.has(content.key) not in (b"", content.digest)
