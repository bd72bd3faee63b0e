"""What torch says of its own optimizers, as tests: every optimizer in every option set of
`torch.testing._internal.common_optimizers.optim_db`, with the schedulers and the errors that the
catalogue lists. torch's own test files are in no package, so these drive the catalogue.

Nothing here knows `mend_optim`. Each test holds for the bare optimizers of torch."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.testing._internal.common_optimizers import OptimizerErrorEnum, optim_db

STEPS = 6
NEEDS_MATRICES = {"Muon"}

Case = tuple[Any, Any, dict[str, Any]]


def option_sets() -> Iterator[Any]:
    for info in optim_db:
        for options in info.optim_inputs_func(device="cpu"):
            for implementation in implementations(info):
                kwargs = {**options.kwargs, **implementation}
                name = "-".join(implementation) or "plain"
                yield pytest.param(info, kwargs, id=f"{info.name}-{options.desc}-{name}")


def implementations(info: Any) -> Iterator[dict[str, Any]]:
    yield {}
    if "foreach" in info.supported_impls:
        yield {"foreach": True}
    if "fused" in info.supported_impls and "cpu" in info.supports_fused_on:
        yield {"fused": True}


def schedules() -> Iterator[Any]:
    for info in optim_db:
        for i, makers in enumerate(info.scheduler_inputs):
            yield pytest.param(info, makers, id=f"{info.name}-{i}")


def wrong_inputs() -> Iterator[Any]:
    for info in optim_db:
        if info.optim_error_inputs_func is None:
            continue
        for wrong in info.optim_error_inputs_func(device="cpu", dtype=torch.float32):
            desc = wrong.optimizer_error_input.desc
            yield pytest.param(info, wrong, id=f"{info.name}-{desc}")


each_option_set = pytest.mark.parametrize(("info", "kwargs"), list(option_sets()))
each_optimizer = pytest.mark.parametrize("info", optim_db, ids=lambda info: info.name)


def weights(info: Any, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    torch.manual_seed(3)
    shapes = [(3, 2), (2, 4)] if info.name in NEEDS_MATRICES else [(3, 2), (4,), ()]
    return [nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in shapes]


def named(parameters: list[nn.Parameter]) -> list[tuple[str, nn.Parameter]]:
    return [(f"layer.{i}", p) for i, p in enumerate(parameters)]


def loss_of(parameters: list[nn.Parameter], step: int) -> Tensor:
    terms = [(p - 0.3 * (step % 3) - i).abs().square().sum() for i, p in enumerate(parameters)]
    return torch.stack([term.float() for term in terms]).sum()


def train(info: Any, optimizer: Any, parameters: list[nn.Parameter], steps: int) -> list[float]:
    """The loss before each step."""
    losses = []
    for step in range(steps):

        def closure(step: int = step) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(parameters, step)
            loss.backward()
            if info.only_supports_sparse_grads:
                for p in parameters:
                    p.grad = p.grad.to_sparse()
            return loss

        if info.step_requires_closure:
            losses.append(float(optimizer.step(closure)))
        else:
            losses.append(float(closure()))
            optimizer.step()
    return losses


def bits(tree: Any) -> Any:
    """The tree with a copy of each tensor's values."""
    if isinstance(tree, Tensor):
        return (str(tree.dtype), tree.detach().to_dense().tolist())
    if isinstance(tree, dict):
        return {key: bits(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [bits(value) for value in tree]
    return tree


def state_of(optimizer: Any) -> Any:
    saved = optimizer.state_dict()
    return bits({"state": saved["state"], "param_groups": saved["param_groups"]})


def copies(parameters: list[nn.Parameter]) -> list[nn.Parameter]:
    return [nn.Parameter(p.detach().clone()) for p in parameters]


# Training


@each_option_set
def test_training_lowers_the_loss(info: Any, kwargs: dict[str, Any]) -> None:
    parameters = weights(info)
    optimizer = info.optim_cls(parameters, **kwargs)
    before = float(loss_of(parameters, 0))
    train(info, optimizer, parameters, STEPS)
    after = float(loss_of(parameters, 0))
    assert (after > before) if kwargs.get("maximize") else (after <= before + 1e-6)


@each_optimizer
def test_the_optimizer_is_of_its_class(info: Any) -> None:
    assert isinstance(info.optim_cls(weights(info)), Optimizer)
    assert isinstance(info.optim_cls(weights(info)), info.optim_cls)


@each_optimizer
def test_the_optimizer_has_the_name_of_its_class(info: Any) -> None:
    assert type(info.optim_cls(weights(info))).__name__ == info.name


@each_optimizer
def test_the_optimizer_is_printed_with_its_groups(info: Any) -> None:
    printed = repr(info.optim_cls(weights(info)))
    assert printed.startswith(f"{info.name} (\nParameter Group 0\n")


@each_optimizer
def test_groups_have_options_of_their_own(info: Any) -> None:
    if not info.supports_param_groups:
        pytest.skip("one group only")
    one, two = weights(info), weights(info)
    optimizer = info.optim_cls([{"params": one}, {"params": two, "lr": 0.0}])
    before = bits(two)
    train(info, optimizer, one + two, STEPS)
    # Rprop has step sizes of its own from the second step on.
    assert bits(two) == before or info.name == "Rprop"
    assert bits(one) != before
    assert optimizer.param_groups[1]["lr"] == 0.0
    assert optimizer.param_groups[0]["lr"] == optimizer.defaults["lr"]


@each_optimizer
def test_a_group_added_later_trains(info: Any) -> None:
    if not info.supports_param_groups:
        pytest.skip("one group only")
    one, two = weights(info), weights(info)
    optimizer = info.optim_cls(one)
    train(info, optimizer, one, 2)
    optimizer.add_param_group({"params": two, "lr": 1e-2})
    before = bits(two)
    train(info, optimizer, one + two, STEPS)
    assert bits(two) != before
    assert len(optimizer.param_groups) == 2


@each_optimizer
def test_a_step_without_gradients_changes_nothing(info: Any) -> None:
    parameters = weights(info)
    optimizer = info.optim_cls(parameters)
    before = bits(parameters)
    if info.step_requires_closure:
        pytest.skip("the closure makes gradients")
    optimizer.step()
    assert bits(parameters) == before


@each_optimizer
def test_no_parameter_has_elements(info: Any) -> None:
    shape = (0, 2) if info.name in NEEDS_MATRICES else (0,)
    if info.name in {"Adafactor", "LBFGS"}:
        pytest.skip("torch fails")
    empty = nn.Parameter(torch.zeros(shape))
    optimizer = info.optim_cls([empty])
    empty.grad = torch.zeros_like(empty)
    if info.only_supports_sparse_grads:
        empty.grad = empty.grad.to_sparse()
    optimizer.step(*([lambda: torch.zeros(())] if info.step_requires_closure else []))
    assert empty.numel() == 0


@each_optimizer
def test_a_frozen_parameter_stays(info: Any) -> None:
    parameters = weights(info)
    parameters[0].requires_grad_(False)
    optimizer = info.optim_cls(parameters)
    before = bits(parameters[0])
    for step in range(STEPS):

        def closure(step: int = step) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(parameters, step)
            loss.backward()
            for p in parameters[1:] if info.only_supports_sparse_grads else []:
                p.grad = p.grad.to_sparse()
            return loss

        if info.step_requires_closure:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    assert bits(parameters[0]) == before


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.complex64], ids=str)
@each_optimizer
def test_parameters_of_another_dtype(info: Any, dtype: torch.dtype) -> None:
    if dtype.is_complex and (not info.supports_complex or info.only_supports_sparse_grads):
        pytest.skip("no complex parameters")
    parameters = weights(info, dtype)
    optimizer = info.optim_cls(parameters)
    before = bits(parameters)
    train(info, optimizer, parameters, STEPS)
    assert bits(parameters) != before
    assert {p.dtype for p in parameters} == {dtype}


