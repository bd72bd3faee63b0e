"""The ledger on a disk that is full, gone, or hangs: training goes on, and what was not written is
written later."""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mend_optim.engine.ledger import RoundRecord
from mend_optim.protocol.lineage import PeerId
from mend_optim.runtime import ledger_file as room
from mend_optim.runtime.ledger_file import LedgerFile
from tests.support.learners import LOCKSTEP, PATIENCE_S, cluster, descent, drive, read

A = PeerId("a", 7)


def record(version: int) -> RoundRecord:
    return RoundRecord(
        fragment=0, version=version, tokens=10 * version, digest="abcd", reason="all_present"
    )


@contextmanager
def ledger(path: Path) -> Iterator[LedgerFile]:
    file = LedgerFile(path, A)
    try:
        yield file
    finally:
        file.close(PATIENCE_S)


def versions(path: Path) -> list[int]:
    return [json.loads(line)["version"] for line in path.read_text().splitlines()]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        r.getMessage()
        for r in caplog.records
        if r.levelno == logging.WARNING and "ledger" in r.getMessage()
    ]


def test_each_line_says_when_and_who(tmp_path: Path) -> None:
    before = time.time()
    with ledger(tmp_path / "a") as file:
        file.add(record(1))
    line = json.loads((tmp_path / "a").read_text())
    assert list(line)[:4] == ["time", "name", "incarnation", "fragment"]
    assert (line["name"], line["incarnation"]) == ("a", 7)
    assert before - 1e-3 <= line["time"] <= time.time() + 1e-3


def test_lines_are_appended_to_what_an_earlier_process_wrote(tmp_path: Path) -> None:
    for version in (1, 2):
        with ledger(tmp_path / "a") as file:
            file.add(record(version))
    assert versions(tmp_path / "a") == [1, 2]


def test_a_line_cut_short_by_a_death_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text('{"version":1}\n{"vers')
    with ledger(path) as file:
        file.add(record(2))
        file.add(record(3))
    lines = path.read_text().splitlines()
    assert lines[1] == '{"vers'
    assert [json.loads(line)["version"] for line in [lines[0], *lines[2:]]] == [1, 2, 3]


def test_a_line_cut_short_by_a_full_disk_is_written_again_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    room_left, path = [10], tmp_path / "a"
    write_all = room._write_all

    def write(file: int, content: bytes) -> None:
        fits, room_left[0] = content[: room_left[0]], max(0, room_left[0] - len(content))
        write_all(file, fits)
        if fits != content:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(room, "_write_all", write)
    with ledger(path) as file:
        file.add(record(1))
        file.add(record(2))
        room_left[0] = 1_000_000
        file.add(record(3))
    lines = path.read_text().splitlines()
    assert len(lines[0]) == 10
    assert [json.loads(line)["version"] for line in lines[1:]] == [1, 2, 3]
    assert len(warnings(caplog)) == 1


def test_a_folder_that_is_missing_is_named_and_may_be_made_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "run" / "a"
    with ledger(path) as file:
        file.add(record(1))
        path.parent.mkdir()
        file.add(record(2))
    assert versions(path) == [1, 2]
    (warning,) = warnings(caplog)
    assert f"there is no folder {path.parent}; make it" in warning


def full(path: Path) -> None:
    path.symlink_to("/dev/full")


