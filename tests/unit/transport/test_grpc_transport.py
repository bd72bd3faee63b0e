"""The network, over loopback: the peers that are there, the messages that arrive, and the reports
of those that do not."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from mend_optim.codecs.packing import fresh
from mend_optim.errors import PeerError, UsageError
from mend_optim.protocol.handshake import Life, Namesake
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import (
    Beat,
    Call,
    Goodbye,
    Offer,
    Rumor,
    Seal,
    State,
    Want,
)
from mend_optim.protocol.timing import Timing
from mend_optim.protocol.transfer_fault import BROKEN, Cause, TransferFault
from mend_optim.protocol.unreached import Unreached
from mend_optim.runtime.resolver import resolve
from mend_optim.transport import control, dialler, grpc_setup, grpc_transport, wire
from mend_optim.transport import server as room
from mend_optim.transport.address import parse_address
from mend_optim.transport.connection import CALLER, SERVICE
from mend_optim.transport.control import HELLO
from mend_optim.transport.dialler import HEARSAY_DIALS
from mend_optim.transport.frames import ACK, to_frames
from mend_optim.transport.grpc_transport import Transport
from mend_optim.transport.lanes import MOST_IN_ALL
from mend_optim.transport.late_events import is_late
from mend_optim.transport.security.channels import Plaintext
from mend_optim.transport.transfers import UNEXPLAINED
from tests.support.addresses import port_of_all_hosts
from tests.unit.transport.recorder import (
    LIMIT,
    PATIENCE_S,
    Recorder,
    contents,
    offer_of,
    packet,
    seal_of,
    state_of,
)

grpc = room.grpc  # not imported here: its first importer decides about its fork handlers
LOOPBACK = "127.0.0.1:0"
TIMING = Timing(beat_s=0.1, round_timeout_s=5.0, evict_after_s=3.0)
HERE_128 = "sync_every: here 128, there 64; pass the same sync_every to both"
HERE_64 = "sync_every: here 64, there 128; pass the same sync_every to both"
HASTY = Timing(beat_s=0.1, round_timeout_s=0.3, evict_after_s=3.0)
#: "Internal" is what gRPC tells a caller that is still writing when it is refused.
REFUSED = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL)
#: Silence breaks no link, and no transfer, while a test waits.
PATIENT = Timing(beat_s=0.1, round_timeout_s=600.0, evict_after_s=600.0)


class Learner(Recorder):
    """A recorder with the transport that tells it."""

    def __init__(
        self,
        name: str,
        *seeds: str,
        listen: str | None = LOOPBACK,
        incarnation: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(name, incarnation)
        options = {
            "advertise": None,
            "timing": TIMING,
            "allocate": fresh,
            "resolve": resolve,
            "limit": [LIMIT, LIMIT].__getitem__,
            **options,
        }
        self.transport = Transport(self, listen=listen, seeds=seeds, **options)
        self.address = ""

    async def gone(self, other: Learner) -> None:
        await self.until(lambda: self.up.get(other.id) is False)

    async def linked_with(self, *others: Learner) -> None:
        await self.until(lambda: all(self.up.get(other.id) for other in others))


class Crew:
    """Starts learners, and stops them all at the end of a test."""

    def __init__(self) -> None:
        self.learners: list[Learner] = []

    async def __call__(self, name: str, *seeds: str, **options: Any) -> Learner:
        learner = Learner(name, *seeds, **options)
        self.learners.append(learner)
        learner.address = await learner.transport.start()
        return learner

    async def pair(self, **options: Any) -> tuple[Learner, Learner]:
        """Two learners; the first has dialled the second."""
        b = await self("b", **options)
        a = await self("a", b.address, **options)
        await a.linked_with(b)
        await b.linked_with(a)
        return a, b


def scenario(test: Callable[[Crew], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run an asynchronous test. Nothing may be left running, and no task may have died of an
    exception."""

    def run() -> None:
        asyncio.run(body())

    async def body() -> None:
        faults: list[dict[str, Any]] = []

        def note(_: object, context: dict[str, Any]) -> None:
            if not is_late(context):  # of another test's loop
                faults.append(context)

        asyncio.get_running_loop().set_exception_handler(note)
        crew = Crew()
        try:
            await test(crew)
        finally:
            await asyncio.gather(*(learner.transport.stop() for learner in crew.learners))
        gc.collect()
        await asyncio.sleep(0)
        assert faults == []

    run.__name__ = test.__name__
    return run


class Cable:
    """A TCP connection that can be cut, or made to stand still."""

    def __init__(self, address: str) -> None:
        self._target = parse_address("target", address)
        self._writers: list[asyncio.StreamWriter] = []
        self._flows = asyncio.Event()
        self._flows.set()
        self.passed = 0
        self.stop_after: float = float("inf")
        #: Bytes that are changed the next time that they pass.
        self.spoils = b""

    async def plug(self, host: str = "127.0.0.1") -> str:
        self._server = await asyncio.start_server(self._connect, host, 0)
        return f"{host}:{self._server.sockets[0].getsockname()[1]}"

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(*self._target)
        self._writers += [writer, there_writer]
        await asyncio.gather(self._pump(reader, there_writer), self._pump(there_reader, writer))
        for each in (writer, there_writer):
            with suppress(OSError):  # asyncio would tell of an error that nobody has seen
                await each.wait_closed()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                self.passed += len(data)
                if self.passed > self.stop_after:
                    self.stop_after = float("inf")
                    self.hold()
                await self._flows.wait()
                if self.spoils and self.spoils in data:
                    data = data.replace(self.spoils, self.spoils[::-1])
                    self.spoils = b""
                writer.write(data)
                await writer.drain()
            writer.close()

    def hold(self) -> None:
        """Let nothing through, and tell nobody."""
        self._flows.clear()

    def flow(self) -> None:
        self._flows.set()

    def cut(self) -> None:
        """Break every connection; new ones may come."""
        self._flows.set()
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def unplug(self) -> None:
        self._server.close()
        self.cut()
        await self._server.wait_closed()


@pytest.mark.parametrize(
    "options",
    [
        {"listen": "nowhere"},
        {"advertise": "x"},
        {"advertise": "host:0"},
        {"seeds": ("a:1", "b")},
        {"seeds": (":1",)},
    ],
)
def test_bad_addresses_are_refused_at_construction(options):
    seeds = options.pop("seeds", ())
    with pytest.raises(UsageError, match="must be an address"):
        Learner("a", *seeds, **options)


# ── hello ─────────────────────────────────────────────────────────────────────────────────────────


@scenario
async def test_what_cannot_be_sent_in_time_is_given_up_in_silence(crew: Crew) -> None:
    a, _ = await crew.pair()
    for link in a.transport._links:
        link.open_request("pull", 0)  # nothing takes its messages
    await a.transport.stop()


@scenario
async def test_two_learners_meet_and_each_knows_where_to_dial_the_other(crew):
    a, b = await crew.pair()
    assert a.of("met") == [(b.id, b.address, b.address)]
    assert b.of("met") == [(a.id, a.address, "")]


