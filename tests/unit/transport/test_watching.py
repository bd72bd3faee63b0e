"""Looks at a learner: their cost, and their form on the wire."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext, suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.errors import PeerError
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.refusals import Refusals
from mend_optim.protocol.sight import (
    REPORTED_LIMIT,
    REPORTED_NAME,
    ROUNDS_SHOWN,
    SeenPeer,
    SeenRound,
    Sight,
)
from mend_optim.transport._pb import peer_pb2 as pb
from mend_optim.transport.connection import CALLER
from mend_optim.transport.first_messages import FirstMessages
from mend_optim.transport.limits import check
from mend_optim.transport.receiving import BusyError
from mend_optim.transport.security.channels import BARE, Plaintext
from mend_optim.transport.watching import FRESH_S, MOST_LOOKS, WatchServer
from mend_optim.transport.wire import encode_id
from mend_optim.transport.wire_sight import check_look, decode_sight, encode_look, encode_sight

PEER = SeenPeer(name="b", incarnation=4, address="", state="alive", step=1, tokens=2)
SIGHT = Sight(
    peer=PeerId("a", 3),
    address="a:1",
    joined=True,
    step=1,
    tokens=2,
    position=3,
    cluster_step=4,
    cluster_tokens=5,
    seconds_per_step=0.5,
    sync_every=6,
    latency=7,
    rounds=8,
    quiet_s=1.25,
    unmerged_tokens=9,
    dropped_tokens=10,
    superseded_tokens=11,
    bytes_sent=12,
    bytes_received=13,
    codec="int8",
    zone="east",
    roster=(
        replace(PEER, name="b", slow=1.5),
        replace(PEER, name="c", finishing=True),
        replace(PEER, name="d", zone="west"),
        replace(PEER, name="e", declines=True, missed=(0, 3)),
    ),
    last=(
        SeenRound(
            fragment=1,
            version=2,
            tokens=3,
            reason="all_present",
            sealer="b",
            members=("a", "b"),
            absent=("c",),
        ),
    ),
    reported=(("loss", -0.5),),
)


def test_a_sight_survives_the_wire() -> None:
    assert decode_sight(encode_sight(SIGHT)) == SIGHT
    check_look(encode_look())


def test_another_version_is_refused_on_both_sides() -> None:
    with pytest.raises(PeerError, match="version 2"):
        check_look(pb.Look(version=2).SerializeToString())
    told = pb.Sight.FromString(encode_sight(SIGHT))
    told.version = 2
    with pytest.raises(PeerError, match="version 2"):
        decode_sight(told.SerializeToString())


@given(st.binary(max_size=200))
def test_bytes_are_a_sight_or_a_fault_of_the_peer(data: bytes) -> None:
    for decode in (decode_sight, check_look):
        with suppress(PeerError):
            decode(data)


def test_no_part_of_a_sight_is_without_bound() -> None:
    for change in (
        {"reported": [pb.Reported(name="x")] * (REPORTED_LIMIT + 1)},
        {"reported": [pb.Reported(name="x" * (REPORTED_NAME + 1))]},
        {"last": [pb.SeenRound()] * (ROUNDS_SHOWN + 1)},
        {"codec": "\x1b"},
        {"zone": "\x1b"},
        {"roster": [pb.Seen(peer=pb.PeerId(name="e"), state="alive", zone="\x1b")]},
        {"step": 2**63},
    ):
        told = pb.Sight.FromString(encode_sight(SIGHT))
        told.MergeFrom(pb.Sight(**change))
        with pytest.raises(PeerError):
            decode_sight(told.SerializeToString())


def test_however_many_watch_the_learner_is_asked_as_often() -> None:
    asked: list[int] = []

    def sight() -> Sight:
        asked.append(1)
        return SIGHT

    server = WatchServer(sight, BARE, FirstMessages(1.0), Refusals())
    for i in range(1000):
        within = nullcontext() if i < MOST_LOOKS else pytest.raises(BusyError, match="too many")
        with within:
            assert server.answer(10.0 + FRESH_S * i / 100_000)
    assert len(asked) == 1
    assert server.answer(10.0 + FRESH_S)
    assert len(asked) == 2


class Refused(Exception):
    """The RPC was ended with a status."""


class Call:
    """The server's side of one look."""

    def __init__(self, caller: PeerId, asked: bytes) -> None:
        self._caller = caller
        self._asked = asked
        self.answer = b""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:40312"

    async def read(self) -> bytes:
        return self._asked

    async def write(self, answer: bytes) -> None:
        self.answer = answer

    def invocation_metadata(self) -> tuple[tuple[str, bytes], ...]:
        return ((CALLER, encode_id(self._caller)),)

    async def abort(self, code: object, reason: str) -> None:
        raise Refused(reason)


class Suspicious(Plaintext):
    """Knows that nobody is called "mallory"."""

    def check_caller(self, context: object, name: str) -> None:
        check(name != "mallory", f"{name} is a stranger")


@pytest.mark.parametrize(
    ("name", "asked", "words"),
    [
        ("mallory", encode_look(), "mallory is a stranger"),
        ("b", pb.Look(version=2).SerializeToString(), "version 2"),
        ("b", b"\xff", "not a Look"),
    ],
)
def test_a_look_that_is_not_to_be_answered_is_refused(name: str, asked: bytes, words: str) -> None:
    refusals = Refusals()
    server = WatchServer(lambda: SIGHT, Suspicious(""), FirstMessages(1.0), refusals)
    with pytest.raises(Refused, match=words):
        asyncio.run(server.serve(None, Call(PeerId(name, 1), asked)))
    assert len(refusals.counted()) == 1
    call = Call(PeerId("b", 1), encode_look())
    asyncio.run(server.serve(None, call))
    assert decode_sight(call.answer) == SIGHT
