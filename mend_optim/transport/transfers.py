"""Bulky messages between two peers: both ends of four RPCs, over whatever stream they are given.

    Exchange   learner ──offer──▶ sealer
                       ◀──ack──
                       ◀──seals── until one holds the offer; that one lacks the offer's bytes
    Pull       asker ──want──▶ peer
                     ◀──state or seal── perhaps the seal of a sealer that the asker does not reach
    Push       peer ──state or seal──▶ asker
                    ◀──ack──
               The asker had sent its want over the control stream, because it cannot dial the peer.
    PassOn     holder ──offer of a learner that is gone, or of its zone──▶ sealer
                      ◀──ack──

Every fault becomes a `PeerError` here, and `undelivered` for the handler. Nothing is tried again:
the engine decides that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

from mend_optim.errors import PeerError
from mend_optim.protocol.messages import Bulk, Message, Offer, Seal, State, Want
from mend_optim.protocol.transfer_fault import BROKEN, Cause, TransferFault
from mend_optim.transport.background_log import BackgroundLog
from mend_optim.transport.checksums import DamagedError
from mend_optim.transport.diagnosis import is_distrust
from mend_optim.transport.frames import (
    ACK,
    Assembler,
    check_fragment,
    check_sender,
    payload_checksum,
    to_frames,
)
from mend_optim.transport.handler import Handler
from mend_optim.transport.link import Link, Outbox
from mend_optim.transport.receiving import Pace, Places, Receiving
from mend_optim.transport.stream import RpcFailed, Stream
from mend_optim.transport.wire import decode_want, encode_want

log = BackgroundLog("mend_optim.transport")

#: The part of the patience of a pull for which its answer is awaited. The word that there is none
#: then comes before the asker takes the way for a broken one.
ANSWER_PATIENCE = 0.9


#: Characters of a peer's refusal that are kept.
REFUSAL_LENGTH = 200
UNEXPLAINED = "no reason, as the message was still on its way"


class UnansweredError(PeerError):
    """The peer has ended the stream in good order, but without an answer."""


class Carrier:
    """Sends and reads whole messages, for both ends of a transfer.

    Args:
        handler: Hears of every part that arrives.
        limit: Returns the greatest payload, in bytes, of a message for a fragment. Raises
            `LookupError` if there is no such fragment.
        allocate: Returns a writable buffer of that many bytes, for one section.
        patience_s: Seconds that a message may stand still, or creep, while it arrives.
        checks: Whether messages travel with a checksum.
    """

    def __init__(
        self,
        handler: Handler,
        limit: Callable[[int], int],
        allocate: Callable[[int], memoryview],
        *,
        patience_s: float,
        checks: bool,
    ) -> None:
        self._handler = handler
        self.limit = limit
        self._allocate = allocate
        self._patience_s = patience_s
        self._checks = checks

    async def upload(self, link: Link, stream: Stream, message: Bulk) -> None:
        """Send one whole message to a peer, after the more urgent ones."""
        checksum = await payload_checksum(message) if self._checks else None
        with link.departures.leaving(message, self._patience_s) as departure:
            for frame in to_frames(message, checksum):
                await departure.turn()
                await stream.write(frame)

    async def download(
        self,
        link: Link,
        stream: Stream,
        *,
        limit: Callable[[int], int] | None = None,
        patient: bool = False,
        passed_on: bool = False,
        announce: Callable[[int, int], Coroutine[Any, Any, None]] | None = None,
    ) -> Bulk:
        """Read one whole message.

        Args:
            link: The peer at the other end.
            stream: The stream.
            limit: Takes the place of the carrier's own limit.
            patient: Whether the message may take as long as it likes to begin. Once it has begun,
                the stream's patience holds.
            passed_on: Whether the message may name another sender than the peer.
            announce: Awaited with the fragment and the size in bytes, once they are known and
                before there is any memory for them.

        Raises:
            DamagedError: Bytes of it changed on the way.
            PeerError: The stream broke or ended, or brought something else, or was too slow.
        """
        inbox = Assembler(limit or self.limit, self._allocate)
        pace: Pace | None = None
        while (frame := await stream.read(patient and not inbox.busy)) is not None:
            if inbox.busy:
                await link.inflow.take_chunk(len(frame))
            else:
                await link.inflow.take_header(len(frame))
            message = inbox.feed(frame)
            self._handler.heard(link.id, inbox.fragment)
            if pace:
                pace.moved(len(frame))
            elif announce:
                await announce(inbox.fragment, inbox.nbytes)
            pace = pace or Pace(self._patience_s)
            if message is not None:
                if not passed_on:
                    check_sender(message, link.id)
                return message
        raise UnansweredError(f"the stream of peer {link.id} ended before the message did")


class Transfers:
    """The transfers that this learner begins. A want over the control stream is one of them.

    Args:
        handler: The learner.
        carrier: Sends and reads the messages.
        patience_s: Seconds that a want over the control stream may go without an answer.
        dial: Opens a stream to a peer for one of the four RPCs.
        damaged: Is called with a peer's name and a reason if the bytes of its answer changed on the
            way.
    """

    def __init__(
        self,
        handler: Handler,
        carrier: Carrier,
        *,
        patience_s: float,
        dial: Callable[[Link, str], AbstractContextManager[Stream]],
        damaged: Callable[[str, str], None],
    ) -> None:
        self._handler = handler
        self._carrier = carrier
        self._patience_s = patience_s
        self._dial = dial
        self._damaged = damaged
        #: By key: of two transfers with one key, the newer takes the place of the older.
        self._running: dict[Hashable, tuple[Link, asyncio.Task[None]]] = {}

    def exchange(self, link: Link, offer: Offer) -> None:
        """Send an offer, and take the seals that answer it. The offer takes the place of an open
        one for the same fragment, whichever peer that went to."""
        self._start(("exchange", offer.fragment), link, offer, self._exchange(link, offer))

    def pull(self, link: Link, want: Want) -> None:
        """Ask a peer that can be dialled for an anchor. Its answer ends what others were asked for
        that fragment's before it."""
        self._start(("pull", link.id, want.fragment), link, want, self._pull(link, want))

    def push(self, link: Link, message: Bulk) -> None:
        """Answer a want that came over the control stream."""
        work = self._push(link, message, "Push")
        self._start(("push", link.id, message.fragment), link, message, work)

    def pass_on(self, link: Link, offer: Offer) -> None:
        """Give the offer of a learner that is gone to the fragment's present sealer."""
        work = self._pass_on(link, offer)
        self._start(("pass on", link.id, offer.peer, offer.fragment), link, offer, work)

    def ask(self, link: Link, want: Want) -> None:
        """Ask a peer that cannot be dialled over its control stream; it answers with a push."""
        previous = link.asked.pop(want.fragment, None)
        if previous:
            _, timer = previous
            timer.cancel()
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._patience_s, self._unanswered, link, want)
        link.asked[want.fragment] = (want, timer)
        if not link.post(want):
            loop.call_soon(self._unanswered, link, want)

    def drop(self, link: Link) -> None:
        """End everything that waits for a peer, because the peer is gone."""
        for to, task in list(self._running.values()):
            if to is link:
                task.cancel()
        for want, _ in list(link.asked.values()):
            self._unanswered(link, want)

    def stop(self) -> list[asyncio.Task[None]]:
        """Cancel everything, and tell the handler nothing; return the tasks."""
        tasks = [task for _, task in self._running.values()]
        # first: a task that is not listed ends without a word
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
        if isinstance(fault, DamagedError):
            self._damaged(to.id.name, str(fault))
        # otherwise it was superseded or stopped, and the learner waits for it no more
        if self._running.get(key) == (to, task):
            del self._running[key]
            if fault:
                self._handler.undelivered(to.id, message, _told(fault))

    async def _exchange(self, link: Link, offer: Offer) -> None:
        with self._dial(link, "Exchange") as stream:
            await self._carrier.upload(link, stream, offer)
            await stream.finish()
            if await stream.read() != ACK:
                raise UnansweredError(f"peer {link.id} did not acknowledge the offer")
            stream.rest()
            self._handler.delivered(link.id, offer)
            is_last = False
            while not is_last:
                is_last = await self._take_seal(link, stream, offer)

    async def _take_seal(self, link: Link, stream: Stream, offer: Offer) -> bool:
        """Take the next seal; return whether it holds the offer, which makes it the last.

        This is a function so that no variable keeps the seal's bytes while the next one is awaited.
        """
        seal = await self._carrier.download(link, stream, patient=True, passed_on=True)
        if not isinstance(seal, Seal) or seal.fragment != offer.fragment:
            raise PeerError(
                f"peer {link.id} answered an offer for fragment {offer.fragment} with a"
                f" {_described(seal)}"
            )
        seal = _by_its_way(seal, link)
        self._handler.receive(seal.completed(offer))
        return seal.place(offer.claim.author, offer.seq) is not None

    async def _pull(self, link: Link, want: Want) -> None:
        with self._dial(link, "Pull") as stream:
            await stream.write(encode_want(want))
            await stream.finish()
            message = await self._carrier.download(link, stream, passed_on=True)
        if isinstance(message, Offer) or message.fragment != want.fragment:
            raise PeerError(
                f"peer {link.id} answered a want for fragment {want.fragment} with a"
                f" {_described(message)}"
            )
        answer = _answer_to(want, message, link)
        self._end_older_pulls(link, want.fragment)
        self._handler.receive(answer)

    def _end_older_pulls(self, link: Link, fragment: int) -> None:
        """Several peers were asked for an anchor, and one has sent it. Those that were asked before
        need not. Of one that was asked later, the learner waits for the answer, and this one may be
        of no use to it."""
        for key, (to, task) in list(self._running.items()):
            if key == ("pull", link.id, fragment):
                return
            if key == ("pull", to.id, fragment):
                del self._running[key]  # first: the learner does not wait for it
                task.cancel()

    async def _push(self, link: Link, message: Bulk, method: str) -> None:
        with self._dial(link, method) as stream:
            await self._carrier.upload(link, stream, message)
            await stream.finish()
            if await stream.read() != ACK:
                raise PeerError(f"peer {link.id} did not acknowledge the {method}")

    async def _pass_on(self, link: Link, offer: Offer) -> None:
        await self._push(link, offer, "PassOn")
        self._handler.delivered(link.id, offer)

    def _unanswered(self, link: Link, want: Want) -> None:
        """Give a want up, if it is still the newest of its fragment."""
        asked = link.asked.get(want.fragment)
        if asked and asked[0] is want:
            del link.asked[want.fragment]
            asked[1].cancel()
            self._handler.undelivered(link.id, want, TransferFault(Cause.UNANSWERED))


