"""Alone, a MendOptimizer behaves like the optimizer it wraps with GradScaler and distributed
checkpoints. Their calls that don't train are no steps, and the tokens counted for them are
forgotten.

Prints the tables of results at the end of the run: `pytest -k contract`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Adam, AdamW, Optimizer, lr_scheduler

from mend_optim import MendOptimizer
from tests.contract.contract import (
    Wrap,
    agree,
    differences,
    fill_cell,
    held,
    options,
    seen,
    snapshot,
)

pytestmark = pytest.mark.usefixtures("no_environment")

Record = Callable[[str, Any], None]
Make = Callable[[Any], Optimizer]


# ── GradScaler ────────────────────────────────────────────────────────────────────────────────────

SCALED: dict[str, Make] = {
    "SGD": lambda p: SGD(p, lr=0.1, momentum=0.9),
    "SGD fused": lambda p: SGD(p, lr=0.1, momentum=0.9, fused=True),
    "Adam": lambda p: Adam(p, lr=0.1),
    "Adam fused": lambda p: Adam(p, lr=0.1, fused=True),
    "AdamW": lambda p: AdamW(p, lr=0.1),
    "AdamW fused": lambda p: AdamW(p, lr=0.1, fused=True),
}
OVERFLOWS = (2, 3, 6)  # the steps whose gradients are inf


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def loss_of(model: nn.Module, step: int) -> Tensor:
    draws = torch.Generator().manual_seed(step)
    x, y = torch.randn(5, 3, generator=draws), torch.randn(5, 2, generator=draws)
    return F.mse_loss(model(x), y) * (float("inf") if step in OVERFLOWS else 1.0)


def check_scaled(make: Make, clip: bool) -> None:
    """The same parameters after every step, the same scales, and the same state in the end."""

    def run(wrap: Wrap) -> Any:
        model = network()
        optimizer = wrap(make(model.parameters()))
        scaler, path = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2), []
        for step in range(9):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, step)).backward()
            if clip:
                scaler.unscale_(optimizer)
                clip_grad_norm_(held(optimizer), 0.1)
            result = scaler.step(optimizer)
            scaler.update()
            path.append((snapshot(held(optimizer)), scaler.get_scale(), result))
        assert differences(path[0], path[1]) != []
        return path, seen(optimizer)

    agree(run)


def check_skips(make: Make) -> None:
    """A skipped step, the first one or a later one, changes no parameter and counts neither a step
    nor a token."""
    model = network()
    optimizer = MendOptimizer(make(model.parameters()), tokens_per_step=5)
    scaler, counted = torch.amp.GradScaler("cpu", init_scale=1024.0), 0
    for step in (OVERFLOWS[0], 0, 1, *OVERFLOWS, 4):
        before = snapshot(held(optimizer))
        optimizer.zero_grad()
        scaler.scale(loss_of(model, step)).backward()
        scaler.step(optimizer)
        scaler.update()
        counted += step not in OVERFLOWS
        assert (differences(before, snapshot(held(optimizer))) == []) == (step in OVERFLOWS)
        assert (optimizer.status().step, optimizer.status().tokens) == (counted, 5 * counted)


SCALING: dict[str, Callable[[Make], None]] = {
    "steps": lambda make: check_scaled(make, clip=False),
    "unscale+clip": lambda make: check_scaled(make, clip=True),
    "skips": check_skips,
}


@pytest.mark.parametrize("check", SCALING)
@pytest.mark.parametrize("kind", SCALED)
def test_contract_scaler(kind: str, check: str, record_property: Record) -> None:
    fill_cell(record_property, "GradScaler", kind, check, lambda: SCALING[check](SCALED[kind]))


# z: zero_grad; c: count_tokens; b: backward. Each round ends with a step that is taken or skipped.
ORDERS = {
    "zero_grad, count, backward": "zcb",
    "count, zero_grad, backward": "czb",
    "zero_grad, backward, count": "zbc",
    "zero_grad, count, backward, twice": "zcbcb",
    "count, zero_grad, backward, twice": "czbcb",
}


def check_tokens(order: str, kind: str, to_none: bool, by_hand: bool) -> None:
    """Tokens counted for gradients that zero_grad() discards are not counted with the next ones,
    even if the loop itself leaves out a step."""
    model = network()
    optimizer = MendOptimizer(SCALED[kind](model.parameters()))
    scaler, expected, n = torch.amp.GradScaler("cpu", init_scale=1024.0), 0, 1
    for step in range(9):
        for action in order:
            if action == "z":
                optimizer.zero_grad(set_to_none=to_none)
            elif action == "b":
                scaler.scale(loss_of(model, step)).backward()
            else:
                optimizer.count_tokens(n)
                expected += n if step not in OVERFLOWS else 0
                n *= 2  # so that the sum tells which were counted
        if not by_hand or step not in OVERFLOWS:
            scaler.step(optimizer)
            scaler.update()
        assert optimizer.status().tokens == expected, step


@pytest.mark.parametrize("by_hand", [False, True], ids=["scaler", "by hand"])
@pytest.mark.parametrize("to_none", [True, False], ids=["to None", "to zero"])
@pytest.mark.parametrize("kind", ["SGD", "AdamW fused"])
@pytest.mark.parametrize("order", ORDERS)
def test_contract_tokens(
    order: str, kind: str, to_none: bool, by_hand: bool, record_property: Record
) -> None:
    row = f"{kind}/{order}/{'to None' if to_none else 'to zero'}"
    column = "by-hand" if by_hand else "scaler"
    fill_cell(
        record_property,
        "tokens",
        row,
        column,
        lambda: check_tokens(ORDERS[order], kind, to_none, by_hand),
    )


# ── distributed checkpoints ───────────────────────────────────────────────────────────────────────


def learned(wrap: Wrap, make: Make, steps: int) -> tuple[nn.Module, Any]:
    model = network()
    optimizer = wrap(make(model.parameters()))
    learn(model, optimizer, 10, 10 + steps)
    return model, optimizer


def learn(model: nn.Module, optimizer: Any, start: int, stop: int) -> None:
    for step in range(start, stop):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def counts(optimizer: Any) -> tuple[int, int]:
    return (
        (optimizer.status().step, optimizer.status().tokens)
        if isinstance(optimizer, MendOptimizer)
        else (0, 0)
    )


def check_get(make: Make, flat: bool) -> None:
    """Asking for the state of a fresh optimizer is no training."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

    def run(wrap: Wrap) -> Any:
        model, optimizer = learned(wrap, make, 0)
        before = snapshot(held(optimizer)), options(optimizer)
        state = get_optimizer_state_dict(
            model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=flat)
        )
        assert counts(optimizer) == (0, 0)
        assert differences(before, (snapshot(held(optimizer)), options(optimizer))) == []
        learn(model, optimizer, 10, 13)
        return snapshot(state), seen(optimizer)

    agree(run)


