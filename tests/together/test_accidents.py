"""One learner's weights are ruined at one step. Nobody else's model is, rounds go on, and the
learner goes on from the anchor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer

from mend_optim import Guard, MendOptimizer, PowerSGD
from mend_optim.worker.merge import MERGES
from mend_optim.worker.offer_sizes import KEPT
from tests.support.checkpoints import newcomer
from tests.support.depth import DEEP
from tests.support.learners import (
    PATIENCE_S,
    Watch,
    cluster,
    drive,
    parameters,
    same,
    settle,
    together,
    wave,
)

H = 4
#: Steps before the accident, and after it: whole periods.
BEFORE, AFTER = 6 * H, 8 * H
#: In lockstep, every period has one round. A round that waited for a learner in vain would take
#: more time than the test has.
LOCKSTEP: dict[str, Any] = {"sync_every": H, "adopt_after": 2, "grace": 2 * PATIENCE_S}

Ruin = Callable[[Tensor], object]
ACCIDENTS: dict[str, Ruin] = {
    "times 100": lambda weight: weight.mul_(100.0),
    "times 1e10": lambda weight: weight.mul_(1e10),
    "times 1e22": lambda weight: weight.mul_(1e22),
    "2 to the 100": lambda weight: weight[0, 3].fill_(2.0**100),
    "nan": lambda weight: weight[0, 3].fill_(float("nan")),
}


def momentum(model: nn.Module, lr: float = 0.02) -> Optimizer:
    return SGD(model.parameters(), lr=lr, momentum=0.9)


def adam(model: nn.Module) -> Optimizer:
    return AdamW(model.parameters(), lr=1e-3)


def network() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)
    )


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return F.mse_loss(model(x), x.sum(1, keepdim=True))


class Trainer:
    """One learner's training loop: a regression on batches of its own."""

    def __init__(self, model: nn.Sequential, optimizer: MendOptimizer, seed: int) -> None:
        self.model = model
        self.optimizer = optimizer
        self._generator = torch.Generator().manual_seed(seed)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            loss_of(self.model, torch.randn(16, 8, generator=self._generator)).backward()
            self.optimizer.step()

    def stand(self) -> None:
        """Take a step without gradients, which changes nothing."""
        self.optimizer.zero_grad()
        self.optimizer.step()

    @torch.no_grad()
    def ruin(self, accident: Ruin) -> None:
        accident(self.model[4].weight)

    @torch.no_grad()
    def loss(self) -> float:
        """The merged model's."""
        x = torch.randn(256, 8, generator=torch.Generator().manual_seed(99))
        with self.optimizer.global_weights():
            return loss_of(self.model, x).item()

    @property
    def is_finite(self) -> bool:
        return all(bool(torch.isfinite(p).all()) for p in parameters(self.optimizer))