class TransferServer:
    """The other ends: transfers that peers begin.

    Args:
        handler: The learner.
        carrier: Sends and reads the messages.
        receiving: The offers that arrive.
        patience_s: Seconds for which an asker waits for the answer to a pull.
    """

    def __init__(
        self, handler: Handler, carrier: Carrier, receiving: Receiving, *, patience_s: float
    ) -> None:
        self._handler = handler
        self._carrier = carrier
        self._receiving = receiving
        self._patience_s = patience_s
        #: The answers that are sent, by peer, kind and fragment.
        self._answering = Places()

    async def exchange(self, link: Link, stream: Stream) -> None:
        """Take an offer, then send the fragment's seals until one holds it or the learner sends a
        newer offer."""
        fragment, seq = await self._take_offer(link, stream)
        outbox = link.requests["exchange", fragment]
        try:
            work = self._send_seals(link, stream, outbox, seq)
            await self._answering.run((link.id, "exchange", fragment), work)
        finally:
            link.close_request("exchange", fragment, outbox)

    async def _send_seals(self, link: Link, stream: Stream, outbox: Outbox, seq: int) -> None:
        is_last = False
        while not is_last:
            is_last = await self._send_seal(link, stream, outbox, seq)

    async def _take_offer(self, link: Link, stream: Stream) -> tuple[int, int]:
        """Take an offer; return its fragment and number. No variable keeps its bytes afterwards."""
        download = partial(self._carrier.download, link, stream)
        offer = await self._receiving.take(
            link.id, "exchange", lambda announce: download(announce=announce)
        )
        if not isinstance(offer, Offer):
            raise PeerError(f"peer {link.id} began an exchange with a {_described(offer)}")
        await stream.write(ACK)
        # before `receive`, because the handler may answer at once
        link.open_request("exchange", offer.fragment)
        self._handler.receive(offer)
        return offer.fragment, offer.seq

    async def _send_seal(self, link: Link, stream: Stream, outbox: Outbox, seq: int) -> bool:
        """Send the next seal; return whether it was the last."""
        seal = await outbox.get()
        if not isinstance(seal, Seal):
            return True
        await self._carrier.upload(link, stream, seal.without(link.id, seq))
        return seal.place(link.id, seq) is not None

    async def pull(self, link: Link, stream: Stream) -> None:
        """Take a want, and send the answer. If there is none in time, end the stream without."""
        request = await stream.read()
        want = decode_want(request or b"")
        check_sender(want, link.id)
        # nobody will answer a want for no fragment: better to say so now than in a minute
        check_fragment(self._carrier.limit, want.fragment)
        outbox = link.open_request("pull", want.fragment)
        patience_s = ANSWER_PATIENCE * self._patience_s
        timer = asyncio.get_running_loop().call_later(patience_s, outbox.close)
        try:
            self._handler.receive(want)
            work = self._answer(link, stream, outbox)
            await self._answering.run((link.id, "pull", want.fragment), work)
        finally:
            timer.cancel()
            link.close_request("pull", want.fragment, outbox)

    async def _answer(self, link: Link, stream: Stream, outbox: Outbox) -> None:
        answer = await outbox.get()
        if isinstance(answer, (State, Seal)):
            await self._carrier.upload(link, stream, answer)

    async def push(self, link: Link, stream: Stream) -> None:
        """Take the answer to a want that this learner sent over the control stream, and nothing
        else."""
        answered: list[Want] = []

        def limit(fragment: int) -> int:
            # called once the header has arrived: from here on the push is the answer
            want, timer = link.asked.pop(fragment, (None, None))
            if want is None or timer is None:
                raise PeerError(
                    f"peer {link.id} pushed fragment {fragment}, which nobody asked it for"
                )
            timer.cancel()
            answered.append(want)
            return self._carrier.limit(fragment)

        try:
            message = await self._carrier.download(link, stream, limit=limit)
            if isinstance(message, Offer):
                raise PeerError(f"peer {link.id} answered a want with a {_described(message)}")
            self._handler.receive(message)
            answered.clear()
        finally:
            for want in answered:
                self._handler.undelivered(link.id, want, BROKEN)
        await stream.write(ACK)

    async def pass_on(self, link: Link, stream: Stream) -> None:
        """Take the offer of another learner, which is gone."""
        download = partial(self._carrier.download, link, stream, passed_on=True)
        offer = await self._receiving.take(
            link.id, "pass on", lambda announce: download(announce=announce)
        )
        if not isinstance(offer, Offer):
            raise PeerError(f"peer {link.id} passed on a {_described(offer)}")
        self._handler.passed_on(offer, link.id)
        await stream.write(ACK)


