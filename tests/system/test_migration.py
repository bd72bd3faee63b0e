"""The scripts of docs/migration.md, as they stand there. Those of other libraries are run in
tests/clients."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.pages import play_command, play_ranks, scripts_of

PAGE = "migration.md"
LOSS = re.compile(r"^([\w-]+): loss (\S+)$", re.MULTILINE)
FIRST = 17.0  # about the loss of the first weights


def test_every_script_is_run_by_a_test() -> None:
    own = {"task.py", "learner.py", "without_dht.py", "ddp.py"}
    assert set(scripts_of(PAGE)) == own | {"local_sgd.py", "diloco.py"}


def losses(outputs: list[str]) -> dict[str, str]:
    """The losses at the end, by name or rank."""
    return dict(end for output in outputs for end in LOSS.findall(output))


@pytest.mark.parametrize("script", ["learner.py", "without_dht.py"])
def test_learners_end_on_one_model(tmp_path: Path, script: str) -> None:
    ends = losses(play_command(PAGE, script, tmp_path))
    assert set(ends) == {"learner-0", "learner-1"}
    assert ends["learner-0"] == ends["learner-1"]
    assert float(ends["learner-0"]) < FIRST / 2


def test_so_do_the_ranks_of_ddp(tmp_path: Path) -> None:
    ends = losses(play_ranks(PAGE, "ddp.py", tmp_path))
    assert set(ends) == {"0", "1"}
    assert ends["0"] == ends["1"]
    assert float(ends["0"]) < FIRST / 2
