"""Two learners of one script in examples/, on loopback, until both have ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.system.processes import free_addresses

ROOT = Path(__file__).parents[2]
PATIENCE_S = 100  # imports of client libraries on a busy machine included


def play_pair(script: str, folder: Path, *options: str, ports: int = 1) -> list[dict[str, Any]]:
    """The reports of learners a and b, each of which is the last line of its output. Both listen on
    so many `ports`, and each knows the other's addresses, so neither starts to train alone."""
    addresses = free_addresses(2 * ports)
    own = {"a": addresses[:ports], "b": addresses[ports:]}
    commands = [
        ["--name", name, "--listen", *own[name], "--peers", *own[other], *options]
        for name, other in ("ab", "ba")
    ]
    outputs = run_together(script, folder, commands)
    reports = [json.loads(output.splitlines()[-1]) for output in outputs]
    assert [report["learner"] for report in reports] == ["a", "b"]
    return reports


def run_together(script: str, folder: Path, commands: Sequence[Sequence[str]]) -> list[str]:
    """What the script prints with each of these arguments, all at the same time. Fails with the
    complaints of the first that ends badly or late."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MEND_")}
    environment = {**clean, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    outputs = [folder / f"output-{number}.txt" for number in range(len(commands))]
    complaints = [folder / f"complaints-{number}.txt" for number in range(len(commands))]
    started = []
    try:
        for command, output, complaint in zip(commands, outputs, complaints, strict=True):
            with output.open("w") as stdout, complaint.open("w") as stderr:
                process = subprocess.Popen(
                    [sys.executable, str(ROOT / "examples" / script), *command],
                    cwd=folder,
                    env=environment,
                    stdout=stdout,
                    stderr=stderr,
                )
            started.append(process)
        for process, complaint in zip(started, complaints, strict=True):
            assert process.wait(timeout=PATIENCE_S) == 0, complaint.read_text()
    finally:
        for process in started:
            process.kill()
            process.wait()
    return [output.read_text() for output in outputs]