@contextmanager
def trainers(
    make: Callable[[nn.Module], Optimizer] = momentum, *, count: int = 3, **options: Any
) -> Iterator[tuple[list[Trainer], list[Watch]]]:
    """Learners that have trained together for some rounds, and their events from then on."""
    models = [network() for _ in range(count)]
    watches = [Watch() for _ in models]
    each = [{"on_event": watch} for watch in watches]
    with cluster(*map(make, models), each=each, **{**LOCKSTEP, **options}) as made:
        found = [Trainer(m, o, i) for i, (m, o) in enumerate(zip(models, made, strict=True))]
        for _ in range(BEFORE // H - 1 if options.get("adopt_after", 0) is None else 0):
            train_to_the_end(found, H)
        train(found, BEFORE - 1)
        yield found, watches


def train(some: list[Trainer], steps: int) -> None:
    together(*(lambda t=t: t.train(steps) for t in some))


def train_to_the_end(some: list[Trainer], steps: int) -> None:
    """Train and rest, so that nobody waits for a learner whose boundary is not that of the
    others."""

    def loop(trainer: Trainer) -> None:
        trainer.train(steps)
        assert trainer.optimizer.synchronize(PATIENCE_S)

    together(*(lambda t=t: loop(t) for t in some))


def offer_ruined(some: list[Trainer], accident: Ruin) -> None:
    """The last learner offers its ruined weights, just as they are."""
    some[-1].ruin(accident)
    together(some[-1].stand, *(lambda t=t: t.train(1) for t in some[:-1]))


def check_account(some: list[Trainer], most: int = H + AFTER) -> None:
    """Every step is in the model, or the last learner counts it as dropped: at most so many. It
    trains on until its worker has healed it, which on a busy machine may be the end. So by default
    that is all since the round before the accident."""
    settle([trainer.optimizer for trainer in some])
    status = [trainer.optimizer.status() for trainer in some]
    assert {s.fragments[0].digest for s in status} == {status[0].fragments[0].digest}
    dropped = status[-1].dropped_tokens
    assert 0 < dropped <= most
    assert [s.dropped_tokens for s in status[:-1]] == [0] * (len(some) - 1)
    for fragment in status[0].fragments:
        assert sum(s.step for s in status) - dropped <= fragment.tokens


# Each accident befalls both optimizers and is both offered and trained on; DEEP=1 pairs all.
@pytest.mark.parametrize("accident", ACCIDENTS.values(), ids=ACCIDENTS)
@pytest.mark.parametrize(
    ("make", "trains_on"),
    [(momentum, False), (adam, True), *(((momentum, True), (adam, False)) if DEEP else ())],
)
def test_an_accident_stays_where_it_happens(
    accident: Ruin, make: Callable[[nn.Module], Optimizer], trains_on: bool
) -> None:
    with trainers(make, merge="mean") as (some, watches):
        if trains_on:
            train(some, 1)
            some[-1].ruin(accident)
        else:
            offer_ruined(some, accident)
        rounds = [t.optimizer.status().rounds_adopted for t in some]
        good = some[0].loss()
        train_to_the_end(some, AFTER)
        after = [t.optimizer.status().rounds_adopted for t in some]
        assert all(new - old >= AFTER // H - 2 for new, old in zip(after, rounds, strict=True))
        assert all(trainer.is_finite for trainer in some)
        assert all(trainer.loss() < 1.5 * good for trainer in some)
        healed = watches[-1].until("healed")
        assert healed[0].facts["dropped_tokens"] > 0
        assert not any(watch.of("healed") for watch in watches[:-1])
        check_account(some)


def test_without_a_guard_everybody_has_it() -> None:
    with trainers(merge="mean", guard=None) as (some, watches):
        good = some[0].loss()
        offer_ruined(some, ACCIDENTS["times 1e10"])
        # what learners make of such an anchor may exceed even the greatest size of all
        train(some, H - 1)
        assert not some[0].loss() < 1000 * good
        assert not any(watch.of("outsized") for watch in watches)


def test_without_a_guard_an_anchor_stays_finite() -> None:
    with trainers(merge="mean", guard=None) as (some, _):
        good = some[0].loss()
        offer_ruined(some, ACCIDENTS["2 to the 100"])
        train_to_the_end(some, AFTER)
        assert all(trainer.loss() < 1.5 * good for trainer in some)
        check_account(some)


@pytest.mark.parametrize(
    "options",
    [
        {"merge": "norm_preserving"},
        {"merge": "rda"},
        {"merge": "median"},
        {"merge": "trimmed_mean"},
        {"codec": "bf16"},
        {"codec": "int8", "merge": "mean"},
        {"codec": "int4"},
        {"codec": "sparse", "merge": "mean"},
        {"codec": PowerSGD(rank=2)},
        {"fragments": 2},
        {"fragments": 2, "adopt_after": 0},
        {"adopt_after": None},
    ],
    ids=str,
)
def test_the_guard_refuses_whatever_the_merge_and_the_codec_are(options: dict[str, Any]) -> None:
    with trainers(**options) as (some, watches):
        offer_ruined(some, ACCIDENTS["times 100"])
        train_to_the_end(some, 2 * H)
        told = watches[-1].until("outsized")[0]
        assert told.facts["refused"]
        assert told.facts["times"] > 8
        assert "own offer" in told.text
        heard = watches[0].until("outsized")[0]
        assert (heard.facts["peer"], "offer of c" in heard.text) == ("c", True)
        watches[-1].until("healed")
        train_to_the_end(some, AFTER)
        assert float(some[-1].model[4].weight.detach().abs().max()) < 2
        # Without `adopt_after`, nothing may have been merged since the last rest.
        is_free = options.get("adopt_after", 0) is None
        check_account(some, most=BEFORE + 2 * H if is_free else 6 * H)


@pytest.mark.parametrize("merge", MERGES)
def test_no_merge_stops_at_numbers_whose_squares_are_beyond_float32(merge: str) -> None:
    with trainers(merge=merge) as (some, watches):
        offer_ruined(some, ACCIDENTS["times 1e22"])
        train_to_the_end(some, 2 * H)
        assert watches[-1].until("outsized")[0].facts["refused"]
        watches[-1].until("healed")
        train_to_the_end(some, AFTER)
        check_account(some)


def test_the_guard_may_scale_an_offer_down() -> None:
    with trainers(merge="mean", guard=Guard(clip=True)) as (some, watches):
        good = some[0].loss()
        offer_ruined(some, ACCIDENTS["times 1e10"])
        (told,) = watches[-1].until("outsized")
        assert not told.facts["refused"]
        assert "scaled down" in told.text
        watches[-1].until("healed")
        train_to_the_end(some, AFTER)
        assert all(trainer.loss() < 1.5 * good for trainer in some)
        assert [t.optimizer.status().outsized_offers for t in some] == [1, 1, 1]


def test_a_higher_learning_rate_of_all_is_no_accident() -> None:
    with trainers(lambda model: momentum(model, lr=1e-4)) as (some, watches):
        before = some[0].loss()
        for trainer in some:
            for group in trainer.optimizer.param_groups:
                group["lr"] = 1e-2
        train_to_the_end(some, AFTER)
        assert some[0].loss() < before / 2
        assert not any(watch.of("outsized") for watch in watches)
        assert [t.optimizer.status().dropped_tokens for t in some] == [0, 0, 0]


def test_a_newcomer_takes_the_sizes_of_a_model_of_one_number() -> None:
    """They are more bytes than the model itself."""

    def one() -> Optimizer:
        return SGD([Parameter(torch.ones(1))], lr=1.0)

    every: dict[str, Any] = {"sync_every": 1, "adopt_after": 0}
    with cluster(one(), one(), **every) as made:
        drive(made, KEPT, wave)
        settle(made)
        with closing(newcomer(one(), "c", *made, **every)) as late:
            late.join()
            assert same(parameters(late), parameters(made[0]))
