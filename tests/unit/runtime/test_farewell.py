"""SIGTERM is taken over only from the default, and given back."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from mend_optim.runtime import open_learners
from mend_optim.runtime.farewell import Farewell
from tests.unit.runtime.test_open_learners import Fake


def handler() -> object:
    return signal.getsignal(signal.SIGTERM)


@pytest.fixture(autouse=True)
def default() -> Iterator[None]:
    """These tests find the default, whatever the other tests' learners do."""
    former = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, former)


def test_it_is_taken_over_while_there_is_a_learner() -> None:
    one, other = Fake(0, dropped=False), Fake(0, dropped=False)
    open_learners.add(one)
    open_learners.add(other)
    assert handler() is not signal.SIG_DFL
    open_learners.discard(one)
    assert handler() is not signal.SIG_DFL
    open_learners.discard(other)
    assert handler() is signal.SIG_DFL


@pytest.mark.parametrize("theirs", [signal.SIG_IGN, lambda number, frame: None])
def test_a_handler_of_the_users_stays(theirs: signal.Handlers) -> None:
    signal.signal(signal.SIGTERM, theirs)
    farewell = Farewell(list)
    farewell.prepare()
    assert handler() is theirs
    farewell.give_back()
    assert handler() is theirs


def test_one_that_came_later_stays_too() -> None:
    farewell = Farewell(list)
    farewell.prepare()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    farewell.give_back()
    assert handler() is signal.SIG_IGN


def test_on_another_thread_nothing_happens() -> None:
    thread = threading.Thread(target=Farewell(list).prepare)
    thread.start()
    thread.join()
    assert handler() is signal.SIG_DFL


@pytest.mark.parametrize(("pid", "statuses"), [(1, [143]), (2, [])])
def test_the_first_process_of_a_container_ends_after_its_goodbye(
    monkeypatch: pytest.MonkeyPatch, pid: int, statuses: list[int]
) -> None:
    ended: list[int] = []
    learner = Fake(0, dropped=False)
    monkeypatch.setattr(os, "getpid", lambda: pid)
    monkeypatch.setattr(os, "kill", lambda pid, number: None)  # as the kernel does for it
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(signal, "pthread_kill", lambda thread, number: None)
    farewell = Farewell(lambda: [learner])
    farewell.prepare()
    farewell._handle(signal.SIGTERM, None)
    assert ended == statuses


def test_it_ignores_sigterm_without_a_learner_as_it_always_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(os, "kill", lambda pid, number: None)
    monkeypatch.setattr(os, "_exit", ended.append)
    farewell = Farewell(list)
    farewell.prepare()
    farewell._handle(signal.SIGTERM, None)
    assert ended == []
