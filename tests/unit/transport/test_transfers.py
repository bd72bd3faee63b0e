"""Both ends of the four RPCs, over streams in memory and in virtual time: the messages that
arrive, and the reports of those that do not."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock, Mock, call

import pytest

from mend_optim.codecs.packing import fresh
from mend_optim.errors import PeerError
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Message, Offer, Seal, State, Want
from mend_optim.protocol.transfer_fault import Cause, TransferFault
from mend_optim.transport import wire
from mend_optim.transport._pb import peer_pb2 as pb
from mend_optim.transport.checksums import DamagedError
from mend_optim.transport.frames import ACK, payload_checksum, to_frames
from mend_optim.transport.link import Link, Outbox
from mend_optim.transport.receiving import Receiving
from mend_optim.transport.stream import RpcFailed, within
from mend_optim.transport.transfers import (
    ANSWER_PATIENCE,
    Carrier,
    Transfers,
    TransferServer,
)
from tests.support.virtual_loop import VirtualLoop
from tests.unit.transport.recorder import (
    LIMIT,
    Recorder,
    contents,
    offer_of,
    packet,
    seal_of,
    state_of,
)

PATIENCE_S = 60.0
TICK_S = 2**-6  # between two looks: exact in binary, so that sums of it are
GONE = PeerId("gone", 1)


def flipped(frame: bytes, at: int, bit: int = 0) -> bytes:
    """The frame with another bit at this place."""
    changed = bytearray(frame)
    changed[at] ^= 1 << bit
    return bytes(changed)


class Broken:
    """An end of a stream reads this when the stream has broken."""

    def __init__(self, fault: PeerError | None = None) -> None:
        self.fault = fault or PeerError("the stream broke")


class Cable:
    """Carries the frames of a stream both ways; breaks, or swallows what comes, after so many."""

    def __init__(self) -> None:
        self.breaks_after: float = float("inf")
        self.swallows_after: float = float("inf")
        #: The way, and the number among its frames, of one in whose last byte a bit flips.
        self.damages = ("", 0)
        self.carried = {"up": 0, "down": 0}
        self.passed = 0
        self.nbytes = {"up": 0, "down": 0}
        #: The directions in which an end waits for an answer.
        self.resting: list[str] = []
        self.inboxes: dict[str, asyncio.Queue[Any]] = {
            "up": asyncio.Queue(),
            "down": asyncio.Queue(),
        }

    async def carry(self, way: str, frame: bytes | None) -> None:
        if self.passed >= self.breaks_after:
            self.tear()
            await asyncio.sleep(TICK_S)  # the other end notices first
            raise PeerError("the stream broke")
        self.passed += 1
        self.nbytes[way] += len(frame or b"")
        if frame and self.damages == (way, self.carried[way]):
            frame = flipped(frame, -1)
        self.carried[way] += 1
        if self.passed <= self.swallows_after:
            self.inboxes[way].put_nowait(frame)
        await asyncio.sleep(0)

    def tear(self, fault: PeerError | None = None) -> None:
        for inbox in self.inboxes.values():
            inbox.put_nowait(Broken(fault))


class End:
    """One end of a cable, as a stream."""

    def __init__(self, cable: Cable, reads: str, writes: str) -> None:
        self.cable, self.reads, self.writes = cable, reads, writes

    async def read(self, patient: bool = False) -> bytes | None:
        frame = await within(self.cable.inboxes[self.reads].get(), None if patient else PATIENCE_S)
        if isinstance(frame, Broken):
            raise frame.fault
        return frame

    async def write(self, frame: bytes) -> None:
        await self.cable.carry(self.writes, frame)

    async def finish(self) -> None:
        await self.cable.carry(self.writes, None)

    def rest(self) -> None:
        assert self.reads not in self.cable.resting
        self.cable.resting.append(self.reads)


class Script:
    """A stream whose other end says what is written here, whatever it hears."""

    def __init__(self, *frames: bytes) -> None:
        self.frames = list(frames)
        self.written: list[bytes] = []

    async def read(self, patient: bool = False) -> bytes | None:
        return self.frames.pop(0) if self.frames else None

    async def write(self, frame: bytes) -> None:
        self.written.append(frame)

    async def finish(self) -> None: ...

    def rest(self) -> None: ...

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *_: object) -> None: ...


class Side(Recorder):
    """One learner: a recorder, its transfers, and its link to the other."""

    def __init__(self, name: str, other: str) -> None:
        super().__init__(name)
        self.link = Link(PeerId(other, 1))
        self.other: Side
        self.cable = Cable()
        self.script: Script | None = None
        self.dial_others: Callable[[Link, str], Any]
        self.faults: list[str] = []  # of the streams that this side served
        carrier = Carrier(
            self, [LIMIT, LIMIT].__getitem__, fresh, patience_s=PATIENCE_S, checks=True
        )
        self.receiving = Receiving(lambda: self.room, PATIENCE_S)
        self.room = 4 * LIMIT
        #: Peers whose answers were damaged on the way, and the words for it.
        self.damaged: list[tuple[str, str]] = []
        self.transfers = Transfers(
            self,
            carrier,
            patience_s=PATIENCE_S,
            dial=self._dial,
            damaged=lambda *what: self.damaged.append(what),
        )
        self.server = TransferServer(self, carrier, self.receiving, patience_s=PATIENCE_S)

    @contextmanager
    def _open(self, method: str) -> Iterator[End]:
        """A stream to the other side, which serves it until this side leaves."""
        cable, self.cable = self.cable, Cable()
        serving = asyncio.ensure_future(self.other.serve(method, cable))
        try:
            yield End(cable, "down", "up")
        finally:
            serving.cancel()

    def _dial(self, link: Link, method: str) -> Any:
        if link is not self.link:
            return self.dial_others(link, method)
        return self.script or self._open(method)

    async def serve(self, method: str, cable: Cable) -> None:
        ends: dict[str, Callable[..., Awaitable[None]]] = {
            "Exchange": self.server.exchange,
            "Pull": self.server.pull,
            "Push": self.server.push,
            "PassOn": self.server.pass_on,
        }
        try:
            await ends[method](self.link, End(cable, "up", "down"))
            cable.inboxes["down"].put_nowait(None)
        except DamagedError as fault:
            self.faults.append(str(fault))
            cable.tear(RpcFailed("DATA_LOSS", str(fault)))
        except PeerError as fault:
            self.faults.append(str(fault))
            cable.tear()

    def reply(self, kind: str, message: Message) -> None:
        """As the transport does: on the other side's open request."""
        self.link.requests[kind, message.fragment].put(message)  # type: ignore[union-attr]

    def replies(self, kind: str, *messages: Message) -> None:
        """Answer whatever comes next with these."""
        self.answer = lambda _: [self.reply(kind, message) for message in messages]  # type: ignore

    async def comes_to_rest(self, within_s: float = PATIENCE_S / 2) -> None:
        """Wait until no transfer that this side began runs, and the other side has noticed."""
        end = now() + within_s
        while self.link.busy:
            assert now() < end, f"{self.id} still transfers; it was told {self.events}"
            await asyncio.sleep(TICK_S)
        await asyncio.sleep(TICK_S)