@pytest.mark.parametrize("break_", [full, Path.mkdir], ids=["full", "a directory"])
def test_what_was_not_written_is_written_when_the_disk_works_again(
    tmp_path: Path, break_: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path, aside = tmp_path / "a", tmp_path / "aside"
    caplog.set_level(logging.INFO, "mend_optim")
    with ledger(path) as file:
        file.add(record(1))
        for outage in (0, 10):
            path.rename(aside)
            break_(path)
            file.add(record(outage + 2))
            file.add(record(outage + 3))
            path.rmdir() if path.is_dir() else path.unlink()
            aside.rename(path)
            file.add(record(outage + 4))
            assert versions(path)[-3:] == [outage + 2, outage + 3, outage + 4]
    assert len(versions(path)) == 7
    assert len(warnings(caplog)) == 2, "each outage is reported, once"
    assert caplog.text.count("can be written again") == 2


def test_lines_that_are_lost_with_their_process_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a"
    with ledger(path) as file:
        file.add(record(1))
        path.rename(tmp_path / "aside")
        full(path)
        file.add(record(2))
        file.add(record(3))
    said = f"the ledger {path} cannot be written, and this learner ends: 2 lines are lost"
    assert warnings(caplog)[-1] == said


def test_a_disk_that_never_works_again_costs_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(room, "KEPT", 3)
    path = tmp_path / "a"
    path.mkdir()
    with ledger(path) as file:
        for version in range(1, 6):
            file.add(record(version))
        path.rmdir()
    assert versions(path) == [1, 2, 3]
    assert "lacks 2 lines" in warnings(caplog)[-1]


@pytest.mark.parametrize("break_", [full, Path.mkdir], ids=["full", "a directory"])
def test_training_goes_on_without_its_ledger(
    tmp_path: Path, break_: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a"
    with cluster(descent(0.0), descent(0.0), each=[{"ledger": path}, {}], **LOCKSTEP) as optimizers:
        drive(optimizers, 2, lambda i, s: 1.0)
        optimizers[0].state_dict()  # waits for the worker, so that both lines are handed over
        path.rename(tmp_path / "aside")
        break_(path)
        drive(optimizers, 3, lambda i, s: 1.0)
        assert read(optimizers[0]) == [-5.0]
    assert versions(tmp_path / "aside") == [1, 2]
    outage, end = warnings(caplog)
    assert "cannot be written: " in outage
    assert end.endswith("3 lines are lost")


def test_a_disk_that_hangs_holds_up_neither_steps_nor_merges_nor_checkpoints(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a"
    os.mkfifo(path)  # to open it for writing waits for a reader
    with cluster(descent(0.0), descent(0.0), each=[{"ledger": path}, {}], **LOCKSTEP) as optimizers:
        drive(optimizers, 3, lambda i, s: 1.0)  # would hang
        assert read(optimizers[0]) == [-3.0]
        assert optimizers[0].state_dict()["mend"]
        assert versions(path) == [1, 2, 3]


def test_a_learner_ends_although_its_disk_hangs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a"
    os.mkfifo(path)
    file = LedgerFile(path, A)
    file.add(record(1))
    file.close(0.0)
    file.add(record(2))
    assert warnings(caplog) == [f"the ledger {path} hangs: 1 lines are not written"]
    assert versions(path) == [1]


def test_a_new_ledger_is_its_owners_alone_and_an_old_one_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"")
    (tmp_path / "old").chmod(0o644)
    for name, mode in (("new", 0o600), ("old", 0o644)):
        with ledger(tmp_path / name) as file:
            file.add(record(1))
        assert (tmp_path / name).stat().st_mode & 0o777 == mode


def test_a_ledger_that_becomes_a_link_leaves_the_other_file_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    victim, path = tmp_path / "victim", tmp_path / "ledger"
    victim.write_bytes(b"precious")
    path.symlink_to(victim)
    with ledger(path) as file:
        file.add(record(1))
        assert victim.read_bytes() == b"precious"
        path.unlink()
        file.add(record(2))
    assert versions(path) == [1, 2]
    (warning,) = warnings(caplog)
    assert "a symbolic link; give the path of the file that it leads to" in warning


class NoThreads:
    """A process that may have no more threads, for a while."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.are_short = True
        start = threading.Thread.start

        def start_if_any(thread: threading.Thread) -> None:
            if self.are_short and thread.name == "mend-ledger":
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_if_any)


def test_lines_wait_until_their_thread_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, threads = tmp_path / "a", NoThreads(monkeypatch)
    with ledger(path) as file:
        file.add(record(1))
        file.add(record(2))
        threads.are_short = False
        file.add(record(3))
        assert versions(path) == [1, 2, 3]
    assert warnings(caplog) == [f"the ledger {path} cannot be written: can't start new thread"]


def test_a_learner_ends_although_its_ledger_has_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a"
    NoThreads(monkeypatch)
    with ledger(path) as file:
        file.add(record(1))
    said = f"the ledger {path} cannot be written, and this learner ends: 1 lines are lost"
    assert warnings(caplog)[-1] == said


def test_lines_are_written_at_the_end_if_their_thread_can_be_started_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, threads = tmp_path / "a", NoThreads(monkeypatch)
    with ledger(path) as file:
        file.add(record(1))
        threads.are_short = False
    assert versions(path) == [1]
