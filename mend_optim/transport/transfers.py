"""Bulky messages between two peers: both ends of four RPCs, over whatever stream they are given.

    Exchange   learner ──offer──▶ sealer, ◀──ack──, ◀──seals── until one holds the offer, and lacks its bytes
    Pull       asker ──want──▶ peer, ◀──state or seal──
    Push       peer ──state or seal──▶ asker, which asked over the control stream because it cannot dial the peer
    PassOn     holder ──offer of a learner that is gone──▶ sealer

Whatever goes wrong is `PeerError` here, and `undelivered` to the handler: the engine decides what
to do again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from mend_optim.errors import PeerError
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Bulk, Message, Offer, Seal, State, Want
from mend_optim.transport.frames import ACK, Assembler, check_fragment, sender, to_frames
from mend_optim.transport.handler import Handler
from mend_optim.transport.link import Link, Outbox
from mend_optim.transport.stream import Stream
from mend_optim.transport.wire import decode_want, encode_want

log = logging.getLogger("mend_optim.peer")


class Transfers:
    """The transfers of one learner. `start` runs one that we begin; the `serve_*` methods are the
    other ends."""

    def __init__(
        self,
        handler: Handler,
        limit: Callable[[int], int],
        allocate: Callable[[int], memoryview],
        patience_s: float,
        dial: Callable[[Link, str], AbstractContextManager[Stream]],
    ) -> None:
        self._handler, self._limit, self._allocate, self._patience_s = (
            handler,
            limit,
            allocate,
            patience_s,
        )
        self._dial = dial
        self._running: dict[Hashable, tuple[Link, asyncio.Task[None]]] = {}

    # ── those we begin ────────────────────────────────────────────────────────────────────────────

    def exchange(self, link: Link, offer: Offer) -> None:
        """Send an offer; one for the same fragment that is still open is superseded, to whomever it
        went."""
        self._start(("exchange", offer.fragment), link, offer, self._exchange(link, offer))

    def pull(self, link: Link, want: Want) -> None:
        """Ask a peer that we can dial for an anchor."""
        self._start(("pull", link.id, want.fragment), link, want, self._pull(link, want))

    def push(self, link: Link, message: Bulk) -> None:
        """Answer a want that came over the control stream."""
        self._start(("push", link.id, message.fragment), link, message, self._push(link, message))

    def pass_on(self, link: Link, offer: Offer) -> None:
        """Give the offer of somebody who is gone to who seals now."""
        work = self._push(link, offer, "PassOn")
        self._start(("pass on", link.id, offer.peer, offer.fragment), link, offer, work)

    def ask(self, link: Link, want: Want) -> None:
        """Ask a peer that we cannot dial over its control stream; it answers with a push."""
        previous = link.asked.pop(want.fragment, None)
        if previous:
            previous[1].cancel()
        timer = asyncio.get_running_loop().call_later(
            self._patience_s, self._unanswered, link, want
        )
        link.asked[want.fragment] = (want, timer)
        if not link.post(want):
            asyncio.get_running_loop().call_soon(self._unanswered, link, want)

    def drop(self, link: Link) -> None:
        """The peer is gone: so is everything that waited for it."""
        for to, task in list(self._running.values()):
            if to is link:
                task.cancel()
        for want, _ in list(link.asked.values()):
            self._unanswered(link, want)

    def stop(self) -> list[asyncio.Task[None]]:
        """Cancel everything, telling nobody."""
        tasks = [task for _, task in self._running.values()]
        self._running.clear()
        for task in tasks:
            task.cancel()
        return tasks

    def _start(
        self, key: Hashable, to: Link, message: Message, work: Coroutine[Any, Any, None]
    ) -> None:
        task = asyncio.get_running_loop().create_task(work)
        superseded = self._running.pop(key, None)
        self._running[key] = (to, task)
        if superseded:
            superseded[1].cancel()
        to.busy += 1
        task.add_done_callback(partial(self._ended, key, to, message))

    def _ended(self, key: Hashable, to: Link, message: Message, task: asyncio.Task[None]) -> None:
        to.busy -= 1
        fault = asyncio.CancelledError("cancelled") if task.cancelled() else task.exception()
        if fault:
            log.debug("%s to %s: %s", type(message).__name__, to.id, fault)
        if self._running.get(key) == (to, task):  # else superseded, or stopped: nobody waits for it
            del self._running[key]
            if fault:
                self._handler.undelivered(to.id, message)

    async def _exchange(self, link: Link, offer: Offer) -> None:
        with self._dial(link, "Exchange") as stream:
            await self._upload(stream, offer)
            await stream.finish()
            if await stream.read() != ACK:
                raise PeerError("the offer was not acknowledged")
            self._handler.delivered(link.id, offer)
            while not await self._take_seal(link, stream, offer):
                pass

    async def _take_seal(self, link: Link, stream: Stream, offer: Offer) -> bool:
        """Take the next seal; whether it was the last one. (A function, so that nothing holds its
        bytes afterwards.)"""
        seal = await self._download(link, stream, self._limit, patient=True)
        if not isinstance(seal, Seal) or seal.fragment != offer.fragment:
            raise PeerError("an offer is answered by seals of its fragment")
        self._handler.receive(seal.completed(offer))
        return seal.place(offer.claim.author, offer.seq) is not None

    async def _pull(self, link: Link, want: Want) -> None:
        with self._dial(link, "Pull") as stream:
            await stream.write(encode_want(want))
            await stream.finish()
            message = await self._download(link, stream, self._limit)
        if isinstance(message, Offer) or message.fragment != want.fragment:
            raise PeerError("a want is answered by a state or a seal of its fragment")
        self._handler.receive(message)

    async def _push(self, link: Link, message: Bulk, method: str = "Push") -> None:
        with self._dial(link, method) as stream:
            await self._upload(stream, message)
            await stream.finish()
            if await stream.read() != ACK:
                raise PeerError(f"the {method} was not acknowledged")

    def _unanswered(self, link: Link, want: Want) -> None:
        asked = link.asked.get(want.fragment)
        if asked and asked[0] is want:
            del link.asked[want.fragment]
            asked[1].cancel()
            self._handler.undelivered(link.id, want)

    # ── those the peer begins ─────────────────────────────────────────────────────────────────────

    async def serve_exchange(self, link: Link, stream: Stream) -> None:
        """Take an offer, then send the fragment's seals until one holds it or the learner offers
        anew."""
        fragment, seq = await self._take_offer(link, stream)
        outbox = link.requests["exchange", fragment]
        try:
            while not await self._send_seal(stream, outbox, link.id, seq):
                pass
        finally:
            link.close_request("exchange", fragment, outbox)

    async def _take_offer(self, link: Link, stream: Stream) -> tuple[int, int]:
        offer = await self._download(link, stream, self._limit)
        if not isinstance(offer, Offer):
            raise PeerError("an exchange begins with an offer")
        await stream.write(ACK)
        link.open_request("exchange", offer.fragment)  # first: the handler may answer at once
        self._handler.receive(offer)
        return offer.fragment, offer.seq

    async def _send_seal(self, stream: Stream, outbox: Outbox, peer: PeerId, seq: int) -> bool:
        """Send the next seal; whether it was the last one."""
        seal = await outbox.get()
        if not isinstance(seal, Seal):
            return True
        await self._upload(stream, seal.without(peer, seq))
        return seal.place(peer, seq) is not None

    async def serve_pull(self, link: Link, stream: Stream) -> None:
        """Take a want, and send what answers it; nothing if nothing does in time."""
        request = await stream.read()
        want = decode_want(request or b"")
        if want.peer != link.id:
            raise PeerError(f"a want of {want.peer} from {link.id}")
        # nobody will answer it: better to say so now than in a minute
        check_fragment(self._limit, want.fragment)
        outbox = link.open_request("pull", want.fragment)
        timer = asyncio.get_running_loop().call_later(self._patience_s, outbox.close)
        try:
            self._handler.receive(want)
            answer = await outbox.get()
            if isinstance(answer, (State, Seal)):
                await self._upload(stream, answer)
        finally:
            timer.cancel()
            link.close_request("pull", want.fragment, outbox)

    async def serve_push(self, link: Link, stream: Stream) -> None:
        """Take what we asked for over the control stream, and nothing else."""
        answered: list[Want] = []

        def limit(fragment: int) -> int:
            want, timer = link.asked.pop(fragment, (None, None))
            if want is None or timer is None:
                raise PeerError(f"nobody asked {link.id} for fragment {fragment}")
            timer.cancel()
            answered.append(want)
            return self._limit(fragment)

        try:
            message = await self._download(link, stream, limit)
            if isinstance(message, Offer):
                raise PeerError("a want is answered by a state or a seal")
            self._handler.receive(message)
            answered.clear()
        finally:
            for want in answered:
                self._handler.undelivered(link.id, want)
        await stream.write(ACK)

    async def serve_pass_on(self, link: Link, stream: Stream) -> None:
        """Take the offer of somebody else."""
        offer = await self._download(link, stream, self._limit, passed_on=True)
        if not isinstance(offer, Offer):
            raise PeerError("only offers are passed on")
        self._handler.receive(offer)
        await stream.write(ACK)

    # ── both ──────────────────────────────────────────────────────────────────────────────────────

    async def _upload(self, stream: Stream, message: Bulk) -> None:
        for frame in to_frames(message):
            await stream.write(frame)

    async def _download(
        self,
        link: Link,
        stream: Stream,
        limit: Callable[[int], int],
        patient: bool = False,
        passed_on: bool = False,
    ) -> Bulk:
        """One whole message. `patient`: it may take long to begin, though not to arrive;
        `passed_on`: it may be somebody else's."""
        inbox = Assembler(limit, self._allocate)
        while (frame := await stream.read(patient and not inbox.busy)) is not None:
            self._handler.heard(link.id)
            message = inbox.feed(frame)
            if message is not None:
                if sender(message) != link.id and not passed_on:
                    raise PeerError(f"a message of {sender(message)} from {link.id}")
                return message
        raise PeerError("the stream ended before the message did")
