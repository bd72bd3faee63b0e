"""The public face of a learner with peers: status, global weights, synchronize, close."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer

from mend_optim import ClosedError, MendOptimizer, Timing, UsageError
from mend_optim.finish import NOBODY
from tests.support.checkpoints import anchors
from tests.support.learners import (
    LOCKSTEP,
    LOOPBACK,
    PATIENCE_S,
    TIMING,
    Watch,
    cluster,
    descent,
    drive,
    parameters,
    read,
    same,
    settle,
    start,
    step,
    together,
    until,
)


def test_peers_end_on_equal_anchors() -> None:
    with cluster(descent(1.0, 5.0), descent(1.0, 5.0), sync_every=4, fragments=2) as optimizers:
        drive(optimizers, 30, lambda i, s: 0.1 * (i + 1) * (s % 5))
        settle(optimizers)
        lineages = [
            [(f.tokens, f.version, f.digest) for f in o.status().fragments] for o in optimizers
        ]
        assert lineages[0] == lineages[1]
        assert [tokens for tokens, _, _ in lineages[0]] == [60, 60]
        assert same(anchors(optimizers[0]), anchors(optimizers[1]))
        for weight, anchor in zip(parameters(optimizers[1]), anchors(optimizers[0]), strict=True):
            torch.testing.assert_close(weight, anchor)  # nothing unmerged is left but rounding


def test_status_tells_where_a_learner_stands() -> None:
    with cluster(descent(1.0), descent(1.0), **LOCKSTEP) as (a, b):
        drive([a, b], 3, lambda i, s: 1.0)
        status = a.status()
        assert (status.name, status.step, status.tokens, status.joined, status.rounds_adopted) == (
            "a",
            3,
            3,
            True,
            3,
        )
        assert (status.unmerged_tokens, status.dropped_tokens) == (0, 0)
        assert [(f.tokens, f.version, f.unmerged_tokens) for f in status.fragments] == [(6, 3, 0)]
        assert [(p.name, p.state, p.address) for p in status.roster] == [
            ("b", "alive", b.status().address)
        ]
        assert [[m.name for m in r.members] for r in status.rounds] == [["a", "b"]] * 3
        assert status.address.startswith("127.0.0.1:")
        assert min(status.bytes_sent, status.bytes_received, status.seconds_in_mend) > 0


def test_status_is_frozen() -> None:
    with pytest.raises(AttributeError):
        MendOptimizer(descent(1.0)).status().step = 3  # type: ignore[misc]


def test_global_weights_are_the_anchor_and_only_for_a_while() -> None:
    with cluster(descent(1.0), descent(1.0), sync_every=2, adopt_after=0) as optimizers:
        drive(optimizers, 3, lambda i, s: float(i))  # the last step is in no anchor yet
        assert [read(o) for o in optimizers] == [[0.0], [-1.0]]
        before = [p.clone() for p in parameters(optimizers[1])]
        assert anchors(optimizers[1])[0][0] == 0.0
        assert same(parameters(optimizers[1]), before)


def zero_and_fail(optimizer: MendOptimizer) -> None:
    with optimizer.global_weights():
        optimizer.param_groups[0]["params"][0].data.zero_()
        raise KeyError


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_global_weights_come_back_to_the_bit_after_an_exception(dtype: torch.dtype) -> None:
    odd = [SGD([nn.Parameter((torch.arange(5) / 7).to(dtype))], lr=0.1) for _ in range(2)]
    with cluster(*odd, **LOCKSTEP) as optimizers:
        drive(optimizers, 2, lambda i, s: 1.0 + i)
        before = [p.clone() for p in parameters(optimizers[0])]
        with pytest.raises(KeyError):
            zero_and_fail(optimizers[0])
        assert same(parameters(optimizers[0]), before)


def test_a_merge_that_comes_meanwhile_waits_until_the_weights_are_back() -> None:
    with cluster(descent(1.0), descent(1.0), sync_every=1) as (a, b):
        step(a, 1.0)
        with a.global_weights():
            step(b, 3.0)
            until(a, lambda: a._learner.worker.mailbox)  # type: ignore[union-attr]
        assert read(a) == [0.0]
        step(a, 0.0)
        assert read(a) == [-1.0]


def test_a_correction_waits_for_a_parameter_of_another_shape() -> None:
    """torch could not add it, and it would be lost."""
    with cluster(descent(1.0), descent(1.0), sync_every=1) as (a, b):
        step(a, 1.0)
        step(b, 3.0)
        until(a, lambda: a._learner.worker.mailbox)  # type: ignore[union-attr]
        (parameter,) = a.param_groups[0]["params"]
        own, parameter.data, parameter.grad = parameter.data, torch.zeros(2, 2), None
        for _ in range(2):
            with pytest.raises(UsageError, match=r"parameter 0 must keep its shape \[3\]"):
                a.step()
        parameter.data = own
        step(a, 0.0)
        assert read(a) == [-1.0]


CALLS = [lambda o: o.step(), lambda o: o.synchronize(), lambda o: o.global_weights().__enter__()]


@pytest.mark.parametrize("call", CALLS)
def test_nothing_else_may_be_done_with_the_global_weights(
    call: Callable[[MendOptimizer], Any],
) -> None:
    with cluster(descent(1.0), descent(1.0), **LOCKSTEP) as (a, _):
        with (
            a.global_weights(),
            pytest.raises(UsageError, match=r"inside global_weights\(\): leave the block first"),
        ):
            call(a)
        assert read(a) == [1.0]


@pytest.mark.parametrize(
    ("where", "is_bare"),
    [("before", False), ("closure", False), ("closure", True), ("after", False)],
)
def test_a_checkpoint_is_loaded_between_two_steps_only(where: str, is_bare: bool) -> None:
    """Else the step would be in the counts of the checkpoint, and not in the learner's."""
    optimizer = MendOptimizer(
        descent(8.0), name="a", listen=LOOPBACK, timing=Timing(join_timeout_s=0.0)
    )
    with closing(optimizer):
        drive([optimizer], 3, lambda *_: 1.0)
        saved = optimizer.state_dict()
        if is_bare:
            del saved["mend"]

        def load(*_: object) -> float:
            optimizer.load_state_dict(saved)
            return 0.0

        if where == "before":
            handle = optimizer.register_step_pre_hook(load)
        elif where == "after":
            handle = optimizer.register_step_post_hook(load)
        text = r"load_state_dict\(\) must not be called inside step\(\)"
        with pytest.raises(UsageError, match=text):
            optimizer.step(load if where == "closure" else None)
        if where != "closure":
            handle.remove()
        assert optimizer.status().step == 3
        load()


