"""Every message that learners send each other, as plain data.

*Control messages* are small. They travel on the control stream that two peers keep open:

    Beat      a sign of life, with everything small that others need to know
    Call      the sealer asks for an offer
    Want      a peer asks for an anchor
    Goodbye   the sender leaves

*Bulky messages* carry tensors. Each travels on a stream of its own:

    Offer     a learner's progress on one fragment, for the sealer
    Seal      the sealer's decision: which offers are merged, with which weights, and the result
    State     a whole anchor, for a learner that missed seals

In a round without faults the sealer sends a call to each learner, takes one offer from each, and
sends each of them the seal. All else serves learners that come late, miss something, or leave.

The bytes of a bulky message are its *sections*, named packets. If a later version has more to say,
it adds a section, not another message. `transport/wire.py` turns messages into protobuf and back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from mend_optim.errors import PeerError
from mend_optim.protocol.lineage import NOWHERE, Claim, Entry, Key, Lineage, PeerId, begun

#: The codec of a packet that is left out of a seal, because it is that of the receiver's own offer.
YOURS = "yours"
#: The section that holds the merged delta in a seal.
MERGED = "merged"
#: The name of the section of a seal that scales the mean of its members.
SCALE = "scale"
#: The name of the section of a seal that has the inner learning rates of its members.
RATE = "rate"
#: The name of the section of a seal, or of a whole anchor, that has the sizes of merged offers.
SIZES = "sizes"
#: The name of the section of a joint offer that has the norms of its members' deltas.
NORMS = "norms"
#: The name of the section of a joint offer that says, for each tensor of each moment, how many
#: members have it.
COUNTS = "counts"
#: The name of the section of an offer that has its author's signature.
SIGNATURE = "signature"
#: The name of the section of a seal that has the signatures of its members.
PROOFS = "proofs"
#: The prefix of the names of all sections that hold moments.
MOMENT_PREFIX = "moment."
#: The other names of sections. In a seal, a number names the packet of that member.
SECTION_NAMES = frozenset(
    (
        *("delta", NORMS, COUNTS, MERGED, SCALE, RATE, SIGNATURE, PROOFS),
        *("anchor", "velocity", "velocity_rate"),
    )
)
#: Which joint offers a sealer takes: none, those of deltas, or those with moments, too. A later
#: version may say more.
NO_JOINT, JOINT_DELTAS, JOINT_MOMENTS = range(3)


# ── sections ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Packet:
    """One encoded fragment."""

    #: How it is encoded: "none" or "packed", or `YOURS` if it is left out.
    codec: str
    #: Elements of the fragment.
    numel: int
    #: The bytes: any contiguous buffer.
    data: memoryview

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self.data.nbytes


Sections = Mapping[str, Packet]
"""The tensors of one message by name.

"delta" in an offer, "norms" and "counts" in a joint one; "merged" or the members' deltas, by their
index among the members, "scale", "rate" and "sizes" in a seal; "anchor", "velocity",
"velocity_rate", "scale" and "sizes" in a state.
"moment." and a moment's name in any of them. If offers are signed, "signature" in an offer and
"proofs" in a seal.
"""


def section(sections: Sections, name: str) -> Packet:
    """Return the packet of that name. Raises `PeerError`."""
    if name not in sections:
        raise PeerError(f"section {name!r} is missing")
    return sections[name]


def is_known(name: str) -> bool:
    """Return whether this version has a use for a section of that name."""
    return name in SECTION_NAMES or name.startswith(MOMENT_PREFIX) or name.isdecimal()


def nbytes(sections: Sections) -> int:
    """Return the payload of a bulky message, in bytes."""
    return sum(packet.nbytes for packet in sections.values())


def moment_names(sections: Iterable[str]) -> frozenset[str]:
    """Return the moments among the names of a message's sections."""
    return frozenset(
        name.removeprefix(MOMENT_PREFIX) for name in sections if name.startswith(MOMENT_PREFIX)
    )


