"""What a trial of a script shows: pure, on reports that are written down here; and one script of
all three, run for real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.suites import scripts
from tests.suites.environment import PACKAGES, SURROUNDINGS
from tests.suites.forks import run_forks
from tests.suites.scripts import Report, Trial, read_report
from tests.support.addresses import free_addresses


def report(*figures: float, rounds: int = 0, warnings: tuple[str, ...] = ()) -> Report:
    return Report(list(figures), rounds, list(warnings))


def trial(**changed: Any) -> Trial:
    good: dict[str, Any] = {
        "script": "ppo",
        "bare": report(1.0, 2.0),
        "alone": report(1.0, 2.0),
        "live": [report(3.0, rounds=4), report(5.0, rounds=6)],
    }
    return Trial(**{**good, **changed})


def test_a_good_trial_has_no_fault() -> None:
    assert trial().faults() == []
    assert trial().row().endswith("| 2 | all | 2 of 2 | 4 + 6 | 0 |")


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"bare": None}, "the bare script failed"),
        ({"alone": None}, "it failed alone"),
        ({"alone": report(1.0, 2.5)}, "other figures alone"),
        ({"alone": report(1.0)}, "other figures alone"),
        ({"alone": report(1.0, 2.0, warnings=("w",))}, "warned alone: ['w']"),
        ({"live": [None, report(5.0, rounds=6)]}, "learner 1 of 2 failed"),
        ({"live": [report(3.0, rounds=4), report(5.0)]}, "learner 2 of 2 merged no round"),
    ],
)
def test_a_fault_is_told(changed: dict[str, Any], fault: str) -> None:
    assert trial(**changed).faults() == [fault]


def test_every_script_is_there() -> None:
    here = {path.stem for path in PACKAGES["mend_scripts"].glob("*.py")}
    assert here - {"__init__", "__main__", "swap"} == set(scripts.SCRIPTS)


def test_a_script_has_the_same_figures_alone_and_two_learners_end(tmp_path: Path) -> None:
    for name, target in PACKAGES.items():
        (tmp_path / "path").mkdir(exist_ok=True)
        (tmp_path / "path" / name).symlink_to(target, target_is_directory=True)
    first, second = free_addresses(2)
    runs = {
        "off": ["--mend", "off"],
        "alone": ["--mend", "alone"],
        "a": ["--mend", "live", "--listen", first, "--peer", second],
        "b": ["--mend", "live", "--listen", second, "--peer", first, "--seed", "1"],
    }
    each = [["char_gpt", "--folder", name, *options] for name, options in runs.items()]
    surroundings = {**SURROUNDINGS, "PYTHONPATH": str(tmp_path / "path")}
    done = run_forks("mend_scripts", each, tmp_path, surroundings)
    assert done.returncode == 0, done.stdout
    off, alone, *live = (read_report(tmp_path / name / "report.json") for name in runs)
    assert Trial("char_gpt", off, alone, live).faults() == []
