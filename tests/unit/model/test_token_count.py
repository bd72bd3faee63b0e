"""The count of the coming step's tokens, beside an obvious twin that knows which count was meant
for which step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import Parameter
from torch.optim import SGD

from mend_optim import MendOptimizer
from mend_optim.model.token_count import TokenCount, any_gradient, is_phantom, stamp

DEFAULT = 1000


@dataclass
class Loop:
    """A training loop: its calls, and its gradients. `stamp` changes whenever the gradients do, and
    recurs after they were cleared, as addresses do."""

    count: TokenCount = field(default_factory=TokenCount)
    stamp: int = 0
    gradients: bool = False

    def clear(self) -> None:
        self.count.cleared(self.gradients, self.stamp)
        self.stamp, self.gradients = 0, False

    def compute(self, n: int = 0) -> None:
        self.stamp, self.gradients = self.stamp + 1, True

    def say(self, n: int) -> None:
        self.count.add(n, self.stamp)


# c: zero_grad, n: count_tokens, b: backward; then the step, taken or left out. "nb" repeats per
# micro-batch.
ORDERS = ["cnb", "cbn", "ncb", "nbc", "bnc"]
LATE_CLEAR = {"nbc", "bnc"}  # they clear after the step
rounds = st.lists(
    st.tuples(st.lists(st.integers(1, 50), min_size=1, max_size=3), st.booleans()), max_size=12
)


def play(order: str, loop: Loop, micro: list[int], taken: bool) -> int | None:
    """One turn of a loop of that order. The tokens its step took, if it was taken."""
    took: int | None = None
    before = order[:-1] if order in LATE_CLEAR else order
    repeated = [letter for letter in before if letter != "c"]
    if order == "ncb":  # counts all, clears, computes
        for n in micro:
            loop.say(n)
        loop.clear()
        for _ in micro:
            loop.compute()
    else:
        if before.startswith("c"):
            loop.clear()
        for n in micro:
            for letter in repeated:
                loop.say(n) if letter == "n" else loop.compute()
    if taken:
        took = loop.count.take(DEFAULT)
    if order in LATE_CLEAR:
        loop.clear()
    return took


@pytest.mark.parametrize("order", ORDERS)
@given(rounds)
def test_a_step_takes_what_was_counted_for_it_and_for_no_other(
    order: str, rounds: list[tuple[list[int], bool]]
) -> None:
    """Whatever steps are left out, in every order in which loops are written."""
    loop = Loop()
    for micro, taken in rounds:
        assert play(order, loop, micro, taken) == (sum(micro) if taken else None)


@given(st.lists(st.integers(0, 50), max_size=5))
def test_counts_add_up_and_a_step_takes_them_all(counts: list[int]) -> None:
    count = TokenCount()
    for n in counts:
        count.add(n, 0)
    assert count.take(DEFAULT) == (sum(counts) or DEFAULT)
    assert count.take(DEFAULT) == DEFAULT


@given(rounds)
def test_what_nobody_counts_is_the_default(rounds: list[tuple[list[int], bool]]) -> None:
    loop = Loop()
    for micro, taken in rounds:
        loop.clear()
        for _ in micro:
            loop.compute()
        assert not taken or loop.count.take(DEFAULT) == DEFAULT


def test_clearing_at_the_end_of_a_taken_step_keeps_nothing_and_loses_nothing() -> None:
    loop = Loop()
    loop.compute()
    loop.say(7)
    assert loop.count.take(DEFAULT) == 7
    loop.clear()
    loop.say(5)
    loop.compute()
    assert loop.count.take(DEFAULT) == 5


def test_clearing_twice_is_clearing_once() -> None:
    loop = Loop()
    loop.say(5)
    loop.clear()
    loop.clear()
    loop.compute()
    assert loop.count.take(DEFAULT) == 5


def test_gradients_that_no_step_used_take_their_tokens_with_them() -> None:
    loop = Loop()
    loop.clear()
    loop.say(100)
    loop.compute()
    loop.clear()
    loop.say(3)
    loop.compute()
    assert loop.count.take(DEFAULT) == 3


def test_gradients_that_are_cleared_before_the_first_step_belong_to_nothing() -> None:
    """A warm-up: backward and zero_grad before anything was counted."""
    loop = Loop()
    loop.compute()
    loop.clear()
    loop.say(3)
    loop.compute()
    assert loop.count.take(DEFAULT) == 3


# ── gradients ─────────────────────────────────────────────────────────────────────────────────────


def counted_by(closure: Callable[[MendOptimizer, int], None], outside: int) -> int:
    """The tokens of two steps of an optimizer that calls its closure several times in each."""
    weights = Parameter(torch.arange(1.0, 5.0))
    optimizer = MendOptimizer(torch.optim.LBFGS([weights], lr=0.1, max_iter=4))
    calls = 0

    def evaluate() -> float:
        nonlocal calls
        calls += 1
        closure(optimizer, calls)
        loss = (weights**4).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    for _ in range(2):
        if outside:
            optimizer.count_tokens(outside)
        optimizer.step(evaluate)
    assert calls == 8
    return optimizer.status().tokens


def test_tokens_of_a_step_stay_while_its_closure_clears_gradients_again_and_again() -> None:
    def clears(optimizer: MendOptimizer, call: int) -> None:
        optimizer.zero_grad()

    assert counted_by(clears, outside=32) == 64


def test_tokens_that_a_closure_counts_each_time_are_those_of_one_time() -> None:
    def counts(optimizer: MendOptimizer, call: int) -> None:
        optimizer.zero_grad()
        optimizer.count_tokens(32)

    assert counted_by(counts, outside=0) == 64


def test_tokens_of_a_step_whose_closure_failed_go_with_its_gradients() -> None:
    weights = Parameter(torch.ones(2))
    optimizer = MendOptimizer(torch.optim.SGD([weights], lr=0.1))
    optimizer.count_tokens(32)

    def evaluate() -> float:
        weights.grad = torch.ones(2)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        optimizer.step(evaluate)
    optimizer.zero_grad()
    weights.grad = torch.ones(2)
    optimizer.step()
    assert optimizer.status().tokens == 1


def with_gradient(value: float | None) -> Parameter:
    parameter = Parameter(torch.zeros(2))
    parameter.grad = None if value is None else torch.full((2,), value)
    return parameter


def test_zeros_are_no_gradient() -> None:
    assert not any_gradient([])
    assert not any_gradient([with_gradient(None), with_gradient(0.0)])
    assert any_gradient([with_gradient(None), with_gradient(1.0)])


def test_a_stamp_changes_whenever_gradients_do() -> None:
    parameter = with_gradient(None)
    empty = stamp([parameter])
    parameter.sum().backward()
    computed = stamp([parameter])
    parameter.sum().backward()
    accumulated = stamp([parameter])
    assert parameter.grad is not None
    parameter.grad.mul_(0.5)
    assert len({empty, computed, accumulated, stamp([parameter])}) == 4
    assert stamp([parameter]) == stamp([parameter])


@pytest.mark.parametrize(
    ("lr", "gradient", "trained", "phantom"),
    [
        (0.0, 0.0, False, True),
        (torch.tensor(0.0), 0.0, False, True),
        (0.0, None, False, False),
        (0.0, 1.0, False, False),
        (0.1, 0.0, False, False),
        (0.0, 0.0, True, False),
    ],
)
def test_a_phantom_step_has_no_rate_gradients_of_zero_and_no_state(
    lr: float, gradient: float | None, trained: bool, phantom: bool
) -> None:
    parameter = with_gradient(gradient)
    inner = SGD([parameter], lr=lr, momentum=0.9)
    if trained:
        inner.state[parameter]["momentum_buffer"] = torch.zeros(2)
    assert is_phantom(inner) is phantom


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_compiled_step_looks_at_no_gradients() -> None:
    """To follow such a look, the compiler would have to break the step in two."""
    parameter = torch.zeros(2, requires_grad=True)
    parameter.grad = torch.zeros(2)
    inner = SGD([parameter], lr=0.0)
    assert is_phantom(inner)
    torch.compiler.reset()
    compiled = torch.compile(
        lambda: (is_phantom(inner), parameter + 1), backend="eager", fullgraph=True
    )
    assert not compiled()[0]
    torch.compiler.reset()


def test_a_phantom_has_a_gradient_for_each_parameter_that_is_trained() -> None:
    zero, none, frozen = with_gradient(0.0), with_gradient(None), with_gradient(None)
    frozen.requires_grad_(False)
    assert is_phantom(SGD([zero, frozen], lr=0.0))
    assert not is_phantom(SGD([zero, frozen, none], lr=0.0))


def test_a_step_with_arguments_is_no_phantom() -> None:
    inner = SGD([with_gradient(0.0)], lr=0.0)
    assert is_phantom(inner)
    assert not is_phantom(inner, lambda: 1.0)
    assert not is_phantom(inner, closure=lambda: 1.0)
