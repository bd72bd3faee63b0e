"""Settings of every test: one thread, no deadlines, and the same examples at every run; and what
tests of several folders ask for.

`pytest --hypothesis-profile=search` looks further, with other examples each time.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from _pytest.logging import LogCaptureHandler
from hypothesis import HealthCheck, settings

from mend_optim.environment import VARIABLES
from mend_optim.transport import background_log

torch.set_num_threads(1)

slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "default", deadline=None, derandomize=True, max_examples=50, suppress_health_check=slow
)
settings.register_profile("search", deadline=None, max_examples=2000, suppress_health_check=slow)
settings.load_profile("default")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Two workers more than there are cores: many tests wait for beats, processes or patience. The
    variable of pytest-xdist still counts more."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    if hasattr(os, "sched_getaffinity"):
        return 2 + len(os.sched_getaffinity(0))
    return 2 + (os.cpu_count() or 1)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """What is imported makes no garbage worth a search."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """What was imported stays: else each search for garbage would go through all of torch and of
    the tests, for as long as many tests take."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def frozen_past() -> None:
    """Objects that tests of earlier modules have left, such as late imports, are searched no more:
    every test of streams searches for garbage at its end."""
    gc.collect()
    gc.freeze()


class WrittenLog(pytest.LogCaptureFixture):
    """The log, once the lines of the library's own threads are in it."""

    @property
    def handler(self) -> LogCaptureHandler:
        background_log.flush(10.0)
        return super().handler


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """pytest's, with every line that was told so far, but for those of former tests."""
    background_log.flush(10.0)
    caplog.__class__ = WrittenLog
    return caplog


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable says what a learner was not told."""
    for name in VARIABLES.values():
        monkeypatch.delenv(name, raising=False)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The table of the drop-in contract, for `pytest -k contract`."""
    if "contract" not in terminalreporter.config.option.keyword:
        return
    from tests.contract.contract import tables

    stats = terminalreporter.stats
    reports = sorted(
        (r for kind in ("passed", "failed") for r in stats.get(kind, ())), key=lambda r: r.start
    )
    for line in tables((report.passed, dict(report.user_properties)) for report in reports):
        terminalreporter.write_line(line)
