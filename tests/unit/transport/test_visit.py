"""A visit to an address that no learner answers at: what it is told by, a status or words."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from mend_optim.protocol.unreached import Unreached
from mend_optim.protocol.visited import Visit
from mend_optim.transport import server as room
from mend_optim.transport.connection import SERVICE
from mend_optim.transport.security.channels import BARE
from mend_optim.transport.survey import Wish
from mend_optim.transport.visit import visit

grpc = room.grpc  # not imported here: its first importer decides about its fork handlers
HOST = "127.0.0.1"


def visited(address: str, patience_s: float) -> Visit:
    return visit(address, BARE, "v", (), patience_s=patience_s, wish=Wish(rates=False))


async def visit_to_one_that_aborts(status: str, details: str) -> Visit:
    """Visit a server whose answer to a hello is this status."""

    async def hello(request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode[status], details)
        raise AssertionError("abort raises")

    handlers = {"Hello": grpc.unary_unary_rpc_method_handler(hello)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    try:
        return await asyncio.to_thread(visited, f"{HOST}:{port}", 60.0)
    finally:
        await server.stop(0)


@pytest.mark.parametrize("words", ["DEADLINE_EXCEEDED", "UNAVAILABLE"])
def test_words_of_the_other_side_pass_for_no_status(words: str) -> None:
    """A port that answers is not silent, though it speaks of a deadline of its own."""
    found = asyncio.run(visit_to_one_that_aborts("INTERNAL", f"{words}: my backend"))
    assert (found.cause, found.silent_s) == (Unreached.ANSWER, 0.0)
    assert found.fault == f"INTERNAL: {words}: my backend"


def test_one_that_is_unavailable_is_no_learner() -> None:
    found = asyncio.run(visit_to_one_that_aborts("UNAVAILABLE", "come back later"))
    assert (found.cause, found.silent_s) == (Unreached.PROTOCOL, 0.0)


def test_a_port_that_accepts_and_never_answers_is_silent() -> None:
    with socket.create_server((HOST, 0)) as listening:
        found = visited(f"{HOST}:{listening.getsockname()[1]}", 0.5)
    assert (found.cause, found.silent_s) == (Unreached.ANSWER, 0.5)
