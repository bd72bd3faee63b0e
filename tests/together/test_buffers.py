"""The buffers of modules: learners with different data end with equal files."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from mend_optim import (
    Adoption,
    DiLoCoNesterov,
    LearnerState,
    MendOptimizer,
    MomentSchedule,
    UsageError,
)
from mend_optim.engine.progress import Progress
from tests.support.checkpoints import stored
from tests.support.learners import (
    LOCKSTEP,
    LOOPBACK,
    TIMING,
    Watch,
    cluster,
    same,
    settle,
    start,
    together,
    until,
)

FREE: dict[str, Any] = {"sync_every": 4}


class Model(nn.Module):
    """With batch norm, a mask that is a constant, a table that is in no file, and a counter."""

    def __init__(self, seed: int = 0, lazy: bool = False) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(4, 6)
        self.norm = nn.LazyBatchNorm1d() if lazy else nn.BatchNorm1d(6)
        self.last = nn.Linear(6, 1)
        self.register_buffer("mask", torch.tensor([0.1, -math.inf]))
        self.register_buffer("table", torch.full((3,), float(seed)), persistent=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 2**40
        out: Tensor = self.last(self.norm(self.first(x)).relu())
        return out


def train(model: nn.Module, optimizer: MendOptimizer, number: int, steps: range) -> None:
    """Learners have different data."""
    for step in steps:
        draws = torch.Generator().manual_seed(1000 * number + step)
        x = torch.randn(8, 4, generator=draws) * (1 + number) + 3 * number
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def drive(models: list[Any], made: list[MendOptimizer], steps: range) -> None:
    def loop(i: int) -> Callable[[], None]:
        return lambda: train(models[i], made[i], i, steps)

    together(*(loop(i) for i in range(len(made))))


def drive_until(models: list[Any], made: list[MendOptimizer], done: Callable[[], bool]) -> None:
    """Let all step until `done()`, or until one raises."""
    ends: list[bool] = []

    def loop(i: int) -> Callable[[], None]:
        def run() -> None:
            try:
                while not (ends or done()):
                    step = made[i].status().step
                    train(models[i], made[i], i, range(step, step + 1))
            finally:
                ends.append(True)

        return run

    together(*(loop(i) for i in range(len(made))))


def optimizers(models: list[Any]) -> tuple[list[Any], list[dict[str, Any]]]:
    """The inner optimizers, and the option of each learner."""
    inners = [AdamW(model.parameters(), lr=0.02) for model in models]
    return inners, [{"buffers": model} for model in models]


def files(models: list[Any]) -> list[list[Tensor]]:
    return [[tensor.clone() for tensor in model.state_dict().values()] for model in models]


def buffers(model: nn.Module) -> list[Tensor]:
    return [tensor.clone() for tensor in model.buffers()]


def fragments(optimizer: MendOptimizer) -> list[Progress]:
    assert optimizer._learner is not None
    return optimizer._learner.engine.state.fragments


# ── equal files ───────────────────────────────────────────────────────────────────────────────────

OPTIONS: dict[str, dict[str, Any]] = {
    "free": {},
    "auto": {"sync_every": "auto"},
    "late": {"adoption": Adoption(gain=0.3)},
    "lockstep": {"adopt_after": 0},
    "overlap": {"adopt_after": 3, "fragments": 2},
    "powersgd": {"codec": "powersgd"},
    "int8": {"codec": "int8", "moments": MomentSchedule(first=1, second=2)},
    "outer": {"outer": DiLoCoNesterov(), "moments": MomentSchedule(first=1, second=1)},
    "median": {"merge": "median", "weighting": "uniform"},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_learners_that_finish_have_equal_files(option: str) -> None:
    models = [Model(seed) for seed in range(3)]
    inners, each = optimizers(models)
    with cluster(*inners, each=each, **{**FREE, **OPTIONS[option]}) as made:

        def loop(i: int) -> Callable[[], Any]:
            def run() -> Any:
                train(models[i], made[i], i, range((24, 31, 12)[i]))
                return made[i].finish()

            return run

        found = together(*(loop(i) for i in range(3)))
    assert all(found)
    assert len({finish.digest for finish in found}) == 1
    first, *others = files(models)
    for other in others:
        assert same(first, other)
    norm = models[0].norm
    assert isinstance(norm, nn.BatchNorm1d)
    assert norm.running_var is not None
    assert bool((norm.running_var > 0).all())
    assert models[0].mask.tolist() == [torch.tensor(0.1).item(), -math.inf]
    # Of some learner, to the last bit.
    assert int(models[0].seen) % 2**40 == 0
    assert [model.table[0].item() for model in models] == [0.0, 1.0, 2.0]


def test_without_the_argument_buffers_stay_local() -> None:
    models = [Model(seed) for seed in range(2)]
    inners, _ = optimizers(models)
    with cluster(*inners, **LOCKSTEP) as made:
        drive(models, made, range(6))
        assert all(together(*(o.finish for o in made)))
        assert len(made[0].status().fragments) == 1
    norms = [model.norm.running_mean for model in models]
    assert not torch.equal(*norms)
    assert torch.equal(models[0].first.weight, models[1].first.weight)


# ── the mean ──────────────────────────────────────────────────────────────────────────────────────


def test_in_lockstep_every_round_is_the_weighted_mean() -> None:
    """The outer step, the factor of the mean and the codec are for deltas: they don't touch it."""
    models = [Model(seed) for seed in range(2)]
    inners, each = optimizers(models)
    options = {"outer": DiLoCoNesterov(), "merge": "norm_preserving", "codec": "int4"}
    with cluster(*inners, each=each, **{**LOCKSTEP, **options}) as made:
        drive(models, made, range(3))
        observed = []
        for i, model in enumerate(models):
            twin = copy.deepcopy(model)
            draws = torch.Generator().manual_seed(1000 * i + 3)
            twin(torch.randn(8, 4, generator=draws) * (1 + i) + 3 * i)
            observed.append(twin)

        def loop(i: int) -> Callable[[], None]:
            def run() -> None:
                made[i].count_tokens(1 + 2 * i)
                train(models[i], made[i], i, range(3, 4))

            return run

        together(*(loop(i) for i in range(2)))
        for name in ("running_mean", "running_var"):
            one, other = (getattr(twin.norm, name).double() for twin in observed)
            expected = (0.25 * one + 0.75 * other).float()
            for model in models:
                torch.testing.assert_close(getattr(model.norm, name), expected, rtol=1e-6, atol=0)
        assert int(models[0].seen) == int(observed[1].seen)


