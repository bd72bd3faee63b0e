"""A visit to a learner by somebody that takes no part: who answers at an address, how quickly, with
which settings, and what `survey.py` finds out about the way there.

A visitor's hello is always refused, because it has no model. So it never becomes a peer: no round
waits for it. In a refusal a learner tells the first difference, and no more, so a visitor that
wants to know a setting asks for that one alone, with a value that no learner has. The refusal is
the visitor's answer, so the learner reports none of them to its user."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace

from mend_optim.errors import PeerError
from mend_optim.protocol.handshake import NO_VALUE, PARAMETER, Hello
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.timing import Timing
from mend_optim.protocol.unreached import Unreached
from mend_optim.protocol.visited import COUNT, FIRST, Visit
from mend_optim.transport.connection import Connection
from mend_optim.transport.diagnosis import why_unreached
from mend_optim.transport.grpc_options import channel_options
from mend_optim.transport.late_events import run_alone
from mend_optim.transport.limits import check
from mend_optim.transport.security.channels import Security
from mend_optim.transport.stream import Counter, RpcFailed
from mend_optim.transport.survey import Wish, survey

#: The name of a visitor that has no certificate of its own.
VISITOR = "mend-check"
#: Earlier than any process, so that it never takes a learner's place.
INCARNATION = 1
#: Hellos to find the round trip.
TRIPS = 5
#: A hello has room for so many, and more. Of a larger model, the first parameter is not asked for.
MOST_PARAMETERS = 10_000
_VALUE = re.compile(rf": here {re.escape(NO_VALUE)}, there (.*); ", re.DOTALL)


def visit(
    address: str,
    security: Security,
    name: str,
    fields: Iterable[str],
    *,
    patience_s: float,
    wish: Wish,
) -> Visit:
    """Visit an address that can be connected to, in an event loop of its own.

    Args:
        address: host and port.
        security: as a learner's.
        name: the visitor's, which its certificate proves.
        fields: the settings to ask for.
        patience_s: how long each answer may take.
        wish: what to find out about the way there.
    """
    return run_alone(_Visitor(address, security, name, patience_s).visit(list(fields), wish))


class _Visitor:
    def __init__(self, address: str, security: Security, name: str, patience_s: float) -> None:
        self._address = address
        self._security = security
        self._patience_s = patience_s
        self._me = PeerId(name, INCARNATION)
        self._mine = Hello(peer=self._me, address="", model=((COUNT, NO_VALUE),), policy=())

    async def visit(self, fields: list[str], wish: Wish) -> Visit:
        there = ""
        try:
            if self._security.authenticates:
                # At first any learner of the run may answer, and then the one that it says it is.
                async with self._connected("") as connection:
                    there = (await self._ask(connection, self._mine)).peer.name
            async with self._connected(there) as connection:
                answer = await self._ask(connection, self._mine)
                check(there in ("", answer.peer.name), f"{there!a} says that it is another")
                trips = [await self._trip(connection) for _ in range(TRIPS)]
                settings = await self._settings(connection, answer, fields)
                surveyed = await survey(connection, wish, self._patience_s)
        except PeerError as fault:
            return await self._failed(fault, there)
        return Visit(answer=answer, round_trip_s=min(trips), settings=settings, surveyed=surveyed)

    @asynccontextmanager
    async def _connected(self, name: str) -> AsyncIterator[Connection]:
        options = channel_options(Timing(), self._patience_s)
        channel = self._security.channel(self._address, options, name)
        connection = Connection(channel, self._me, Counter(), self._patience_s)
        try:
            yield connection
        finally:
            await connection.close()

    async def _ask(self, connection: Connection, mine: Hello) -> Hello:
        return await connection.hello(mine, self._patience_s)

    async def _trip(self, connection: Connection) -> float:
        clock = asyncio.get_running_loop().time
        begun = clock()
        await self._ask(connection, self._mine)
        return clock() - begun

    async def _settings(
        self, connection: Connection, answer: Hello, fields: list[str]
    ) -> dict[str, str]:
        """The number of parameters, which every refusal of a visitor tells, the shape of the first
        one, and these settings."""
        found = {}
        count = told_value(answer.refusal, COUNT)
        if count is None or not count.isdecimal():
            return {}
        found[COUNT] = count
        others = [(f"{PARAMETER}{i}", NO_VALUE) for i in range(min(int(count), MOST_PARAMETERS))]
        mine = replace(self._mine, model=((COUNT, count), *others))
        first = _VALUE.search((await self._ask(connection, mine)).refusal)
        if first and others:
            found[FIRST] = first[1]
        for name in fields:
            mine = replace(self._mine, model=((COUNT, count),), policy=((name, NO_VALUE),))
            value = told_value((await self._ask(connection, mine)).refusal, name)
            if value is not None:
                found[name] = value
        return found

    async def _failed(self, fault: PeerError, there: str) -> Visit:
        cause = why_unreached(fault)
        if cause is Unreached.IMPOSTOR and not there:
            cause = Unreached.NO_LEARNER
        status = fault.status if isinstance(fault, RpcFailed) else ""
        if cause is Unreached.ANSWER and status == "UNAVAILABLE":
            # Somebody is there. Older versions of gRPC say no more of what they heard.
            cause = Unreached.PROTOCOL
        if cause is Unreached.PROTOCOL:
            cause = await self._security.probe(self._address) or cause
        is_silent = cause is Unreached.ANSWER and status == "DEADLINE_EXCEEDED"
        silent_s = self._patience_s if is_silent else 0.0
        return Visit(cause=cause, fault=str(fault), silent_s=silent_s)


def told_value(refusal: str, name: str) -> str | None:
    """The learner's value of a field, as its refusal tells it; None if that is about another one:
    "sync_every: here ?, there 20; pass the same sync_every to both"."""
    told = _VALUE.search(refusal) if refusal.startswith(f"{name}: ") else None
    return told[1] if told else None