def test_synchronize_says_that_nobody_is_left_for_a_quorum() -> None:
    with cluster(descent(1.0), descent(1.0), descent(1.0), sync_every=8, quorum=3) as optimizers:
        drive(optimizers, 2, lambda i, s: 1.0)
        optimizers[2].close()
        found = together(*(lambda o=o: o.synchronize(0.3) for o in optimizers[:2]))
        assert not any(found)
        assert {outcome.unmerged_tokens for outcome in found} == {2}
        assert {outcome.reason for outcome in found} == {"it took longer than 0.3 s"}
        drive(optimizers[:2], 2, lambda i, s: 1.0)  # and training goes on
        assert read(optimizers[0]) == [-3.0]


def test_whoever_is_left_alone_holds_the_anchor() -> None:
    with cluster(descent(1.0), descent(1.0), sync_every=8) as (a, b):
        drive([a, b], 2, lambda i, s: 1.0)
        b.close()
        until(a, lambda: a._learner.engine.state.roster.alone)  # type: ignore[union-attr]
        outcome = a.synchronize(PATIENCE_S)
        assert not outcome
        assert (outcome.unmerged_tokens, outcome.reason) == (2, NOBODY)
        assert anchors(a)[0][0] == -1.0


def test_after_close_steps_are_the_inner_optimizers() -> None:
    with cluster(descent(1.0), descent(1.0), **LOCKSTEP) as (a, b):
        drive([a, b], 1, lambda i, s: float(i))
        a.close()
        a.close()
        step(a, 1.0)
        assert read(a) == [-0.5]
        with pytest.raises(ClosedError, match="was closed"):
            a.synchronize()


