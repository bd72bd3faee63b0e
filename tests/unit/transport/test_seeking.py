"""Names with many addresses, over loopback: a resolver that the test holds says which."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from mend_optim.protocol.seed_lists import Listing
from mend_optim.protocol.timing import Timing
from mend_optim.protocol.unreached import Unreached
from mend_optim.runtime.off_loop import off_loop
from mend_optim.runtime.resolver import addresses_of, resolve
from mend_optim.transport import background_log
from mend_optim.transport.seeking import Seeking
from tests.unit.transport.recorder import PATIENCE_S, Recorder
from tests.unit.transport.test_grpc_transport import scenario

NAME = "mend.example:29600"
HASTY = Timing(beat_s=0.05, round_timeout_s=5.0, evict_after_s=3.0)


class Names:
    """A name server: what each name has, or nothing."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = list(addresses)
        self.asked = 0
        self.fails = False
        self._called = asyncio.Event()

    async def __call__(self, host: str, port: int) -> list[str]:
        assert (host, port) == ("mend.example", 29600)
        self.asked += 1
        self._called.set()
        if self.fails or not self.addresses:
            raise OSError("no such name")
        return list(self.addresses)

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait for a condition, which is looked at whenever the name is resolved."""
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end, f"{self.addresses} were looked up {self.asked} times"
            self._called.clear()
            await asyncio.wait_for(self._called.wait(), PATIENCE_S)

    async def looked_up(self, times: int = 2) -> None:
        goal = self.asked + times
        await self.until(lambda: self.asked >= goal)


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@scenario
async def test_all_addresses_of_a_name_are_dialled(crew):
    b, c = await crew("b"), await crew("c")
    a = await crew("a", NAME, resolve=Names(b.address, c.address))
    await a.linked_with(b, c)
    assert {seed for _, _, seed in a.of("met")} == {NAME}
    assert {address for _, address, _ in a.of("met")} == {b.address, c.address}


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_addresses_of_both_families_are_dialled():
    @scenario
    async def test(crew):
        b, c = await crew("b"), await crew("c", listen="[::1]:0")
        assert c.address.startswith("[::1]:")
        a = await crew("a", NAME, resolve=Names(c.address, b.address))
        await a.linked_with(b, c)

    test()


@scenario
async def test_newcomers_are_found_and_the_dead_are_dialled_no_more(crew):
    b, c, d = await crew("b"), await crew("c"), await crew("d")
    names = Names(b.address)
    a = await crew("a", NAME, resolve=names, timing=HASTY)
    await a.linked_with(b)
    names.addresses = [c.address, d.address]
    await a.linked_with(c, d)
    await b.transport.stop()
    await a.gone(b)
    names.addresses = [c.address]
    dials = a.transport._dialler._dials
    # d lives, so its link stays; if that breaks, it is not dialled here again
    await names.until(lambda: {at for at, _ in dials} == {c.address, d.address})
    await d.transport.stop()
    await names.until(lambda: {at for at, _ in dials} == {c.address})


@scenario
async def test_a_peer_that_returns_at_another_address_is_found_at_once(crew):
    """The name is resolved again when a link has broken, and not only now and then."""
    slow = Timing(beat_s=2.0, round_timeout_s=5.0, evict_after_s=10.0)
    b = await crew("b")
    names = Names(b.address)
    a = await crew("a", NAME, resolve=names, timing=slow)
    await a.linked_with(b)
    later = await crew("b", incarnation=2)
    names.addresses = [later.address]
    await b.transport.stop()
    await a.linked_with(later)
    assert names.asked <= 3


@scenario
async def test_a_fault_of_the_name_server_takes_nobody_away(crew):
    b = await crew("b")
    names = Names(b.address)
    a = await crew("a", NAME, resolve=names, timing=HASTY)
    await a.linked_with(b)
    names.fails = True
    await names.looked_up()
    a.transport._links.dismiss(a.transport._links.get(b.id))
    await a.until(lambda: a.of("linked") == [(b.id, True), (b.id, False), (b.id, True)])
    assert a.of("unreached") == []


@scenario
async def test_a_name_without_addresses_is_told_and_looked_up_again(crew):
    names = Names()
    a = await crew("a", NAME, resolve=names, timing=HASTY)
    await a.until(lambda: len(a.of("unreached")) >= 2)
    assert set(a.of("unreached")) == {(NAME, Unreached.NAME)}
    b = await crew("b")
    names.addresses = [b.address]
    await a.linked_with(b)


@scenario
async def test_of_a_name_this_learner_itself_is_left_out(crew):
    b, names = await crew("b"), Names()
    a = await crew("a", NAME, resolve=names, timing=HASTY)
    names.addresses = [a.address]
    await a.until(lambda: (NAME, Unreached.ITSELF) in a.of("unreached"))
    names.addresses = [a.address, b.address]
    await a.linked_with(b)
    assert a.of("itself") == []
    assert a.id not in a.up


@scenario
async def test_an_address_of_two_names_counts_for_both(crew):
    b = await crew("b")
    names = Names(b.address)
    a = await crew("a", NAME, b.address, resolve=names)
    await a.until(lambda: {seed for _, _, seed in a.of("met")} == {NAME, b.address})


class Faulty:
    """A list that raises what no list should, so many times, before it has an address."""

    name = "faulty:list"

    def __init__(self, times: int, address: str) -> None:
        self.faults = [ValueError("not foreseen")] * times
        self.address = address

    async def read(self, address: str) -> Listing:
        if self.faults:
            raise self.faults.pop()
        return Listing(seeds=(self.address,))


def test_a_fault_that_nobody_foresaw_ends_no_reading_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @scenario
    async def test(crew):
        b, c = await crew("b"), await crew("c")
        faulty = Faulty(3, b.address)
        a = await crew("a", lists=[faulty], timing=HASTY)
        await a.linked_with(b)
        faulty.address = c.address
        faulty.faults = [ValueError("another one")]
        await a.linked_with(c)

    caplog.set_level(logging.INFO, logger="mend_optim")
    test()
    background_log.flush(PATIENCE_S)
    said = [record for record in caplog.records if record.message.startswith("faulty:")]
    assert [record.levelname for record in said] == ["ERROR", "INFO"] * 2
    assert said[0].message == "faulty:list: could not be read, and is read again"
    faults = [str(record.exc_info[1]) for record in said if record.exc_info]
    assert faults == ["not foreseen", "another one"]


@scenario
async def test_one_closed_port_among_many_addresses_is_not_told(crew):
    """The seed is found: somebody is there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = f"127.0.0.1:{server.getsockname()[1]}"
    b = await crew("b")
    names = Names(closed, b.address)
    a = await crew("a", NAME, resolve=names, timing=HASTY)
    await a.linked_with(b)
    a.events.clear()
    await names.looked_up()
    assert a.of("unreached") == []


