"""The wire: a message comes out as it went in; any other bytes are a PeerError and nothing else."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import MISSING, fields, replace
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message as Proto
from hypothesis import given, settings
from hypothesis import strategies as st

from mend_optim.codecs.packing import fresh
from mend_optim.errors import PeerError
from mend_optim.protocol.handshake import Hello
from mend_optim.protocol.lineage import (
    INCARNATIONS,
    MOST_AUTHOR_NBYTES,
    Claim,
    Entry,
    Key,
    Lineage,
    PeerId,
    Rollback,
)
from mend_optim.protocol.messages import (
    JOINT_DELTAS,
    JOINT_MOMENTS,
    NO_JOINT,
    Beat,
    Content,
    Control,
    Level,
    Offer,
    Report,
    Rumor,
    Seal,
    State,
)
from mend_optim.protocol.peer_limits import COUNTER_LIMIT, MOST_LEARNERS, NAME_LIMIT
from mend_optim.transport import wire, wire_bulk
from mend_optim.transport._pb import peer_pb2 as pb
from mend_optim.transport.frames import Assembler
from mend_optim.transport.limits import (
    AWAY_LIMIT,
    HELD_LIMIT,
    MESSAGE_LIMIT,
    PACE_LIMIT,
    REPORT_LIMIT,
    RUMOR_LIMIT,
    TEXT_LIMIT,
)
from tests.support.depth import many
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
    reports=(
        Report(
            Key(4, 5, b"digest"),
            ((ME, 6),),
            b"group",
            Content(Key(4, 5, b"digest"), b"content"),
            latency=13,
        ),
    ),
    roster=(Rumor(ME, "b:1", 7, left=True, proof=b"proof", reached=True, hops=3, declines=True),),
    ping=8,
    pong=9,
    position=10,
    paces=(("compute", Level(0.5, 0.25, 0.125, 11)),),
    latency=12,
    finishes=True,
    ready=b"r" * 16,
    ended=b"e" * 16,
    turned_away=(ME,),
    zone="rack-7",
    takes_joint=JOINT_MOMENTS,
    declines=True,
    rests=True,
)


def test_every_field_of_a_beat_survives_the_wire() -> None:
    """A field that is new must be here, and in the wire: nothing else notices that it is lost."""
    defaulted = [field for field in fields(Beat) if field.default is not MISSING]
    assert {
        field.name for field in defaulted if getattr(FULL, field.name) == field.default
    } == set()
    assert again(FULL) == FULL


def test_a_former_version_attests_nothing_and_an_empty_digest_is_refused() -> None:
    def read(report: pb.Report) -> Report:
        beat = pb.Beat(peer=pb.PeerId(name="a"), count=1, reports=[report])
        decoded = wire.decode_control(pb.Control(beat=beat).SerializeToString())
        assert isinstance(decoded, Beat)
        return decoded.reports[0]

    key = pb.Key(tokens=1, version=1, digest=b"d")
    assert read(pb.Report(key=key)).content is None
    assert read(pb.Report(key=key, content=pb.Content(key=key, digest=b"c"))).content
    for content in (pb.Content(key=key), pb.Content(digest=b"c")):
        with pytest.raises(PeerError):
            read(pb.Report(key=key, content=content))


def test_a_former_version_says_and_reads_whether_deltas_are_joined() -> None:
    """`takes_joint` was a bool there."""
    former = _beat_of_a_former_version()
    for told, level in ((False, NO_JOINT), (True, JOINT_DELTAS)):
        assert pb.Beat.FromString(former(takes_joint=told).SerializeToString()).takes_joint == level
    for level in (NO_JOINT, JOINT_DELTAS, JOINT_MOMENTS):
        read = former.FromString(pb.Beat(takes_joint=level).SerializeToString())
        assert read.takes_joint == (level >= JOINT_DELTAS)


def _beat_of_a_former_version() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="former.proto", package="former")
    beat = descriptor_pb2.DescriptorProto(name="Beat")
    field = descriptor_pb2.FieldDescriptorProto
    number = pb.Beat.DESCRIPTOR.fields_by_name["takes_joint"].number
    beat.field.add(
        name="takes_joint", number=number, type=field.TYPE_BOOL, label=field.LABEL_OPTIONAL
    )
    file.message_type.append(beat)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("former.Beat"))


@pytest.mark.parametrize("messages", [OFFER, SEAL, STATE], ids=["offer", "seal", "state"])
def test_header_round_trip(messages):
    @given(messages)
    def holds(message):
        assert wire_bulk.message_from(wire_bulk.header_of(message), message.sections) == message

    holds()


@given(HELLO)
def test_hello_round_trip(hello):
    assert wire.decode_hello(wire.encode_hello(hello)) == hello


@given(ID, WANT)
def test_id_and_want_round_trip(peer, want):
    assert wire.decode_id(wire.encode_id(peer)) == peer
    assert wire.decode_want(wire.encode_want(want)) == want


@settings(max_examples=many(100, 300))
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


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -1.0, 1.5])
def test_weights_are_shares(weight):
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
        wire_bulk.message_from(wire_bulk.header_of(seal), {})


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
        wire_bulk.message_from(wire_bulk.header_of(offer), {})


def test_a_peer_is_merged_once():
    peer = pb.Merged(peer=pb.PeerId(name="a", incarnation=1), seq=1)
    lineage = pb.Lineage(key=pb.Key(), merged=[peer, peer])
    with pytest.raises(PeerError, match="merged twice"):
        wire_bulk.message_from(pb.Header(state=pb.State(peer=peer.peer, lineage=lineage)), {})


@pytest.mark.parametrize(("settled", "is_taken"), [(6, True), (7, False), (8, False)])
def test_an_offer_claims_no_work_that_comes_after_it(settled: int, is_taken: bool) -> None:
    """Number 7 carries what its author did after `settled`."""
    own = pb.PeerId(name="a", incarnation=1)
    claim = pb.Merged(peer=own, seq=settled)
    header = pb.Header(offer=pb.Offer(peer=own, seq=7, key=pb.Key(), inherited=claim))
    if is_taken:
        offer = wire_bulk.message_from(header, {})
        assert isinstance(offer, Offer)
        assert offer.claim.settled == settled
    else:
        with pytest.raises(PeerError, match="claims work that comes after it"):
            wire_bulk.message_from(header, {})


def test_the_authors_of_an_anchor_always_fit_into_a_message() -> None:
    """Those of the fullest one that still takes new authors, and of one more round."""
    names = [f"{i:0{NAME_LIMIT}}" for i in range(MOST_AUTHOR_NBYTES // (NAME_LIMIT + 32))]
    merged = {PeerId(name, INCARNATIONS - 1): COUNTER_LIMIT for name in names}
    lineage = Lineage(tokens=1, version=1, digest=b"d" * 16, genesis=b"g" * 16, merged=merged)
    assert lineage.has_room_for(ME)
    newcomers = [
        Entry(PeerId(f"{i:x>{NAME_LIMIT}}", INCARNATIONS - 1), COUNTER_LIMIT, 1, 1)
        for i in range(MOST_LEARNERS)
    ]
    full = lineage.seal(newcomers, b"p")
    assert not full.has_room_for(ME)
    state = State(peer=ME, fragment=0, lineage=full, content=b"c")
    assert wire_bulk.header_of(state).ByteSize() < MESSAGE_LIMIT


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
    many = pb.Beat(peer=peer, roster=[pb.Rumor(peer=peer)] * (RUMOR_LIMIT + 1))
    with pytest.raises(PeerError, match="the message has 4161 rumors; the limit is 4160"):
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
        wire_bulk.message_from(pb.Header(), {})


def test_an_incarnation_that_leaves_no_room_beyond_it_is_refused() -> None:
    data = pb.PeerId(name="a", incarnation=INCARNATIONS).SerializeToString()
    with pytest.raises(PeerError, match="must be below"):
        wire.decode_id(data)


def test_a_life_that_nobody_knows_is_refused() -> None:
    namesake = pb.Namesake(peer=pb.PeerId(name="a"), life="undead")
    hello = pb.Hello(peer=pb.PeerId(name="b"), namesake=namesake)
    with pytest.raises(PeerError, match="'undead'"):
        wire.decode_hello(hello.SerializeToString())


# ── hostile numbers and texts ─────────────────────────────────────────────────────────────────────


def counters(message: Proto) -> list[tuple[Proto, str]]:
    """Every 64-bit counter of a protobuf message that is set, with the part that has it."""
    found: list[tuple[Proto, str]] = []
    for field, value in message.ListFields():
        if field.type in (FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_FIXED64):
            found.append((message, field.name))
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            parts = value if hasattr(value, "extend") else [value]  # 6.30 has no `is_repeated`
            found += [entry for part in parts for entry in counters(part)]
    return found


ENTRY = Entry(ME, 1, 2, 3)
WHOLE = Offer(
    peer=ME,
    fragment=0,
    seq=9,
    tokens=1,
    steps=1,
    genesis=b"",
    key=Key(1, 1, b""),
    due=False,
    follows=1,
    again=(1, 1),
    inherited=Claim(ME, 1),
)
SEALED = Seal(
    sealer=ME,
    fragment=0,
    base=b"",
    key=Key(1, 1, b""),
    members=(ENTRY,),
    weights=(1.0,),
    absent=("b",),
    reason="all_present",
    payload=b"",
    period=1,
)
ANCHOR = State(
    peer=ME,
    fragment=0,
    lineage=Lineage(tokens=1, version=1, digest=b"", genesis=b"", merged={ME: 1}),
    content=b"",
    period=1,
    sections={},
)


def test_no_counter_may_be_beyond_its_limit() -> None:
    """The sum of two counters that pass still fits into 64 bits, so no peer can make a learner's
    own messages impossible to encode."""
    control = pb.Control.FromString(wire.encode_control(FULL))
    headers = [wire_bulk.header_of(message) for message in (WHOLE, SEALED, ANCHOR)]
    seen = 0
    for message, decode in (
        (control, lambda m: wire.decode_control(m.SerializeToString())),
        *((header, lambda m: wire_bulk.message_from(m, {})) for header in headers),
    ):
        decode(message)
        for part, name in counters(message):
            value = getattr(part, name)
            setattr(part, name, COUNTER_LIMIT + 1)
            with pytest.raises(PeerError, match=rf"is {COUNTER_LIMIT + 1}; "):
                decode(message)
            setattr(part, name, value)
            seen += 1
    assert seen > 35


@pytest.mark.parametrize(
    "name",
    ["a\nb", "a\x1b[2J", "a\u202eb", "a\u200bb", "a\x00", "e\u0301"],
    ids=["line", "terminal", "bidi", "invisible", "NUL", "not composed"],
)
def test_names_are_printable(name: str) -> None:
    with pytest.raises(PeerError, match="is not printable text in NFC") as refused:
        wire.decode_id(wire.encode_id(PeerId(name, 1)))
    assert str(refused.value).isascii()


def hello(**facts: object) -> Hello:
    facts = {"model": (), "policy": (), "address": "", **facts}
    return Hello(peer=ME, **facts)  # type: ignore[arg-type]


def test_what_a_peer_says_for_people_is_shown_escaped() -> None:
    said = "wrong password\nLOG ERROR run: \x1b]0;owned\x07"
    got = wire.decode_hello(wire.encode_hello(hello(refusal=said, policy=(("a\n", "b\n"),))))
    assert got.refusal == r"wrong password\nLOG ERROR run: \x1b]0;owned\x07"
    assert got.policy == ((r"a\n", r"b\n"),)


def test_a_long_refusal_is_clipped_where_it_is_made() -> None:
    got = wire.decode_hello(wire.encode_hello(hello(refusal="x" + "é" * TEXT_LIMIT)))
    assert got.refusal == "x" + "é" * (TEXT_LIMIT // 2 - 1)


@pytest.mark.parametrize("where", ["model", "policy"])
def test_what_a_peer_says_for_people_is_short(where: str) -> None:
    for size in (TEXT_LIMIT, TEXT_LIMIT + 1):
        text = "x" * size
        said = hello(**{where: (("field", text),)})
        if size == TEXT_LIMIT:
            assert wire.decode_hello(wire.encode_hello(said)) == said
        else:
            with pytest.raises(PeerError, match=r"is 1025 bytes; the limit is 1024"):
                wire.decode_hello(wire.encode_hello(said))


def test_the_entries_of_one_beat_are_bounded_together():
    """Each costs microseconds on the loop, and a peer may send beat after beat."""
    peer = pb.PeerId(name="a")
    held = [pb.Merged(peer=peer, seq=1)] * (HELD_LIMIT // 2 + 1)
    reports = [pb.Report(key=pb.Key(), held=held)] * 2
    for beat, fault in (
        (pb.Beat(peer=peer, reports=reports), f"{HELD_LIMIT + 2} offers held; the limit is"),
        (pb.Beat(peer=peer, reports=[pb.Report(key=pb.Key())] * (REPORT_LIMIT + 1)), "reports"),
        (pb.Beat(peer=peer, turned_away=[peer] * (AWAY_LIMIT + 1)), "processes"),
    ):
        with pytest.raises(PeerError, match=fault):
            wire.decode_control(pb.Control(beat=beat).SerializeToString())
    assert len(wire.decode_control(control_of(reports[:1])).reports[0].held) == len(held)


def control_of(reports):
    return pb.Control(beat=pb.Beat(peer=pb.PeerId(name="a"), reports=reports)).SerializeToString()


GENESES = {
    b"d" * 17: "is damaged",
    b"d" * 16 + b"\0\0\0\0a": "tells of no rollback",
    b"d" * 16 + b"\0\0\0\1": "tells of no rollback",
    b"d" * 16 + b"\0\0\0\1\xff": "is damaged",
    b"d" * 16 + b"\0\0\0\1a\n": "not printable",
    b"d" * 16 + b"\0\0\0\1" + b"a" * 257: "the limit is 276",
}


@pytest.mark.parametrize("genesis", GENESES)
def test_a_genesis_that_nobody_makes_is_refused(genesis: bytes) -> None:
    """It decides which model is the greater one, and has a name that is shown to people."""
    peer = pb.PeerId(name="a", incarnation=1)
    beat = pb.Beat(peer=peer, genesis=genesis)
    with pytest.raises(PeerError, match=GENESES[genesis]):
        wire.decode_control(pb.Control(beat=beat).SerializeToString())


def test_the_genesis_of_a_rollback_survives_the_wire() -> None:
    genesis = Rollback(7, "a" * 256).genesis(b"parts")
    beat = replace(FULL, genesis=genesis)
    assert again(beat).genesis == genesis


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda offer: offer.others.add().CopyFrom(offer.others[0]), "two offers of one learner"),
        (lambda offer: offer.others[0].peer.CopyFrom(offer.peer), "two offers of one learner"),
        (lambda offer: offer.others[0].others.add(), "has others"),
        (lambda offer: setattr(offer.others[0], "fragment", 7), "of several fragments"),
    ],
    ids=["twice", "the sender's own", "nested", "another fragment"],
)
def test_a_joint_offer_holds_one_offer_of_each_learner(change, why):
    key = Key(0, 0, b"")
    one = {"fragment": 0, "seq": 1, "tokens": 1, "steps": 1, "genesis": b"g", "key": key}
    other = Offer(peer=PeerId("b", 1), due=True, **one)
    header = wire_bulk.header_of(Offer(peer=ME, due=True, others=(other,), **one))
    assert wire_bulk.message_from(header, {}).others == (other,)
    change(header.offer)
    with pytest.raises(PeerError, match=why):
        wire_bulk.message_from(header, {})
