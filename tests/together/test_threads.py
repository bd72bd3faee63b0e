"""Threads of one script that step one optimizer. Torch lets them, so they join once, and each step
counts."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from mend_optim import MendOptimizer
from mend_optim.handover import Handover
from mend_optim.training_run import TrainingRun
from tests.support.addresses import free_addresses
from tests.support.learners import PATIENCE_S, TIMING, Watch, descent, settle, step, together


def test_two_threads_that_both_take_the_first_step_join_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begins: list[Handover] = []
    begin, ensure_joined = Handover.begin, TrainingRun.ensure_joined
    enters = threading.Semaphore(0)

    def counted(handover: Handover, *arguments: Any) -> bool:
        begins.append(handover)
        return begin(handover, *arguments)

    def entered(run: TrainingRun) -> Any:
        enters.release()
        return ensure_joined(run)

    monkeypatch.setattr(Handover, "begin", counted)
    monkeypatch.setattr(TrainingRun, "ensure_joined", entered)
    here, there = free_addresses(2)
    told = Watch()
    options: dict[str, Any] = {"sync_every": 1, "timing": TIMING}
    a = MendOptimizer(descent(8.0), name="a", listen=here, peers=[there], on_event=told, **options)
    learner = a._learner
    assert learner is not None
    had_joined: list[bool] = []

    def train() -> None:
        step(a, 1.0)
        had_joined.append(learner.engine.state.joined)

    threads = [threading.Thread(target=train) for _ in range(2)]
    for thread in threads:
        thread.start()
        assert enters.acquire(timeout=PATIENCE_S)
    told.until("waiting")
    b = MendOptimizer(descent(8.0), name="b", listen=there, peers=[here], **options)
    try:
        together(partial(step, b, 1.0), *(partial(each.join, PATIENCE_S) for each in threads))
        assert had_joined == [True, True]
        assert len(begins) == 2  # one of each learner
        settle([a, b])
        (fragment,) = a.status().fragments
        assert fragment.tokens == 3
    finally:
        a.close()
        b.close()
