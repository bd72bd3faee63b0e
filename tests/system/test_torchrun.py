"""`peers="env://"` under real torchruns on loopback. Every wait is for a line, or for an end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.addresses import port_of_all_hosts
from tests.system import torchrun_learner

SCRIPT = Path(torchrun_learner.__file__)
PATIENCE_S = 200.0
Line = dict[str, Any]


class Runs:
    """Processes, such as torchruns, and the lines that their learners have said."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[Line] = []
        self.started: list[subprocess.Popen[str]] = []
        self._news = threading.Condition()
        #: How many processes will say no more.
        self._silent = 0

    def start(self, *command: str, fails: str = "", **variables: str) -> subprocess.Popen[str]:
        """Start a process with the script as its last arguments."""
        here = {key: text for key, text in os.environ.items() if not key.startswith("MEND_")}
        arguments = [sys.executable, *command, str(SCRIPT), str(self.folder)]
        process = subprocess.Popen(
            [*arguments, fails] if fails else arguments,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **here,
                "PYTHONPATH": str(SCRIPT.parents[2]),
                "OMP_NUM_THREADS": "1",
                "TEST_LISTEN": "127.0.0.1:0",
                **variables,
            },
        )
        self.started.append(process)
        threading.Thread(target=self._read, args=(process,), daemon=True).start()
        return process

    def torchrun(self, *options: str, **more: str) -> subprocess.Popen[str]:
        return self.start("-m", "torch.distributed.run", *options, **more)

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for text in process.stdout:
            with self._news:
                self.lines.append(json.loads(text))
                self._news.notify_all()
        with self._news:
            self._silent += 1
            self._news.notify_all()

    def until(self, condition: Callable[[list[Line]], Any]) -> None:
        with self._news:
            found = self._news.wait_for(
                lambda: condition(self.lines) or self._silent == len(self.started), PATIENCE_S
            )
            assert found, self.lines[-20:]
            assert condition(self.lines), f"all have ended: {self.lines[-20:]}"

    def merged(self, *names: str, after: int = 0) -> None:
        """Wait for a round of exactly these learners after so many lines."""
        self.until(lambda lines: [1 for line in lines[after:] if line.get("members") == [*names]])

    def ends(self, count: int) -> list[Line]:
        (self.folder / "stop").touch()
        self.until(lambda lines: sum(line["event"] == "end" for line in lines) == count)
        return [line for line in self.lines if line["event"] == "end"]

    def destroy(self) -> None:
        for process in self.started:
            process.terminate()
        for process in self.started:
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
        for pid in {line["pid"] for line in self.lines}:
            if Path(f"/proc/{pid}/cmdline").exists() and str(SCRIPT) in command_of(pid):
                os.kill(pid, signal.SIGKILL)


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    runs = Runs(tmp_path)
    yield runs
    runs.destroy()


def check_one_model(ends: list[Line], *names: str) -> None:
    assert all(end["agreed"] for end in ends), ends
    assert {end["digest"] for end in ends} == {ends[0]["digest"]}
    assert ends[0]["names"] == [*names]


def test_the_processes_of_a_torchrun_train_one_model(runs: Runs) -> None:
    run = runs.torchrun("--standalone", "--nproc-per-node=3", TEST_LISTEN="127.0.0.1:0")
    names = ("learner-0-0", "learner-1-0", "learner-2-0")
    runs.merged(*names)
    check_one_model(runs.ends(3), *names)
    assert [line for line in runs.lines if line["event"] == "alone"] == []
    assert run.wait(PATIENCE_S) == 0


def test_ranks_that_are_one_learner_are_found_by_their_lead(runs: Runs) -> None:
    run = runs.torchrun("--standalone", "--nproc-per-node=4", TEST_GROUP="2")
    runs.merged("learner-0-0", "learner-1-0")
    ends = runs.ends(4)
    check_one_model(ends, "learner-0-0", "learner-1-0")
    assert sorted(end["rank"] for end in ends) == [0, 1, 2, 3]
    assert run.wait(PATIENCE_S) == 0


def test_the_nodes_of_a_torchrun_train_one_model(runs: Runs) -> None:
    place = f"--rdzv-endpoint=127.0.0.1:{port_of_all_hosts()}"
    options = ("--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", place)
    nodes = [runs.torchrun(*options, "--local-addr=127.0.0.1") for _ in range(2)]
    runs.merged("learner-0-0", "learner-1-0")
    check_one_model(runs.ends(2), "learner-0-0", "learner-1-0")
    assert [node.wait(PATIENCE_S) for node in nodes] == [0, 0]


def test_processes_that_torchrun_starts_again_find_each_other(runs: Runs) -> None:
    """The store still has the addresses of those that are gone."""
    options = ("--standalone", "--nproc-per-node=2", "--max-restarts=1")
    run = runs.torchrun(*options, fails="1")
    runs.merged("learner-0-1", "learner-1-1")
    assert [line["rank"] for line in runs.lines if line["event"] == "fails"] == [1]
    check_one_model(runs.ends(2), "learner-0-1", "learner-1-1")
    assert run.wait(PATIENCE_S) == 0


def test_learners_train_on_when_the_stores_process_dies(runs: Runs) -> None:
    port = port_of_all_hosts()
    processes = [runs.start(**variables(rank, port)) for rank in range(3)]
    names = ["learner-0-0", "learner-1-0", "learner-2-0"]
    runs.merged(*names)
    processes[0].kill()
    runs.merged(*names[1:], after=len(runs.lines))
    ends = runs.ends(2)
    assert all(end["agreed"] for end in ends), ends
    assert {end["digest"] for end in ends} == {ends[0]["digest"]}
    assert [process.wait(PATIENCE_S) for process in processes[1:]] == [0, 0]


def variables(rank: int, port: str) -> Mapping[str, str]:
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": str(rank), "WORLD_SIZE": "3"}
