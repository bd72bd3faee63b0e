"""The server's end of Watch: looks at this learner, by somebody that takes no part.

A watcher proves who it is as every caller does, and then needs no hello: it becomes no peer. All
watchers share one answer, which is made anew at most once in `FRESH_S`. So however many watch, the
learner's mutex is taken that often, and not by each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from mend_optim.errors import PeerError
from mend_optim.protocol.refusals import Refusals
from mend_optim.protocol.sight import Sight
from mend_optim.transport.connection import CALLER
from mend_optim.transport.first_messages import FirstMessages
from mend_optim.transport.grpc_setup import grpc
from mend_optim.transport.receiving import BusyError
from mend_optim.transport.security.channels import Security
from mend_optim.transport.statuses import REASON_LIMIT, status_of
from mend_optim.transport.wire import decode_id
from mend_optim.transport.wire_sight import check_look, encode_sight

#: Seconds for which one answer serves all watchers.
FRESH_S = 0.5
#: Looks that are answered in that time. Further ones are refused at once, and none waits.
MOST_LOOKS = 64
TOO_MANY = "too many watch at a time; try again"


class WatchServer:
    """Answers the looks of watchers.

    Args:
        sight: Returns where this learner stands.
        security: Knows the callers.
        first_messages: Reads what they ask.
        refusals: Counts what is refused.
    """

    def __init__(
        self,
        sight: Callable[[], Sight],
        security: Security,
        first_messages: FirstMessages,
        refusals: Refusals,
    ) -> None:
        self._sight = sight
        self._security = security
        self._first_messages = first_messages
        self._refusals = refusals
        self._answer = b""
        self._made_at = float("-inf")
        self._looks = 0

    async def serve(self, _: object, context: Any) -> None:
        """Answer one look, or refuse it."""
        code = grpc.StatusCode.INVALID_ARGUMENT
        answer: bytes | None = None
        try:
            caller = decode_id(dict(context.invocation_metadata()).get(CALLER, b""))
            self._security.check_caller(context, caller.name)
            check_look(await self._first_messages.read(context))
            answer = self.answer(asyncio.get_running_loop().time())
        except PeerError as fault:
            code = status_of(fault, code)
            reason = str(fault)
        if answer is None:
            self._refusals.add("", reason)
            await context.abort(code, reason[:REASON_LIMIT])
        await context.write(answer)

    def answer(self, now: float) -> bytes:
        """The answer of this moment. Raises `BusyError` if there were too many looks."""
        if now - self._made_at >= FRESH_S:
            self._answer = encode_sight(self._sight())
            self._made_at = now
            self._looks = 0
        self._looks += 1
        if self._looks > MOST_LOOKS:
            raise BusyError(TOO_MANY)
        return self._answer
