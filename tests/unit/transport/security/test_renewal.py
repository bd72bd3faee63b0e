"""Credentials of a learner that runs: read again when they change, without an end of what is open,
and held against peers whose time is over."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from mend_optim import Credentials
from mend_optim.errors import PeerError
from mend_optim.protocol.messages import Call
from mend_optim.protocol.transfer_fault import Cause, TransferFault
from mend_optim.transport import background_log, renewal, server
from mend_optim.transport.address import parse_address
from mend_optim.transport.grpc_transport import Transport
from mend_optim.transport.renewal import Renewal
from mend_optim.transport.security.channels import EXPIRY_GRACE_S, MutualTls
from mend_optim.transport.security.loading import CredentialFiles
from tests.support.certificates import (
    certificates_in,
    files_of,
    issue,
    new_authority,
    secret_in,
    write,
)
from tests.unit.transport.recorder import PATIENCE_S, offer_of
from tests.unit.transport.security.test_channels import stranger
from tests.unit.transport.test_grpc_transport import Crew, Learner, scenario

AUTHORITY = new_authority()
LOG = "mend_optim"


class Folder:
    """Learners whose credentials are in files, and who look after them when told."""

    def __init__(self, path: Path, crew: Crew) -> None:
        self._path = path
        self._crew = crew

    def of(self, name: str) -> Path:
        return self._path / name

    def security(self, name: str) -> MutualTls:
        files_of(self.of(name), AUTHORITY, name)
        files = CredentialFiles("credentials", Credentials.files(self.of(name)), name)
        return MutualTls(files.read(), "files", files.read_again)

    async def start(self, name: str, *seeds: str, **options: Any) -> Learner:
        return await self._crew(name, *seeds, security=self.security(name), **options)

    async def pair(self) -> tuple[Learner, Learner]:
        b = await self.start("b")
        a = await self.start("a", b.address)
        await a.linked_with(b)
        await b.linked_with(a)
        return a, b

    def issue_again(self, name: str) -> str:
        """The SHA-256 of a new certificate, in the place of the former one."""
        files_of(self.of(name), AUTHORITY, name)
        return certificates_in((self.of(name) / "cert.pem").read_bytes())[0].sha256

    def deny(self, name: str, entry: str) -> None:
        (self.of(name) / "deny.txt").write_text(entry, encoding="utf-8")


def with_files(test: Callable[[Folder], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    """A scenario of learners with files."""

    def run(tmp_path: Path) -> None:
        async def body(crew: Crew) -> None:
            await test(Folder(tmp_path, crew))

        scenario(body)()

    run.__name__ = test.__name__
    return run


async def look(learner: Learner) -> None:
    await learner.transport._renewal.look()


async def shown_at(address: str) -> str:
    """The SHA-256 of the certificate that a server shows."""
    place = parse_address("address", address)
    pem = await asyncio.to_thread(ssl.get_server_certificate, place)
    return certificates_in(pem.encode())[0].sha256


async def until_shown(address: str, certificate: str) -> None:
    """Wait until a server shows the certificate of this SHA-256."""
    end, shown = time.monotonic() + PATIENCE_S, ""
    while shown != certificate:
        assert time.monotonic() < end, f"{address} shows {shown}"
        with suppress(OSError):  # between two servers
            shown = await shown_at(address)


def told_of_port(caplog: pytest.LogCaptureFixture) -> list[str]:
    words = [record.getMessage() for record in caplog.records]
    return [text for text in words if " port " in text]


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOG]


# ── another certificate ───────────────────────────────────────────────────────────────────────────


@with_files
async def test_a_new_certificate_is_shown_and_nothing_that_is_open_ends(folder: Folder) -> None:
    a, b = await folder.pair()
    port = b.transport.port
    assert await shown_at(b.address) == b.transport._security._identity.certificate.sha256
    new = folder.issue_again("b")
    await look(b)
    assert b.transport.port == port
    assert await shown_at(b.address) == new
    up, down = Call(a.id, 0), Call(b.id, 1)
    a.transport.send(b.id, up, "")
    b.transport.send(a.id, down, "")
    await b.until(lambda: b.messages(Call) == [up])
    await a.until(lambda: a.messages(Call) == [down])
    assert a.of("linked") == [(b.id, True)]
    c = await folder.start("c", b.address)
    await c.linked_with(b)


@with_files
async def test_bulky_messages_show_the_new_certificate(folder: Folder) -> None:
    a, b = await folder.pair()
    a.transport.send(b.id, offer_of(a), "")
    await a.until(lambda: a.of("delivered"))
    link = a.transport._links.get(b.id)
    assert link is not None
    assert link.lanes is not None
    former = link.lanes.connections
    new = folder.issue_again("a")
    await look(a)
    a.transport.send(b.id, offer_of(a, seq=2, fragment=1), "")
    await a.until(lambda: len(a.of("delivered")) == 2)
    assert link.lanes.connections[0] not in former
    # the first offer still waits for its seal, on the former connection
    assert link.lanes.connections[1:] == former
    assert a.of("undelivered") == []
    known = b.transport._links.get(a.id)
    assert known is not None
    assert known.certificate is not None
    assert known.certificate.sha256 == new


@with_files
async def test_an_offer_that_another_authority_holds_up_says_so(folder: Folder) -> None:
    """The connections that are open go on, and new ones are not made."""
    a, b = await folder.pair()
    files_of(folder.of("a"), new_authority(), "a")
    await look(a)
    a.transport.send(b.id, offer_of(a, fragment=1), "")
    await a.until(lambda: a.of("undelivered"))
    assert a.transfer_faults == [TransferFault(Cause.UNTRUSTED)]


@with_files
async def test_what_has_not_changed_is_not_read_again(folder: Folder) -> None:
    _, b = await folder.pair()
    servers = list(b.transport._server._servers)
    await look(b)
    assert b.transport._server._servers == servers
    os.utime(folder.of("b") / "cert.pem", ns=(1, 1))
    assert not await b.transport._security.renew()  # read again, and the same


def test_the_user_is_told_once_that_the_certificate_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(crew: Crew) -> None:
        folder = Folder(tmp_path, crew)
        b = await folder.start("b")
        files_of(folder.of("b"), AUTHORITY, "b", end=timedelta(hours=6))
        for _ in range(3):
            await look(b)
        folder.issue_again("b")
        await look(b)

    scenario(body)()
    words = [text for text in told(caplog) if "expire" in text]
    assert len(words) == 1
    assert words[0].startswith("b: its certificate expires on ")


@with_files
async def test_a_learner_that_nobody_can_dial_has_nothing_to_listen_with(folder: Folder) -> None:
    a = await folder.start("a", listen=None)
    folder.issue_again("a")
    await look(a)
    assert a.transport.port == 0


@with_files
async def test_a_server_is_bound_anew_under_handshakes_again_and_again(folder: Folder) -> None:
    b = await folder.start("b")
    caller = folder.security("c")
    answered = 0

    async def call() -> None:
        nonlocal answered
        while answered < 40:
            async with stranger(b.address, caller, "c") as one:
                try:
                    await one.hello()
                    answered += 1
                except PeerError:
                    await asyncio.sleep(0)  # between two servers

    calls = asyncio.gather(*(call() for _ in range(4)))
    end = time.monotonic() + PATIENCE_S
    while not calls.done():
        assert time.monotonic() < end, f"{answered} of 40 were answered"
        await b.transport._server.rebind()
        await asyncio.sleep(0.01)
    await calls
    async with stranger(b.address, caller, "c") as one:
        assert (await one.hello()).peer == b.id


@with_files
async def test_a_port_that_is_taken_for_a_moment_is_waited_for(folder: Folder) -> None:
    b = await folder.start("b")
    binding: Callable[..., int] = b.transport._security.bind
    failures = iter([RuntimeError("taken"), 0])

    def taken(server: Any, address: str) -> int:
        failure = next(failures, None)
        if isinstance(failure, RuntimeError):
            raise failure
        return binding(server, address) if failure is None else failure

    b.transport._security.bind = taken  # type: ignore[method-assign]
    new = folder.issue_again("b")
    await look(b)
    assert next(failures, None) is None
    assert await shown_at(b.address) == new


class Taken:
    """Another process has the port of a server that listens anew, until it is `free`."""

    def __init__(self, b: Learner) -> None:
        self.free = False
        self._binding: Callable[..., int] = b.transport._security.bind
        b.transport._security.bind = self._bind  # type: ignore[method-assign]

    def _bind(self, server: Any, address: str) -> int:
        if not self.free:
            raise RuntimeError("taken")
        return self._binding(server, address)


@pytest.fixture
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REBIND_S", 0.001)
    monkeypatch.setattr(server, "MOST_REBIND_S", 0.004)
    monkeypatch.setattr(server, "HELD_UP_S", 0.02)


@pytest.mark.usefixtures("_hasty")
def test_while_another_process_has_its_port_a_learner_sends_the_denied_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @scenario
    async def run(crew: Crew) -> None:
        folder = Folder(tmp_path, crew)
        a, b = await folder.pair()
        taken = Taken(b)
        folder.issue_again("b")
        await look(b)
        folder.deny("b", "a")
        new = folder.issue_again("b")
        await look(b)
        await b.gone(a)
        taken.free = True
        await asyncio.wait_for(b.transport._server.returning(), PATIENCE_S)
        assert await shown_at(b.address) == new

    with caplog.at_level(logging.INFO):
        run()
    lost, found = told_of_port(caplog)
    assert lost.startswith("b: another process has taken port ")
    assert found.startswith("b: listens on port ")


@pytest.mark.usefixtures("_hasty")
@with_files
async def test_a_learner_whose_port_is_taken_can_leave(folder: Folder) -> None:
    b = await folder.start("b")
    Taken(b)
    folder.issue_again("b")
    await look(b)
    await b.transport.stop()
    with pytest.raises(asyncio.CancelledError):
        await b.transport._server.returning()


class Starting:
    """A server of `b` that takes a while to start, once its credentials are bound."""

    def __init__(self, b: Learner) -> None:
        self.begun, self.may_go_on = asyncio.Event(), asyncio.Event()
        self._binding: Callable[..., int] = b.transport._security.bind
        b.transport._security.bind = self._bind  # type: ignore[method-assign]

    def _bind(self, server: Any, address: str) -> int:
        starting = server.start

        async def start() -> None:
            self.begun.set()
            await self.may_go_on.wait()
            await starting()

        server.start = start
        return self._binding(server, address)


async def two_addresses(host: str, port: int) -> list[str]:
    """A name's."""
    return [f"127.0.0.1:{port}", f"127.0.0.2:{port}"]


