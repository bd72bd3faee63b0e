"""Without peers a MendOptimizer is its inner optimizer, bit for bit; and it is a torch optimizer in
every respect."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop, lr_scheduler
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode

from mend_optim import MendOptimizer
from mend_optim.runtime.network_loop import NetworkLoop
from tests.support.learners import descent, read, same, step, weights

pytestmark = pytest.mark.usefixtures("no_environment")

Make = Callable[[Any], Optimizer]

INNER: dict[str, Make] = {
    "SGD": lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "SGD foreach": lambda p: SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "SGD fused": lambda p: SGD(p, lr=0.1, momentum=0.9, fused=True),
    "Adam": lambda p: Adam(p, lr=0.01, amsgrad=True),
    "Adam fused": lambda p: Adam(p, lr=0.01, fused=True),
    "AdamW": lambda p: AdamW(p, lr=0.01, weight_decay=0.1),
    "AdamW foreach": lambda p: AdamW(p, lr=0.01, foreach=True),
    "AdamW fused": lambda p: AdamW(p, lr=0.01, fused=True),
    "RMSprop": lambda p: RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "Adagrad": lambda p: Adagrad(p, lr=0.1),
    "Adagrad fused": lambda p: Adagrad(p, lr=0.1, fused=True),
}

SCHEDULERS: dict[str, Callable[[Optimizer], lr_scheduler.LRScheduler]] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, step_size=2, gamma=0.5),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, start_factor=0.1, total_iters=5),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, max_lr=1.0, total_steps=12),
}


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))


def batches(count: int) -> Iterator[tuple[Tensor, Tensor]]:
    draws = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.randn(4, 5, generator=draws), torch.randn(4, 2, generator=draws)


def train(
    model: nn.Module, optimizer: Optimizer, steps: int, after: Callable[[], None] = lambda: None
) -> None:
    for x, y in batches(steps):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        after()


def tensors(tree: Any) -> list[Tensor]:
    """All values of a state_dict, in order; numbers as tensors."""
    if isinstance(tree, dict):
        return [t for key in sorted(tree, key=str) for t in tensors(tree[key])]
    if isinstance(tree, list | tuple):
        return [t for value in tree for t in tensors(value)]
    return [torch.as_tensor(tree)] if isinstance(tree, Tensor | int | float) else []


def pair(make: Make) -> tuple[nn.Module, Optimizer, nn.Module, MendOptimizer]:
    """The same model twice: with the bare optimizer, and with the wrapped one."""
    bare, wrapped = network(), network()
    return bare, make(bare.parameters()), wrapped, MendOptimizer(make(wrapped.parameters()))


def agree(bare: nn.Module, plain: Optimizer, wrapped: nn.Module, optimizer: Optimizer) -> bool:
    weights_agree = same(list(bare.parameters()), list(wrapped.parameters()))
    states = [{k: v for k, v in o.state_dict().items() if k != "mend"} for o in (plain, optimizer)]
    return weights_agree and same(*map(tensors, states))


# ── alone ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", INNER)
def test_alone_is_identity(kind: str) -> None:
    bare, plain, wrapped, optimizer = pair(INNER[kind])
    train(bare, plain, 25)
    train(wrapped, optimizer, 25)
    assert agree(bare, plain, wrapped, optimizer)
    # and something was learned
    assert not same(list(wrapped.parameters()), list(network().parameters()))


def test_alone_is_identity_with_a_closure() -> None:
    bare, plain, wrapped, optimizer = pair(
        lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=4, history_size=3)
    )
    for x, y in batches(20):
        assert torch.equal(closed(bare, plain, x, y), closed(wrapped, optimizer, x, y))
    assert agree(bare, plain, wrapped, optimizer)


def closed(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
    """One step that computes its own gradients; what `step` returned."""

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    return optimizer.step(closure)  # type: ignore[arg-type,return-value]


def test_alone_starts_no_thread_and_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        NetworkLoop, "__init__", lambda self: pytest.fail("a network loop was started")
    )
    before = threading.enumerate()
    optimizer = MendOptimizer(descent(1.0))
    step(optimizer, 1.0)
    assert optimizer.synchronize(0.0)
    assert threading.enumerate() == before


class Operations(TorchDispatchMode):
    """Lists everything that is done with tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.done.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", INNER)
