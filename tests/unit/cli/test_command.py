"""The command `mend` itself, without its subcommands."""

from __future__ import annotations

import io
import os
import platform
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

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


class _Gone(io.StringIO):
    """A pipe whose reader has seen enough."""

    def __init__(self, fileno: int) -> None:
        super().__init__()
        self._fileno = fileno

    def fileno(self) -> int:
        return self._fileno

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_reader_that_has_seen_enough_gives_no_verdict(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The status 1 of `mend ledger` would say that the run is broken."""
    (tmp_path / "a.jsonl").touch()
    with (tmp_path / "out").open("wb") as out:
        monkeypatch.setattr(sys, "stdout", _Gone(out.fileno()))
        assert main(["ledger", str(tmp_path / "a.jsonl")]) == 141


def test_a_reader_that_reads_no_help_gives_no_status_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert main(["ledger", "--help"]) == 141


full_disk = pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")


@full_disk
@pytest.mark.parametrize("arguments", [["ledger", "{file}"], ["ledger", "--help"], ["--version"]])
def test_a_full_disk_gives_no_verdict(
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    file = tmp_path / "a.jsonl"
    file.touch()
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main([each.format(file=file) for each in arguments]) == 74
    said = "mend: the system refused something: [Errno 28] No space left on device\n"
    assert capsys.readouterr().err == said


@full_disk
def test_a_full_disk_for_complaints_changes_no_status(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w", buffering=1) as full:
        monkeypatch.setattr(sys, "stderr", full)
        status = main(["ledger", "/no/such/file"])
        with suppress(OSError):
            full.close()
    assert status == 2


def status_at_shell(line: str, *arguments: str) -> int:
    """The status of Python with these arguments, started by a line of the shell."""
    root = Path(__file__).parents[3]
    return subprocess.run(
        ["sh", "-c", line, "sh", sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(root)},
        check=False,
        timeout=100,
    ).returncode


def test_streams_that_are_closed_change_no_status(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.touch()
    line = '"$@" <&- >&- 2>&-'
    assert status_at_shell(line, "-m", "mend_optim", "ledger", str(file)) == 3
    # No file or socket gets the number of a stream, and what is written there.
    opened = (
        "import os; from mend_optim.cli.command import fill_closed_streams as fill; fill();"
        " os._exit(os.open(os.devnull, os.O_RDONLY))"
    )
    assert status_at_shell(line, "-c", opened) > 2


def test_ctrl_c_ends_a_command_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("mend_optim.cli.ledger.command._read", interrupted)
    status = None
    with suppress(KeyboardInterrupt):  # which would end pytest, too
        status = main(["ledger", "a.jsonl"])
    assert status == 130
    assert capsys.readouterr() == ("", "")
