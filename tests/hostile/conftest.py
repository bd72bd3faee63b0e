"""One running cluster for all attacks of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hostile.ground import Ground
from tests.system.processes import Process, Supervisor


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    processes: list[Process] = []
    supervisor = Supervisor(processes)
    try:
        yield Ground(supervisor)
        supervisor.end()
    finally:
        for process in processes:
            process.destroy()
