"""The command `mend` itself, without its subcommands."""

from __future__ import annotations

import io
import platform
import sys
from importlib import metadata

import numpy
import pytest

import mend_optim
from mend_optim.cli import command
from mend_optim.cli.command import main, versions, with_negatives


def test_the_version_names_all_that_a_report_needs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    torch = metadata.version("torch")
    assert said.startswith(f"mend_optim {mend_optim.__version__}, torch {torch}, ")
    for part in (f"numpy {numpy.__version__}, ", f"Python {platform.python_version()}, "):
        assert part in said
    assert said == f"{versions()}\n"


def test_a_dependency_that_is_absent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "grpcio":
            raise metadata.PackageNotFoundError(name)
        return "1.2"

    monkeypatch.setattr(command.metadata, "version", version)
    assert "torch 1.2, numpy 1.2, grpcio not installed, protobuf 1.2, Python" in versions()


def test_a_run_of_python_may_ask_for_its_version() -> None:
    """`--version` behind `--` is the learners' own."""
    words = ["run", "-n", "1", "--", "python", "--version"]
    assert command.parser_for(words).parse_args(words).command == "run"


def test_a_value_below_zero_is_no_option() -> None:
    assert with_negatives(["plan", "--rtt", "-5ms", "--step", "1s"]) == [
        *("plan", "--rtt=-5ms", "--step", "1s")
    ]
    for words in (
        ["run", "-n", "-1"],
        ["run", "--plain", "--", "python", "--seed", "-1"],
        ["ledger", "-1", "a.jsonl", "--last=3", "-2"],
        ["--", "-1"],
    ):
        assert with_negatives(words) == words


def test_a_terminal_without_unicode_gets_what_it_can_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else `mend ledger` would end with a traceback, and with the status of a run that is not
    sound."""
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    with pytest.raises(SystemExit) as ended:
        main(["run", "--help"])
    assert ended.value.code == 0
    sys.stdout.flush()
    assert b"--names A,B,?" in shown.getvalue()
