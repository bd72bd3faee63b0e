"""The wire: what goes in comes out, and what is not a message is a PeerError and nothing else."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mend_optim.codecs.packing import fresh
from mend_optim.errors import PeerError
from mend_optim.protocol.handshake import Hello
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
from mend_optim.transport import wire
from mend_optim.transport._pb import peer_pb2 as pb

LIMIT = 5 << 20
U64 = st.integers(0, 2**64 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
NAME = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
DIGEST = st.binary(max_size=wire.DIGEST_LIMIT)
NUMBER = st.floats(0, allow_infinity=False, allow_nan=False)
FRAGMENT = st.integers(0, 2**32 - 1)
ID = st.builds(PeerId, NAME, U64)
KEY = st.builds(Key, U64, U64, DIGEST)
HELD = st.lists(st.tuples(ID, U64), max_size=3).map(tuple)
FIELDS = st.lists(st.tuples(TEXT, TEXT), max_size=4).map(tuple)
PACKET = st.builds(
    lambda codec, numel, data: Packet(codec, numel, memoryview(data)),
    NAME,
    U64,
    st.binary(max_size=64),
)
SECTIONS = st.dictionaries(NAME, PACKET, max_size=4)
MEMBERS = st.lists(st.tuples(st.builds(Entry, ID, U64, U64, U64), NUMBER), max_size=4)

HELLO = st.builds(
    Hello,
    peer=ID,
    address=TEXT,
    model=FIELDS,
    policy=FIELDS,
    protocol=st.integers(0, 2**32 - 1),
    refusal=TEXT,
)
BEAT = st.builds(
    Beat,
    peer=ID,
    address=TEXT,
    count=U64,
    step=U64,
    tokens=U64,
    seconds_per_step=NUMBER,
    training=st.booleans(),
    genesis=DIGEST,
    reports=st.lists(st.builds(Report, KEY, HELD, DIGEST), max_size=3).map(tuple),
    roster=st.lists(st.builds(Rumor, ID, TEXT, U64, st.booleans()), max_size=3).map(tuple),
    ping=U64,
    pong=U64,
    position=U64,
)
WANT = st.builds(Want, ID, FRAGMENT, DIGEST)
CONTROL = st.one_of(BEAT, st.builds(Goodbye, ID), st.builds(Call, ID, FRAGMENT), WANT)
OFFER = st.builds(
    lambda offer, claim: replace(
        offer, seq=max(offer.seq, claim.settled + 1) if claim else offer.seq, inherited=claim
    ),
    st.builds(
        Offer,
        peer=ID,
        fragment=FRAGMENT,
        seq=U64,
        tokens=U64,
        steps=U64,
        genesis=DIGEST,
        key=KEY,
        due=st.booleans(),
        sections=SECTIONS,
        follows=U64,
        again=st.tuples(U64, U64),
    ),
    st.none() | st.builds(Claim, ID, st.integers(0, 2**64 - 2)),
)
SEAL = st.builds(
    lambda of, **rest: Seal(
        members=tuple(m for m, _ in of), weights=tuple(w for _, w in of), **rest
    ),
    MEMBERS,
    sealer=ID,
    fragment=FRAGMENT,
    base=DIGEST,
    key=KEY,
    absent=st.lists(NAME, max_size=3).map(tuple),
    reason=TEXT,
    payload=DIGEST,
    sections=SECTIONS,
)
LINEAGE = st.builds(
    Lineage,
    tokens=U64,
    version=U64,
    digest=DIGEST,
    genesis=DIGEST,
    merged=st.dictionaries(ID, U64, max_size=4),
)
STATE = st.builds(
    State, peer=ID, fragment=FRAGMENT, lineage=LINEAGE, content=DIGEST, sections=SECTIONS
)
BULK = st.one_of(OFFER, SEAL, STATE)

ME = PeerId("a", 2**64 - 1)
CHUNK = pb.Frame(chunk=b"abcd").SerializeToString()
GOOD = Offer(
    peer=ME,
    fragment=0,
    seq=7,
    tokens=2**63,
    steps=5,
    genesis=b"genesis",
    key=Key(2**64 - 1, 3, b"digest"),
    due=True,
)


def assembled(frames: list[bytes], limit: int = LIMIT) -> list[Bulk]:
    assembler = wire.Assembler(lambda fragment: limit, fresh)
    return [message for message in map(assembler.feed, frames) if message is not None]


def contents(message: Bulk) -> list[tuple[str, str, int, bytes]]:
    return [(name, p.codec, p.numel, bytes(p.data)) for name, p in message.sections.items()]


def packet(data: bytes) -> Packet:
    return Packet("none", len(data) // 4, memoryview(data))


def header(**header: object) -> bytes:
    return pb.Frame(header=pb.Header(**header)).SerializeToString()  # type: ignore[arg-type]


def offer_with(sections: Sequence[pb.Section] = (), **changed: object) -> bytes:
    fields = {"peer": pb.PeerId(name="a", incarnation=1), "key": pb.Key(digest=b"d"), **changed}
    return header(offer=pb.Offer(**fields), sections=sections)  # type: ignore[arg-type]


@given(CONTROL)
def test_control_round_trip(message):
    assert wire.decode_control(wire.encode_control(message)) == message


@given(HELLO)
def test_hello_round_trip(hello):
    assert wire.decode_hello(wire.encode_hello(hello)) == hello


@given(ID, WANT)
def test_id_and_want_round_trip(peer, want):
    assert wire.decode_id(wire.encode_id(peer)) == peer
    assert wire.decode_want(wire.encode_want(want)) == want


@given(st.lists(BULK, max_size=3))
def test_bulky_messages_round_trip_one_after_the_other(messages):
    out = assembled([frame for message in messages for frame in wire.frames(message)])
    assert out == messages
    assert list(map(contents, out)) == list(map(contents, messages))


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_random_bytes_give_a_message_or_a_peer_error(data):
    for parse in (
        wire.decode_control,
        wire.decode_hello,
        wire.decode_id,
        wire.decode_want,
        lambda data: assembled([data], 1 << 10),
    ):
        with suppress(PeerError):
            parse(data)


@settings(max_examples=300)
@given(BULK, st.data())
def test_mutated_frames_give_messages_or_a_peer_error(message, data):
    frames = list(wire.frames(message))
    for _ in range(data.draw(st.integers(1, 4))):
        i = data.draw(st.integers(0, len(frames) - 1))
        at = data.draw(st.integers(0, len(frames[i])))
        change = data.draw(st.binary(max_size=3))
        frames[i] = frames[i][:at] + change + frames[i][at + data.draw(st.integers(0, 3)) :]
        frames.insert(data.draw(st.integers(0, len(frames))), data.draw(st.sampled_from(frames)))
    with suppress(PeerError):
        assembled(frames, 1 << 10)


@given(CONTROL, st.data())
def test_mutated_control_gives_a_message_or_a_peer_error(message, data):
    encoded = wire.encode_control(message)
    at = data.draw(st.integers(0, len(encoded)))
    with suppress(PeerError):
        wire.decode_control(
            encoded[:at]
            + data.draw(st.binary(max_size=4))
            + encoded[at + data.draw(st.integers(0, 4)) :]
        )


@given(st.integers(1, 3 * wire.CHUNK + 5))
@settings(max_examples=20)
def test_a_chunk_frame_is_what_protobuf_would_write(size):
    data = bytes(size)
    message = replace(GOOD, sections={"delta": packet(data)})
    for frame in list(wire.frames(message))[1:]:
        assert frame == pb.Frame(chunk=pb.Frame.FromString(frame).chunk).SerializeToString()


def test_sections_of_any_size_are_chunked_and_put_together_again():
    sizes = [0, 4, wire.CHUNK - 4, wire.CHUNK, 0, wire.CHUNK + 4, 8]
    sections = {str(i): packet(bytes([i]) * size) for i, size in enumerate(sizes)}
    frames = list(wire.frames(replace(GOOD, sections=sections)))
    assert [len(frame) for frame in frames[1:]] == [
        6,
        wire.CHUNK,
        wire.CHUNK + 4,
        wire.CHUNK + 4,
        6,
        10,
    ]
    (out,) = assembled(frames)
    assert contents(out) == contents(replace(GOOD, sections=sections))


def test_chunks_may_span_sections():
    sections = {"one": packet(b"aaaa"), "two": packet(b"bbbb")}
    frames = list(wire.frames(replace(GOOD, sections=sections)))
    (out,) = assembled(
        [
            frames[0],
            pb.Frame(chunk=b"aaaabb").SerializeToString(),
            pb.Frame(chunk=b"bb").SerializeToString(),
        ]
    )
    assert contents(out) == contents(replace(GOOD, sections=sections))


def test_frames_are_lazy_and_the_payload_is_not_copied():
    assembler = wire.Assembler(lambda fragment: 1 << 40, fresh)
    iterator = wire.frames(replace(GOOD, sections={"delta": packet(bytes(10))}))
    assert assembler.feed(next(iterator)) is None
    assert assembler.busy
    assert assembler.feed(next(iterator)) is not None
    assert not assembler.busy


def test_every_section_has_a_writable_buffer_of_its_own():
    given = []

    def allocate(nbytes: int) -> memoryview:
        given.append(memoryview(bytearray(nbytes)))
        return given[-1]

    assembler = wire.Assembler(lambda fragment: 12, allocate)
    first, *rest = wire.frames(
        replace(
            GOOD,
            sections={"a": packet(b"1"), "none": packet(b""), "b": packet(struct.pack("<f", 1.5))},
        )
    )
    assert assembler.feed(first) is None
    out = [assembler.feed(frame) for frame in rest][-1]
    assert [len(view) for view in given] == [1, 4]
    assert out.sections["b"].data.obj is given[1].obj
    assert out.sections["none"].nbytes == 0


def test_sizes_are_checked_before_anything_is_allocated():
    def never(nbytes: int) -> memoryview:
        raise AssertionError("allocated")

    frame, *_ = wire.frames(replace(GOOD, sections={"a": packet(b"1" * 8), "b": packet(b"2" * 8)}))
    with pytest.raises(PeerError, match="16 bytes for fragment 0, at most 15"):
        wire.Assembler(lambda fragment: 15, never).feed(frame)


@pytest.mark.parametrize("limits", [[], {}])
def test_an_unknown_fragment_is_refused(limits):
    with pytest.raises(PeerError, match="no fragment 0"):
        wire.Assembler(limits.__getitem__, fresh).feed(next(wire.frames(GOOD)))


def test_unknown_sections_and_fields_are_carried_or_ignored():
    section = pb.Section(name="exp_avg_sq", codec="from the future", numel=3, nbytes=2)
    offer = pb.Offer(peer=pb.PeerId(name="a", incarnation=1), key=pb.Key(digest=b"d"))
    offer.MergeFromString(b"\xa2\x06\x03new")  # field 100
    out = assembled(
        [header(offer=offer, sections=[section]), pb.Frame(chunk=b"xy").SerializeToString()]
    )
    assert contents(out[0]) == [("exp_avg_sq", "from the future", 3, b"xy")]


BEGUN = next(wire.frames(replace(GOOD, sections={"a": packet(b"1234")})))
GARBAGE = {
    "nothing": ([b""], "neither header nor chunk"),
    "an ack": ([wire.ACK], "neither header nor chunk"),
    "a frame of no kind": ([b"\xa2\x06\x03new"], "neither header nor chunk"),
    "not protobuf": ([b"\x0a\xff"], "not a Frame"),
    "a header of no kind": ([header(sections=[])], "unknown kind"),
    "a chunk outside a message": ([CHUNK], "outside a message"),
    "an empty chunk": ([BEGUN, b"\x12\x00"], "a chunk of 0 bytes"),
    "a chunk with something behind it": (
        [BEGUN, CHUNK + b"efgh"],
        "a chunk of 4 bytes in a frame of 10",
    ),
    "a chunk without an end": ([BEGUN, b"\x12\xff\xff\xff\xff\xff\xff\xff"], "without a size"),
    "a chunk cut short": ([BEGUN, CHUNK[:-1]], "a chunk of 4 bytes in a frame of 5"),
    "more than announced": ([BEGUN, pb.Frame(chunk=b"12345").SerializeToString()], "more bytes"),
    "a chunk too many": ([BEGUN, CHUNK, CHUNK], "outside a message"),
    "a header within a message": ([BEGUN, BEGUN], "a header within a message"),
    "two sections of one name": (
        [offer_with([pb.Section(name="a", codec="none")] * 2)],
        "two sections",
    ),
    "a section without a name": ([offer_with([pb.Section(codec="none")])], "section name is empty"),
    "a section without a codec": ([offer_with([pb.Section(name="a")])], "codec is empty"),
    "too many sections": (
        [offer_with([pb.Section(name=str(i), codec="none") for i in range(257)])],
        "257 sections, at most 256",
    ),
    "no peer": ([offer_with(peer=None)], "peer name is empty"),
    "no name": ([offer_with(peer=pb.PeerId(incarnation=1))], "peer name is empty"),
    "a long name": ([offer_with(peer=pb.PeerId(name="a" * 257))], "257 bytes, at most 256"),
    "no key": ([offer_with(key=None)], "Offer without a key"),
    "a long digest": ([offer_with(genesis=b"g" * 33)], "genesis of 33 bytes, at most 32"),
    "no lineage": ([header(state=pb.State(peer=pb.PeerId(name="a")))], "Lineage without a key"),
    "bad unicode": ([b"\x0a\x08\x0a\x06\x0a\x04\x0a\x02\xff\xfe"], "not a Frame"),
}


@pytest.mark.parametrize(("frames", "reason"), GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_is_refused(frames, reason):
    with pytest.raises(PeerError, match=reason):
        assembled(frames)


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -1.0])
def test_weights_are_finite(weight):
    seal = Seal(
        sealer=ME,
        fragment=0,
        base=b"",
        key=Key(0, 0, b""),
        members=(Entry(ME, 1, 1, 1),),
        weights=(weight,),
        absent=(),
        reason="",
        payload=b"",
    )
    with pytest.raises(PeerError, match="weight"):
        assembled(list(wire.frames(seal)))


def test_a_peer_is_merged_once():
    peer = pb.Merged(peer=pb.PeerId(name="a", incarnation=1), seq=1)
    lineage = pb.Lineage(key=pb.Key(), merged=[peer, peer])
    with pytest.raises(PeerError, match="merged twice"):
        assembled([header(state=pb.State(peer=peer.peer, lineage=lineage))])


@pytest.mark.parametrize("seconds", [float("nan"), float("-inf"), -0.1])
def test_nonsense_in_a_beat_is_refused(seconds):
    with pytest.raises(PeerError, match="seconds per step"):
        wire.decode_control(
            wire.encode_control(Beat(peer=ME, address="", count=1, seconds_per_step=seconds))
        )


@pytest.mark.parametrize(
    ("level", "words"),
    [
        (Level(0.0, 1.0, 0.1, 3), "a pace of 0"),
        (Level(1.0, 0.0, 0.1, 3), "a pace of 0"),
        (Level(float("nan"), 1.0, 0.1, 3), "pace of nan"),
        (Level(1.0, float("inf"), 0.1, 3), "pace of inf"),
        (Level(1.0, 1.0, -0.1, 3), "spread of -0.1"),
    ],
)
def test_a_pace_that_cannot_be_is_refused(level, words):
    with pytest.raises(PeerError, match=words):
        wire.decode_control(
            wire.encode_control(Beat(peer=ME, address="", count=1, paces=(("compute", level),)))
        )


def test_paces_are_few():
    paces = tuple((f"cause {i}", Level(1.0, 1.0, 0.1, 3)) for i in range(wire.PACE_LIMIT + 1))
    assert (
        wire.decode_control(
            wire.encode_control(Beat(peer=ME, address="", count=1, paces=paces[:-1]))
        ).paces
        == paces[:-1]
    )
    with pytest.raises(PeerError, match="9 paces, at most 8"):
        wire.decode_control(wire.encode_control(Beat(peer=ME, address="", count=1, paces=paces)))


def test_lists_are_bounded():
    beat = pb.Beat(
        peer=pb.PeerId(name="a"),
        roster=[pb.Rumor(peer=pb.PeerId(name="a"))] * (wire.COUNT_LIMIT + 1),
    )
    with pytest.raises(PeerError, match="65537 rumors, at most 65536"):
        wire.decode_control(pb.Control(beat=beat).SerializeToString())
    with pytest.raises(PeerError, match="at most"):
        wire.decode_control(bytes(wire.MESSAGE_LIMIT + 1))


def test_negative_numbers_cannot_be_written():
    with pytest.raises(ValueError, match="range"):
        wire.encode_control(Beat(peer=ME, address="", count=-1))


@given(st.one_of(BULK, CONTROL))
def test_the_sender_is_whom_the_message_names(message):
    assert wire.sender(message) == (message.sealer if isinstance(message, Seal) else message.peer)
