"""The bench of learners that miss rounds: its scenes, the file of its runs, and its table."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.cluster import absences
from bench.cluster.absences import ALONE, ARMS, SCENES, main, report, run, run_alone
from bench.cluster.tasks import TASKS, Task
from tests.support.tasks import small_text


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    small = small_text()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TASKS, "text", lambda: small)
        patch.setattr(absences, "STEPS", 12)
        patch.setattr(absences, "EVERY", 4)
        patch.setattr(absences, "BATCH", 2)
        patch.setattr(absences, "LEAVES", 2)
        patch.setattr(absences, "RETURNS", 8)
        yield


@pytest.fixture(scope="module")
def task() -> Task:
    return TASKS["text"]()


@pytest.mark.parametrize("name", SCENES)
def test_a_share_is_another_run_where_rounds_are_missed(name: str, task: Task) -> None:
    whole, share = (run("text", task, SCENES[name], adoption, 0) for adoption in ARMS.values())
    assert len(whole) == len(share) == 3
    assert (whole == share) is (name == "all")


def test_a_repeated_run_has_the_same_losses(task: Task) -> None:
    runs = [run("text", task, SCENES["turns"], ARMS["share"], 1) for _ in range(2)]
    assert runs[0] == runs[1]


def test_a_learner_alone_in_every_round_trains_as_if_nothing_were_merged(task: Task) -> None:
    """Its anchor is its weights."""
    scene = absences.Scene("one", 1, lambda _: {0})
    assert run("text", task, scene, ARMS["share"], 0) == pytest.approx(run_alone("text", task, 0))


def test_what_is_in_the_file_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "runs.jsonl"
    options = ["--out", str(file), "--tasks", "text", "--scenes", "turns", "--seeds", "0"]
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", ["absences", *options])
        main()
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert [record["arm"] for record in records] == [ALONE, *ARMS]
    said = capsys.readouterr().out
    assert said.count("text, turns, whole, seed 0") == 1
    assert said.count("| all of 3 but one, in turns |") == 2


def test_the_table_has_ends_and_greatest_rises() -> None:
    losses = {"whole": [3.0, 2.0, 2.5], "share": [3.0, 2.25, 1.75]}
    records = [
        {"task": "text", "scene": "turns", "arm": arm, "seed": 0, "held_out": found}
        for arm, found in losses.items()
    ]
    row = report(records, "text").splitlines()[-1]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:] == [
        "2.500 (2.500 to 2.500)",
        "1.750 (1.750 to 1.750)",
        "0.500 (0.500 to 0.500)",
        "-0.500 (-0.500 to -0.500)",
    ]
