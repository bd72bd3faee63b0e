"""Forked children of a process with learners: whatever they do with an inherited optimizer, they
neither hang nor disturb the parent's learner."""

from __future__ import annotations

import copy
import faulthandler
import io
import logging
import os
import pickle
import select
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import mend_optim
from mend_optim import ClosedError, MendOptimizer, UsageError
from mend_optim.runtime.network_loop import NetworkLoop
from tests.support.learners import (
    LOOPBACK,
    PATIENCE_S,
    Watch,
    cluster,
    descent,
    drive,
    parameters,
    read,
    settle,
    step,
    wave,
)

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


def in_child(action: Callable[[], Any]) -> Any:
    """Fork, and return the child's result. Raises the child's error; fails if the child hangs."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        with suppress(ValueError):  # nobody captures its output
            faulthandler.dump_traceback_later(PATIENCE_S / 2, file=sys.__stderr__)
        try:
            answer: tuple[bool, Any] = (True, action())
        except BaseException as error:
            answer = (False, error)
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(answer, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answers = select.select([pipe], [], [], PATIENCE_S)[0]
        if not answers:
            os.kill(child, signal.SIGKILL)
        content = pipe.read()
    os.waitpid(child, 0)
    assert answers, "the child hangs"
    good, result = pickle.loads(content)
    if not good:
        raise result
    return result


class Pair:
    """Learner a, whose events are watched, and learner b, after their first round."""

    def __init__(self, optimizers: list[MendOptimizer], watch: Watch) -> None:
        self.a, self.b = optimizers
        self.watch = watch

    def go_on(self) -> None:
        """Both train on: rounds have offers of both, and neither has left the other."""
        before = len(self.watch.of("round"))
        drive([self.a, self.b], 20, wave)
        settle([self.a, self.b])
        records = [event.facts["round"] for event in self.watch.of("round")[before:]]
        names = {member.name for record in records for member in record.members if member.steps}
        assert names == {"a", "b"}
        assert not self.watch.of("left")


@pytest.fixture
def pair() -> Any:
    watch = Watch()
    with cluster(
        descent(0.0), descent(0.0), sync_every=2, each=[{"on_event": watch}, {}]
    ) as optimizers:
        drive(optimizers, 9, wave)
        watch.until("round")
        yield Pair(optimizers, watch)


def held_by_another_thread(lock: Any, action: Callable[[], Any]) -> Any:
    """The result of `action`, called while another thread holds the lock."""
    holds, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            holds.set()
            assert done.wait(2 * PATIENCE_S)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert holds.wait(PATIENCE_S)
        assert not lock.acquire(blocking=False)
        return action()
    finally:
        done.set()
        thread.join()


def saved(optimizer: MendOptimizer) -> bytes:
    """Everything that can be saved, copied and pickled."""
    pickle.dumps(optimizer)
    copy.deepcopy(optimizer)
    content = io.BytesIO()
    torch.save(optimizer.state_dict(), content)
    return content.getvalue()


def test_a_child_saves_an_inherited_optimizer_whoever_held_its_locks(pair: Pair) -> None:
    mutex = pair.a._learner.mutex  # type: ignore[union-attr]
    content = held_by_another_thread(mutex, lambda: in_child(lambda: saved(pair.a)))
    state = torch.load(io.BytesIO(content), weights_only=True)
    heir = MendOptimizer(descent(*read(pair.a)))
    heir.load_state_dict(state)
    assert heir.status().step == 9
    pair.go_on()


def test_what_a_child_saves_is_offered_by_nobody_twice(pair: Pair) -> None:
    """Its parent offers the work that is not merged, so the file must not have it."""
    for optimizer in (pair.a, pair.b):
        step(optimizer, 1.0)
    state = torch.load(io.BytesIO(in_child(lambda: saved(pair.a))), weights_only=True)
    address, values = pair.b.status().address, read(pair.a)
    pair.go_on()
    trained = sum(optimizer.status().tokens for optimizer in (pair.a, pair.b))
    timing = pair.a._run.settings.policies.timing
    heir = MendOptimizer(descent(*values), name="c", peers=[address], sync_every=2, timing=timing)
    with closing(heir):
        heir.load_state_dict(state)
        heir.join()
        settle([pair.a, pair.b, heir])
        assert {o.status().fragments[0].tokens for o in (pair.a, pair.b, heir)} == {trained}


def test_a_child_is_told_what_its_file_lacks(pair: Pair) -> None:
    def warned() -> list[str]:
        told: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("mend_optim").addHandler(handler)
        pair.a.state_dict()
        return told

    (text,) = in_child(warned)
    assert text == (
        "saved in a forked process: without the anchors, and without the work that is not merged "
        "yet, which the parent will offer; save in the process that trains"
    )


def test_in_a_child_an_inherited_optimizer_is_its_inner_optimizer(pair: Pair) -> None:
    def use() -> tuple[float, float, float]:
        (before,) = read(pair.a)
        step(pair.a, 1.0)
        (after,) = read(pair.a)
        with pair.a.global_weights():
            (own,) = read(pair.a)
        pair.a.status()
        pair.a.join()
        return before, after, own

    before, after, own = in_child(use)
    assert after == own == before - 1
    assert read(pair.a) == [before]
    pair.go_on()


def test_a_child_takes_its_first_step_with_an_optimizer_that_has_not_begun() -> None:
    with MendOptimizer(descent(0.0), listen=LOOPBACK) as optimizer:

        def use() -> list[float]:
            step(optimizer, 1.0)
            return read(optimizer)

        assert in_child(use) == [-1.0]


def test_a_child_cannot_synchronize(pair: Pair) -> None:
    with pytest.raises(ClosedError, match="in the process that forked this one"):
        in_child(lambda: pair.a.synchronize())


@pytest.mark.parametrize("how", ["close", "close_all", "drop"])
def test_a_child_that_closes_says_no_goodbye(pair: Pair, how: str) -> None:
    def end() -> None:
        if how == "close":
            pair.b.close()
        elif how == "close_all":
            mend_optim.close_all()
        else:
            del pair.b

    in_child(end)
    pair.go_on()


def test_a_child_that_constructs_a_learner_is_told_to_be_spawned(pair: Pair) -> None:
    def construct() -> None:
        MendOptimizer(descent(0.0), listen=LOOPBACK)

    with pytest.raises(UsageError, match=r"listen and peers .*get_context\('spawn'\)"):
        in_child(construct)
    pair.go_on()


def test_a_child_waits_for_no_thread_of_its_parent(pair: Pair) -> None:
    def takes() -> bool:
        return NetworkLoop._lock.acquire(timeout=1.0)

    assert held_by_another_thread(NetworkLoop._lock, lambda: in_child(takes))
    pair.go_on()


def test_a_child_whose_parent_has_closed_its_learners_is_told_so_too() -> None:
    MendOptimizer(descent(0.0), listen=LOOPBACK).close()
    with pytest.raises(UsageError, match="spawn"):
        in_child(lambda: MendOptimizer(descent(0.0), peers=["127.0.0.1:9"]))


def test_a_child_may_construct_an_optimizer_without_peers(pair: Pair) -> None:
    def train() -> list[float]:
        optimizer = MendOptimizer(descent(0.0))
        step(optimizer, 1.0)
        return read(optimizer)

    assert in_child(train) == [-1.0]


class Examples(Dataset[Any]):
    """A data set that leads to the optimizer, as the attribute of a trainer does."""

    def __init__(self, optimizer: MendOptimizer) -> None:
        self.optimizer = optimizer

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[int, float]:
        self.optimizer.status()
        return os.getpid(), float(parameters(self.optimizer)[0][0])


@pytest.mark.filterwarnings("ignore:.*fork")
def test_workers_of_a_data_loader_leave_the_learner_alone(pair: Pair) -> None:
    loader = DataLoader(Examples(pair.a), num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        seen = [(int(process), float(value)) for process, value in loader]
        assert len({process for process, _ in seen} - {os.getpid()}) == 2
        assert {value for _, value in seen} == set(read(pair.a))
        pair.go_on()
