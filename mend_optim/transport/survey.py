"""A survey of the way to a learner, by somebody that takes no part: the calling side of Survey."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TypeVar

from mend_optim.errors import PeerError
from mend_optim.protocol.survey_words import (
    CHUNK_BYTES,
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
from mend_optim.protocol.surveyed import (
    ClockTrip,
    Surveyed,
    Transfer,
    clearest,
    next_bytes,
)
from mend_optim.transport.connection import Connection
from mend_optim.transport.limits import check
from mend_optim.transport.stream import Stream, within
from mend_optim.transport.surveying import TURN_S, sizes_of
from mend_optim.transport.token_port import serving
from mend_optim.transport.wire_survey import decode_reply, encode_ask

A = TypeVar("A", bound=Reply)

#: Readings of the clock, and seconds after which no further one is begun.
READINGS = 8
READINGS_S = 1.0
#: Turns that are asked for, if the learner says when the next one may be had.
ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The questions of a survey, besides the learner's clock and how it sees the surveyor.

    Attributes:
        rates: whether to measure the bandwidth.
        listening: where the learner is to dial back; None: nowhere.
        port: the port that it is to dial.
        ips: of which one must be the address that it sees; None: any may be.
    """

    rates: bool = True
    listening: socket.socket | None = None
    port: int = 0
    ips: Collection[str] | None = None


async def survey(connection: Connection, wish: Wish, patience_s: float) -> Surveyed:
    """Survey the way to a learner that has answered a hello.

    Args:
        connection: To the learner.
        wish: What to find out.
        patience_s: How long to wait for a turn, and for each reply.
    """
    until = _now() + patience_s
    for _ in range(ATTEMPTS):
        found = await _Surveyor(wish).survey(connection, patience_s)
        if not found.wait_s or _now() + found.wait_s > until:
            break
        await asyncio.sleep(found.wait_s)
    return found


class _Surveyor:
    def __init__(self, wish: Wish) -> None:
        self._wish = wish
        self._found = Surveyed()
        self._trips: list[ClockTrip] = []

    async def survey(self, connection: Connection, patience_s: float) -> Surveyed:
        """Ask for a turn, and find out as much as the learner tells."""
        try:
            with connection.stream("Survey") as stream:
                # A learner ends a turn itself. One that does not, ends here.
                await within(self._find_out(stream), patience_s + TURN_S)
                await stream.finish()
        except PeerError as fault:
            is_too_old = "UNIMPLEMENTED" in str(fault)
            found = replace(self._found, is_too_old=is_too_old)
            return found if is_too_old else replace(found, fault=str(fault))
        return self._found

    async def _find_out(self, stream: Stream) -> None:
        turn = await _heard(stream, Turn)
        self._found = replace(self._found, seen_ip=turn.seen_ip, wait_s=turn.wait_s)
        if turn.wait_s:
            return
        clock = await self._clock(stream)
        self._found = replace(self._found, clock=clock)
        await self._dialled_back(stream)
        if self._wish.rates:
            await self._rates(stream, clock.travel_ns / 1e9 if clock else 0.0)

    async def _clock(self, stream: Stream) -> ClockTrip | None:
        begun = _now()
        while len(self._trips) < READINGS and _now() - begun < READINGS_S:
            asked_ns = time.time_ns()
            await _say(stream, ReadClock())
            told = await _heard(stream, Reading)
            trip = ClockTrip(
                asked_ns=asked_ns,
                received_ns=told.received_ns,
                answered_ns=told.answered_ns,
                heard_ns=time.time_ns(),
            )
            self._trips.append(trip)
        return clearest(self._trips)

    async def _dialled_back(self, stream: Stream) -> None:
        wish = self._wish
        is_there = wish.ips is None or self._found.seen_ip in wish.ips
        if wish.listening is None or not is_there:
            return
        async with AsyncExitStack() as stack:
            port = await stack.enter_async_context(serving(wish.listening))
            await _say(stream, DialPort(wish.port))
            port.tell((await _heard(stream, Token)).token)
            told = await _heard(stream, Dialled)
        self._found = replace(self._found, dialled=told.outcome)

    async def _rates(self, stream: Stream, round_trip_s: float) -> None:
        done: list[Transfer] = []
        while nbytes := next_bytes(done):
            took_s = await _send(stream, nbytes)
            done.append(Transfer(nbytes=nbytes, took_s=took_s, round_trip_s=round_trip_s))
            self._found = replace(self._found, up=done[-1])
        done = []
        while nbytes := next_bytes(done):
            took_s = await _receive(stream, nbytes)
            done.append(Transfer(nbytes=nbytes, took_s=took_s, round_trip_s=round_trip_s))
            self._found = replace(self._found, down=done[-1])


async def _send(stream: Stream, nbytes: int) -> float:
    """Send bytes; return the seconds until the learner had them all."""
    # Nothing on the way can make these bytes fewer.
    chunk = os.urandom(CHUNK_BYTES)
    begun = _now()
    await _say(stream, TakeBytes(nbytes))
    for size in sizes_of(nbytes):
        await _say(stream, Chunk(chunk[:size]))
    taken = await _heard(stream, Taken)
    check(taken.nbytes == nbytes, f"{taken.nbytes} bytes arrived of {nbytes}")
    return _now() - begun


async def _receive(stream: Stream, nbytes: int) -> float:
    """Ask for bytes; return the seconds until they were here."""
    begun = _now()
    await _say(stream, SendBytes(nbytes))
    left = nbytes
    while left > 0:
        left -= len((await _heard(stream, Chunk)).data)
    check(left == 0, f"more than the {nbytes} bytes came that were asked for")
    return _now() - begun


async def _say(stream: Stream, ask: Ask) -> None:
    await stream.write(encode_ask(ask))


async def _heard(stream: Stream, kind: type[A]) -> A:
    """The learner's next reply, which must be of this kind."""
    frame = await stream.read()
    check(frame is not None, "the learner ended the survey")
    reply = decode_reply(frame or b"")
    check(isinstance(reply, kind), f"{type(reply).__name__} came, not {kind.__name__}")
    assert isinstance(reply, kind)
    return reply


def _now() -> float:
    return asyncio.get_running_loop().time()
