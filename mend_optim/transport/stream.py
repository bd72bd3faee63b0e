"""One end of an open RPC: frames in, frames out.

No operation stands still for longer than the stream's patience, and every fault is a `PeerError`.
This module doesn't import gRPC; it wraps the objects that gRPC hands out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Protocol

from mend_optim.errors import PeerError


class StillError(PeerError):
    """Nothing moved on the stream for too long, or less than must."""


class RpcFailed(PeerError):
    """An RPC ended with another status than OK.

    Attributes:
        status: gRPC's name of the status. The words beside it may be the other side's.
    """

    def __init__(self, status: str, details: str | None) -> None:
        super().__init__(f"{status}: {details}")
        self.status = status

    @property
    def is_broken_link(self) -> bool:
        """Whether the connection broke, or the other side ended the RPC on its way out."""
        return self.status in ("UNAVAILABLE", "CANCELLED")

    @property
    def is_answer(self) -> bool:
        """Whether the other side has ended the RPC with words of its own."""
        return not self.is_broken_link and self.status != "DEADLINE_EXCEEDED"

    @property
    def is_refusal(self) -> bool:
        """Whether the other side did not want the RPC."""
        return self.is_unexplained or self.status in (
            "INVALID_ARGUMENT",
            "FAILED_PRECONDITION",
            "RESOURCE_EXHAUSTED",
            "UNKNOWN",
        )

    @property
    def is_damage(self) -> bool:
        """Whether the other side got other bytes than were sent."""
        return self.status == "DATA_LOSS"

    @property
    def is_unexplained(self) -> bool:
        """Whether the other side ended the RPC during a write, before its reason arrived. Where the
        connection breaks then, the status is UNAVAILABLE."""
        return self.status == "INTERNAL"


class Stream(Protocol):
    """One end of an open stream. Every method raises `PeerError` if the stream is broken, or if
    nothing moves for too long."""

    async def read(self, patient: bool = False) -> bytes | None:
        """Return the next frame; None at the end. `patient`: wait however long it takes."""

    async def write(self, frame: bytes) -> None:
        """Send a frame; return once the stream takes more."""

    async def finish(self) -> None:
        """Announce that nothing else will be written."""

    def rest(self) -> None:
        """Nothing moves on it from here on, until the other end has an answer."""


class Counter:
    """Counts the bytes of all frames of a learner's streams."""

    def __init__(self) -> None:
        #: Bytes handed over to be sent. Never decreases.
        self.sent = 0
        #: Bytes that arrived. Never decreases.
        self.received = 0


async def within(operation: Awaitable[Any], seconds: float | None) -> Any:
    """Return the operation's result, or raise `PeerError` if it fails or takes too long. An
    operation that nobody waits for any more is cancelled.

    This is not `asyncio.wait_for`, which before Python 3.12 swallows a cancellation that comes
    together with the result.
    """
    task = asyncio.ensure_future(operation)
    try:
        return await _outcome(task, seconds)
    finally:
        task.cancel()
        del task, operation  # see `_outcome`


async def settled(operation: Awaitable[Any], seconds: float) -> asyncio.Future[Any] | None:
    """Return the operation once it is over, or None if it takes longer. Then it is cancelled, as it
    is if nobody waits for it any more. This is not `asyncio.wait_for`, either."""
    task = asyncio.ensure_future(operation)
    try:
        await asyncio.wait({task}, timeout=seconds)
        return task if task.done() else None
    finally:
        task.cancel()


async def _outcome(task: asyncio.Future[Any], seconds: float | None) -> Any:
    """Return the task's result, or raise `PeerError` if it fails or takes too long. It is not
    cancelled."""
    # even if the waiting task was cancelled, or asyncio would log it
    task.add_done_callback(_retrieve)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise StillError(f"nothing moved for {seconds:g} s")
        return task.result()
    except PeerError:
        raise
    except Exception as fault:
        raise _as_fault(fault) from fault
    finally:
        # The exception's traceback refers to this frame. If the frame referred to the task, which
        # refers to the exception, that circle would keep the RPC and its connection until the
        # garbage collector runs.
        del task


