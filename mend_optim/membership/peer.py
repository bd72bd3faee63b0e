"""One peer on a roster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mend_optim.protocol.lineage import Key, PeerId
from mend_optim.protocol.messages import Beat, Rumor
from mend_optim.protocol.timing import Timing

#: The links on the longest way that a learner tells of. When a link breaks, two learners may each
#: take the other for the way, and tell of one link more with each beat, until here.
MOST_HOPS = 8


@dataclass(slots=True, kw_only=True)
class Peer:
    """A learner as seen over the network. Only `Roster` writes its fields, `beat` excepted: the
    engine takes reports out of the beat that cannot be compared."""

    #: The peer. On the roster, no other peer has the same name.
    id: PeerId
    #: Where to dial the peer; empty if nobody can, and then it never seals.
    address: str
    #: The greatest beat count of this incarnation that anybody told of. Never decreases;
    #: `beat.count <= count`, because gossip may overtake a beat.
    count: int
    #: When this incarnation came to the roster.
    met_at: float
    #: When the last sign of life came, or an excuse for its absence: see `Roster.slept`. Invariant:
    #: met_at <= heard_at.
    heard_at: float
    #: The greatest beat count of this learner that the peer has shown to know, or that had been
    #: sent when the peer was met. Never decreases.
    knows: int
    #: This learner's last beat when `knows` grew last. On a long way, a peer is many beats behind,
    #: and hears each of them. Invariant: knows <= learned_at.
    learned_at: int = field(init=False)
    #: Whether no steps lay behind the peer when it was first heard, in this process or before its
    #: checkpoint. Such a peer cannot have sealed anything before.
    fresh: bool = False
    #: Whether a control stream with the peer is open.
    linked: bool = False
    #: Whether it was evicted for its silence, and is back by a beat or by hearsay alone; or gave no
    #: sign for as long on a stream that stands. A stream from before does not count.
    lost: bool = False
    #: Whether it has been silent for `suspect_after_s`, or its last control stream broke. Any sign
    #: of life clears this.
    silent: bool = False
    #: Whether it has not heard of this learner for a while, by its own last beat.
    deaf: bool = False
    #: Until when it is not deaf, whatever it tells: of the beats since its first hello, the first
    #: may be on its way, or the news of it. In the past once the peer has told of one of them; None
    #: before that hello.
    answers_by: float | None = None
    #: The peers that it reaches, by its newest beat.
    reaches: frozenset[PeerId] = frozenset()
    #: The links on its ways to those that it reaches through others, by its newest beat.
    far: Mapping[PeerId, int] = field(default_factory=dict)
    #: Its newest beat; None until there is one, and again once this learner hears the peer no more
    #: itself.
    beat: Beat | None = None
    #: When its own last sign of life came, by a beat, other bytes or a new stream, or as much later
    #: as its silence was excused. Invariant: sign_at <= heard_at.
    sign_at: float = float("-inf")
    #: The newest rumor of it; None until there is one.
    rumor: Rumor | None = None
    #: What `heard_at` was when its silence was excused. Nothing was heard of it since if the two
    #: are equal.
    excused_at: float = float("-inf")

    def __post_init__(self) -> None:
        self.learned_at = self.knows

    def greets(self, now: float, newest: int, answers_by: float) -> None:
        """The peer said hello. `newest` is this learner's last beat to all: beats that the peer
        missed before don't make it deaf. It has until `answers_by` to tell of a later one, if this
        is its first hello: else a peer that says hello again and again would never be deaf."""
        self.heard_at = now
        self.silent = self.deaf = False
        self.knows = self.learned_at = newest
        if self.answers_by is None:
            self.answers_by = answers_by

    def learns(self, count: int, newest: int) -> None:
        """The peer tells of this learner's beat of that count; `newest` is the last one to all. A
        hostile learner may have told it of beats that were never sent."""
        count = min(count, newest)
        if count > self.knows:
            self.knows, self.learned_at = count, newest
            self.answers_by = float("-inf")

    def tells_ways(self, rumors: Sequence[Rumor]) -> None:
        """The peer tells whom it reaches, and how."""
        self.reaches = frozenset(rumor.peer for rumor in rumors if rumor.reached)
        self.far = {r.peer: r.hops for r in rumors if 1 < r.hops <= MOST_HOPS}

    def is_heard_no_more(self) -> None:
        """This learner knows the peer by hearsay from now on."""
        self.beat, self.reaches, self.far = None, frozenset(), {}
        # A stream across a net that drops all packets stands on for long.
        self.lost = self.lost or self.linked

    def suspect_after_s(self, timing: Timing) -> float:
        """Return how long nothing may be heard of the peer. What others tell of it comes less
        regularly than its own beats: each of them tells it with its next beat."""
        return (2 if self.is_hearsay and self.rumor else 1) * timing.suspect_after_s

    @property
    def heard(self) -> bool:
        """Whether this learner has heard the peer itself, not only of it."""
        return self.beat is not None

    @property
    def is_hearsay(self) -> bool:
        """Whether this learner knows the peer only by what others tell of it, or by a hello. It may
        not exist, and no message reaches it."""
        return not self.heard and not self.linked

    @property
    def word(self) -> Beat | Rumor | None:
        """How far it is with its end, and whether it declines to seal: its newest beat, or what
        others tell of one that this learner has not heard itself."""
        return self.beat or self.rumor

    @property
    def reached(self) -> bool:
        """Whether this learner has heard the peer itself, and has a stream with it."""
        return self.heard and self.linked and not self.suspected

    @property
    def suspected(self) -> bool:
        """Whether the peer may be dead or cut off. Rounds don't wait for it, and it doesn't seal,
        but it counts for the quorum until it is evicted."""
        return self.silent or self.deaf

    @property
    def rests(self) -> bool:
        """Whether it takes no step now: it synchronizes, or finishes, as far as others tell."""
        synchronizes = self.beat is not None and self.beat.rests
        return synchronizes or (self.word is not None and self.word.finishes)

    @property
    def declines(self) -> bool:
        """Whether it leaves its place as a sealer to others."""
        return self.word is not None and self.word.declines

    @property
    def is_weak(self) -> bool:
        """Whether it does so as its link is weak. One that has yet to join declines, too; that is
        not told of one that this learner has not heard."""
        return self.declines and (self.training or not self.heard)

    def hops_to(self, id: PeerId) -> int:
        """Return the links on its shortest way to another learner, by its newest beat; 0 if it
        knows none."""
        return 1 if id in self.reaches else self.far.get(id, 0)

    def shows(self, genesis: bytes, fragment: int) -> Key | None:
        """Return the anchor of a fragment of this model that its newest beat shows; None if that
        shows none."""
        beat = self.beat
        if beat is None or beat.genesis != genesis or fragment >= len(beat.reports):
            return None
        return beat.reports[fragment].key

    @property
    def fragments(self) -> float:
        """How many fragments the peer has; infinite if that is not known. Learners need not add a
        parameter group at the same moment."""
        return (len(self.beat.reports) if self.beat else 0) or float("inf")

    def has(self, fragment: int) -> bool:
        """Return whether the peer has that fragment, as far as is known."""
        return fragment < self.fragments

    @property
    def training(self) -> bool:
        """Whether the peer has joined, by its last beat."""
        return self.beat is not None and self.beat.training
