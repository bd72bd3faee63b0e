"""The server's end of Survey: measures the way to this learner with somebody that takes no part.

A surveyor proves who it is as every caller does, and needs no hello. Surveys come one at a time. A
turn has an end, by time and by bytes in each direction. After it nobody has one for `REST` times as
long as its transfers took. So transfers take at most one part in `REST + 1` of the time, however
many ask, and no more of the link, whatever its speed. All of it runs on the network loop: training
has no part in it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Coroutine
from typing import Any

from mend_optim.errors import PeerError, unreachable
from mend_optim.protocol.refusals import Refusals
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
from mend_optim.transport.address import host_of
from mend_optim.transport.background_log import BackgroundLog
from mend_optim.transport.connection import CALLER
from mend_optim.transport.dial_back import dial_back
from mend_optim.transport.grpc_setup import grpc
from mend_optim.transport.limits import check
from mend_optim.transport.security.channels import Security
from mend_optim.transport.statuses import REASON_LIMIT
from mend_optim.transport.stream import Counter, Served, Stream, within
from mend_optim.transport.wire import decode_id
from mend_optim.transport.wire_survey import decode_ask, encode_reply

log = BackgroundLog("mend_optim.transport")

#: Seconds that a turn may last.
TURN_S = 10.0
#: After a turn, nobody has one for so many times as long as its transfers took, and for so many
#: seconds at least.
REST = 4.0
LEAST_REST_S = 2.0
#: Bytes that one turn may move in each direction, and questions in it.
TURN_BYTES = 8 << 20
TURN_ASKS = 64


class Turns:
    """One surveyor at a time, and a rest after each."""

    def __init__(self) -> None:
        self._is_taken = False
        self._free_at = float("-inf")

    def begin(self, now: float) -> float:
        """Begin a turn. Returns 0, or the seconds after which it may be tried again."""
        if self._is_taken:
            # Nobody knows when this turn ends. Most end soon.
            return LEAST_REST_S
        if now < self._free_at:
            return self._free_at - now
        self._is_taken = True
        return 0.0

    def end(self, now: float, busy_s: float) -> None:
        """End the turn that has begun, whose transfers took so long."""
        assert self._is_taken, "no turn has begun"
        self._is_taken = False
        self._free_at = now + max(LEAST_REST_S, REST * busy_s)


class SurveyServer:
    """Answers surveyors.

    Args:
        security: Knows the callers.
        refusals: Counts what is refused.
    """

    def __init__(self, security: Security, refusals: Refusals) -> None:
        self._security = security
        self._refusals = refusals
        self._turns = Turns()
        # A survey's bytes are none of the run's traffic.
        self._counter = Counter()

    async def serve(self, _: object, context: Any) -> None:
        """Answer one surveyor, or refuse it."""
        code = grpc.StatusCode.INVALID_ARGUMENT
        try:
            caller = decode_id(dict(context.invocation_metadata()).get(CALLER, b""))
            self._security.check_caller(context, caller.name)
            stream = Served(context, self._counter, TURN_S)
            await self._give_turn(stream, host_of(context.peer()))
            return
        except PeerError as fault:
            reason = str(fault)
        except Exception as fault:
            code = grpc.StatusCode.INTERNAL
            reason = type(fault).__name__
            log.debug("surveyed by %s", context.peer(), exc_info=True)
        self._refusals.add("", reason)
        await context.abort(code, reason[:REASON_LIMIT])

    async def _give_turn(self, stream: Served, seen_ip: str) -> None:
        wait_s = self._turns.begin(_now())
        if wait_s:
            await stream.write(encode_reply(Turn(wait_s, seen_ip)))
            return
        survey = _Survey(stream, seen_ip)
        try:
            await within(survey.run(), TURN_S)
        finally:
            self._turns.end(_now(), survey.busy_s)


class _Survey:
    """One surveyor's turn."""

    def __init__(self, stream: Stream, seen_ip: str) -> None:
        self._stream = stream
        self._seen_ip = seen_ip
        self._asks = 0
        self._sent = 0
        self._taken = 0
        self._has_dialled = False
        #: When the transfer began that goes on; None if there is none.
        self._moving_since: float | None = None
        self._moved_s = 0.0

    @property
    def busy_s(self) -> float:
        """The seconds that its transfers have taken, with one that was broken off."""
        since = self._moving_since
        return self._moved_s + (_now() - since if since is not None else 0.0)

    async def run(self) -> None:
        """Answer whatever is asked, until the surveyor has no more questions."""
        await self._reply(Turn(0.0, self._seen_ip))
        while (frame := await self._stream.read()) is not None:
            received_ns = time.time_ns()
            self._asks += 1
            check(self._asks <= TURN_ASKS, f"the limit of a survey is {TURN_ASKS} questions")
            await self._serve(decode_ask(frame), received_ns)

    async def _serve(self, ask: Ask, received_ns: int) -> None:
        match ask:
            case ReadClock():
                await self._reply(Reading(received_ns, time.time_ns()))
            case SendBytes():
                await self._move(self._send(ask.nbytes))
            case TakeBytes():
                await self._move(self._take(ask.nbytes))
            case DialPort():
                await self._dial(ask.port)
            case Chunk():
                raise PeerError("a chunk came that nobody has announced")
            case _:
                unreachable(ask)

    async def _move(self, transfer: Coroutine[Any, Any, None]) -> None:
        self._moving_since = _now()
        await transfer
        self._moved_s, self._moving_since = self.busy_s, None

    async def _reply(self, reply: Reply) -> None:
        await self._stream.write(encode_reply(reply))

    async def _send(self, nbytes: int) -> None:
        self._sent += nbytes
        _check_turn(self._sent)
        # Nothing on the way can make these bytes fewer.
        chunk = os.urandom(CHUNK_BYTES)
        for size in sizes_of(nbytes):
            await self._reply(Chunk(chunk[:size]))

    async def _take(self, nbytes: int) -> None:
        self._taken += nbytes
        _check_turn(self._taken)
        left = nbytes
        while left > 0:
            frame = await self._stream.read()
            check(frame is not None, "the survey ended in the middle of a transfer")
            ask = decode_ask(frame or b"")
            check(isinstance(ask, Chunk), "a question came in the middle of a transfer")
            assert isinstance(ask, Chunk)
            left -= len(ask.data)
            check(left >= 0, f"more than the {nbytes} bytes came that were announced")
        await self._reply(Taken(nbytes))

    async def _dial(self, port: int) -> None:
        check(not self._has_dialled, "a surveyor is dialled once in a survey")
        self._has_dialled = True
        token = os.urandom(TOKEN_BYTES)
        await self._reply(Token(token))
        await self._reply(Dialled(await dial_back(self._seen_ip, port, token)))


def _now() -> float:
    return asyncio.get_running_loop().time()


def _check_turn(nbytes: int) -> None:
    check(nbytes <= TURN_BYTES, f"the limit of a survey is {TURN_BYTES} bytes in each direction")


def sizes_of(nbytes: int) -> list[int]:
    """Return the sizes of the chunks that carry so many bytes."""
    whole, rest = divmod(nbytes, CHUNK_BYTES)
    return [CHUNK_BYTES] * whole + [rest] * (rest > 0)
