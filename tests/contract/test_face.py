"""The face of a wrapped optimizer: to other code it is an instance of the inner class, with all
that the inner optimizer has. Proxies of other libraries share its state."""

from __future__ import annotations

import copy
import io
import pickle
from abc import ABCMeta
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import Parameter
from torch.optim import LBFGS, SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import StepLR

from mend_optim import MendOptimizer, Nesterov, UsageError
from tests.support.learners import (
    LOCKSTEP,
    cluster,
    descent,
    drive,
    parameters,
    read,
    step,
    weights,
)

pytestmark = pytest.mark.usefixtures("no_environment")


class Searching(SGD, metaclass=ABCMeta):
    """An inner optimizer with a method, an attribute and arguments of its own."""

    def __init__(self, params: Any, lr: float = 1.0) -> None:
        super().__init__(params, lr=lr)
        self.searches = 0
        self.mode = "train"

    def search(self) -> Optimizer:
        self.searches += 1
        return self

    @classmethod
    def kind(cls) -> str:
        return cls.__name__

    def eval(self) -> None:
        self.mode = "eval"

    def step(self, closure: Any = None, *, scale: float = 1.0) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(scale)
        return super().step(closure)

    def zero_grad(self, set_to_none: bool = True, *, also: list[str] | None = None) -> None:
        if also is not None:
            also.append("cleared")
        super().zero_grad(set_to_none)


