"""Two real learners that are attacked, and what an attack may cost them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from mend_optim.transport._pb import peer_pb2 as pb
from tests.hostile.attacker import Attacker
from tests.system.processes import PATIENCE_S, Facts, Learner, Supervisor

#: The most that one attack may leave behind in a learner.
MEMORY_MB = 200
FILES = 24
#: The files that a learner on the process `few_files` may open.
FEW_FILES = 256
#: What learners do after each attack, within the supervisor's patience. One of the rounds may have
#: begun before the attack ended.
STEPS, ROUNDS = 8, 3
#: The pause of learners between two steps, and the steps from one round to the next. More steps
#: would only take cores from other tests while an attack waits: no attack needs as many.
PACE_S = 0.05
UNHURRIED: Facts = {"pace_s": PACE_S, "sync_every": 4}
#: A learner that is suspected has no vote on whom to believe. On a busy machine one may be silent
#: for more than half a second.
TIMING = {"beat_s": 0.5}
WIDTH = 700
#: Elements of the model, and the greatest message about it: see `Settings._limit`.
NUMEL = 17 * WIDTH + (WIDTH + 1) * WIDTH + (WIDTH + 1) * 4
LIMIT = 24 * NUMEL


class Ground:
    """The learners "a", which is attacked, and "b", which trains with it."""

    def __init__(
        self,
        supervisor: Supervisor,
        pace: Mapping[str, float] = UNHURRIED,
        special: Mapping[str, Facts] | None = None,
    ) -> None:
        self.supervisor = supervisor
        options: Facts = {"width": WIDTH, "timing": TIMING, **pace}
        self.a, self.b = supervisor.start_all("ab", special, **options)
        self.go_on(STEPS, ROUNDS)
        report = self.a.report()
        self.genesis = bytes.fromhex(report["genesis"])
        #: An insider knows the model and the settings, as "a" tells them in its hello.
        self.hello = pb.Hello.FromString(bytes.fromhex(report["hello"]))

    def attacker(self, name: str, incarnation: int = 0, at: Learner | None = None) -> Attacker:
        """A peer of any name, at the door of "a" or of another learner."""
        return Attacker((at or self.a).address, self.hello, name, incarnation)

    @contextmanager
    def held(self, merged: Iterable[str] = "ab") -> Iterator[None]:
        """After an attack inside: both go on, and it has cost no more than it may. Work of nobody
        is merged but of those that are `merged`.

        The longest gap of training is not measured: on a busy machine it is as long as the machine
        makes it. Each learner must take steps and adopt anchors while the attack lasts, and
        after it."""
        memory, files = memory_mb(self.a), open_files(self.a)
        seen = {learner: len(learner.rounds) for learner in (self.a, self.b)}
        yield
        self.go_on(STEPS, ROUNDS)
        for learner, before in seen.items():
            ledger = learner.rounds[before:]
            assert {m["name"] for round in ledger for m in round["members"]} <= set(merged)
            assert "Traceback" not in learner.complaints, learner.complaints
        grown = memory_mb(self.a) - memory
        assert grown < MEMORY_MB, f"{grown} MB more"
        assert open_files(self.a) - files < FILES

    @contextmanager
    def lasts(self) -> Iterator[None]:
        """Both train and merge while the attack lasts, that is inside."""
        yield
        self.go_on(5, 1)

    def go_on(self, steps: int, rounds: int) -> None:
        """Wait until both have taken so many more steps, and adopted so many more anchors."""
        goals = [(x, x.step + steps, len(x.rounds) + rounds) for x in (self.a, self.b)]
        self.supervisor.until(
            lambda: all(x.step >= step and len(x.rounds) >= count for x, step, count in goals),
            f"both to take {steps} steps and adopt {rounds} anchors",
        )


def refusals(learner: Learner, peer: str, words: str) -> int:
    """How often a learner has refused something of a peer for such a reason, as it counts that."""
    counted = learner.report()["refused"]
    return sum(times for name, why, times in counted if name == peer and words in why)


def await_refusal(
    learner: Learner,
    peer: str,
    words: str,
    times: int = 1,
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Wait until that is counted so often. What is to be done meanwhile is done at each step."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if refusals(learner, peer, words) >= times:
            return
        meanwhile()
        learner.await_steps(1)
    raise AssertionError(f"of {peer}, nothing was refused because {words!r}: {learner.report()}")


def pid(learner: Learner) -> int:
    return int(learner.events["born"][0]["pid"])


def memory_mb(learner: Learner) -> int:
    """Resident memory of a learner's process."""
    status = Path(f"/proc/{pid(learner)}/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) // 1024


def open_files(learner: Learner) -> int:
    return len(os.listdir(f"/proc/{pid(learner)}/fd"))


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


@contextmanager
def connections(address: str, count: int, opening: bytes = PREFACE) -> Iterator[list[bool]]:
    """Raw connections that say this and nothing else; yields which of them were answered."""
    host, _, port = address.rpartition(":")
    sockets, answered = [], []
    try:
        for _ in range(count):
            one = socket.create_connection((host, int(port)), timeout=5)
            sockets.append(one)
            with suppress(OSError):
                one.sendall(opening)
        for one in sockets:
            try:
                answered.append(bool(one.recv(64)))
            except OSError:
                answered.append(False)
        yield answered
    finally:
        for one in sockets:
            one.close()