async def starting_anew(folder: Folder, **options: Any) -> tuple[Learner, Starting]:
    """Learner b, whose credentials were renewed, and its server that starts with the new ones."""
    b = await folder.start("b", **options)
    starting = Starting(b)
    folder.issue_again("b")
    await look(b)
    assert starting.begun.is_set()
    return b, starting


@pytest.mark.usefixtures("_hasty")
@with_files
async def test_a_renewal_while_a_server_starts_is_not_left_for_the_next_one(folder: Folder) -> None:
    b, starting = await starting_anew(folder)
    new = folder.issue_again("b")
    await look(b)
    starting.may_go_on.set()
    await asyncio.wait_for(b.transport._server.returning(), PATIENCE_S)
    assert await shown_at(b.address) == new
    assert len(b.transport._server._servers) == 1


@with_files
async def test_a_learner_listens_anew_at_each_address_of_a_name(folder: Folder) -> None:
    """Nobody looks the name up again. The loop would stand still, and the addresses could be
    others."""
    asked = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return await two_addresses(host, port)

    b = await folder.start("b", listen="here:0", resolve=resolve)
    new = folder.issue_again("b")
    await look(b)
    port = b.transport.port
    assert [await shown_at(f"127.0.0.{i}:{port}") for i in (1, 2)] == [new, new]
    assert asked == ["here"]


