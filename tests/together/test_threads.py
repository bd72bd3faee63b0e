"""Threads of one script that step one optimizer. Torch lets them, so they join once, and each step
counts. None of them trains while another one evaluates the merged model in the same parameters."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from mend_optim import MendOptimizer, UsageError
from mend_optim.handover import Handover
from mend_optim.settings import Settings
from mend_optim.training_run import TrainingRun
from tests.support.addresses import free_addresses
from tests.support.learners import (
    LOOPBACK,
    PATIENCE_S,
    TIMING,
    Watch,
    descent,
    settle,
    step,
    together,
)


@pytest.mark.parametrize("moment", ["before", "amid", "after"])
def test_a_learner_that_starts_at_the_first_step_hears_that_it_is_closed_meanwhile(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_joined, connect = TrainingRun.ensure_joined, Settings.connect
    model = nn.LazyLinear(1)
    a = MendOptimizer(SGD(model.parameters(), lr=0.1), name="a", listen=LOOPBACK, timing=TIMING)

    def close() -> None:
        together(a.close)  # on a thread of its own

    def joining(run: TrainingRun) -> Any:
        if moment == "before":
            close()
        return ensure_joined(run)

    def connecting(*arguments: Any) -> Any:
        if moment == "amid":
            close()
        learner = connect(*arguments)
        if moment == "after":
            close()
        return learner

    monkeypatch.setattr(TrainingRun, "ensure_joined", joining)
    monkeypatch.setattr(Settings, "connect", connecting)
    model(torch.ones(2, 3)).sum().backward()
    a.step()
    learner = a._learner
    assert learner is not None
    assert learner.closed
    a.step()
    assert a.status().step == 2


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


def test_no_thread_trains_while_another_evaluates_the_global_weights() -> None:
    enters, leaves = threading.Event(), threading.Event()

    def evaluate() -> None:
        with a.global_weights():
            enters.set()
            assert leaves.wait(PATIENCE_S)

    def refused() -> None:
        assert enters.wait(PATIENCE_S)
        with pytest.raises(
            UsageError, match=r"step\(\) must not be called while another thread is"
        ):
            step(a, 1.0)
        with pytest.raises(UsageError, match=r"global_weights\(\) .* is inside global_weights\(\)"):
            evaluate()
        leaves.set()

    with MendOptimizer(descent(8.0), name="a", listen=LOOPBACK, timing=TIMING) as a:
        step(a, 1.0)
        together(evaluate, refused)
        step(a, 1.0)
        with (
            a.global_weights(),
            pytest.raises(UsageError, match=r"inside .*: leave the block first"),
        ):
            step(a, 1.0)
        assert a.status().step == 2


def test_no_thread_evaluates_the_global_weights_while_another_takes_a_step() -> None:
    def evaluate() -> None:
        with a.global_weights():
            pass

    def hook(*_: Any) -> None:
        with pytest.raises(UsageError, match=r"global_weights\(\) .* is inside step\(\), which"):
            together(evaluate)
        evaluate()  # as a closure may

    with MendOptimizer(descent(8.0), name="a", listen=LOOPBACK, timing=TIMING) as a:
        a.register_step_post_hook(hook)
        step(a, 1.0)
        together(evaluate)
        assert a.status().step == 1


class TwoSteps(SGD):
    """As SAM: a method of its own takes the step."""

    def second_step(self) -> None:
        self.step()


@pytest.mark.parametrize("method", ["step", "second_step"])
def test_no_thread_evaluates_the_global_weights_while_another_joins_or_adds_corrections(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Handover.begin

    def refused() -> None:
        with pytest.raises(UsageError, match=r"global_weights\(\) .* is inside step\(\), which"):
            together(a.global_weights().__enter__)
        tried.append(method)

    def joins(self: Handover, *saved: Any) -> bool:
        refused()
        return begin(self, *saved)

    tried: list[str] = []
    monkeypatch.setattr(Handover, "begin", joins)
    monkeypatch.setattr(Handover, "after_step", lambda *_: refused())
    inner = TwoSteps([nn.Parameter(torch.tensor([8.0]))], lr=0.1)
    with MendOptimizer(inner, name="a", listen=LOOPBACK, timing=TIMING) as a:
        getattr(a, method)()
        assert tried == [method, method]