def scenario(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test with a pair of learners, in virtual time. No task may die of an exception."""
    first, second, *others = inspect.signature(test).parameters.values()

    def run(**parameters: Any) -> None:
        loop = VirtualLoop()
        faults: list[Any] = []
        loop.set_exception_handler(lambda _, context: faults.append(context))

        async def body() -> None:
            a, b = Side("a", "b"), Side("b", "a")
            a.other, b.other = b, a
            await test(a, b, **parameters)

        try:
            loop.run_until_complete(body())
        finally:
            loop.close()
        assert faults == []

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    run.__signature__ = inspect.Signature(others)  # type: ignore[attr-defined]
    assert (first.name, second.name) == ("a", "b")
    return run


def now() -> float:
    return asyncio.get_running_loop().time()


# ── exchange ──────────────────────────────────────────────────────────────────────────────────────


@scenario
async def test_an_offer_is_acknowledged_and_seals_come_until_one_holds_it(a, b):
    offer = offer_of(a, size=3000)
    other, own = seal_of(b, version=1), seal_of(b, offer, version=2)
    b.replies("exchange", other, own)
    cable = a.cable
    a.transfers.exchange(a.link, offer)
    await a.comes_to_rest()
    assert contents(b.messages(Offer)[0]) == contents(offer)
    assert [event[0] for event in a.events if event[0] != "heard"] == [
        "delivered",
        "received",
        "received",
    ]
    assert a.messages(Seal) == [other, own]
    assert cable.resting == ["down"]
    assert b.link.requests == {}
    assert a.of("undelivered") == b.faults == []


@scenario
async def test_a_relayed_packet_does_not_travel_back_to_its_author(a, b):
    offer = offer_of(a, size=1000)
    relayed = {"0": offer.sections["delta"], "1": packet(b"other")}
    seal = replace(seal_of(b, offer, offer_of(b)), sections=relayed)
    b.replies("exchange", seal)
    cable = a.cable
    a.transfers.exchange(a.link, offer)
    await a.comes_to_rest()
    (found,) = a.messages(Seal)
    assert found.sections["0"] is offer.sections["delta"]
    assert contents(found) == contents(seal)
    assert cable.nbytes["down"] < 500 < cable.nbytes["up"]


@pytest.mark.parametrize("frames", [0, 1, 2])
@scenario
async def test_an_offer_whose_stream_breaks_before_the_ack_is_undelivered(a, b, frames):
    a.cable.breaks_after = frames
    offer = offer_of(a)
    a.transfers.exchange(a.link, offer)
    await a.comes_to_rest()
    assert a.of("undelivered") == [(b.id, offer)]
    assert a.of("delivered") == b.messages(Offer) == []


@scenario
async def test_an_offer_whose_stream_breaks_after_the_ack_is_delivered_then_undelivered(a, b):
    cable, offer = a.cable, offer_of(a)
    a.transfers.exchange(a.link, offer)
    await a.until(lambda: a.of("delivered") == [(b.id, offer)])
    assert list(b.link.requests) == [("exchange", 0)]
    cable.tear()
    await a.comes_to_rest()
    assert a.of("undelivered") == [(b.id, offer)]
    assert b.link.requests == {}


@pytest.mark.parametrize("frames", [1, 3])
@scenario
async def test_an_offer_that_stands_still_is_undelivered_once_patience_ends(a, b, frames):
    """Its frames vanish on the way up, or the ack on the way down."""
    a.cable.swallows_after = frames
    a.transfers.exchange(a.link, offer_of(a))
    await a.comes_to_rest(2 * PATIENCE_S)
    assert a.of("undelivered") == [(b.id, offer_of(a))]
    assert PATIENCE_S <= now() < PATIENCE_S + 1


@pytest.mark.parametrize("passed_on", [False, True])
@scenario
async def test_an_offer_that_was_damaged_on_the_way_is_the_fault_of_the_way(a, b, passed_on):
    """The engine then sends it again, as after a broken connection."""
    offer = replace(offer_of(a), peer=GONE) if passed_on else offer_of(a)
    send = a.transfers.pass_on if passed_on else a.transfers.exchange
    a.cable.damages = ("up", 1)
    send(a.link, offer)
    await a.comes_to_rest()
    assert a.of("undelivered") == [(b.id, offer)]
    assert a.transfer_faults == [TransferFault(Cause.DAMAGED)]
    assert b.of("received") == b.of("passed_on") == a.of("delivered") == []
    assert b.faults == ["bytes changed on the way: they do not match their checksum"]


@scenario
async def test_a_seal_that_was_damaged_on_the_way_is_the_fault_of_the_way(a, b):
    offer = offer_of(a)
    b.replies("exchange", seal_of(b, offer))
    a.cable.damages = ("down", 2)  # after the ack and the header
    a.transfers.exchange(a.link, offer)
    await a.comes_to_rest()
    assert a.messages(Seal) == []
    assert a.of("undelivered") == [(b.id, offer)]
    assert a.transfer_faults == [TransferFault(Cause.DAMAGED)]
    assert a.damaged == [("b", "bytes changed on the way: they do not match their checksum")]


@scenario
async def test_an_anchor_whose_header_was_damaged_on_the_way_is_the_fault_of_the_way(a, b):
    """No digest covers which offers are in an anchor."""
    state = state_of(b)
    first, *rest = to_frames(state, await payload_checksum(state))
    at = first.index(b"genesis")
    a.script = Script(flipped(first, at), *rest)
    want = Want(a.id, 0, b"")
    a.transfers.pull(a.link, want)
    await a.comes_to_rest()
    assert a.of("undelivered") == [(b.id, want)]
    assert a.transfer_faults == [TransferFault(Cause.DAMAGED)]
    assert [name for name, _ in a.damaged] == ["b"]


@scenario
async def test_a_seal_may_take_long_to_come(a, b):
    offer = offer_of(a)
    a.transfers.exchange(a.link, offer)
    await a.until(lambda: a.of("delivered"))
    await asyncio.sleep(10 * PATIENCE_S)
    b.reply("exchange", seal_of(b, offer))
    await a.comes_to_rest()
    assert a.messages(Seal) == [seal_of(b, offer)]


@scenario
async def test_a_newer_offer_quietly_takes_the_place_of_one_that_waits(a, b):
    first, second = offer_of(a, seq=1), offer_of(a, seq=2)
    a.transfers.exchange(a.link, first)
    await a.until(lambda: a.of("delivered"))
    a.transfers.exchange(a.link, second)
    b.replies("exchange", seal_of(b, second))
    await a.until(lambda: a.messages(Seal))
    await a.comes_to_rest()
    assert b.messages(Offer) == [first, second]
    assert a.of("undelivered") == b.faults == []
    assert b.link.requests == {}


@scenario
async def test_offers_of_two_fragments_go_side_by_side(a, b):
    offers = [offer_of(a, fragment=p) for p in (0, 1)]
    for offer in offers:
        a.transfers.exchange(a.link, offer)
    await b.until(lambda: len(b.messages(Offer)) == 2)
    for offer in offers:
        b.reply("exchange", seal_of(b, offer, fragment=offer.fragment))
    await a.comes_to_rest()
    assert {seal.fragment for seal in a.messages(Seal)} == {0, 1}


@scenario
async def test_what_waits_for_a_peer_that_is_gone_is_undelivered(a, b):
    offer, want = offer_of(a), Want(a.id, 1, b"")
    a.transfers.exchange(a.link, offer)
    a.transfers.pull(a.link, want)
    await a.until(lambda: a.of("delivered"))
    a.transfers.drop(a.link)
    await a.comes_to_rest()
    assert a.of("undelivered") == [(b.id, offer), (b.id, want)]


@scenario
async def test_stopping_tells_nothing(a, b):
    a.transfers.exchange(a.link, offer_of(a))
    await a.until(lambda: a.of("delivered"))
    tasks = a.transfers.stop()
    await asyncio.gather(*tasks, return_exceptions=True)
    await a.comes_to_rest()
    assert len(tasks) == 1
    assert a.of("undelivered") == []


# ── wrong answers, wrong beginnings ───────────────────────────────────────────────────────────────


def answers_of(other: Recorder) -> dict[str, list[bytes]]:
    """Answers that no offer and no want may get."""
    state, seal = state_of(other), seal_of(other)
    return {
        "nothing": [],
        "garbage": [b"garbage"],
        "an offer": [ACK, *to_frames(offer_of(other))],
        "an offer at once": [*to_frames(offer_of(other))],
        "another fragment's": [ACK, *to_frames(replace(seal, fragment=1))],
        "another fragment's at once": [*to_frames(replace(state, fragment=1))],
        "that of a former process": [ACK, *to_frames(replace(seal, sealer=PeerId("b", 0)))],
        "an offer of somebody else's": [ACK, *to_frames(offer_of(Recorder("c")))],
        "the half of it": [*to_frames(state)][:2],
    }


@pytest.mark.parametrize("answer", answers_of(Recorder("b")))
@pytest.mark.parametrize("kind", ["offer", "want"])
@scenario
async def test_a_wrong_answer_is_none(a, b, kind, answer):
    a.script = Script(*answers_of(b)[answer])
    message = offer_of(a) if kind == "offer" else Want(a.id, 0, b"")
    if kind == "offer":
        a.transfers.exchange(a.link, message)
    else:
        a.transfers.pull(a.link, message)
    await a.comes_to_rest()
    assert a.of("undelivered") == [(b.id, message)]
    assert a.of("received") == []


@scenario
async def test_the_seal_of_another_sealer_names_the_relay(a, b):
    seal = replace(seal_of(b), sealer=PeerId("c", 1))
    a.script = Script(ACK, *to_frames(seal))
    a.transfers.exchange(a.link, offer_of(a))
    await a.comes_to_rest()
    ((taken,),) = a.of("received")
    assert taken == seal
    assert (taken.passed_by, taken.sender) == (b.id, b.id)


C = PeerId("c", 1)


@scenario
async def test_a_want_takes_the_seal_of_another_sealer_on_the_anchor_that_it_names(a, b):
    seal = replace(seal_of(b), sealer=C)
    a.script = Script(*to_frames(seal))
    a.transfers.pull(a.link, Want(a.id, 0, seal.base))
    await a.comes_to_rest()
    ((taken,),) = a.of("received")
    assert taken == seal
    assert (taken.passed_by, taken.sender) == (b.id, b.id)
    assert contents(taken) == contents(seal)
    assert a.of("undelivered") == []


@pytest.mark.parametrize("have", [b"", b"another"])
@scenario
async def test_a_want_takes_no_seal_of_another_sealer_on_another_anchor(a, b, have):
    a.script = Script(*to_frames(replace(seal_of(b), sealer=C)))
    want = Want(a.id, 0, have)
    a.transfers.pull(a.link, want)
    await a.comes_to_rest()
    assert a.of("undelivered") == [(b.id, want)]
    assert a.of("received") == []


@scenario
async def test_a_want_takes_no_anchor_of_somebody_else(a, b):
    a.script = Script(*to_frames(replace(state_of(b), peer=C)))
    want = Want(a.id, 0, b"")
    a.transfers.pull(a.link, want)
    await a.comes_to_rest()
    assert a.of("undelivered") == [(b.id, want)]
    assert a.of("received") == []


@pytest.mark.parametrize("make", [state_of, seal_of])
@scenario
async def test_nothing_of_somebody_else_is_pushed(a, b, make):
    """A go-between can be dialled, so wants for it go over no control stream."""
    control(a)
    want = Want(a.id, 0, b"base")
    a.transfers.ask(a.link, want)
    b.transfers.push(b.link, make(Recorder("c")))
    await b.comes_to_rest()
    assert a.faults == ["peer b#1 sent a message that claims to be from c#1"]
    assert a.of("undelivered") == [(b.id, want)]
    assert a.of("received") == []


BEGINNINGS = {
    "Exchange": (state_of, "peer a#1 began an exchange with a State for fragment 0"),
    "Push": (offer_of, "peer a#1 answered a want with a Offer for fragment 0"),
    "PassOn": (seal_of, "peer a#1 passed on a Seal for fragment 0"),
}


@scenario
async def test_headers_and_small_chunks_count_before_they_are_read(a, b):
    """A refused message costs as much to decode."""
    took = Mock(wraps=b.link.inflow, take_header=AsyncMock(), take_chunk=AsyncMock())
    b.link.inflow = took
    cable = Cable()
    header, *chunks = to_frames(offer_of(a))
    for frame in (header, chunks[0][:-1]):
        await cable.carry("up", frame)
    await b.serve("Exchange", cable)
    (fault,) = b.faults
    assert fault.startswith("a frame announces a chunk of")
    took.take_header.assert_awaited_once_with(len(header))
    took.take_chunk.assert_awaited_once_with(len(chunks[0]) - 1)


@pytest.mark.parametrize("method", BEGINNINGS)
@scenario
async def test_a_stream_that_begins_with_the_wrong_kind_of_message_is_refused(a, b, method):
    make, reason = BEGINNINGS[method]
    b.link.streams.append(Outbox())
    b.transfers.ask(b.link, Want(b.id, 0, b""))
    cable = Cable()
    for frame in to_frames(make(a)):
        await cable.carry("up", frame)
    await b.serve(method, cable)
    assert b.faults == [reason]
    assert b.of("received") == []


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"", "peer name is empty"),
        (b"garbage", "the bytes are not a Want"),
        (
            wire.encode_want(Want(GONE, 0, b"")),
            "peer a#1 sent a message that claims to be from gone#1",
        ),
        (wire.encode_want(Want(PeerId("a", 1), 2, b"")), "there is no fragment 2"),
    ],
)
@scenario
async def test_a_request_that_is_no_want_of_the_peer_is_refused_at_once(a, b, sent, reason):
    cable = Cable()
    await cable.carry("up", sent)
    await b.serve("Pull", cable)
    assert reason in b.faults[0]
    assert b.of("received") == []
    assert now() < 1


# ── pull ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("make", [state_of, seal_of])
@scenario
async def test_a_want_is_answered_by_a_state_or_a_seal(a, b, make):
    want, answer = Want(a.id, 0, b"have"), make(b)
    b.replies("pull", answer)
    a.transfers.pull(a.link, want)
    await a.comes_to_rest()
    assert b.messages(Want) == [want]
    assert a.of("received") == [(answer,)]
    assert contents(a.messages(type(answer))[0]) == contents(answer)
    assert a.of("undelivered") == []
    assert b.link.requests == {}


@pytest.mark.parametrize("frames", [0, 1, 2, 3])
@scenario
async def test_a_want_whose_stream_breaks_before_the_answer_is_whole_is_undelivered(a, b, frames):
    a.cable.breaks_after = frames
    want = Want(a.id, 0, b"")
    b.replies("pull", state_of(b))
    a.transfers.pull(a.link, want)
    await a.comes_to_rest()
    assert a.of("undelivered") == [(b.id, want)]
    assert a.of("received") == []


@scenario
async def test_a_want_that_nobody_answers_is_refused_before_patience_ends(a, b):
    want = Want(a.id, 0, b"")
    a.transfers.pull(a.link, want)
    await b.until(lambda: b.messages(Want) == [want])
    await a.comes_to_rest(2 * PATIENCE_S)
    assert a.of("undelivered") == [(b.id, want)]
    assert a.transfer_faults == [TransferFault(Cause.ENDED, "no answer")]
    assert ANSWER_PATIENCE * PATIENCE_S <= now() < PATIENCE_S
    assert b.link.requests == {}


@scenario
async def test_a_newer_want_quietly_takes_the_place_of_an_older_one(a, b):
    first, second = Want(a.id, 0, b"first"), Want(a.id, 0, b"second")
    a.transfers.pull(a.link, first)
    await b.until(lambda: b.messages(Want) == [first])
    b.replies("pull", state_of(b))
    a.transfers.pull(a.link, second)
    await a.comes_to_rest()
    assert a.messages(State) == [state_of(b)]
    assert a.of("undelivered") == []


@scenario
async def test_the_first_answer_quietly_ends_the_other_questions_for_its_fragment(a, b):
    slow, sought, other = Link(PeerId("slow", 1)), Want(a.id, 0, b""), Want(a.id, 1, b"")
    dialled = Mock(side_effect=[End(Cable(), "down", "up") for _ in range(2)])
    a.dial_others = lambda link, method: nullcontext(dialled(link, method))
    a.transfers.pull(slow, sought)
    a.transfers.pull(slow, other)
    await a.comes_to_rest()
    assert dialled.mock_calls == [call(slow, "Pull")] * 2
    b.replies("pull", state_of(b))
    a.transfers.pull(a.link, sought)
    await a.comes_to_rest()
    assert a.messages(State) == [state_of(b)]
    assert a.of("undelivered") == []
    assert slow.busy == 1
    a.transfers.drop(slow)
    await asyncio.sleep(TICK_S)
    assert a.of("undelivered") == [(slow.id, other)]


@pytest.mark.parametrize("later", [True, False])
@scenario
async def test_an_answer_ends_no_question_that_was_asked_after_it(a, b, later):
    """The learner may have given that one up: then it waits for the later one alone."""
    fast, want = Link(PeerId("fast", 1)), Want(a.id, 0, b"")
    a.dial_others = lambda link, method: nullcontext(End(Cable(), "down", "up"))
    for link in (a.link, fast) if later else (fast, a.link):
        a.transfers.pull(link, want)
    await b.until(lambda: b.messages(Want))
    b.reply("pull", state_of(b))
    await a.comes_to_rest()
    assert a.messages(State) == [state_of(b)]
    assert fast.busy == later
    a.transfers.drop(fast)
    await asyncio.sleep(TICK_S)
    assert a.of("undelivered") == [(fast.id, want)] * later


# ── ask and push ──────────────────────────────────────────────────────────────────────────────────


def control(side: Side) -> Outbox:
    """A control stream between this side and the other."""
    outbox = Outbox()
    side.link.streams.append(outbox)
    return outbox


@pytest.mark.parametrize("make", [state_of, seal_of])
@scenario
async def test_a_want_over_the_control_stream_is_answered_by_a_push(a, b, make):
    stream, want, answer = control(a), Want(a.id, 0, b""), make(b)
    a.transfers.ask(a.link, want)
    assert await stream.get() == want
    b.transfers.push(b.link, answer)
    await b.comes_to_rest()
    assert a.of("received") == [(answer,)]
    assert contents(a.messages(type(answer))[0]) == contents(answer)
    await asyncio.sleep(2 * PATIENCE_S)  # no timer is left
    assert a.of("undelivered") == b.of("undelivered") == a.faults == []


@scenario
async def test_a_want_that_nobody_pushes_for_is_undelivered_once_patience_ends(a, b):
    control(a)
    want = Want(a.id, 0, b"")
    a.transfers.ask(a.link, want)
    await asyncio.sleep(PATIENCE_S - 1)
    assert a.of("undelivered") == []
    await asyncio.sleep(2)
    assert a.of("undelivered") == [(b.id, want)]
    assert a.link.asked == {}


@scenario
async def test_a_want_is_undelivered_soon_where_there_is_no_control_stream(a, b):
    want = Want(a.id, 0, b"")
    a.transfers.ask(a.link, want)
    assert a.of("undelivered") == []  # never from within the call
    await asyncio.sleep(0)
    assert a.of("undelivered") == [(b.id, want)]
    assert now() < 1


@scenario
async def test_a_want_that_is_asked_again_waits_anew(a, b):
    control(a)
    first, second = Want(a.id, 0, b"first"), Want(a.id, 0, b"second")
    a.transfers.ask(a.link, first)
    await asyncio.sleep(PATIENCE_S / 2)
    a.transfers.ask(a.link, second)
    await asyncio.sleep(0.9 * PATIENCE_S)
    assert a.of("undelivered") == []
    await asyncio.sleep(PATIENCE_S)
    assert a.of("undelivered") == [(b.id, second)]


@scenario
async def test_a_want_of_a_peer_that_is_gone_is_undelivered_at_once(a, b):
    control(a)
    want = Want(a.id, 0, b"")
    a.transfers.ask(a.link, want)
    a.transfers.drop(a.link)
    assert a.of("undelivered") == [(b.id, want)]
    await asyncio.sleep(2 * PATIENCE_S)
    assert len(a.of("undelivered")) == 1


@pytest.mark.parametrize("frames", [1, 2, 4])
@scenario
async def test_a_push_that_breaks_is_undelivered_and_so_is_the_want(a, b, frames):
    """After the header, within the payload, and after it: the asker doesn't wait for patience's
    end."""
    control(a)
    want, answer = Want(a.id, 0, b""), state_of(b)
    a.transfers.ask(a.link, want)
    b.cable.breaks_after = frames
    b.transfers.push(b.link, answer)
    await b.comes_to_rest()
    await a.until(lambda: a.of("undelivered") or a.messages(State))
    assert b.of("undelivered") == [(a.id, answer)]
    # whole before the break: only the ack was lost
    assert a.of("undelivered") == ([(b.id, want)] if frames < 4 else [])
    assert now() < 1


@scenario
async def test_what_nobody_asked_for_cannot_be_pushed(a, b):
    control(a)
    a.transfers.ask(a.link, Want(a.id, 0, b""))
    b.transfers.push(b.link, state_of(b, fragment=1))
    await b.comes_to_rest()
    assert a.faults == ["peer b#1 pushed fragment 1, which nobody asked it for"]
    assert b.of("undelivered") == [(a.id, state_of(b, fragment=1))]
    assert a.of("received") == a.of("undelivered") == []


@scenario
async def test_a_push_answers_a_want_once(a, b):
    control(a)
    a.transfers.ask(a.link, Want(a.id, 0, b""))
    for _ in range(2):
        b.transfers.push(b.link, state_of(b))
        await b.comes_to_rest()
    assert a.messages(State) == [state_of(b)]
    assert b.of("undelivered") == [(a.id, state_of(b))]


# ── pass on ───────────────────────────────────────────────────────────────────────────────────────


@scenario
async def test_an_offer_is_passed_on_beside_ones_own(a, b):
    own, orphan = offer_of(a), replace(offer_of(a, seq=7), peer=GONE)
    a.transfers.exchange(a.link, own)
    a.transfers.pass_on(a.link, orphan)
    await b.until(lambda: b.messages(Offer) and b.of("passed on"))
    (taken,), ((passed, by),) = b.messages(Offer), b.of("passed on")
    assert by == a.id
    assert [(offer.peer, offer.seq) for offer in (taken, passed)] == [(a.id, 1), (GONE, 7)]
    b.reply("exchange", seal_of(b, own))
    await a.comes_to_rest()
    assert sorted(a.of("delivered"), key=lambda told: told[1].seq) == [(b.id, own), (b.id, orphan)]
    assert a.of("undelivered") == []


@pytest.mark.parametrize("frames", [0, 1, 2, 3])
@scenario
async def test_an_orphan_whose_stream_breaks_before_the_ack_is_undelivered(a, b, frames):
    orphan = replace(offer_of(a), peer=GONE)
    a.cable.breaks_after = frames
    a.transfers.pass_on(a.link, orphan)
    await a.comes_to_rest()
    assert a.of("undelivered") == [(b.id, orphan)]


@scenario
async def test_nobody_offers_in_the_name_of_another_otherwise(a, b):
    foreign = replace(offer_of(a), peer=GONE)
    a.transfers.exchange(a.link, foreign)
    await a.comes_to_rest()
    assert b.faults == ["peer a#1 sent a message that claims to be from gone#1"]
    assert a.of("undelivered") == [(b.id, foreign)]
    assert b.messages(Offer) == []


# ── what a peer may take up ───────────────────────────────────────────────────────────────────────


@scenario
async def test_an_offer_waits_for_room_before_its_bytes_are_read(a, b):
    b.room = 10
    offers = [offer_of(a, size=3000, fragment=p) for p in (0, 1)]
    for offer in offers:
        a.transfers.exchange(a.link, offer)
    most = 0
    while len(b.messages(Offer)) < 2:
        most = max(most, b.receiving.nbytes)
        await asyncio.sleep(0)
    assert most == 3000
    for offer in offers:
        b.reply("exchange", seal_of(b, offer, fragment=offer.fragment))
    await a.comes_to_rest()
    assert a.of("undelivered") == b.faults == []


@scenario
async def test_a_newer_offer_that_arrives_takes_the_place_of_one_that_does(a, b):
    """Whatever the peer says of its own streams."""
    header, *_ = to_frames(offer_of(a, size=3000))
    cables = [Cable(), Cable()]
    serving = []
    for cable in cables:
        serving.append(asyncio.ensure_future(b.serve("Exchange", cable)))
        await cable.carry("up", header)
        await asyncio.sleep(TICK_S)
    assert serving[0].done()
    assert b.faults == ["a newer transfer for the same fragment took its place"]
    assert b.receiving.nbytes == 3000
    serving[1].cancel()
    await asyncio.wait(serving)
    assert b.receiving.nbytes == 0


@scenario
async def test_a_message_that_creeps_is_given_up(a, b):
    """A small chunk before each patience ends would keep a stream open for ever."""
    header, *_ = to_frames(offer_of(a, size=3000))
    cable = Cable()
    serving = asyncio.ensure_future(b.serve("Exchange", cable))
    await cable.carry("up", header)
    for _ in range(100):
        await asyncio.sleep(PATIENCE_S / 4)
        await cable.carry("up", pb.Frame(chunk=b"x").SerializeToString())
        if serving.done():
            break
    assert serving.done()
    assert b.faults == ["the message came slower than 10000 bytes per second for 60 s"]
    assert PATIENCE_S <= now() <= 2 * PATIENCE_S
    assert b.receiving.nbytes == 0
