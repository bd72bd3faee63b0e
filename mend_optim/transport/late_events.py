"""Event loops of this process that take turns, and the events that gRPC brings to the wrong one.

All loops of a process share gRPC's poller, and whichever runs hands out the events of all. A call
that is left behind may have its last event when its own loop is closed. Then the poller raises on
the loop that runs, and asyncio would write a traceback of that."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_alone(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in an event loop of its own, as `asyncio.run` does."""

    async def whole() -> T:
        asyncio.get_running_loop().set_exception_handler(tell_unless_late)
        return await work

    return asyncio.run(whole())


def tell_unless_late(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A loop's handler of exceptions: asyncio's own, but for late events."""
    if not is_late(context):
        loop.default_exception_handler(context)


def is_late(context: dict[str, Any]) -> bool:
    """Whether an exception on a loop only says that gRPC has brought an event of a former loop."""
    is_closed = str(context.get("exception")) == "Event loop is closed"
    return is_closed and "PollerCompletionQueue" in repr(context.get("handle"))