@scenario
async def test_a_different_policy_is_refused_on_both_sides_and_reported_once(crew):
    b = await crew("b", timing=Timing(beat_s=0.01, evict_after_s=3.0))
    b.policy = (("sync_every", "64"),)
    a = await crew("a", b.address, timing=Timing(beat_s=0.01, evict_after_s=3.0))
    await a.until(lambda: a.of("refused"))
    assert a.of("refused") == [(b.address, HERE_128)]
    assert b.of("refused") == [(a.address, HERE_64)]
    assert set(a.of("refused at")) == {(b.address, HERE_128)}
    assert b.of("refused at") == []  # b did not dial
    for learner in (a, b):
        ((peer, reason, _),) = learner.transport.refusals.counted()
        assert (peer, reason) == ("", HELLO)
    b.policy = a.policy  # it is tried again, and reported no more
    await a.linked_with(b)
    assert len(a.of("refused")) == len(b.of("refused")) == 1


@scenario
async def test_a_refusal_tells_no_more_than_the_first_difference(crew):
    b = await crew("b")
    b.policy = (("sync_every", "64"), ("codec", "none"))
    channel = grpc.aio.insecure_channel(b.address)
    said = wire.encode_hello(replace(b.hello(), peer=PeerId("a", 1), policy=(("sync_every", "8"),)))
    answer = await channel.unary_unary(f"/{SERVICE}/Hello")(said)
    await channel.close()
    told = wire.decode_hello(answer)
    assert (told.model, told.policy) == ((), ())
    assert told.refusal == "sync_every: here 8, there 64; pass the same sync_every to both"


@scenario
async def test_a_caller_refuses_in_nobodys_name(crew):
    """It tells the address of somebody else, such as a seed, as its own."""
    a = await crew("a")
    said = replace(a.hello(), peer=PeerId("b", 1), address="127.0.0.1:9", refusal="go away")
    async with grpc.aio.insecure_channel(a.address) as channel:
        await channel.unary_unary(f"/{SERVICE}/Hello")(wire.encode_hello(said))
    assert a.of("refused") == [("127.0.0.1:9", "go away")]
    assert a.of("refused at") == []


@scenario
async def test_one_name_twice_is_refused(crew):
    b = await crew("same", incarnation=1)
    a = await crew("same", b.address, incarnation=2)
    await a.until(lambda: a.of("refused"))
    assert "give every learner a name of its own" in a.of("refused")[0][1]


@scenario
async def test_a_learner_recognises_itself(crew):
    a = await crew("a")
    port = parse_address("listen", a.address)[1]
    await a.transport.stop()
    a = await crew("a", f"127.0.0.1:{port}", f"localhost:{port}", listen=f"127.0.0.1:{port}")
    await a.until(lambda: len(a.of("itself")) == 2)
    assert {seed for (seed,) in a.of("itself")} == {f"127.0.0.1:{port}", f"localhost:{port}"}
    assert a.of("met") == a.of("refused") == []


@scenario
async def test_a_port_in_use_is_the_users_error(crew):
    a = await crew("a")
    b = Learner("b", listen=a.address)
    with pytest.raises(
        UsageError, match=f"listen must be .* free port, got '{a.address}'; another process may use"
    ):
        await b.transport.start()
    await b.transport.stop()


@scenario
async def test_a_process_whose_namesake_lives_is_refused_on_both_sides(crew):
    b = await crew("b")
    b.newest["a"] = 7
    a = await crew("a", b.address)
    known = Namesake(PeerId("a", 7), Life.ALIVE)
    await a.until(lambda: a.of("outranked"))
    assert a.of("outranked")[0] == (b.address, known)
    assert b.of("refused") == [(a.address, known.reason(a.id))]
    assert a.of("met") == b.of("met") == []


@scenario
async def test_a_process_whose_namesake_is_suspected_asks_until_it_is_gone(crew):
    b = await crew("b")
    b.newest["a"], b.lives["a"] = 7, Life.SUSPECTED
    a = await crew("a", b.address)
    await a.until(lambda: len(a.of("outranked")) > 1)
    assert a.id == PeerId("a", 1)
    b.lives["a"] = Life.GONE
    await a.linked_with(b)
    assert a.id == PeerId("a", 1).beyond(7)
    await b.linked_with(a)
    assert b.of("refused") == a.of("refused") == []


@scenario
async def test_a_process_that_is_dialled_hears_of_its_namesake_too(crew):
    """The one that knows of it dials, and cannot be dialled."""
    a = await crew("a")
    b = await crew("b", a.address, listen=None)
    b.newest["a"], b.lives["a"] = 7, Life.GONE
    await b.linked_with(a)
    assert a.id == PeerId("a", 1).beyond(7)
    assert a.of("outranked") == [("b", Namesake(PeerId("a", 7), Life.GONE))]


@scenario
async def test_a_want_that_has_no_answer_is_told_of_before_the_end_or_never(crew):
    a = await crew("a")
    b = await crew("b", a.address, listen=None)
    await a.linked_with(b)
    a.transport.send(b.id, Want(a.id, 0, b""), "")
    link = a.transport._links.get(b.id)
    ((_, timer),) = link.asked.values()
    await a.transport.stop()
    assert timer.cancelled()
    assert a.of("undelivered") == []


async def says_hello_again(crew: Crew, *losers: str) -> None:
    """a dials b, and these of the two evict the other. Their stream still stands, but no beat goes
    to a peer that is on the roster no more."""
    b = await crew("b", timing=HASTY)
    a = await crew("a", b.address, timing=HASTY)
    await a.linked_with(b)
    await b.linked_with(a)
    for learner, other in ((a, b), (b, a)):
        if learner.id.name in losers:
            learner.lost.add(other.id)
    for learner in (a, b):
        await learner.until(lambda one=learner: len(one.of("linked")) >= 3)
        assert [up for _, up in learner.of("linked")][:3] == [True, False, True]
    assert a.lost == b.lost == set()


@scenario
async def test_the_caller_hangs_up_on_a_peer_that_it_has_evicted(crew):
    await says_hello_again(crew, "a")


@scenario
async def test_the_callee_hangs_up_on_a_peer_that_it_has_evicted(crew):
    await says_hello_again(crew, "b")


@scenario
async def test_two_that_have_evicted_each_other_say_hello_again(crew):
    await says_hello_again(crew, "a", "b")


@scenario
async def test_with_another_incarnation_all_links_are_made_anew(crew):
    """Those of its own dialling, and those of the peers' dialling."""
    b = await crew("b")
    a = await crew("a", b.address)
    c = await crew("c", a.address)
    await a.linked_with(b, c)
    former = a.id
    d = await crew("d", a.address, listen=None)
    d.newest["a"], d.lives["a"] = 7, Life.GONE
    await d.linked_with(a)
    await b.linked_with(a)
    await c.linked_with(a)
    assert a.id != former
    assert not b.up[former]
    assert not c.up[former]
    a.transport.send(b.id, Call(a.id, 0), "")
    await b.until(lambda: b.messages(Call))
    await a.until(lambda: a.up.get(b.id) and a.up.get(c.id))


@scenario
async def test_a_link_with_a_past_incarnation_is_cut(crew):
    """The handler may hear of a later process of that name from others. Then the next hello of the
    earlier one is told so."""
    a, b = await crew.pair()
    b.newest["a"] = 7
    await b.gone(a)
    await a.until(lambda: a.of("outranked"))


