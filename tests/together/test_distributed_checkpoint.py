"""A learner's own entry in a checkpoint of torch.distributed.checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import SGD, Adam, Optimizer

from mend_optim import LearnerState, MendOptimizer, UsageError
from tests.support.learners import cluster, descent, drive, same, start

LOCKSTEP: dict[str, Any] = {"sync_every": 7, "adopt_after": 3}
# of torch: there is no process group, and need not be
pytestmark = pytest.mark.filterwarnings("ignore")


def network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Linear(3, 2)


def grad(i: int, s: int) -> float:
    return ((5 * i + 3 * s) % 7 - 3) / 2


def save(folder: Path, model: nn.Module, optimizer: MendOptimizer) -> None:
    weights, state = get_state_dict(model, optimizer)
    dcp.save(
        {"model": weights, "optimizer": state, "learner": LearnerState(optimizer)},
        checkpoint_id=folder,
    )


def load(folder: Path, model: nn.Module, optimizer: MendOptimizer) -> None:
    weights, state = get_state_dict(model, optimizer)
    dcp.load(
        {"model": weights, "optimizer": state, "learner": LearnerState(optimizer)},
        checkpoint_id=folder,
    )
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)


def outcome(models: list[nn.Module], optimizers: list[MendOptimizer]) -> list[Tensor]:
    weights = [p.detach().clone() for model in models for p in model.parameters()]
    for optimizer, model in zip(optimizers, models, strict=True):
        with optimizer.global_weights():
            weights += [p.detach().clone() for p in model.parameters()]
    return weights


def adams(models: list[nn.Module]) -> list[Optimizer]:
    return [Adam(model.parameters(), lr=0.1) for model in models]


def test_a_run_goes_on_to_the_bit(tmp_path: Path) -> None:
    models = [network(), network()]
    with cluster(*adams(models), **LOCKSTEP) as straight:
        drive(straight, 60, grad)
        expected = outcome(models, straight)
    models = [network(), network()]
    with cluster(*adams(models), **LOCKSTEP) as optimizers:
        drive(optimizers, 30, grad)
        for model, optimizer in zip(models, optimizers, strict=True):
            save(tmp_path / optimizer.name, model, optimizer)
    models = [nn.Linear(3, 2), nn.Linear(3, 2)]
    with cluster(*adams(models), started=False, **LOCKSTEP) as optimizers:
        for model, optimizer in zip(models, optimizers, strict=True):
            load(tmp_path / optimizer.name, model, optimizer)
        assert [o.status().step for o in optimizers] == [30, 30]
        start(optimizers)
        drive(optimizers, 30, lambda i, s: grad(i, s + 30))
        assert same(outcome(models, optimizers), expected)


@pytest.mark.parametrize(
    "state", [{}, {"mend": b""}, {"mend": b"no archive"}, {"mend": None}, {"mend": "text"}]
)
def test_what_is_damaged_is_refused(state: dict[str, Any]) -> None:
    optimizer = MendOptimizer(descent(1.0))
    with pytest.raises(
        UsageError, match=r"state_dict\[.mend.\] must be the bytes that state_dict\(\) gave"
    ):
        LearnerState(optimizer).load_state_dict(state)


def test_it_is_for_our_optimizers() -> None:
    with pytest.raises(UsageError, match="optimizer must be a MendOptimizer, got 'SGD'"):
        LearnerState(SGD([torch.zeros(1)]))  # type: ignore[arg-type]
