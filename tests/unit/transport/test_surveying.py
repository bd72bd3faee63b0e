"""The turns of surveyors, and the connection back to one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.errors import PeerError, UsageError
from mend_optim.protocol.survey_words import (
    CHUNK_BYTES,
    TOKEN_BYTES,
)
from mend_optim.protocol.surveyed import MOST_BYTES, DialBack
from mend_optim.transport.dial_back import check_target, dial_back
from mend_optim.transport.surveying import TURN_S, Turns, sizes_of
from mend_optim.transport.token_port import listen, serving

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
    """What a learner finds that dials somebody who does this."""

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
