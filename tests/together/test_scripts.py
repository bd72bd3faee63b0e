"""Real training scripts with peers at work: parameters of all kinds, loops, helpers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn import functional as F
from torch.optim import LBFGS, SGD, AdamW, Optimizer, SparseAdam, lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from mend_optim import MendOptimizer, UsageError
from mend_optim.environment import JOINED_FILE
from tests.support.learners import (
    LOCKSTEP,
    LOOPBACK,
    PATIENCE_S,
    TIMING,
    cluster,
    descent,
    drive,
    parameters,
    read,
    same,
    settle,
    step,
    together,
    weights,
)
from tests.support.older_torch import needs_float8
from tests.support.two_steps import SAM


def anchor(optimizer: MendOptimizer) -> list[Tensor]:
    """The anchors as they are: flat, float32, one per fragment."""
    assert optimizer._learner is not None
    return optimizer._learner.anchors()


def agreement(make: Callable[[], list[Parameter]], **options: Any) -> list[Tensor]:
    """Two learners descend differently on such parameters, in lockstep, and agree on the result to
    the bit."""
    with cluster(SGD(make(), lr=1.0), SGD(make(), lr=1.0), **{**LOCKSTEP, **options}) as optimizers:
        drive(optimizers, 4, lambda i, s: float(i + s))
        settle(optimizers)
        assert same(*map(parameters, optimizers))
        return parameters(optimizers[0])


# ── parameters of every kind ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    assert same(agreement(lambda: weights(1.0, dtype=dtype)), weights(-7.0, dtype=dtype))


def test_complex_parameters() -> None:
    (merged,) = agreement(lambda: [Parameter(torch.full((2, 3), 1.0 + 2.0j))])
    assert torch.equal(merged, torch.full((2, 3), -7.0 + 2.0j))


def test_empty_parameters_even_as_a_fragment_of_their_own() -> None:
    full, empty = agreement(
        lambda: [*weights(1.0), Parameter(torch.empty(0, 3))], fragments=2, sync_every=2
    )
    assert (full[0], empty.shape) == (-7.0, (0, 3))


def test_parameters_that_are_not_contiguous() -> None:
    (merged,) = agreement(lambda: [Parameter(torch.arange(6.0).view(2, 3).t())])
    assert torch.equal(merged, torch.arange(6.0).view(2, 3).t() - 8.0)
    assert not merged.is_contiguous()


def test_a_parameter_that_is_given_twice_is_merged_once() -> None:
    """torch only warns of it, and applies its gradient twice."""
    with pytest.warns(UserWarning, match="duplicate parameters"):
        once, again = agreement(lambda: 2 * weights(1.0))
    assert same([once, again], weights(-15.0, -15.0))


def test_scalars() -> None:
    (merged,) = agreement(lambda: [Parameter(torch.tensor(1.0))])
    assert merged == -7.0


@pytest.mark.parametrize("adopt_after", [0, 1])
def test_merges_finer_than_bfloat16_add_up(adopt_after: int) -> None:
    """Below 256 a bfloat16 moves by 1. One learner falls by 2 and another, with three times its
    weight, stays: half a unit a round."""
    each = [{"tokens_per_step": 1}, {"tokens_per_step": 3}]
    pair = [descent(256.0, dtype=torch.bfloat16) for _ in range(2)]
    options = {"sync_every": 1, "adopt_after": adopt_after, "weighting": "tokens"}
    with cluster(*pair, each=each, **options) as optimizers:
        drive(optimizers, 12, lambda i, s: [2.0, 0.0][i])
        settle(optimizers)
        assert [anchor(o)[0][0].item() for o in optimizers] == [250.0, 250.0]
        assert [read(o) for o in optimizers] == [[250.0], [250.0]]


@needs_float8
def test_frozen_float8_weights_do_not_stop_training() -> None:
    def make() -> SGD:
        (small,) = weights(1.5, dtype=torch.float8_e4m3fn)
        return SGD([*weights(1.0), small.requires_grad_(False)], lr=1.0)

    with cluster(make(), make(), sync_every=1, adopt_after=1) as optimizers:
        for optimizer in optimizers:
            optimizer.param_groups[0]["params"][0].grad = torch.ones(3)
        together(*(lambda o=o: [o.step() for _ in range(4)] for o in optimizers))
        assert [p[0].item() for p in map(Tensor.float, parameters(optimizers[0]))] == [-3.0, 1.5]


def test_parameters_without_a_gradient_stay_and_agree() -> None:
    with cluster(descent(1.0, 5.0), descent(1.0, 5.0), **LOCKSTEP) as optimizers:
        drive(optimizers, 3, lambda i, s: None if s == 1 else 1.0)
        assert [read(o) for o in optimizers] == [[-1.0, 3.0]] * 2
        assert optimizers[0].status().tokens == 3


def test_several_groups_keep_their_own_settings() -> None:
    def make() -> SGD:
        return SGD([{"params": weights(1.0)}, {"params": weights(1.0), "lr": 3.0}], lr=1.0)

    with cluster(make(), make(), **LOCKSTEP) as optimizers:
        drive(optimizers, 2, lambda i, s: 1.0)
        assert [read(o) for o in optimizers] == [[-1.0, -5.0]] * 2
        assert [group["lr"] for group in optimizers[0].param_groups] == [1.0, 3.0]


class Tied(nn.Module):
    """Embedding and head share their weight, the middle is frozen, and a buffer counts."""

    def __init__(self, frozen: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(5, 4)
        self.middle = nn.Linear(4, 4).requires_grad_(False)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        nn.init.constant_(self.middle.bias, frozen)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.middle(self.embed(x))))
        return logits


def descend(model: nn.Module, optimizer: Optimizer, steps: int) -> None:
    for s in range(steps):
        optimizer.zero_grad()
        tokens = torch.tensor([0, 1, 2, 3, s % 5])
        F.cross_entropy(model(tokens), tokens).backward()
        optimizer.step()


def test_tied_parameters_are_merged_once_and_buffers_not_at_all() -> None:
    models = [Tied(0.0), Tied(0.0)]
    models[1].norm.num_batches_tracked.add_(10)
    with cluster(*(SGD(m.parameters(), lr=0.1) for m in models), **LOCKSTEP) as optimizers:
        together(
            *(lambda m=m, o=o: descend(m, o, 4) for m, o in zip(models, optimizers, strict=True))
        )
    assert same(list(models[0].parameters()), list(models[1].parameters()))
    assert models[0].head.weight is models[0].embed.weight
    assert [int(m.norm.num_batches_tracked) for m in models] == [4, 14]


def test_a_joiner_takes_over_frozen_parameters_too() -> None:
    joined = threading.Event()
    models = [Tied(1.0), Tied(2.0)]
    inners = [SGD(m.parameters(), lr=0.1) for m in models]

    def train() -> None:
        while not joined.is_set():
            descend(models[0], a, 1)

    def join() -> None:
        descend(models[1], b, 1)
        joined.set()

    with closing(MendOptimizer(inners[0], name="a", listen=LOOPBACK, timing=TIMING)) as a:
        descend(models[0], a, 2)
        with closing(
            MendOptimizer(inners[1], name="b", peers=[a.status().address], timing=TIMING)
        ) as b:
            together(train, join)
            assert torch.equal(models[1].middle.bias, torch.full((4,), 1.0))


# ── loops ─────────────────────────────────────────────────────────────────────────────────────────


def test_gradient_accumulation_counts_the_tokens_of_all_micro_batches() -> None:
    def loop(optimizer: MendOptimizer, micro_batches: int) -> None:
        (parameter,) = optimizer.param_groups[0]["params"]
        for _ in range(3):
            optimizer.zero_grad()
            for _ in range(micro_batches):
                parameter.sum().backward()
                optimizer.count_tokens(10)
            optimizer.step()

    with cluster(descent(0.0), descent(0.0), **LOCKSTEP) as (a, b):
        together(lambda: loop(a, 1), lambda: loop(b, 3))
        assert [m.tokens for m in a.status().rounds[-1].members] == [10, 30]
        assert [read(a), read(b)] == [[-7.5], [-7.5]]


def one_cycle(optimizer: Optimizer) -> list[float]:
    """The learning rates of ten scheduled steps."""
    scheduler, rates = lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=20), []
    for _ in range(10):
        step(optimizer, 0.1)
        scheduler.step()
        rates.append(float(optimizer.param_groups[0]["lr"]))
    return rates


def test_a_learner_that_mend_run_started_has_noted_that_it_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = tmp_path / "joined"
    monkeypatch.setenv(JOINED_FILE, str(noted))
    options: dict[str, Any] = {"name": "a", "listen": LOOPBACK, "timing": TIMING}
    with closing(MendOptimizer(descent(1.0), **options)) as a:
        assert not noted.exists()
        step(a, 1.0)
        assert noted.exists()


def test_schedulers_go_on_with_peers() -> None:
    bare, *pair = (SGD(weights(1.0), lr=1.0, momentum=0.9) for _ in range(3))
    with cluster(*pair, sync_every=3) as optimizers:
        assert together(*(lambda o=o: one_cycle(o) for o in optimizers)) == [one_cycle(bare)] * 2


def test_an_overflow_skipped_step_takes_part_in_no_round() -> None:
    def loop(optimizer: MendOptimizer, overflow: bool) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=100)
        (parameter,) = optimizer.param_groups[0]["params"]
        for s in range(3):
            optimizer.zero_grad()
            factor = float("inf") if overflow and s == 1 else 1.0
            scaler.scale(parameter.sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()

    with cluster(descent(1.0), descent(1.0), sync_every=4) as (a, b):
        together(lambda: loop(a, False), lambda: loop(b, True))
        assert [o.status().tokens for o in (a, b)] == [3, 2]
        settle([a, b])
        assert a.status().fragments[0].tokens == 5


def test_closures_with_peers() -> None:
    def loop(optimizer: MendOptimizer, target: float) -> list[float]:
        (parameter,) = optimizer.param_groups[0]["params"]

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = ((parameter - target) ** 2).sum()
            loss.backward()
            return loss

        return [float(optimizer.step(closure).detach()) for _ in range(6)]

    pair = [LBFGS(weights(0.0), lr=0.5, max_iter=2) for _ in range(2)]
    with cluster(*pair, **LOCKSTEP) as optimizers:
        losses = together(lambda: loop(optimizers[0], 1.0), lambda: loop(optimizers[1], 3.0))
        assert same(*map(parameters, optimizers))
        assert 1.0 < read(optimizers[0])[0] < 3.0
    assert [first for first, *_ in losses] == [3.0, 27.0]


NEWCOMERS: dict[str, Callable[[], Optimizer]] = {
    "SAM": lambda: SAM(weights(8.0), lr=1.0),
    "LBFGS": lambda: LBFGS(weights(8.0), max_iter=2),
}


class Newcomer:
    """A learner that finds a running cluster of other weights in its first step.

    Args:
        inner: its inner optimizer, with one parameter whose elements are 8.
    """

    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner
        (self.parameter,) = inner.param_groups[0]["params"]
        self.calls = 0

    def closure(self) -> Tensor:
        self.calls += 1
        self.inner.zero_grad()
        loss: Tensor = (self.parameter**2).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    def join(self, old: MendOptimizer, new: MendOptimizer) -> float:
        """The loss that its first step returns. `old` trains on until then."""
        joined = threading.Event()

        def step_on() -> None:
            while not joined.is_set():
                step(old, 1.0)

        def first_step() -> float:
            try:
                return float(new.step(self.closure).detach())
            finally:
                joined.set()

        _, loss = together(step_on, first_step)
        return loss


@pytest.mark.parametrize("kind", NEWCOMERS)
def test_a_step_that_takes_others_weights_calls_its_closure_only_for_the_loss(kind: str) -> None:
    """SAM needs the gradients that were there before the call, and those are of weights that are
    gone."""
    newcomer = Newcomer(NEWCOMERS[kind]())
    with cluster(descent(2.0, lr=0.0), newcomer.inner, started=False) as (old, new):
        step(old, 1.0)
        newcomer.closure()
        assert newcomer.join(old, new) == 12.0
        assert newcomer.calls == 2
        assert (read(new), newcomer.parameter.grad) == ([2.0], None)
        assert (new.status().step, new.status().tokens) == (0, 0)


@pytest.mark.filterwarnings("error")
def test_a_first_step_that_trains_nothing_is_one_to_a_scheduler_of_the_inner_optimizer() -> None:
    """Else torch would warn, falsely, that the first value of the rate is skipped."""
    newcomer = Newcomer(SGD(weights(8.0), lr=0.25))
    scheduler = lr_scheduler.StepLR(newcomer.inner, step_size=1, gamma=0.5)
    with cluster(descent(2.0, lr=0.0), newcomer.inner, started=False) as (old, new):
        step(old, 1.0)
        newcomer.closure()
        newcomer.join(old, new)
        assert new.status().step == 0
        scheduler.step()
        assert scheduler.get_last_lr() == [0.125]


def test_a_closure_that_computes_all_gradients_trains_the_weights_just_taken() -> None:
    """No gradient is of the weights that are gone."""
    newcomer = Newcomer(SGD(weights(8.0), lr=0.25))
    with cluster(descent(2.0, lr=0.0), newcomer.inner, started=False) as (old, new):
        step(old, 1.0)
        assert newcomer.join(old, new) == 12.0
        assert newcomer.calls == 1
        assert newcomer.parameter.tolist() == [1.0] * 3
        assert (new.status().step, new.status().tokens) == (1, 1)


def test_sparse_gradients() -> None:
    def loop(optimizer: MendOptimizer, table: nn.Embedding, row: int) -> None:
        for _ in range(3):
            optimizer.zero_grad()
            table(torch.tensor([row])).sum().backward()
            optimizer.step()

    tables = [nn.Embedding(4, 2, sparse=True, _weight=torch.zeros(4, 2)) for _ in range(2)]
    with cluster(
        *(SparseAdam(list(t.parameters()), lr=0.1) for t in tables), **LOCKSTEP
    ) as optimizers:
        together(*(lambda i=i: loop(optimizers[i], tables[i], i) for i in range(2)))
        assert torch.equal(tables[0].weight, tables[1].weight)
        assert [bool(row.any()) for row in tables[0].weight] == [True, True, False, False]


def test_state_of_the_inner_optimizer_stays_its_own() -> None:
    """Without averaging of moments; `test_moments.py` covers it with averaging."""
    with cluster(*(AdamW(weights(1.0)) for _ in range(2)), moments=None, **LOCKSTEP) as optimizers:
        drive(optimizers, 3, lambda i, s: float(i + 1))
        first, second = (o.inner.state[o.param_groups[0]["params"][0]] for o in optimizers)
        assert set(first) == {"step", "exp_avg", "exp_avg_sq"}
        assert not torch.equal(first["exp_avg"], second["exp_avg"])


def test_hooks_fire_once_a_step_with_peers() -> None:
    with cluster(descent(1.0), descent(1.0), **LOCKSTEP) as optimizers:
        calls: list[int] = []
        optimizers[0].register_step_post_hook(lambda *_: calls.append(len(calls)))
        drive(optimizers, 4, lambda i, s: 1.0)
        assert calls == [0, 1, 2, 3]


def test_optimizers_that_step_in_the_backward_pass_are_merged_by_one_beside_them() -> None:
    """It holds all parameters and has no rate. Their gradients are gone when it steps."""

    def train(carrier: MendOptimizer, gradient: float) -> None:
        (weight,) = carrier.param_groups[0]["params"]
        inner = SGD([weight], lr=1.0)

        def step(_: Tensor) -> None:
            inner.step()
            inner.zero_grad()

        weight.register_post_accumulate_grad_hook(step)
        for _ in range(4):
            (gradient * weight).sum().backward()
            carrier.step()

    with cluster(descent(1.0, lr=0.0), descent(1.0, lr=0.0), **LOCKSTEP) as optimizers:
        together(*(lambda i=i: train(optimizers[i], float(i)) for i in (0, 1)))
        settle(optimizers)
        assert [o.status().step for o in optimizers] == [4, 4]
        assert [read(o) for o in optimizers] == [[-1.0]] * 2


def test_two_trainers_with_two_optimizers_each() -> None:
    """As in adversarial training: two wrapped optimizers in one process, each with its own
    peers."""
    with (
        cluster(descent(1.0), descent(1.0), **LOCKSTEP) as generators,
        cluster(descent(9.0, 9.0), descent(9.0, 9.0), **LOCKSTEP) as critics,
    ):
        for _ in range(3):
            drive(generators, 1, lambda i, s: float(i))
            drive(critics, 1, lambda i, s: 1.0)
        assert [read(o) for o in generators] == [[-0.5]] * 2
        assert [read(o) for o in critics] == [[6.0, 6.0]] * 2


@pytest.mark.parametrize("change", ["shape", "number"])
def test_a_model_that_changed_is_refused(change: str) -> None:
    with cluster(descent(1.0), descent(1.0), sync_every=1) as (a, _):
        group = a.param_groups[0]
        if change == "shape":
            group["params"][0].data = torch.zeros(5)
        else:
            group["params"] = weights(1.0, 2.0)
        with pytest.raises(
            UsageError, match=r"must keep its .* while it trains with peers, got .*; .*close\(\)"
        ):
            step(a, 1.0)


def load(workers: int) -> Iterator[float]:
    """One epoch of batches of a data set, made by worker processes that are forked here."""
    data = TensorDataset(torch.arange(32.0))
    fork = {"multiprocessing_context": "fork", "timeout": PATIENCE_S}
    for (batch,) in DataLoader(data, batch_size=4, num_workers=workers, **fork):
        yield float(batch.mean())


def test_a_data_loader_that_forks_beside_live_rounds() -> None:
    def train_until(done: threading.Event) -> None:
        while not done.is_set():
            step(b, 1.0)

    def epochs(done: threading.Event) -> list[float]:
        try:
            return [step(a, 1.0) or value for _ in range(2) for value in load(workers=2)]
        finally:
            done.set()

    done = threading.Event()
    with cluster(descent(0.0), descent(0.0), sync_every=1) as (a, b):
        _, seen = together(lambda: train_until(done), lambda: epochs(done))
        settle([a, b])
        assert sorted(seen) == sorted([4 * i + 1.5 for i in range(8)] * 2)
        assert a.status().fragments[0].tokens == a.status().tokens + b.status().tokens
