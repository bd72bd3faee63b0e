"""The inner optimizer's state after an accident."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, optim
from torch.nn import Parameter
from torch.optim import LBFGS, SGD, AdamW, NAdam, Optimizer, RMSprop, SparseAdam

from mend_optim.engine.moment_schedule import MomentSchedule
from mend_optim.model.known_moments import known_moments
from mend_optim.model.layout import Layout
from mend_optim.model.moment_state import FragmentState, read
from mend_optim.model.ruined_state import reset_state


class ScheduleFree(Optimizer):
    """As schedule-free's AdamW: a place `z` in the state, counters in the group."""

    def __init__(self, params: Any, lr: float = 0.02, needs_closure: bool = False) -> None:
        super().__init__(params, {"lr": lr, "k": 0, "weight_sum": 0.0, "lr_max": -1.0})
        self.needs_closure = needs_closure

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> None:  # type: ignore[override]
        if closure is not None:
            with torch.enable_grad():
                closure()
        elif self.needs_closure:
            raise TypeError("this optimizer steps with a closure only")
        for group in self.param_groups:
            group["k"] += 1
            group["lr_max"] = max(group["lr_max"], group["lr"])
            group["weight_sum"] += group["lr_max"] ** 2
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(z=p.clone(), exp_avg_sq=torch.zeros_like(p))
                state["exp_avg_sq"].mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                root = (state["exp_avg_sq"] / (1 - 0.999 ** group["k"])).sqrt().add_(1e-8)
                state["z"].addcdiv_(p.grad, root, value=-group["lr"])
                p.lerp_(state["z"], group["lr_max"] ** 2 / group["weight_sum"])


class Grouped(SGD):
    """Counts its updates in the group, by a tensor, as fused optimizers of other packages do; and
    has an option of the name of a counter."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1, momentum=0.9)
        self.defaults["k"] = 5
        for group in self.param_groups:
            group.update(step=torch.zeros((), dtype=torch.int32), k=7)

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["step"] += 1
        return super().step(closure)


class OldAdagrad(optim.Adagrad):
    """As torch 2.4's: it has no step for a parameter without state."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["sum"]
        return super().step(closure)


MAKES: dict[str, Callable[..., Optimizer]] = {
    "adam": lambda p: optim.Adam(p, weight_decay=0.1),
    "amsgrad": lambda p: AdamW(p, amsgrad=True),
    "fused": lambda p: AdamW(p, fused=True),
    "no epsilon": lambda p: RMSprop(p, eps=0.0, momentum=0.9),
    "nadam": NAdam,
    "radam": optim.RAdam,
    "adamax": optim.Adamax,
    "rmsprop": lambda p: RMSprop(p, centered=True, momentum=0.9),
    "adagrad": lambda p: optim.Adagrad(p, lr_decay=0.1, initial_accumulator_value=0.1),
    "old adagrad": lambda p: OldAdagrad(p, lr_decay=0.1, initial_accumulator_value=0.1),
    "adadelta": optim.Adadelta,
    "adafactor": lambda p: optim.Adafactor(p) if hasattr(optim, "Adafactor") else AdamW(p),
    "momentum": lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "rprop": optim.Rprop,
    "asgd": optim.ASGD,
    "sparse": SparseAdam,
    "lbfgs": lambda p: LBFGS(p, max_iter=2),
    "schedule-free": ScheduleFree,
    "schedule-free with a closure": lambda p: ScheduleFree(p, needs_closure=True),
    "grouped": Grouped,
}


def train(weights: list[Parameter], inner: Optimizer, steps: int, seed: int) -> None:
    """Steps on noisy gradients of a parabola."""
    draws = torch.Generator().manual_seed(seed)

    def closure() -> Tensor:
        for weight in weights:
            noise = torch.randn(weight.shape, generator=draws)
            gradient = weight.detach() - 3 + noise
            weight.grad = gradient.to_sparse(1) if isinstance(inner, SparseAdam) else gradient
        return sum((weight.detach().square().sum() for weight in weights), torch.zeros(()))

    for _ in range(steps):
        if isinstance(inner, LBFGS) or getattr(inner, "needs_closure", False):
            inner.step(closure)
        else:
            closure()
            inner.step()


def trained(make: Callable[..., Optimizer], steps: int = 300) -> tuple[list[Parameter], Optimizer]:
    torch.manual_seed(0)
    weights = [Parameter(torch.randn(5)), Parameter(torch.randn(3, 2))]
    inner = make(weights)
    train(weights, inner, steps, seed=1)
    return weights, inner


