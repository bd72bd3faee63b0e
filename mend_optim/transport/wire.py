"""Messages to bytes and back. What a peer sent that is not a message becomes `PeerError`, and
nothing else does.

A control message, a hello, a want or a peer's id is one protobuf message. A bulky message is a
stream of frames: a header that lists the sections, then their bytes in chunks. A header is checked
whole, and its sizes against the fragment's limit, before anything is allocated for it. Sections
nobody here knows are carried like any other: what to make of them is not the wire's business."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Proto

from mend_optim.errors import PeerError
from mend_optim.protocol.handshake import Hello
from mend_optim.protocol.lineage import Claim, Entry, Key, Lineage, PeerId
from mend_optim.protocol.messages import (
    Beat,
    Bulk,
    Call,
    Control,
    Goodbye,
    Level,
    Message,
    Offer,
    Packet,
    Report,
    Rumor,
    Seal,
    Sections,
    State,
    Want,
)
from mend_optim.transport._pb import peer_pb2 as pb

# payload bytes in one frame; smaller costs throughput, greater costs fairness to beats
CHUNK = 1 << 20
MESSAGE_LIMIT = 4 << 20  # bytes of one protobuf message
NAME_LIMIT = 256  # bytes of a learner's name, an address, a codec, a section
DIGEST_LIMIT = 32  # bytes of a digest
COUNT_LIMIT = 1 << 16  # entries of any list: peers, fragments, members, fields
SECTION_LIMIT = 256  # sections of one message
PACE_LIMIT = 8  # paces of one beat

ACK: bytes = pb.Frame(ack=pb.Ack()).SerializeToString()
"""The frame that tells a learner its offer arrived whole."""

_CHUNK_TAG = 0x12  # protobuf: field 2, length-delimited

_P = TypeVar("_P", bound=Proto)


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise PeerError(what)


def _parse(kind: type[_P], data: bytes) -> _P:
    _check(
        len(data) <= MESSAGE_LIMIT, f"{kind.__name__} of {len(data)} bytes, at most {MESSAGE_LIMIT}"
    )
    try:
        message: _P = kind.FromString(data)
    except (DecodeError, ValueError) as fault:
        raise PeerError(f"not a {kind.__name__}: {fault}") from fault
    return message


def _bytes(message: Proto) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def _name(what: str, text: str, empty: bool = False) -> str:
    _check(bool(text) or empty, f"{what} is empty")
    size = len(text.encode())
    _check(size <= NAME_LIMIT, f"{what} of {size} bytes, at most {NAME_LIMIT}")
    return text


def _digest(what: str, data: bytes) -> bytes:
    _check(len(data) <= DIGEST_LIMIT, f"{what} of {len(data)} bytes, at most {DIGEST_LIMIT}")
    return data


def _list(what: str, entries: Any, limit: int = COUNT_LIMIT) -> Any:
    _check(len(entries) <= limit, f"{len(entries)} {what}, at most {limit}")
    return entries


def _number(what: str, value: float) -> float:
    _check(math.isfinite(value) and value >= 0, f"{what} of {value}, expected a finite number >= 0")
    return value


# ── small parts ───────────────────────────────────────────────────────────────────────────────────


def _id(peer: PeerId) -> pb.PeerId:
    return pb.PeerId(name=peer.name, incarnation=peer.incarnation)


def _to_id(peer: pb.PeerId) -> PeerId:
    return PeerId(_name("peer name", peer.name), peer.incarnation)


def _key(key: Key) -> pb.Key:
    return pb.Key(**key._asdict())


def _to_key(owner: pb.Report | pb.Offer | pb.Seal | pb.Lineage) -> Key:
    _check(owner.HasField("key"), f"{type(owner).__name__} without a key")
    return Key(owner.key.tokens, owner.key.version, _digest("digest", owner.key.digest))


def _merged(pairs: Iterable[tuple[PeerId, int]]) -> list[pb.Merged]:
    return [pb.Merged(peer=_id(peer), seq=seq) for peer, seq in pairs]


def _to_merged(what: str, pairs: Any) -> tuple[tuple[PeerId, int], ...]:
    return tuple((_to_id(pair.peer), pair.seq) for pair in _list(what, pairs))


def _to_fields(fields: Any) -> tuple[tuple[str, str], ...]:
    return tuple((field.name, field.value) for field in _list("fields", fields))


# ── hello and control ─────────────────────────────────────────────────────────────────────────────


def encode_id(peer: PeerId) -> bytes:
    """Who calls, for an RPC's metadata."""
    return _bytes(_id(peer))


