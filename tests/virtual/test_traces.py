"""The scenarios of `traces.py` still go as `traces/*.txt` says. After a change of the protocol: `python -m tests.virtual.traces --write`, and read the
difference."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.virtual.traces import FOLDER, SCENARIOS, path_of, trace
from tests.virtual.tracing import WIDTH, TracedCluster


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_scenario_goes_as_it_is_written_down(scenario: Callable[[], TracedCluster]) -> None:
    written = path_of(scenario).read_text(encoding="utf-8")
    assert trace(scenario).splitlines() == written.splitlines()
    assert all(len(line) <= WIDTH for line in written.splitlines())


def test_every_file_belongs_to_a_scenario() -> None:
    assert {path_of(scenario) for scenario in SCENARIOS} == set(FOLDER.iterdir())