def ruin(state: Any, value: float) -> None:
    if isinstance(state, Tensor):
        if state.is_floating_point() and state.numel() > 1:
            state.fill_(value)
    elif isinstance(state, dict):
        for name, inside in state.items():
            if name != "step":
                ruin(inside, value)
    elif isinstance(state, list):
        for inside in state:
            ruin(inside, value)


def tensors(inner: Optimizer) -> dict[tuple[int, str], Tensor]:
    return {
        (i, name): value
        for i, state in enumerate(inner.state.values())
        for name, value in state.items()
        if isinstance(value, Tensor)
    }


def reset(weights: list[Parameter], inner: Optimizer, *moments: str) -> None:
    layout = Layout([str(i) for i in range(len(weights))], [w.detach() for w in weights], 1)
    reset_state(FragmentState(layout.fragments[0], weights, inner, 300), moments)


@pytest.mark.parametrize("name", MAKES)
@pytest.mark.parametrize("ruined_by", [1.0, 1e10, torch.nan])
def test_the_next_steps_are_those_of_an_optimizer_that_never_saw_the_accident(
    name: str, ruined_by: float
) -> None:
    """For a hundred steps: Adam's averages with the count of another past would make the first
    fifty too long."""
    weights, inner = trained(MAKES[name])
    if ruined_by != 1:
        ruin(dict(inner.state), ruined_by)
    options = [{k: v for k, v in g.items() if k != "params"} for g in inner.param_groups]
    kept = [option.get("lr") for option in options]
    reset(weights, inner)
    assert [group.get("lr") for group in inner.param_groups] == kept
    twins = [Parameter(weight.detach().clone()) for weight in weights]
    twin = MAKES[name](twins)
    for steps in (1, 9, 90):
        train(weights, inner, steps, seed=2)
        train(twins, twin, steps, seed=2)
        for mine, other in zip(weights, twins, strict=True):
            assert torch.allclose(mine, other, rtol=1e-5, atol=1e-6), steps


@pytest.mark.parametrize("name", [name for name in MAKES if name != "lbfgs"])
def test_state_tensors_keep_their_memory(name: str) -> None:
    """A compiled step holds them, and so does a captured graph."""
    weights, inner = trained(MAKES[name])
    before = tensors(inner)
    kinds = {key: (t.data_ptr(), t.dtype, t.shape) for key, t in before.items()}
    reset(weights, inner)
    after = tensors(inner)
    assert after.keys() == before.keys()
    assert all(after[key] is before[key] for key in before)
    assert {key: (t.data_ptr(), t.dtype, t.shape) for key, t in after.items()} == kinds


def test_counts_in_a_group_begin_anew_and_options_stay() -> None:
    weights, inner = trained(Grouped)
    (group,) = inner.param_groups
    counter = group["step"]
    assert counter == 300
    reset(weights, inner)
    assert group["step"] is counter
    assert counter == 0
    assert group["k"] == 7


def test_averages_over_few_updates_are_no_smaller_than_others() -> None:
    """A round averages what learners offer, whatever their counts are: offers of nearly 0 would
    make all learners' steps longer."""
    readings = []
    for accident in (False, True):
        weights, inner = trained(AdamW)
        if accident:
            reset(weights, inner)
        train(weights, inner, 10, seed=3)
        fragment = Layout(["a", "b"], [w.detach() for w in weights], 1).fragments[0]
        out = torch.empty(fragment.numel)
        (_, second) = known_moments(inner, MomentSchedule())
        read(second, FragmentState(fragment, weights, inner, 310), out)
        readings.append(out.mean())
    assert 0.5 < readings[1] / readings[0] < 2


