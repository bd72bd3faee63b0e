"""Frames: a message comes out as it went in; any other bytes are a PeerError and nothing else."""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mend_optim.codecs.packing import fresh
from mend_optim.errors import PeerError
from mend_optim.protocol.lineage import INCARNATIONS, Key, PeerId
from mend_optim.protocol.messages import Bulk, Offer, Seal
from mend_optim.transport import frames
from mend_optim.transport._pb import peer_pb2 as pb
from mend_optim.transport.frames import (
    ACK,
    CHUNK,
    Assembler,
    payload_checksum,
    sender,
    to_frames,
)
from mend_optim.transport.limits import GENESIS_LIMIT, UNKNOWN_LIMIT
from mend_optim.transport.wire_bulk import message_from
from tests.support.depth import many
from tests.unit.transport.generated import BULK, CONTROL
from tests.unit.transport.recorder import packet

LIMIT = 5 << 20

ME = PeerId("a", INCARNATIONS - 1)

FRAME = pb.Frame(chunk=b"abcd").SerializeToString()

GOOD = Offer(
    peer=ME,
    fragment=0,
    seq=7,
    tokens=2**61,
    steps=5,
    genesis=b"genesis",
    key=Key(2**62, 3, b"digest"),
    due=True,
)


def assembled(frames: list[bytes], limit: int = LIMIT) -> list[Bulk]:
    assembler = Assembler(lambda fragment: limit, fresh)
    return [message for message in map(assembler.feed, frames) if message is not None]


def contents(message: Bulk) -> list[tuple[str, str, int, bytes]]:
    return [(name, p.codec, p.numel, bytes(p.data)) for name, p in message.sections.items()]


def header(**header: object) -> bytes:
    return pb.Frame(header=pb.Header(**header)).SerializeToString()  # type: ignore[arg-type]


def offer_with(sections: Sequence[pb.Section] = (), **changed: object) -> bytes:
    fields = {"peer": pb.PeerId(name="a", incarnation=1), "key": pb.Key(digest=b"d"), **changed}
    return header(offer=pb.Offer(**fields), sections=sections)  # type: ignore[arg-type]


@given(st.lists(BULK, max_size=3))
def test_bulky_messages_round_trip_one_after_the_other(messages):
    out = assembled([frame for message in messages for frame in to_frames(message)])
    assert out == messages
    assert list(map(contents, out)) == list(map(contents, messages))


@settings(max_examples=many(100, 300))
@given(BULK, st.data())
def test_mutated_frames_give_messages_or_a_peer_error(message, data):
    frames = list(to_frames(message))
    for _ in range(data.draw(st.integers(1, 4))):
        i = data.draw(st.integers(0, len(frames) - 1))
        at = data.draw(st.integers(0, len(frames[i])))
        change = data.draw(st.binary(max_size=3))
        frames[i] = frames[i][:at] + change + frames[i][at + data.draw(st.integers(0, 3)) :]
        frames.insert(data.draw(st.integers(0, len(frames))), data.draw(st.sampled_from(frames)))
    with suppress(PeerError):
        assembled(frames, 1 << 10)


@given(st.integers(1, 3 * CHUNK + 5))
@settings(max_examples=20)
def test_a_chunk_frame_is_what_protobuf_would_write(size):
    data = bytes(size)
    message = replace(GOOD, sections={"delta": packet(data)})
    for frame in list(to_frames(message))[1:]:
        assert frame == pb.Frame(chunk=pb.Frame.FromString(frame).chunk).SerializeToString()


def with_checksum(message: Bulk) -> list[bytes]:
    return list(to_frames(message, asyncio.run(payload_checksum(message))))


@given(st.lists(BULK, max_size=3))
def test_a_message_with_a_checksum_comes_out_as_it_went_in(messages):
    out = assembled([frame for message in messages for frame in with_checksum(message)])
    assert out == messages
    assert list(map(contents, out)) == list(map(contents, messages))


@settings(max_examples=many(100, 300))
@given(BULK, st.data())
def test_no_flipped_bit_gets_past_the_checksum(message, data):
    """Not one in the header either, unless that makes another field of the checksum, which then
    says nothing about a message that is as it was sent."""
    frames = with_checksum(message)
    i = data.draw(st.integers(0, len(frames) - 1))
    at = data.draw(st.integers(0, len(frames[i]) - 1))
    changed = bytearray(frames[i])
    changed[at] ^= 1 << data.draw(st.integers(0, 7))
    with suppress(PeerError):
        for out in assembled([*frames[:i], bytes(changed), *frames[i + 1 :]], 1 << 20):
            assert (out, contents(out)) == (message, contents(message))