@each_optimizer
def test_a_sparse_leaf_is_accepted(info: Any) -> None:
    if not (info.supports_sparse or info.only_supports_sparse_grads):
        pytest.skip("dense parameters only")
    torch.manual_seed(3)
    leaf = torch.randn(4, 2).to_sparse().requires_grad_()
    try:
        optimizer = info.optim_cls([leaf])
    except (RuntimeError, ValueError):
        pytest.skip("dense parameters only")
    assert optimizer.param_groups[0]["params"][0] is leaf


@each_optimizer
def test_a_closure_is_called_and_its_result_returned(info: Any) -> None:
    parameters = weights(info)
    optimizer = info.optim_cls(parameters)
    calls = []

    def closure() -> Tensor:
        calls.append(torch.is_grad_enabled())
        optimizer.zero_grad()
        loss = loss_of(parameters, 1)
        loss.backward()
        for p in parameters if info.only_supports_sparse_grads else []:
            p.grad = p.grad.to_sparse()
        return loss

    first = float(loss_of(parameters, 1))
    assert float(optimizer.step(closure)) == first
    assert calls
    assert all(calls)


# States


@each_option_set
def test_a_state_goes_on_in_another_optimizer(info: Any, kwargs: dict[str, Any]) -> None:
    parameters = weights(info)
    optimizer = info.optim_cls(parameters, **kwargs)
    train(info, optimizer, parameters, STEPS)
    others = copies(parameters)
    resumed = info.optim_cls(others, **kwargs)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert state_of(resumed) == state_of(optimizer)
    train(info, optimizer, parameters, STEPS)
    train(info, resumed, others, STEPS)
    assert bits(others) == bits(parameters)
    assert state_of(resumed) == state_of(optimizer)