@scenario
async def test_a_newcomer_to_a_run_at_its_end_is_refused(crew):
    b = await crew("b")
    b.met = lambda id, address, seed: False
    a = await crew("a", b.address)
    await a.until(lambda: a.of("refused"))
    assert "the run is at its end" in a.of("refused")[0][1]


@scenario
async def test_a_peer_is_dialled_once_however_many_addresses_it_has(crew):
    b = await crew("b")
    other = b.address.replace("127.0.0.1", "localhost")
    a = await crew("a", b.address, other)
    await a.until(lambda: {seed for _, _, seed in a.of("met")} == {b.address, other})
    a.known = [(b.id, b.address), (b.id, other)]
    await a.linked_with(b)
    link = b.transport._links.get(a.id)
    await b.linked_with(a)
    assert len(link.streams) == 1


@scenario
async def test_peers_heard_of_are_dialled(crew):
    a, b = await crew("a"), await crew("b")
    a.known = [(b.id, b.address)]
    await a.linked_with(b)


@scenario
async def test_eight_that_are_known_by_hearsay_are_dialled_at_a_time(crew):
    """Nobody answers at these: each hello lasts until its deadline, and then another has its
    turn."""
    silent = [socket.create_server(("127.0.0.1", 0), backlog=64) for _ in range(20)]
    assert await most_hellos(crew, silent, 3 * HEARSAY_DIALS) == HEARSAY_DIALS


@scenario
async def test_an_address_is_dialled_once_at_a_time_however_many_names_it_has(crew):
    silent = socket.create_server(("127.0.0.1", 0), backlog=64)
    assert await most_hellos(crew, [silent] * 20, 3) == 1


async def most_hellos(crew, silent, count):
    """How many hellos of a learner are under way at a time, while it says so many. It has heard of
    a peer at each of these servers, which answer nothing."""
    a = await crew("a", timing=Timing(beat_s=0.05, evict_after_s=0.5, round_timeout_s=5.0))
    addresses = [f"127.0.0.1:{server.getsockname()[1]}" for server in silent]
    greeted, open_now, most = [], 0, 0
    say_hello = dialler.Connection.hello

    async def counted(connection, mine, timeout_s):
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        try:
            return await say_hello(connection, mine, timeout_s)
        finally:
            greeted.append(connection)
            open_now -= 1
            a._changed.set()

    with patch.object(dialler.Connection, "hello", counted):
        a.known = [(PeerId(f"phantom {n}", 1), address) for n, address in enumerate(addresses)]
        await a.until(lambda: len(greeted) >= count)
        a.known = []
    for server in silent:
        server.close()
    return most


@scenario
async def test_a_learner_that_keeps_to_this_machine_dials_nobody_beyond(crew):
    """The peer is of a run that leaves the machine, so it tells of others, and its own address."""
    beyond = "192.0.2.7:29600"
    b, c = await crew("b"), await crew("c", advertise=beyond)
    a = await crew("a", security=Plaintext("here", is_local=True))
    connect, opened = a.transport._dialler._connect, []

    def opening(address, patience_s, name):
        opened.append(address)
        return connect(address, patience_s, name)

    with (
        patch.object(dialler.log, "warning") as warned,
        patch.object(a.transport._dialler, "_connect", opening),
    ):
        c.known = [(a.id, a.address)]  # it calls, and says where to dial it
        await a.linked_with(c)
        a.known = [(PeerId("afar", 1), beyond), (c.id, beyond), (b.id, b.address)]
        await a.linked_with(b)
    assert opened == [b.address]
    warned.assert_called_once_with(dialler.BEYOND, "a", "afar", beyond)
    # Large messages would take a connection of their own there.
    link = a.transport._links.get(c.id)
    assert link is not None
    assert not link.address


@scenario
async def test_nothing_is_opened_for_an_address_before_its_turn(crew):
    a = await crew("a")
    dials, opened, greeted = a.transport._dialler, [], []
    connect = dials._connect

    def opening(address, patience_s, name):
        opened.append(address)
        return connect(address, patience_s, name)

    async def unanswered(connection, mine, timeout_s):
        greeted.append(connection)
        a._changed.set()
        await asyncio.Event().wait()

    with (
        patch.object(dials, "_connect", opening),
        patch.object(dialler.Connection, "hello", unanswered),
    ):
        a.known = [(PeerId(f"phantom {n}", 1), f"127.0.0.1:{n + 1}") for n in range(20)]
        await a.until(lambda: len(greeted) == HEARSAY_DIALS)
        assert len(opened) == HEARSAY_DIALS
        a.known = []  # nobody tells of the others any more
        for task in list(dials._dials.values())[:HEARSAY_DIALS]:
            task.cancel()
        await asyncio.wait(dials._dials.values(), timeout=30.0)
        assert len(opened) == HEARSAY_DIALS


async def turns(dials, contact, fails):
    """How many of many dials of a contact have their turn, or have had it, in its first
    hour."""
    entered = []

    async def dial():
        with suppress(PeerError):
            async with dials._turn("127.0.0.1:1", contact):
                entered.append(contact)
                if fails:
                    raise PeerError("nobody answers")

    hour = Timing(beat_s=3600.0, evict_after_s=36000.0, round_timeout_s=36000.0)
    with patch.object(dials, "_timing", hour):
        tasks = [asyncio.create_task(dial()) for _ in range(3 * HEARSAY_DIALS)]
        for _ in range(3 * len(tasks)):  # so often that every task could end
            await asyncio.wait(tasks, timeout=0)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return len(entered)


@scenario
async def test_a_dead_address_keeps_its_turn_for_a_while(crew):
    """An insider may tell of many dead addresses, and this learner has better things to do. A
    learner that answers makes room at once."""
    a, b = await crew.pair()
    dials, phantom = b.transport._dialler, PeerId("phantom", 1)
    assert await turns(dials, phantom, fails=True) == HEARSAY_DIALS
    assert await turns(dials, phantom, fails=False) == 3 * HEARSAY_DIALS
    for known in (a.id, None):  # it has agreed before; a seed
        assert await turns(dials, known, fails=True) == 3 * HEARSAY_DIALS


@scenario
async def test_a_peer_with_too_many_streams_open_is_told_to_come_back(crew):
    a, b = await crew.pair()
    link, served = a.transport._links.get(b.id), b.transport._links.get(a.id)
    served.served += 10_000
    # A write that fails may hide the words of the other end.
    with (
        a.transport._open_bulk(link, "Pull") as stream,
        pytest.raises(PeerError, match="RESOURCE_EXHAUSTED: peer a#1 has 1"),
    ):
        await stream.accepted()
    served.served -= 10_000
    (refused,) = b.transport.refusals.counted()
    assert refused.peer == "a"


@scenario
async def test_a_message_that_anybody_may_send_is_not_read_at_once(crew):
    """It would take up memory from its first byte on."""
    a, b = await crew.pair()
    async with grpc.aio.insecure_channel(b.address) as channel:
        reads = b.transport._server._first_messages
        with patch.object(reads, "read", side_effect=PeerError("not its turn")):
            for method in ("Hello", "Watch"):
                call = channel.stream_stream(f"/{SERVICE}/{method}")
                rpc = call(metadata=((CALLER, wire.encode_id(a.id)),))
                assert await asyncio.wait_for(rpc.details(), PATIENCE_S) == "not its turn"


