"""Blocking work beside the network loop, on a thread of its own."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

T = TypeVar("T")


async def off_loop(work: Callable[[], T], name: str) -> T:
    """Run `work` on a daemon thread of this name, and return or raise what it does.

    The threads of an executor would not do: the interpreter waits for them when it ends, and a name
    server or a disk may not answer for a minute.

    Raises:
        OSError: There are too many threads. That passes, as a fault of a disk or a network does.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    thread = threading.Thread(target=_run, args=(work, loop, done), name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, "this process has too many threads to start one") from error
    return await done


def _run(work: Callable[[], T], loop: asyncio.AbstractEventLoop, done: asyncio.Future[T]) -> None:
    try:
        tell = partial(done.set_result, work())
    except Exception as error:
        tell = partial(done.set_exception, error)
    # The loop may have been closed meanwhile.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(_settle, done, tell)


def _settle(done: asyncio.Future[T], tell: Callable[[], None]) -> None:
    """Nobody may wait for it any more."""
    if not done.done():
        tell()