def test_alone_no_tensor_is_copied_or_touched_but_by_the_inner_optimizer(kind: str) -> None:
    done = []
    bare, plain, wrapped, optimizer = pair(INNER[kind])
    for model, each in ((bare, plain), (wrapped, optimizer)):
        with Operations() as operations:
            train(model, each, 3)
        done.append(operations.done)
    assert done[0] == done[1] != []


@pytest.mark.parametrize(
    "make", [lambda p: SGD(p, lr=0.1), lambda p: torch.optim.LBFGS(p, max_iter=3)]
)
def test_alone_a_closure_is_called_as_often_as_the_inner_optimizer_calls_it(make: Make) -> None:
    calls = []
    for wrap in (lambda inner: inner, MendOptimizer):
        model, made = network(), 0
        optimizer = wrap(make(model.parameters()))

        def closure(model: nn.Module = model, optimizer: Optimizer = optimizer) -> Tensor:
            nonlocal made
            made += 1
            optimizer.zero_grad()
            loss = model(torch.ones(1, 5)).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        calls.append(made)
    assert calls[0] == calls[1] > 0


def test_alone_counts_steps_and_tokens() -> None:
    optimizer = MendOptimizer(descent(1.0))
    optimizer.count_tokens(30)
    optimizer.count_tokens(12)
    step(optimizer, 1.0)
    step(optimizer, 1.0)  # nothing said: 1
    status = optimizer.status()
    assert (status.step, status.tokens, status.address, status.fragments) == (2, 43, "", ())


def test_tokens_per_step_is_what_a_step_weighs() -> None:
    optimizer = MendOptimizer(descent(1.0), tokens_per_step=512)
    step(optimizer, 1.0)
    assert optimizer.status().tokens == 512


def test_alone_the_weights_are_the_global_weights() -> None:
    optimizer = MendOptimizer(descent(3.0))
    with optimizer.global_weights():
        assert read(optimizer) == [3.0]


def test_alone_can_be_closed_and_go_on() -> None:
    with MendOptimizer(descent(3.0)) as optimizer:
        optimizer.close()
    step(optimizer, 1.0)
    assert read(optimizer) == [2.0]


# ── a torch optimizer ─────────────────────────────────────────────────────────────────────────────


def test_it_is_a_torch_optimizer_over_the_real_groups() -> None:
    inner = AdamW(weights(1.0, 2.0))
    optimizer = MendOptimizer(inner)
    assert isinstance(optimizer, Optimizer)
    assert optimizer.param_groups is inner.param_groups
    assert optimizer.state is inner.state
    assert optimizer.defaults is inner.defaults


def test_the_groups_stay_the_real_ones_after_loading() -> None:
    inner = AdamW(weights(1.0))
    optimizer = MendOptimizer(inner)
    step(optimizer, 1.0)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert optimizer.param_groups is inner.param_groups
    assert optimizer.state is inner.state


@pytest.mark.parametrize("to_none", [True, False])
def test_zero_grad_both_ways(to_none: bool) -> None:
    optimizer = MendOptimizer(descent(1.0))
    step(optimizer, 1.0)
    optimizer.zero_grad(set_to_none=to_none)
    grad = optimizer.param_groups[0]["params"][0].grad
    assert grad is None if to_none else torch.equal(grad, torch.zeros(3))


def register_on_wrapper(o: MendOptimizer, note: Callable[..., None]) -> list[Any]:
    return [o.register_step_pre_hook(note), o.register_step_post_hook(note)]


def register_on_inner(o: MendOptimizer, note: Callable[..., None]) -> list[Any]:
    return [o.inner.register_step_pre_hook(note), o.inner.register_step_post_hook(note)]


