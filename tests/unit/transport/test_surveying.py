"""The turns of surveyors, and the connection back to one."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.errors import PeerError, UsageError
from mend_optim.protocol.survey_words import (
    CHUNK_BYTES,
    TOKEN_BYTES,
    Ask,
    Chunk,
    Dialled,
    DialPort,
    ReadClock,
    Reading,
    Reply,
    SendBytes,
    TakeBytes,
    Taken,
    Turn,
)
from mend_optim.protocol.surveyed import MOST_BYTES, DialBack
from mend_optim.transport.dial_back import check_target, dial_back
from mend_optim.transport.surveying import TURN_ASKS, TURN_BYTES, TURN_S, Turns, _Survey, sizes_of
from mend_optim.transport.token_port import listen, serving
from mend_optim.transport.wire_survey import decode_reply, encode_ask

TOKEN = bytes(range(TOKEN_BYTES))


@given(
    st.lists(
        st.tuples(st.floats(0.0, 30.0), st.floats(0.0, TURN_S), st.floats(0.0, 1.0)), max_size=30
    )
)
def test_surveys_come_one_at_a_time_and_transfers_take_a_fifth_of_the_time_at_most(
    attempts: list[tuple[float, float, float]],
) -> None:
    turns, now, free_at = Turns(), 100.0, 0.0
    turns_had: list[tuple[float, float, float]] = []
    for pause_s, took_s, share in attempts:
        now += pause_s
        wait_s = turns.begin(now)
        assert (wait_s == 0) == (now >= free_at)
        if wait_s:
            assert now + wait_s == pytest.approx(free_at)
            continue
        # Nobody else has a turn meanwhile.
        assert turns.begin(now) == turns.begin(now + took_s) == 2.0
        now += took_s
        turns.end(now, share * took_s)
        turns_had.append((now - took_s, now, share * took_s))
        # The rule in words: four times as long as the transfers took, and two seconds at least.
        free_at = now + max(2.0, 4.0 * share * took_s)
    assert all(later[0] - former[1] >= 1.999 for former, later in pairwise(turns_had))
    if turns_had:
        busy = sum(busy_s for _, _, busy_s in turns_had[:-1])
        assert busy <= (turns_had[-1][0] - turns_had[0][0]) / 5 + 1e-6


@given(st.integers(0, MOST_BYTES))
def test_chunks_carry_the_bytes_that_were_announced(nbytes: int) -> None:
    sizes = sizes_of(nbytes)
    assert sum(sizes) == nbytes
    assert all(0 < size <= CHUNK_BYTES for size in sizes)
    assert len(sizes) == -(-nbytes // CHUNK_BYTES)


class Asked:
    """A stream on which all of this is asked, and what was replied."""

    def __init__(self, *asks: Ask) -> None:
        self.frames = deque(map(encode_ask, asks))
        self.replies: list[Reply] = []

    async def read(self, patient: bool = False) -> bytes | None:
        return self.frames.popleft() if self.frames else None

    async def write(self, frame: bytes) -> None:
        self.replies.append(decode_reply(frame))

    async def finish(self) -> None:
        """The end is said by no more frames."""

    def run(self) -> list[Reply]:
        asyncio.run(_Survey(self, "127.0.0.1").run())
        return self.replies


def taken(nbytes: int) -> list[Ask]:
    """All that is said to send so many bytes."""
    return [TakeBytes(nbytes), *(Chunk(bytes(size)) for size in sizes_of(nbytes))]


def test_a_survey_is_answered_question_by_question() -> None:
    nbytes = CHUNK_BYTES + 5
    replies = Asked(ReadClock(), *taken(nbytes), SendBytes(nbytes), ReadClock()).run()
    turn, clock, all_taken, *chunks, again = replies
    assert turn == Turn(0.0, "127.0.0.1")
    assert all_taken == Taken(nbytes)
    assert [len(chunk.data) for chunk in chunks if isinstance(chunk, Chunk)] == [CHUNK_BYTES, 5]
    assert isinstance(clock, Reading)
    assert isinstance(again, Reading)
    assert clock.received_ns <= clock.answered_ns <= again.received_ns <= again.answered_ns


@pytest.mark.parametrize(
    ("asks", "words"),
    [
        ([Chunk(b"x")], "nobody has announced"),
        ([TakeBytes(1), Chunk(b"xx")], "more than the 1 bytes came"),
        ([TakeBytes(2), Chunk(b"x"), ReadClock()], "in the middle of a transfer"),
        ([TakeBytes(2), Chunk(b"x")], "ended in the middle"),
        ([SendBytes(MOST_BYTES)] * (TURN_BYTES // MOST_BYTES + 1), "in each direction"),
        (taken(MOST_BYTES) * (TURN_BYTES // MOST_BYTES) + taken(1), "in each direction"),
        ([ReadClock()] * (TURN_ASKS + 1), "64 questions"),
    ],
)
def test_a_survey_has_its_limits(asks: list[Ask], words: str) -> None:
    with pytest.raises(PeerError, match=words):
        Asked(*asks).run()


def test_the_time_of_transfers_counts_and_that_of_a_silence_does_not() -> None:
    """By a clock that each read of the stream moves on by a second."""
    loop = asyncio.new_event_loop()
    now = [0.0]

    class Slow(Asked):
        async def read(self, patient: bool = False) -> bytes | None:
            now[0] += 1.0
            return await super().read()

    survey = _Survey(Slow(ReadClock(), *taken(2 * CHUNK_BYTES), ReadClock()), "127.0.0.1")
    loop.time = lambda: now[0]  # type: ignore[method-assign]
    try:
        loop.run_until_complete(survey.run())
        assert survey.busy_s == 2.0
        broken = _Survey(Slow(*taken(2 * CHUNK_BYTES)[:-1]), "127.0.0.1")
        with pytest.raises(PeerError):
            loop.run_until_complete(broken.run())

        async def busy_s() -> float:
            return broken.busy_s

        assert loop.run_until_complete(busy_s()) == 2.0
    finally:
        loop.close()


def test_a_surveyor_is_dialled_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    asked = Asked(DialPort(port), DialPort(port))
    with pytest.raises(PeerError, match="dialled once"):
        asked.run()
    assert asked.replies[-1] == Dialled(DialBack.REFUSED)


@pytest.mark.parametrize(
    "ip", ["", "localhost", "b.example", "224.0.0.1", "0.0.0.0", "::", "ff02::1"]
)
def test_what_is_not_one_machine_is_not_dialled(ip: str) -> None:
    with pytest.raises(PeerError):
        check_target(ip)
    with pytest.raises(PeerError):
        asyncio.run(dial_back(ip, 29600, TOKEN))


@pytest.mark.parametrize("ip", ["127.0.0.1", "10.0.0.5", "203.0.113.9", "::1", "fd00::5"])
def test_a_machine_is(ip: str) -> None:
    check_target(ip)


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def outcome(talk: Talk) -> DialBack:
    """The outcome at a learner that dials somebody who does this."""

    async def dialled() -> DialBack:
        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            return await dial_back("127.0.0.1", port, TOKEN, patience_s=0.5)

    return asyncio.run(dialled())


@pytest.mark.parametrize(
    "said", [b"", TOKEN[:-1], bytes(TOKEN_BYTES), b"SSH-2.0-OpenSSH_9.6\r\n", b"x" * 100_000]
)
def test_whoever_does_not_say_the_token_is_somebody_else(said: bytes) -> None:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        writer.close()

    assert outcome(talk) is DialBack.OTHER


def test_somebody_that_says_nothing_is_somebody_else_and_is_told_nothing() -> None:
    heard: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            heard.append(await reader.read())
        except ConnectionResetError:
            heard.append(b"")
        writer.close()

    assert outcome(talk) is DialBack.OTHER
    assert b"".join(heard) == b""


def test_a_port_where_nobody_listens_is_told_as_such() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    assert asyncio.run(dial_back("127.0.0.1", port, TOKEN)) is DialBack.REFUSED


def test_a_port_that_takes_no_more_gives_no_answer() -> None:
    """The queue of a listener that takes nobody is full after a few; the kernel drops the rest."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        address = listening.getsockname()
        waiting = []
        for _ in range(8):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(address)
            waiting.append(one)
        found = asyncio.run(dial_back("127.0.0.1", address[1], TOKEN, patience_s=0.2))
        for one in waiting:
            one.close()
    # Linux drops what does not fit; other systems may refuse it.
    assert found in (DialBack.ANSWER, DialBack.REFUSED)


@pytest.mark.parametrize("address", ["127.0.0.1:0", ":0"])
def test_the_surveyors_port_says_the_token_to_each_that_connects(address: str) -> None:
    async def both(listening: socket.socket) -> list[DialBack]:
        port = listening.getsockname()[1]
        async with serving(listening) as served:
            dialling = asyncio.ensure_future(dial_back("127.0.0.1", port, TOKEN))
            await asyncio.sleep(0)
            served.tell(TOKEN)
            first = await dialling
            return [first, await dial_back("127.0.0.1", port, bytes(TOKEN_BYTES))]

    with listen("--listen", address) as listening:
        assert asyncio.run(both(listening)) == [DialBack.REACHED, DialBack.OTHER]
        # The next learner is served on the same port.
        assert asyncio.run(both(listening))[0] is DialBack.REACHED


def test_an_address_where_this_machine_cannot_listen_is_the_users_mistake() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UsageError, match="if a learner listens there, stop it"):
            listen("--listen", address)
    with pytest.raises(UsageError, match="with a port >= 1024, got"):
        listen("--listen", "127.0.0.1:22")
    with pytest.raises(UsageError, match="--listen must be an address"):
        listen("--listen", "nowhere")