def decode_id(data: bytes) -> PeerId:
    """The inverse. Raises `PeerError`."""
    return _to_id(_parse(pb.PeerId, data))


def encode_hello(hello: Hello) -> bytes:
    """A hello, or the answer to one."""
    model, policy = (
        [pb.Field(name=n, value=v) for n, v in pairs] for pairs in (hello.model, hello.policy)
    )
    return _bytes(
        pb.Hello(
            peer=_id(hello.peer),
            address=hello.address,
            model=model,
            policy=policy,
            protocol=hello.protocol,
            refusal=hello.refusal,
        )
    )


def decode_hello(data: bytes) -> Hello:
    """Raises `PeerError`."""
    hello = _parse(pb.Hello, data)
    return Hello(
        peer=_to_id(hello.peer),
        address=_name("address", hello.address, empty=True),
        model=_to_fields(hello.model),
        policy=_to_fields(hello.policy),
        protocol=hello.protocol,
        refusal=hello.refusal,
    )


def encode_want(want: Want) -> bytes:
    """The request of a pull."""
    return _bytes(_want(want))


def decode_want(data: bytes) -> Want:
    """Raises `PeerError`."""
    return _to_want(_parse(pb.Want, data))


def encode_control(message: Control) -> bytes:
    """A message of a control stream."""
    if isinstance(message, Beat):
        control = pb.Control(beat=_beat(message))
    elif isinstance(message, Goodbye):
        control = pb.Control(goodbye=pb.Goodbye(peer=_id(message.peer)))
    elif isinstance(message, Call):
        control = pb.Control(call=pb.Call(peer=_id(message.peer), fragment=message.fragment))
    else:
        control = pb.Control(want=_want(message))
    return _bytes(control)


def decode_control(data: bytes) -> Control:
    """The message of a control stream. Raises `PeerError`."""
    control = _parse(pb.Control, data)
    kind = control.WhichOneof("kind")
    if kind == "beat":
        return _to_beat(control.beat)
    if kind == "goodbye":
        return Goodbye(_to_id(control.goodbye.peer))
    if kind == "call":
        return Call(_to_id(control.call.peer), control.call.fragment)
    _check(kind == "want", "a control message of an unknown kind")
    return _to_want(control.want)


def _want(want: Want) -> pb.Want:
    return pb.Want(peer=_id(want.peer), fragment=want.fragment, have=want.have)


def _to_want(want: pb.Want) -> Want:
    return Want(_to_id(want.peer), want.fragment, _digest("digest", want.have))


def _beat(beat: Beat) -> pb.Beat:
    return pb.Beat(
        peer=_id(beat.peer),
        address=beat.address,
        count=beat.count,
        step=beat.step,
        tokens=beat.tokens,
        seconds_per_step=beat.seconds_per_step,
        training=beat.training,
        genesis=beat.genesis,
        reports=[
            pb.Report(key=_key(r.key), held=_merged(r.held), group=r.group) for r in beat.reports
        ],
        roster=[
            pb.Rumor(peer=_id(r.peer), address=r.address, count=r.count, left=r.left)
            for r in beat.roster
        ],
        ping=beat.ping,
        pong=beat.pong,
        position=beat.position,
        paces=[pb.Pace(cause=cause, **level._asdict()) for cause, level in beat.paces],
    )


def _to_beat(beat: pb.Beat) -> Beat:
    return Beat(
        peer=_to_id(beat.peer),
        address=_name("address", beat.address, empty=True),
        count=beat.count,
        step=beat.step,
        tokens=beat.tokens,
        seconds_per_step=_number("seconds per step", beat.seconds_per_step),
        training=beat.training,
        genesis=_digest("genesis", beat.genesis),
        reports=tuple(map(_to_report, _list("reports", beat.reports))),
        roster=tuple(_to_rumor(rumor) for rumor in _list("rumors", beat.roster)),
        ping=beat.ping,
        pong=beat.pong,
        position=beat.position,
        paces=tuple(map(_to_pace, _list("paces", beat.paces, PACE_LIMIT))),
    )


def _to_report(report: pb.Report) -> Report:
    return Report(
        _to_key(report), _to_merged("offers held", report.held), _digest("group", report.group)
    )


def _to_rumor(rumor: pb.Rumor) -> Rumor:
    return Rumor(
        _to_id(rumor.peer), _name("address", rumor.address, empty=True), rumor.count, rumor.left
    )


