"""`mend check` against real learners on this machine: its findings, and that it takes no part."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from mend_optim import Credentials, MendOptimizer
from mend_optim.cli.check.command import SETTINGS
from mend_optim.cli.command import main
from tests.support.addresses import free_addresses
from tests.support.learners import TIMING

pytestmark = pytest.mark.usefixtures("no_environment")
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "command.md"
EQUAL = "The settings that learners must share are equal on the {} learners that answered."


def checked(*arguments: str) -> tuple[int, str]:
    """The status and the output of the command, in a process of its own as a user has it."""
    done = subprocess.run(
        [sys.executable, "-m", "mend_optim", "check", *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=ROOT,
    )
    return done.returncode, done.stdout + done.stderr


@contextmanager
def learner(address: str, name: str = "a", size: int = 4, **told: Any) -> Iterator[MendOptimizer]:
    """A learner that listens, and trains alone."""
    inner = torch.optim.SGD(torch.nn.Linear(size, 1).parameters(), lr=0.1)
    told = {"timing": TIMING, "sync_every": 20, **told}
    optimizer = MendOptimizer(inner, name=name, listen=address, **told)
    try:
        optimizer.join()
        yield optimizer
    finally:
        optimizer.close()


def test_a_learner_is_found_and_hardly_notices() -> None:
    (address,) = free_addresses(1)
    events = []
    with learner(address, on_event=events.append) as optimizer:
        status, told = checked(address, "--settings")
        assert optimizer.status().roster == ()
    assert status == 0, told
    assert "answers     as a, started 20" in told
    assert "secured     plaintext" in told
    assert "model       2 parameters, the first is [1, 4] torch.float32" in told
    assert "sync_every          20\n" in told
    assert "codec               none\n" in told
    assert f"tells others to dial {address}" in told
    assert "FAULT" not in told
    # It has met nobody, and what the visitor has not is no news of the learner's.
    assert not any(event.kind in ("met", "together", "refused") for event in events)


def test_the_settings_that_are_asked_for_are_those_that_learners_must_share() -> None:
    """All but two, which learners tell only if they have them; and those that may differ."""
    (address,) = free_addresses(1)
    with learner(address) as optimizer:
        settings = optimizer._run.settings
    fields = {name for name, _ in (*settings.policy(), *settings.may_differ())}
    assert {*fields, "buffers", "credentials.signed"} == set(SETTINGS)


def test_guards_that_differ_are_told() -> None:
    one, other = free_addresses(2)
    with ExitStack() as stack:
        stack.enter_context(learner(one, "a"))
        stack.enter_context(learner(other, "b", guard=None))
        status, told = checked(one, other, "--settings")
    assert status == 0, told
    told, _, compared = told.partition("\nThese settings differ, and may; ")
    assert told.endswith(f"\n{EQUAL.format(2)}\n")
    assert "guard    Guard(norm=8.0, clip=False)  None\n" in compared
    assert "refuse" not in told + compared


def test_learners_that_were_asked_for_no_settings_are_not_called_alike() -> None:
    """Their codecs may differ."""
    one, other = free_addresses(2)
    with learner(one, "a", codec="int8"), learner(other, "b"):
        status, told = checked(one, other)
    assert status == 0, told
    assert "settings" not in told


def test_those_that_did_not_answer_are_not_called_equal() -> None:
    one, other, closed = free_addresses(3)
    with learner(one, "a"), learner(other, "b"):
        status, told = checked(one, other, closed, "--settings")
    assert status == 1
    assert EQUAL.format(2) in told


def test_learners_that_differ_are_compared() -> None:
    one, other, third = free_addresses(3)
    with ExitStack() as stack:
        stack.enter_context(learner(one, "a", codec="int8"))
        stack.enter_context(learner(other, "b", size=5))
        stack.enter_context(learner(third, "a"))
        status, told = checked(one, other, third, "--settings")
    assert status == 1
    lines = [line.split() for line in told.splitlines()]
    assert ["setting", "a", "b", "a"] in lines
    assert ["codec", "int8", "none", "none"] in lines
    assert "first parameter  [1, 4] torch.float32  [1, 5] torch.float32" in told
    assert "a is the name of 2 learners" in told


def test_a_closed_port_and_a_wrong_name_are_told_apart() -> None:
    (closed,) = free_addresses(1)
    # No server is asked for a label of more than 63 bytes.
    wrong = f"{'x' * 64}.invalid:29600"
    status, told = checked(closed, wrong)
    assert status == 1
    at_closed, at_wrong = told.split(wrong)
    assert "FAULT       connection refused\n" in at_closed
    assert "start the learner there, or correct its port\n" in at_closed
    assert "FAULT       the name does not resolve\n" in at_wrong


@contextmanager
def server(answer: bytes | None) -> Iterator[str]:
    """A server that is no learner: it answers this to whatever comes, or nothing at all."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            kept = []
            try:
                while True:
                    caller, _ = listening.accept()
                    kept.append(caller)
                    if answer is not None:
                        caller.recv(1)
                        caller.sendall(answer)
                        caller.close()
            except OSError:
                for caller in kept:
                    caller.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def test_what_is_no_learner_is_told() -> None:
    with server(b"HTTP/1.0 200 OK\r\n\r\n") as web, server(None) as silent:
        status, told = checked(web, silent, "--timeout", "0.5")
    assert status == 1
    at_web, at_silent = told.split(silent)
    assert "what answers is no learner" in at_web
    assert "the port accepts connections, but nothing answers within 0.5 s: " in at_silent
    assert "look there whether the process is stopped" in at_silent
    assert "DEADLINE" not in at_silent


