"""Every message that learners exchange, as plain data. `wire.py` turns them into protobuf and back.

Bulky messages (Offer, Seal, State) carry *sections*: named packets. A later kind of content is one more section, not
another message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mend_optim.codecs.packing import Packet, Sections
from mend_optim.membership.failslow import Level
from mend_optim.model.layout import ADDED
from mend_optim.protocol.lineage import Claim, Entry, Key, Lineage, PeerId

# 2: packets with a form for every tensor, seals that relay them; 3: closing offers; 4: tensors that are coalesced, and
# nobody's own packet comes back.
PROTOCOL = 4
YOURS = "yours"  # the codec of a packet that is left out: the receiver has it, for it is of its own offer


@dataclass(frozen=True, slots=True)
class Hello:
    """What two learners must agree on before they exchange anything else; also the answer to it.

    `model` and `policy` are (field, value) pairs in a fixed order. `refusal` is empty in a request and in a welcome."""

    peer: PeerId
    address: str
    model: tuple[tuple[str, str], ...]
    policy: tuple[tuple[str, str], ...]
    protocol: int = PROTOCOL
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Rumor:
    """What a peer says of a third: the greatest beat count it has seen. `left` spreads a goodbye."""

    peer: PeerId
    address: str
    count: int
    left: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """One fragment in a beat: the sender's anchor, and the offers it holds as a sealer; for an added group, a digest of
    what is in it, which a hello may have come too early to say."""

    key: Key
    held: tuple[tuple[PeerId, int], ...] = ()
    group: bytes = b""


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life, with everything that is small: roster, lineages, counters.

    `genesis` is empty until the sender has weights to show. `training` is false until it has joined. `seconds_per_step`
    is the sender's running median of an inner step, 0 if unknown. `ping` asks for a beat in answer at once, whose
    `pong` repeats it. `position` counts the inner steps from the first weights to the sender's, its own and those
    before. `paces` say how fast it is, by what would be to blame if it failed: "compute" (per token), "link" (per
    byte)."""

    peer: PeerId
    address: str
    count: int
    step: int = 0
    tokens: int = 0
    seconds_per_step: float = 0.0
    training: bool = False
    genesis: bytes = b""
    reports: tuple[Report, ...] = ()
    roster: tuple[Rumor, ...] = ()
    ping: int = 0
    pong: int = 0
    position: int = 0
    paces: tuple[tuple[str, Level], ...] = ()


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The sender leaves: nobody need wait for it."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Call:
    """The sealer asks a peer for its offer: what it has done since it last offered, at the end of its current inner
    step."""

    peer: PeerId
    fragment: int


@dataclass(frozen=True, slots=True)
class Offer:
    """A learner's progress Δ on one fragment. Resent, it is the same offer: same `seq`, same bytes.

    `key` is the sender's anchor when it was sent. `due` is true at the sender's own boundary: such an offer launches a
    round. `inherited` says whose work it is where that is not all of the sender's since its last offer: it came,
    unmerged, from a checkpoint, or has another number on another branch. `follows` is the last offer of the
    same author in that anchor: only an anchor that has it, too, may merge this one. `again`: (tokens, steps) of the
    sender's last offer, where this one brings what that one's encoding lost and less of its own (no tokens, and the
    same steps, if nothing), or nothing at all."""

    peer: PeerId
    fragment: int
    seq: int
    tokens: int
    steps: int
    genesis: bytes
    key: Key
    due: bool
    sections: Sections = field(default_factory=dict, compare=False, repr=False)
    inherited: Claim | None = None
    follows: int = 0
    again: tuple[int, int] = (0, 0)

    @property
    def claim(self) -> Claim:
        """The work it carries."""
        return self.inherited or Claim(self.peer, self.seq - 1)

    @property
    def entry(self) -> Entry:
        return Entry(self.claim.author, self.seq, self.tokens, self.steps)

    def weighed(self, alone: bool) -> Entry:
        """The entry to weigh it by. What an encoding lost weighs as much as what it sent; and where nobody brings more
        than that (`alone`), so does who brings nothing: it has its share in the mean."""
        counted = any(self.again) and (alone or self.steps > 0)
        return self.entry._replace(tokens=self.again[0], steps=self.again[1]) if counted else self.entry

    @property
    def order(self) -> tuple[bool, int]:
        """Among the offers of one sender: first those of others' work."""
        return self.claim.author == self.peer, self.seq