@pytest.mark.usefixtures("_hasty")
@with_files
async def test_a_renewal_between_two_servers_reaches_the_first(folder: Folder) -> None:
    b, starting = await starting_anew(folder, listen="here:0", resolve=two_addresses)
    new = folder.issue_again("b")
    await look(b)
    starting.may_go_on.set()
    await asyncio.wait_for(b.transport._server.returning(), PATIENCE_S)
    port = b.transport.port
    assert [await shown_at(f"127.0.0.{i}:{port}") for i in (1, 2)] == [new, new]


@pytest.mark.usefixtures("_hasty")
def test_an_address_that_is_gone_keeps_no_other_from_later_credentials(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A name may stand for an address that this machine loses while it runs."""

    @scenario
    async def run(crew: Crew) -> None:
        folder = Folder(tmp_path, crew)
        b = await folder.start("b", listen="here:0", resolve=two_addresses)
        binding: Callable[..., int] = b.transport._security.bind
        failures, has_failed = iter(range(8)), asyncio.Event()

        def bind(server: Any, address: str) -> int:
            if address.startswith("127.0.0.1:"):
                return binding(server, address)
            if next(failures, None) is None:
                has_failed.set()
            return 0

        b.transport._security.bind = bind  # type: ignore[method-assign]
        for _ in range(3):
            new = folder.issue_again("b")
            await look(b)
            await until_shown(f"127.0.0.1:{b.transport.port}", new)
        await asyncio.wait_for(has_failed.wait(), PATIENCE_S)
        b.transport._security.bind = binding  # type: ignore[method-assign]
        await asyncio.wait_for(b.transport._server.returning(), PATIENCE_S)
        assert await shown_at(f"127.0.0.2:{b.transport.port}") == new

    with caplog.at_level(logging.INFO):
        run()
    lost, found = told_of_port(caplog)
    assert lost.startswith("b: cannot listen with new credentials on port ")
    assert " of 127.0.0.2, " in lost
    assert found.startswith("b: listens on port ")


@pytest.mark.usefixtures("_hasty")
@with_files
async def test_a_learner_that_leaves_while_a_server_starts_frees_its_port(folder: Folder) -> None:
    b, starting = await starting_anew(folder)
    stopping = asyncio.ensure_future(b.transport.stop())
    asyncio.get_running_loop().call_later(0.01, starting.may_go_on.set)
    await asyncio.wait_for(stopping, PATIENCE_S)
    with socket.create_server(parse_address("address", b.address)):
        """The port is free."""


@pytest.mark.usefixtures("_hasty")
def test_a_server_that_cannot_be_made_is_told_of_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @scenario
    async def run(crew: Crew) -> None:
        folder = Folder(tmp_path, crew)
        b = await folder.start("b")
        binding, faults = b.transport._security.bind, [OSError("no memory"), OSError("no memory")]

        def bind(server: Any, address: str) -> int:
            if faults:
                raise faults.pop()
            return binding(server, address)

        b.transport._security.bind = bind  # type: ignore[method-assign]
        new = folder.issue_again("b")
        await look(b)
        await asyncio.wait_for(b.transport._server.returning(), PATIENCE_S)
        assert await shown_at(b.address) == new

    run()
    background_log.flush(PATIENCE_S)
    (words,) = [record for record in caplog.records if "could not listen" in record.getMessage()]
    assert words.exc_info
    assert words.exc_info[0] is OSError


def test_a_port_that_stays_taken_is_asked_for_ever_more_rarely() -> None:
    pauses = list(islice(server.pauses(), 12))
    assert pauses[:3] == [0.05, 0.1, 0.2]
    assert pauses[-2:] == [server.MOST_REBIND_S] * 2


# ── wrong files ───────────────────────────────────────────────────────────────────────────────────


def test_wrong_files_leave_the_former_ones_and_are_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @scenario
    async def run(crew: Crew) -> None:
        folder = Folder(tmp_path, crew)
        b = await folder.start("b")
        former = await shown_at(b.address)
        write(folder.of("b"), AUTHORITY.pem, *issue(AUTHORITY, "other"))
        for _ in range(3):
            await look(b)
        assert await shown_at(b.address) == former
        new = folder.issue_again("b")
        await look(b)
        assert await shown_at(b.address) == new

    with caplog.at_level(logging.INFO):
        run()
    wrong, right = told(caplog)
    assert wrong.startswith("b: the former credentials stay: credentials must be the certificate")
    assert right.startswith("b: credentials were read again: certificate ")


def test_a_list_that_would_shut_nobody_out_leaves_the_former_one_and_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @scenario
    async def run(crew: Crew) -> None:
        folder = Folder(tmp_path, crew)
        b = await folder.start("b")
        folder.deny("b", "mallory\n")
        await look(b)
        folder.deny("b", "mallory\nboris\u200b\n")
        for _ in range(3):
            await look(b)
        assert b.transport._security._identity.denied == {"mallory"}
        folder.deny("b", "mallory\nboris\n")
        await look(b)
        assert b.transport._security._identity.denied == {"mallory", "boris"}

    with caplog.at_level(logging.INFO):
        run()
    first, wrong, right = told(caplog)
    assert wrong.startswith("b: the former credentials stay: credentials must have a learner's ")
    assert first.startswith("b: credentials were read again: ")
    assert right == first


def test_files_are_read_where_they_were_when_the_script_has_changed_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files_of(tmp_path / "pki", AUTHORITY, "a")
    monkeypatch.chdir(tmp_path)
    files = CredentialFiles("credentials", Credentials.files("pki"), "a")
    former = files.read()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert files.read_again() is None
    files_of(tmp_path / "pki", AUTHORITY, "a")
    present = files.read_again()
    assert present is not None
    assert present.chain != former.chain


def test_a_secret_is_never_read_again(tmp_path: Path) -> None:
    file = secret_in(tmp_path)
    files = CredentialFiles("credentials", Credentials.secret(file), "a")
    files.read()
    secret_in(tmp_path)
    os.utime(file, ns=(1, 1))
    assert files.read_again() is None


# ── peers whose time is over ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("by", ["name", "certificate"])
def test_a_peer_that_is_denied_meanwhile_is_sent_away(by: str, tmp_path: Path) -> None:
    @scenario
    async def run(crew: Crew) -> None:
        folder = Folder(tmp_path, crew)
        a, b = await folder.pair()
        own = a.transport._security._identity.certificate.sha256  # type: ignore[attr-defined]
        folder.deny("b", {"name": "a", "certificate": own}[by])
        await look(b)
        await b.gone(a)
        of = {"name": "'a'", "certificate": "the certificate of 'a'"}[by]
        assert b.of("refused") == [(a.address, f"{of} is denied here")]
        await a.gone(b)
        async with stranger(b.address, a.transport._security, "a") as again:  # type: ignore[arg-type]
            with pytest.raises(PeerError, match="is denied here"):
                await again.hello()

    run()


@with_files
async def test_a_denied_name_is_not_dialled(folder: Folder) -> None:
    b = await folder.start("b")
    a = await folder.start("a")
    folder.deny("a", "b")
    await look(a)
    c = await folder.start("c")
    a.known = [(b.id, b.address), (c.id, c.address)]
    await a.linked_with(c)
    assert {id for id, _, _ in a.of("met")} == {c.id}
    assert b.events == []


@pytest.mark.parametrize(("late_s", "stays"), [(-300.0, True), (300.0, False)])
def test_an_open_link_ends_an_hour_after_the_certificate(
    late_s: float, stays: bool, tmp_path: Path
) -> None:
    @scenario
    async def run(crew: Crew) -> None:
        a, b = await Folder(tmp_path, crew).pair()
        link = b.transport._links.get(a.id)
        assert link is not None
        assert link.certificate == a.transport._security._identity.certificate  # type: ignore[attr-defined]
        end = time.time() - EXPIRY_GRACE_S - late_s
        link.certificate = replace(link.certificate, not_after=end)
        await look(b)
        assert (b.transport._links.get(a.id) is link) == stays
        assert bool(b.of("refused")) != stays

    run()


# ── the task ──────────────────────────────────────────────────────────────────────────────────────


def test_a_learner_looks_by_itself_whatever_goes_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, "EVERY_S", 0.01)
    looking, looks = Renewal.look, 0
    looked = asyncio.Event()

    async def fails_first(self: Renewal) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise OSError("a disk is gone")
        await looking(self)
        looked.set()

    monkeypatch.setattr(Renewal, "look", fails_first)

    @scenario
    async def run(crew: Crew) -> None:
        folder = Folder(tmp_path, crew)
        security = folder.security("b")
        new = folder.issue_again("b")
        b = await crew("b", security=security)
        await asyncio.wait_for(looked.wait(), PATIENCE_S)
        assert await shown_at(b.address) == new

    run()


@scenario
async def test_a_learner_without_credentials_has_nothing_to_look_after(crew: Crew) -> None:
    a = await crew("a")
    assert a.transport._renewal.stop() == []
    await look(a)
    assert isinstance(a.transport, Transport)
