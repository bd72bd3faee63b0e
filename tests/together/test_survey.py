"""Surveys of real learners on this machine, with a secret and without: what `mend check` finds out
of the way to them, and what it costs them."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest

from mend_optim import Credentials, MendOptimizer
from mend_optim.cli.command import main
from mend_optim.errors import PeerError
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.survey_words import Reply, Turn
from mend_optim.protocol.surveyed import FIRST_BYTES, MOST_BYTES
from mend_optim.protocol.timing import Timing
from mend_optim.security import read_security
from mend_optim.transport import surveying
from mend_optim.transport._pb import peer_pb2 as pb
from mend_optim.transport.connection import CALLER, SERVICE, Connection
from mend_optim.transport.dial_back import dial_back
from mend_optim.transport.grpc_options import channel_options
from mend_optim.transport.server import Server
from mend_optim.transport.stream import Counter
from mend_optim.transport.surveying import LEAST_REST_S
from mend_optim.transport.wire_survey import decode_reply
from tests.support.learners import LOOPBACK, TIMING, descent
from tests.system.processes import Relay

pytestmark = pytest.mark.usefixtures("no_environment")


@contextmanager
def learner(address: str = LOOPBACK, **told: Any) -> Iterator[tuple[MendOptimizer, str]]:
    """A learner that listens, and its address."""
    optimizer = MendOptimizer(descent(1.0), name="a", listen=address, timing=TIMING, **told)
    try:
        optimizer.join()
        yield optimizer, optimizer.status().address
    finally:
        optimizer.close()


def checked(
    capsys: pytest.CaptureFixture[str], address: str, *arguments: str
) -> tuple[int, dict[str, Any]]:
    """The status of the command, and what it found at one address."""
    capsys.readouterr()
    status = main(["check", address, "--json", *arguments])
    told = json.loads(capsys.readouterr().out)
    assert told["sound"] == (status == 0)
    return status, told["addresses"][0]


def texts(found: dict[str, Any]) -> str:
    return "\n".join(fault["text"] for fault in found["faults"])


@pytest.mark.parametrize("secured", [False, True])
def test_the_way_to_a_learner_is_measured(
    secured: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told: dict[str, Any] = {}
    given: list[str] = []
    if secured:
        pytest.importorskip("cryptography", reason="make test installs the extra `certs`")
        from tests.support.certificates import secret_in

        secret = secret_in(tmp_path)
        told, given = {"credentials": Credentials.secret(secret)}, ["--secret", str(secret)]
    with learner(**told) as (optimizer, address):
        before = optimizer.status()
        status, found = checked(capsys, address, "--listen", "127.0.0.1:0", *given)
        after = optimizer.status()
    assert status == 0, found
    assert found["sees_you_as"] == "127.0.0.1"
    assert found["dials_back"] == "reached"
    # Both read the same clock, so the true offset is 0.
    assert abs(found["clock_offset_s"]) <= found["clock_bound_s"]
    assert found["bytes_per_s_there"] > 0
    assert found["bytes_per_s_back"] > 0
    assert not found["not_measured"]
    assert after.roster == ()
    assert (after.bytes_sent, after.bytes_received) == (before.bytes_sent, before.bytes_received)
    assert after.refused == before.refused


def test_a_long_way_widens_the_bound_of_the_clock(capsys: pytest.CaptureFixture[str]) -> None:
    delay_s = 0.03
    with learner() as (_, address):
        relay = Relay(address, delay_s)
        try:
            status, found = checked(capsys, relay.address)
        finally:
            relay.close()
    assert status == 0
    # The two ways take as long as one another, or nearly so: the reading is better than its bound.
    assert found["clock_bound_s"] >= 0.9 * delay_s
    assert abs(found["clock_offset_s"]) <= found["clock_bound_s"]
    assert found["bytes_per_s_there"] > 0


def test_offers_of_a_model_are_timed(capsys: pytest.CaptureFixture[str]) -> None:
    with learner() as (_, address):
        assert main(["check", address, "--params", "1.3e9"]) == 0
    told = capsys.readouterr().out
    assert '  an offer    takes with codec "none" ' in told
    assert "FAULT" not in told


def test_a_quick_check_measures_no_bandwidth(capsys: pytest.CaptureFixture[str]) -> None:
    with learner() as (_, address):
        status, found = checked(capsys, address, "--quick")
    assert status == 0
    assert found["bytes_per_s_there"] is found["bytes_per_s_back"] is None
    assert found["clock_bound_s"] > 0
    assert found["dials_back"] is None


def test_an_older_learner_cannot_tell_and_that_is_no_fault_unless_it_was_asked_to_dial(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    methods = Server._methods

    def without(self: Server) -> dict[str, Any]:
        return {name: method for name, method in methods(self).items() if name != "Survey"}

    monkeypatch.setattr(Server, "_methods", without)
    with learner() as (_, address):
        status, found = checked(capsys, address)
        assert status == 0, found
        assert found["not_measured"] == "too old"
        assert found["learner"] == "a"
        assert main(["check", address]) == 0
        assert "way there   it is too old to tell" in capsys.readouterr().out
        status, found = checked(capsys, address, "--listen", "127.0.0.1:0")
    assert status == 1
    assert texts(found) == "it is too old to dial back"


def test_a_port_that_leads_elsewhere_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As behind a router that forwards the port to another machine, or to none."""
    # Nothing comes of a longer wait for an answer, nor of a longer rest between the two.
    monkeypatch.setattr(surveying, "dial_back", partial(dial_back, patience_s=0.5))
    monkeypatch.setattr(surveying, "LEAST_REST_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as other, learner() as (_, address):
        port = other.getsockname()[1]
        other.settimeout(20)
        given = ["--listen", "127.0.0.1:0", "--quick", "--advertise"]
        status, found = checked(capsys, address, *given, f"127.0.0.1:{port}")
        assert status == 1
        assert texts(found) == f"it cannot dial 127.0.0.1:{port} back: something else answers there"
        # The learner has come, and has said nothing.
        came, _ = other.accept()
        came.settimeout(20)
        with came:
            assert heard(came) == b""
        with socket.socket() as deaf:  # nobody else gets its port
            deaf.bind(("127.0.0.1", 0))
            closed = f"127.0.0.1:{deaf.getsockname()[1]}"
            status, found = checked(capsys, address, *given, closed)
        assert status == 1
        assert texts(found) == f"it cannot dial {closed} back: connection refused"


def heard(connection: socket.socket) -> bytes:
    try:
        return connection.recv(100)
    except ConnectionResetError:
        return b""


def test_an_address_of_others_is_not_dialled(capsys: pytest.CaptureFixture[str]) -> None:
    """Not even one of this machine, if the question did not come from there."""
    with socket.create_server(("127.0.0.2", 0)) as other, learner() as (_, address):
        elsewhere = f"127.0.0.2:{other.getsockname()[1]}"
        given = ["--listen", "127.0.0.1:0", "--quick", "--advertise", elsewhere]
        status, found = checked(capsys, address, *given)
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()
    assert status == 1
    assert found["dials_back"] is None
    assert "is not where it sees you, and it dials 127.0.0.1 alone" in texts(found)


def test_a_check_waits_for_its_turn_or_says_that_it_had_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with learner() as (_, address):
        with turn_at(address) as (_, first):
            assert isinstance(first, Turn)
            assert first.wait_s == 0
            # It has less patience than others need.
            status, found = checked(capsys, address, "--timeout", "0.5")
            assert status == 0
            assert found["not_measured"] == "busy"
        status, found = checked(capsys, address)
        assert status == 0
        assert found["not_measured"] == "", found


def test_a_clock_that_differs_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Late:
        """The clock of a machine that is two hours behind."""

        @staticmethod
        def time_ns() -> int:
            return time.time_ns() - 7200 * 10**9

    monkeypatch.setattr(surveying, "time", Late)
    with learner() as (_, address):
        status, found = checked(capsys, address, "--quick")
    assert status == 1
    assert abs(found["clock_offset_s"] + 7200) <= found["clock_bound_s"]
    assert texts(found).startswith("its clock is 2 h 0 min behind this machine's")


@contextmanager
def turn_at(address: str) -> Iterator[tuple[Any, Reply]]:
    """Ask for a turn, and ask nothing in it: the open stream, and the learner's first word."""
    end = object()
    asks: SimpleQueue[Any] = SimpleQueue()
    with grpc.insecure_channel(address) as channel:
        rpc = channel.stream_stream(f"/{SERVICE}/Survey")
        metadata = ((CALLER, pb.PeerId(name="x", incarnation=1).SerializeToString()),)
        call = rpc(iter(asks.get, end), metadata=metadata)
        try:
            yield call, decode_reply(next(call))
        finally:
            asks.put(end)


def test_a_learner_ends_in_the_middle_of_a_survey() -> None:
    with learner() as (optimizer, address), turn_at(address) as (call, first):
        assert isinstance(first, Turn)
        assert first.wait_s == 0
        with turn_at(address) as (_, second):
            assert isinstance(second, Turn)
            assert second.wait_s == LEAST_REST_S
        optimizer.close()
        with pytest.raises(grpc.RpcError):
            next(call)


def test_the_greatest_transfers_fit_into_the_words_of_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "command.md").read_text(encoding="utf-8")
    sizes, size = [], FIRST_BYTES
    while size <= MOST_BYTES:
        sizes.append(size)
        size *= 4
    assert f"{sum(sizes) / 1e6:.1f} MB in each direction at most" in page