def register_globally(o: MendOptimizer, note: Callable[..., None]) -> list[Any]:
    return [register_optimizer_step_pre_hook(note), register_optimizer_step_post_hook(note)]


@pytest.mark.parametrize("register", [register_on_wrapper, register_on_inner, register_globally])
def test_step_hooks_fire_once(register: Callable[..., list[Any]]) -> None:
    optimizer, calls = MendOptimizer(descent(1.0)), []
    handles = register(optimizer, lambda *_: calls.append(read(optimizer)[0]))
    step(optimizer, 1.0)
    for handle in handles:
        handle.remove()
    step(optimizer, 1.0)
    assert calls == [1.0, 0.0]  # before and after the first step, none at the second


def test_hooks_of_state_dict_fire_once() -> None:
    optimizer, calls = MendOptimizer(descent(1.0)), []
    optimizer.register_state_dict_pre_hook(lambda *_: calls.append("save"))
    optimizer.register_load_state_dict_post_hook(lambda *_: calls.append("load"))
    optimizer.load_state_dict(optimizer.state_dict())
    assert calls == ["save", "load"]


@pytest.mark.parametrize("kind", SCHEDULERS)
@pytest.mark.parametrize("reload", [False, True])
def test_schedulers_act_on_the_real_groups(kind: str, reload: bool) -> None:
    rates = []
    for wrap in (lambda inner: inner, MendOptimizer):
        optimizer = wrap(SGD(weights(1.0), lr=1.0, momentum=0.9))
        scheduler = SCHEDULERS[kind](optimizer)
        if reload:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        rates.append([])
        for _ in range(6):
            step(optimizer, 1.0)
            scheduler.step()
            rates[-1].append((optimizer.param_groups[0]["lr"], read(optimizer)))
    assert rates[0] == rates[1]
    assert len({lr for lr, _ in rates[1]}) > 1


@pytest.mark.parametrize("kind", ["SGD", "AdamW", "AdamW fused"])
def test_a_grad_scaler_scales_and_skips(kind: str) -> None:
    optimizer = MendOptimizer(INNER[kind](weights(1.0)))
    parameter = optimizer.param_groups[0]["params"][0]
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for scale, moves in ((1.0, True), (float("inf"), False), (1.0, True)):
        before, counted = parameter.detach().clone(), optimizer.status().step
        optimizer.zero_grad()
        scaler.scale(parameter.sum() * scale).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(parameter, before) != moves
        assert optimizer.status().step == counted + moves


def test_a_scaled_step_is_the_bare_optimizers() -> None:
    bare, plain, wrapped, optimizer = pair(INNER["AdamW fused"])
    for model, opt in ((bare, plain), (wrapped, optimizer)):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for x, y in batches(5):
            opt.zero_grad()
            scaler.scale(F.mse_loss(model(x), y)).backward()
            scaler.step(opt)
            scaler.update()
    assert agree(bare, plain, wrapped, optimizer)


@pytest.mark.parametrize("kind", ["SGD", "AdamW", "RMSprop"])
def test_state_loads_into_the_bare_optimizer_and_back(kind: str) -> None:
    bare, plain, wrapped, optimizer = pair(INNER[kind])
    train(wrapped, optimizer, 7)
    bare.load_state_dict(wrapped.state_dict())
    plain.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(bare, plain, 5)
    wrapped.load_state_dict(bare.state_dict())
    optimizer.load_state_dict(copy.deepcopy(plain.state_dict()))
    train(bare, plain, 5)
    train(wrapped, optimizer, 5)
    assert agree(bare, plain, wrapped, optimizer)


def test_a_group_can_be_added() -> None:
    optimizer = MendOptimizer(descent(1.0))
    optimizer.add_param_group({"params": weights(5.0), "lr": 2.0})
    step(optimizer, 1.0)
    assert read(optimizer) == [0.0, 3.0]


def test_it_says_what_it_is() -> None:
    inner = descent(1.0)
    assert repr(MendOptimizer(inner)) == repr(inner)
