"""Surveyors that keep to no rule, at the door of a real learner that trains: each is held. R is
memory, streams and connections."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable

import grpc
import pytest

from mend_optim.protocol.survey_words import CHUNK_BYTES, Turn
from mend_optim.protocol.surveyed import MOST_BYTES
from mend_optim.transport._pb import peer_pb2 as pb
from mend_optim.transport.surveying import TURN_ASKS, TURN_BYTES, TURN_S
from mend_optim.transport.wire_survey import decode_reply
from tests.hostile.attacker import REPLY_S, Attacker, Call
from tests.hostile.ground import Ground, memory_mb

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
INVALID = grpc.StatusCode.INVALID_ARGUMENT
CHUNK = pb.Ask(chunk=bytes(CHUNK_BYTES))
#: Turns that are asked for until one is had.
ATTEMPTS = 50


def held(attack: Callable[[Ground, Attacker], None]) -> Callable[[Ground], None]:
    """Run an attack by a surveyor that has not even said hello; both learners must hold."""

    def run(ground: Ground) -> None:
        with ground.held(), ground.attacker(f"surveyor {attack.__name__}") as mallory:
            attack(ground, mallory)

    run.__name__ = attack.__name__
    run.__doc__ = attack.__doc__
    return run


def surveyed(ground: Ground, mallory: Attacker, *asks: pb.Ask) -> Call:
    """A survey that had its turn, and in which all of this was asked."""
    for _ in range(ATTEMPTS):
        call = mallory.open("Survey", *(ask.SerializeToString() for ask in asks))
        call.finish()
        assert call.ended()
        first = decode_reply(call.answers[0])
        assert isinstance(first, Turn)
        if not first.wait_s:
            return call
        ground.a.await_steps(5)
    raise AssertionError("there was no turn")


@held
def test_r18_nobody_moves_more_than_a_survey_may(ground: Ground, mallory: Attacker) -> None:
    greedy = [
        ("the limit is", [pb.Ask(send=MOST_BYTES + 1)]),
        ("nobody has announced", [CHUNK]),
        ("that were announced", [pb.Ask(take=1), CHUNK]),
        ("the limit is", [pb.Ask(take=MOST_BYTES), pb.Ask(chunk=bytes(CHUNK_BYTES + 1))]),
        ("in the middle of a transfer", [pb.Ask(take=MOST_BYTES), CHUNK, pb.Ask(clock=True)]),
        ("questions", [pb.Ask(clock=True)] * (TURN_ASKS + 1)),
    ]
    for words, asks in greedy:
        call = surveyed(ground, mallory, *asks)
        assert call.code is INVALID, (words, call.details)
        assert words in call.details
    junk = mallory.open("Survey", b"\xff" * 100)
    assert junk.ended()


@held
def test_r18b_all_transfers_of_a_survey_count_together(ground: Ground, mallory: Attacker) -> None:
    before = memory_mb(ground.a)
    fits = TURN_BYTES // MOST_BYTES
    down = surveyed(ground, mallory, *[pb.Ask(send=MOST_BYTES)] * (fits + 1))
    assert down.code is INVALID
    assert "in each direction" in down.details
    assert sum(len(answer) for answer in down.answers) < TURN_BYTES * 1.01
    transfer = [pb.Ask(take=MOST_BYTES), *[CHUNK] * (MOST_BYTES // CHUNK_BYTES)]
    up = surveyed(ground, mallory, *transfer * (fits + 1))
    assert up.code is INVALID
    assert "in each direction" in up.details
    assert [decode_reply(answer) for answer in up.answers].count(TAKEN) == fits
    with ground.lasts():
        assert memory_mb(ground.a) - before < 60


TAKEN = decode_reply(pb.Reply(taken=MOST_BYTES).SerializeToString())


@held
def test_r19_a_learner_dials_the_surveyor_alone_once_and_says_nothing(
    ground: Ground, mallory: Attacker
) -> None:
    """A later version may add any fields."""
    with socket.create_server(("127.0.0.1", 0)) as own:
        port = own.getsockname()[1]
        with socket.create_server(("127.0.0.2", port)) as third:
            asked = pb.Ask.FromString(
                pb.Ask(dial=port).SerializeToString() + b"\x7a\x09127.0.0.2"  # of field 15
            )
            call = surveyed(ground, mallory, asked, pb.Ask(dial=port))
            third.setblocking(False)
            with pytest.raises(BlockingIOError):
                third.accept()
        own.settimeout(REPLY_S)
        came, _ = own.accept()
        with came:
            came.settimeout(REPLY_S)
            assert heard(came) == b""
        own.setblocking(False)
        with pytest.raises(BlockingIOError):
            own.accept()
    assert call.code is INVALID
    assert "dialled once" in call.details
    assert pb.Reply.FromString(call.answers[-1]).dialled == "somebody else"


def heard(connection: socket.socket) -> bytes:
    try:
        return connection.recv(100)
    except ConnectionResetError:
        return b""


@held
def test_r19b_services_of_the_surveyors_machine_are_not_dialled(
    ground: Ground, mallory: Attacker
) -> None:
    for port in (22, 1023, 65536):
        call = surveyed(ground, mallory, pb.Ask(dial=port))
        assert call.code is INVALID
        assert f"port {port} is not from 1024 to 65535" in call.details


@held
def test_r20_of_a_flood_of_surveyors_one_has_its_turn(ground: Ground, mallory: Attacker) -> None:
    """Those that must wait are told so at once, and hold nothing."""
    surveyed(ground, mallory)
    before = memory_mb(ground.a)
    calls = [
        mallory.open("Survey", pb.Ask(send=MOST_BYTES).SerializeToString()) for _ in range(300)
    ]
    with ground.lasts():
        pass
    for call in calls:
        call.finish()
    assert all(call.ended() for call in calls)
    firsts = [decode_reply(call.answers[0]) for call in calls if call.answers]
    turns = [first for first in firsts if isinstance(first, Turn) and not first.wait_s]
    # They were opened within a few rests of one another; gRPC refuses some of so many itself.
    assert len(turns) <= 5
    assert len(firsts) > len(turns)
    assert memory_mb(ground.a) - before < 100


@held
def test_r21_a_surveyor_that_stalls_has_an_end(ground: Ground, mallory: Attacker) -> None:
    for _ in range(ATTEMPTS):
        call = mallory.open("Survey", pb.Ask(take=MOST_BYTES).SerializeToString())
        if not call.ended(0.5):
            break
        ground.a.await_steps(5)
    with ground.lasts():
        pass
    assert call.ended(TURN_S + REPLY_S)
    assert call.code is INVALID
    assert "nothing moved for" in call.details
    late = mallory.open("Survey")
    late.finish()
    assert late.ended()
    (told,) = late.answers
    assert pb.Reply.FromString(told).turn.wait_s > 0
