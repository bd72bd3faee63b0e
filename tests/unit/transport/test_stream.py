"""One end of an RPC: the bytes that it counts, and whether the other end took it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from mend_optim.errors import PeerError
from mend_optim.transport.stream import Counter, Dialled, Rpc, RpcFailed, Served, within


class Slow:
    """Takes a frame on its way, and does not say so."""

    def __init__(self) -> None:
        self.taken = asyncio.Event()

    async def write(self, frame: bytes) -> None:
        self.taken.set()
        await asyncio.Event().wait()


def test_a_frame_on_its_way_is_counted_though_nobody_waits_for_it() -> None:
    """The other end may have all it wants of it, and hang up."""
    counter = Counter()

    async def send() -> None:
        slow = Slow()
        writing = asyncio.ensure_future(Rpc(slow, counter, patience_s=60).write(bytes(100)))
        await slow.taken.wait()
        writing.cancel()
        await asyncio.wait({writing})

    asyncio.run(send())
    assert (counter.sent, counter.received) == (100, 0)


class Silent:
    """An RPC in which nothing ever moves, and no operation may be cancelled."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.cancelled = False

    async def _wait(self, *_: object) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise

    read = write = send_initial_metadata = initial_metadata = done_writing = _wait


OPERATIONS: dict[str, Callable[[Silent, float], Awaitable[object]]] = {
    "read": lambda rpc, patience_s: Rpc(rpc, Counter(), patience_s).read(),
    "read patiently": lambda rpc, patience_s: Rpc(rpc, Counter(), patience_s).read(patient=True),
    "write": lambda rpc, patience_s: Rpc(rpc, Counter(), patience_s).write(b"x"),
    "accept": lambda rpc, patience_s: Served(rpc, Counter(), patience_s).accept(),
    "accepted": lambda rpc, patience_s: Dialled(rpc, Counter(), patience_s).accepted(),
    "finish": lambda rpc, patience_s: Dialled(rpc, Counter(), patience_s).finish(),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_that_nobody_waits_for_is_not_cancelled(name: str) -> None:
    """gRPC never frees the message that arrives for one that was."""

    async def give_up() -> bool:
        rpc = Silent()
        waiting = asyncio.ensure_future(OPERATIONS[name](rpc, 60))
        await rpc.begun.wait()
        waiting.cancel()
        await asyncio.wait({waiting})
        await asyncio.sleep(0)  # a cancellation would arrive now
        return rpc.cancelled

    assert not asyncio.run(give_up())


def test_an_operation_that_takes_too_long_is_not_cancelled() -> None:
    async def give_up() -> bool:
        rpc = Silent()
        with pytest.raises(PeerError, match=r"nothing moved for 0\.001 s"):
            await Rpc(rpc, Counter(), patience_s=0.001).read()
        await asyncio.sleep(0)  # a cancellation would arrive now
        return rpc.cancelled

    assert not asyncio.run(give_up())


def test_work_that_nobody_waits_for_is_cancelled() -> None:
    async def give_up() -> bool:
        rpc = Silent()
        with pytest.raises(PeerError, match="nothing moved"):
            await within(rpc.read(), 0.001)
        await asyncio.sleep(0)
        return rpc.cancelled

    assert asyncio.run(give_up())


def test_the_end_of_an_rpc_ends_a_read_that_nobody_waits_for() -> None:
    """With gRPC's own RPC, whose caller stays and says no more."""

    async def serve_and_give_up() -> tuple[bool, str]:
        reads: list[asyncio.Future[Any]] = []

        async def serve(_: object, context: Any) -> None:
            read = context.read

            def noted() -> asyncio.Future[Any]:
                reads.append(asyncio.ensure_future(read()))
                return reads[-1]

            stream = Served(SimpleNamespace(read=noted), Counter(), patience_s=0.001)
            with pytest.raises(PeerError, match="nothing moved"):
                await stream.read()
            await context.abort(grpc.StatusCode.ABORTED, "that took too long")

        server = grpc.aio.server()
        methods = {"Serve": grpc.stream_stream_rpc_method_handler(serve)}
        handler = grpc.method_handlers_generic_handler("a", methods)
        server.add_generic_rpc_handlers((handler,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.stream_stream("/a/Serve")()
            details = await call.details()
            await asyncio.wait(reads, timeout=60)
        await server.stop(None)
        return reads[0].done() and not reads[0].cancelled(), details

    assert asyncio.run(serve_and_give_up()) == (True, "that took too long")


def test_of_a_write_to_a_peer_that_never_answered_nothing_is_left() -> None:
    """With gRPC's own RPC, which is cancelled before it has a connection."""

    async def write(channel: grpc.aio.Channel) -> None:
        with Dialled(channel.stream_stream("/a/Serve")(), Counter(), patience_s=60) as stream:
            await stream.write(b"x")

    async def give_up() -> set[asyncio.Task[Any]]:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{silent.getsockname()[1]}") as channel:
                writing = asyncio.ensure_future(write(channel))
                for _ in range(5):
                    await asyncio.sleep(0)  # it begins
                writing.cancel()
                others = asyncio.all_tasks() - {asyncio.current_task()}
                return (await asyncio.wait(others, timeout=10))[1]

    assert asyncio.run(give_up()) == set()


class Answered:
    """An RPC whose other end has answered; `over`: with its end, and the reason."""

    def __init__(self, over: bool) -> None:
        self.over = over

    async def initial_metadata(self) -> tuple[()]:
        return ()

    def done(self) -> bool:
        return self.over

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.FAILED_PRECONDITION

    async def details(self) -> str:
        return "go away"


class Aborted:
    """An RPC that the other end, or gRPC, has ended; as gRPC's own is, it is silent about why."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self.status = code

    async def wait_for_connection(self) -> None: ...

    async def write(self, frame: bytes) -> None:
        raise asyncio.InvalidStateError("RPC already finished.")

    def done(self) -> bool:
        return True

    async def code(self) -> grpc.StatusCode:
        return self.status

    async def details(self) -> str:
        return "too large"


@pytest.mark.parametrize(
    ("code", "refuses"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, True),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, True),
        (grpc.StatusCode.UNAVAILABLE, False),
        (grpc.StatusCode.DEADLINE_EXCEEDED, False),
        (grpc.StatusCode.INTERNAL, True),
        (grpc.StatusCode.UNKNOWN, True),
        (grpc.StatusCode.DATA_LOSS, False),
    ],
)
def test_a_write_to_an_rpc_that_is_over_says_why_it_is(
    code: grpc.StatusCode, refuses: bool
) -> None:
    with pytest.raises(RpcFailed, match=f"{code.name}: too large") as failed:
        asyncio.run(Dialled(Aborted(code), Counter(), patience_s=60).write(b"x"))
    assert failed.value.is_refusal is refuses


def test_a_stream_that_is_over_at_once_was_not_accepted() -> None:
    """gRPC returns its metadata all the same."""
    asyncio.run(Dialled(Answered(over=False), Counter(), patience_s=60).accepted())
    refused = Dialled(Answered(over=True), Counter(), patience_s=60)
    with pytest.raises(PeerError, match="FAILED_PRECONDITION: go away"):
        asyncio.run(refused.accepted())
