"""`mend ledger` at the shell: its outputs, its exit status and its errors."""

from __future__ import annotations

import codecs
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mend_optim.cli.command import COMMANDS, main
from mend_optim.cli.ledger.page import PAGE_BEGIN
from mend_optim.cli.wording import bytes_of, clock_of, count_of, moment_of, seconds_of
from tests.support.ledgers import Ledgers

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "command.md"


def example() -> Ledgers:
    """The run of the page: c is cut off for a while, and comes back."""
    ledgers = Ledgers(("alpha", "beta", "gamma"))
    for i in range(6):
        ledgers.round({"alpha": 40960, "beta": 40960, "gamma": 20480 + 4096 * (i % 2)})
    for _ in range(2):
        ledgers.round({"alpha": 40960, "beta": 40960}, ("alpha", "beta"), expected=("gamma",))
    ledgers.whole("gamma", of="alpha")
    ledgers.round({"alpha": 40960, "gamma": 61440})
    return ledgers


def written(ledgers: Ledgers, folder: Path) -> list[str]:
    paths = []
    for name, lines in ledgers.text:
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
        paths.append(str(folder / name))
    return paths


def test_the_output_in_the_docs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", *written(example(), tmp_path), "--last", "4"]) == 0
    output = capsys.readouterr().out
    quoted = "\n".join(f"    {line}".rstrip() for line in output.splitlines())
    assert quoted in PAGE.read_text(encoding="utf-8"), f"docs/command.md should have:\n{quoted}"


def test_a_round_of_many_learners_takes_one_line_that_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"learner-{i:02}" for i in range(50)]
    ledgers = Ledgers(names)
    ledgers.round(dict.fromkeys(names[:30], 8), expected=names)
    assert main(["ledger", *written(ledgers, tmp_path)]) == 0
    (line,) = (
        line for line in capsys.readouterr().out.splitlines() if "learner-00  learner-00 8" in line
    )
    assert "learner-06 8 and 23 more " in line
    assert line.endswith("learner-36 and 13 more")


def test_a_gap_has_a_status_of_its_own_and_a_broken_run_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = written(example(), tmp_path)
    assert main(["ledger", paths[2]]) == 3
    assert "incomplete: no ledger says who was in versions 7 to 8" in capsys.readouterr().out
    lines = [json.loads(line) for line in Path(paths[0]).read_text().splitlines()]
    lines[4]["members"] = lines[3]["members"]
    Path(paths[0]).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert main(["ledger", *paths]) == 1
    assert "alpha.jsonl:5 and" in capsys.readouterr().out


def test_arguments_that_are_wrong_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path, *_) = written(example(), tmp_path)
    for arguments, words in [
        ([f"{tmp_path}/none"], "FILE must be a ledger that you may read, got"),
        ([path, "--last", "-1"], "--last must be an int >= 0, got -1"),
        ([path, "--html", f"{tmp_path}/no/page.html"], "--html must be a file that you may write"),
        ([path, "--html", path], "--html must be a new file, or a page that this command wrote"),
        ([path, "--ca", f"{tmp_path}/none"], "--ca must be the ca.pem of the run, got"),
        ([path, "--ca", path], "--ca must be the ca.pem of the run"),
    ]:
        assert main(["ledger", *arguments]) == 2
        assert words in capsys.readouterr().err
    for arguments in ([path, "--last", "x"], [], ["--unknown", path]):
        with pytest.raises(SystemExit) as ended:
            main(["ledger", *arguments])
        assert ended.value.code == 2


def test_a_ledger_is_not_overwritten_by_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the shell makes it of --html *.jsonl."""
    first, *others = written(example(), tmp_path)
    lines = Path(first).read_text()
    assert main(["ledger", "--html", first, *others]) == 2
    assert Path(first).read_text() == lines
    page = tmp_path / "page.html"
    for _ in range(2):
        assert main(["ledger", first, *others, "--html", str(page)]) == 0
    capsys.readouterr()


FULL_DISK = """
import resource, sys
from mend_optim.cli.command import main
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="files have no greatest size there")
def test_a_full_disk_leaves_the_page_that_was_there(tmp_path: Path) -> None:
    files = written(example(), tmp_path)
    page = tmp_path / "page.html"
    command = [sys.executable, "-c", FULL_DISK, "ledger", *files, "--html", str(page)]
    for before in (None, "a page"):
        if before:
            page.write_text(f"{PAGE_BEGIN}{before}")
        there = sorted(tmp_path.iterdir())
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 2
        assert "--html must be a file that you may write" in ended.stderr
        assert sorted(tmp_path.iterdir()) == there
        assert before is None or page.read_text().endswith(before)


