"""The folder of a `mend run` stays as long as the run, however long that is."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mend_optim.cli.run import run_folder as module
from mend_optim.cli.run.run_folder import run_folder


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def lock_as_a_cleaner(folder: Path) -> None:
    """As systemd-tmpfiles does before it removes what is in a folder."""
    with opened(folder) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_no_cleaner_may_remove_what_is_in_it() -> None:
    with run_folder() as folder, pytest.raises(BlockingIOError):
        lock_as_a_cleaner(folder)


def test_a_folder_beside_it_may_be_cleaned(tmp_path: Path) -> None:
    with run_folder():
        lock_as_a_cleaner(tmp_path)


def test_nobody_else_may_look_into_it_and_it_is_gone_in_the_end() -> None:
    with run_folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "secret").touch()
    assert not folder.exists()


def test_its_descriptor_is_closed_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(module.fcntl, "flock", lambda descriptor, _: made.append(descriptor))
    with run_folder():
        os.fstat(made[0])
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        os.fstat(made[0])


def test_a_file_system_without_locks_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def flock(descriptor: int, operation: int) -> None:
        asked.append(operation)
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(module.fcntl, "flock", flock)
    with run_folder() as folder:
        assert folder.is_dir()
    assert asked == [fcntl.LOCK_SH]
