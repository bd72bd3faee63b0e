"""The surveyor's side, at learners that are as they should be and at others. No socket is opened
but the surveyor's own."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest

from mend_optim.errors import PeerError
from mend_optim.protocol.survey_words import (
    CHUNK_BYTES,
    TOKEN_BYTES,
    Ask,
    Chunk,
    Dialled,
    DialPort,
    ReadClock,
    Reading,
    Reply,
    SendBytes,
    TakeBytes,
    Taken,
    Token,
    Turn,
)
from mend_optim.protocol.surveyed import FIRST_BYTES, GROWTH, MOST_BYTES, DialBack, Surveyed
from mend_optim.transport import survey as surveyor
from mend_optim.transport.connection import Connection
from mend_optim.transport.survey import READINGS, Wish, survey
from mend_optim.transport.surveying import sizes_of
from mend_optim.transport.token_port import listen
from mend_optim.transport.wire_survey import decode_ask, encode_reply

AHEAD_NS = 5 * 10**9
ALL = Wish()
Answering = Callable[[Ask], Iterable[Reply]]


def honest(ask: Ask) -> Iterable[Reply]:
    """The replies of a learner whose clock is 5 s ahead."""
    now = time.time_ns() + AHEAD_NS
    match ask:
        case ReadClock():
            return [Reading(now, now)]
        case SendBytes():
            return [Chunk(bytes(size)) for size in sizes_of(ask.nbytes)]
        case TakeBytes():
            return [Taken(ask.nbytes)]
        case DialPort():
            return [Token(bytes(TOKEN_BYTES)), Dialled(DialBack.ANSWER)]
        case Chunk():
            return []


class Learner:
    """A learner at the other end of a connection, which has no network."""

    def __init__(self, answering: Answering, *turns: Turn) -> None:
        self.answering = answering
        self.turns = deque(turns or [Turn(0.0, "10.0.0.4")])
        self.asked: list[Ask] = []
        self.replies: deque[Reply] = deque()

    def stream(self, method: str) -> Learner:
        assert method == "Survey"
        self.replies = deque([self.turns.popleft()])
        return self

    def __enter__(self) -> Learner:
        return self

    def __exit__(self, *_: object) -> None:
        self.replies.clear()

    async def read(self, patient: bool = False) -> bytes | None:
        await asyncio.sleep(0)
        return encode_reply(self.replies.popleft()) if self.replies else None

    async def write(self, frame: bytes) -> None:
        self.asked.append(decode_ask(frame))
        self.replies.extend(self.answering(self.asked[-1]))

    async def finish(self) -> None:
        """Nothing else is asked."""


def found(learner: Learner, wish: Wish = ALL, patience_s: float = 5.0) -> Surveyed:
    return asyncio.run(survey(cast("Connection", learner), wish, patience_s))


def asked(learner: Learner, kind: type[Any]) -> list[Any]:
    return [ask for ask in learner.asked if isinstance(ask, kind)]


def test_all_is_found_out_of_an_honest_learner() -> None:
    learner = Learner(honest)
    told = found(learner)
    assert told.fault == ""
    assert told.seen_ip == "10.0.0.4"
    assert told.clock
    assert abs(told.clock.offset_ns - AHEAD_NS) <= told.clock.bound_ns
    assert len(asked(learner, ReadClock)) == READINGS
    sizes = [ask.nbytes for ask in asked(learner, SendBytes)]
    assert sizes == [FIRST_BYTES * GROWTH**i for i in range(len(sizes))]
    assert told.down
    assert told.up
    assert told.down.nbytes == sizes[-1] <= MOST_BYTES
    sent = sum(len(ask.data) for ask in asked(learner, Chunk))
    assert sent == sum(ask.nbytes for ask in asked(learner, TakeBytes))
    assert asked(learner, DialPort) == []


@pytest.mark.parametrize(
    ("ips", "outcome"), [(None, DialBack.ANSWER), (["10.0.0.4"], DialBack.ANSWER), ([], None)]
)
def test_it_asks_to_be_dialled_where_it_is_seen_alone(
    ips: list[str] | None, outcome: DialBack | None
) -> None:
    learner = Learner(honest)
    with listen("--listen", "127.0.0.1:0") as listening:
        told = found(learner, Wish(rates=False, listening=listening, port=29600, ips=ips))
    assert told.dialled is outcome
    assert asked(learner, DialPort) == ([DialPort(29600)] if outcome else [])
    assert asked(learner, SendBytes) == asked(learner, TakeBytes) == []


def test_it_waits_for_its_turn_if_it_has_the_patience() -> None:
    busy, free = Turn(0.01, "10.0.0.4"), Turn(0.0, "10.0.0.4")
    assert found(Learner(honest, busy, free)).clock
    told = found(Learner(honest, Turn(1.5, "10.0.0.4"), free), patience_s=1.0)
    assert (told.wait_s, told.clock) == (1.5, None)
    # Not for ever, whatever the learner says.
    told = found(Learner(honest, *[busy] * 10))
    assert (told.wait_s, told.clock) == (0.01, None)


def but(kind: type[Any], *replies: Reply) -> Answering:
    """A learner that answers this to one kind of question."""
    return lambda ask: replies if isinstance(ask, kind) else honest(ask)


@pytest.mark.parametrize(
    ("answering", "words"),
    [
        (but(ReadClock), "ended the survey"),
        (but(ReadClock, Taken(1)), "Taken came, not Reading"),
        (but(TakeBytes, Taken(1)), "1 bytes arrived of"),
        (but(SendBytes, Chunk(bytes(CHUNK_BYTES))), "more than the 16384 bytes came"),
    ],
)
def test_a_learner_that_answers_wrongly_ends_the_survey(answering: Answering, words: str) -> None:
    assert words in found(Learner(answering)).fault


def test_a_learner_that_drips_ends_the_survey_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time, and there is no end of them."""
    monkeypatch.setattr(surveyor, "TURN_S", 0.1)

    class Dripping(Learner):
        drops = 0

        async def read(self, patient: bool = False) -> bytes | None:
            if asked(self, SendBytes):
                self.drops += 1
                # In 0.3 s there is time for 30.
                assert self.drops < 200
                await asyncio.sleep(0.01)
                return encode_reply(Chunk(b"x"))
            return await super().read()

    told = found(Dripping(honest), patience_s=0.2)
    assert "nothing moved for" in told.fault
    assert told.up
    assert told.down is None


def test_one_that_knows_no_surveys_is_too_old() -> None:
    class Old(Learner):
        async def read(self, patient: bool = False) -> bytes | None:
            raise PeerError("UNIMPLEMENTED: Method not found!")

    told = found(Old(honest))
    assert told.is_too_old
    assert told.fault == ""


def test_a_clock_that_tells_the_impossible_is_not_read() -> None:
    now = time.time_ns()
    told = found(Learner(but(ReadClock, Reading(now, now - 1))), Wish(rates=False))
    assert told.clock is None
    assert told.fault == ""
