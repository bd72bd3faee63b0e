"""Comparing two runs of a suite: pure, on runs that are written down here; and one real suite of
three tests, run by the plugin."""

from __future__ import annotations

import os
from typing import Any

import numpy
import pytest

from tests.suites.compare import (
    COLLECTION,
    MISSING,
    Comparison,
    Run,
    TestEnd,
    read_run,
    settled,
    table,
)
from tests.suites.environment import PACKAGES
from tests.suites.forks import run_forks
from tests.suites.mend_suites.plugin import seed_all

WRAPPED: dict[str, Any] = {"wrapped": 1, "steps": 3}


def end(outcome: str = "passed", *, digest: str = "d", **counts: Any) -> TestEnd:
    return TestEnd(outcome=outcome, digest=digest, counts=counts)


def comparison(baseline: Any, wrapped: Any, **options: Any) -> Comparison:
    told = {"suite": "s", "mode": "alone", "baseline": baseline, "wrapped": wrapped, **options}
    return Comparison(**told)


def test_another_outcome_or_number_or_none_is_a_difference() -> None:
    baseline = {test: end() for test in ("same", "fails", "numbers", "crashed")}
    wrapped = {"same": end(), "fails": end("failed"), "numbers": end(digest="e"), "new": end()}
    found = comparison(baseline, wrapped).differences()
    assert [(d.test, d.before, d.after) for d in found] == [
        ("crashed", "passed", MISSING),
        ("fails", "passed", "failed"),
        ("new", MISSING, "passed"),
        ("numbers", "these numbers", "other numbers"),
    ]
    rounded = comparison(baseline, wrapped, numbers=False).differences()
    assert "numbers" not in {difference.test for difference in rounded}


def test_a_difference_by_design_has_its_reason() -> None:
    baseline, wrapped = {"a[1]": end(), "b": end()}, {"a[1]": end("failed"), "b": end("failed")}
    found = comparison(baseline, wrapped, by_design={"a[": "we decided so"})
    assert [d.reason for d in found.differences()] == ["we decided so", ""]
    assert [d.test for d in found.unexplained()] == ["b"]


def test_a_run_in_which_nothing_was_wrapped_proves_nothing() -> None:
    baseline = {"a": end()}
    cases: dict[str, dict[str, TestEnd]] = {
        "no test constructed": {"a": end(), COLLECTION: end(wrapped=5)},
        "took a step": {"a": end(wrapped=1)},
    }
    for why, wrapped in cases.items():
        assert why in comparison(baseline, wrapped).proves_nothing()
    good = {"a": end(**WRAPPED)}
    assert comparison(baseline, good).proves_nothing() == ""
    assert "no round" in comparison(baseline, good, mode="live").proves_nothing()


def test_what_differs_twice_is_a_difference_and_what_is_restless_is_none() -> None:
    names = ("broken", "recovers", "restless")
    first = comparison(
        {**{test: end() for test in names}, "same": end()},
        {**{test: end("failed", **WRAPPED) for test in names}, "same": end()},
    )
    baseline = {"broken": end(), "recovers": end(), "restless": end("failed")}
    wrapped = {"broken": end("failed"), "recovers": end(), "restless": end()}
    after, restless = settled(first, baseline, wrapped)
    assert restless == ["recovers", "restless"]
    assert [d.test for d in after.differences()] == ["broken"]
    assert after.tests() == ["broken", "same"]


def test_other_numbers_every_time_are_compared_by_outcome() -> None:
    names = ("steady", "unsteady", "breaks")
    first = comparison(
        {test: end(digest="1") for test in names},
        {test: end(digest="2", **WRAPPED) for test in names},
    )
    baseline = {"steady": end(digest="1"), "unsteady": end(digest="3"), "breaks": end(digest="3")}
    wrapped = {"steady": end(digest="2"), "unsteady": end(digest="4"), "breaks": end("failed")}
    after, restless = settled(first, baseline, wrapped)
    assert after.unsteady == {"unsteady"}
    assert restless == []
    assert [d.test for d in after.differences()] == ["breaks", "steady"]


