"""The callback of Lightning's Trainer, alone: what it refuses, and several optimizers. Two learners
with it are in `clients/test_integrations.py`."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader

from mend_optim import MendOptimizer, UsageError

pytest.importorskip("lightning", reason="pip install '.[lightning]'")

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging, StochasticWeightAveraging
from lightning.pytorch.loggers import Logger

from mend_optim.integrations.lightning import MendCallback

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Tracker(Logger):
    """Stands for a tracker."""

    name, version = "tracker", 0

    def __init__(self) -> None:
        self.lines: list[tuple[dict[str, float], int]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        assert step is not None
        self.lines.append((metrics, step))

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        return


class Pair(LightningModule):
    """Two nets, each with an optimizer of its own, of which one steps at every other batch."""

    def __init__(self, *optimizers: str) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.nets = nn.ModuleList(nn.Linear(3, 1) for _ in optimizers)
        self.names = optimizers

    def training_step(self, batch: dict[str, Tensor], index: int) -> None:
        made = self.optimizers()
        for place, optimizer in enumerate(made if isinstance(made, list) else [made]):
            if index % (place + 1) == place:
                optimizer.zero_grad()
                self.manual_backward(self.nets[place](batch["input_ids"]).square().mean())
                optimizer.step()

    def configure_optimizers(self) -> list[Optimizer]:
        plain = [SGD(net.parameters(), lr=0.01) for net in self.nets]
        pairs = zip(plain, self.names, strict=True)
        return [MendOptimizer(each, name=name) if name else each for each, name in pairs]


class Fails(LightningModule):
    """A net whose validation fails."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3, 1)

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        return self.net(batch["input_ids"]).square().mean()

    def validation_step(self, batch: dict[str, Tensor], index: int) -> None:
        raise MemoryError("in validation")

    def configure_optimizers(self) -> Optimizer:
        return MendOptimizer(SGD(self.parameters(), lr=0.01), name="a")


BATCHES = DataLoader([{"input_ids": torch.ones(2, 3)} for _ in range(6)], batch_size=None)


def trainer_of(callback: Callback | list[Callback], folder: Path, **options: Any) -> Trainer:
    told = {"logger": False, "max_epochs": 1, **options}
    return Trainer(
        accelerator="cpu",
        callbacks=callback,
        default_root_dir=folder,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **told,
    )


def test_each_optimizer_counts_the_tokens_since_its_last_step(tmp_path: Path) -> None:
    tracker, callback = Tracker(), MendCallback()
    trainer = trainer_of(callback, tmp_path, logger=[tracker], log_every_n_steps=3)
    trainer.fit(Pair("g", "d"), BATCHES)
    g, d = (each.status() for each in trainer.optimizers)
    assert (g.step, g.tokens) == (6, 6 * 6)
    assert (d.step, d.tokens) == (3, 6 * 6)
    assert {name: bool(finish) for name, finish in callback.finished.items()} == {
        "g": True,
        "d": True,
    }
    figures = [(line, step) for line, step in tracker.lines if "mend/g/steps" in line]
    assert [step for _, step in figures] == [3, 6, 9]
    assert figures[-1][0]["mend/g/steps"] == 6
    assert figures[-1][0]["mend/d/steps"] == 3


def test_the_users_own_way_of_counting(tmp_path: Path) -> None:
    trainer = trainer_of(MendCallback(count=lambda batch: 7), tmp_path)
    trainer.fit(Pair("a"), BATCHES)
    assert trainer.optimizers[0].status().tokens == 6 * 7


@pytest.mark.parametrize("tokens", [-1, 2.0, None, True, torch.tensor(1.5)])
def test_a_count_that_is_none_is_refused(tmp_path: Path, tokens: Any) -> None:
    trainer = trainer_of(MendCallback(count=lambda batch: tokens), tmp_path)
    with pytest.raises(UsageError, match=r"count must be a function that returns an int >= 0, got"):
        trainer.fit(Pair("a"), BATCHES)


def test_a_count_may_be_a_tensor(tmp_path: Path) -> None:
    trainer = trainer_of(MendCallback(count=lambda batch: torch.tensor(3)), tmp_path)
    trainer.fit(Pair("a"), BATCHES)
    assert trainer.optimizers[0].status().tokens == 6 * 3


def test_one_of_the_optimizers_may_be_a_plain_one(tmp_path: Path) -> None:
    callback = MendCallback()
    trainer_of(callback, tmp_path).fit(Pair("", "d"), BATCHES)
    assert list(callback.finished) == ["d"]


def test_it_may_leave_the_end_to_the_user(tmp_path: Path) -> None:
    callback = MendCallback(finish=False)
    trainer_of(callback, tmp_path).fit(Pair("a"), BATCHES)
    assert callback.finished == {}


def test_a_validation_that_fails_puts_the_own_weights_back(tmp_path: Path) -> None:
    trainer = trainer_of(MendCallback(), tmp_path, num_sanity_val_steps=0)
    with pytest.raises(MemoryError, match="in validation"):
        trainer.fit(Fails(), BATCHES, BATCHES)
    trainer.optimizers[0].synchronize()  # would be refused inside global_weights()


def test_without_an_optimizer_of_ours_it_refuses(tmp_path: Path) -> None:
    trainer = trainer_of(MendCallback(), tmp_path)
    with pytest.raises(UsageError, match=r"optimizers must be one MendOptimizer or more, got"):
        trainer.fit(Pair(""), BATCHES)


class Averages(EMAWeightAveraging):
    """A user's own."""


class AveragesLate(StochasticWeightAveraging):
    """Another user's."""

    def __init__(self) -> None:
        super().__init__(swa_lrs=0.01)


@pytest.mark.parametrize("kind", [Averages, AveragesLate])
def test_it_comes_before_a_callback_that_averages_the_weights(
    kind: type[Averages | AveragesLate], tmp_path: Path
) -> None:
    words = r"callbacks must be with MendCallback before (\w+), got \['\1', 'MendCallback"
    for finish in (True, False):
        callback = MendCallback(finish=finish)
        with pytest.raises(UsageError, match=words) if finish else nullcontext():
            trainer_of([kind(), callback], tmp_path).fit(Pair("a"), BATCHES)
        right = trainer_of([callback, kind()], tmp_path)
        right.fit(Pair("a"), BATCHES)
        assert bool(callback.finished) is finish


def test_another_callback_may_pass_the_events_on(tmp_path: Path) -> None:
    class PassesOn(Callback):
        def on_fit_start(self, *of: Any) -> None:
            callback.on_fit_start(*of)

        def on_train_end(self, *of: Any) -> None:
            callback.on_train_end(*of)

    callback = MendCallback()
    trainer_of(PassesOn(), tmp_path).fit(Pair("a"), BATCHES)
    assert callback.finished["a"]


@pytest.mark.parametrize("wrong", [{"timeout": -1}, {"timeout": "long"}, {"count": 3}])
def test_wrong_arguments_are_refused_at_once(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(UsageError, match=f"{name} must be"):
        MendCallback(**wrong)