def test_a_learner_can_be_closed_before_it_begins() -> None:
    with closing(MendOptimizer(descent(1.0), listen=LOOPBACK, timing=TIMING)) as optimizer:
        optimizer.close()
        step(optimizer, 1.0)
        assert read(optimizer) == [0.0]


def test_the_environment_can_say_who_and_where(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(MendOptimizer(descent(1.0), name="a", listen=LOOPBACK, timing=TIMING)) as a:
        monkeypatch.setenv("MEND_NAME", "from outside")
        monkeypatch.setenv("MEND_LISTEN", LOOPBACK)
        monkeypatch.setenv("MEND_PEERS", f" {a.status().address} , ")
        with closing(MendOptimizer(descent(1.0), timing=TIMING)) as b:
            start([a, b])
            assert (b.status().name, [p.name for p in b.status().roster]) == ("from outside", ["a"])
            assert b.status().address.startswith("127.0.0.1:")


# A learner's reports about itself


class Timed(SGD):
    """An inner optimizer whose step takes two seconds by the given clock."""

    clock: list[float]

    def step(self, closure: Any = None) -> Any:
        self.clock[0] += 2.0
        return super().step(closure)


def test_a_step_takes_what_the_script_and_the_inner_optimizer_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A learner that waits in this library, or has just synchronized, does not count as slow for
    that."""
    clock, seen = [0.0], list[float | None]()
    stopped = SimpleNamespace(perf_counter=lambda: clock[0])
    monkeypatch.setattr("mend_optim.training_run.time", stopped)
    inner = Timed([nn.Parameter(torch.ones(1))], lr=0.1)
    inner.clock = clock
    with closing(MendOptimizer(inner, name="a", listen="127.0.0.1:0")) as optimizer:
        optimizer.join()
        learner, handover = optimizer._learner, optimizer._run.handover
        assert learner is not None
        assert handover is not None
        stepped, run = learner.stepped, handover.run
        monkeypatch.setattr(
            learner, "stepped", lambda n, s, rate=0.0: (seen.append(s), stepped(n, s, rate))
        )

        def wait(*args: Any) -> None:
            clock[0] += 100.0
            run(*args)

        monkeypatch.setattr(handover, "run", wait)
        for pause in (5.0, 5.0, 7.0):
            clock[0] += pause
            step(optimizer, 1.0)
        optimizer.synchronize(PATIENCE_S)
        step(optimizer, 1.0)
        step(optimizer, 1.0)
    assert seen == [None, 7.0, 9.0, None, 2.0]


class Strange(Optimizer):
    """An optimizer with state of an unknown kind."""

    def __init__(self) -> None:
        super().__init__([nn.Parameter(torch.ones(1))], {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["mystery"] = torch.ones(1)


def said(kind: str, inner: Optimizer, **options: Any) -> list[str]:
    """The texts of the events of this kind until a learner has joined, and shortly after."""
    watch = Watch()
    with closing(
        MendOptimizer(inner, listen="127.0.0.1:0", on_event=watch, **options)
    ) as optimizer:
        for _ in range(3):
            step(optimizer, 1.0)
        watch.until("joined")
    return [event.text for event in watch.of(kind)]


@pytest.mark.parametrize(
    ("make", "options", "times"),
    [(Strange, {}, 1), (Strange, {"moments": None}, 0), (lambda: descent(1.0), {}, 0)],
    ids=["strange", "never", "without moments"],
)
def test_that_the_moments_of_an_optimizer_are_not_known_is_said_once(
    make: Callable[[], Optimizer], options: dict[str, Any], times: int
) -> None:
    texts = said("unknown", make(), **options)
    assert len(texts) == times
    assert all("state of Strange" in text for text in texts)


@pytest.mark.parametrize(
    ("codec", "merge", "times"),
    [("powersgd", "median", 1), ("powersgd", "rda", 0), ("int8", "median", 0)],
)
def test_that_a_merge_cannot_close_is_said_once(codec: str, merge: str, times: int) -> None:
    texts = said(
        "unclosed", SGD([nn.Parameter(torch.zeros(64, 64))], lr=0.1), codec=codec, merge=merge
    )
    assert len(texts) == times
    assert all("with merge='median' synchronize() cannot merge it" in text for text in texts)
