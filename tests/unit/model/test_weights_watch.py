"""The watch over weights that change between steps: scripts that restore weights are noticed, and
those that clip, average or swap them are not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from mend_optim.model.weights_watch import SPAN, WeightsWatch
from tests.support.depth import many

Between = Callable[["Script"], None]


class Script:
    """A training loop. `between` runs after every step."""

    def __init__(self, kind: type[torch.optim.Optimizer] = torch.optim.Adam, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Linear(32, 2))
        self.optimizer = kind(self.model.parameters(), lr=0.01)  # type: ignore[call-arg]
        self.inputs = torch.randn(64, 8)
        self.targets = torch.randn(64, 2)
        self.watch = WeightsWatch(self.weights)
        self.step = 0
        self.saved: list[Tensor] = []
        self.found: list[int] = []
        self.save()

    @property
    def weights(self) -> list[Tensor]:
        return list(self.model.parameters())

    def save(self) -> None:
        self.saved = [w.detach().clone() for w in self.weights]

    @torch.no_grad()
    def load(self) -> None:
        for weight, saved in zip(self.weights, self.saved, strict=True):
            weight.copy_(saved)

    def run(self, steps: int, between: Between = lambda script: None) -> Script:
        for _ in range(steps):
            if self.watch.replaced():
                self.found.append(self.step)
            self.optimizer.zero_grad()
            nn.functional.mse_loss(self.model(self.inputs), self.targets).backward()
            self.optimizer.step()
            self.watch.stepped()
            self.step += 1
            between(self)
        return self


@torch.no_grad()
def clips(script: Script) -> None:
    for weight in script.weights:
        weight.clamp_(-0.05, 0.05)


@torch.no_grad()
def normalises(script: Script) -> None:
    for weight in script.weights:
        weight.div_(weight.norm())


def swaps(script: Script) -> None:
    """EMA weights, `global_weights()`, the train() and eval() of schedule-free optimizers."""
    own = [w.detach().clone() for w in script.weights]
    script.load()
    script.saved, own = own, script.saved
    script.load()
    script.saved = own


@torch.no_grad()
def looks_ahead(script: Script) -> None:
    if script.step % 10 == 0:
        for weight, slow in zip(script.weights, script.saved, strict=True):
            slow.lerp_(weight, 0.5)
            weight.copy_(slow)


@torch.no_grad()
def perturbs(script: Script) -> None:
    for weight in script.weights:
        weight.add_(torch.randn_like(weight) * 1e-4)


@pytest.mark.parametrize("seed", range(many(1, 3)))
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop])
@pytest.mark.parametrize("between", [clips, normalises, swaps, looks_ahead, perturbs])
def test_what_scripts_do_to_weights_is_no_jump(
    between: Between, kind: type[torch.optim.Optimizer], seed: int
) -> None:
    script = Script(kind, seed)
    assert script.run(30 * SPAN, between).found == []
    assert script.watch._touched > 0


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop])
def test_weights_of_long_ago_are_a_jump_and_it_is_told_once(
    kind: type[torch.optim.Optimizer],
) -> None:
    script = Script(kind).run(20 * SPAN + 3)
    script.load()
    assert script.run(20 * SPAN).found == [20 * SPAN + 3]
    script.load()
    assert script.run(5).found == [20 * SPAN + 3]


def test_weights_of_few_steps_ago_are_none() -> None:
    script = Script().run(20 * SPAN)
    script.save()
    script.run(8)
    script.load()
    assert script.run(3).found == []


def test_what_the_library_adds_is_neither_training_nor_a_jump() -> None:
    script = Script().run(20 * SPAN)
    with script.watch.moving():
        script.load()
    assert script.run(3).found == []
    script.save()
    with script.watch.moving(), torch.no_grad():
        for weight in script.weights:
            weight.add_(5.0)
    script.run(SPAN)
    script.load()
    assert script.run(1).found == [21 * SPAN + 3]


def test_a_jump_that_was_told_of_is_none() -> None:
    script = Script().run(20 * SPAN)
    script.load()
    script.watch.restarted()
    assert script.run(3 * SPAN).found == []


def test_at_the_end_weights_of_long_ago_are_a_jump_and_those_of_the_last_step_are_none() -> None:
    script = Script().run(20 * SPAN + 3)
    former = script.saved
    swaps(script)
    swaps(script)
    perturbs(script)
    assert not script.watch.replaced_at_end()
    script.saved = former
    script.load()
    assert script.watch.replaced_at_end()


def test_before_the_first_step_each_movement_of_the_weights_is_one_at_the_end() -> None:
    script = Script()
    with script.watch.moving(), torch.no_grad():
        for weight in script.weights:
            weight.mul_(1e-6)  # no sum of differences gives these to the bit
    swaps(script)
    swaps(script)
    assert not script.watch.replaced_at_end()
    perturbs(script)
    assert script.watch.replaced_at_end()
    script.watch.restarted()
    assert not script.watch.replaced_at_end()


def test_before_there_is_training_to_compare_with_nothing_is_a_jump() -> None:
    script = Script().run(SPAN - 1)
    script.load()
    assert script.run(SPAN).found == []


def test_weights_that_cannot_be_looked_at_are_left_out() -> None:
    odd = [
        torch.zeros(0, requires_grad=True),
        torch.zeros(4, 4).to_sparse().requires_grad_(),
        torch.zeros(4),
        torch.zeros(8)[::2].requires_grad_(),
    ]
    watch = WeightsWatch(odd)
    assert watch._tensors == []
    for _ in range(3 * SPAN):
        watch.stepped()
    assert not watch.replaced()


def test_any_layout_in_memory_will_do() -> None:
    image = torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last).requires_grad_()
    narrow = torch.randn(100, dtype=torch.bfloat16).requires_grad_()
    assert len(WeightsWatch([image, narrow])._tensors) == 2


@pytest.mark.parametrize(
    "put", [torch.zeros(2, 4), torch.zeros(0), torch.zeros(1).expand(64), torch.zeros(16)[::2]]
)
def test_a_parameter_that_got_other_memory_is_not_looked_at_any_more(put: Tensor) -> None:
    weights = [torch.nn.Parameter(torch.randn(size)) for size in (64, 64, 64)]
    watch = WeightsWatch(weights)
    for _ in range(SPAN - 1):
        watch.stepped()
    assert not watch.replaced()
    weights[0].data = put
    watch.stepped()
    assert not watch.replaced()  # it measures here
    with watch.moving():
        pass
    with torch.no_grad():
        weights[1].add_(100.0)
    watch.restarted()
    assert not watch.replaced()


def test_other_memory_of_the_same_form_is_looked_at() -> None:
    script = Script()
    script.run(SPAN)
    for weight in script.weights:
        weight.data = weight.data.clone()
    assert script.run(4 * SPAN).found == []
    assert len(script.watch._tensors) == 3
