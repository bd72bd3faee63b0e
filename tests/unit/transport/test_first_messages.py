"""The messages of callers that this learner need not know: how many are read at a time, and for how
long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from mend_optim.errors import PeerError
from mend_optim.transport.first_messages import MOST_OF_ONE, PLACES, FirstMessages
from mend_optim.transport.receiving import BusyError
from mend_optim.transport.stream import StillError

LONG_S, END_S = 600.0, 20.0


class Call:
    """The server's side of an RPC. Its message comes once `message` has a result."""

    def __init__(self, caller: str) -> None:
        self._caller = caller
        self.message: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.is_read = False

    def peer(self) -> str:
        return self._caller

    def read(self) -> asyncio.Future[object]:
        self.is_read = True
        return self.message


async def turns() -> None:
    """Let whatever can run do so."""
    for _ in range(20):
        await asyncio.sleep(0)


def scenario(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    return lambda: asyncio.run(asyncio.wait_for(test(), END_S))


@scenario
async def test_a_message_that_has_come_is_read() -> None:
    call = Call("a")
    call.message.set_result(b"hello")
    assert await FirstMessages(LONG_S).read(call) == b"hello"


@scenario
async def test_no_message_is_read_before_its_turn() -> None:
    first_messages = FirstMessages(LONG_S)
    calls = [Call(f"caller{i}") for i in range(PLACES + 2)]
    reading = [asyncio.ensure_future(first_messages.read(call)) for call in calls]
    await turns()
    assert [call.is_read for call in calls] == [True] * PLACES + [False] * 2
    calls[3].message.set_result(b"3")
    assert await reading[3] == b"3"
    await turns()
    assert [call.is_read for call in calls[PLACES:]] == [True, False]
    reading[0].cancel()  # its caller has hung up
    await turns()
    assert calls[-1].is_read
    for task in reading:
        task.cancel()


@scenario
async def test_a_connection_has_one_message_read_at_a_time() -> None:
    first_messages = FirstMessages(LONG_S)
    calls = [Call("a") for _ in range(MOST_OF_ONE)]
    reading = [asyncio.ensure_future(first_messages.read(call)) for call in calls]
    await turns()
    assert [call.is_read for call in calls] == [True] + [False] * (MOST_OF_ONE - 1)
    one_more = Call("a")
    with pytest.raises(BusyError, match="too many calls of this connection"):
        await first_messages.read(one_more)
    assert not one_more.is_read
    for i, call in enumerate(calls):
        call.message.set_result(b"%d" % i)
    assert await asyncio.gather(*reading) == [b"%d" % i for i in range(MOST_OF_ONE)]
    assert not first_messages._callers


@scenario
async def test_a_message_that_never_ends_gives_its_place_up() -> None:
    first_messages = FirstMessages(0.0)
    for _ in range(2 * PLACES):
        with pytest.raises(StillError):
            await first_messages.read(Call("a"))


@scenario
async def test_a_call_without_a_message_is_refused() -> None:
    call = Call("a")
    call.message.set_result(object())  # what gRPC returns at the end of a stream
    with pytest.raises(PeerError, match="no message"):
        await FirstMessages(LONG_S).read(call)
