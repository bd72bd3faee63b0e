"""The memory and the places of what arrives, in virtual time: whoever waits gets its turn, and
nobody holds more than its share for long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mend_optim.errors import PeerError
from mend_optim.protocol.lineage import PeerId
from mend_optim.transport.inflow import (
    BURST,
    ENTRIES,
    FRAME_COST,
    LARGE_FRAME,
    RATE,
    UNIT,
    Inflow,
)
from mend_optim.transport.receiving import (
    LEAST_RATE,
    SUPERSEDED,
    BusyError,
    Pace,
    Places,
    Receiving,
)
from tests.unit.transport.test_transfers import VirtualLoop

PATIENCE_S = 60.0
TURN_S = PATIENCE_S / 3


def virtual(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        loop = VirtualLoop()
        try:
            loop.run_until_complete(test())
        finally:
            loop.close()

    run.__name__ = test.__name__
    return run


def now() -> float:
    return asyncio.get_running_loop().time()


class Senders:
    """Peers that send offers to one learner."""

    def __init__(self, limit: int) -> None:
        self.receiving = Receiving(lambda: limit, PATIENCE_S)
        self.most = 0
        #: (peer, fragment, when) of all that came whole, and of all that were refused and why.
        self.whole: list[tuple[str, int, float]] = []
        self.refused: list[tuple[str, type, str]] = []

    def send(
        self, peer: str, nbytes: int, takes_s: float, kind: str = "exchange", fragment: int = 0
    ) -> asyncio.Task[None]:
        return asyncio.ensure_future(self._send(peer, nbytes, takes_s, kind, fragment))

    async def _send(self, peer: str, nbytes: int, takes_s: float, kind: str, p: int) -> None:
        async def read(announce: Any) -> None:
            await announce(p, nbytes)
            self.most = max(self.most, self.receiving.nbytes)
            await asyncio.sleep(takes_s)

        try:
            await self.receiving.take(PeerId(peer, 1), kind, read)
            self.whole.append((peer, p, now()))
        except PeerError as fault:
            self.refused.append((peer, type(fault), str(fault)))


@virtual
async def test_sixteen_that_send_at_once_all_get_through_within_the_limit() -> None:
    senders = Senders(limit=250)
    await asyncio.gather(*(senders.send(f"p{i}", 100, 2.0) for i in range(16)))
    assert [peer for peer, _, _ in senders.whole] == [f"p{i}" for i in range(16)]
    assert senders.refused == []
    assert senders.most == 200
    assert now() == 16.0
    assert senders.receiving.nbytes == 0


@virtual
async def test_an_offer_greater_than_the_limit_waits_until_it_is_alone() -> None:
    senders = Senders(limit=250)
    tasks = [senders.send("a", 100, 5.0), senders.send("b", 900, 1.0), senders.send("c", 10, 1.0)]
    await asyncio.gather(*tasks)
    assert senders.whole == [("a", 0, 5.0), ("b", 0, 6.0), ("c", 0, 7.0)]


@virtual
async def test_a_newer_exchange_takes_the_place_of_an_older_one_wherever_that_is() -> None:
    senders = Senders(limit=100)
    tasks = [senders.send("a", 100, 50.0)]
    tasks += [senders.send("b", 100, 1.0) for _ in range(3)]
    tasks += [senders.send("a", 100, 3.0)]
    await asyncio.gather(*tasks)
    assert senders.refused == [(p, PeerError, SUPERSEDED) for p in ("b", "b", "a")]
    assert senders.whole == [("b", 0, 1.0), ("a", 0, 4.0)]


@virtual
async def test_fragments_have_places_of_their_own() -> None:
    senders = Senders(limit=1000)
    await asyncio.gather(*(senders.send("a", 100, 1.0, fragment=p) for p in range(4)))
    assert senders.refused == []
    assert now() == 1.0


@virtual
async def test_what_one_peer_passes_on_comes_one_after_the_other() -> None:
    senders = Senders(limit=1000)
    tasks = [senders.send("a", 100, 1.0, "pass on") for _ in range(3)]
    tasks.append(senders.send("b", 100, 1.0))
    await asyncio.gather(*tasks)
    assert [(peer, at) for peer, _, at in senders.whole] == [
        ("a", 1.0),
        ("b", 1.0),
        ("a", 2.0),
        ("a", 3.0),
    ]


@virtual
async def test_a_peer_that_holds_the_room_gives_way_after_a_turn() -> None:
    senders = Senders(limit=250)
    hog = [senders.send("hog", 120, 10_000.0, fragment=p) for p in range(2)]
    await asyncio.sleep(0)
    honest = senders.send("a", 100, 1.0)
    await asyncio.gather(*hog, honest)
    assert senders.whole == [("a", 0, TURN_S + 1)]
    assert [(peer, kind) for peer, kind, _ in senders.refused] == [("hog", BusyError)] * 2


@virtual
async def test_those_that_want_as_much_do_not_push_each_other_out() -> None:
    senders = Senders(limit=100)
    tasks = [senders.send("a", 100, 1000.0), senders.send("b", 100, 1.0)]
    await asyncio.gather(*tasks)
    ((peer, kind, why),) = senders.refused
    assert (peer, kind) == ("b", BusyError)
    assert why.startswith("100 bytes of offers are on their way; there was no room for 100 more")
    assert senders.whole == [("a", 0, 1000.0)]


@virtual
async def test_one_that_breaks_off_makes_room() -> None:
    senders = Senders(limit=100)
    broken, waits = senders.send("a", 100, 1000.0), senders.send("b", 100, 1.0)
    await asyncio.sleep(5)
    broken.cancel()
    await waits
    assert senders.whole == [("b", 0, 6.0)]


@virtual
async def test_newer_work_takes_the_place_of_older() -> None:
    places = Places()

    async def work(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    older = asyncio.ensure_future(places.run("key", work(9)))
    other = asyncio.ensure_future(places.run("other", work(2)))
    await asyncio.sleep(1)
    assert await places.run("key", work(1)) == 1
    with pytest.raises(PeerError, match=SUPERSEDED):
        await older
    assert await other == 2


@virtual
async def test_a_transfer_may_stand_still_for_its_patience_and_not_creep() -> None:
    pace = Pace(PATIENCE_S)
    for _ in range(5):
        await asyncio.sleep(PATIENCE_S - 1)
        pace.moved(int(PATIENCE_S * LEAST_RATE))
    for _ in range(3):
        await asyncio.sleep(PATIENCE_S / 3)
        pace.moved(1)
    await asyncio.sleep(1.0)
    with pytest.raises(PeerError, match="slower than 10000 bytes per second for 60 s"):
        pace.moved(1)


@virtual
async def test_a_transfer_at_the_least_rate_may_take_for_ever() -> None:
    pace = Pace(PATIENCE_S)
    for _ in range(1000):
        await asyncio.sleep(10.0)
        pace.moved(10 * LEAST_RATE)


@virtual
async def test_messages_are_read_at_a_bounded_rate_and_none_is_lost() -> None:
    inflow = Inflow()
    await asyncio.sleep(1000.0)
    began = now()
    for _ in range(int(BURST) + 5000):
        await inflow.take(0)
    assert now() - began == pytest.approx(5000 / RATE, abs=0.01)


@virtual
async def test_a_large_message_costs_as_much_as_many() -> None:
    inflow = Inflow()
    await asyncio.sleep(1000.0)
    began = now()
    for _ in range(5):
        await inflow.take(4 << 20)
    cost = 5 * (1 + (4 << 20) / UNIT)
    assert now() - began == pytest.approx((cost - BURST) / RATE, abs=0.01)


@virtual
async def test_a_message_with_many_entries_costs_as_much_as_many() -> None:
    inflow = Inflow()
    await asyncio.sleep(1000.0)
    began = now()
    for _ in range(5):
        await inflow.take_entries(1 << 14)
    cost = 5 * (1 << 14) / ENTRIES
    assert now() - began == pytest.approx((cost - BURST) / RATE, abs=0.01)


@virtual
async def test_headers_and_small_chunks_come_at_a_bounded_rate_and_large_chunks_at_any() -> None:
    inflow = Inflow()
    await asyncio.sleep(1000.0)
    began = now()
    for _ in range(100_000):
        await inflow.take_chunk(LARGE_FRAME)
    assert now() == began
    for _ in range(10_000):
        await inflow.take_chunk(1)
        await inflow.take_header(100)
    await inflow.take_header(1 << 20)
    cost = 20_000 * FRAME_COST + (1 << 20) / UNIT
    assert now() - began == pytest.approx((cost - BURST) / RATE, abs=0.01)


@virtual
async def test_a_peer_that_beats_as_it_should_never_waits() -> None:
    inflow = Inflow()
    for _ in range(100):
        await asyncio.sleep(0.02)
        began = now()
        await inflow.take(2000)
        assert now() == began


@virtual
async def test_more_than_a_burst_that_waits_is_too_much() -> None:
    inflow = Inflow()
    waiting = []
    while not inflow.is_overrun():
        waiting.append(asyncio.ensure_future(inflow.take(0)))
        await asyncio.sleep(0)
    assert len(waiting) == 2 * BURST + 1
    await asyncio.gather(*waiting)
    await asyncio.sleep(1.0)
    assert not inflow.is_overrun()