def test_a_former_version_reads_a_message_with_a_checksum_and_sends_one_without() -> None:
    message = replace(GOOD, sections={"delta": packet(b"bytes")})
    first, *rest = with_checksum(message)
    former = pb.Frame(header=pb.Frame.FromString(first).header).SerializeToString()
    assert first == former + first[-5:]  # one more field, at the end
    (out,) = assembled([former, *rest])
    assert contents(out) == contents(message)


def test_a_message_whose_checksum_is_zero_says_another_one(monkeypatch):
    """Zero says that there is none."""
    monkeypatch.setattr(zlib, "crc32", lambda *_: 0)
    first, *rest = with_checksum(replace(GOOD, sections={"delta": packet(b"bytes")}))
    assert pb.Frame.FromString(first).checksum == 1
    assert len(assembled([first, *rest])) == 1


def test_sections_of_any_size_are_chunked_and_put_together_again():
    sizes = [0, 4, CHUNK - 4, CHUNK, 0, CHUNK + 4, 8]
    sections = {str(i): packet(bytes([i]) * size) for i, size in enumerate(sizes)}
    frames = list(to_frames(replace(GOOD, sections=sections)))
    assert [len(frame) for frame in frames[1:]] == [
        6,
        CHUNK,
        CHUNK + 4,
        CHUNK + 4,
        6,
        10,
    ]
    (out,) = assembled(frames)
    assert contents(out) == contents(replace(GOOD, sections=sections))


def test_chunks_may_span_sections():
    sections = {"anchor": packet(b"aaaa"), "delta": packet(b"bbbb")}
    frames = list(to_frames(replace(GOOD, sections=sections)))
    (out,) = assembled(
        [
            frames[0],
            pb.Frame(chunk=b"aaaabb").SerializeToString(),
            pb.Frame(chunk=b"bb").SerializeToString(),
        ]
    )
    assert contents(out) == contents(replace(GOOD, sections=sections))


def test_frames_are_lazy_and_the_payload_is_not_copied():
    assembler = Assembler(lambda fragment: 1 << 40, fresh)
    iterator = to_frames(replace(GOOD, sections={"delta": packet(bytes(10))}))
    assert assembler.feed(next(iterator)) is None
    assert assembler.busy
    assert assembler.feed(next(iterator)) is not None
    assert not assembler.busy


def test_every_section_has_a_writable_buffer_of_its_own():
    given = []

    def allocate(nbytes: int) -> memoryview:
        given.append(memoryview(bytearray(nbytes)))
        return given[-1]

    assembler = Assembler(lambda fragment: 12, allocate)
    first, *rest = to_frames(
        replace(
            GOOD,
            sections={"0": packet(b"1"), "1": packet(b""), "2": packet(struct.pack("<f", 1.5))},
        )
    )
    assert assembler.feed(first) is None
    out = [assembler.feed(frame) for frame in rest][-1]
    assert [len(view) for view in given] == [1, 4]
    assert out.sections["2"].data.obj is given[1].obj
    assert out.sections["1"].nbytes == 0


def test_sizes_are_checked_before_anything_is_allocated():
    def never(nbytes: int) -> memoryview:
        raise AssertionError("allocated")

    frame, *_ = to_frames(replace(GOOD, sections={"a": packet(b"1" * 8), "b": packet(b"2" * 8)}))
    with pytest.raises(PeerError, match="the payload for fragment 0 is 16 bytes; the limit is 15"):
        Assembler(lambda fragment: 15, never).feed(frame)


@pytest.mark.parametrize("limits", [[], {}])
def test_an_unknown_fragment_is_refused(limits):
    with pytest.raises(PeerError, match="no fragment 0"):
        Assembler(limits.__getitem__, fresh).feed(next(to_frames(GOOD)))


LATER = pb.Section(name="exp_avg_sq", codec="from the future", numel=3, nbytes=2)


def test_unknown_fields_are_ignored_and_unknown_sections_carried():
    key = pb.Key(digest=b"d")
    state = pb.State(peer=pb.PeerId(name="a", incarnation=1), lineage=pb.Lineage(key=key))
    state.MergeFromString(b"\xa2\x06\x03new")  # field 100
    chunk = pb.Frame(chunk=b"xy").SerializeToString()
    (out,) = assembled([header(state=state, sections=[LATER]), chunk])
    assert contents(out) == [("exp_avg_sq", "from the future", 3, b"xy")]


def test_an_offers_unknown_sections_are_dropped():
    """It may be passed on, and nobody is to hold bytes that nobody has a use for."""
    known = pb.Section(name="delta", codec="none", numel=1, nbytes=4)
    chunk = pb.Frame(chunk=b"xyabcd").SerializeToString()
    (out,) = assembled([offer_with([LATER, known]), chunk])
    assert contents(out) == [("delta", "none", 1, b"abcd")]


