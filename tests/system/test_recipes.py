"""The scripts of docs/recipes.md, as they stand there. The one with transformers is run in
tests/clients."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch.optim import lr_scheduler

from tests.support.pages import play, play_command, scripts_of, stops

PAGE = "recipes.md"
PLATEAU = "ReduceLROnPlateau"  # goes by losses
STEPS = 300_000  # of plain.py: on any machine more than the beats that an early stop takes


def test_every_script_is_run_by_a_test() -> None:
    assert set(scripts_of(PAGE)) == {
        "plain.py",
        "large_batches.py",
        "teacher.py",
        "trainer.py",
        "schedules.py",
    }


def test_the_plain_loop_stops_early_and_ends_on_one_model(tmp_path: Path) -> None:
    a, b = stops(play_command(PAGE, "plain.py", tmp_path))
    assert a[1:] == b[1:]
    assert min(a[0], b[0]) > 0
    assert max(a[0], b[0]) < STEPS
    files = [tmp_path / f"best-learner-{index}.pt" for index in (0, 1)]
    kept = [torch.load(file, weights_only=True) for file in files]
    for best in kept:
        assert best["loss"] <= float(a[2]) + 1e-6
        assert best["loss"] < 2  # the noise of the targets is 1, and first weights have 17 or so
        assert set(best["model"]) == {"weight", "bias"}


def test_a_step_is_one_however_many_micro_batches_it_has(tmp_path: Path) -> None:
    a, b = (output.splitlines()[-1] for output in play(PAGE, "large_batches.py", tmp_path))
    assert re.fullmatch(r"60 steps, 1920 tokens; [0-9a-f]{32}", a)
    assert a == b


def test_a_copy_after_join_is_one_of_the_common_model(tmp_path: Path) -> None:
    ends = []
    for output in play(PAGE, "teacher.py", tmp_path):
        (away,) = re.findall(r"^a step away from the teacher: (\S+)$", output, re.MULTILINE)
        last = r"^([0-9a-f]{32}); the teacher is behind by (\S+)$"
        ((digest, behind),) = re.findall(last, output, re.MULTILINE)
        # By AdamW at rate 0.02, on 17 values. First weights of two learners are 0.8 apart.
        assert float(away) <= 0.02 * 17**0.5 + 0.001
        assert float(behind) < 1  # it began about 4 from where the model is now
        ends.append(digest)
    assert ends[0] == ends[1]


def test_schedules_go_on_from_a_position(tmp_path: Path) -> None:
    (output,) = play(PAGE, "schedules.py", tmp_path, learners="")
    assert re.fullmatch(r"\d+ schedules go on at step 30 as if .*\n", output)


def test_the_page_has_every_scheduler_of_torch() -> None:
    script = scripts_of(PAGE)["schedules.py"]
    base = lr_scheduler.LRScheduler
    kinds = {
        name
        for name, kind in vars(lr_scheduler).items()
        if isinstance(kind, type) and issubclass(kind, base) and not name.startswith("_")
    }
    kinds -= {"LRScheduler", PLATEAU}
    assert len(kinds) >= 14
    assert {name for name in kinds if f'"{name}": lambda' not in script} == set()