@each_optimizer
def test_a_state_goes_through_a_file(info: Any) -> None:
    parameters = weights(info)
    optimizer = info.optim_cls(parameters)
    train(info, optimizer, parameters, STEPS)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    resumed = info.optim_cls(copies(parameters))
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert state_of(resumed) == state_of(optimizer)


@each_optimizer
def test_a_state_of_another_precision_is_cast(info: Any) -> None:
    parameters = weights(info)
    optimizer = info.optim_cls(parameters)
    train(info, optimizer, parameters, STEPS)
    halves = [nn.Parameter(p.detach().to(torch.bfloat16)) for p in parameters]
    resumed = info.optim_cls(halves)
    resumed.load_state_dict(optimizer.state_dict())
    assert len(resumed.state) == len(optimizer.state)
    train(info, resumed, halves, STEPS)
    assert all(torch.isfinite(p).all() for p in halves)


@each_optimizer
def test_a_state_with_names_goes_into_an_optimizer_without(info: Any) -> None:
    one, two = weights(info), weights(info)
    with_names = info.optim_cls(named(one))
    without = info.optim_cls(two)
    train(info, with_names, one, STEPS)
    without.load_state_dict(with_names.state_dict())
    train(info, without, two, STEPS)
    again = info.optim_cls(named(weights(info)))
    again.load_state_dict(without.state_dict())
    assert "param_names" in with_names.state_dict()["param_groups"][0]
    assert "param_names" in again.param_groups[0]


@each_optimizer
def test_a_state_of_a_compiled_model_goes_into_the_plain_one(info: Any) -> None:
    one, two = weights(info), weights(info)
    compiled = info.optim_cls([(f"_orig_mod.{name}", p) for name, p in named(one)])
    train(info, compiled, one, STEPS)
    plain = info.optim_cls(named(two))
    plain.load_state_dict(compiled.state_dict())
    assert bits(plain.state_dict()["state"]) == bits(compiled.state_dict()["state"])


@each_optimizer
def test_a_state_of_other_groups_is_refused(info: Any) -> None:
    if not info.supports_param_groups:
        pytest.skip("one group only")
    small = info.optim_cls(weights(info)[:1])
    groups = [{"params": [p]} for p in weights(info)]
    with pytest.raises(ValueError, match="different number of parameter groups"):
        small.load_state_dict(info.optim_cls(groups).state_dict())
    with pytest.raises(ValueError, match="doesn't match the size of optimizer's group"):
        small.load_state_dict(info.optim_cls(weights(info)).state_dict())


@each_optimizer
def test_a_state_of_a_run_that_added_a_group(info: Any) -> None:
    """Resuming builds the optimizer with both groups at once, or the other way round."""
    if not info.supports_param_groups:
        pytest.skip("one group only")

    def parts() -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        return weights(info), weights(info)

    one, two = parts()
    grown = info.optim_cls(one)
    train(info, grown, one, 2)
    grown.add_param_group({"params": two})
    train(info, grown, one + two, STEPS)
    first, second = parts()
    whole = info.optim_cls([{"params": first}, {"params": second}])
    whole.load_state_dict(copy.deepcopy(grown.state_dict()))
    assert state_of(whole)["state"] == state_of(grown)["state"]
    train(info, whole, first + second, 2)
    first, second = parts()
    back = info.optim_cls(first)
    back.add_param_group({"params": second})
    back.load_state_dict(copy.deepcopy(whole.state_dict()))
    assert state_of(back)["state"] == state_of(whole)["state"]