# ── control messages ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Rumor:
    """One peer's news of another."""

    #: The peer that the rumor is about.
    peer: PeerId
    #: Where to dial it; empty if nobody can.
    address: str
    #: Its greatest beat count that the sender has heard of.
    count: int
    #: Whether it said goodbye. Then `address` is empty.
    left: bool = False
    #: Whether it has trained to its end, as in `Beat`; so are the next two. A learner that nobody
    #: can dial hears of others like it by such rumors only.
    finishes: bool = False
    ready: bytes = b""
    #: Its tokens, if it finishes.
    tokens: int = 0
    #: The proof of its goodbye: see `Goodbye`.
    proof: bytes = b""
    #: Whether the sender has heard it itself, and has a stream with it.
    reached: bool = False
    #: The links on the shortest way to it that the sender knows, if it does not reach it itself; 0
    #: if it knows none.
    hops: int = 0
    #: Whether it declines to seal, as in `Beat`.
    declines: bool = False


class Content(NamedTuple):
    """The content of an anchor: see `engine/attestations.py`."""

    key: Key
    #: The digest of its bytes. Invariant: not empty.
    digest: bytes


@dataclass(frozen=True, slots=True)
class Report:
    """One fragment in a beat."""

    #: The sender's anchor.
    key: Key
    #: The offers that the sender holds for the fragment's rounds: (sending peer, seq).
    held: tuple[tuple[PeerId, int], ...] = ()
    #: For a fragment that is an added parameter group, a digest of the group's names, shapes and
    #: dtypes; empty for the others. The hello may have come too early to compare the group.
    group: bytes = b""
    #: The content of the last anchor of which the sender has a digest; None before the first round.
    content: Content | None = None
    #: The median of the inner steps that the sender's rounds take which the present sealer seals; 0
    #: if there were too few.
    latency: int = 0


class Level(NamedTuple):
    """How fast one stream of a learner's durations is, in seconds per token or byte."""

    #: The present level. Invariant: > 0.
    now: float
    #: The fastest level that it has held; `now` if no other was faster.
    #: Invariant: 0 < before <= now.
    before: float
    #: The standard error of log(now). Invariant: >= 0.
    spread: float
    #: Blocks of durations since the level last changed.
    run: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A sign of life, with everything that is small: roster, lineages, counters."""

    #: The sender.
    peer: PeerId
    #: Where others can dial the sender; empty if nobody can.
    address: str
    #: The number of this beat. Grows with every beat of an incarnation, whoever it goes to.
    count: int
    #: Inner steps that this process has taken.
    step: int = 0
    #: Tokens that this process has trained.
    tokens: int = 0
    #: The sender's running median of an inner step; 0 if unknown.
    seconds_per_step: float = 0.0
    #: Whether the sender has joined. Before, it neither offers nor seals.
    training: bool = False
    #: The digest of the sender's first weights; empty until it has weights to show.
    genesis: bytes = b""
    #: One report per fragment, in their order; empty until the sender has weights to show.
    reports: tuple[Report, ...] = ()
    #: The peers that the sender believes to be alive, and the last goodbyes.
    roster: tuple[Rumor, ...] = ()
    #: Asks for a beat in answer, at once, if it is greater than 0.
    ping: int = 0
    #: The `ping` that this beat answers; 0 if it answers none.
    pong: int = 0
    #: Inner steps from the first weights to the sender's: its own and those that lie before it.
    position: int = 0
    #: How fast the sender is, by what would be to blame if it slowed down: ("compute", per token),
    #: ("link", per byte). Only what is known.
    paces: tuple[tuple[str, Level], ...] = ()
    #: The median of the inner steps from the sender's snapshots until their anchors were ready,
    #: with the present period; 0 if there were too few.
    latency: int = 0
    #: Whether the sender has trained to its end, and ends as soon as all others do.
    finishes: bool = False
    #: The digest of the anchors and of the roster with which the sender is ready to end; empty if
    #: it is not.
    ready: bytes = b""
    #: The digest that the sender has ended on, because all others were ready for it; empty if it
    #: has not.
    ended: bytes = b""
    #: Processes that the sender turned away, because it knows a live one of their name with a later
    #: start.
    turned_away: tuple[PeerId, ...] = ()
    #: The sender's zone: see `membership/zones.py`. Empty if it is in none.
    zone: str = ""
    #: Which joint offers of parameters the sender takes as a sealer. It gets all others one by one.
    takes_joint: int = NO_JOINT
    #: Whether the sender leaves its place as a sealer to others: see `engine/declining.py`.
    declines: bool = False
    #: Whether the sender is at rest: it takes no step before all of its work is merged.
    rests: bool = False

    @property
    def begun(self) -> int:
        """How far the sender has begun with its model."""
        return begun(self.training, self.step)

    @property
    def entries(self) -> int:
        """Entries of its lists, all in all."""
        held = sum(len(report.held) for report in self.reports)
        return held + len(self.reports) + len(self.roster) + len(self.turned_away)


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The sender leaves, so no learner needs to wait for it."""

    #: The sender. This incarnation never comes back.
    peer: PeerId
    #: The sender's signature, for those that hear of it from others: see `protocol/proofs.py`.
    #: Empty where offers are not signed.
    proof: bytes = b""