def _told(fault: BaseException) -> TransferFault:
    """The cause of a failed transfer, for the learner."""
    match fault:
        case UnansweredError():
            return TransferFault(Cause.ENDED, "no answer")
        case DamagedError():
            return TransferFault(Cause.DAMAGED)
        case RpcFailed() if fault.is_damage:
            return TransferFault(Cause.DAMAGED)
        case RpcFailed() if is_distrust(fault):
            return TransferFault(Cause.UNTRUSTED)
        case RpcFailed() if fault.is_refusal:
            words = UNEXPLAINED if fault.is_unexplained else str(fault)
            return TransferFault(Cause.ENDED, words[:REFUSAL_LENGTH])
        case _:
            return BROKEN


def _described(message: Bulk) -> str:
    return f"{type(message).__name__} for fragment {message.fragment}"


def _by_its_way(seal: Seal, link: Link) -> Seal:
    """The seal, with the peer that has passed it on if that is not its sealer."""
    if seal.sealer.name != link.id.name:
        return replace(seal, passed_by=link.id)
    check_sender(seal, link.id)
    return seal


def _answer_to(want: Want, answer: Seal | State, link: Link) -> Seal | State:
    """A peer's answer to a want, with the way that it came. Raises `PeerError` if it is somebody
    else's anchor, or a seal of somebody else's on an anchor that was not asked for."""
    if isinstance(answer, State):
        check_sender(answer, link.id)
        return answer
    seal = _by_its_way(answer, link)
    if seal.passed_by and seal.base != want.have:
        raise PeerError(f"peer {link.id} passed on a seal that was not asked for")
    return seal