def _to_pace(pace: pb.Pace) -> tuple[str, Level]:
    now, before = _number("pace", pace.now), _number("pace", pace.before)
    _check(now > 0 and before > 0, "a pace of 0")
    return _name("cause", pace.cause), Level(now, before, _number("spread", pace.spread), pace.run)


# ── bulky messages ────────────────────────────────────────────────────────────────────────────────


def sender(message: Message) -> PeerId:
    """Who a message says it is from."""
    return message.sealer if isinstance(message, Seal) else message.peer


def frames(message: Bulk) -> Iterator[bytes]:
    """The frames of a bulky message, each made when it is asked for: a message of 100 MB never
    exists twice."""
    yield _bytes(pb.Frame(header=_header(message)))
    for packet in message.sections.values():
        # an empty view cannot be cast
        payload = memoryview(packet.data).cast("B") if packet.nbytes else b""
        for at in range(0, len(payload), CHUNK):
            yield _frame(payload[at : at + CHUNK])


def _frame(chunk: memoryview | bytes) -> bytes:
    """What `pb.Frame(chunk=chunk).SerializeToString()` gives, with one copy of the chunk instead of
    three."""
    size, prefix = len(chunk), bytearray([_CHUNK_TAG])
    while size >= 0x80:
        prefix.append(size & 0x7F | 0x80)
        size >>= 7
    prefix.append(size)
    return b"".join((prefix, chunk))


def _chunk(frame: bytes, size: int = 0) -> memoryview:
    """The chunk in a frame that begins with its tag, in place: the inverse of `_frame`."""
    for at in range(1, min(len(frame), 6)):
        size |= (frame[at] & 0x7F) << 7 * (at - 1)
        if frame[at] < 0x80:
            _check(
                0 < size == len(frame) - at - 1,
                f"a chunk of {size} bytes in a frame of {len(frame)}",
            )
            return memoryview(frame)[at + 1 :]
    raise PeerError("a chunk without a size")


def _header(message: Bulk) -> pb.Header:
    sections = [
        pb.Section(name=name, codec=packet.codec, numel=packet.numel, nbytes=packet.nbytes)
        for name, packet in message.sections.items()
    ]
    if isinstance(message, Offer):
        return pb.Header(offer=_offer(message), sections=sections)
    if isinstance(message, Seal):
        return pb.Header(seal=_seal(message), sections=sections)
    return pb.Header(state=_state(message), sections=sections)


def _offer(offer: Offer) -> pb.Offer:
    return pb.Offer(
        peer=_id(offer.peer),
        fragment=offer.fragment,
        seq=offer.seq,
        tokens=offer.tokens,
        steps=offer.steps,
        genesis=offer.genesis,
        key=_key(offer.key),
        due=offer.due,
        follows=offer.follows,
        again_tokens=offer.again[0],
        again_steps=offer.again[1],
        inherited=_merged([offer.inherited])[0] if offer.inherited else None,
    )


def _to_offer(offer: pb.Offer, sections: Sections) -> Offer:
    inherited = (
        Claim(_to_id(offer.inherited.peer), offer.inherited.seq)
        if offer.HasField("inherited")
        else None
    )
    _check(
        inherited is None or inherited.settled < offer.seq,
        "an offer that claims what comes after it",
    )
    return Offer(
        peer=_to_id(offer.peer),
        fragment=offer.fragment,
        seq=offer.seq,
        tokens=offer.tokens,
        steps=offer.steps,
        genesis=_digest("genesis", offer.genesis),
        key=_to_key(offer),
        due=offer.due,
        sections=sections,
        inherited=inherited,
        follows=offer.follows,
        again=(offer.again_tokens, offer.again_steps),
    )


def _seal(seal: Seal) -> pb.Seal:
    members = [
        pb.Member(
            peer=_id(entry.peer),
            seq=entry.seq,
            tokens=entry.tokens,
            steps=entry.steps,
            weight=weight,
        )
        for entry, weight in zip(seal.members, seal.weights, strict=True)
    ]
    return pb.Seal(
        sealer=_id(seal.sealer),
        fragment=seal.fragment,
        base=seal.base,
        key=_key(seal.key),
        members=members,
        absent=seal.absent,
        reason=seal.reason,
        payload=seal.payload,
    )


def _to_seal(seal: pb.Seal, sections: Sections) -> Seal:
    members = _list("members", seal.members)
    return Seal(
        sealer=_to_id(seal.sealer),
        fragment=seal.fragment,
        base=_digest("digest", seal.base),
        key=_to_key(seal),
        members=tuple(Entry(_to_id(m.peer), m.seq, m.tokens, m.steps) for m in members),
        weights=tuple(_number("weight", m.weight) for m in members),
        absent=tuple(_name("peer name", name) for name in _list("absent peers", seal.absent)),
        reason=_name("reason", seal.reason, empty=True),
        payload=_digest("digest", seal.payload),
        sections=sections,
    )


