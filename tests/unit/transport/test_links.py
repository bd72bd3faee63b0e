"""The news that a user gets of refused peers, and how fast a peer's beats are read."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from unittest.mock import Mock

import pytest

from mend_optim.errors import PeerError
from mend_optim.protocol.handshake import NO_VALUE
from mend_optim.protocol.lineage import Key, PeerId
from mend_optim.protocol.messages import Beat, Control, Goodbye, Report, Rumor
from mend_optim.transport import control
from mend_optim.transport.control import Links
from mend_optim.transport.goodbyes import Goodbyes
from mend_optim.transport.inflow import BURST, ENTRIES, RATE, UNIT
from mend_optim.transport.link import Link, Outbox
from mend_optim.transport.stream import RpcFailed
from mend_optim.transport.wire import decode_control, encode_control
from tests.unit.transport.recorder import Recorder
from tests.unit.transport.test_receiving import now, virtual


class Refusing:
    """The links of a learner that refuses hellos, and what its user is told of that."""

    def __init__(self) -> None:
        self.recorder = Recorder("a")
        self.links = Links(self.recorder, None, Goodbyes(None))  # type: ignore[arg-type]

    def hears(self, name: str, sync_every: int) -> None:
        """A learner of this name has another period."""
        theirs = replace(self.recorder.hello(), peer=PeerId(name, 1))
        theirs = replace(theirs, policy=(("sync_every", str(sync_every)),))
        assert self.links.agree(self.recorder.hello(), theirs, f"{name}:1")

    def told(self) -> list[str]:
        """The addresses of the refusals that were told since the last look."""
        addresses = [address for address, _ in self.recorder.of("refused")]
        self.recorder.events.clear()
        return addresses


@pytest.mark.parametrize("is_one", [True, False], ids=["one-name", "many-names"])
def test_whoever_has_said_what_a_later_refusal_is_told(is_one: bool) -> None:
    refusing = Refusing()
    for n in range(3 * control.REASONS):
        refusing.hears("mallory" if is_one else f"mallory {n}", 1000 + n)
    assert len(refusing.told()) == 3 * control.REASONS
    assert len(refusing.links._reported) == (control.REASONS_OF_ONE if is_one else control.REASONS)
    for _ in range(3):
        refusing.hears("b", 7)
    assert refusing.told() == ["b:1"]


def test_reasons_of_one_name_take_no_place_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every learner that is refused would be told of again and again."""
    monkeypatch.setattr(control, "REASONS", 10)
    refusing = Refusing()
    refusing.hears("b", 7)
    for n in range(30):
        refusing.hears("mallory", 1000 + n)
    refusing.told()
    refusing.hears("b", 7)
    refusing.hears("mallory", 1029)
    assert refusing.told() == []
    refusing.hears("mallory", 1000)
    assert refusing.told() == ["mallory:1"]


def test_refused_hellos_are_counted_without_the_words_of_strangers() -> None:
    refusing = Refusing()
    for n in range(200):
        refusing.hears(f"mallory {n}", 1000 + n)
        refusing.hears("b", 7)
    assert refusing.links.refusals.counted() == (("", control.HELLO, 400),)


def test_those_that_only_ask_are_not_counted() -> None:
    links, mine = Refusing().links, Recorder("a").hello()
    theirs = replace(mine, peer=PeerId("b", 1), policy=(("sync_every", NO_VALUE),))
    assert links.agree(mine, theirs, "b:1")
    assert links.refusals.counted() == ()


class Spoken:
    """A control stream on which a peer says the same beat so many times, and ends."""

    def __init__(self, beat: Beat, times: int) -> None:
        self.beats = [replace(beat, count=count) for count in range(1, times + 1)]

    async def read(self, patient: bool = False) -> bytes | None:
        return encode_control(self.beats.pop(0)) if self.beats else None


class Failing:
    """A control stream that ends with a fault."""

    def __init__(self, fault: PeerError) -> None:
        self.fault = fault

    async def read(self, patient: bool = False) -> bytes | None:
        raise self.fault


