"""The scenarios of `traces.py` still go as `traces/*.txt` says, and the documents quote these files
as they are.

If a scenario goes another way and that is right, run `python -m tests.virtual.traces --write`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.virtual.traces import FOLDER, SCENARIOS, path_of, trace
from tests.virtual.tracing import WIDTH, TracedCluster

PROTOCOL = Path(__file__).parents[2] / "docs" / "protocol.md"
QUOTED = re.compile(r"^ {4,}( *\d+\.\d{3}  .*)$", re.MULTILINE)
LINK = re.compile(r"\]\(\.\./tests/virtual/traces/(\w+)\.txt\)")


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_scenario_goes_as_it_is_written_down(scenario: Callable[[], TracedCluster]) -> None:
    written = path_of(scenario).read_text(encoding="utf-8")
    assert trace(scenario).splitlines() == written.splitlines()
    assert all(len(line) <= WIDTH for line in written.splitlines())


def test_every_file_belongs_to_a_scenario() -> None:
    assert {path_of(scenario) for scenario in SCENARIOS} == set(FOLDER.iterdir())


def test_the_protocol_quotes_the_traces_as_they_are() -> None:
    text = PROTOCOL.read_text(encoding="utf-8")
    files = [(FOLDER / f"{name}.txt").read_text(encoding="utf-8") for name in LINK.findall(text)]
    lines = {line.strip() for file in files for line in file.splitlines()}
    quoted = [line.strip() for line in QUOTED.findall(text)]
    assert quoted
    assert [line for line in quoted if line not in lines] == []