@dataclass(frozen=True, slots=True)
class Call:
    """The sealer asks a peer for its offer: the peer's work since its last offer, up to the end of
    its current inner step."""

    #: The sealer.
    peer: PeerId
    #: The fragment of the round.
    fragment: int
    #: The sealer's anchor. An offer of nothing counts on this anchor or beyond.
    key: Key = NOWHERE


@dataclass(frozen=True, slots=True)
class Want:
    """Ask for the newest anchor of a fragment. The answer is a state, or the seal on the
    sender's anchor."""

    #: The sender.
    peer: PeerId
    #: The fragment.
    fragment: int
    #: The digest of the sender's anchor; a seal on this base suffices. Empty: only a state will do.
    have: bytes


# ── bulky messages ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A learner's progress Δ on one fragment. Sent again, it is the same offer: same `seq`, same
    bytes."""

    #: The peer that made the offer. If the offer is passed on, another peer sends it.
    peer: PeerId
    #: The fragment.
    fragment: int
    #: Its number. Every number of an author stands for one history of work; 0 in an offer of
    #: nothing, with which a learner at rest answers a call.
    seq: int
    #: Tokens trained in it.
    tokens: int
    #: Inner steps in it; 0 exactly if it is an offer of nothing.
    steps: int
    #: The sum of the inner learning rates of the steps trained in it; 0 unless the outer optimizer
    #: needs it.
    rate: float = 0.0
    #: The first weights of the sender's model. An anchor of another genesis never merges it.
    genesis: bytes
    #: The sender's anchor when it was sent. The sealer catches up if this is greater than its own.
    key: Key
    #: Whether it was made at the sender's own boundary: such an offer launches a round.
    due: bool
    #: "delta", and the moments that are due. Neither compared nor printed: they may be large, and
    #: on their way.
    sections: Sections = field(default_factory=dict, compare=False, repr=False)
    #: The claim on its work, if that came unmerged from a checkpoint or has another number on
    #: another branch. None if it is all of the sender's work since its last offer.
    inherited: Claim | None = None
    #: The number of the same author's last offer in the sender's anchor; 0 if there is none. Only
    #: an anchor with the same last offer of the author may merge this one.
    #: Invariant: follows <= claim.settled.
    follows: int = 0
    #: (tokens, steps) of the sender's last merged offer, if this one is empty, or if it brings
    #: that one's residual and less work of its own. (0, 0) otherwise. If it brings the residual
    #: and no work of its own, `tokens` is 0 and `steps` is that of the last offer.
    again: tuple[int, int] = (0, 0)
    #: `content_of` its sections, for the signature; empty unless this learner made the offer and
    #: signs it. It never travels: a receiver computes it.
    content: bytes = field(default=b"", compare=False, repr=False)
    #: The offers of the sender's neighbours that are in its sections, too: a *joint* offer has the
    #: mean of all their deltas and of each moment, and of each delta the norms: see
    #: `worker/joint.py`. They themselves have no sections.
    others: tuple[Offer, ...] = field(default=(), repr=False)
    #: The sender of the joint offer that this one came in. It never travels.
    carrier: PeerId | None = field(default=None, compare=False)
    #: The peer that passed it on. It never travels: the receiver knows whose stream it came by.
    passed_by: PeerId | None = field(default=None, compare=False)

    @property
    def together(self) -> tuple[Offer, ...]:
        """The offers that it holds: itself, and the others of a joint one."""
        by = self.passed_by or self.peer
        return self, *(replace(other, carrier=self.peer, passed_by=by) for other in self.others)

    @property
    def claim(self) -> Claim:
        """The work that it carries."""
        return self.inherited or Claim(self.peer, self.seq - 1)

    @property
    def entry(self) -> Entry:
        """Its entry in the seal that merges it."""
        return Entry(self.claim.author, self.seq, self.tokens, self.steps)

    @property
    def order(self) -> tuple[bool, int]:
        """Its place among the offers of one sender: those of other authors' work come first."""
        return self.claim.author == self.peer, self.seq


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """The sealer's decision: exactly which offers, with which weights, and why; and the merged
    bytes."""

    #: The sender.
    sealer: PeerId
    #: The fragment.
    fragment: int
    #: The digest of the anchor that it is merged on.
    base: bytes
    #: The new anchor. Invariant: key == base.seal(members, payload).key, for the base's lineage.
    key: Key
    #: The merged offers, in the order of their senders' names, in which they are summed.
    members: tuple[Entry, ...]
    #: One weight per member. Each >= 0; they sum to 1. They follow from `members` and `shares`.
    weights: tuple[float, ...]
    #: The names of the learners that took part in rounds but missed this one, sorted.
    absent: tuple[str, ...]
    #: Why the round was sealed: "all_present", "grace_expired" or "slow_left_out".
    reason: str
    #: The digest of all that the merged delta and the means of moments depend on.
    payload: bytes
    #: The period of the run from here on, in inner steps; 0 if the seal tells none. Only those of
    #: fragment 0 do.
    period: int = 0
    #: For each member, the (tokens, steps) that it was weighed by in place of its own: the residual
    #: that it brings; (0, 0): by its own. Empty if all were weighed by their own.
    shares: tuple[tuple[int, int], ...] = ()
    #: "merged", or each member's delta under its index; "scale" and "rate" where they are needed;
    #: and the means of moments. Not compared.
    sections: Sections = field(default_factory=dict, compare=False, repr=False)
    #: The relay that passed it on. It never travels: the receiver knows whose stream it came by.
    passed_by: PeerId | None = field(default=None, compare=False)

    @property
    def sender(self) -> PeerId:
        """The peer that it came from."""
        return self.passed_by or self.sealer

    def place(self, author: PeerId, seq: int) -> int | None:
        """Return the index of an offer among the members; None if it was not merged."""
        entries = [(entry.peer, entry.seq) for entry in self.members]
        return entries.index((author, seq)) if (author, seq) in entries else None

    def without(self, author: PeerId, seq: int) -> Seal:
        """Return what to send to the author of an offer: the seal without that offer's packet, if
        packets are relayed."""
        name = str(self.place(author, seq))
        if name not in self.sections:
            return self
        left_out = Packet(YOURS, self.sections[name].numel, memoryview(b""))
        return replace(self, sections={**self.sections, name: left_out})

    def completed(self, offer: Offer) -> Seal:
        """Return the seal with the packet of its receiver's own offer, the inverse of `without`.

        That these bytes are those that were merged is not checked here; `payload` proves it.
        """
        if "delta" not in offer.sections:
            return self
        own = {
            name: offer.sections["delta"]
            for name, packet in self.sections.items()
            if packet.codec == YOURS
        }
        return replace(self, sections={**self.sections, **own})


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A whole anchor."""

    #: The sender.
    peer: PeerId
    #: The fragment.
    fragment: int
    #: Where the anchor comes from.
    lineage: Lineage
    #: The digest of the sections' bytes, in the order of their names.
    content: bytes
    #: As in `Seal`.
    period: int = 0
    #: "anchor"; with outer momentum, "velocity" and perhaps "velocity_rate"; and moments. Not
    #: compared.
    sections: Sections = field(default_factory=dict, compare=False, repr=False)


Control = Beat | Goodbye | Call | Want
Bulk = Offer | Seal | State
Message = Control | Bulk