def test_the_anchor_is_swapped_in_and_a_learners_own_buffers_come_back() -> None:
    models = [Model(seed) for seed in range(2)]
    inners, each = optimizers(models)
    with cluster(*inners, each=each, **LOCKSTEP) as made:
        drive(models, made, range(4))
        merged = buffers(models[0])
        models[0](torch.ones(8, 4))
        own = buffers(models[0])
        assert not same(own, merged)
        with made[0].global_weights():
            assert same(buffers(models[0]), merged)
            models[0](torch.ones(8, 4))
        assert same(buffers(models[0]), own)
        with pytest.raises(ZeroDivisionError), made[0].global_weights():
            raise ZeroDivisionError
        assert same(buffers(models[0]), own)


def test_at_rest_all_have_the_anchors_buffers() -> None:
    models = [Model(seed) for seed in range(2)]
    inners, each = optimizers(models)
    with cluster(*inners, each=each, sync_every=5) as made:
        drive(models, made, range(23))
        settle(made)
        state = [model.state_dict() for model in models]
        for name in ("norm.running_mean", "norm.running_var", "seen", "mask"):
            assert torch.equal(state[0][name], state[1][name]), name
        drive(models, made, range(23, 40))
        assert all(together(*(o.finish for o in made)))
    assert same(*files(models))