def test_the_system_resolver_returns_addresses_to_dial():
    found = addresses_of("localhost", 29600)
    assert found
    assert set(found) <= {"127.0.0.1:29600", "[::1]:29600"}
    assert asyncio.run(resolve("localhost", 29600)) == found


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 64 + ".example"])
def test_a_name_that_has_no_address_is_an_os_error(host):
    with pytest.raises(OSError):  # noqa: PT011
        addresses_of(host, 1)


def test_blocking_work_raises_what_it_raises_and_holds_nobody_up():
    def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        asyncio.run(off_loop(fail, "test"))


def test_a_name_that_no_thread_can_resolve_now_is_an_os_error(monkeypatch):
    """So it is resolved again, as after a fault of a name server."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(OSError, match="too many threads"):
        asyncio.run(resolve("mend.example", 1))


def test_news_of_an_address_does_not_outweigh_the_end():
    """Before Python 3.12, `asyncio.wait_for` loses a cancellation that comes with the result."""

    async def end_as_news_comes() -> int:
        names = Names("127.0.0.1:1")
        seeking = Seeking(Recorder("a"), HASTY, names, lambda address, seed: None)
        seeking.begin([NAME], [], "")
        changed = seeking._changed[NAME]
        while not changed._waiters:  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        changed.set()
        await asyncio.sleep(0)
        _, pending = await asyncio.wait(seeking.stop(), timeout=1.0)
        return len(pending)

    assert asyncio.run(end_as_news_comes()) == 0
