"""One thread at a time joins, in the process that it is in."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from mend_optim.runtime.one_joiner import OneJoiner

PATIENCE_S = 30.0


@pytest.fixture
def joining() -> Iterator[OneJoiner]:
    """A thread is in the context, before there is a learner."""
    joiner, is_in, may_leave = OneJoiner(), threading.Event(), threading.Event()

    def join() -> None:
        with joiner.of(None):
            is_in.set()
            may_leave.wait(PATIENCE_S)

    thread = threading.Thread(target=join)
    thread.start()
    assert is_in.wait(PATIENCE_S)
    yield joiner
    may_leave.set()
    thread.join(PATIENCE_S)


def may_enter(joiner: OneJoiner) -> bool:
    lock = joiner.of(None)
    may: bool = lock.acquire(blocking=False)  # type: ignore[attr-defined]
    if may:
        lock.release()  # type: ignore[attr-defined]
    return may


def test_a_second_thread_waits(joining: OneJoiner) -> None:
    assert not may_enter(joining)


def test_in_a_forked_child_nobody_waits_for_a_thread_that_is_not_there(
    joining: OneJoiner, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)
    assert may_enter(joining)
    with joining.of(None):
        """In a child, too, one thread is in it at a time."""
        assert joining.of(None) is joining.of(None)