@scenario
async def test_hellos_that_come_too_fast_are_refused(crew):
    b = await crew("b")
    b.transport._server._hellos._left = -1e9
    b.transport._server._hellos._looked_at = asyncio.get_running_loop().time()
    async with grpc.aio.insecure_channel(b.address) as channel:
        with pytest.raises(grpc.RpcError) as refused:  # at once: it would wait for days
            await channel.unary_unary(f"/{SERVICE}/Hello")(b"", timeout=PATIENCE_S)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    a = await crew("a", b.address)
    await a.until(lambda: a.of("unreached"))
    causes = {cause for _, cause in a.of("unreached")}
    assert causes == {Unreached.ANSWER}  # a refusal is not silence
    b.transport._server._hellos._left = -1e3
    await a.linked_with(b)


@scenario
async def test_a_learner_that_listens_everywhere_is_dialled_where_it_is_seen(crew):
    a = await crew("a", listen="0.0.0.0:0")
    assert a.address.startswith(":")
    b = await crew("b")
    a.known = [(b.id, b.address)]
    await b.until(lambda: b.of("met") == [(a.id, "127.0.0.1" + a.address, "")])
    await a.linked_with(b)
    rumors = (
        Rumor(PeerId("c", 1), "", 1),
        Rumor(PeerId("d", 1), ":9", 1),
        Rumor(PeerId("e", 1), "there:9", 1),
    )
    a.transport.send(b.id, Beat(peer=a.id, address=a.address, count=1, roster=rumors), "")
    await b.until(lambda: b.messages(Beat))
    (beat,) = b.messages(Beat)
    assert beat.address == "127.0.0.1" + a.address
    assert [rumor.address for rumor in beat.roster] == ["", "127.0.0.1:9", "there:9"]


@scenario
async def test_bulky_messages_go_where_a_peer_was_reached_not_where_it_says_it_is(crew):
    there = f"127.0.0.1:{port_of_all_hosts()}"
    b = await crew("b", listen=there, advertise="127.0.0.1:1")
    a = await crew("a")
    b.known = [(a.id, a.address)]
    await a.linked_with(b)  # b dialled, and said where it is to be dialled; nobody is there
    a.transport.send(b.id, offer_of(a), "")
    await a.until(lambda: a.of("undelivered"))
    a.known = [(b.id, there)]
    await a.until(lambda: len(a.of("met")) == 2)
    while not a.transport._links.get(b.id).dialled:
        await asyncio.sleep(TIMING.beat_s)
    a.transport.send(b.id, offer_of(a), "")
    await a.until(lambda: a.of("delivered"))


@pytest.mark.parametrize("moves", [True, False], ids=["moves", "stays"])
def test_a_peer_that_has_moved_is_dialled_where_its_calls_come_from(moves, monkeypatch):
    """One that has not is dialled where it was: the proxy of a container may call in its place."""

    @scenario
    async def run(crew):
        calls_from = ["127.0.0.3"]
        monkeypatch.setattr(room, "host_of", lambda _: calls_from[-1])
        b = await crew("b", listen="0.0.0.0:0")
        there = Cable("127.0.0.1" + b.address)
        former = await there.plug("127.0.0.2")
        a = await crew("a", former)
        await a.linked_with(b)
        back = Cable(a.address)
        b.known = [(a.id, await back.plug())]
        link = a.transport._links.get(b.id)
        while len(link.streams) < 2:
            await asyncio.sleep(TIMING.beat_s)
        if moves:
            calls_from.append("127.0.0.1")
        calls = len(b.of("met"))
        back.cut()
        await b.until(lambda: len(b.of("met")) > calls)
        while len(link.streams) < 2:
            await asyncio.sleep(TIMING.beat_s)
        assert link.dialled
        assert link.address == former
        await there.unplug()  # only b's call goes on
        while link.dialled:
            await asyncio.sleep(TIMING.beat_s)
        b.transport.send(a.id, Beat(peer=b.id, address=b.address, count=1), "")
        await a.until(lambda: a.messages(Beat))
        (beat,) = a.messages(Beat)
        assert beat.address == ("127.0.0.1" if moves else "127.0.0.2") + b.address
        if moves:
            a.known = [(b.id, beat.address)]  # as the roster lists it from here on
            while link.address == former:
                await asyncio.sleep(TIMING.beat_s)
            a.transport.send(b.id, offer_of(a), "")
            await a.until(lambda: a.of("delivered"))
        await back.unplug()

    run()


@scenario
async def test_a_proxy_in_the_environment_is_not_for_peers(crew):
    with pytest.MonkeyPatch.context() as patch:
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            patch.setenv(name, "http://127.0.0.1:9")
        await crew.pair()


@pytest.mark.parametrize("listen", [":0", "0.0.0.0:0", "localhost:0"])
def test_a_learner_may_listen_everywhere_or_by_name(listen):
    @scenario
    async def run(crew):
        b = await crew("b", listen=listen)
        a = await crew("a", "localhost:" + b.address.rpartition(":")[2])
        await a.linked_with(b)

    run()


@scenario
async def test_what_is_advertised_is_told(crew):
    a = await crew("a", advertise="127.0.0.2:5")
    assert a.address == "127.0.0.2:5"


# ── control ───────────────────────────────────────────────────────────────────────────────────────


@scenario
async def test_control_messages_go_both_ways_with_a_learner_that_nobody_can_dial(crew):
    b = await crew("b")
    a = await crew("a", b.address, listen=None)
    await b.linked_with(a)
    await a.linked_with(b)
    assert a.address == b.of("met")[0][1] == ""
    up, down = Beat(peer=a.id, address="", count=2**61, tokens=2**62), Call(b.id, 1)
    a.transport.send(b.id, up, "")
    b.transport.send(a.id, down, "")
    await b.until(lambda: b.messages(Beat) == [up])
    await a.until(lambda: a.messages(Call) == [down])


@scenario
async def test_an_address_that_nobody_dials_is_shown_no_more_until_somebody_does(crew):
    b = await crew("b")
    a = await crew("a", b.address, timing=Timing(beat_s=0.02, evict_after_s=0.1))
    await a.until(lambda: a.of("undialled") == [(a.address, (b.id,))])
    assert a.shown[:2] == [a.address, ""]
    assert a.transport._hello().address == a.shown[-1]
    link = b.transport._links.get(a.id)
    assert link.address == a.address
    a.transport.send(b.id, Beat(peer=a.id, address="", count=1), "")
    await b.until(lambda: b.messages(Beat))
    assert link.address == ""
    c = await crew("c", a.address)
    await a.until(lambda: a.of("dialled") == [(a.address,)])
    assert a.shown[-1] == a.address
    (met,) = [address for id, address, _ in c.of("met") if id == a.id]
    assert met == a.address
    await c.transport.stop()
    await a.until(lambda: len(a.of("undialled")) == 2)
    assert a.shown[-1] == ""


@scenario
async def test_an_address_that_was_dialled_stays_whatever_the_peer_shows(crew):
    """The user knows it, and it works."""
    a, b = await crew.pair()
    b.transport.send(a.id, Beat(peer=b.id, address="", count=1), "")
    await a.until(lambda: a.messages(Beat))
    assert a.transport._links.get(b.id).address == b.address


