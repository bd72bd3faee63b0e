"""A pool of processes that play all scenarios, one after another: to start them takes longest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.ranks import player

PATIENCE_S = 60.0
ROOT = Path(player.__file__).parents[2]


class Pool:
    """So many processes of `player.py`. They meet by a file."""

    def __init__(self, store: Path) -> None:
        here = {key: value for key, value in os.environ.items() if not key.startswith("MEND_")}
        self.logs = [store.parent / f"stderr-{process}" for process in range(player.PROCESSES)]
        self.processes = [
            subprocess.Popen(
                [sys.executable, player.__file__, str(process), str(store)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.logs[process].open("w"),
                text=True,
                env={**here, "PYTHONPATH": str(ROOT)},
            )
            for process in range(player.PROCESSES)
        ]
        assert all(said["ready"] for said in self.heard())

    def play(self, scenario: str, dies: int | None = None, **told: Any) -> list[dict[str, Any]]:
        """The report of each process on a scenario, but for the one that dies in it."""
        line = json.dumps({"play": scenario, **told})
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(line + "\n")
            process.stdin.flush()
        if dies is not None:
            assert self.processes[dies].wait(PATIENCE_S) == 0
        return self.heard(dies)

    def heard(self, dead: int | None = None) -> list[dict[str, Any]]:
        """The next line of each process that is not dead."""
        living = [process for at, process in enumerate(self.processes) if at != dead]
        lines = []
        for process in living:
            assert process.stdout is not None
            lines.append(process.stdout.readline())
        assert all(lines), "\n".join(log.read_text()[-2000:] for log in self.logs)
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """End all processes, whatever they do."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.communicate()