def _state(state: State) -> pb.State:
    own = state.lineage
    lineage = pb.Lineage(key=_key(own.key), genesis=own.genesis, merged=_merged(own.merged.items()))
    return pb.State(
        peer=_id(state.peer), fragment=state.fragment, lineage=lineage, content=state.content
    )


def _to_state(state: pb.State, sections: Sections) -> State:
    key = _to_key(state.lineage)
    merged = _to_merged("merged peers", state.lineage.merged)
    _check(len(dict(merged)) == len(merged), "a peer is merged twice in one lineage")
    lineage = Lineage(
        tokens=key.tokens,
        version=key.version,
        digest=key.digest,
        genesis=_digest("genesis", state.lineage.genesis),
        merged=dict(merged),
    )
    return State(
        peer=_to_id(state.peer),
        fragment=state.fragment,
        lineage=lineage,
        content=_digest("content", state.content),
        sections=sections,
    )


def _to_bulk(header: pb.Header, sections: Sections) -> Bulk:
    kind = header.WhichOneof("kind")
    if kind == "offer":
        return _to_offer(header.offer, sections)
    if kind == "seal":
        return _to_seal(header.seal, sections)
    _check(kind == "state", "a bulky message of an unknown kind")
    return _to_state(header.state, sections)


def check_fragment(limit: Callable[[int], int], fragment: int) -> int:
    """`limit(fragment)`. Raises `PeerError` if there is no such fragment."""
    try:
        return limit(fragment)
    except LookupError as fault:
        raise PeerError(f"there is no fragment {fragment}") from fault


class Assembler:
    """Frames in, bulky messages out; one after the other from one stream.

    `limit(fragment)` is the greatest payload of a message of that fragment; it raises `LookupError`
    or `PeerError` for a fragment there is not. `allocate(nbytes)` gives the writable buffer of one
    section: one for each, so that each can be viewed as float32.
    """

    def __init__(self, limit: Callable[[int], int], allocate: Callable[[int], memoryview]) -> None:
        self._limit, self._allocate = limit, allocate
        self._message: Bulk | None = None
        self._unfilled: list[memoryview] = []  # what is still to be filled, first one first

    @property
    def busy(self) -> bool:
        """Whether a message has begun and is not whole yet."""
        return self._message is not None

    def feed(self, frame: bytes) -> Bulk | None:
        """The message that this frame completes, if it does. Raises `PeerError`; then the stream is
        lost."""
        if frame[:1] == bytes([_CHUNK_TAG]):
            self._fill(_chunk(frame))
        else:
            self._begin(frame)
        if self._unfilled:
            return None
        whole, self._message = self._message, None
        return whole

    def _begin(self, frame: bytes) -> None:
        _check(self._message is None, "a header within a message")
        parsed = _parse(pb.Frame, frame)
        _check(parsed.WhichOneof("kind") == "header", "a frame that is neither header nor chunk")
        header, bare = parsed.header, _to_bulk(parsed.header, {})
        sections = _list("sections", header.sections, SECTION_LIMIT)
        _check(
            len({section.name for section in sections}) == len(sections), "two sections of one name"
        )
        for section in sections:
            _name("section name", section.name)
            _name("codec", section.codec)
        nbytes, most = (
            sum(section.nbytes for section in sections),
            check_fragment(self._limit, bare.fragment),
        )
        _check(
            nbytes <= most,
            f"a message of {nbytes} bytes for fragment {bare.fragment}, at most {most}",
        )
        buffer = {
            s.name: self._allocate(s.nbytes) if s.nbytes else memoryview(b"") for s in sections
        }
        packets = {s.name: Packet(s.codec, s.numel, buffer[s.name]) for s in sections}
        self._message = _to_bulk(header, packets)
        self._unfilled = [packet.data for packet in packets.values() if packet.nbytes]

    def _fill(self, chunk: memoryview) -> None:
        _check(self._message is not None, "a chunk outside a message")
        while chunk and self._unfilled:
            buffer = self._unfilled[0]
            size = min(len(buffer), len(chunk))
            buffer[:size], chunk = chunk[:size], chunk[size:]
            if size == len(buffer):
                self._unfilled.pop(0)
            else:
                self._unfilled[0] = buffer[size:]
        _check(not chunk, "more bytes than the header announced")
