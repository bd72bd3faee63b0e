"""Every message that learners exchange, as plain data. `wire.py` turns them into protobuf and back.

Bulky messages (Offer, Seal, State) carry *sections*: named packets. A later kind of content is one
more section, not another message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from mend_optim.errors import PeerError
from mend_optim.protocol.lineage import Claim, Entry, Key, Lineage, PeerId

# the codec of a packet that is left out: the receiver has it, for it is of its own offer
YOURS = "yours"


@dataclass(frozen=True, slots=True)
class Rumor:
    """What a peer says of a third: the greatest beat count it has seen. `left` spreads a
    goodbye."""

    peer: PeerId
    address: str
    count: int
    left: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """One fragment in a beat: the sender's anchor, and the offers it holds as a sealer; for an
    added group, a digest of what is in it, which a hello may have come too early to say."""

    key: Key
    held: tuple[tuple[PeerId, int], ...] = ()
    group: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A sign of life, with everything that is small: roster, lineages, counters.

    `genesis` is empty until the sender has weights to show. `training` is false until it has
    joined. `seconds_per_step` is the sender's running median of an inner step, 0 if unknown. `ping`
    asks for a beat in answer at once, whose `pong` repeats it. `position` counts the inner steps
    from the first weights to the sender's, its own and those before. `paces` say how fast it is, by
    what would be to blame if it failed: "compute" (per token), "link" (per byte)."""

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
    """The sealer asks a peer for its offer: what it has done since it last offered, at the end of
    its current inner step."""

    peer: PeerId
    fragment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A learner's progress Δ on one fragment. Resent, it is the same offer: same `seq`, same bytes.

    `key` is the sender's anchor when it was sent. `due` is true at the sender's own boundary: such
    an offer launches a round. `inherited` says whose work it is where that is not all of the
    sender's since its last offer: it came, unmerged, from a checkpoint, or has another number on
    another branch. `follows` is the last offer of the same author in that anchor: only an anchor
    that has it, too, may merge this one. `again`: (tokens, steps) of the sender's last offer, where
    this one brings what that one's encoding lost and less of its own (no tokens, and the same
    steps, if nothing), or nothing at all."""

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

    @property
    def order(self) -> tuple[bool, int]:
        """Among the offers of one sender: first those of others' work."""
        return self.claim.author == self.peer, self.seq


@dataclass(frozen=True, slots=True, kw_only=True)
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
        """The inverse, by who made the offer. (That the bytes are those that were merged, `payload`
        proves.)"""
        if "delta" not in offer.sections:
            return self
        own = {
            name: offer.sections["delta"]
            for name, packet in self.sections.items()
            if packet.codec == YOURS
        }
        return replace(self, sections={**self.sections, **own})


@dataclass(frozen=True, slots=True)
class Want:
    """Ask for a fragment's newest anchor; `have` is the digest of the asker's, so that a seal can
    answer where one suffices."""

    peer: PeerId
    fragment: int
    have: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A whole anchor: sections "anchor" and, with outer momentum, "velocity". `content` is the
    digest of their bytes."""

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


@dataclass(frozen=True, slots=True)
class Packet:
    """One encoded fragment: how ("none" or "packed"), the number of elements, the bytes. `data` is
    any contiguous buffer."""

    codec: str
    numel: int
    data: memoryview

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


Sections = Mapping[str, Packet]
"""The tensors of one message by name: "delta" in an offer, "merged" or members' deltas in a seal,
"anchor" and "velocity" in a state."""


def section(sections: Sections, name: str) -> Packet:
    """The packet of that name. Raises `PeerError`."""
    if name not in sections:
        raise PeerError(f"section {name!r} is missing")
    return sections[name]


class Level(NamedTuple):
    """What a beat says of one stream of a learner. `now` and `before` in seconds per token or byte:
    its present level, and the fastest that it has held (`now`, if no other was faster); `spread`,
    the standard error of log(now); `run`, blocks since the last change."""

    now: float
    before: float
    spread: float
    run: int


MOMENT_PREFIX = "moment."


def moment_names(sections: Iterable[str]) -> frozenset[str]:
    """The moments among the names of a message's sections."""
    return frozenset(
        name.removeprefix(MOMENT_PREFIX) for name in sections if name.startswith(MOMENT_PREFIX)
    )


MERGED = "merged"
