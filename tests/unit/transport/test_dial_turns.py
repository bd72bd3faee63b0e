"""Who dials next, of those that wait for a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from mend_optim.transport.dial_turns import DialTurns


class Queue:
    """Two turns, and the names of those that had one, in this order."""

    def __init__(self) -> None:
        self.turns = DialTurns(2)
        self.had: list[str] = []
        self.over: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, name: str, failures: int = 0) -> None:
        self.over[name] = asyncio.Event()

        async def use() -> None:
            async with self.turns.one(failures):
                self.had.append(name)
                await self.over[name].wait()

        self.tasks[name] = asyncio.create_task(use())
        await settled()

    async def end(self, *names: str) -> None:
        for name in names:
            self.over[name].set()
            await self.tasks[name]
            await settled()


async def settled() -> None:
    """All other tasks have gone as far as they can."""
    for _ in range(10):
        await asyncio.sleep(0)


def run(scene: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scene, 30.0))


def test_so_many_have_a_turn_at_a_time_and_the_others_come_in_their_order() -> None:
    async def scene() -> None:
        queue = Queue()
        for name in "abcd":
            await queue.come(name)
        assert queue.had == ["a", "b"]
        await queue.end("b")
        assert queue.had == ["a", "b", "c"]
        await queue.end("a", "c", "d")
        for name in "ef":
            await queue.come(name)
        assert queue.had == list("abcdef")

    run(scene())


def test_whose_dials_have_failed_goes_behind_all_that_have_failed_less_often() -> None:
    async def scene() -> None:
        queue = Queue()
        for name, failures in (("a", 0), ("b", 0), ("c", 3), ("d", 1), ("e", 0)):
            await queue.come(name, failures)
        await queue.end("a", "b", "e", "d", "c")
        assert queue.had == ["a", "b", "e", "d", "c"]

    run(scene())


def test_a_turn_of_one_that_is_cancelled_is_not_lost() -> None:
    async def scene() -> None:
        queue = Queue()
        for name in "abcd":
            await queue.come(name)
        queue.tasks["c"].cancel()  # it waits
        queue.over["a"].set()
        await settled()
        assert queue.had == ["a", "b", "d"]
        queue.tasks["b"].cancel()  # it has a turn
        await queue.come("e")
        assert queue.had == ["a", "b", "d", "e"]
        await queue.come("f")
        queue.tasks["d"].cancel()
        await asyncio.sleep(0)  # its turn goes to f, which does not know it yet
        queue.tasks["f"].cancel()
        await queue.come("g")
        assert "g" in queue.had

    run(scene())
