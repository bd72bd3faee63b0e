"""The statement that the author of an offer signs, and its one encoding as bytes.

    purpose   genesis   sender's name   author's name   numbers   content

    numbers   fragment, sender's incarnation, author's incarnation, settled, seq, follows, tokens,
              steps, again (2), each as 8 bytes; rate, as float64

Every part is preceded by its length, and the numbers have a size of their own, so no two statements
have the same bytes. The purpose keeps a signature from counting for anything else. An offer's
anchor and whether it launches a round are not in the statement: they may differ each time that the
same offer is sent.

`content` are two digests, of the delta and of everything beside it. So where a seal brings the
members' own packets, each of them can be compared with what its author has signed."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import NamedTuple

from mend_optim.errors import PeerError
from mend_optim.protocol.lineage import Claim, PeerId
from mend_optim.protocol.messages import SIGNATURE, Offer, Packet, Sections
from mend_optim.protocol.tree_digest import Spread, tree_digest

#: Begins each statement. A statement of another form needs another purpose.
PURPOSE = b"mend-optim offer 2"
#: Begins the statement of a learner that leaves.
LEAVES = b"mend-optim goodbye 1"
#: Bytes of the digest of one packet.
PACKET_DIGEST_BYTES = 32
_LENGTH = struct.Struct(">I")
_NUMBER = struct.Struct(">q")
_NUMBERS = struct.Struct(">10qd")
_PARTS = 6


class Statement(NamedTuple):
    """The fields of an offer that its author vouches for: see `Offer`."""

    genesis: bytes
    fragment: int
    #: The peer that made the offer.
    sender: PeerId
    claim: Claim
    seq: int
    follows: int
    tokens: int
    steps: int
    again: tuple[int, int]
    rate: float
    #: `content_of` its sections; empty in an offer of nothing.
    content: bytes

    @property
    def delta(self) -> bytes:
        """The digest of the packet "delta"."""
        return self.content[:PACKET_DIGEST_BYTES]


def statement_of(offer: Offer, content: bytes) -> Statement:
    """The statement about an offer with this `content_of` its sections."""
    return Statement(
        genesis=offer.genesis,
        fragment=offer.fragment,
        sender=offer.peer,
        claim=offer.claim,
        seq=offer.seq,
        follows=offer.follows,
        tokens=offer.tokens,
        steps=offer.steps,
        again=offer.again,
        rate=offer.rate,
        content=content,
    )


# ── digests of tensors ────────────────────────────────────────────────────────────────────────────


def packet_digest(packet: Packet, spread: Spread = map) -> bytes:
    """The digest of one packet: of its codec, its number of elements and its bytes, whose leaves
    `spread` hashes."""
    return tree_digest(
        packet.codec.encode(), _NUMBER.pack(packet.numel), packet.data, spread=spread
    )


def content_of(sections: Sections, spread: Spread = map) -> bytes:
    """The digest of an offer's delta, and that of all its other sections but the signature. Empty
    if there is no delta."""
    if "delta" not in sections:
        return b""
    beside = sorted(set(sections) - {"delta", SIGNATURE})
    parts = (part for name in beside for part in (name.encode(), packet_digest(sections[name])))
    delta = packet_digest(sections["delta"], spread)
    return delta + hashlib.sha256(pack(parts)).digest()


# ── bytes ─────────────────────────────────────────────────────────────────────────────────────────


def pack(parts: Iterable[bytes]) -> bytes:
    """The parts one after the other, each after its length. Different parts have different
    bytes."""
    return b"".join(_LENGTH.pack(len(part)) + part for part in parts)


def unpack(data: bytes | memoryview, most: int) -> list[bytes]:
    """The inverse of `pack`. Raises `PeerError` unless these are at most so many parts."""
    data = bytes(data)  # slices of bytes need no second copy, as those of a view do
    parts: list[bytes] = []
    at, end = 0, len(data)
    while at < end:
        begins = at + _LENGTH.size
        if len(parts) == most or begins > end:
            raise PeerError(f"{end} bytes are not {most} parts or fewer")
        (size,) = _LENGTH.unpack_from(data, at)
        at = begins + size
        if at > end:
            raise PeerError(f"a part of {size} bytes ends beyond the {end} bytes")
        parts.append(data[begins:at])
    return parts


def encode(told: Statement) -> bytes:
    """The bytes that are signed."""
    sender, (author, settled) = told.sender, told.claim
    numbers = _NUMBERS.pack(
        told.fragment,
        sender.incarnation,
        author.incarnation,
        settled,
        told.seq,
        told.follows,
        told.tokens,
        told.steps,
        *told.again,
        told.rate,
    )
    names = sender.name.encode(), author.name.encode()
    return pack([PURPOSE, told.genesis, *names, numbers, told.content])


def encode_goodbye(peer: PeerId) -> bytes:
    """The bytes that a learner signs when it leaves. Its incarnation never comes back, so they need
    no more than its name and that."""
    return pack([LEAVES, peer.name.encode(), _NUMBER.pack(peer.incarnation)])


def decode(data: bytes) -> Statement:
    """The inverse of `encode`. Raises `PeerError` for anything that `encode` does not return."""
    try:
        purpose, genesis, sender, author, numbers, content = unpack(data, _PARTS)
        fragment, here, there, settled, *counters, rate = _NUMBERS.unpack(numbers)
        seq, follows, tokens, steps, again_tokens, again_steps = counters
        peers = PeerId(sender.decode(), here), PeerId(author.decode(), there)
    except (ValueError, struct.error) as fault:
        raise PeerError(f"the bytes are not a statement about an offer: {fault}") from fault
    if purpose != PURPOSE:
        raise PeerError("the bytes are not a statement about an offer")
    return Statement(
        genesis=genesis,
        fragment=fragment,
        sender=peers[0],
        claim=Claim(peers[1], settled),
        seq=seq,
        follows=follows,
        tokens=tokens,
        steps=steps,
        again=(again_tokens, again_steps),
        rate=rate,
        content=content,
    )