@scenario
async def test_a_message_in_the_name_of_another_breaks_the_stream(crew):
    a, b = await crew.pair()
    a.transport.send(b.id, Goodbye(PeerId("c", 1)), "")
    await b.gone(a)
    assert b.messages(Goodbye) == []


@scenario
async def test_a_dead_peer_is_noticed_at_once(crew):
    a, b = await crew.pair(timing=PATIENT)
    cable = Cable(a.address)
    c = await crew("c", await cable.plug(), timing=PATIENT)
    await c.linked_with(a)
    await cable.unplug()
    await asyncio.gather(c.gone(a), a.gone(c))
    await b.transport.stop()
    await a.gone(b)


@scenario
async def test_a_restarted_peer_is_found_again(crew):
    a, b = await crew.pair()
    await b.transport.stop()
    await a.gone(b)
    again = await crew("b", listen=b.address, incarnation=2)
    await a.linked_with(again)
    await again.linked_with(a)
    a.transport.send(b.id, Call(a.id, 0), "")  # to the past incarnation: nobody
    a.transport.send(again.id, Call(a.id, 1), "")
    await again.until(lambda: again.messages(Call) == [Call(a.id, 1)])


@scenario
async def test_a_broken_connection_is_dialled_again(crew):
    b = await crew("b")
    cable = Cable(b.address)
    a = await crew("a", await cable.plug())
    for times in (1, 2, 3):
        await a.until(lambda times=times: a.of("linked").count((b.id, True)) == times)
        cable.cut()
    await a.linked_with(b)
    await cable.unplug()


@scenario
async def test_a_connection_that_failed_is_gone_at_once(crew):
    """And not when the garbage collector comes by, which beside a large model is seldom: gRPC goes
    on dialling."""
    b = await crew("b")
    await b.transport.stop()
    a = Learner("a", b.address, timing=replace(TIMING, beat_s=0.01))
    enough, visits = asyncio.Event(), itertools.count(1)
    connect = a.transport._dialler._connect

    def counted(*arguments: Any) -> Any:
        if next(visits) == 6:
            enough.set()
        return connect(*arguments)

    a.transport._dialler._connect = counted
    crew.learners.append(a)
    gc.collect()
    gc.disable()
    try:
        await a.transport.start()
        await asyncio.wait_for(enough.wait(), PATIENCE_S)
        calls = [
            thing for thing in gc.get_objects() if issubclass(type(thing), grpc.aio.UnaryUnaryCall)
        ]
        assert len(calls) <= 1, "a call keeps its connection"
    finally:
        gc.enable()


@pytest.mark.parametrize("leaver", ["dialler", "dialled"])
def test_a_goodbye_is_sent_before_the_end(leaver, monkeypatch):
    """And the end waits for nothing else."""
    monkeypatch.setattr(grpc_transport, "FLUSH_S", 2 * PATIENCE_S)
    monkeypatch.setattr(control, "LINGER_S", 2 * PATIENCE_S)

    @scenario
    async def run(crew):
        a, b = await crew.pair()
        leaving, staying = (a, b) if leaver == "dialler" else (b, a)
        for fragment in range(50):
            leaving.transport.send(staying.id, Call(leaving.id, fragment), "")
        leaving.transport.send(staying.id, Goodbye(leaving.id), "")
        await asyncio.wait_for(leaving.transport.stop(), PATIENCE_S)
        await staying.gone(leaving)
        assert len(staying.messages(Call)) == 50
        assert staying.messages(Goodbye) == [Goodbye(leaving.id)]

    run()


@scenario
async def test_stopping_is_idempotent_and_silences(crew):
    a, b = await crew.pair()
    await a.transport.stop()
    await a.transport.stop()
    told = len(a.events)
    a.transport.send(b.id, offer_of(a), "")
    await b.gone(a)
    assert a.events[told:] == []


# ── exchange ──────────────────────────────────────────────────────────────────────────────────────


@scenario
async def test_an_offer_goes_up_and_seals_come_down_until_one_holds_it(crew):
    a, b = await crew.pair()
    offer = offer_of(a, size=(1 << 20) - 4)
    a.transport.send(b.id, offer, "")
    await a.until(lambda: a.of("delivered") == [(b.id, offer)])
    await b.until(lambda: b.messages(Offer) == [offer])
    assert contents(b.messages(Offer)[0]) == contents(offer)
    assert ("heard", a.id) in b.events
    stranger, last = seal_of(b, version=1), seal_of(b, offer, version=2)
    b.transport.send(a.id, stranger, "exchange")
    b.transport.send(a.id, last, "exchange")
    await a.until(lambda: len(a.messages(Seal)) == 2)
    assert a.messages(Seal) == [stranger, last]
    assert contents(a.messages(Seal)[1]) == contents(last)
    await settled(b, a)
    b.transport.send(a.id, last, "exchange")  # nobody waits for it any more: dropped
    assert a.of("undelivered") == []
    assert a.transport.bytes_sent > offer.sections["delta"].nbytes < b.transport.bytes_received


@scenario
async def test_the_offers_of_several_fragments_have_connections_of_their_own(crew):
    """Each goes up, and its seal comes down, beside the others."""
    a, b = await crew.pair(limit=([LIMIT] * 5).__getitem__)
    *offers, last = [offer_of(a, fragment=p) for p in range(5)]
    for offer in offers:
        a.transport.send(b.id, offer, "")
    await a.until(lambda: len(a.of("delivered")) == len(offers))
    link = a.transport._links.get(b.id)
    assert len(link.lanes.connections) == len(offers)
    a.transport.send(b.id, last, "")  # the others have arrived, and wait for their seals
    await a.until(lambda: len(a.of("delivered")) == len(offers) + 1)
    assert len(link.lanes.connections) == len(offers)
    await b.until(lambda: len(b.messages(Offer)) == len(offers) + 1)
    for offer in (*offers, last):
        b.transport.send(a.id, replace(seal_of(b, offer), fragment=offer.fragment), "exchange")
    await a.until(lambda: len(a.messages(Seal)) == len(offers) + 1)


@scenario
async def test_a_spoke_of_many_learners_opens_few_connections(crew):
    """It has a link with the hub alone. But the hub has one with each of them."""
    a, b = await crew.pair(limit=([LIMIT] * 2).__getitem__)
    a.population = MOST_IN_ALL
    for fragment in range(2):
        a.transport.send(b.id, offer_of(a, fragment=fragment), "")
    await a.until(lambda: len(a.of("delivered")) == 2)
    assert len(a.transport._links.get(b.id).lanes.connections) == 1


@scenario
async def test_a_learner_that_stops_has_no_connection_left(crew):
    """Neither one for bulky messages, nor one that is retired and waits for a seal."""
    caller, called = await crew.pair(limit=([LIMIT] * 2).__getitem__)
    link = called.transport._links.get(caller.id)
    for fragment in range(2):
        called.transport.send(caller.id, offer_of(called, fragment=fragment), "")
        await called.until(lambda told=fragment + 1: len(called.of("delivered")) == told)
        if not fragment:
            link.retire_lanes()
    connections = link.lanes.connections
    assert len(connections) == 2
    await called.transport.stop()
    for connection in connections:
        with pytest.raises(Exception, match=r"(?i)closed"):
            await connection.look(1.0)