@each_option_set
def test_a_copy_goes_on_alike(info: Any, kwargs: dict[str, Any]) -> None:
    if info.step_requires_closure:
        pytest.skip("a copy of it cannot step")
    parameters = weights(info)
    optimizer = info.optim_cls(parameters, **kwargs)
    train(info, optimizer, parameters, 2)
    for copied in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert state_of(copied) == state_of(optimizer)
        theirs = [p for group in copied.param_groups for p in group["params"]]
        train(info, copied, theirs, 2)
        assert len(copied.state) == len(optimizer.state)


@each_optimizer
def test_a_new_state_can_be_set(info: Any) -> None:
    parameters = weights(info)
    optimizer = info.optim_cls(parameters)
    train(info, optimizer, parameters, 2)
    optimizer.state.clear()
    assert len(optimizer.state) == 0
    groups = optimizer.param_groups
    optimizer.__setstate__({"state": optimizer.state, "param_groups": groups})
    assert optimizer.param_groups is groups
    train(info, optimizer, parameters, 2)


# Hooks


@each_optimizer
def test_hooks_are_called_in_order(info: Any) -> None:
    parameters = weights(info)
    optimizer = info.optim_cls(parameters)
    calls: list[str] = []

    def note(call: str) -> Callable[..., None]:
        def hook(opt: Optimizer, *_: Any) -> None:
            assert opt.param_groups is optimizer.param_groups
            calls.append(call)

        return hook

    handles = [
        optimizer.register_step_pre_hook(note("before step")),
        optimizer.register_step_post_hook(note("after step")),
        optimizer.register_state_dict_pre_hook(note("before state_dict")),
        optimizer.register_state_dict_post_hook(note("after state_dict")),
        optimizer.register_load_state_dict_pre_hook(note("before load")),
        optimizer.register_load_state_dict_post_hook(note("after load")),
    ]
    train(info, optimizer, parameters, 1)
    optimizer.load_state_dict(optimizer.state_dict())
    expected = [f"{when} {what}" for what in ("step", "state_dict", "load") for when in WHEN]
    assert calls == expected
    for handle in handles:
        handle.remove()
    train(info, optimizer, parameters, 1)
    assert calls == expected


WHEN = ("before", "after")


# Schedulers and scalers


@pytest.mark.filterwarnings("error:.*lr_scheduler.step")
@pytest.mark.parametrize(("info", "makers"), list(schedules()))
def test_schedulers_set_the_rates(info: Any, makers: list[Any]) -> None:
    parameters = weights(info)
    optimizer = info.optim_cls(parameters, lr=0.01)
    schedulers = [make(optimizer) for make in makers]
    rates = []
    for _ in range(25):
        losses = train(info, optimizer, parameters, 1)
        for scheduler in schedulers:
            if isinstance(scheduler, ReduceLROnPlateau):
                scheduler.step(losses[-1])
            else:
                assert isinstance(scheduler, LRScheduler)
                scheduler.step()
        rates.append(float(optimizer.param_groups[0]["lr"]))
    assert all(rate >= 0 for rate in rates)
    assert any(a != b for a, b in pairwise([0.01, *rates])) or len(set(rates)) == 1
    others = copies(parameters)
    resumed = info.optim_cls(others, lr=0.01)
    again = [make(resumed) for make in makers]
    resumed.load_state_dict(optimizer.state_dict())
    for mine, theirs in zip(again, schedulers, strict=True):
        mine.load_state_dict(theirs.state_dict())
    assert resumed.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]


@each_optimizer
def test_a_rate_may_be_a_tensor(info: Any) -> None:
    parameters = weights(info)
    rate = torch.tensor(0.01)
    try:
        optimizer = info.optim_cls(parameters, lr=rate, foreach=False)
    except (TypeError, ValueError):
        pytest.skip("no such options")
    assert optimizer.param_groups[0]["lr"] is rate
    train(info, optimizer, parameters, STEPS)


