"""The example goes on from its own checkpoints as if it had never stopped."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.addresses import free_addresses

SCRIPT = Path(__file__).parents[2] / "examples" / "train_text.py"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Run the script with these arguments; returns its report."""
    spec = importlib.util.spec_from_file_location("train_text", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "HELD_OUT_WINDOWS", 32)
    corpus = module.read_corpus(0, 1)
    monkeypatch.setattr(module, "read_corpus", lambda shard, shards: corpus)

    def run(*arguments: str) -> dict[str, Any]:
        report = tmp_path / "report.json"
        told = [
            str(SCRIPT),
            "--batch",
            "2",
            "--save-every",
            "3",
            "--report",
            str(report),
            *arguments,
        ]
        monkeypatch.setattr(sys, "argv", told)
        module.main()
        result: dict[str, Any] = json.loads(report.read_text())
        return result

    return run


@pytest.fixture
def heeds_ctrl_c() -> Iterator[None]:
    """A shell has jobs in the background ignore Ctrl-C, and so do their children, unless one of
    them has a handler."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_ctrl_c_ends_it_with_a_line_and_a_goodbye() -> None:
    """In place of a traceback and a silence that the others wait out."""
    base = [sys.executable, str(SCRIPT), "--steps", "1000000", "--batch", "2", "--sync-every", "8"]
    (address,) = free_addresses(1)
    started: list[subprocess.Popen[str]] = []
    try:
        for arguments in (
            ["--name", "a", "--listen", address],
            ["--name", "b", "--peers", address],
        ):
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            started.append(subprocess.Popen([*base, *arguments], **pipes))
        a, b = started
        assert a.stderr is not None
        assert any(line.startswith("a: first merge: one model of a, b") for line in a.stderr)
        b.send_signal(signal.SIGINT)
        told, complaints = b.communicate(timeout=200)
        assert any(line.startswith("a: b left") for line in a.stderr)
    finally:
        for process in started:
            process.kill()
            process.communicate()
    assert b.returncode == 130
    assert told.splitlines()[-1] == "b interrupted: signal SIGINT"
    assert "Traceback" not in complaints


@pytest.mark.parametrize("who", ["--solo", "--name=a"])
def test_it_goes_on_from_its_checkpoint(run: Any, tmp_path: Path, who: str) -> None:
    straight = run(who, "--steps", "8")
    kept = ["--checkpoint", str(tmp_path / "a.pt")]
    first = run(who, "--steps", "5", *kept)
    second = run(who, "--steps", "8", *kept)
    assert first["weights"] != second["weights"] == straight["weights"]
    assert second["tokens"] == straight["tokens"]


def test_its_name_is_that_which_mend_run_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("train_text", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setenv("MEND_NAME", "learner-1")
    monkeypatch.setattr(sys, "argv", [str(SCRIPT)])
    assert module.parse_arguments().name == "learner-1"