@scenario
async def test_a_new_control_stream_brings_new_connections_for_bulky_messages(crew):
    """The way to the peer may be another one by now. An open exchange goes on all the same."""
    a, b = await crew.pair(limit=([LIMIT] * 2).__getitem__)
    offers = [offer_of(a, fragment=p) for p in range(2)]
    a.transport.send(b.id, offers[0], "")
    await a.until(lambda: a.of("delivered"))
    link = a.transport._links.get(b.id)
    old = link.lanes.connections
    link.hung_up()
    a.transport.send(b.id, offers[1], "")
    await a.until(lambda: len(a.of("delivered")) == 2)
    assert link.lanes.connections[0] not in old
    assert link.lanes.connections[1:] == old
    await b.until(lambda: len(b.messages(Offer)) == 2)
    for offer in offers:
        b.transport.send(a.id, replace(seal_of(b, offer), fragment=offer.fragment), "exchange")
    await a.until(lambda: len(a.messages(Seal)) == 2)
    while len(link.lanes.connections) > 1:
        await asyncio.sleep(0.01)
    assert link.lanes.connections[0] not in old


async def settled(server: Learner, client: Learner) -> None:
    """Wait until the server has no stream of the client open that waits for a reply."""
    while server.transport._links.get(client.id).requests:
        await asyncio.sleep(0.01)


@scenario
async def test_an_offer_of_nothing_is_an_offer(crew):
    a, b = await crew.pair()
    offer = replace(offer_of(a), tokens=0, steps=0, sections={})
    b.answer = lambda message: b.transport.send(a.id, seal_of(b, offer), "exchange")
    a.transport.send(b.id, offer, "")
    await a.until(lambda: a.messages(Seal))
    assert b.messages(Offer) == [offer]


@scenario
async def test_a_cut_after_the_upload_is_told_and_offering_again_gives_the_same_seal(crew):
    b = await crew("b")
    cable = Cable(b.address)
    a = await crew("a", await cable.plug())
    await a.linked_with(b)
    offer = offer_of(a)
    a.transport.send(b.id, offer, "")
    await a.until(lambda: a.of("delivered"))
    cable.cut()
    await a.until(lambda: a.of("undelivered") == [(b.id, offer)])
    assert a.transfer_faults == [BROKEN]
    seal = seal_of(b, offer)
    b.answer = lambda message: (
        isinstance(message, Offer) and b.transport.send(a.id, seal, "exchange")
    )

    while not a.messages(Seal):  # as the engine does: offer again after a beat, until it is heard
        failures = len(a.of("undelivered"))
        a.transport.send(b.id, offer, "")
        await a.until(
            lambda failures=failures: a.messages(Seal) or len(a.of("undelivered")) > failures
        )
        await asyncio.sleep(TIMING.beat_s)
    assert a.messages(Seal) == [seal]
    await cable.unplug()


@scenario
async def test_a_newer_offer_quietly_replaces_one_that_waits(crew):
    a, b = await crew.pair()
    c = await crew("c")
    a.known = [(c.id, c.address)]
    await a.linked_with(c)
    for seq in (1, 2):
        a.transport.send(b.id, offer_of(a, seq), "")
        await b.until(lambda seq=seq: len(b.messages(Offer)) == seq)
    a.transport.send(c.id, offer_of(a, 2), "")  # and now to another sealer
    await c.until(lambda: c.messages(Offer))
    await settled(b, a)
    seal = seal_of(c, offer_of(a, 2))
    c.transport.send(a.id, seal, "exchange")
    await a.until(lambda: a.messages(Seal) == [seal])
    assert a.of("undelivered") == []


@scenario
async def test_offers_for_several_fragments_are_open_at_once(crew):
    a, b = await crew.pair()
    offers = [offer_of(a, fragment=p) for p in (0, 1)]
    for offer in offers:
        a.transport.send(b.id, offer, "")
    await b.until(lambda: len(b.messages(Offer)) == 2)
    for offer in offers:
        b.transport.send(a.id, seal_of(b, offer, fragment=offer.fragment), "exchange")
    await a.until(lambda: {seal.fragment for seal in a.messages(Seal)} == {0, 1})