def test_one_side_with_tls_and_one_without(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="make test installs the extra `certs`")
    from tests.support.certificates import secret_in

    secret, another = secret_in(tmp_path), secret_in(tmp_path, "another.secret")
    secured, bare = free_addresses(2)
    with ExitStack() as stack:
        stack.enter_context(learner(secured, credentials=Credentials.secret(secret)))
        stack.enter_context(learner(bare, "b"))
        status, told = checked(secured, "--secret", str(secret))
        assert status == 0, told
        assert "secured     mutual TLS (secret)" in told
        status, told = checked(secured)
        assert status == 1
        assert "it wants TLS\n              give this command the run's credentials" in told
        status, told = checked(bare, "--secret", str(secret))
        assert status == 1
        assert "it speaks no TLS\n              start that learner with credentials" in told
        status, told = checked(secured, "--secret", str(another))
        assert status == 1
        assert "its certificate is of another authority" in told
        assert "give all learners credentials of one authority, or one secret" in told


def test_a_learner_with_certificates_proves_its_name(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="make test installs the extra `certs`")
    from tests.support.certificates import files_of, new_authority

    authority = new_authority()
    files = {name: files_of(tmp_path / name, authority, name) for name in "ab"}
    one, other = free_addresses(2)
    with ExitStack() as stack:
        for address, name in ((one, "a"), (other, "b")):
            credentials = Credentials.files(files[name])
            stack.enter_context(learner(address, name, credentials=credentials))
        status, told = checked(one, "--credentials", str(files["b"]))
        assert status == 0, told
        assert "answers     as a" in told
        assert "secured     mutual TLS (files)" in told
        # From the machine of one of them, with its own files.
        status, told = checked(one, other, "--settings", "--credentials", str(files["a"]))
        assert status == 0, told
        assert told.count("model       2 parameters, the first is [1, 4] torch.float32") == 2
        assert EQUAL.format(2) in told


def test_an_address_that_others_cannot_dial_is_told() -> None:
    address, wrong = free_addresses(2)
    with learner(address, advertise=wrong):
        status, told = checked(address)
    assert status == 1
    assert f"it tells others to dial {wrong}, and from here: connection refused" in told
    assert "pass advertise=" in told


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["b"], "HOST:PORT must be an address 'host:port', got 'b'; write '10.0.0.5:29600'"),
        (["0.0.0.0:29600"], "HOST:PORT must be an address with the host to dial"),
        (["b:29600", "--timeout", "0"], "--timeout must be a number of seconds > 0, got 0.0"),
        (["b:29600", "--secret", "/no/such"], "credentials must be"),
        (["b:29600", "--params", "x"], "--params must be a number from 1 to 1e15"),
        (["b:29600", "--advertise", "c:29600"], "--advertise must be left out without --listen"),
        (["b:29600", "--listen", "c"], "--listen must be an address 'host:port'"),
        (["b:29600", "--listen", "127.0.0.1:22"], "--listen must be an address with a port >="),
        (
            ["b:29600", "--listen", "127.0.0.1:0", "--advertise", "c:22"],
            "--advertise must be an address with a port >= 1024",
        ),
    ],
)
def test_arguments_that_are_wrong_are_named(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_the_output_in_the_docs(tmp_path: Path) -> None:
    """But for times and ports."""
    one, other, closed, own = free_addresses(4)
    # Where this machine sees itself, whatever address it dials.
    own = f"127.0.0.1:{own.rpartition(':')[2]}"
    with learner(one, "alpha"), learner(other, "beta", size=5, codec="int4"):
        _, told = checked(one, other, closed, "--settings", "--listen", own)
    told = as_in_the_docs(told, one, other, closed, own)
    page = PAGE.read_text(encoding="utf-8")
    quoted = page.partition("    $ mend check ")[2].partition("\n")[2].partition("\n\n`")[0]
    assert timeless(told) == timeless(quoted), told


def as_in_the_docs(told: str, *addresses: str) -> str:
    for port, address in enumerate(addresses, 29600):
        told = told.replace(address, f"127.0.0.1:{port}")
    return told.replace(addresses[0].partition(":")[0], "127.0.0.1")


def timeless(text: str) -> list[str]:
    plain = re.sub(r"started .* UTC|\d+ ms|[\d.]+ [GMk]bit/s", "…", text)
    return [line.strip() for line in plain.splitlines() if line.strip()]
