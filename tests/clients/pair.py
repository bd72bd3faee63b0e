"""The test's side: two processes run one client's script as learners of one model, driven over
pipes."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.addresses import free_addresses

HERE = Path(__file__).parent
PATIENCE_S = 120.0  # a wait that long has failed, imports included
# A scheduler's warnings that an optimizer is not what it seems: here, they are failures.
WARNINGS = [
    "Detected call of `lr_scheduler.step()`",
    "Seems like `optimizer.step()` has been overridden",
]
Facts = dict[str, Any]


class Learner:
    """One process, and the lines that it prints."""

    def __init__(self, script: str, complaints: Path) -> None:
        self.complaints = complaints
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("MEND_")}
        with complaints.open("w") as stderr:
            self._popen = subprocess.Popen(
                [sys.executable, *(f"-Werror:{begin}" for begin in WARNINGS), str(HERE / script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**inherited, "PYTHONPATH": str(HERE.parents[1]), "HF_HUB_OFFLINE": "1"},
                start_new_session=True,  # Ctrl-C at the test run is not for the learners
            )
        self._unread = b""
        self.said: list[Facts] = []  # and nobody has heard yet
        self.over = False

    def tell(self, line: str = "") -> None:
        assert self._popen.stdin is not None
        with suppress(BrokenPipeError):  # it has ended; its listeners will see that
            self._popen.stdin.write(line.encode() + b"\n")
            self._popen.stdin.flush()

    @property
    def output(self) -> int:
        assert self._popen.stdout is not None
        return self._popen.stdout.fileno()

    def read(self) -> None:
        """Read the output that is there; at the end of the output there is none."""
        chunk = os.read(self.output, 65536)
        self.over = not chunk
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        self.said += map(json.loads, lines)

    def end(self) -> None:
        self._popen.kill()
        self._popen.communicate()


class Pair:
    """Two learners that play the same scenes at the same time. After a failed scene two new ones
    are needed."""

    def __init__(self, script: str, folder: Path) -> None:
        self._script, self._folder = script, folder
        self._learners: list[Learner] = []
        self._started = 0

    def play(self, scene: str) -> list[Facts]:
        """The reports of both learners on this scene. Fails with a learner's traceback, or its
        output on stderr."""
        folder, addresses = self._folder / scene, free_addresses(2)
        try:
            if not self._learners:
                self._start()
            for me, learner in enumerate(self._learners):
                order = {"scene": scene, "me": me, "addresses": addresses, "folder": str(folder)}
                learner.tell(json.dumps(order))
            while (said := self._hear(scene))[0]["event"] == "reached":
                for learner in self._learners:
                    learner.tell()
            return said
        except BaseException:
            self.end()
            raise

    def _start(self) -> None:
        self._started += 1
        logs = [self._folder / f"{name}{self._started}.log" for name in "ab"]
        self._learners = [Learner(self._script, log) for log in logs]
        self._hear("ready")

    def _hear(self, scene: str) -> list[Facts]:
        """The next line of each learner, which must be of one kind. Fails as soon as either
        fails."""
        deadline = time.monotonic() + PATIENCE_S
        while silent := [learner for learner in self._learners if not learner.said]:
            readable, _, _ = select.select(
                [x.output for x in silent], [], [], max(0.0, deadline - time.monotonic())
            )
            for learner in silent:
                if learner.output in readable:
                    learner.read()
            failures = [
                facts["traceback"]
                for x in self._learners
                for facts in x.said
                if facts["event"] == "failed"
            ]
            self._require(scene, not failures, "\n".join(failures))
            self._require(scene, not any(learner.over for learner in silent), "a process ended")
            self._require(scene, bool(readable), f"{PATIENCE_S:g} s went by")
        said = [learner.said.pop(0) for learner in self._learners]
        self._require(
            scene, said[0]["event"] == said[1]["event"], f"they are at different points: {said}"
        )
        return said

    def _require(self, scene: str, holds: bool, why: str) -> None:
        if not holds:
            complaints = "\n".join(
                learner.complaints.read_text()[-3000:] for learner in self._learners
            )
            raise AssertionError(f"{self._script}, {scene}: {why}\n{complaints}")

    def end(self) -> None:
        for learner in self._learners:
            learner.end()
        self._learners = []


class Stage:
    """Runs one pair at a time: the one for the last script. A scene that succeeded is played only
    once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pairs: dict[str, Pair] = {}
        self._played: dict[tuple[str, str], list[Facts]] = {}

    def play(self, script: str, scene: str) -> list[Facts]:
        """The reports of both learners, and the folder of each."""
        if (script, scene) not in self._played:
            folder = self._folder / script
            if script not in self._pairs:
                self.end()
                folder.mkdir(exist_ok=True)
                self._pairs = {script: Pair(f"{script}.py", folder)}
            reports = zip("ab", self._pairs[script].play(scene), strict=True)
            self._played[script, scene] = [
                {**report, "folder": folder / scene / name} for name, report in reports
            ]
        return self._played[script, scene]

    def end(self) -> None:
        for pair in self._pairs.values():
            pair.end()
        self._pairs = {}
