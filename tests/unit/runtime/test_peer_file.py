"""Peers from a file: its form, what is wrong with it, and how it is followed while it changes."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from mend_optim.errors import PeerError, UsageError
from mend_optim.protocol.seed_lists import UNREAD, Listing
from mend_optim.runtime.peer_file import LARGEST, PeerFile
from mend_optim.transport.seeking import pause_beats
from tests.unit.transport.recorder import PATIENCE_S
from tests.unit.transport.test_grpc_transport import scenario
from tests.unit.transport.test_seeking import HASTY


def unchecked(called: str, address: str) -> None:
    """Any address may be dialled."""


def of(path: Path, *lines: str) -> PeerFile:
    if lines:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return PeerFile(path, "peers", unchecked)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "peers"


def test_each_line_is_an_address(path: Path) -> None:
    file = of(path, "# machines", "b:1", "", "  [::1]:2  # the second one", "b:1")
    assert file.addresses() == ["b:1", "[::1]:2"]
    assert asyncio.run(file.read("me:1")) == Listing(seeds=("b:1", "[::1]:2"))
    assert file.name == f"file:{path}"


def test_a_file_without_addresses_is_awaited(path: Path) -> None:
    file = of(path, "# nobody yet")
    assert asyncio.run(file.read("")) == Listing(seeds=(), awaited="it has no address yet")


def test_a_file_is_read_later_if_there_are_too_many_threads(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = of(path, "b:1")

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(PeerError, match="too many threads"):
            asyncio.run(file.read(""))
    assert asyncio.run(file.read("")).seeds == ("b:1",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, r"peers must be the path of a file that can be read \(No such file"),
        (b"b:1\nhere\n", "line 2 of .* must be an address 'host:port', got 'here'"),
        (b"b:0\n", "line 1 of .* must be an address with a port >= 1"),
        (b"\xff\xfe", "peers must be the path of a file in UTF-8"),
        (b"#" * (LARGEST + 1), f"peers must be the path of a file of at most {LARGEST} bytes"),
    ],
)
def test_a_file_that_is_wrong_is_named(path: Path, content: bytes | None, words: str) -> None:
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=words):
        of(path).addresses()
    with pytest.raises(PeerError, match=words):
        asyncio.run(of(path).read(""))


def test_a_file_names_nobody_who_must_not_be_dialled(path: Path) -> None:
    def check(called: str, address: str) -> None:
        raise UsageError(f"{called}: {address}")

    of(path, "b:1")
    with pytest.raises(UsageError, match=r"peers: line 1 of .*: b:1"):
        PeerFile(path, "peers", check).addresses()


def test_newcomers_in_the_file_are_dialled_and_others_no_more(path: Path) -> None:
    @scenario
    async def test(crew) -> None:
        b, c = await crew("b"), await crew("c")
        file = of(path, b.address)
        a = await crew("a", lists=[file], timing=HASTY)
        await a.linked_with(b)
        of(path, c.address, b.address)
        await a.linked_with(c)
        of(path, c.address)
        await a.until(lambda: a.of("listed")[-1] == (file.name, Listing(seeds=(c.address,))))
        await b.transport.stop()
        await a.until(lambda: {at for at, _ in a.transport._dialler._dials} == {c.address})

    test()


def test_a_file_that_is_wrong_at_first_is_what_the_first_step_waits_for(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @scenario
    async def test(crew) -> None:
        b = await crew("b")
        file = of(path)  # it is not there
        a = await crew("a", lists=[file], timing=HASTY)
        await a.until(lambda: len(a.of("listed")) >= 3)
        assert a.of("listed")[0] == (file.name, UNREAD)
        assert all("No such file" in listing.awaited for _, listing in a.of("listed")[1:])
        of(path, b.address)
        await a.linked_with(b)

    caplog.set_level(logging.INFO, logger="mend_optim")
    test()
    assert [record for record in caplog.records if record.message.startswith("file:")] == []


@pytest.mark.parametrize(
    ("listing", "failures", "beats"),
    [
        (Listing(seeds=("b:1",)), 0, 10),
        (Listing(seeds=("b:1",)), 1, 10),
        (Listing(seeds=("b:1",)), 3, 30),
        (Listing(seeds=("b:1",)), 1000, 120),
        (Listing(seeds=("b:1",), awaited="no address of rank 2 yet"), 0, 1),
        (UNREAD, 1, 1),  # the store's process may be starting
        (UNREAD, 5, 5),
    ],
)
def test_a_list_is_read_again_soon_where_that_may_help(
    listing: Listing, failures: int, beats: float
) -> None:
    assert pause_beats(listing, failures) == beats


class Counted:
    """A file, and how often it could not be read."""

    def __init__(self, file: PeerFile) -> None:
        self.file, self.name, self.failures = file, file.name, asyncio.Semaphore(0)

    async def read(self, address: str) -> Listing:
        try:
            return await self.file.read(address)
        except PeerError:
            self.failures.release()
            raise

    async def failed(self, times: int) -> None:
        for _ in range(times):
            await asyncio.wait_for(self.failures.acquire(), PATIENCE_S)


def test_a_file_that_breaks_keeps_its_peers_and_warns_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @scenario
    async def test(crew) -> None:
        b, c = await crew("b"), await crew("c")
        file = Counted(of(path, b.address))
        a = await crew("a", lists=[file], timing=HASTY)
        await a.linked_with(b)
        of(path, "neither host nor port")
        await file.failed(2)
        assert [seed for _, seed in a.transport._dialler._dials] == [b.address]
        of(path, c.address)
        await a.linked_with(c)
        had = dict.fromkeys(listing.seeds for _, listing in a.of("listed"))
        assert list(had) == [(), (b.address,), (c.address,)]
        assert len([1 for _, listing in a.of("listed") if not listing.seeds]) == 1

    caplog.set_level(logging.INFO, logger="mend_optim")
    test()
    said = [record for record in caplog.records if record.message.startswith("file:")]
    assert [record.levelname for record in said] == ["WARNING", "INFO"]
    assert "line 1 of" in said[0].message
    assert "the addresses that it had stay" in said[0].message
