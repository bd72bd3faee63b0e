"""Bulky messages as streams of frames.

    header     the message without its bytes, and a list of its sections (name, codec, sizes)
    chunk …    the sections' bytes in the header's order, at most `CHUNK` bytes in each frame

The receiver checks a header whole, and its sizes against the fragment's limit, before it allocates
anything. A later version may add sections: those that this one doesn't know are taken up to
`UNKNOWN_LIMIT`. Those of an offer are not kept, so nobody passes them on.

Where plaintext leaves the machine, the header's frame has a checksum of the whole message: see
`checksums.py`.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from mend_optim.errors import PeerError
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Bulk, Message, Offer, Packet, Seal, is_known
from mend_optim.transport._pb import peer_pb2 as pb
from mend_optim.transport.checksums import check_whole, with_checksum
from mend_optim.transport.limits import (
    SECTION_LIMIT,
    UNKNOWN_LIMIT,
    check,
    check_size,
    checked_list,
    checked_name,
)
from mend_optim.transport.wire_bulk import header_of, message_from
from mend_optim.transport.wire_parts import parse

#: Payload bytes in one frame. Smaller chunks cost throughput; greater ones delay other streams.
CHUNK = 1 << 20
#: The frame that tells the sender that its message arrived whole.
ACK: bytes = pb.Frame(ack=pb.Ack()).SerializeToString()

# protobuf's tag of `Frame.chunk`: field 2, length-delimited
_CHUNK_TAG = 0x12
_CHECKSUM: int = pb.Frame.CHECKSUM_FIELD_NUMBER
# bytes of a tag and a length: a varint of five bytes holds any length that gRPC can deliver
_PREFIX_LIMIT = 6


def sender(message: Message) -> PeerId:
    """Return the peer that a message names as its sender."""
    return message.sealer if isinstance(message, Seal) else message.peer


def check_sender(message: Message, peer: PeerId) -> None:
    """Raise `PeerError` unless the message names the peer that sent it."""
    named = sender(message)
    check(named == peer, f"peer {peer} sent a message that claims to be from {named}")


def to_frames(message: Bulk, checksum: int | None = None) -> Iterator[bytes]:
    """Yield the frames of a bulky message.

    Each frame is made when it is asked for, so a message of 100 MB never exists twice.

    Args:
        message: The message.
        checksum: The `payload_checksum` of the message; None: it travels without a checksum.
    """
    header: bytes = pb.Frame(header=header_of(message)).SerializeToString()
    yield header if checksum is None else with_checksum(header, _CHECKSUM, checksum)
    for chunk in _chunks(message):
        yield _chunk_frame(chunk)


async def payload_checksum(message: Bulk) -> int:
    """Return the CRC-32 of the bytes of all sections. Other tasks run in between."""
    found = 0
    for chunk in _chunks(message):
        found = zlib.crc32(chunk, found)
        await asyncio.sleep(0)
    return found


def _chunks(message: Bulk) -> Iterator[memoryview]:
    for packet in message.sections.values():
        # an empty view cannot be cast
        payload = memoryview(packet.data).cast("B") if packet.nbytes else memoryview(b"")
        for at in range(0, len(payload), CHUNK):
            yield payload[at : at + CHUNK]


def _chunk_frame(chunk: memoryview | bytes) -> bytes:
    """Encode a chunk as `pb.Frame(chunk=chunk)` would, copying the chunk once instead of three
    times."""
    size = len(chunk)
    prefix = bytearray([_CHUNK_TAG])
    while size >= 0x80:
        prefix.append(size & 0x7F | 0x80)
        size >>= 7
    prefix.append(size)
    return b"".join((prefix, chunk))


def _chunk_in(frame: bytes) -> memoryview:
    """Return a view of the chunk in a frame that begins with `_CHUNK_TAG`: the inverse of
    `_chunk_frame`."""
    size = 0
    for at in range(1, min(len(frame), _PREFIX_LIMIT)):
        size |= (frame[at] & 0x7F) << 7 * (at - 1)
        if frame[at] < 0x80:
            held = len(frame) - at - 1
            check(
                0 < size == held,
                f"a frame announces a chunk of {size} bytes and holds {held} bytes",
            )
            return memoryview(frame)[at + 1 :]
    raise PeerError("a chunk has no size")


def check_fragment(limit: Callable[[int], int], fragment: int) -> int:
    """Return `limit(fragment)`, or raise `PeerError` if there is no such fragment."""
    try:
        return limit(fragment)
    except LookupError as fault:
        raise PeerError(f"there is no fragment {fragment}") from fault


class Assembler:
    """Puts the frames of one stream together to bulky messages, one after the other.

    Args:
        limit: Returns the greatest payload, in bytes, of a message for a fragment. Raises
            `LookupError` or `PeerError` if there is no such fragment.
        allocate: Returns a writable buffer of that many bytes. The assembler asks for one per
            section, so that each section can be viewed as float32.
    """

    def __init__(self, limit: Callable[[int], int], allocate: Callable[[int], memoryview]) -> None:
        self._limit = limit
        self._allocate = allocate
        #: The message that has begun, without its sections; None while there is none.
        self._bare: Bulk | None = None
        #: These, as its header describes them.
        self._sections: Sequence[pb.Section] = ()
        #: Its fragment, and the bytes of all its sections.
        self.fragment = self.nbytes = 0
        #: The message, once its first bytes have come; its sections' buffers fill up one after the
        #: other.
        self._message: Bulk | None = None
        #: The parts of these buffers that are still to be filled, in the header's order. Empty
        #: while there is no message.
        self._unfilled: list[memoryview] = []
        #: The frame of the header, with the checksum at its end; empty if it has none.
        self._checked = b""
        #: The `payload_checksum` of the bytes that have come, if there is one.
        self._payload = 0

    @property
    def busy(self) -> bool:
        """Whether a message has begun and is not whole yet."""
        return self._bare is not None

    def feed(self, frame: bytes) -> Bulk | None:
        """Take the next frame; return the message that it completes, if it completes one.

        Nothing is allocated before the first chunk: whoever feeds it may wait in between.

        Raises:
            DamagedError: The message is whole, and its checksum is wrong.
            PeerError: The frame is not valid here. Give the stream up; it cannot go on.
        """
        if frame[:1] == bytes([_CHUNK_TAG]):
            check(self._bare is not None, "a chunk arrived outside a message")
            self._allocate_sections()
            chunk = _chunk_in(frame)
            if self._checked:
                self._payload = zlib.crc32(chunk, self._payload)
            self._fill(chunk)
        else:
            self._begin(frame)
            if not self.nbytes:
                self._allocate_sections()
        if self._message is None or self._unfilled:
            return None
        if self._checked:
            check_whole(self._checked, _CHECKSUM, self._payload)
        whole = self._message
        self._message = self._bare = None
        return _without_unknown(whole)

    def _begin(self, frame: bytes) -> None:
        """Check a header."""
        check(self._bare is None, "a header arrived within a message")
        parsed = parse(pb.Frame, frame)
        check(parsed.WhichOneof("kind") == "header", "the frame is neither a header nor a chunk")
        header = parsed.header
        bare = message_from(header, {})
        sections = checked_list("sections", header.sections, SECTION_LIMIT)
        names = {section.name for section in sections}
        check(len(names) == len(sections), "two sections have the same name")
        for section in sections:
            checked_name("section name", section.name)
            checked_name("codec", section.codec)
        nbytes = sum(section.nbytes for section in sections)
        limit = check_fragment(self._limit, bare.fragment)
        check_size(f"the payload for fragment {bare.fragment}", nbytes, limit)
        unknown = sum(section.nbytes for section in sections if not is_known(section.name))
        check_size("the payload of unknown sections", unknown, UNKNOWN_LIMIT)
        self._bare = bare
        self._sections = sections
        self._checked = frame if parsed.checksum else b""
        self._payload = 0
        self.fragment = bare.fragment
        self.nbytes = nbytes

    def _allocate_sections(self) -> None:
        """Make the message of the header, with room for its bytes, unless that is made."""
        if self._message is not None or self._bare is None:
            return
        packets = {s.name: Packet(s.codec, s.numel, self._buffer(s.nbytes)) for s in self._sections}
        self._message = replace(self._bare, sections=packets)
        self._unfilled = [packet.data for packet in packets.values() if packet.nbytes]

    def _buffer(self, nbytes: int) -> memoryview:
        return self._allocate(nbytes) if nbytes else memoryview(b"")

    def _fill(self, chunk: memoryview) -> None:
        """Copy a chunk to the buffers; it may end one section and begin the next."""
        while chunk and self._unfilled:
            buffer = self._unfilled[0]
            size = min(len(buffer), len(chunk))
            # numpy lets other threads run meanwhile; a memoryview would not.
            np.frombuffer(buffer[:size], np.uint8)[:] = np.frombuffer(chunk[:size], np.uint8)
            chunk = chunk[size:]
            if size == len(buffer):
                self._unfilled.pop(0)
            else:
                self._unfilled[0] = buffer[size:]
        check(not chunk, "more bytes arrived than the header announced")


def _without_unknown(message: Bulk) -> Bulk:
    """An offer without the sections that this version doesn't know."""
    if not isinstance(message, Offer) or all(map(is_known, message.sections)):
        return message
    known = {name: packet for name, packet in message.sections.items() if is_known(name)}
    return replace(message, sections=known)
