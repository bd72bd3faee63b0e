"""Scripts that call the library inside of torch's modes, or with other defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import SGD

from mend_optim import MendOptimizer, UsageError
from tests.support.learners import (
    LOCKSTEP,
    LOOPBACK,
    PATIENCE_S,
    cluster,
    descent,
    drive,
    parameters,
    same,
    settle,
    start,
    step,
    together,
    wave,
)

Mode = Callable[[], AbstractContextManager[Any]]


@contextmanager
def default_device() -> Iterator[None]:
    """As scripts set it for a GPU. It holds for the calling thread alone."""
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def narrow_dtype() -> Iterator[None]:
    """As scripts set it to make a model in it. It holds for all threads."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


MODES: dict[str, Mode] = {
    "inference": torch.inference_mode,
    "no gradients": torch.no_grad,
    "a device": lambda: torch.device("meta"),
    "the default device": default_device,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


def copies(optimizers: Sequence[MendOptimizer]) -> list[list[Tensor]]:
    return [[p.clone() for p in parameters(optimizer)] for optimizer in optimizers]


def life(
    mode: Mode, dtype: torch.dtype = torch.float32
) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
    """The weights of two learners after their first steps in lockstep, and those on which they end,
    after all calls that the face has, each of them in this mode. Then they load a checkpoint and go
    on."""
    inners = [descent(1.0, 2.0, lr=0.1) for _ in range(2)]
    for parameter in (p for inner in inners for p in parameters(inner)):
        parameter.data = parameter.data.to(dtype)
    with cluster(*inners, started=False, **LOCKSTEP) as optimizers:

        def both(call: Callable[[int, MendOptimizer], object]) -> None:
            def act(i: int) -> None:
                with mode():
                    call(i, optimizers[i])

            together(*(lambda i=i: act(i) for i in range(2)))

        def steps(i: int, optimizer: MendOptimizer) -> None:
            for s in range(3):
                optimizer.count_tokens(10)
                step(optimizer, wave(i, s))

        def go_on(i: int, optimizer: MendOptimizer) -> None:
            """They step on after a rest, so they may be a round apart: the one that steps first
            does not wait for one at rest. Each rests again by itself, or it would keep the other
            one waiting after its last step."""
            steps(i, optimizer)
            with optimizer.global_weights():
                saved[i] = optimizer.state_dict()
            assert optimizer.synchronize(PATIENCE_S)

        def resume(i: int, optimizer: MendOptimizer) -> None:
            """They join again, perhaps not at the same step: at rest, nobody is waited for."""
            steps(i, optimizer)
            optimizer.synchronize(PATIENCE_S)

        saved: dict[int, dict[str, Any]] = {}
        others = [Parameter(torch.full((2,), 0.5 + i, dtype=dtype)) for i in range(2)]
        both(lambda i, optimizer: optimizer.join())
        start(optimizers)
        both(steps)
        early = copies(optimizers)
        both(lambda i, optimizer: optimizer.add_param_group({"params": [others[i]]}))
        settle(optimizers)
        both(go_on)
        settle(optimizers)
        both(lambda i, optimizer: optimizer.reset_progress())
        drive(optimizers, 2, wave)  # what was made in the mode is used outside of it
        both(steps)
        assert min(o.status().rounds_adopted for o in optimizers) >= 11
        both(lambda i, optimizer: optimizer.finish(PATIENCE_S))
        ended = copies(optimizers)
        both(lambda i, optimizer: optimizer.load_state_dict(saved[i]))
        both(resume)
        return early, ended


@pytest.fixture(scope="module")
def plain() -> list[list[Tensor]]:
    """The weights after the first steps, outside of any mode."""
    return life(torch.enable_grad)[0]


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_of_the_script_changes_nothing(mode: str, plain: list[list[Tensor]]) -> None:
    early, ended = life(MODES[mode])
    assert all(same(a, b) for a, b in zip(plain, early, strict=True))
    assert same(*ended)
    assert all(p.isfinite().all() for p in ended[0])


@pytest.mark.parametrize("mode", ["inference", "a device"])
def test_nor_does_it_with_parameters_that_are_rounded(mode: str) -> None:
    """What their dtype rounds away is kept in memory of its own."""
    plain, _ = life(torch.enable_grad, torch.bfloat16)
    early, ended = life(MODES[mode], torch.bfloat16)
    assert all(same(a, b) for a, b in zip(plain, early, strict=True))
    assert same(*ended)


def test_a_model_may_replace_its_buffers_in_inference_mode() -> None:
    class Mean(Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = Parameter(torch.ones(3))
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            self.seen = 0.9 * self.seen + 0.1 * x.mean(0)
            return (x * self.weight).sum()

    models = [Mean() for _ in range(2)]
    inners = [SGD(model.parameters(), lr=0.1) for model in models]
    each = [{"buffers": model} for model in models]
    with cluster(*inners, each=each, sync_every=2) as optimizers:
        drive(optimizers, 4, wave)
        for model, optimizer in zip(models, optimizers, strict=True):
            before = model.weight.detach().clone()
            with torch.inference_mode(), optimizer.global_weights():
                model(torch.ones(2, 3))
            assert torch.equal(model.weight, before)
            assert torch.equal(model.seen, torch.zeros(3))


@pytest.mark.parametrize("options", [{"merge": "centered_clip"}, {"codec": "int4"}, {}], ids=str)
def test_a_narrow_default_dtype_changes_no_bit(options: dict[str, Any]) -> None:
    def run() -> tuple[list[Tensor], dict[str, Any]]:
        generator = torch.Generator().manual_seed(1)
        start = torch.randn(300, generator=generator, dtype=torch.float32)
        inners = [SGD([Parameter(start.clone())], lr=0.1) for _ in range(3)]
        chosen = {"sync_every": 1, "adopt_after": 0, **options}
        with cluster(*inners, **chosen) as optimizers:
            drive(optimizers, 4, lambda i, s: wave(i, s) / 3)
            return parameters(optimizers[0]), optimizers[0].state_dict()["mend"]

    plain, saved = run()
    with narrow_dtype():
        other, saved_there = run()
    assert same(plain, other)
    tensors = [
        {n: t for f in each["fragments"] for n, t in f["tensors"].items()}
        for each in (saved, saved_there)
    ]
    assert {n: t.dtype for n, t in tensors[0].items()} == {
        n: t.dtype for n, t in tensors[1].items()
    }


@pytest.mark.parametrize("alone", [True, False])
def test_gradients_that_were_made_in_inference_mode_can_be_stepped_on(alone: bool) -> None:
    """As evolution strategies make them."""
    optimizer = MendOptimizer(descent(1.0), **({} if alone else {"listen": LOOPBACK}))
    try:
        with torch.inference_mode():
            gradient = torch.ones(3)
        optimizer.param_groups[0]["params"][0].grad = gradient
        optimizer.count_tokens(7)
        optimizer.step()
        optimizer.count_tokens(7)
        optimizer.zero_grad()
        assert (optimizer.status().step, optimizer.status().tokens) == (1, 7)
    finally:
        optimizer.close()


def test_parameters_that_were_made_in_inference_mode_are_refused_with_peers() -> None:
    with torch.inference_mode():
        inner = descent(1.0)
        step(MendOptimizer(inner), 1.0)
    with pytest.raises(UsageError, match=r"parameter 0 .* made in torch\.inference_mode\(\)"):
        MendOptimizer(inner, listen=LOOPBACK)