def _retrieve(done: asyncio.Future[Any]) -> None:
    """Take the exception of a task that is over, if it has one."""
    if not done.cancelled():
        done.exception()


def _as_fault(fault: Any) -> PeerError:
    """The fault, described in one line: a status of gRPC's by its code and details."""
    if hasattr(fault, "code") and hasattr(fault, "details"):
        return RpcFailed(fault.code().name, fault.details())
    return PeerError(f"{type(fault).__name__}: {fault}")


class Rpc:
    """One end of an RPC, as a `Stream`.

    An operation that takes too long, or that nobody waits for any more, is not cancelled: the end
    of the RPC ends it. gRPC would forget a cancelled one (grpc/grpc#43360). A message that arrives
    for it later is never freed, and gRPC writes its address to memory that was.

    Args:
        rpc: gRPC's object for this end.
        counter: Counts the frames' bytes.
        patience_s: Seconds that an operation may take.
    """

    def __init__(self, rpc: Any, counter: Counter, patience_s: float) -> None:
        #: Whether a message is on its way.
        self.moves = True
        self._rpc = rpc
        self._counter = counter
        self._patience_s = patience_s

    async def read(self, patient: bool = False) -> bytes | None:
        frame = await self._run(self._rpc.read(), None if patient else self._patience_s)
        # at the end of a stream gRPC returns an object of its own
        if not isinstance(frame, bytes):
            return None
        self._counter.received += len(frame)
        return frame

    def rest(self) -> None:
        self.moves = False

    async def write(self, frame: bytes) -> None:
        # counted first: the frame may arrive although this task is cancelled while it waits
        self._counter.sent += len(frame)
        await self._run(self._rpc.write(frame), self._patience_s)

    async def _run(self, operation: Awaitable[Any], seconds: float | None) -> Any:
        return await _outcome(asyncio.ensure_future(operation), seconds)


class Served(Rpc):
    """The server's end. It is over when its handler returns."""

    async def accept(self) -> None:
        """Let the caller know at once that the stream is open."""
        await self._run(self._rpc.send_initial_metadata(()), self._patience_s)

    async def finish(self) -> None:
        """Do nothing: the handler announces the end when it returns."""


class Dialled(Rpc):
    """The caller's end. Use it as a context: leaving it ends the RPC, whatever happened."""

    #: Is over once the RPC has gone out on a connection. None before the first write.
    _going_out: asyncio.Future[None] | None = None

    async def write(self, frame: bytes) -> None:
        """As every stream's. gRPC never ends a write to an RPC that is cancelled before it has gone
        out, and asyncio would tell the user of each. Such a write holds no message of gRPC's yet,
        so it is cancelled."""
        if self._going_out is None:
            self._going_out = asyncio.ensure_future(self._rpc.wait_for_connection())
            self._going_out.add_done_callback(_retrieve)
        self._counter.sent += len(frame)
        writing = asyncio.ensure_future(self._rpc.write(frame))
        try:
            await _outcome(writing, self._patience_s)
        except PeerError:
            await self._raise_if_over()
            raise
        finally:
            if not self._going_out.done():
                writing.cancel()
            del writing  # see `_outcome`

    async def _raise_if_over(self) -> None:
        """If the other end has ended the RPC, say why. What gRPC raises at a write doesn't, and it
        returns metadata of a refused RPC, too."""
        if self._rpc.done():
            raise RpcFailed((await self._rpc.code()).name, await self._rpc.details())

    async def accepted(self) -> None:
        """Wait until the other end has opened the stream, too."""
        await self._run(self._rpc.initial_metadata(), self._patience_s)
        await self._raise_if_over()

    async def finish(self) -> None:
        await self._run(self._rpc.done_writing(), self._patience_s)

    def __enter__(self) -> Dialled:
        return self

    def __exit__(self, *fault: object) -> None:
        self._rpc.cancel()
        if self._going_out:
            self._going_out.cancel()