@dataclass(frozen=True, slots=True)
class Seal:
    """The sealer's decision: exactly which offers, which weights, why; and the merged bytes.

    `payload` is the digest of the merged bytes, so `base.seal(members, payload).key == key`.
    """

    sealer: PeerId
    fragment: int
    base: bytes
    key: Key
    members: tuple[Entry, ...]
    weights: tuple[float, ...]
    absent: tuple[str, ...]
    reason: str
    payload: bytes
    sections: Sections = field(default_factory=dict, compare=False, repr=False)

    def place(self, author: PeerId, seq: int) -> int | None:
        """Which member this offer is; None: it is not in it."""
        entries = [(entry.peer, entry.seq) for entry in self.members]
        return entries.index((author, seq)) if (author, seq) in entries else None

    def without(self, author: PeerId, seq: int) -> Seal:
        """What to send to the author of this offer: if its packet is relayed, that is left out."""
        name = str(self.place(author, seq))
        if name not in self.sections:
            return self
        left_out = Packet(YOURS, self.sections[name].numel, memoryview(b""))
        return replace(self, sections={**self.sections, name: left_out})

    def completed(self, offer: Offer) -> Seal:
        """The inverse, by who made the offer. (That the bytes are those that were merged, `payload` proves.)"""
        if "delta" not in offer.sections:
            return self
        own = {name: offer.sections["delta"] for name, packet in self.sections.items() if packet.codec == YOURS}
        return replace(self, sections={**self.sections, **own})


@dataclass(frozen=True, slots=True)
class Want:
    """Ask for a fragment's newest anchor; `have` is the digest of the asker's, so that a seal can answer where one
    suffices."""

    peer: PeerId
    fragment: int
    have: bytes


@dataclass(frozen=True, slots=True)
class State:
    """A whole anchor: sections "anchor" and, with outer momentum, "velocity". `content` is the digest of their
    bytes."""

    peer: PeerId
    fragment: int
    lineage: Lineage
    content: bytes
    sections: Sections = field(default_factory=dict, compare=False, repr=False)


Control = Beat | Goodbye | Call | Want
Bulk = Offer | Seal | State
Message = Control | Bulk


def nbytes(sections: Mapping[str, Packet]) -> int:
    """Payload bytes of a bulky message."""
    return sum(packet.nbytes for packet in sections.values())


def first_difference(mine: tuple[tuple[str, str], ...], theirs: tuple[tuple[str, str], ...]) -> str | None:
    """ "field: here …, there …" for the first field in which two fingerprints differ; None if they agree."""
    here, there = dict(mine), dict(theirs)
    for name in [*here, *(name for name in there if name not in here)]:
        if here.get(name) != there.get(name):
            return f"{name}: here {here.get(name, 'absent')}, there {there.get(name, 'absent')}"
    return None


def refusal(mine: Hello, theirs: Hello) -> str:
    """Why these two must not train together, naming the first differing field on both sides; "" if they may."""
    if mine.protocol != theirs.protocol:
        return f"protocol version: here {mine.protocol}, there {theirs.protocol}; install the same mend-optim on both"
    if mine.peer.name == theirs.peer.name:
        return f"name: {mine.peer.name!r} on both sides; give every learner a name of its own"
    models = _without_extras(mine.model, theirs.model)
    return first_difference(*models) or first_difference(mine.policy, theirs.policy) or ""


def _without_extras(*models: tuple[tuple[str, str], ...]) -> list[tuple[tuple[str, str], ...]]:
    """Two models' fields, without the added groups that one of them does not have (yet)."""
    shared = set.intersection(*({name for name, _ in model} for model in models))
    return [tuple(f for f in model if f[0] in shared or not f[0].startswith(ADDED)) for model in models]
