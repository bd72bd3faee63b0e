"""Runs on copies of the sources: each sees its own copy, and those that hang are ended."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from tests.mutation.runs import prepare, pytest_in

PAGES = """
import subprocess
import threading
from pathlib import Path

from mend_optim import VALUE
from tests import support

def test_own():
    assert (VALUE, support.VALUE) == ({value}, {value})

def test_other():
    assert VALUE == 0

def test_left():
    left = subprocess.Popen(["tail", "-f", "/dev/null"])
    Path("left").write_text(str(left.pid))

def test_endless():
    threading.Event().wait()
"""


def copy(folder: Path, value: int) -> Path:
    """A tree with packages of these names, which hold this value."""
    (folder / "tests").mkdir(parents=True)
    (folder / "mend_optim.py").write_text(f"VALUE = {value}\n")
    (folder / "tests" / "__init__.py").touch()
    (folder / "tests" / "support.py").write_text(f"VALUE = {value}\n")
    (folder / "tests" / "test_pages.py").write_text(PAGES.format(value=value))
    return folder


def is_alive(pid: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_runs_see_their_own_copy_and_are_ended_if_they_hang(tmp_path: Path) -> None:
    one, two = copy(tmp_path / "one", 1), copy(tmp_path / "two", 2)
    # As for the mutants: the process that forks has no threads of other tests.
    with ProcessPoolExecutor(1, get_context("spawn"), prepare) as pool:
        own = [pool.submit(pytest_in, folder, ["-kown"], 60.0).result() for folder in (one, two)]
        failed = pool.submit(pytest_in, one, ["-kother"], 60.0).result()
        assert pool.submit(pytest_in, one, ["-kleft"], 60.0).result().status == 0
        hung = pool.submit(pytest_in, one, ["-kendless"], 5.0).result()
    assert [report.status for report in own] == [0, 0]
    assert failed.status == 1
    assert "FAILED tests/test_pages.py::test_other" in failed.output
    assert hung.status is None
    while is_alive(int((one / "left").read_text())):
        pass  # it has been killed, and ends at any moment
