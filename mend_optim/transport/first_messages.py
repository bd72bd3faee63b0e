"""The only messages of RPCs that anybody may begin: hellos and looks.

A message that has begun to arrive takes up memory until its last byte is there, which may never
come. So only some are read at a time, one for each connection, and each for a limited time. The
bytes of all others stay with their senders, held back by gRPC's flow control."""

from __future__ import annotations

import asyncio
from typing import Any

from mend_optim.transport.limits import check
from mend_optim.transport.receiving import BusyError
from mend_optim.transport.stream import Counter, Served

#: Messages that are read at a time. Each may be as large as a message of gRPC.
PLACES = 32
ANOTHER = "another call of this connection is being read; make one at a time"


class FirstMessages:
    """Reads them.

    Args:
        patience_s: How long one may take, once its turn has come.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._places = asyncio.Semaphore(PLACES)
        #: The connections whose messages are read, or wait for their turn.
        self._callers: set[str] = set()

    async def read(self, context: Any) -> bytes:
        """Read the message of an RPC. Raises `BusyError` if another one of the connection is being
        read, and `StillError` if it takes too long."""
        caller = context.peer()
        if caller in self._callers:
            raise BusyError(ANOTHER)
        self._callers.add(caller)
        try:
            # In the order in which they came. The caller's deadline ends the wait.
            async with self._places:
                # It is no traffic of the run.
                message = await Served(context, Counter(), self._patience_s).read()
        finally:
            self._callers.discard(caller)
        check(message is not None, "the call has no message")
        assert message is not None
        return message
