"""Settings of every test: one thread, no deadlines, and the same examples at every run; and what
tests of several folders ask for.

`pytest --hypothesis-profile=search` looks further, with other examples each time.
"""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

from mend_optim.environment import VARIABLES

torch.set_num_threads(1)

slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "default", deadline=None, derandomize=True, max_examples=50, suppress_health_check=slow
)
settings.register_profile("search", deadline=None, max_examples=2000, suppress_health_check=slow)
settings.load_profile("default")


def pytest_collection_finish() -> None:
    """What was imported stays: else each search for garbage would go through all of torch and of
    the tests, for as long as many tests take."""
    gc.collect()
    gc.freeze()


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