@pytest.mark.parametrize(
    ("fault", "refused"),
    [
        (RpcFailed("UNAVAILABLE", "Stream removed (Socket closed)"), 0),
        (RpcFailed("CANCELLED", "the call was cancelled"), 0),
        (RpcFailed("INVALID_ARGUMENT", "no hello came before"), 1),
        (PeerError("beat has no peer"), 1),
    ],
    ids=["broken", "cancelled", "declined", "nonsense"],
)
def test_a_link_that_breaks_is_no_refusal(fault: PeerError, refused: int) -> None:
    @virtual
    async def listen() -> None:
        links = Links(Recorder("a"), None, Goodbyes(None))  # type: ignore[arg-type]
        await links._listen(Link(PEER), Failing(fault), Outbox())  # type: ignore[arg-type]
        assert sum(each.times for each in links.refusals.counted()) == refused

    listen()


class Open:
    """A control stream on which the peer says nothing more, and which stands until `end` is set."""

    def __init__(self, *said: Control) -> None:
        self.end = asyncio.Event()
        self.sent: list[Control] = []
        self.is_finished = False
        self._said = list(said)

    async def read(self, patient: bool = False) -> bytes | None:
        if self._said:
            return encode_control(self._said.pop(0))
        await self.end.wait()
        return None

    async def write(self, frame: bytes) -> None:
        self.sent.append(decode_control(frame))

    async def finish(self) -> None:
        self.is_finished = True


@virtual
async def test_a_new_incarnation_is_read_no_faster() -> None:
    """A peer may say hello again as often as it likes."""
    links = Links(Recorder("a"), Mock(), Goodbyes(None))
    first = links.admit(PeerId("b", 1), "b:1", "b")
    assert links.admit(PeerId("b", 2), "b:1", "b").inflow is first.inflow
    assert links.admit(PeerId("c", 1), "c:1", "c").inflow is not first.inflow


@virtual
async def test_a_peer_that_was_dismissed_is_down_before_it_comes_back() -> None:
    """Its former stream may end after its new one has begun. The learner would take the peer for
    one without a stream as long as the new one stands."""
    recorder, transfers = Recorder("a"), Mock()
    links = Links(recorder, transfers, Goodbyes(None))
    streams = []
    for _ in range(2):
        stream, link = Open(), links.admit(PEER, "b:1", "b", dialled=True)
        work = links.converse(link, stream, linger=True)  # type: ignore[arg-type]
        streams.append((stream, asyncio.ensure_future(work)))
        await asyncio.sleep(0)
        if len(streams) == 1:
            links.dismiss(link)
    for stream, task in streams:
        stream.end.set()
        await task
    assert [event[2] for event in recorder.events] == [True, False, True, False]


@virtual
async def test_no_stream_stands_with_a_peer_that_was_dismissed_while_it_opened() -> None:
    recorder = Recorder("a")
    links = Links(recorder, Mock(), Goodbyes(None))
    link = links.admit(PEER, "b:1", "b")
    links.dismiss(link)
    await asyncio.wait_for(links.converse(link, Open()), 1.0)  # type: ignore[arg-type]
    assert recorder.events == []


class Conversing:
    """A learner that its peer has called on these streams."""

    def __init__(self, *streams: Open) -> None:
        self.recorder = Recorder("a")
        links = Links(self.recorder, Mock(), Goodbyes(None))
        self.link = links.admit(PEER, "", "b")
        self.streams = streams
        self.ends = [
            asyncio.ensure_future(links.converse(self.link, stream))  # type: ignore[arg-type]
            for stream in self.streams
        ]

    def close(self) -> None:
        for outbox in self.link.outboxes():
            outbox.close()


@virtual
async def test_a_goodbye_is_waited_for_until_the_peer_has_read_it() -> None:
    """What a peer has not read goes with the connection."""
    goodbye, here = Goodbye(PeerId("a", 1)), Conversing(Open(), Open())
    await asyncio.sleep(0)
    here.link.take_leave(goodbye)
    here.close()
    began = now()
    first, second = here.ends
    await asyncio.wait({first, second}, timeout=control.LINGER_S / 2)
    assert [stream.sent for stream in here.streams] == [[goodbye], [goodbye]]
    assert not first.done()
    assert not second.done()
    here.streams[0].end.set()
    await first
    assert now() - began < control.LINGER_S
    await second
    assert now() - began >= control.LINGER_S


@virtual
async def test_the_end_of_a_served_stream_waits_for_nobody_without_a_goodbye() -> None:
    here = Conversing(Open())
    await asyncio.sleep(0)
    here.close()
    began = now()
    await asyncio.gather(*here.ends)
    assert now() == began


