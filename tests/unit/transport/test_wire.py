"""The wire: a message comes out as it went in; any other bytes are a PeerError and nothing else."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import MISSING, fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mend_optim.codecs.packing import fresh
from mend_optim.errors import PeerError
from mend_optim.protocol.lineage import INCARNATIONS, Entry, Key, PeerId
from mend_optim.protocol.messages import Beat, Control, Level, Offer, Report, Rumor, Seal
from mend_optim.transport import wire
from mend_optim.transport._pb import peer_pb2 as pb
from mend_optim.transport.frames import Assembler
from mend_optim.transport.limits import COUNT_LIMIT, MESSAGE_LIMIT, PACE_LIMIT
from tests.unit.transport.generated import CONTROL, HELLO, ID, OFFER, SEAL, STATE, WANT

ME = PeerId("a", INCARNATIONS - 1)


def beat(**facts: object) -> Beat:
    return Beat(peer=ME, address="", count=1, **facts)  # type: ignore[arg-type]


def again(message: Control) -> Control:
    return wire.decode_control(wire.encode_control(message))


@given(CONTROL)
def test_control_round_trip(message):
    assert again(message) == message


FULL = Beat(
    peer=ME,
    address="a:1",
    count=1,
    step=2,
    tokens=3,
    seconds_per_step=0.5,
    training=True,
    genesis=b"genesis",
    reports=(Report(Key(4, 5, b"digest"), ((ME, 6),), b"group"),),
    roster=(Rumor(ME, "b:1", 7, left=True),),
    ping=8,
    pong=9,
    position=10,
    paces=(("compute", Level(0.5, 0.25, 0.125, 11)),),
    latency=12,
    finishes=True,
    ready=b"r" * 16,
    turned_away=(ME,),
)


def test_every_field_of_a_beat_survives_the_wire() -> None:
    """A field that is new must be here, and in the wire: nothing else notices that it is lost."""
    defaulted = [field for field in fields(Beat) if field.default is not MISSING]
    assert {
        field.name for field in defaulted if getattr(FULL, field.name) == field.default
    } == set()
    assert again(FULL) == FULL


@pytest.mark.parametrize("messages", [OFFER, SEAL, STATE], ids=["offer", "seal", "state"])
def test_header_round_trip(messages):
    @given(messages)
    def holds(message):
        assert wire.message_from(wire.header_of(message), message.sections) == message

    holds()


@given(HELLO)
def test_hello_round_trip(hello):
    assert wire.decode_hello(wire.encode_hello(hello)) == hello


@given(ID, WANT)
def test_id_and_want_round_trip(peer, want):
    assert wire.decode_id(wire.encode_id(peer)) == peer
    assert wire.decode_want(wire.encode_want(want)) == want


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_random_bytes_give_a_message_or_a_peer_error(data):
    for parse in (
        wire.decode_control,
        wire.decode_hello,
        wire.decode_id,
        wire.decode_want,
        Assembler(lambda fragment: 1 << 10, fresh).feed,
    ):
        with suppress(PeerError):
            parse(data)


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
        wire.message_from(wire.header_of(seal), {})


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -1.0])
def test_rates_are_finite(rate):
    offer = Offer(
        peer=ME,
        fragment=0,
        seq=1,
        tokens=1,
        steps=1,
        rate=rate,
        genesis=b"",
        key=Key(0, 0, b""),
        due=False,
    )
    with pytest.raises(PeerError, match=r"rate of an offer is .*; it must be finite and >= 0"):
        wire.message_from(wire.header_of(offer), {})


def test_a_peer_is_merged_once():
    peer = pb.Merged(peer=pb.PeerId(name="a", incarnation=1), seq=1)
    lineage = pb.Lineage(key=pb.Key(), merged=[peer, peer])
    with pytest.raises(PeerError, match="merged twice"):
        wire.message_from(pb.Header(state=pb.State(peer=peer.peer, lineage=lineage)), {})


@pytest.mark.parametrize("seconds", [float("nan"), float("-inf"), -0.1])
def test_nonsense_in_a_beat_is_refused(seconds):
    with pytest.raises(PeerError, match="seconds per step"):
        again(beat(seconds_per_step=seconds))


@pytest.mark.parametrize(
    ("level", "words"),
    [
        (Level(0.0, 1.0, 0.1, 3), "a pace is 0"),
        (Level(1.0, 0.0, 0.1, 3), "a pace is 0"),
        (Level(float("nan"), 1.0, 0.1, 3), "pace is nan"),
        (Level(1.0, float("inf"), 0.1, 3), "pace is inf"),
        (Level(1.0, 1.0, -0.1, 3), "spread is -0.1"),
    ],
)
def test_a_pace_that_cannot_be_is_refused(level, words):
    with pytest.raises(PeerError, match=words):
        again(beat(paces=(("compute", level),)))


def test_paces_are_few():
    paces = tuple((f"cause {i}", Level(1.0, 1.0, 0.1, 3)) for i in range(PACE_LIMIT + 1))
    assert again(beat(paces=paces[:-1])).paces == paces[:-1]
    with pytest.raises(PeerError, match="the message has 9 paces; the limit is 8"):
        again(beat(paces=paces))


def test_lists_are_bounded():
    peer = pb.PeerId(name="a")
    many = pb.Beat(peer=peer, roster=[pb.Rumor(peer=peer)] * (COUNT_LIMIT + 1))
    with pytest.raises(PeerError, match="the message has 65537 rumors; the limit is 65536"):
        wire.decode_control(pb.Control(beat=many).SerializeToString())
    with pytest.raises(PeerError, match="Control is 4194305 bytes; the limit is 4194304"):
        wire.decode_control(bytes(MESSAGE_LIMIT + 1))


def test_negative_numbers_cannot_be_written():
    with pytest.raises(ValueError, match="range"):
        wire.encode_control(Beat(peer=ME, address="", count=-1))


def test_a_message_of_an_unknown_kind_is_refused():
    with pytest.raises(PeerError, match="the control message is of an unknown kind"):
        wire.decode_control(b"")
    with pytest.raises(PeerError, match="the header is of an unknown kind"):
        wire.message_from(pb.Header(), {})


def test_an_incarnation_that_leaves_no_room_beyond_it_is_refused() -> None:
    data = pb.PeerId(name="a", incarnation=INCARNATIONS).SerializeToString()
    with pytest.raises(PeerError, match="must be below"):
        wire.decode_id(data)


def test_a_life_that_nobody_knows_is_refused() -> None:
    namesake = pb.Namesake(peer=pb.PeerId(name="a"), life="undead")
    hello = pb.Hello(peer=pb.PeerId(name="b"), namesake=namesake)
    with pytest.raises(PeerError, match="'undead'"):
        wire.decode_hello(hello.SerializeToString())