def test_a_newcomer_takes_the_buffers_over() -> None:
    models = [Model(seed) for seed in range(3)]
    inners, each = optimizers(models)
    with cluster(*inners[:2], each=each[:2], **LOCKSTEP) as made:
        drive(models, made, range(3))
        address = made[0].status().address
        late = MendOptimizer(inners[2], name="z", peers=[address], **each[2], **LOCKSTEP)
        try:
            late.join()
            mean = models[2].norm.running_mean
            assert mean is not None
            assert bool((mean != 0).all())
            assert int(models[2].seen) >= 2**40
            assert models[2].table[0].item() == 2.0
        finally:
            late.close()


# ── checkpoints ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("at", [14, 15, 16])
@pytest.mark.parametrize("overlap", [0, 2])
def test_a_run_goes_on_from_a_checkpoint_to_the_bit(at: int, overlap: int) -> None:
    options = {"sync_every": 7, "adopt_after": overlap}

    def run(saved: list[Any] | None, steps: range) -> tuple[list[Any], list[Any]]:
        models = [Model(seed) for seed in range(2)]
        inners, each = optimizers(models)
        with cluster(*inners, each=each, started=False, **options) as made:
            for i, state in enumerate(saved or []):
                models[i].load_state_dict(state["model"])
                made[i].load_state_dict(state["optimizer"])
            start(made)
            drive(models, made, steps)
            kept = [
                stored({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
                for model, optimizer in zip(models, made, strict=True)
            ]
            return kept, files(models)

    _, straight = run(None, range(30))
    saved, _ = run(None, range(at))
    _, resumed = run(saved, range(at, 30))
    for one, other in zip(straight, resumed, strict=True):
        assert same(one, other)


@pytest.mark.filterwarnings("ignore")  # of torch: there is no process group, and need not be
def test_a_distributed_checkpoint_has_them(tmp_path: Path) -> None:
    models = [Model(seed) for seed in range(2)]
    inners, each = optimizers(models)
    with cluster(*inners, each=each, **LOCKSTEP) as made:
        drive(models, made, range(5))
        expected = buffers(models[0])
        dcp.save({"learner": LearnerState(made[0])}, checkpoint_id=tmp_path)
    model = Model(0)
    with cluster(*optimizers([model])[0], started=False, buffers=model, **LOCKSTEP) as (other,):
        dcp.load({"learner": LearnerState(other)}, checkpoint_id=tmp_path)
        # These are other weights than the saved ones: the anchor replaces them.
        other._run.ensure_joined()
        found = buffers(model)
    for name, one, two in zip(dict(model.named_buffers()), found, expected, strict=True):
        assert torch.equal(one, two), name


@pytest.mark.parametrize("before", [True, False])
def test_a_checkpoint_with_other_buffers_is_refused(before: bool) -> None:
    model, other = Model(0), Model(0)
    with cluster(*optimizers([model, other])[0], **LOCKSTEP, buffers=None) as made:
        drive([model, other], made, range(3))
        without = stored(made[0].state_dict())
    inners, each = optimizers([model, other])
    with cluster(*inners, each=each, **LOCKSTEP) as made:
        drive([model, other], made, range(3))
        with_them = stored(made[0].state_dict())
    has = {} if before else {"buffers": model}
    (inner,), _ = optimizers([model])
    with cluster(inner, started=False, **LOCKSTEP, **has) as (optimizer,):
        counts = "0 buffers, got 5" if before else "5 buffers, got 0"
        with pytest.raises(UsageError, match=f"must have {counts}: pass the same `buffers`"):
            optimizer.load_state_dict(with_them if before else without)


@pytest.mark.parametrize(
    "change",
    [
        lambda tensor: tensor.float(),
        lambda tensor: tensor[:-8],
        lambda tensor: tensor.view(-1, 8),
        lambda tensor: tensor + 1,
        lambda tensor: None,
    ],
    ids=["dtype", "size", "shape", "content", "absent"],
)
def test_damaged_buffers_in_a_checkpoint_are_refused(change: Callable[[Tensor], Any]) -> None:
    models = [Model(seed) for seed in range(2)]
    inners, each = optimizers(models)
    with cluster(*inners, each=each, **LOCKSTEP) as made:
        drive(models, made, range(3))
        state = stored(made[0].state_dict())
        tensors = state["mend"]["fragments"][1]["tensors"]
        tensors["anchor"] = change(tensors["anchor"])
        if tensors["anchor"] is None:
            del tensors["anchor"]
        with pytest.raises(UsageError, match="state_dict"):
            made[0].load_state_dict(state)


def test_a_copy_keeps_them() -> None:
    model = Model(0)
    (inner,), _ = optimizers([model])
    optimizer = MendOptimizer(inner, buffers=model)
    train(model, optimizer, 0, range(2))
    for again in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert len(again._run.model.buffers.tensors()) == 5
        assert again._run.model.buffers.modules[0] is not model


# ── which models ──────────────────────────────────────────────────────────────────────────────────


def test_lazy_batch_norm_starts_at_the_first_step() -> None:
    models = [Model(seed, lazy=True) for seed in range(2)]
    inners, each = optimizers(models)
    options = {"timing": TIMING, **LOCKSTEP}
    with ExitStack() as stack:
        first = MendOptimizer(inners[0], name="a", listen=LOOPBACK, **each[0], **options)
        stack.enter_context(closing(first))
        assert first._learner is None
        models[0](torch.ones(8, 4))
        first.join()
        peers = [first.status().address]
        second = MendOptimizer(inners[1], name="b", peers=peers, **each[1], **options)
        stack.enter_context(closing(second))
        assert second._learner is None
        models[1](torch.ones(8, 4))
        second.join()
        start([first, second])
        drive(models, [first, second], range(4))
        assert all(together(first.finish, second.finish))
    assert same(*files(models))
    assert isinstance(models[0].norm, nn.BatchNorm1d)


def test_a_module_need_not_be_the_optimizers() -> None:
    """Its parameters are frozen, or it has none."""
    outside = [nn.BatchNorm1d(4, affine=False), nn.BatchNorm1d(4, affine=False)]
    inners = [SGD([nn.Parameter(torch.ones(2))], lr=1.0) for _ in outside]
    each = [{"buffers": [module, nn.ReLU()]} for module in outside]
    with cluster(*inners, each=each, **LOCKSTEP) as made:

        def loop(i: int) -> Callable[[], None]:
            def run() -> None:
                outside[i](torch.full((4, 4), 2.0 + 4 * i))
                for group in made[i].param_groups:
                    group["params"][0].grad = torch.ones(2)
                made[i].step()

            return run

        together(*(loop(i) for i in range(2)))
        for module in outside:
            assert module.running_mean is not None
            assert module.running_mean.tolist() == pytest.approx([0.4] * 4)


def test_a_model_without_buffers_trains_with_one_that_has_no_such_argument() -> None:
    models = [nn.Linear(4, 1), nn.Linear(4, 1)]
    inners = [SGD(model.parameters(), lr=0.1) for model in models]
    with cluster(*inners, each=[{"buffers": models[0]}, {}], **LOCKSTEP) as made:
        drive(models, made, range(2))
        assert len(made[0].status().fragments) == 1
    assert torch.equal(models[0].weight, models[1].weight)


def test_a_buffer_that_two_modules_share_moves_once() -> None:
    shared = [torch.zeros(3), torch.zeros(3)]
    modules = []
    for tensor in shared:
        module = nn.ModuleList([nn.Module(), nn.Module()])
        for part in module:
            part.register_buffer("mean", tensor)
        modules.append(module)
    inners = [SGD([nn.Parameter(torch.ones(2))], lr=1.0) for _ in shared]
    each = [{"buffers": module} for module in modules]
    with cluster(*inners, each=each, **{**LOCKSTEP, "adopt_after": 1}) as made:

        def loop(i: int) -> Callable[[], None]:
            def run() -> None:
                shared[i].fill_(1.0 + i)
                for _ in range(2):
                    for group in made[i].param_groups:
                        group["params"][0].grad = torch.ones(2)
                    made[i].step()
                    shared[i].add_(10.0)

            return run

        together(*(loop(i) for i in range(2)))
        # The second one moved by half of its distance to the first, the first one by none.
        assert [tensor[0].item() for tensor in shared] == [21.0, 21.5]


def test_a_group_may_be_added_later() -> None:
    models = [Model(seed) for seed in range(2)]
    inners, each = optimizers(models)
    extra = [nn.Parameter(torch.full((3,), float(i))) for i in range(2)]
    with cluster(*inners, each=each, **FREE) as made:
        drive(models, made, range(6))
        for optimizer, parameter in zip(made, extra, strict=True):
            optimizer.add_param_group({"params": [parameter]})
        for optimizer in made:
            until(optimizer, lambda o=optimizer: len(fragments(o)) == 3)  # type: ignore[misc]
        kinds = [type(f).__name__ for f in made[0]._run.model.layout().fragments]
        assert kinds == ["Fragment", "BufferFragment", "Fragment"]
        for parameter in extra:
            parameter.grad = torch.ones(3)
        drive(models, made, range(6, 20))
        assert all(together(*(o.finish for o in made)))
    assert same(*files(models))
    assert torch.equal(extra[0], extra[1])


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────


def test_learners_that_differ_in_the_argument_refuse_each_other() -> None:
    models = [Model(seed) for seed in range(2)]
    inners, _ = optimizers(models)
    watches = [Watch(), Watch()]
    each = [{"on_event": watches[0], "buffers": models[0]}, {"on_event": watches[1]}]
    with cluster(*inners, each=each, started=False, **FREE) as made:
        together(made[0].join, made[1].join)
        texts = [watch.until("refused")[0].text for watch in watches]
    assert "buffers: here 5 tensors, there absent; pass the same buffers to both" in texts[0]
    assert "buffers: here absent, there 5 tensors; pass the same buffers to both" in texts[1]


def test_a_buffer_of_another_shape_in_mid_run_is_named() -> None:
    models = [Model(seed) for seed in range(2)]
    inners, each = optimizers(models)
    with cluster(*inners, each=each, **FREE) as made:
        drive(models, made, range(5))
        models[0].register_buffer("seen", torch.zeros(2, dtype=torch.int64))
        message = r"buffers: seen must keep its shape \[\] and torch.int64 .* got \[2\] torch.int64"
        with pytest.raises(UsageError, match=message):
            drive_until(models, made, lambda: False)
        with pytest.raises(UsageError, match=message), made[0].global_weights():
            pass


def test_a_buffer_that_is_not_finite_stays_with_its_learner() -> None:
    models = [Model(seed) for seed in range(2)]
    inners, each = optimizers(models)
    watch = Watch()
    with cluster(*inners, each=[{**each[0], "on_event": watch}, each[1]], **FREE) as made:
        drive(models, made, range(9))
        assert isinstance(models[0].norm, nn.BatchNorm1d)
        assert models[0].norm.running_mean is not None
        models[0].norm.running_mean.fill_(math.nan)
        drive_until(models, made, lambda: bool(watch.of("healed")))
        texts = [event.text for event in watch.of("healed")]
        assert any("Buffer norm.running_mean is not finite" in text for text in texts)
        with made[1].global_weights():
            assert all(bool(t.isfinite().all()) for t in models[1].norm.state_dict().values())


@pytest.mark.parametrize("value", ["model", 3, [3], torch.ones(2)])
def test_what_is_no_module_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match=r"buffers must be None, a torch\.nn\.Module or several"):
        MendOptimizer(SGD([nn.Parameter(torch.ones(2))], lr=1.0), buffers=value)