@each_optimizer
def test_a_scaler_skips_a_step_that_overflows(info: Any) -> None:
    if info.step_requires_closure or info.only_supports_sparse_grads:
        pytest.skip("no scaler for it")
    parameters = weights(info)
    optimizer = info.optim_cls(parameters)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        before = bits(parameters)
        scaler.scale(loss_of(parameters, step)).backward()
        if step == 2:
            parameters[0].grad.fill_(float("inf"))
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        assert (bits(parameters) == before) == (step == 2)
    assert scaler.get_scale() == 4.0


@each_optimizer
def test_a_fused_optimizer_unscales_by_itself(info: Any) -> None:
    if "cpu" not in info.supports_fused_on:
        pytest.skip("not fused on a CPU")
    parameters = weights(info)
    optimizer = info.optim_cls(parameters, fused=True)
    assert optimizer._step_supports_amp_scaling
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        before = bits(parameters)
        scaler.scale(loss_of(parameters, step)).backward()
        if step == 2:
            parameters[0].grad.fill_(float("inf"))
        scaler.step(optimizer)
        scaler.update()
        assert (bits(parameters) == before) == (step == 2)


# Errors


@pytest.mark.parametrize(("info", "wrong"), list(wrong_inputs()))
def test_a_wrong_input_is_refused_as_listed(info: Any, wrong: Any) -> None:
    given = wrong.optimizer_error_input
    expect = pytest.warns if issubclass(wrong.error_type, Warning) else pytest.raises
    if wrong.error_on == OptimizerErrorEnum.CONSTRUCTION_ERROR:
        with expect(wrong.error_type, match=wrong.error_regex):
            info.optim_cls(given.params, **given.kwargs)
        return
    optimizer = info.optim_cls(given.params, **given.kwargs)
    with expect(wrong.error_type, match=wrong.error_regex):
        optimizer.step()


@each_optimizer
def test_a_parameter_twice_only_warns(info: Any) -> None:
    parameters = weights(info)
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optimizer = info.optim_cls([*parameters, parameters[0]])
    assert len(optimizer.param_groups[0]["params"]) == len(parameters) + 1


# Parameters that a model has before it is complete


def test_lazy_modules_train_after_their_first_batch() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(1))
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.state_dict()
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).square().sum().backward()
        optimizer.step()
    assert len(optimizer.state) == 4


def test_integer_weights_that_are_frozen_stay() -> None:
    base = nn.Parameter(torch.arange(6, dtype=torch.int8), requires_grad=False)
    adapter = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.AdamW([base, adapter], lr=0.1)
    for _ in range(STEPS):
        adapter.grad = torch.ones(3)
        optimizer.step()
    assert base.tolist() == list(range(6))
    assert optimizer.state_dict()["param_groups"][0]["params"] == [0, 1]


def test_a_view_of_a_parameter_may_be_a_parameter() -> None:
    whole = torch.zeros(4, requires_grad=True)
    part = whole.detach()[:2].requires_grad_()
    optimizer = torch.optim.SGD([whole, part], lr=1.0)
    whole.grad = torch.ones(4)
    optimizer.step()
    assert whole.tolist() == [-1.0] * 4


def test_meta_parameters_have_a_state_dict() -> None:
    model = nn.Linear(3, 2, device="meta")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    assert optimizer.state_dict()["state"] == {}
    assert optimizer.param_groups[0]["params"][0].is_meta


def test_an_empty_group_can_be_filled_later() -> None:
    late = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([{"params": []}, {"params": [late]}], lr=0.5)
    late.grad = torch.ones(2)
    optimizer.step()
    assert late.tolist() == [-0.5, -0.5]
    added = nn.Parameter(torch.zeros(2))
    optimizer.param_groups[0]["params"].append(added)
    added.grad = torch.ones(2)
    optimizer.step()
    assert added.tolist() == [-0.5, -0.5]


def test_attributes_can_be_set_and_read_back() -> None:
    parameters = [nn.Parameter(torch.zeros(2))]
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    replaced = [dict(optimizer.param_groups[0])]
    optimizer.param_groups = replaced
    assert optimizer.param_groups is replaced
    optimizer.note = "mine"
    assert optimizer.note == "mine"
    optimizer.state = type(optimizer.state)(dict)
    optimizer.defaults = {**optimizer.defaults, "lr": 0.25}
    assert optimizer.defaults["lr"] == 0.25
    parameters[0].grad = torch.ones(2)
    optimizer.step()
    assert parameters[0].tolist() == [-0.5, -0.5]
