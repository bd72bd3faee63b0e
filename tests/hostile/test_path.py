"""An attacker on the path between two learners, which are real processes: it reads and changes all
that passes (row I7 of the audit)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mend_optim.transport._pb import peer_pb2 as pb
from tests.hostile.ground import UNHURRIED
from tests.support.addresses import free_addresses
from tests.support.certificates import files_of, new_authority
from tests.system.processes import Facts, Process, Relay, Supervisor
from tests.system.test_processes import assert_one_model, await_common_seals

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
NORTH, SOUTH = "learner-north", "learner-south"
#: The tap changes chunks of this size: those of offers and seals, and not of greetings.
LARGE = 4096
CHANGES = 3


@pytest.fixture
def supervisor(processes: list[Process]) -> Iterator[Supervisor]:
    supervisor = Supervisor(processes)
    try:
        yield supervisor
    finally:
        supervisor.end()


class Tap(Relay):
    """Keeps all that passes, and changes a bit in some of it."""

    def __init__(self, target: str) -> None:
        self.kept = bytearray()
        self.to_change = self.changed = 0
        super().__init__(target)

    def passed_on(self, chunk: bytes) -> bytes:
        self.kept += chunk
        if self.changed == self.to_change or len(chunk) < LARGE:
            return chunk
        self.changed += 1
        middle = len(chunk) // 2
        return chunk[:middle] + bytes([chunk[middle] ^ 1]) + chunk[middle + 1 :]


class Tapped:
    """Two learners that reach each other through taps alone."""

    def __init__(self, supervisor: Supervisor, special: dict[str, Facts]) -> None:
        self.supervisor = supervisor
        own = dict(zip((NORTH, SOUTH), free_addresses(2), strict=True))
        self.taps = {name: Tap(address) for name, address in own.items()}
        self.learners = [
            supervisor.start(
                name,
                seed=seed,
                listen=own[name],
                advertise=self.taps[name].address,
                peers=[self.taps[other].address],
                **UNHURRIED,
                **special[name],
            )
            for seed, (name, other) in enumerate([(NORTH, SOUTH), (SOUTH, NORTH)])
        ]

    def merge(self, rounds: int) -> None:
        await_common_seals(self.supervisor, self.learners, rounds)

    def read(self) -> list[str]:
        """What of the run can be read in all that has passed."""
        report = self.learners[0].report()
        hello = pb.Hello.FromString(bytes.fromhex(report["hello"]))
        words = {
            "a name": NORTH.encode(),
            "the first weights": bytes.fromhex(report["genesis"]),
            "the settings": max((field.value for field in hello.policy), key=len).encode(),
        }
        kept = b"".join(bytes(tap.kept) for tap in self.taps.values())
        assert len(kept) > 10 * LARGE
        return [what for what, text in words.items() if text in kept]

    def close(self) -> None:
        for tap in self.taps.values():
            tap.close()


def with_certificates(folder: Path) -> dict[str, Facts]:
    authority = new_authority()
    return {
        name: {"certificates": str(files_of(folder / name, authority, name))}
        for name in (NORTH, SOUTH)
    }


def in_plaintext(folder: Path) -> dict[str, Facts]:
    return {NORTH: {}, SOUTH: {}}


@pytest.mark.parametrize(
    ("special", "reads"),
    [(in_plaintext, ["a name", "the first weights", "the settings"]), (with_certificates, [])],
)
def test_i7_nothing_of_a_run_with_credentials_can_be_read_on_the_path(
    supervisor: Supervisor,
    tmp_path: Path,
    special: Callable[[Path], dict[str, Facts]],
    reads: list[str],
) -> None:
    with closing(Tapped(supervisor, special(tmp_path))) as tapped:
        tapped.merge(3)
        assert tapped.read() == reads


def test_i7_whatever_is_changed_on_the_path_ends_its_link_and_no_round(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    with closing(Tapped(supervisor, with_certificates(tmp_path))) as tapped:
        tapped.merge(2)
        for tap in tapped.taps.values():
            tap.to_change = CHANGES
        supervisor.until(
            lambda: any(tap.changed == CHANGES for tap in tapped.taps.values()),
            "a tap to change chunks",
        )
        tapped.merge(3)
        reports = supervisor.settle(*tapped.learners)
        assert_one_model(reports)
        assert [report["dropped_tokens"] for report in reports] == [0, 0]
        for learner in tapped.learners:
            assert "Traceback" not in learner.complaints, learner.complaints
