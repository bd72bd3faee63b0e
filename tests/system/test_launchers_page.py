"""The commands of docs/launchers.md, run as a reader would run them, on loopback."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from mend_optim import certs
from tests.support.addresses import port_of_all_hosts

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "launchers.md"
COMMAND = re.compile(r"^ {4}((?:\w+=\S+ )*torchrun (?:.*\\\n)*.*)$", re.MULTILINE)
PATIENCE_S = 250.0


def commands() -> list[list[str]]:
    found = COMMAND.findall(PAGE.read_text(encoding="utf-8"))
    return [shlex.split(text.replace("\\\n", " ")) for text in found]


def start(command: list[str], folder: Path) -> subprocess.Popen[str]:
    """Start a command of the page with short steps, and with output for programs."""
    at = command.index("torchrun")
    variables = dict(assignment.split("=", 1) for assignment in command[:at])
    arguments = [str(ROOT / text) if text.endswith(".py") else text for text in command[at + 1 :]]
    short = ["--steps", "40", "--batch", "2", "--sync-every", "8", "--progress", "json"]
    here = {key: text for key, text in os.environ.items() if not key.startswith("MEND_")}
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *arguments, *short],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        env={**here, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables},
    )


def reports(processes: list[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    """The last report of each learner of these torchruns, once all have ended."""
    try:
        said = [process.communicate(timeout=PATIENCE_S)[0] for process in processes]
    finally:
        for process in processes:
            process.terminate()
    assert [process.returncode for process in processes] == [0] * len(processes)
    lines = [json.loads(line) for text in said for line in text.splitlines()]
    return [line for line in lines if line["event"] == "report"]


def check_all_merged(found: list[dict[str, Any]], count: int) -> None:
    """All learners end together, on one model."""
    names = [f"learner-{n}" for n in range(count)]
    assert sorted(each["name"] for each in found) == names
    assert len({each["weights"] for each in found}) == 1
    for each in found:
        assert each["synchronized"]
        assert each["rounds"] >= 1
        assert len(each["members"]) >= 2
        assert set(each["members"]) <= set(names)


def test_the_page_has_a_command_for_one_machine_and_for_several() -> None:
    assert ["--standalone" in command for command in commands()] == [True, False]


def test_torchrun_on_one_machine(tmp_path: Path) -> None:
    found = reports([start(commands()[0], tmp_path)])
    check_all_merged(found, 3)


def test_torchrun_on_several_machines(tmp_path: Path) -> None:
    certs.main(["secret", str(tmp_path / "cluster.secret")])
    port = port_of_all_hosts()
    told = [text.replace("a:29500", f"127.0.0.1:{port}") for text in commands()[1]]
    told.insert(told.index("torchrun") + 1, "--local-addr=127.0.0.1")
    found = reports([start(told, tmp_path) for _ in range(2)])
    check_all_merged(found, 2)
    assert {each["security"].partition(",")[0] for each in found} == {"mutual TLS (secret)"}