class Proxy(Optimizer):
    """A stand-in with a copy of an optimizer's attributes and a class made of both, as several
    libraries put it around every optimizer."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.__dict__ = dict(vars(optimizer))
        self._strategy: str | None = None
        self.__class__ = type("Proxy", (Proxy, type(optimizer)), {})


# ── the inner class ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [SGD, AdamW, LBFGS, Searching])
def test_it_is_an_instance_of_the_inner_class(kind: type[Any]) -> None:
    optimizer = MendOptimizer(kind(weights(1.0)))
    assert isinstance(optimizer, kind)
    assert isinstance(optimizer, MendOptimizer)
    assert type(optimizer).__name__ == kind.__name__
    assert str(optimizer) == str(optimizer.inner)


def test_two_wrappers_of_one_class_have_one_class() -> None:
    assert type(MendOptimizer(descent(1.0))) is type(MendOptimizer(descent(2.0)))


def test_an_own_wrapper_stays_one() -> None:
    class Mine(MendOptimizer):
        def twice(self) -> None:
            self.step()
            self.step()

    optimizer = Mine(descent(4.0))
    parameters_of = optimizer.param_groups[0]["params"]
    parameters_of[0].grad = torch.ones(3)
    optimizer.twice()
    assert read(optimizer) == [2.0]
    assert isinstance(optimizer, Mine)
    assert isinstance(optimizer, SGD)


def test_methods_of_the_inner_class_act_on_the_inner_optimizer() -> None:
    inner = Searching(weights(1.0))
    optimizer: Any = MendOptimizer(inner)
    assert optimizer.search() is inner
    optimizer.eval()
    assert (inner.searches, inner.mode, optimizer.mode) == (1, "eval", "eval")
    assert type(optimizer).kind() == "Searching"


def test_an_attribute_is_set_and_deleted_inside() -> None:
    inner = Searching(weights(1.0))
    optimizer: Any = MendOptimizer(inner)
    optimizer.mode = "other"
    optimizer.note = 3
    assert (inner.mode, vars(inner)["note"], optimizer.note) == ("other", 3, 3)
    del optimizer.note
    assert not hasattr(inner, "note")
    assert not hasattr(optimizer, "note")
    with pytest.raises(AttributeError, match="'Searching' object has no attribute 'note'"):
        optimizer.note  # noqa: B018


def test_groups_state_and_defaults_can_be_replaced() -> None:
    inner = AdamW(weights(1.0))
    optimizer = MendOptimizer(inner)
    groups, defaults = copy.copy(inner.param_groups), {**inner.defaults, "lr": 7.0}
    optimizer.param_groups = groups
    optimizer.defaults = defaults
    optimizer.state = inner.state
    assert inner.param_groups is groups
    assert inner.defaults is defaults


def test_a_script_may_put_groups_into_it_as_pickle_does() -> None:
    inner = AdamW(weights(1.0))
    optimizer = MendOptimizer(inner)
    groups = [{**inner.param_groups[0], "lr": 7.0}]
    optimizer.__setstate__({"state": inner.state, "param_groups": groups})
    assert inner.param_groups == groups
    step(optimizer, 1.0)
    assert optimizer.status().step == 1


def test_step_and_zero_grad_hand_their_arguments_on() -> None:
    optimizer: Any = MendOptimizer(Searching(weights(4.0)))
    for parameter in parameters(optimizer):
        assert parameter.grad is None
    optimizer.param_groups[0]["params"][0].grad = torch.ones(3)
    optimizer.step(scale=3.0)
    assert read(optimizer) == [1.0]
    also: list[str] = []
    optimizer.zero_grad(False, also=also)
    assert also == ["cleared"]
    assert optimizer.param_groups[0]["params"][0].grad is not None


@pytest.mark.parametrize("argument", ["sync_every", "quorum", "peers", "outer"])
def test_a_setting_cannot_be_changed_afterwards(argument: str) -> None:
    optimizer = MendOptimizer(descent(1.0))
    with pytest.raises(UsageError, match=f"{argument} must be given to the constructor, got"):
        setattr(optimizer, argument, 8)


def test_a_subclass_may_set_attributes_before_it_is_constructed() -> None:
    class Counting(MendOptimizer):
        def __init__(self, inner: Optimizer) -> None:
            self.calls = 0
            super().__init__(inner)

        def step(self, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return super().step(*args, **kwargs)

    optimizer = Counting(AdamW(weights(1.0)))
    step(optimizer, 1.0)
    assert (optimizer.calls, optimizer.status().step) == (1, 1)
    assert isinstance(optimizer, AdamW)


def test_a_scheduler_may_replace_step() -> None:
    optimizer = MendOptimizer(descent(4.0))
    scheduler = StepLR(optimizer, 1, gamma=0.5)
    for _ in range(3):
        step(optimizer, 1.0)
        scheduler.step()
    assert read(optimizer) == [4.0 - 1.0 - 0.5 - 0.25]
    assert optimizer.status().step == 3


# ── classes for libraries that construct the optimizer ────────────────────────────────────────────


@pytest.mark.parametrize("inner", [SGD([Parameter(torch.ones(1))]), torch.nn.Linear, None])
def test_a_class_is_made_of_a_class_of_optimizers_alone(inner: Any) -> None:
    with pytest.raises(UsageError, match="inner must be a class of optimizers, got"):
        MendOptimizer.of(inner)


def test_a_class_takes_the_arguments_of_the_inner_class() -> None:
    made = MendOptimizer.of(Searching, name="a", outer=Nesterov(gain=0.5))
    optimizer: Any = made(weights(1.0), lr=0.25)
    assert issubclass(made, Searching)
    assert type(optimizer) is made
    assert (optimizer.name, optimizer.defaults["lr"], made.__name__) == ("a", 0.25, "Searching")
    assert optimizer.search() is optimizer.inner


@pytest.mark.parametrize("kind", [AdamW, Searching])
def test_a_class_can_be_pickled(kind: type[Any]) -> None:
    made = pickle.loads(pickle.dumps(MendOptimizer.of(kind, name="a", tokens_per_step=3)))
    optimizer = made(weights(1.0), lr=0.25)
    step(optimizer, 1.0)
    assert (optimizer.name, optimizer.status().tokens, optimizer.defaults["lr"]) == ("a", 3, 0.25)


@pytest.mark.parametrize("made", [False, True], ids=["wrapped", "of a class"])
def test_a_copy_is_as_far_and_has_the_same_class(made: bool) -> None:
    kind: Any = MendOptimizer.of(AdamW) if made else lambda params: MendOptimizer(AdamW(params))
    optimizer = kind(weights(1.0))
    step(optimizer, 1.0)
    file = io.BytesIO()
    torch.save(optimizer, file)
    file.seek(0)
    for twin in (copy.deepcopy(optimizer), torch.load(file, weights_only=False)):
        assert isinstance(twin, AdamW)
        assert isinstance(twin, MendOptimizer)
        assert twin.status().step == 1
        step(twin, 1.0)
        assert (twin.status().step, optimizer.status().step) == (2, 1)


# ── proxies ───────────────────────────────────────────────────────────────────────────────────────


def test_a_proxy_that_has_attributes_of_its_own_keeps_them() -> None:
    optimizer = MendOptimizer(Searching(weights(1.0)))
    proxy: Any = Proxy(optimizer)
    proxy._strategy = "mine"
    proxy.mode = "inside"
    assert proxy._strategy == "mine"
    assert not hasattr(optimizer.inner, "_strategy")
    assert optimizer.inner.mode == "inside"  # type: ignore[attr-defined]


def test_steps_and_groups_through_a_proxy_are_the_optimizers() -> None:
    optimizer = MendOptimizer(descent(4.0), tokens_per_step=2)
    proxy: Any = Proxy(optimizer)
    proxy.count_tokens(5)
    step(proxy, 1.0)
    proxy.add_param_group({"params": weights(9.0)})
    step(optimizer, 1.0)
    assert read(optimizer) == [2.0, 8.0]
    assert (optimizer.status().step, optimizer.status().tokens) == (2, 7)
    assert isinstance(proxy, SGD)
    assert str(proxy) == str(optimizer).replace("SGD", "Proxy")


def test_a_proxy_shows_the_global_weights_and_refuses_steps_there() -> None:
    with cluster(descent(8.0), descent(8.0), **LOCKSTEP) as (a, b):
        proxy: Any = Proxy(a)
        drive([proxy, b], 3, lambda learner, _: learner + 1.0)
        with (
            proxy.global_weights(),
            pytest.raises(UsageError, match=r"step\(\) must not be called inside"),
        ):
            step(a, 1.0)
        with (
            a.global_weights(),
            pytest.raises(UsageError, match=r"step\(\) must not be called inside"),
        ):
            step(proxy, 1.0)


def test_a_group_that_a_proxy_adds_is_merged() -> None:
    with cluster(descent(8.0), descent(8.0), **LOCKSTEP) as (a, b):
        proxy: Any = Proxy(a)
        proxy.add_param_group({"params": weights(1.0)})
        b.add_param_group({"params": weights(1.0)})
        drive([proxy, b], 3, lambda learner, _: learner + 1.0)
        assert read(a)[0] == read(b)[0]
        assert a.status().step == 3


def test_a_checkpoint_that_a_proxy_loads_goes_on_with_the_one_learner() -> None:
    with cluster(descent(8.0), descent(8.0), **LOCKSTEP) as (a, b):
        proxy: Any = Proxy(a)
        drive([proxy, b], 2, lambda learner, _: learner + 1.0)
        first = a._learner
        proxy.load_state_dict(proxy.state_dict())
        assert first is not None
        assert first.closed
        assert a._learner is proxy._learner
        assert a._learner is not first
        assert a.status().step == 2


@pytest.mark.parametrize("peers", [False, True], ids=["alone", "with peers"])
def test_a_copy_of_a_proxy_is_a_wrapped_optimizer_without_peers(peers: bool) -> None:
    """torch's own optimizers have a proxy copied without what makes it one, so that it cannot
    step."""
    with cluster(descent(8.0), descent(8.0), sync_every=100) as (a, _):
        optimizer = a if peers else MendOptimizer(descent(8.0))
        proxy: Any = Proxy(optimizer)
        step(proxy, 1.0)
        twin = copy.deepcopy(proxy)
        assert type(twin) is type(optimizer)
        assert (twin.status().step, twin.status().address) == (1, "")
        step(twin, 1.0)
        assert (read(twin), twin.status().step) == ([6.0], 2)
        step(proxy, 1.0)
        assert (read(optimizer), optimizer.status().step) == ([6.0], 2)


# ── what torch accepts ────────────────────────────────────────────────────────────────────────────


def lazy() -> Optimizer:
    return SGD(nn.LazyLinear(2).parameters(), lr=0.1)


def frozen_integers() -> Optimizer:
    base = Parameter(torch.ones(4, dtype=torch.uint8), requires_grad=False)
    return SGD([base, *weights(1.0)], lr=0.1)


def twice() -> Optimizer:
    parameter = weights(1.0)[0]
    with pytest.warns(UserWarning, match="duplicate parameters"):
        return SGD([parameter, parameter], lr=0.1)


def views() -> Optimizer:
    whole = torch.ones(4)
    return SGD([whole.requires_grad_(), whole.detach()[:2].requires_grad_()], lr=0.1)


def sparse() -> Optimizer:
    return SGD([torch.eye(2).to_sparse().requires_grad_()], lr=0.1)


def meta() -> Optimizer:
    return SGD(nn.Linear(2, 2, device="meta").parameters(), lr=0.1)


def empty_group() -> Optimizer:
    return SGD([{"params": []}, {"params": weights(1.0)}], lr=0.1)


ODD = [lazy, frozen_integers, twice, views, sparse, meta, empty_group]


@pytest.mark.parametrize("make", ODD)
def test_alone_it_takes_what_torch_takes(make: Any) -> None:
    optimizer = MendOptimizer(make())
    state = optimizer.state_dict()
    optimizer.load_state_dict(state)
    again = MendOptimizer(make())
    again.load_state_dict(copy.deepcopy(state))
    assert again.status().step == 0


def test_alone_counts_are_kept_beside_parameters_that_cannot_be_merged() -> None:
    optimizer = MendOptimizer(views(), tokens_per_step=3)
    step(optimizer, 1.0)
    again = MendOptimizer(views())
    again.load_state_dict(optimizer.state_dict())
    step(again, 1.0)
    assert (again.status().step, again.status().tokens) == (2, 4)


def test_a_lazy_module_trains_alone() -> None:
    torch.manual_seed(0)
    model = nn.LazyLinear(2)
    optimizer = MendOptimizer(SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
    assert optimizer.status().step == 3


def named(*names: str, dtype: torch.dtype = torch.float32, shape: int = 3) -> MendOptimizer:
    tensors = [Parameter(torch.full((shape,), 1.0, dtype=dtype)) for _ in names]
    return MendOptimizer(SGD(list(zip(names, tensors, strict=True)), lr=0.1))


@pytest.mark.parametrize(
    "loader",
    [
        lambda: MendOptimizer(descent(1.0, 1.0, lr=0.1)),
        lambda: named("_orig_mod.w", "_orig_mod.b"),
        lambda: named("w", "b", dtype=torch.bfloat16),
    ],
    ids=["unnamed", "compiled", "bfloat16"],
)
def test_a_checkpoint_fits_by_its_shapes(loader: Any) -> None:
    optimizer = named("w", "b")
    step(optimizer, 1.0)
    state = optimizer.state_dict()
    again = loader()
    again.load_state_dict(state)
    assert again.status().step == 1


def test_alone_another_models_entry_is_left_out_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    optimizer = named("w", "b")
    step(optimizer, 1.0)
    again = named("w", "b", shape=5)
    again.load_state_dict(optimizer.state_dict())
    assert again.status().step == 0
    assert "the checkpoint's learner is left out" in caplog.text


def test_a_group_that_was_added_later_may_be_there_from_the_start() -> None:
    """A run unfroze a group on its way; it resumes with all groups at once."""
    optimizer = MendOptimizer(descent(1.0))
    step(optimizer, 1.0)
    optimizer.add_param_group({"params": weights(5.0), "lr": 2.0})
    step(optimizer, 1.0)
    groups = [{"params": weights(-1.0)}, {"params": weights(3.0), "lr": 2.0}]
    again = MendOptimizer(SGD(groups, lr=1.0))
    again.load_state_dict(optimizer.state_dict())
    step(again, 1.0)
    assert again.status().step == 3
