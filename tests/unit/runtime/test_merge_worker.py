"""The worker thread: jobs in order, corrections that stack, looks between two jobs, and its end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from mend_optim.engine.effects import Done, Export, Job
from mend_optim.protocol.lineage import Lineage
from mend_optim.runtime import merge_worker
from mend_optim.runtime.guard import Guard
from mend_optim.runtime.merge_worker import MergeWorker
from mend_optim.worker.correction import Correction

PATIENCE_S = 30.0
JOB = Export(0, Lineage.fresh(b"g"))


class Scripted:
    """Stands in for `Anchors`: each job makes the next of these corrections."""

    def __init__(self, *made: Correction) -> None:
        self.made = list(made)

    def bring(self, correction: Correction) -> Correction:
        return replace(correction, there=replace(correction, values=correction.values.clone()))

    def perform(self, job: Job) -> tuple[Done, tuple[Correction, ...]]:
        return Done(digest=b"done"), (self.made.pop(0),) if self.made else ()


def correction(value: float, fragment: int = 0, replace: bool = False) -> Correction:
    return Correction(fragment, torch.full((2,), value), replace)


@contextmanager
def working(*made: Correction) -> Iterator[tuple[MergeWorker, list[Sequence[Correction]]]]:
    """A worker that performs jobs, and the corrections that each has finished with."""
    guard = Guard()
    finished: list[Sequence[Correction]] = []

    def finish(job: Job, done: Done, corrections: Sequence[Correction]) -> None:
        assert done.digest == b"done"
        with guard.mutex:
            for each in corrections:
                worker.mailbox[each.fragment] = each
            finished.append(corrections)
            guard.changed.notify_all()

    worker = MergeWorker(guard, finish, guard.end)
    worker.anchors = Scripted(*made)  # type: ignore[assignment]
    worker.start()
    try:
        yield worker, finished
    finally:
        worker.end()
        worker.join(PATIENCE_S)
        assert not worker.thread.is_alive()


def after_all(worker: MergeWorker) -> None:
    """Wait until everything that was put so far is done."""
    done = threading.Event()
    worker.put(done.set)
    assert done.wait(PATIENCE_S)


def in_mailbox(worker: MergeWorker) -> dict[int, tuple[float, bool]]:
    return {p: (c.values[0].item(), c.replace) for p, c in worker.mailbox.items()}


def test_actions_and_jobs_run_in_the_order_they_were_put() -> None:
    order: list[str] = []
    with working(correction(1.0)) as (worker, finished):
        worker.put(lambda: order.append(f"before, {len(finished)} finished"))
        worker.perform(JOB)
        worker.put(lambda: order.append(f"after, {len(finished)} finished"))
        after_all(worker)
    assert order == ["before, 0 finished", "after, 1 finished"]


def test_a_job_is_finished_without_the_mutex() -> None:
    guard = Guard()
    held: list[bool] = []
    worker = MergeWorker(
        guard, lambda job, done, corrections: held.append(guard.is_held()), guard.end
    )
    worker.anchors = Scripted()  # type: ignore[assignment]
    worker.start()
    worker.perform(JOB)
    after_all(worker)
    worker.end()
    worker.join(PATIENCE_S)
    assert held == [False]


def test_corrections_that_training_has_not_taken_stack() -> None:
    with working(correction(1.0), correction(2.0), correction(8.0, fragment=1)) as (worker, _):
        for _ in range(3):
            worker.perform(JOB)
        after_all(worker)
        assert in_mailbox(worker) == {0: (3.0, False), 1: (8.0, False)}


def test_a_correction_is_brought_to_the_parameters_as_training_will_take_it() -> None:
    with working(correction(1.0), correction(2.0)) as (worker, finished):
        for _ in range(2):
            worker.perform(JOB)
        after_all(worker)
        for (made,), value in zip(finished, (1.0, 3.0), strict=True):
            assert made.there is not None
            assert made.there.values.tolist() == [value, value]
            assert made.there.there is None


def test_a_correction_that_replaces_the_weights_supersedes_the_one_before() -> None:
    with working(correction(1.0), correction(2.0, replace=True), correction(4.0)) as (worker, _):
        for expected in [(1.0, False), (2.0, True), (6.0, True)]:
            worker.perform(JOB)
            after_all(worker)
            assert in_mailbox(worker) == {0: expected}


def test_a_correction_that_training_has_taken_is_not_added_again() -> None:
    with working(correction(1.0), correction(2.0)) as (worker, _):
        worker.perform(JOB)
        after_all(worker)
        worker.mailbox.clear()
        worker.perform(JOB)
        after_all(worker)
        assert in_mailbox(worker) == {0: (2.0, False)}


def test_a_look_comes_between_two_jobs() -> None:
    with working(correction(1.0), correction(2.0)) as (worker, finished):
        worker.perform(JOB)
        seen = worker.between_jobs(lambda anchors: (anchors, len(finished)))
        worker.perform(JOB)
        assert seen == (worker.anchors, 1)


def test_a_look_of_nothing_is_a_look() -> None:
    with working() as (worker, _):
        assert worker.between_jobs(lambda anchors: None) is None


def test_the_worker_itself_looks_at_once() -> None:
    """Waiting for the next job would be waiting for itself."""
    seen: list[str] = []
    with working() as (worker, _):
        worker.put(lambda: seen.append(worker.between_jobs(lambda anchors: "looked")))
        after_all(worker)
    assert seen == ["looked"]


@pytest.mark.parametrize("ending", ["closed", "failed"])
def test_where_there_is_no_worker_left_the_caller_looks(ending: str) -> None:
    with working() as (worker, _):
        if ending == "closed":
            worker._guard.end()
            worker.end()
        else:
            worker.put(fail)
        worker.join(PATIENCE_S)
        looked = worker.between_jobs(lambda anchors: threading.current_thread())
        assert looked is threading.current_thread()


def fail() -> None:
    raise MemoryError("no memory for a merge")


def test_a_job_that_raises_ends_the_thread_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with working() as (worker, _):
        waits = threading.Event()
        worker.put(lambda: waits.wait(PATIENCE_S))
        worker.put(fail)
        worker.put(lambda: pytest.fail("the thread goes on"))
        guard = worker._guard
        with guard.mutex:
            waits.set()
            # Every thread that waits on the condition is woken.
            assert guard.changed.wait_for(lambda: guard.over, PATIENCE_S)
        worker.join(PATIENCE_S)
        assert isinstance(guard.error, MemoryError)
        assert [record.getMessage() for record in caplog.records] == ["the merge worker failed"]


def test_closing_keeps_an_error_that_nobody_has_raised() -> None:
    guard, error = Guard(), MemoryError()
    guard.end(error)
    guard.end()
    assert guard.over
    assert guard.error is error


def test_the_end_comes_after_what_was_put_before_it() -> None:
    done: list[Callable[[], object]] = []
    with working() as (worker, _):
        worker.put(lambda: done.append(worker.end))
        worker.end()
        worker.join(PATIENCE_S)
    assert len(done) == 1


def test_a_thread_does_not_wait_for_itself() -> None:
    with working() as (worker, _):
        worker.put(lambda: worker.join(PATIENCE_S))
        after_all(worker)


def test_only_the_owner_holds_the_mutex() -> None:
    guard = Guard()
    held: list[bool] = []
    with guard.mutex:
        thread = threading.Thread(target=lambda: held.append(guard.is_held()))
        thread.start()
        thread.join(PATIENCE_S)
        held.append(guard.is_held())
    held.append(guard.is_held())
    assert held == [False, True, False]


def test_a_look_after_the_end_waits_for_a_job_that_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However short the end of a learner waits for it."""
    monkeypatch.setattr(merge_worker, "CLOSE_S", 0.0, raising=False)
    at_work, may_end = threading.Event(), threading.Event()

    def merge() -> None:
        at_work.set()
        may_end.wait(PATIENCE_S)
        at_work.clear()

    with working() as (worker, _):
        worker.put(merge)
        assert at_work.wait(PATIENCE_S)
        worker.end()
        worker._guard.end()
        timer = threading.Timer(0.05, may_end.set)
        timer.start()
        assert not worker.between_jobs(lambda anchors: at_work.is_set())
        timer.join()


@pytest.mark.parametrize("fails", [False, True])
def test_the_thread_that_closes_a_learner_does_what_is_left_unless_it_has_failed(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def close() -> None:
        worker.put(lambda: seen.append("told"))
        worker.end()
        worker.join(PATIENCE_S)
        seen.append("closed")

    with working() as (worker, _):
        if fails:
            monkeypatch.setattr(worker, "fail", lambda _: close())  # a step has raised the error
            worker.put(lambda: 1 // 0)
        else:
            worker.put(close)
        worker.thread.join(PATIENCE_S)
        assert not worker.thread.is_alive()
    assert seen == (["closed"] if fails else ["told", "closed"])
