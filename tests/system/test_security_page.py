"""The recipes of docs/security.md, as they are written: two learners train one model, over TLS."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.addresses import port_of_all_hosts

pytest.importorskip("cryptography", reason="make test installs the extra `certs`")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
COMMAND = re.compile(r"^ {4}((?:MEND_\w+=\S+ )?python .*)$", re.MULTILINE)
# What stands in for the machines and the folder of the page.
HERE = {"0.0.0.0": "127.0.0.1", "alpha:": "127.0.0.1:", "examples/": f"{ROOT}/examples/"}
BRIEF = "--steps 100000 --batch 2 --sync-every 8 --progress json"


def recipe(heading: str) -> list[str]:
    """The commands of one recipe that run Python, in their order."""
    return COMMAND.findall(PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0])


@pytest.mark.parametrize(
    "heading", ["Two machines with a secret", "Two machines with certificates"]
)
def test_the_learners_of_a_recipe_train_one_model(heading: str, tmp_path: Path) -> None:
    port = port_of_all_hosts()
    learners: list[subprocess.Popen[str]] = []
    try:
        for command in recipe(heading):
            variables, _, told = command.partition("python ")
            for there, here in {
                "0.0.0.0": "127.0.0.1",
                "alpha:": "127.0.0.1:",
                "29600": port,
            }.items():
                told = told.replace(there, here)
            told = told.replace("examples/", f"{ROOT}/examples/")
            environment = {**os.environ, **dict(v.split("=") for v in variables.split())}
            environment["PYTHONPATH"] = os.pathsep.join(
                [str(ROOT), os.environ.get("PYTHONPATH", "")]
            )
            if not variables:
                arguments = [sys.executable, *shlex.split(told)]
                subprocess.run(arguments, cwd=tmp_path, env=environment, check=True)
                continue
            arguments = [sys.executable, *shlex.split(f"{told} {BRIEF}")]
            learners.append(
                subprocess.Popen(
                    arguments, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
                )
            )
        assert len(learners) == 2
        for learner in learners:  # each speaks every second, until a round has merged both
            assert learner.stdout is not None
            said = map(json.loads, learner.stdout)
            assert any(line.get("members") == ["alpha", "beta"] for line in said)
    finally:
        for learner in learners:
            learner.kill()
            learner.communicate()


def test_the_page_has_the_recipes() -> None:
    assert len(recipe("Two machines with a secret")) == 3
    assert len(recipe("Two machines with certificates")) == 6