@virtual
async def test_whoever_hears_a_goodbye_ends_all_streams_with_that_peer() -> None:
    """The leaving learner waits for that."""
    goodbye = Goodbye(PEER)
    here = Conversing(Open(), Open(goodbye))
    here.streams[1].end.set()
    await asyncio.wait({here.ends[1]})
    assert here.recorder.messages(Goodbye) == [goodbye]
    assert here.streams[0].is_finished
    here.streams[0].end.set()
    await here.ends[0]


class Slow(Open):
    """A control stream on which the peer's last words are still on their way."""

    async def read(self, patient: bool = False) -> bytes | None:
        await asyncio.sleep(0.1)
        return await super().read()


@virtual
async def test_a_goodbye_does_not_hide_the_last_beat_on_another_stream() -> None:
    """That beat tells on what the peer has ended, and perhaps nobody else does."""
    beat = Beat(peer=PEER, address="", count=1)
    here = Conversing(Slow(beat), Open(Goodbye(PEER)))
    for stream in here.streams:
        stream.end.set()
    await asyncio.gather(*here.ends)
    assert here.recorder.messages(object) == [Goodbye(PEER), beat]


class Ended(Slow):
    """A control stream that the peer has ended."""

    async def write(self, frame: bytes) -> None:
        raise PeerError("the RPC is over")


@virtual
async def test_a_goodbye_is_heard_on_a_stream_that_nothing_can_be_written_to() -> None:
    here = Conversing(Ended(Goodbye(PEER)))
    await asyncio.sleep(0)
    here.link.post(Beat(peer=PeerId("a", 1), address="", count=1))
    began = now()
    (end,) = here.ends
    with pytest.raises(PeerError, match="the RPC is over"):
        await end
    assert here.recorder.messages(Goodbye) == [Goodbye(PEER)]
    assert now() - began <= control.LINGER_S + 0.1


PEER = PeerId("b", 1)
MANY = tuple(PeerId(f"c-{n}", 1) for n in range(1000))
KEY = Key(tokens=0, version=0, digest=b"")
#: With a thousand entries each they cost twice the burst; as beats without any they would cost next
#: to nothing of it.
BEATS = 20
assert BEATS * 1000 / ENTRIES > 2 * BURST > 50 * BEATS


@pytest.mark.parametrize(
    "lists",
    [
        {"roster": tuple(Rumor(peer, "", 1) for peer in MANY)},
        {"reports": (Report(key=KEY),) * 1000},
        {"reports": (Report(key=KEY, held=tuple((peer, 1) for peer in MANY)),)},
        {"turned_away": MANY},
    ],
    ids=["roster", "reports", "held", "turned_away"],
)
def test_beats_with_long_lists_are_read_slowly_whatever_they_list(lists: dict[str, object]) -> None:
    """A thousand entries take milliseconds to decode, and training waits for them."""

    @virtual
    async def converse() -> None:
        recorder = Recorder("a")
        links = Links(recorder, None, Goodbyes(None))  # type: ignore[arg-type]
        beat = Beat(peer=PEER, address="", count=1, **lists)  # type: ignore[arg-type]
        assert beat.entries >= 1000
        began = now()
        spoken = Spoken(beat, BEATS)
        await links._listen(Link(PEER), spoken, Outbox())  # type: ignore[arg-type]
        assert len(recorder.events) == BEATS
        assert now() - began > (BEATS * 1000 / ENTRIES - BURST) / RATE

    converse()


@virtual
async def test_a_message_that_is_refused_costs_its_bytes() -> None:
    """Else a peer could make a learner decode any number of them, on one stream after another."""
    links = Links(Recorder("a"), None, Goodbyes(None))  # type: ignore[arg-type]
    link = Link(PEER)
    began = now()
    for _ in range(10):
        garbage = Garbage(1 << 20)
        await links._listen(link, garbage, Outbox())  # type: ignore[arg-type]
        assert garbage.was_read
    assert now() - began > (10 * (1 << 20) / UNIT - BURST) / RATE


class Garbage:
    """A control stream on which so many bytes come that are no message."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.was_read = False

    async def read(self, patient: bool = False) -> bytes | None:
        self.was_read = True
        return b"\xff" * self.nbytes
