"""The only messages of RPCs that anybody may begin: hellos and looks.

A message that has begun to arrive takes up memory until its last byte is there, which may never
come. So only some are read at a time, one of each connection, and each for a limited time. The
bytes of all others stay with their senders, held back by gRPC's flow control.

A proxy may carry the calls of many learners over one connection."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from mend_optim.transport.limits import check
from mend_optim.transport.receiving import BusyError
from mend_optim.transport.stream import Counter, Served

#: Messages that are read at a time. Each may be as large as a message of gRPC.
PLACES = 32
#: Calls of one connection whose messages are read, or wait for their turn.
MOST_OF_ONE = 32
TOO_MANY_WAIT = "too many calls of this connection wait to be read; try again"


@dataclass
class _Caller:
    """A connection that has such calls."""

    calls: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class FirstMessages:
    """Reads them.

    Args:
        patience_s: How long one may take, once its turn has come.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._places = asyncio.Semaphore(PLACES)
        #: By connection.
        self._callers: dict[str, _Caller] = {}

    async def read(self, context: Any) -> bytes:
        """Read the message of an RPC. Raises `BusyError` if too many of its connection wait, and
        `StillError` if it takes too long."""
        connection = context.peer()
        caller = self._callers.setdefault(connection, _Caller())
        if caller.calls >= MOST_OF_ONE:
            raise BusyError(TOO_MANY_WAIT)
        caller.calls += 1
        try:
            # In the order in which they came. The caller's deadline ends the wait.
            async with caller.turn, self._places:
                # It is no traffic of the run.
                message = await Served(context, Counter(), self._patience_s).read()
        finally:
            caller.calls -= 1
            if not caller.calls:
                del self._callers[connection]
        check(message is not None, "the call has no message")
        assert message is not None
        return message
