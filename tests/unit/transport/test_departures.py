"""The order of bulky messages to one peer, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Bulk
from mend_optim.transport.departures import OVERTAKES, PAUSE_SHARE, Departures, urgency
from mend_optim.transport.link import Link
from tests.support.virtual_loop import VirtualLoop
from tests.unit.transport.recorder import Recorder, offer_of, seal_of, state_of

PATIENCE_S = 60.0
PAUSE_S = PAUSE_SHARE * PATIENCE_S
LEARNER = Recorder("a")
SEAL, OFFER, STATE = seal_of(LEARNER), offer_of(LEARNER), state_of(LEARNER)


@dataclass
class Way:
    """The messages to one peer, and a log of their frames."""

    departures: Departures = field(default_factory=Departures)
    frames: list[tuple[str, float]] = field(default_factory=list)

    @property
    def kinds(self) -> list[str]:
        """The messages' kinds, in the order of their frames."""
        return [name for name, _ in self.frames]

    def times(self, name: str) -> list[float]:
        return [at for found, at in self.frames if found == name]

    async def send(
        self, message: Bulk, *, frames: int, at: float = 0.0, frame_s: float = 1.0
    ) -> None:
        """Send a message of so many frames from `at` on; each frame takes so long."""
        await asyncio.sleep(at)
        loop = asyncio.get_running_loop()
        with self.departures.leaving(message, PATIENCE_S) as departure:
            for _ in range(frames):
                await departure.turn()
                self.frames.append((type(message).__name__, loop.time()))
                await asyncio.sleep(frame_s)


def play(*sends: Coroutine[Any, Any, None]) -> None:
    async def scene() -> None:
        await asyncio.gather(*sends)

    loop = VirtualLoop()
    try:
        loop.run_until_complete(scene())
    finally:
        loop.close()


def test_the_order_is_seal_offer_whole_anchor():
    assert urgency(SEAL) < urgency(OFFER) < urgency(STATE)


def test_a_more_urgent_message_overtakes_those_on_their_way():
    way = Way()
    play(
        way.send(STATE, frames=3),
        way.send(OFFER, frames=3, at=0.25),
        way.send(SEAL, frames=3, at=0.5),
    )
    assert way.kinds == ["State", "Offer", *["Seal"] * 3, *["Offer"] * 2, *["State"] * 2]


def test_those_that_waited_for_the_same_message_go_in_order():
    """Whichever of them the loop wakes first."""
    way = Way()
    play(
        way.send(SEAL, frames=9),
        way.send(STATE, frames=2, at=0.25),
        way.send(OFFER, frames=2, at=0.5),
    )
    assert way.kinds == ["Seal"] * 9 + ["Offer"] * 2 + ["State"] * 2


@pytest.mark.parametrize("message", [SEAL, OFFER, STATE])
def test_equally_urgent_messages_go_side_by_side(message):
    way = Way()
    play(way.send(message, frames=3), way.send(message, frames=3, at=0.5))
    assert [at for _, at in way.frames] == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]


def test_a_paused_message_sends_a_frame_at_times():
    """The other end gives up a stream that stands still for its patience."""
    way = Way()
    play(way.send(OFFER, frames=3), way.send(SEAL, frames=2 * int(PAUSE_S), at=0.5, frame_s=2))
    first, *others = way.times("Offer")
    assert first == 0.0
    assert others == [1 + PAUSE_S, 2 + 2 * PAUSE_S]


def test_a_message_that_many_frames_overtake_sends_one():
    """Seals may fill a slow link, and a learner that is behind gets no further by them."""
    way = Way()
    play(way.send(STATE, frames=4), way.send(SEAL, frames=4 * OVERTAKES, at=0.05, frame_s=0.1))
    between = "".join(kind[1] for kind in way.kinds).split("t")
    assert [len(seals) for seals in between] == [0, OVERTAKES, OVERTAKES, OVERTAKES, OVERTAKES]


def test_a_message_that_stands_still_holds_nothing_back():
    way = Way()
    play(way.send(SEAL, frames=1, frame_s=PATIENCE_S), way.send(STATE, frames=4, at=1.0))
    assert way.times("State") == [PAUSE_S, PAUSE_S + 1, PAUSE_S + 2, PAUSE_S + 3]


def test_a_message_that_is_given_up_lets_the_others_go_at_once():
    way = Way()

    async def scene() -> None:
        seal = asyncio.ensure_future(way.send(SEAL, frames=9))
        offer = asyncio.ensure_future(way.send(OFFER, frames=1, at=1.0))
        await asyncio.sleep(2.5)
        seal.cancel()
        await offer

    play(scene())
    assert way.times("Offer") == [2.5]


def test_messages_to_another_peer_do_not_wait():
    way, other = (Way(Link(PeerId(name, 1)).departures) for name in "bc")
    play(way.send(SEAL, frames=9), other.send(STATE, frames=2, at=0.5))
    assert other.times("State") == [0.5, 1.5]
