"""The processes of a module's tests, and who supervises them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.processes import Process, Supervisor


@pytest.fixture(scope="module")
def processes() -> Iterator[list[Process]]:
    """Processes that run learners, for one test after another."""
    processes: list[Process] = []
    yield processes
    for process in processes:
        process.destroy()


@pytest.fixture
def supervisor(processes: list[Process]) -> Iterator[Supervisor]:
    supervisor = Supervisor(processes)
    yield supervisor
    supervisor.end()
