"""The processes of all attacks, and one running cluster for those of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hostile.ground import FEW_FILES, Ground
from tests.system.processes import Process, Supervisor


@pytest.fixture(scope="session")
def processes() -> Iterator[list[Process]]:
    """Processes that run learners, for one module after another: to start one takes as long as
    several attacks."""
    processes: list[Process] = []
    yield processes
    for process in processes:
        process.destroy()


@pytest.fixture(scope="session")
def few_files() -> Iterator[Process]:
    """A process whose learners may open `FEW_FILES` files."""
    resource = pytest.importorskip("resource")
    process = Process()
    resource.prlimit(process.popen.pid, resource.RLIMIT_NOFILE, (FEW_FILES, FEW_FILES))
    yield process
    process.destroy()


@pytest.fixture(scope="module")
def ground(processes: list[Process]) -> Iterator[Ground]:
    supervisor = Supervisor(processes)
    try:
        yield Ground(supervisor)
    finally:
        supervisor.end()
