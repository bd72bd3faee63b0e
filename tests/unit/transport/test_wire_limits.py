"""Every field that a peer fills in has a limit: each is put beyond it, in each message.

A field that is new in `peer.proto` must be in an example here, so none can be forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message as Proto

from mend_optim.errors import PeerError
from mend_optim.protocol.peer_limits import COUNT_LIMIT, COUNTER_LIMIT, MOST_LEARNERS
from mend_optim.protocol.proofs import PROOF_LIMIT
from mend_optim.protocol.survey_words import CHUNK_BYTES, TOKEN_BYTES
from mend_optim.transport import wire, wire_bulk, wire_sight, wire_survey
from mend_optim.transport._pb import peer_pb2 as pb
from mend_optim.transport.limits import DIGEST_LIMIT, TEXT_LIMIT

PEER = pb.PeerId(name="a", incarnation=1)
KEY = pb.Key(tokens=1, version=1, digest=b"d")
PAIR = pb.Merged(peer=PEER, seq=1)

BEAT = pb.Beat(
    peer=PEER,
    address="a:1",
    count=1,
    step=1,
    tokens=1,
    seconds_per_step=0.5,
    training=True,
    genesis=b"g",
    reports=[
        pb.Report(
            key=KEY,
            held=[PAIR],
            group=b"g",
            content=pb.Content(key=KEY, digest=b"c"),
            latency=1,
        )
    ],
    roster=[
        pb.Rumor(
            peer=PEER,
            address="a:1",
            count=1,
            left=True,
            finishes=True,
            ready=b"r",
            tokens=1,
            proof=b"p",
            reached=True,
            declines=True,
            hops=1,
        )
    ],
    ping=1,
    pong=1,
    position=1,
    paces=[pb.Pace(cause="link", now=0.5, before=0.5, spread=0.5, run=1)],
    latency=1,
    finishes=True,
    ready=b"r",
    turned_away=[PEER],
    ended=b"e",
    zone="z",
    takes_joint=2**32 - 1,
    declines=True,
    rests=True,
)
HELLO = pb.Hello(
    peer=PEER,
    address="a:1",
    model=[pb.Field(name="n", value="v")],
    policy=[pb.Field(name="n", value="v")],
    protocol=1,
    refusal="r",
    namesake=pb.Namesake(peer=PEER, life="alive"),
)
OFFER = pb.Offer(
    peer=PEER,
    fragment=1,
    seq=2,
    tokens=1,
    steps=1,
    genesis=b"g",
    key=KEY,
    due=True,
    inherited=PAIR,
    follows=1,
    again_tokens=1,
    again_steps=1,
    rate=0.5,
)
OTHER = pb.Offer()
OTHER.CopyFrom(OFFER)
OTHER.peer.name = "b"
OFFER.others.append(OTHER)
SEAL = pb.Seal(
    sealer=PEER,
    fragment=1,
    base=b"b",
    key=KEY,
    members=[
        pb.Member(peer=PEER, seq=1, tokens=1, steps=1, weight=0.5, again_tokens=1, again_steps=1)
    ],
    absent=["b"],
    reason="r",
    payload=b"p",
    period=1,
)
STATE = pb.State(
    peer=PEER,
    fragment=1,
    lineage=pb.Lineage(key=KEY, genesis=b"g", merged=[PAIR]),
    content=b"c",
    period=1,
)
SIGHT = pb.Sight(
    version=wire_sight.VERSION,
    peer=PEER,
    address="a:1",
    joined=True,
    step=1,
    tokens=1,
    position=1,
    cluster_step=1,
    cluster_tokens=1,
    seconds_per_step=0.5,
    sync_every=1,
    latency=1,
    rounds=1,
    unmerged_tokens=1,
    dropped_tokens=1,
    superseded_tokens=1,
    bytes_sent=1,
    bytes_received=1,
    codec="c",
    roster=[
        pb.Seen(
            peer=PEER,
            address="a:1",
            state="alive",
            step=1,
            tokens=1,
            slow=0.5,
            finishing=True,
            zone="z",
            declines=True,
            missed=[1],
        )
    ],
    last=[
        pb.SeenRound(
            fragment=1, version=1, tokens=1, reason="r", sealer="a", members=["a"], absent=["b"]
        )
    ],
    reported=[pb.Reported(name="loss", value=0.5)],
    quiet_s=0.5,
    zone="z",
)


@dataclass(frozen=True)
class Example:
    """A message with every field of it set, and its decoder."""

    name: str
    message: Proto
    decode: Callable[[Proto], object]


def serialized(decode: Callable[[bytes], object]) -> Callable[[Proto], object]:
    return lambda message: decode(message.SerializeToString())


def bare(message: Proto) -> object:
    assert isinstance(message, pb.Header)
    return wire_bulk.message_from(message, {})


CONTROL = serialized(wire.decode_control)
ASK, REPLY = serialized(wire_survey.decode_ask), serialized(wire_survey.decode_reply)
EXAMPLES = (
    Example("hello", HELLO, serialized(wire.decode_hello)),
    Example("beat", pb.Control(beat=BEAT), CONTROL),
    Example("goodbye", pb.Control(goodbye=pb.Goodbye(peer=PEER, proof=b"p")), CONTROL),
    Example("call", pb.Control(call=pb.Call(peer=PEER, fragment=1, key=KEY)), CONTROL),
    Example("want", pb.Control(want=pb.Want(peer=PEER, fragment=1, have=b"h")), CONTROL),
    Example("offer", pb.Header(offer=OFFER), bare),
    Example("seal", pb.Header(seal=SEAL), bare),
    Example("state", pb.Header(state=STATE), bare),
    Example("sight", SIGHT, serialized(wire_sight.decode_sight)),
    Example("send", pb.Ask(send=1), ASK),
    Example("take", pb.Ask(take=1), ASK),
    Example("dial", pb.Ask(dial=wire_survey.LEAST_PORT), ASK),
    Example("chunk up", pb.Ask(chunk=b"c"), ASK),
    Example("chunk down", pb.Reply(chunk=b"c"), REPLY),
    Example("turn", pb.Reply(turn=pb.Turn(wait_s=0.5, seen_ip="10.0.0.5")), REPLY),
    Example("reading", pb.Reply(clock=pb.Reading(received_ns=1, answered_ns=1)), REPLY),
    Example("token", pb.Reply(token=bytes(TOKEN_BYTES)), REPLY),
    Example("dialled", pb.Reply(dialled="reached"), REPLY),
)
#: Kinds of numbers that are compared with nothing: the fragment's range is checked where the run
#: knows it, and a version by its value.
SMALL = (FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_BOOL)
#: Texts for people. Line breaks and terminal codes in them are shown escaped.
FOR_PEOPLE = ("Hello.refusal", "Field.name", "Field.value")
#: A number of a script may be any number, and a surveyor knows how many bytes it has sent.
FREE = ("Reported.value", "Reply.taken")
BYTES = {"proof": PROOF_LIMIT + 1, "chunk": CHUNK_BYTES + 1}


def place_of(field: FieldDescriptor) -> str:
    return f"{field.containing_type.name}.{field.name}"


def owners(message: Proto) -> Iterator[tuple[Proto, FieldDescriptor]]:
    """Every field that is set in a message and in its parts, with the part that has it."""
    for field, value in message.ListFields():
        yield message, field
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for part in value if hasattr(value, "extend") else [value]:
                yield from owners(part)


def too_many(values: Any) -> Callable[[], None]:
    """Put a list beyond the greatest limit of any."""
    return lambda: values.extend([values[0]] * COUNT_LIMIT)


def faults(part: Any, field: FieldDescriptor) -> Iterator[Callable[[], None]]:
    """Ways to put a field beyond its limits."""
    value = getattr(part, field.name)
    put = partial(setattr, part, field.name)
    if hasattr(value, "extend"):
        yield too_many(value)
        if field.type == FieldDescriptor.TYPE_STRING:
            for text in ("x" * (TEXT_LIMIT + 1), "a\n"):
                yield partial(value.__setitem__, 0, text)
    elif field.type == FieldDescriptor.TYPE_STRING:
        yield partial(put, "x" * (TEXT_LIMIT + 1))
        if place_of(field) not in FOR_PEOPLE:
            yield partial(put, "a\n")
    elif field.type == FieldDescriptor.TYPE_BYTES:
        yield partial(put, bytes(BYTES.get(field.name, DIGEST_LIMIT + 1)))
    elif field.type == FieldDescriptor.TYPE_DOUBLE:
        for number in (float("nan"), float("inf"), -0.5):
            yield partial(put, number)
    elif field.type in (FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_FIXED64):
        yield partial(put, COUNTER_LIMIT * 3 if field.name == "incarnation" else COUNTER_LIMIT + 1)


def is_refused(decode: Callable[[Proto], object], message: Proto) -> bool:
    try:
        decode(message)
    except PeerError:
        return True
    return False


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_no_field_is_taken_beyond_its_limit(example: Example) -> None:
    assert not is_refused(example.decode, example.message)
    taken, tried = [], 0
    for i, (owner, field) in enumerate(owners(example.message)):
        if place_of(field) in FREE:
            continue
        for k, _ in enumerate(faults(owner, field)):
            broken = type(example.message).FromString(example.message.SerializeToString())
            there = list(owners(broken))[i]
            list(faults(*there))[k]()
            tried += 1
            if not is_refused(example.decode, broken):
                taken.append((place_of(field), k))
    assert taken == []
    assert tried or example.name == "dial"


def fields_of(kind: Descriptor) -> Iterator[FieldDescriptor]:
    """Every field of a message and of its parts. An offer may hold offers."""
    for field in kind.fields:
        yield field
        if field.type == FieldDescriptor.TYPE_MESSAGE and field.message_type != kind:
            yield from fields_of(field.message_type)


def test_every_field_is_in_an_example() -> None:
    """A field that is new must be here. Otherwise nothing would notice that it has no limit."""
    known = {place_of(field) for e in EXAMPLES for _, field in owners(e.message)}
    kinds = {e.message.DESCRIPTOR for e in EXAMPLES}
    there = {place_of(field) for kind in kinds for field in fields_of(kind)}
    elsewhere = {"Header.sections", "Section.name", "Section.codec", "Section.numel"}
    assert there - known == {*elsewhere, "Section.nbytes", "Ask.clock", "Reply.taken"}


@pytest.mark.parametrize("count", [COUNT_LIMIT, COUNT_LIMIT + 1])
def test_an_anchor_lists_no_more_authors_than_the_limit(count: int) -> None:
    authors = [pb.Merged(peer=pb.PeerId(name=f"{i:x}", incarnation=1)) for i in range(count)]
    state = pb.State(peer=PEER, lineage=pb.Lineage(key=KEY, merged=authors))
    assert is_refused(bare, pb.Header(state=state)) == (count > COUNT_LIMIT)


@pytest.mark.parametrize("count", [MOST_LEARNERS, MOST_LEARNERS + 1])
def test_a_seal_tells_of_no_more_learners_than_there_may_be(count: int) -> None:
    names = [f"{i:x}" for i in range(count)]
    member = pb.Member(peer=PEER, seq=1, tokens=1, steps=1, weight=1.0)
    for lists in ({"absent": names}, {"members": [member] * count}):
        seal = pb.Seal(sealer=PEER, base=bytes(32), key=KEY, payload=bytes(32), **lists)
        assert is_refused(bare, pb.Header(seal=seal)) == (count > MOST_LEARNERS)