def test_unknown_sections_are_bounded_together():
    half = (UNKNOWN_LIMIT >> 1) + 1
    named = [pb.Section(name=f"new {i}", codec="none", numel=1, nbytes=half) for i in range(2)]
    feed = Assembler(lambda fragment: 1 << 40, fresh).feed
    assert feed(offer_with(named[:1])) is None
    fault = f"the payload of unknown sections is {2 * half} bytes; the limit is {UNKNOWN_LIMIT}"
    with pytest.raises(PeerError, match=fault):
        Assembler(lambda fragment: 1 << 40, fresh).feed(offer_with(named))


def test_a_header_is_decoded_once(monkeypatch):
    """One with the greatest lists takes a tenth of a second."""
    decoded = []

    def counted(header, sections):
        decoded.append(header)
        return message_from(header, sections)

    monkeypatch.setattr(frames, "message_from", counted)
    sent = replace(GOOD, sections={"delta": packet(b"12345678")})
    (message,) = assembled(list(to_frames(sent)))
    assert contents(message) == contents(sent)
    assert len(decoded) == 1


def test_nothing_is_allocated_before_the_first_chunk():
    """A message may wait for its turn once its header has come."""
    given = []
    assembler = Assembler(lambda fragment: 1 << 40, lambda n: given.append(n) or fresh(n))
    assert assembler.feed(offer_with([LATER])) is None
    assert (assembler.fragment, assembler.nbytes, given) == (0, 2, [])
    assembler.feed(pb.Frame(chunk=b"x").SerializeToString())
    assert given == [2]


BEGUN = next(to_frames(replace(GOOD, sections={"0": packet(b"1234")})))

GARBAGE = {
    "nothing": ([b""], "neither a header nor a chunk"),
    "an ack": ([ACK], "neither a header nor a chunk"),
    "a frame of no kind": ([b"\xa2\x06\x03new"], "neither a header nor a chunk"),
    "not protobuf": ([b"\x0a\xff"], "the bytes are not a Frame"),
    "a header of no kind": ([header(sections=[])], "unknown kind"),
    "a chunk outside a message": ([FRAME], "outside a message"),
    "an empty chunk": ([BEGUN, b"\x12\x00"], "announces a chunk of 0 bytes and holds 0"),
    "a chunk with something behind it": (
        [BEGUN, FRAME + b"efgh"],
        "announces a chunk of 4 bytes and holds 8",
    ),
    "a chunk without an end": ([BEGUN, b"\x12\xff\xff\xff\xff\xff\xff\xff"], "has no size"),
    "a chunk cut short": ([BEGUN, FRAME[:-1]], "announces a chunk of 4 bytes and holds 3"),
    "more than announced": ([BEGUN, pb.Frame(chunk=b"12345").SerializeToString()], "more bytes"),
    "a chunk too many": ([BEGUN, FRAME, FRAME], "outside a message"),
    "a header within a message": ([BEGUN, BEGUN], "a header arrived within a message"),
    "two sections of one name": (
        [offer_with([pb.Section(name="a", codec="none")] * 2)],
        "two sections have the same name",
    ),
    "a section without a name": ([offer_with([pb.Section(codec="none")])], "section name is empty"),
    "a section without a codec": ([offer_with([pb.Section(name="a")])], "codec is empty"),
    "too many sections": (
        [offer_with([pb.Section(name=str(i), codec="none") for i in range(257)])],
        "257 sections; the limit is 256",
    ),
    "no peer": ([offer_with(peer=None)], "peer name is empty"),
    "no name": ([offer_with(peer=pb.PeerId(incarnation=1))], "peer name is empty"),
    "a long name": (
        [offer_with(peer=pb.PeerId(name="a" * 257))],
        "peer name is 257 bytes; the limit is 256",
    ),
    "no key": ([offer_with(key=None)], "the Offer has no key"),
    "a long digest": (
        [offer_with(genesis=b"g" * (GENESIS_LIMIT + 1))],
        f"genesis is {GENESIS_LIMIT + 1} bytes; the limit is {GENESIS_LIMIT}",
    ),
    "no rollback": ([offer_with(genesis=b"\xff" * 33)], "the genesis is damaged"),
    "no lineage": ([header(state=pb.State(peer=pb.PeerId(name="a")))], "the Lineage has no key"),
    "bad unicode": ([b"\x0a\x08\x0a\x06\x0a\x04\x0a\x02\xff\xfe"], "the bytes are not a Frame"),
}


@pytest.mark.parametrize(("frames", "reason"), GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_is_refused(frames, reason):
    with pytest.raises(PeerError, match=reason):
        assembled(frames)


@given(st.one_of(BULK, CONTROL))
def test_the_sender_is_whom_the_message_names(message):
    assert sender(message) == (message.sealer if isinstance(message, Seal) else message.peer)
