"""Python processes that run at the same time, until all have ended well."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE_S = 200  # imports of client libraries on a busy machine included


def run_alongside(
    commands: Sequence[Sequence[str]],
    folder: Path,
    settings: Sequence[Mapping[str, str]],
    *,
    apart: bool = False,
) -> list[str]:
    """The outputs of Python with each of these arguments and additions to the environment. Fails
    with the output of the first that ends badly or late.

    Args:
        commands: the arguments of each process.
        folder: where they run.
        settings: the additions to the environment of each.
        apart: whether what they write to stderr is left out of their outputs.
    """
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MEND_")}
    common = {**clean, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    outputs = [folder / f"output-{number}.txt" for number in range(len(commands))]
    complaints = [folder / f"complaints-{number}.txt" for number in range(len(commands))]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for command, own, output, complaint in zip(
            commands, settings, outputs, complaints, strict=True
        ):
            with output.open("w") as stdout, complaint.open("w") as stderr:
                process = subprocess.Popen(
                    [sys.executable, *command],
                    cwd=folder,
                    env={**common, **own},
                    stdout=stdout,
                    stderr=stderr if apart else subprocess.STDOUT,
                )
            started.append(process)
        for process, output, complaint in zip(started, outputs, complaints, strict=True):
            ended = process.wait(timeout=PATIENCE_S)
            assert ended == 0, output.read_text() + complaint.read_text()
    finally:
        for process in started:
            process.kill()
            process.wait()
    return [output.read_text() for output in outputs]
