"""The example goes on from its own checkpoints as if it had never stopped."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

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


@pytest.mark.parametrize("who", ["--solo", "--name=a"])
def test_it_goes_on_from_its_checkpoint(run: Any, tmp_path: Path, who: str) -> None:
    straight = run(who, "--steps", "8")
    kept = ["--checkpoint", str(tmp_path / "a.pt")]
    first = run(who, "--steps", "5", *kept)
    second = run(who, "--steps", "8", *kept)
    assert first["weights"] != second["weights"] == straight["weights"]
    assert second["tokens"] == straight["tokens"]