def test_generators_that_nobody_seeds_draw_the_same_twice() -> None:
    draws = []
    for _ in range(2):
        seed_all()
        draws.append(numpy.random.default_rng().integers(2**60, size=3).tolist())
    assert draws[0] == draws[1]


def test_what_could_not_run_again_stays_a_difference() -> None:
    first = comparison({"a": end()}, {"a": end("failed", **WRAPPED)})
    for baseline, wrapped in (({}, {}), ({"a": end()}, {}), ({}, {"a": end()})):
        after, restless = settled(first, baseline, wrapped)
        assert restless == []
        assert [d.test for d in after.differences()] == ["a"]


def test_the_table_has_a_row_for_each_comparison() -> None:
    one = comparison({"a": end(), "b": end()}, {"a": end(**WRAPPED), "b": end("failed")})
    assert table([one]).splitlines()[2:] == ["| s | alone | 2 | 1 | 3 | 0 | 1 | 1 |"]


SUITE = """
import torch
from torch import nn

def train(steps):
    weights = nn.Parameter(torch.full((3,), 2.0))
    optimizer = torch.optim.AdamW([weights], lr=0.1)
    for _ in range(steps):
        weights.grad = weights.detach().clone()
        optimizer.step()
    return optimizer

def test_trains():
    train(9)

def test_is_bare():
    assert not hasattr(train(1), "inner")

def test_has_no_optimizer():
    assert torch.ones(1).item() == 1

class Minimizer(torch.optim.SGD):
    def minimize(self):
        self.step()

def test_has_a_method_that_steps():
    weights = nn.Parameter(torch.full((3,), 2.0))
    optimizer = Minimizer([weights], lr=0.1)
    for _ in range(9):
        weights.grad = weights.detach().clone()
        optimizer.minimize()
"""


#: By name, the options of a run.
RUNS = {
    "off": ["--mend=off"],
    "alone": ["--mend=alone"],
    "live": ["--mend=live"],
    "every second": ["--mend=off", "--mend-every=2"],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """The suite's runs by the plugin, each in a process of its own."""
    folder = tmp_path_factory.mktemp("suite")
    (folder / "test_suite.py").write_text(SUITE)
    path = folder / "path"
    path.mkdir()
    for name, target in PACKAGES.items():
        (path / name).symlink_to(target, target_is_directory=True)
    command = ["-q", "-c", "/dev/null", "test_suite.py", "-p", "mend_suites.plugin"]
    each = [
        [*command, f"--mend-report={folder / name}", *options] for name, options in RUNS.items()
    ]
    # plugins of pytest that are installed here take a while to load, and do nothing for the suite
    environment = {**os.environ, "PYTHONPATH": str(path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = run_forks("pytest", each, folder, environment)
    assert all((folder / name).exists() for name in RUNS), done.stdout
    return {name: read_run(folder / name) for name in RUNS}


@pytest.mark.parametrize("mode", ["alone", "live"])
def test_the_plugin_tells_what_it_wrapped(mode: str, runs: dict[str, Run]) -> None:
    found = comparison(runs["off"], runs[mode], mode=mode, numbers=mode == "alone")
    assert found.proves_nothing() == ""
    assert [d.test for d in found.differences()] == ["test_suite.py::test_is_bare"]
    assert len(found.with_wrapped()) == 3
    assert found.total("steps") == 19
    assert found.partner_errors() == []
    if mode == "live":
        for test in ("trains", "has_a_method_that_steps"):
            assert found.end(f"test_suite.py::test_{test}").counts["rounds"] >= 3


def test_one_test_in_so_many_is_run(runs: dict[str, Run]) -> None:
    ran = runs["every second"].keys() - {COLLECTION}
    assert ran == {"test_suite.py::test_trains", "test_suite.py::test_has_no_optimizer"}