def test_the_page_may_go_where_no_file_is(tmp_path: Path) -> None:
    if not Path("/dev/stdout").exists():
        pytest.skip("there is no /dev/stdout")
    command = [sys.executable, "-m", "mend_optim", "ledger", *written(example(), tmp_path)]
    command += ["--html", "/dev/stdout"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0
    assert ended.stdout.startswith(PAGE_BEGIN)


def test_a_mark_before_the_first_line_is_no_part_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As some editors write it."""
    files = written(example(), tmp_path)
    assert main(["ledger", *files]) == 0
    told = capsys.readouterr().out
    for file in files:
        Path(file).write_bytes(codecs.BOM_UTF8 + Path(file).read_bytes())
    assert main(["ledger", *files]) == 0
    assert capsys.readouterr().out == told


def test_a_file_without_lines_has_a_story(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").write_text("")
    page = tmp_path / "page.html"
    assert main(["ledger", str(tmp_path / "empty"), "--html", str(page)]) == 3
    told = capsys.readouterr().out
    assert "no anchor\n\nincomplete: " in told  # nothing was judged, so nothing is sound
    assert "these files have no line of a ledger" in told
    assert "no anchor" in page.read_text()


def test_names_that_would_draw_on_the_terminal_or_the_page_are_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledgers = Ledgers(("\x1b[31mred", "<script>alert(1)</script>"))
    for _ in range(2):
        ledgers.round(dict.fromkeys(ledgers.names, 5))
    path, page = tmp_path / "one.jsonl", tmp_path / "page.html"
    path.write_text("".join(f"{line}\n" for _, lines in ledgers.text for line in lines))
    assert main(["ledger", str(path), "--html", str(page)]) == 0
    assert "\x1b" not in capsys.readouterr().out
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["members"] = lines[0]["members"]
    lines[1]["reason"] = "\x1b[2J"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert main(["ledger", str(path)]) == 1
    told = capsys.readouterr().out
    assert "\x1b" not in told
    assert "has offer 1 of \\x1b[31mred, which was merged before" in told
    assert "\x1b" not in page.read_text()
    assert "<script" not in page.read_text()
    assert "&lt;script" in page.read_text()


def test_the_page_needs_nothing_beside_it(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["ledger", *written(example(), tmp_path), "--html", str(page)]) == 0
    text = page.read_text()
    assert "<title>mend ledger: sound</title>" in text
    assert not re.search(r"https?://|<link|<script|<img|@import|url\(", text)
    assert text.count("<svg") == 4


def test_the_page_of_a_long_run_is_small(tmp_path: Path) -> None:
    ledgers = Ledgers(("a", "b"))
    for _ in range(1500):
        ledgers.round({"a": 5, "b": 6})
    page = tmp_path / "page.html"
    assert main(["ledger", *written(ledgers, tmp_path), "--html", str(page), "--last", "0"]) == 0
    assert page.stat().st_size < 300_000
    assert "The last 500 rounds" in page.read_text()


def test_every_command_has_help_and_none_of_it_loads_torch() -> None:
    """A second process, because this one has imported torch."""
    code = """
import sys
from mend_optim.cli.command import COMMANDS, main
from mend_optim.cli.ledger.page import PAGE_BEGIN
for words in ["--help"], *([name, "--help"] for name in COMMANDS):
    try:
        main(words)
    except SystemExit as ended:
        assert ended.code == 0, words
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.stdout.splitlines()[-1] == "False", done.stderr
    for name, (said, _) in COMMANDS.items():
        assert re.search(rf"{name} +{said[:20]}", done.stdout)


def test_numbers_read_well() -> None:
    assert [count_of(n) for n in (0, 0.3612, 99, 9_999, 10_000, 1_234_567, 999_999)] == [
        *("0", "0.361", "99", "9,999", "10k", "1.23M", "1M")
    ]
    assert [bytes_of(n) for n in (0, 999, 1_000, 1_234_567)] == ["0 B", "999 B", "1 kB", "1.23 MB"]
    assert [seconds_of(s) for s in (0.34, 12, 250, 12_000)] == [
        *("340 ms", "12 s", "4 min 10 s", "3 h 20 min")
    ]
    assert [seconds_of(s) for s in (-0.34, -250, -196_480)] == [
        *("-340 ms", "-4 min 10 s", "-54 h 34 min")
    ]
    assert clock_of(1_790_000_000) == clock_of(1_790_000_000, 1_789_990_000) == "14:13:20"
    assert clock_of(1_790_000_000, 1_780_000_000) == "09-21 14:13"
    assert moment_of(1e300) == moment_of(2.5e11)
