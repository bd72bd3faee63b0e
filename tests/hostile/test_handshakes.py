"""Strangers at the door of learners with credentials: TCP connections that never finish a TLS
handshake, and handshakes without a certificate. Rounds go on, descriptors are bounded, and a
learner with credentials gets in once the strangers' time is over."""

from __future__ import annotations

import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import NamedTuple

import pytest

from mend_optim.transport.grpc_options import FILE_SHARE
from tests.hostile.ground import FEW_FILES, UNHURRIED, memory_mb, open_files
from tests.system.processes import Learner, Process, Supervisor

secret_in = pytest.importorskip("tests.support.certificates").secret_in

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
#: The callers that the learner at the door takes, which may open few files.
CALLERS = FEW_FILES // FILE_SHARE
#: The beginning of a TLS record that promises 512 bytes.
BEGUN = b"\x16\x03\x01\x02\x00\x01\x00"


class Door(NamedTuple):
    """A learner that is called, and one that trains with it."""

    supervisor: Supervisor
    secret: str
    a: Learner
    b: Learner

    @property
    def place(self) -> tuple[str, int]:
        host, _, port = self.a.address.rpartition(":")
        return host, int(port)

    def newcomer(self, name: str) -> Learner:
        how = {"secret": self.secret, "peers": [self.a.address], **UNHURRIED}
        return self.supervisor.start(name, seed=9, **how)

    def goes_on(self) -> None:
        for learner in (self.a, self.b):
            learner.await_steps(10)
            learner.await_rounds(2)
            assert "Traceback" not in learner.complaints, learner.complaints


@pytest.fixture(scope="module")
def door(
    processes: list[Process], few_files: Process, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Door]:
    secret = str(secret_in(tmp_path_factory.mktemp("door")))
    supervisor = Supervisor(processes)
    try:
        a = supervisor.start("a", on=few_files, seed=1, secret=secret, **UNHURRIED)
        b = supervisor.start("b", seed=2, secret=secret, peers=[a.address], **UNHURRIED)
        a.await_rounds(2)
        yield Door(supervisor, secret, a, b)
    finally:
        supervisor.end()


@pytest.mark.parametrize("said", [b"", BEGUN], ids=["silent", "begun"])
def test_handshakes_that_never_end_keep_nobody_out_for_long(door: Door, said: bytes) -> None:
    files, memory = open_files(door.a), memory_mb(door.a)
    with ExitStack() as held:
        open_ones = [
            held.enter_context(socket.create_connection(door.place, timeout=5)) for _ in range(300)
        ]
        for one in open_ones:
            with suppress(OSError):
                one.sendall(said)
        taken = 0
        for _ in range(100):  # they are given up soon: on a busy machine, while both go on
            taken = max(taken, open_files(door.a) - files)
            if taken > CALLERS / 2:
                break
            door.a.await_steps(1)
        assert CALLERS / 2 < taken <= CALLERS
        door.goes_on()
        assert open_files(door.a) - files <= CALLERS
        c = door.newcomer("silent" if not said else "begun")
        c.await_rounds(2)
        door.goes_on()
        assert open_files(door.a) - files < CALLERS / 2
        c.leave()
    assert memory_mb(door.a) - memory < 60


def test_handshakes_without_a_certificate_cost_little(door: Door) -> None:
    """They are whole: the stranger sees the learner's certificate, and is sent away for having
    none of its own."""
    files, memory = open_files(door.a), memory_mb(door.a)
    shown: list[str] = []

    def call() -> None:
        for _ in range(40):
            with suppress(OSError):
                shown.append(ssl.get_server_certificate(door.place, timeout=5))

    callers = [threading.Thread(target=call) for _ in range(5)]
    for caller in callers:
        caller.start()
    door.goes_on()
    for caller in callers:
        caller.join()
    assert len(shown) > 100
    c = door.newcomer("after")
    c.await_rounds(2)
    door.goes_on()
    c.leave()
    assert open_files(door.a) - files < CALLERS / 2
    assert memory_mb(door.a) - memory < 60