@pytest.mark.parametrize("kind", ["offer", "whole anchor"])
def test_a_seal_overtakes_what_was_on_its_way_to_the_same_peer(kind):
    """Both are as long. Side by side, the seal would come last, because it begins last."""
    size = 24 << 20

    @scenario
    async def run(crew):
        a, b = await crew.pair(limit=[2 * size, 2 * size].__getitem__)
        offer = offer_of(a)
        a.transport.send(b.id, offer, "")
        await b.until(lambda: b.messages(Offer))
        if kind == "offer":
            b.transport.send(a.id, offer_of(b, size=size, fragment=1), "")
        else:
            a.transport.send(b.id, Want(a.id, 1, b""), "")
            await b.until(lambda: b.messages(Want))
            b.transport.send(a.id, state_of(b, size=size // 2, fragment=1), "pull")
        await a.until(lambda: a.of("heard"))
        seal = replace(seal_of(b, offer), sections={"merged": packet(bytes(size))})
        b.transport.send(a.id, seal, "exchange")
        bulky = (Offer, State, Seal)
        await a.until(lambda: len([m for (m,) in a.of("received") if isinstance(m, bulky)]) == 2)
        first, second = (m for (m,) in a.of("received") if isinstance(m, bulky))
        assert isinstance(first, Seal)
        assert not isinstance(second, Seal)

    run()


@scenario
async def test_a_receiver_that_has_no_memory_says_so(crew):
    def fail(message: object) -> None:
        raise MemoryError

    a, b = await crew.pair()
    b.answer = fail
    a.transport.send(b.id, offer_of(a), "")
    await a.until(lambda: a.of("undelivered"))
    assert a.transfer_faults == [TransferFault(Cause.ENDED, "UNKNOWN: MemoryError")]
    assert b.transport.refusals.counted() == (("a", "MemoryError", 1),)


@scenario
async def test_what_the_receiver_must_not_accept_is_undelivered_and_the_link_survives(crew):
    a, b = await crew.pair()
    offer = offer_of(a)
    bad = {
        "oversize": offer_of(a, seq=1, size=LIMIT + 4),
        "no such fragment": replace(offer, seq=2, fragment=2),
        "of another": replace(offer, seq=3, peer=PeerId("c", 1)),
        "unwritable": replace(offer, seq=-1),
    }
    for told, message in enumerate(bad.values()):
        a.transport.send(b.id, message, "")
        await a.until(lambda told=told: len(a.of("undelivered")) == told + 1)
    assert [message.seq for _, message in a.of("undelivered")] == [1, 2, 3, -1]
    *refused, unwritable = a.transfer_faults
    assert {fault.cause for fault in refused} == {Cause.ENDED}
    said = [fault.words for fault in refused]
    assert all(words.startswith("INVALID_ARGUMENT") or words == UNEXPLAINED for words in said)
    assert unwritable == BROKEN  # it never left
    assert b.messages(Offer) == []
    a.transport.send(b.id, offer, "")
    await b.until(lambda: b.messages(Offer) == [offer])


@scenario
async def test_what_cannot_be_sent_is_undelivered(crew):
    a = await crew("a")
    nobody = PeerId("nobody", 1)
    want = Want(a.id, 0, b"")
    for message in (
        offer_of(a),
        want,
        Beat(peer=a.id, address="", count=1),
        Goodbye(a.id),
        state_of(a),
    ):
        a.transport.send(nobody, message, "")
    a.transport.send(nobody, state_of(a), "pull")
    a.transport.send(nobody, seal_of(a), "exchange")
    assert a.of("undelivered") == []  # never from within `send`
    await a.until(lambda: a.of("undelivered") == [(nobody, offer_of(a)), (nobody, want)])


@scenario
async def test_a_peer_that_leaves_ends_what_waits_for_it(crew):
    a, b = await crew.pair()
    offer = offer_of(a)
    a.transport.send(b.id, offer, "")
    await a.until(lambda: a.of("delivered"))
    b.transport.send(a.id, Goodbye(b.id), "")
    await a.until(lambda: a.of("undelivered") == [(b.id, offer)])


@scenario
async def test_a_transfer_that_stands_still_is_given_up_on_both_sides(crew):
    timing = replace(PATIENT, round_timeout_s=HASTY.round_timeout_s)
    b = await crew("b", timing=timing)
    cable = Cable(b.address)
    a = await crew("a", await cable.plug(), timing=timing)
    await a.linked_with(b)
    cable.stop_after = cable.passed + 500_000
    offer = offer_of(a, size=LIMIT)
    a.transport.send(b.id, offer, "")
    await a.until(lambda: a.of("undelivered") == [(b.id, offer)])
    assert b.messages(Offer) == []
    assert a.transfer_faults == [BROKEN]
    await cable.unplug()


@scenario
async def test_a_link_that_died_silently_is_noticed_while_a_transfer_survives_the_outage(crew):
    timing = Timing(beat_s=0.05, round_timeout_s=10.0, evict_after_s=0.6)
    b = await crew("b", timing=timing)
    cable = Cable(b.address)
    a = await crew("a", await cable.plug(), timing=timing)
    await a.linked_with(b)
    cable.stop_after = cable.passed + 500_000
    offer = offer_of(a, size=LIMIT)
    a.transport.send(b.id, offer, "")
    await a.gone(b)
    # long enough to forget a peer that nothing is under way with
    await asyncio.sleep(2 * timing.evict_after_s)
    assert a.of("delivered") == []
    cable.flow()
    await a.until(lambda: a.of("delivered") == [(b.id, offer)])
    await a.linked_with(b)
    b.transport.send(a.id, seal_of(b, offer), "exchange")
    await a.until(lambda: a.messages(Seal))
    assert a.of("undelivered") == []
    await cable.unplug()


@scenario
async def test_a_peer_that_is_gone_for_long_is_a_stranger_again(crew):
    timing = Timing(beat_s=0.05, evict_after_s=0.4)
    a, b = await crew.pair(timing=timing)
    a.transport.send(b.id, offer_of(a), "")
    await a.until(lambda: a.of("delivered"))
    await b.transport.stop()
    await a.until(lambda: a.of("undelivered"))
    while a.transport._links.get(b.id):
        await asyncio.sleep(timing.beat_s)
    again = await crew("b", listen=b.address, timing=timing)
    await a.linked_with(again)


# ── pull and push ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["state", "seal"])
@pytest.mark.parametrize("listens", [True, False], ids=["pulled", "pushed"])
def test_a_want_is_answered(kind, listens):
    """Pulled from a peer that can be dialled; pushed by one that cannot, after a want over its
    control stream."""

    @scenario
    async def run(crew):
        asker = await crew("asker")
        peer = await crew("peer", asker.address, listen=LOOPBACK if listens else None)
        await asyncio.gather(asker.linked_with(peer), peer.linked_with(asker))
        answer = state_of(peer, 200_000) if kind == "state" else seal_of(peer)
        peer.answer = lambda message: peer.transport.send(asker.id, answer, "pull")
        want = Want(asker.id, 0, b"have")
        asker.transport.send(peer.id, want, "")
        await asker.until(lambda: asker.messages(State) + asker.messages(Seal) == [answer])
        assert contents(asker.messages(type(answer))[0]) == contents(answer)
        assert peer.messages(Want) == [want]
        assert asker.of("undelivered") == []
        assert ("heard", peer.id) in asker.events

    run()


@pytest.mark.parametrize("listens", [True, False], ids=["pulled", "pushed"])
def test_a_want_that_nobody_answers_is_undelivered(listens):
    @scenario
    async def run(crew):
        # the peer ends a pull, and the asker the wait for a push
        asker = await crew("asker", timing=TIMING if listens else HASTY)
        peer = await crew("peer", asker.address, listen=LOOPBACK if listens else None, timing=HASTY)
        await asyncio.gather(asker.linked_with(peer), peer.linked_with(asker))
        want = Want(asker.id, 0, b"")
        asker.transport.send(peer.id, want, "")
        await asker.until(lambda: asker.of("undelivered") == [(peer.id, want)])
        ended = TransferFault(Cause.ENDED, "no answer")  # in good order
        fault = ended if listens else TransferFault(Cause.UNANSWERED)
        assert asker.transfer_faults == [fault]
        asker.transport.send(peer.id, want, "")  # and neither is one to a peer that goes away
        await peer.until(lambda: len(peer.messages(Want)) == 2)
        await peer.transport.stop()
        await asker.until(lambda: len(asker.of("undelivered")) == 2)

    run()


@scenario
async def test_a_want_for_a_fragment_that_is_not_there_fails_at_once(crew):
    a, b = await crew.pair(timing=PATIENT)
    a.transport.send(b.id, Want(a.id, 9, b""), "")
    await a.until(lambda: a.of("undelivered"))
    assert b.messages(Want) == []


@scenario
async def test_what_was_not_asked_for_cannot_be_pushed(crew):
    a, b = await crew.pair()
    b.transport.send(a.id, state_of(b), "pull")  # no want, no open pull: it goes by push
    b.transport.send(a.id, state_of(b, fragment=1), "pull")
    await b.until(lambda: len(b.of("undelivered")) == 2)
    assert a.messages(State) == []


@scenario
async def test_an_offer_is_passed_on_beside_ones_own(crew):
    a, b = await crew.pair()
    orphan = replace(offer_of(a, seq=7), peer=PeerId("gone", 1))
    a.transport.send(b.id, offer_of(a), "")
    a.transport.send(b.id, orphan, "pass on")
    await b.until(lambda: b.messages(Offer) and b.of("passed on"))
    (taken,), ((passed, by),) = b.messages(Offer), b.of("passed on")
    assert by == a.id
    assert [(o.peer, o.seq) for o in (taken, passed)] == [(a.id, 1), (orphan.peer, 7)]
    assert a.of("undelivered") == []


@scenario
async def test_only_offers_are_passed_on_and_nobody_offers_for_another_otherwise(crew):
    a, b = await crew.pair()
    foreign = replace(offer_of(a), peer=PeerId("gone", 1))
    async with grpc.aio.insecure_channel(b.address) as channel:
        for method, message in (("PassOn", state_of(a)), ("Exchange", foreign)):
            code = await status_of(channel, method, a.id, *to_frames(message))
            assert code in REFUSED
    assert b.messages(Offer) == b.messages(State) == b.of("passed on") == []


async def spoiled(crew: Crew, **options: Any) -> tuple[Learner, Learner]:
    """The first of two learners has sent an offer to the second one, and a device on the way has
    changed it."""
    b = await crew("b", **options)
    cable = Cable(b.address)
    a = await crew("a", await cable.plug(), **options)
    await a.linked_with(b)
    cable.spoils = bytes(range(3, 9))
    a.transport.send(b.id, offer_of(a), "")
    await a.until(lambda: a.of("undelivered") or a.of("delivered"))
    await cable.unplug()
    return a, b


@scenario
async def test_an_offer_that_a_device_on_the_way_has_changed_is_not_taken(crew):
    a, b = await spoiled(crew)
    assert b.messages(Offer) == a.of("delivered") == []
    assert a.of("undelivered") == [(b.id, offer_of(a))]
    assert a.transfer_faults == [TransferFault(Cause.DAMAGED)]
    (refused,) = b.transport.refusals.counted()
    assert refused == ("a", "bytes changed on the way: they do not match their checksum", 1)


@scenario
async def test_nothing_is_checked_where_no_byte_can_change_without_notice(crew):
    a, b = await spoiled(crew, security=Plaintext("here", is_local=True))
    (offer,) = b.messages(Offer)
    assert contents(offer) != contents(offer_of(a))


# ── strangers and garbage ─────────────────────────────────────────────────────────────────────────


async def status_of(
    channel: grpc.aio.Channel, method: str, caller: PeerId | None, *frames: bytes
) -> grpc.StatusCode:
    metadata = ((CALLER, wire.encode_id(caller)),) if caller else ()
    call = channel.stream_stream(f"/{SERVICE}/{method}")(metadata=metadata)
    with suppress(Exception):
        for frame in frames:
            await call.write(frame)
        await call.done_writing()
    return await call.code()


@scenario
async def test_strangers_and_garbage_are_refused_and_survived(crew):
    a, b = await crew.pair()
    async with grpc.aio.insecure_channel(b.address) as channel:
        for method in ("Control", "Exchange", "Pull", "Push", "PassOn"):
            for stranger in (None, PeerId("stranger", 1), replace_incarnation(a.id)):
                assert (
                    await status_of(channel, method, stranger)
                    is grpc.StatusCode.FAILED_PRECONDITION
                )
        for method in ("Exchange", "Pull", "Push", "PassOn"):
            for frames in (
                [],
                [b""],
                [b"garbage"],
                [ACK],
                [b"\x12\xff\xff"],
                list(to_frames(state_of(a))),
            ):
                assert await status_of(channel, method, a.id, *frames) in REFUSED
        with pytest.raises(grpc.aio.AioRpcError, match="the bytes are not a Hello"):
            await channel.unary_unary(f"/{SERVICE}/Hello")(b"garbage")
        # its stream ends
        assert await status_of(channel, "Control", a.id, b"garbage") is grpc.StatusCode.OK
    a.transport.send(b.id, offer_of(a), "")
    await b.until(lambda: b.messages(Offer))


def replace_incarnation(id: PeerId) -> PeerId:
    return id._replace(incarnation=id.incarnation + 1)


# ── under load ────────────────────────────────────────────────────────────────────────────────────


@scenario
async def test_beats_go_on_while_bulky_messages_do(crew):
    size = 64 << 20
    a, b = await crew.pair(limit=lambda fragment: size)
    payload = {"delta": packet(bytes(size))}

    async def beat() -> None:
        for count in itertools.count():
            a.transport.send(b.id, Beat(peer=a.id, address="", count=count), "")
            await asyncio.sleep(0.01)

    beating = asyncio.ensure_future(beat())
    beats = []
    for seq in range(3):
        before = len(b.messages(Beat))
        a.transport.send(b.id, replace(offer_of(a, seq), sections=payload), "")
        await b.until(lambda seq=seq: len(b.messages(Offer)) == seq + 1)
        beats.append(len(b.messages(Beat)) - before)
        await a.until(lambda seq=seq: len(a.of("delivered")) == seq + 1)
    beating.cancel()
    assert min(beats) > 3


FORK = """
import asyncio, threading
from torch.utils.data import DataLoader, Dataset
from tests.unit.transport.recorder import offer_of, seal_of
from tests.unit.transport.test_grpc_transport import Learner
from mend_optim.protocol.messages import Beat, Offer, Seal

class Numbers(Dataset):
    def __len__(self): return 480
    def __getitem__(self, i): return float(i)

async def traffic(ready, stop):
    b = Learner("b"); b.address = await b.transport.start()
    a = Learner("a", b.address); a.address = await a.transport.start()
    await asyncio.gather(a.linked_with(b), b.linked_with(a))
    def answer(message):
        if isinstance(message, Offer):
            b.transport.send(a.id, seal_of(b, message), "exchange")
    b.answer = answer
    seq = 0
    while not stop.is_set():
        seq += 1
        a.transport.send(b.id, Beat(peer=a.id, address="", count=seq), "")
        b.transport.send(a.id, Beat(peer=b.id, address="", count=seq), "")
        a.transport.send(b.id, offer_of(a, seq, size=200_000), "")
        await a.until(lambda: len(a.messages(Seal)) == seq)
        ready.set()
    await asyncio.gather(a.transport.stop(), b.transport.stop())
    print("seals", seq > 20)

if __name__ == "__main__":
    ready, stop = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(traffic(ready, stop)))
    thread.start()
    assert ready.wait(20)
    batches = 0
    for epoch in range(4):
        loader = DataLoader(Numbers(), batch_size=8, num_workers=2, multiprocessing_context="fork")
        batches += sum(1 for _ in loader)
    stop.set()
    thread.join(20)
    print("batches", batches)
"""


@scenario
async def test_a_grpc_that_cannot_survive_forks_is_told_of(crew):
    told: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grpc_setup, "FORKS_CRASH", True)
        patch.setattr(grpc_setup.log, "warning", told.append)
        await crew("a")
    assert "import mend_optim before grpc" in told[0]


@pytest.mark.parametrize(
    ("before", "crash"),
    [
        ("", False),
        ("import grpc", True),
        ("import os; os.environ['GRPC_ENABLE_FORK_SUPPORT'] = '1'", True),
    ],
    ids=["imported first", "imported second", "switched on by the user"],
)
def test_fork_handlers_are_off_unless_somebody_else_was_first(before, crash):
    code = f"{before}\nimport mend_optim.transport.grpc_setup as setup; print(setup.FORKS_CRASH)"
    assert python("-c", code) == [str(crash)]


def python(*arguments: str) -> list[str]:
    """The words that a fresh interpreter prints; its environment says nothing of gRPC."""
    root = Path(__file__).parents[3]
    environment = {
        name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"
    }
    environment["PYTHONPATH"] = os.pathsep.join([str(root), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split()


def test_workers_of_a_data_loader_may_be_forked_beside_live_traffic(tmp_path):
    """Without `GRPC_ENABLE_FORK_SUPPORT=0` a worker dies by a segmentation fault, most of the
    time."""
    script = tmp_path / "fork.py"
    script.write_text(FORK)
    assert python(str(script)) == ["seals", "True", "batches", "240"]
