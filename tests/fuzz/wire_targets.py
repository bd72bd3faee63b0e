"""The messages on the wire. Only `PeerError` is raised, and what is taken is encoded to the same
again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from mend_optim.engine.ledger import sealed_record
from mend_optim.errors import PeerError
from mend_optim.protocol.handshake import Hello, Life, Namesake
from mend_optim.protocol.lineage import Claim, Entry, Key, Lineage, PeerId
from mend_optim.protocol.messages import (
    Beat,
    Bulk,
    Call,
    Goodbye,
    Level,
    Offer,
    Packet,
    Report,
    Rumor,
    Seal,
    State,
    Want,
)
from mend_optim.protocol.survey_words import (
    TOKEN_BYTES,
    Chunk,
    Dialled,
    DialPort,
    ReadClock,
    Reading,
    SendBytes,
    TakeBytes,
    Taken,
    Token,
    Turn,
)
from mend_optim.protocol.surveyed import DialBack
from mend_optim.transport import wire, wire_survey
from mend_optim.transport._pb import peer_pb2 as pb
from mend_optim.transport.frames import Assembler, to_frames
from tests.fuzz.target import Target, joined, parted, same

#: Bytes of the largest payload for a fragment, of which there are two.
LIMITS = (1 << 12, 64)
ME, OTHER = PeerId("a", 1), PeerId("é b", 2**61)
KEY = Key(4, 5, b"digest")

HELLO = Hello(
    peer=ME,
    address="10.0.0.5:29600",
    model=(("number of parameters", "2"), ("parameter w", "[2, 3] torch.float32")),
    policy=(("sync_every", "128"), ("codec", "int8")),
)
BEAT = Beat(
    peer=ME,
    address="a:1",
    count=1,
    step=2,
    tokens=3,
    seconds_per_step=0.5,
    training=True,
    genesis=b"genesis",
    reports=(Report(KEY, ((ME, 6), (OTHER, 7)), b"group"), Report(KEY)),
    roster=(
        Rumor(ME, "b:1", 7, left=True, proof=b"proof"),
        Rumor(OTHER, "[fd00::5]:1", 8, False, True, b"r", 9),
    ),
    ping=8,
    pong=9,
    position=10,
    paces=(("compute", Level(0.5, 0.25, 0.125, 11)),),
    latency=12,
    finishes=True,
    ready=b"r" * 16,
    ended=b"e" * 16,
    turned_away=(OTHER,),
)
SECTIONS = {
    "delta": Packet("packed", 5, memoryview(b"0123456789")),
    "moment.exp_avg": Packet("none", 1, memoryview(b"abcd")),
}
OFFER = Offer(
    peer=ME,
    fragment=0,
    seq=9,
    tokens=10,
    steps=2,
    genesis=b"genesis",
    key=KEY,
    due=True,
    sections=SECTIONS,
    inherited=Claim(OTHER, 3),
    follows=1,
    rate=0.25,
    again=(4, 2),
)
SEAL = Seal(
    sealer=ME,
    fragment=1,
    base=b"base",
    key=KEY,
    members=(Entry(ME, 1, 2, 3), Entry(OTHER, 4, 5, 6)),
    weights=(0.25, 0.75),
    absent=("c",),
    reason="all_present",
    payload=b"payload",
    period=7,
    sections={"0": SECTIONS["delta"], "scale": SECTIONS["moment.exp_avg"]},
)
STATE = State(
    peer=ME,
    fragment=0,
    lineage=Lineage(tokens=5, version=1, digest=b"d", genesis=b"g", merged={ME: 1, OTHER: 2}),
    content=b"content",
    period=8,
    sections={"anchor": SECTIONS["delta"], "later": SECTIONS["moment.exp_avg"]},
)


def _message(
    name: str,
    proto: Any,
    decode: Callable[[bytes], Any],
    encode: Callable[[Any], bytes],
    seeds: Iterable[Any],
) -> Target:
    """The target of a message that is whole in one byte string."""

    def run(data: bytes) -> bool:
        try:
            message = decode(data)
        except PeerError:
            return False
        same(decode(encode(message)), message, "there and back")
        return True

    return Target(name, run, lambda: map(encode, seeds), protos=(proto,))


# ── bulky messages ────────────────────────────────────────────────────────────────────────────────


class Room:
    """Buffers for an assembler, and how much it has asked for."""

    def __init__(self) -> None:
        self.nbytes = 0

    def take(self, nbytes: int) -> memoryview:
        self.nbytes += nbytes
        return memoryview(bytearray(nbytes))


def assembled(frames: Iterable[bytes], limits: Sequence[int]) -> Iterator[Bulk]:
    """The bulky messages in the frames of one stream. Raises `PeerError`."""
    room = Room()
    assembler = Assembler(limits.__getitem__, room.take)
    for frame in frames:
        message = assembler.feed(frame)
        most = max(limits)
        assert room.nbytes <= most, f"{room.nbytes} bytes for a message of at most {most}"
        if message is not None:
            room.nbytes = 0
            yield message


def contents(message: Bulk) -> list[tuple[str, str, int, bytes]]:
    return [(name, p.codec, p.numel, bytes(p.data)) for name, p in message.sections.items()]


def frames(data: bytes) -> bool:
    """A stream of bulky messages."""
    taken = False
    try:
        for message in assembled(parted(data), LIMITS):
            (again,) = assembled(to_frames(message), LIMITS)
            same(again, message, "there and back")
            same(contents(again), contents(message), "its sections")
            if isinstance(message, Seal):
                check_line(message)
            taken = True
    except PeerError:
        pass
    return taken


def check_line(seal: Seal) -> None:
    """A seal is one line of ASCII in the ledger, whatever its texts are."""
    line = sealed_record(seal, mine=False).json(ME, 0.0)
    assert line.isascii(), line
    assert line.isprintable(), line
    same(json.loads(line)["absent"], list(seal.absent), "the ledger")


def frame_seeds() -> Iterator[bytes]:
    for message in (OFFER, SEAL, STATE):
        yield joined(list(to_frames(message)))
    yield joined([*to_frames(OFFER), *to_frames(STATE)])


NAMESAKE = Hello(
    peer=ME, address="", model=(), policy=(), refusal="no", namesake=Namesake(OTHER, Life.GONE)
)
WANTS = (Want(ME, 1, b"have"), Want(OTHER, 0, b""))
ASKS = [ReadClock(), SendBytes(1), TakeBytes(2), Chunk(b"chunk"), DialPort(29600)]
REPLIES = [
    Turn(1.5, "fd00::5"),
    Reading(1, 2),
    Chunk(b"chunk"),
    Taken(3),
    Token(bytes(TOKEN_BYTES)),
    Dialled(DialBack.REACHED),
]
TARGETS = (
    _message("id", pb.PeerId, wire.decode_id, wire.encode_id, [ME, OTHER]),
    _message("hello", pb.Hello, wire.decode_hello, wire.encode_hello, [HELLO, NAMESAKE]),
    _message(
        "want",
        pb.Want,
        wire.decode_want,
        wire.encode_want,
        [Want(ME, 1, b"have"), Want(OTHER, 0, b"")],
    ),
    _message(
        "control",
        pb.Control,
        wire.decode_control,
        wire.encode_control,
        [BEAT, Goodbye(ME, b"proof"), Call(ME, 1, KEY), Want(OTHER, 2, b"have")],
    ),
    _message("ask", pb.Ask, wire_survey.decode_ask, wire_survey.encode_ask, ASKS),
    _message("reply", pb.Reply, wire_survey.decode_reply, wire_survey.encode_reply, REPLIES),
    Target("frames", frames, frame_seeds, protos=(pb.Frame,), before_list=0),
)
