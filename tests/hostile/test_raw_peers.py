"""More rows of the audit on two real learners: what is below the messages, HTTP/2 itself, and
well-formed messages whose fields are anything."""

from __future__ import annotations

import sys
from random import Random
from typing import Any

import grpc
import pytest

from mend_optim.transport._pb import peer_pb2 as pb
from tests.fuzz.mutator import change
from tests.hostile.attacker import Attacker, header
from tests.hostile.ground import PREFACE, Ground, connections, memory_mb
from tests.hostile.test_attacks import FOREVER, held

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
_HEADERS, _PING, _CONTINUATION = 1, 6, 9


def frame(kind: int, stream: int, payload: bytes) -> bytes:
    """A frame of HTTP/2 without flags: headers that it begins do not end."""
    start = len(payload).to_bytes(3, "big") + bytes([kind, 0])
    return start + stream.to_bytes(4, "big") + payload


@held
def test_r11_pings_end_their_connection(ground: Ground, mallory: Attacker) -> None:
    pings = frame(_PING, 0, bytes(8)) * 5000
    with connections(ground.a.address, 20, PREFACE + pings), ground.lasts():
        pass


@held
def test_r13_headers_without_end_are_kept_by_nobody(ground: Ground, mallory: Attacker) -> None:
    before = memory_mb(ground.a)
    more = frame(_CONTINUATION, 1, bytes(1 << 14)) * 64
    opening = PREFACE + frame(_HEADERS, 1, b"") + more
    with connections(ground.a.address, 4, opening), ground.lasts():
        assert memory_mb(ground.a) - before < 60


@held
def test_i1_a_hello_with_nothing_right_learns_neither_model_nor_settings(
    ground: Ground, mallory: Attacker
) -> None:
    wrong = pb.Hello(peer=pb.PeerId(name="i1", incarnation=1), protocol=ground.hello.protocol)
    answer = mallory._hello(wrong)
    assert answer.refusal
    assert (len(answer.model), len(answer.policy)) == (0, 0)
    assert ground.hello.model[-1].value not in answer.refusal


@held
def test_l9_nobody_makes_another_look_silent(ground: Ground, mallory: Attacker) -> None:
    """With the greatest count of beats, no later one of that peer would be news."""
    b = next(peer for peer in ground.a.report()["roster"] if peer["name"] == "b")
    id = pb.PeerId(name="b", incarnation=b["incarnation"])
    mallory.control(mallory.beat(roster=[pb.Rumor(peer=id, count=FOREVER)]))
    with ground.lasts():
        pass
    (after,) = [peer for peer in ground.a.report()["roster"] if peer["name"] == "b"]
    assert after["state"] == "alive"


@held
def test_l12_well_formed_messages_of_any_content_raise_nowhere(
    ground: Ground, mallory: Attacker
) -> None:
    chance = Random(12)
    offer = pb.Offer(peer=mallory.me, seq=1, tokens=1, steps=1, key=pb.Key(), due=True)
    offer.genesis = ground.genesis
    refused = 0
    for _ in range(60):
        say = [mutated(mallory.beat(ping=1), chance) for _ in range(4)]
        stream = mallory.control(*say)
        kind = chance.choice(("Exchange", "PassOn", "Push", "Pull"))
        bulk = mallory.open(kind, header([("delta", 68)], offer=mutated(offer, chance)))
        bulk.finish()
        stream.finish()
        refused += bulk.ended() and bulk.code is not grpc.StatusCode.OK
    assert refused
    with ground.lasts():
        pass


def mutated(message: Any, chance: Random) -> Any:
    """The message with a few fields changed, but not its sender, for whom others would be taken."""
    new = type(message)()
    new.CopyFrom(message)
    for _ in range(chance.randint(1, 6)):
        change(new, chance)
    new.peer.CopyFrom(message.peer)
    return new
