"""Messages that wait to be sent to a peer."""

from __future__ import annotations

import asyncio
from typing import Any

from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Beat, Call, Goodbye
from mend_optim.transport.link import Outbox


def test_an_outbox_keeps_the_newest_beat_and_is_bounded():
    async def drained(box: Outbox) -> list[Any]:
        box.close()
        return [message async for message in _all(box)]

    async def _all(box: Outbox) -> Any:
        while (message := await box.get()) is not None:
            yield message

    me = PeerId("a", 1)
    box = Outbox()
    asks, answers = (
        Beat(peer=me, address="", count=2, ping=1),
        Beat(peer=me, address="", count=3, pong=1),
    )  # somebody waits for these two
    for message in (
        Beat(peer=me, address="", count=1),
        Goodbye(me),
        asks,
        answers,
        Beat(peer=me, address="", count=4),
        Beat(peer=me, address="", count=5),
    ):
        box.put(message)
    assert asyncio.run(drained(box)) == [
        Goodbye(me),
        asks,
        answers,
        Beat(peer=me, address="", count=5),
    ]
    box = Outbox()
    for fragment in range(300):
        box.put(Call(me, fragment))
    assert [call.fragment for call in asyncio.run(drained(box))] == list(range(44, 300))