class Unknown(Optimizer):
    """Steps with a closure only, so its first state cannot be had."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        closure()
        for weight in self.param_groups[0]["params"]:
            if not self.state[weight]:
                self.state[weight] = {
                    "step": 0,
                    "ours": torch.ones_like(weight),
                    "grad_avg": torch.ones_like(weight),
                    "place": torch.full_like(weight, 2.0),
                    "slow_params": torch.full_like(weight, 2.0),
                    "scales": [torch.ones(2), torch.ones_like(weight)],
                }
            self.state[weight]["step"] += 1


@pytest.mark.parametrize("is_nan", [False, True])
def test_without_a_first_state_places_stay_and_moments_begin_anew(is_nan: bool) -> None:
    weight = Parameter(torch.full((4,), 5.0))
    inner = Unknown([weight])
    inner.step(lambda: None)
    if is_nan:
        ruin(dict(inner.state), torch.nan)
    reset([weight], inner, "ours")
    state = inner.state[weight]
    assert state["step"] == 0
    assert not state["ours"].any()
    assert not state["grad_avg"].any()
    # State that is not finite begins at the weights: there, a place does no harm.
    assert state["place"].tolist() == [5.0 if is_nan else 2.0] * 4
    # Slow weights are a place for sure, and would take the weights back to the accident.
    assert state["slow_params"].tolist() == [5.0] * 4
    small, large = state["scales"]
    assert small.tolist() == [0.0 if is_nan else 1.0] * 2
    assert large.tolist() == [5.0 if is_nan else 1.0] * 4


class Ahead(Optimizer):
    """As timm's Lookahead: it has the groups of its base optimizer, and adds to the state there,
    which may be its own, too."""

    def __init__(self, base: Optimizer, shares_state: bool) -> None:
        super().__init__(base.param_groups, {})
        self.base = base
        self.param_groups = base.param_groups
        if shares_state:
            self.state = base.state
        for group in self.param_groups:
            group["k"] = 6
        self.defaults["k"] = 5
        self.taken = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.base.step()
        self.taken += 1
        if self.taken % 6:
            return
        for weight in (w for group in self.param_groups for w in group["params"]):
            slow = self.base.state[weight].setdefault("lookahead_slow_buff", weight.clone())
            slow.lerp_(weight, 0.5)
            weight.copy_(slow)


@pytest.mark.parametrize("shares_state", [True, False])
@pytest.mark.parametrize("ruined_by", [1e10, torch.nan])
def test_the_state_of_a_base_optimizer_begins_anew(ruined_by: float, shares_state: bool) -> None:
    weights, inner = trained(lambda p: Ahead(AdamW(p, lr=0.01), shares_state), steps=12)
    ruin(dict(inner.base.state), ruined_by)
    before = [weight.detach().clone() for weight in weights]
    reset(weights, inner)
    for weight in weights:
        state = inner.base.state[weight]
        assert state["step"] == 0
        assert not state["exp_avg"].any()
        assert not state["exp_avg_sq"].any()
        assert torch.equal(state["lookahead_slow_buff"], weight)
    assert inner.param_groups[0]["k"] == 6
    train(weights, inner, 6, seed=2)
    for weight, value in zip(weights, before, strict=True):
        assert (weight - value).abs().max() < 0.06


class Unnamed(Optimizer):
    """Keeps a momentum for each parameter: in a list, or as it is."""

    def __init__(self, params: Any, in_list: bool) -> None:
        super().__init__(params, {"lr": 0.1})
        self._in_list = in_list

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for weight in self.param_groups[0]["params"]:
            if weight not in self.state:
                momentum = torch.zeros_like(weight)
                self.state[weight] = [momentum] if self._in_list else momentum
            kept = self.state[weight]
            (kept[0] if self._in_list else kept).mul_(0.9).add_(weight.grad)


@pytest.mark.parametrize("in_list", [True, False])
def test_state_without_names_begins_anew(in_list: bool) -> None:
    weight = Parameter(torch.full((4,), 5.0))
    inner = Unnamed([weight], in_list)
    weight.grad = torch.full((4,), torch.nan)
    inner.step()
    before = inner.state[weight]
    reset([weight], inner)
    assert inner.state[weight] is before
    momentum = before[0] if in_list else before
    assert momentum.tolist() == [0.0] * 4


def test_other_fragments_keep_theirs() -> None:
    weights, inner = trained(AdamW, steps=3)
    layout = Layout(["a", "b"], [w.detach() for w in weights], 2)
    (first,) = layout.fragments[0].tensors
    reset_state(FragmentState(layout.fragments[0], weights, inner, 3))
    assert not inner.state[weights[first]]["exp_avg"].any()
    assert inner.state[weights[first]]["step"] == 0
    assert inner.state[weights[1 - first]]["exp_avg"].any()
    assert inner.state[weights[1 - first]]["step"] == 3


def test_the_weights_of_other_fragments_stay_where_an_average_of_the_group_begins_anew() -> None:
    """Not at the last of the places that they are averages of, which the noise moves about."""
    weights, inner = trained(ScheduleFree)
    layout = Layout(["a", "b"], [w.detach() for w in weights], 2)
    (first,) = layout.fragments[0].tensors
    other = weights[1 - first]
    before = other.detach().clone()
    place = inner.state[other]["z"]
    assert (place - before).abs().max() > 0.1
    reset_state(FragmentState(layout.fragments[0], weights, inner, 300))
    assert torch.equal(other.detach(), before)
    train(weights, inner, 1, seed=3)
    assert inner.state[other]["z"] is place
    assert (other.detach() - before).abs().max() < 0.03  # one step


def test_a_parameter_that_was_taken_out_of_its_group_is_left_alone() -> None:
    weights, inner = trained(NAdam, steps=3)
    inner.param_groups[0]["params"].remove(weights[0])
    reset(weights, inner)
    assert inner.state[weights[0]]["step"] == 3
    assert inner.state[weights[1]]["step"] == 0
