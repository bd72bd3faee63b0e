"""One end of an open RPC: frames in, frames out, nothing standing still for too long, every fault a
`PeerError`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Protocol

from mend_optim.errors import PeerError


class Stream(Protocol):
    """One end of an open stream. Both methods raise `PeerError`, also when nothing moves for too
    long."""

    async def read(self, patient: bool = False) -> bytes | None:
        """The next frame, None at the end; `patient`: however long it takes."""

    async def write(self, frame: bytes) -> None: ...

    async def finish(self) -> None:
        """Nothing else will be written."""


class Counter:
    """Bytes of all frames: handed over to be sent, and received."""

    def __init__(self) -> None:
        self.sent = self.received = 0


async def within(operation: Awaitable[Any], seconds: float | None) -> Any:
    """The operation's result, in time; its faults as `PeerError`.

    Not `asyncio.wait_for`, which before Python 3.12 swallows a cancellation that comes together
    with the result.
    """
    task = asyncio.ensure_future(operation)
    # retrieved even if nobody waits any more
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise PeerError(f"nothing moved for {seconds:g} s")
        return task.result()
    except PeerError:
        raise
    except Exception as fault:
        raise PeerError(_describe(fault)) from fault
    finally:
        task.cancel()
        # A fault leads by its traceback to this frame: from here back to it, and the RPC with its
        # connection would stay until the garbage collector came by.
        del task, operation


def _describe(fault: Any) -> str:
    status = hasattr(fault, "code") and hasattr(fault, "details")
    return (
        f"{fault.code().name}: {fault.details()}" if status else f"{type(fault).__name__}: {fault}"
    )


class Rpc:
    """One end of an RPC, as a `Stream`."""

    def __init__(self, rpc: Any, counter: Counter, patience_s: float) -> None:
        self._rpc, self._counter, self._patience_s = rpc, counter, patience_s

    async def read(self, patient: bool = False) -> bytes | None:
        frame = await within(self._rpc.read(), None if patient else self._patience_s)
        if not isinstance(frame, bytes):  # gRPC's end-of-file object
            return None
        self._counter.received += len(frame)
        return frame

    async def write(self, frame: bytes) -> None:
        self._counter.sent += len(frame)  # it may arrive though nobody waits until it has
        await within(self._rpc.write(frame), self._patience_s)


class Served(Rpc):
    """The server's end: it is over when its handler returns."""

    async def accept(self) -> None:
        """Let the caller know at once that the stream is open."""
        await within(self._rpc.send_initial_metadata(()), self._patience_s)

    async def finish(self) -> None:
        """That the handler returns says so."""


class Dialled(Rpc):
    """The caller's end: it is over, whatever happens, when its context is left."""

    async def accepted(self) -> None:
        """Wait until the other end has opened the stream, too."""
        await within(self._rpc.initial_metadata(), self._patience_s)
        if self._rpc.done():
            raise PeerError(f"not accepted: {await self._rpc.details()}")

    async def finish(self) -> None:
        await within(self._rpc.done_writing(), self._patience_s)

    def __enter__(self) -> Dialled:
        return self

    def __exit__(self, *fault: object) -> None:
        self._rpc.cancel()