def check_get_and_set(make: Make, flat: bool) -> None:
    """A fresh optimizer that takes over the state has counted nothing, has that learning rate, and
    trains on."""
    from torch.distributed.checkpoint import state_dict as dcp

    def run(wrap: Wrap) -> Any:
        how = dcp.StateDictOptions(flatten_optimizer_state_dict=flat)
        model, optimizer = learned(wrap, make, 5)
        state = copy.deepcopy(dcp.get_optimizer_state_dict(model, optimizer, options=how))
        fresh_model, fresh = learned(wrap, make, 0)
        fresh_model.load_state_dict(model.state_dict())
        dcp.set_optimizer_state_dict(fresh_model, fresh, copy.deepcopy(state), options=how)
        assert counts(fresh) == (0, 0)
        assert [group["lr"] for group in fresh.param_groups] == [
            group["lr"] for group in optimizer.param_groups
        ]
        learn(fresh_model, fresh, 15, 18)
        learn(model, optimizer, 15, 18)
        assert differences(snapshot(held(fresh)), snapshot(held(optimizer))) == []
        return snapshot(state), seen(fresh)

    agree(run)


CHECKPOINTS: dict[str, Callable[[Make], None]] = {
    "get": lambda make: check_get(make, flat=False),
    "get-flat": lambda make: check_get(make, flat=True),
    "get+set": lambda make: check_get_and_set(make, flat=False),
    "get+set-flat": lambda make: check_get_and_set(make, flat=True),
}


@pytest.mark.skipif(
    not torch.distributed.is_available(), reason="this torch has no torch.distributed"
)
@pytest.mark.parametrize("check", CHECKPOINTS)
@pytest.mark.parametrize("kind", SCALED)
def test_contract_checkpoint(kind: str, check: str, record_property: Record) -> None:
    fill_cell(
        record_property,
        "distributed checkpoints",
        kind,
        check,
        lambda: CHECKPOINTS[check](SCALED[kind]),
    )


@pytest.mark.parametrize("kind", SCALED)
def test_contract_a_step_at_no_learning_rate_counts(kind: str) -> None:
    """A warm-up begins with such a step. Only the checkpoint's own step does not count."""
    model, optimizer = learned(MendOptimizer, SCALED[kind], 0)
    lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)
    learn(model, optimizer, 10, 11)
    assert optimizer.param_groups[0]["lr"] == 0
    assert counts(optimizer) == (1, 1)