def test_strangers_survey_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither without a certificate, nor with one of another run, nor in the name of another."""
    pytest.importorskip("cryptography", reason="make test installs the extra `certs`")
    from tests.support.certificates import files_of, new_authority, secret_in

    authority = new_authority()
    files = {name: files_of(tmp_path / name, authority, name) for name in "ab"}
    mine, others = Credentials.files(files["b"]), Credentials.secret(secret_in(tmp_path))
    with learner(credentials=Credentials.files(files["a"])) as (optimizer, address):
        first = surveyed_as("b", mine, address)
        assert isinstance(first, Turn)
        assert first.seen_ip == "127.0.0.1"
        with pytest.raises(PeerError, match="the certificate of 'b' cannot speak for 'c'"):
            surveyed_as("c", mine, address)
        for given in (None, others):
            with pytest.raises(PeerError, match="UNAVAILABLE"):
                surveyed_as("b", given, address)
        status, found = checked(capsys, address, "--listen", "127.0.0.1:0")
        assert status == 1
        assert found["sees_you_as"] is found["dials_back"] is found["clock_offset_s"] is None
        assert any("the certificate of" in each.reason for each in optimizer.status().refused)


def surveyed_as(name: str, credentials: Credentials | None, address: str) -> Reply:
    """The first word of a learner to a surveyor that says that it has this name."""

    async def ask() -> Reply:
        security = read_security(credentials, insecure=False).open("b")
        channel = security.channel(address, channel_options(Timing(), 20.0), "")
        connection = Connection(channel, PeerId(name, 1), Counter(), 20.0)
        try:
            with connection.stream("Survey") as stream:
                frame = await stream.read()
                assert frame is not None
                return decode_reply(frame)
        finally:
            await connection.close()

    return asyncio.run(ask())
