from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn, optim
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

from mend_optim.engine.moment_schedule import Moment, MomentSchedule, half_life
from mend_optim.errors import UsageError
from mend_optim.model.known_moments import decay_of, decays, known_moments
from mend_optim.model.layout import Layout
from mend_optim.model.many_tensors import copy_each
from mend_optim.model.moment_state import (
    FragmentState,
    clip_first_moment,
    correct,
    install,
    read,
)
from tests import reference
from tests.support.depth import many
from tests.support.older_torch import HAS_TENSOR_BETAS

Make = Callable[[Any], Optimizer]
LR = 1e-3


class Lion(Optimizer):
    """As the packages have it, less weight decay."""

    def __init__(
        self, params: Any, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99)
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                    p.add_(m.lerp(p.grad, 1 - group["betas"][0]).sign_(), alpha=-group["lr"])
                    m.lerp_(p.grad, 1 - group["betas"][1])


OPTIMIZERS: dict[str, Make] = {
    "Adam": lambda p: optim.Adam(p, lr=LR),
    "Adam, short": lambda p: optim.Adam(p, lr=LR, betas=(0.5, 0.7)),
    "AdamW": lambda p: optim.AdamW(p, lr=LR, betas=(0.9, 0.95), weight_decay=0.1),
    "AdamW, foreach": lambda p: optim.AdamW(p, lr=LR, foreach=True),
    "AdamW, fused": lambda p: optim.AdamW(p, lr=LR, fused=True),
    "AdamW, tensor lr": lambda p: optim.AdamW(p, lr=torch.tensor(LR)),
    "AMSGrad": lambda p: optim.AdamW(p, lr=LR, amsgrad=True),
    "NAdam": lambda p: optim.NAdam(p, lr=LR),
    "RAdam": lambda p: optim.RAdam(p, lr=LR, betas=(0.9, 0.99)),
    "Adamax": lambda p: optim.Adamax(p, lr=LR),
    "SGD": lambda p: optim.SGD(p, lr=LR, momentum=0.9),
    "SGD, Nesterov": lambda p: optim.SGD(p, lr=LR, momentum=0.9, nesterov=True),
    "SGD, dampening": lambda p: optim.SGD(p, lr=LR, momentum=0.8, dampening=0.5),
    "SGD, fused": lambda p: optim.SGD(p, lr=LR, momentum=0.9, fused=True),
    "RMSprop": lambda p: optim.RMSprop(p, lr=LR),
    "RMSprop, momentum": lambda p: optim.RMSprop(p, lr=LR, momentum=0.9),
    "RMSprop, centered": lambda p: optim.RMSprop(p, lr=LR, centered=True, momentum=0.5),
    "Lion": lambda p: Lion(p),
}
if hasattr(optim, "Muon"):
    OPTIMIZERS["Muon"] = lambda p: optim.Muon([q for q in p if q.ndim == 2], lr=LR)
if HAS_TENSOR_BETAS:
    OPTIMIZERS["Adam, tensor betas"] = lambda p: optim.Adam(
        p, lr=LR, betas=(torch.tensor(0.9), torch.tensor(0.99)), foreach=False
    )
COUNTLESS = ("SGD", "Lion", "Muon")  # these have no state["step"]
SHAPES = [(3, 2), (2, 4)]
ADAM = {
    "exp_avg": ("first", "betas.0", True, False, False),
    "exp_avg_sq": ("second", "betas.1", True, True, False),
}
BUFFER = {"momentum_buffer": ("first", "momentum", False, False, False)}
SQUARE = ("second", "alpha", False, True, False)


class Learner:
    """Parameters, their optimizer, and gradients that are drawn: the learner's own."""

    def __init__(
        self,
        make: Make,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        parameters: Sequence[Tensor] | None = None,
    ) -> None:
        self.draws = torch.Generator().manual_seed(seed)
        made = (
            [torch.randn(s, generator=self.draws).to(dtype) for s in SHAPES]
            if parameters is None
            else parameters
        )
        self.parameters = [nn.Parameter(p) for p in made]
        self.inner, self.steps = make(self.parameters), 0
        self.layout = Layout([f"w{i}" for i in range(len(made))], self.parameters, 1)
        (self.fragment,) = self.layout.fragments
        self.moments = known_moments(self.inner, MomentSchedule())

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.inner.step()
        self.steps += 1

    def noise(self) -> list[Tensor]:
        """A gradient for each parameter, with the strides of the parameter."""
        return [torch.empty_like(p).normal_(generator=self.draws) for p in self.parameters]

    def train(self, steps: int, rest: float = 0.0) -> Learner:
        """Gradients of all sizes; `rest`: the chance of a tensor to have none."""
        for _ in range(steps):
            size = 10 ** torch.empty(()).uniform_(-3, 1, generator=self.draws)
            drawn = [
                (size * torch.randn(p.shape, generator=self.draws)).to(p.dtype)
                for p in self.parameters
            ]
            absent = torch.rand(len(drawn), generator=self.draws) < rest
            self.step([None if gone else g for g, gone in zip(drawn, absent, strict=True)])
        return self

    def read(self, moment: Moment) -> tuple[Tensor, tuple[int, ...]]:
        out = torch.full((self.fragment.numel,), math.nan)
        return out, read(moment, self.fragment_state, out)

    def correct(self, moment: Moment, values: Tensor, then: tuple[int, ...]) -> None:
        correct(moment, self.fragment_state, values.clone(), then)

    @property
    def fragment_state(self) -> FragmentState:
        return FragmentState(self.fragment, self.parameters, self.inner, self.steps)

    def state(self, name: str, i: int = 0) -> Tensor:
        found: Tensor = self.inner.state[self.parameters[i]][name]
        return found

    def count(self, i: int) -> int:
        return int(self.inner.state[self.parameters[i]].get("step", self.steps))

    def everything(self) -> list[Tensor]:
        states = [self.inner.state.get(p, {}) for p in self.parameters]
        return [value for state in states for value in state.values() if isinstance(value, Tensor)]


def bits(tensors: Sequence[Tensor]) -> list[bytes]:
    """So that −0 is not 0, and NaN is NaN."""
    return [t.detach().reshape(-1).view(torch.uint8).numpy().tobytes() for t in tensors]


def named(moments: Sequence[Moment]) -> dict[str, tuple[str, float | str, bool, bool, bool]]:
    return {m.name: (m.order, m.decay, m.corrected, m.nonnegative, m.exact) for m in moments}


def of_kind(*kinds: str) -> list[str]:
    return [name for name in OPTIMIZERS if name.split(",")[0] in kinds]


EACH = [
    pytest.param(name, moment, id=f"{name}: {moment.name}")
    for name, make in OPTIMIZERS.items()
    for moment in Learner(make).moments
]


def synced(learners: Sequence[Learner], moment: Moment, lag: int = 0, rest: float = 0.0) -> None:
    """One round: all read, the mean is made, all go on for `lag` steps, and adopt it."""
    readings = [learner.read(moment) for learner in learners]
    mean = torch.stack([values.double() for values, _ in readings]).mean(0).float()
    for learner, (own, then) in zip(learners, readings, strict=True):
        learner.train(lag, rest).correct(moment, mean - own, then)


def averaged_by_the_book(learners: Sequence[Learner], moment: Moment) -> None:
    for i in range(len(SHAPES)):
        states = [learner.state(moment.name, i) for learner in learners]
        counts = [learner.count(i) for learner in learners]
        (decay,) = {decays([moment], learner.inner)[moment.order] for learner in learners}
        found = reference.averaged(
            [s.flatten().tolist() for s in states], counts, decay, moment.corrected
        )
        for state, values in zip(states, found, strict=True):
            state.copy_(torch.tensor(values, dtype=torch.float64).view(state.shape))


# ── which ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (of_kind("Adam", "AdamW", "AMSGrad", "NAdam", "RAdam"), ADAM),
        (["Adamax"], {"exp_avg": ADAM["exp_avg"]}),
        (of_kind("SGD", "Muon"), BUFFER),
        (["RMSprop"], {"square_avg": SQUARE}),
        (["RMSprop, momentum"], {**BUFFER, "square_avg": SQUARE}),
        (
            ["RMSprop, centered"],
            {
                **BUFFER,
                "grad_avg": ("second", "alpha", False, False, True),
                "square_avg": ("second", "alpha", False, True, True),
            },
        ),
        (["Lion"], {"exp_avg": ("first", "betas.1", False, False, False)}),
    ],
)
def test_the_moments_of_each_optimizer(names: list[str], expected: dict[str, Any]) -> None:
    for name in names:
        learner = Learner(OPTIMIZERS[name]).train(1)
        assert named(learner.moments) == expected
        assert expected.keys() <= learner.inner.state[learner.parameters[0]].keys()


def test_every_optimizer_of_the_table_is_in_the_test_above() -> None:
    assert all(Learner(make).moments for make in OPTIMIZERS.values())


def test_an_optimizer_is_known_by_what_it_is_derived_from() -> None:
    class Ours(optim.AdamW):
        pass

    class Theirs(Lion):
        pass

    p = [nn.Parameter(torch.zeros(2))]
    assert named(known_moments(Ours(p), MomentSchedule())) == ADAM
    assert [m.decay for m in known_moments(Theirs(p), MomentSchedule())] == ["betas.1"]


@pytest.mark.parametrize(
    "make",
    [
        optim.SGD,
        optim.Adagrad,
        optim.Adadelta,
        optim.SparseAdam,
        optim.LBFGS,
        lambda p: optim.SGD(p, momentum=0.0),
    ],
)
def test_no_moments(make: Make) -> None:
    assert known_moments(make([nn.Parameter(torch.zeros(2))]), MomentSchedule()) == ()


def test_momentum_in_any_group_is_a_moment() -> None:
    groups = [
        {"params": [nn.Parameter(torch.zeros(2))]},
        {"params": [nn.Parameter(torch.zeros(2))], "momentum": 0.9},
    ]
    assert named(known_moments(optim.SGD(groups), MomentSchedule())) == BUFFER


def test_moments_may_be_named_where_an_optimizer_is_not_known() -> None:
    mine = Moment(name="acc_delta", order="second", decay="rho", nonnegative=True)
    inner = optim.Adadelta([nn.Parameter(torch.zeros(2))], rho=0.8)
    assert known_moments(inner, MomentSchedule(states=(mine,))) == (mine,)
    assert decays([mine], inner) == {"second": 0.8}
    fixed = Moment(name="x", order="first", decay=0.5)
    assert known_moments(
        optim.Adam([nn.Parameter(torch.zeros(2))]), MomentSchedule(states=(fixed,))
    ) == (fixed,)


@pytest.mark.parametrize(
    "decay", ["beta", "rho.0", "lr.x", "params.0", "foreach", "betas.2", "betas"]
)
def test_a_decay_that_no_group_has_is_refused(decay: str) -> None:
    inner = optim.Adam([nn.Parameter(torch.full((2,), 5.0))])
    with pytest.raises(
        UsageError,
        match=r"decay of 'm' must be where a parameter group of Adam has a number .*, got",
    ):
        known_moments(inner, MomentSchedule(states=(Moment(name="m", order="first", decay=decay),)))


def test_the_largest_decay_of_each_order_counts() -> None:
    p, q = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    inner = optim.Adam([{"params": [p]}, {"params": [q], "betas": (0.95, 0.9)}])
    assert decays(known_moments(inner, MomentSchedule()), inner) == {"first": 0.95, "second": 0.999}
    centered = optim.RMSprop([p], alpha=0.8, momentum=0.7, centered=True)
    assert decays(known_moments(centered, MomentSchedule()), centered) == {
        "first": 0.7,
        "second": 0.8,
    }
    assert decays([], inner) == {}


# ── when ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("decay", "steps"),
    [(0.9, 6.58), (0.95, 13.51), (0.99, 68.97), (0.999, 692.8), (0.9999, 6931.1)],
)
def test_half_lives(decay: float, steps: float) -> None:
    assert half_life(decay) == pytest.approx(steps, rel=1e-3)
    assert decay ** half_life(decay) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("decay", "sync_every", "rounds"),
    [(0.9, 1, 7), (0.9, 128, 1), (0.999, 128, 5), (0.999, 100, 7), (0.9999, 128, 54), (0.0, 1, 1)],
)
def test_half_lives_in_rounds(decay: float, sync_every: int, rounds: int) -> None:
    schedule = MomentSchedule(first=2, second="half_life")
    assert schedule.resolve({"second": decay}, sync_every).rounds == (
        ("first", 2),
        ("second", rounds),
    )


def test_of_an_order_that_there_is_not_the_half_life_does_not_matter() -> None:
    assert MomentSchedule(first="half_life", second="half_life").resolve({"first": 0.9}, 2).rounds[
        0
    ] == ("first", 3)


def test_what_never_forgets_has_no_half_life() -> None:
    with pytest.raises(
        UsageError, match=r"moments\.first must be an int >= 1 .* got 'half_life'; a decay of 1.0"
    ):
        MomentSchedule(first="half_life").resolve({"first": 1.0}, 8)


def test_a_moment_is_due_when_its_period_divides_the_version() -> None:
    schedule = MomentSchedule()
    assert [v for v in range(1, 13) if schedule.due(v, "first")] == [3, 6, 9, 12]
    assert [v for v in range(1, 13) if schedule.due(v, "second")] == [6, 12]
    assert [v for v in range(1, 5) if MomentSchedule(first=1).due(v, "first")] == [1, 2, 3, 4]


@pytest.mark.parametrize("order", ["first", "second"])
@pytest.mark.parametrize("period", [0, -1, 1.5, True, "often", None])
def test_a_period_that_cannot_be_is_refused(order: str, period: Any) -> None:
    with pytest.raises(
        UsageError, match=rf'moments\.{order} must be an int >= 1 or "half_life", got'
    ):
        MomentSchedule(**{order: period})


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"name": ""}, r"moment\.name"),
        ({"name": 3}, r"moment\.name"),
        ({"order": "third"}, r"moment\.order must be one of \['first', 'second'\], got 'third'"),
        ({"decay": 1.0}, r"moment\.decay must be in \[0, 1\), or where a parameter group has it"),
        ({"decay": -0.1}, r"moment\.decay"),
        ({"decay": math.nan}, r"moment\.decay"),
        ({"decay": ""}, r"moment\.decay"),
        ({"decay": True}, r"moment\.decay"),
    ],
)
def test_a_moment_that_cannot_be_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Moment(**{"name": "m", "order": "first", "decay": 0.9, **wrong})


def test_states_are_a_tuple_of_moments_with_names_of_their_own() -> None:
    m = Moment(name="m", order="first", decay=0.9)
    for states in ([m], ("m",), (m, m)):
        with pytest.raises(UsageError, match=r"moments\.states must be"):
            MomentSchedule(states=states)  # type: ignore[arg-type]


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


def test_what_is_read_is_what_adam_divides_by() -> None:
    """After t equal gradients g, the corrected moments are g and g², whatever t and β."""
    for name in ("Adam", "Adam, short", "NAdam", "RAdam", "AMSGrad"):
        learner = Learner(OPTIMIZERS[name])
        for t in (1, 2, 3):
            learner.step([torch.full(shape, 0.5) for shape in SHAPES])
            for moment, value in zip(learner.moments, (0.5, 0.25), strict=True):
                values, updates = learner.read(moment)
                assert values.tolist() == pytest.approx([value] * 14, rel=1e-5)
                assert updates == (t, t)


@pytest.mark.parametrize("name", ["SGD", "RMSprop, centered", "Lion", *of_kind("Muon")])
def test_what_is_not_corrected_is_read_as_it_is(name: str) -> None:
    learner = Learner(OPTIMIZERS[name]).train(3)
    for moment in learner.moments:
        values, updates = learner.read(moment)
        assert torch.equal(
            values, torch.cat([learner.state(moment.name, i).flatten() for i in range(2)])
        )
        assert updates == (3, 3)


def test_where_there_is_nothing_there_are_zeros() -> None:
    learner = Learner(OPTIMIZERS["Adam"])
    assert learner.read(learner.moments[0])[0].tolist() == [0] * 14
    assert learner.read(learner.moments[0])[1] == (0, 0)
    learner.step([None, torch.ones(2, 4)])
    values, updates = learner.read(learner.moments[0])
    assert values.tolist() == pytest.approx([0] * 6 + [1] * 8)
    assert updates == (0, 1)
    assert learner.parameters[0] not in learner.inner.state  # looking must not make one


def test_reading_changes_nothing() -> None:
    for make in OPTIMIZERS.values():
        learner = Learner(make).train(3)
        before = bits(learner.everything())
        for moment in learner.moments:
            learner.read(moment)
        assert bits(learner.everything()) == before


@pytest.mark.parametrize(
    "kind",
    [int, float, torch.tensor, lambda t: torch.tensor([float(t)]), lambda t: torch.tensor([[t]])],
)
def test_counters_may_be_of_any_kind(kind: Callable[[int], Any]) -> None:
    learner = Learner(OPTIMIZERS["Adam"]).train(3)
    learner.inner.state[learner.parameters[0]]["step"] = kind(2)
    assert learner.read(learner.moments[0])[1] == (2, 3)


class Copies(TorchFunctionMode):
    """Records to which devices tensors are copied."""

    def __init__(self) -> None:
        super().__init__()
        self.to: list[torch.device] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.to:
            self.to.append(torch.device(args[1]))
        return func(*args, **(kwargs or {}))


def test_counters_are_not_copied_to_the_host_without_waiting() -> None:
    """They would be read before they are there."""
    learner = Learner(OPTIMIZERS["Adam"]).train(3)
    away = torch.zeros((), device="meta")
    learner.inner.state[learner.parameters[1]]["step"] = away
    with Copies() as copies, pytest.raises(NotImplementedError):  # it has no value
        learner.read(learner.moments[0])
    assert copies.to == [away.device, away.device]


def test_only_tensors_of_one_device_are_copied_by_one_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """State is on a GPU, and is copied to the host, where no stream carries it there."""
    calls: list[int] = []
    monkeypatch.setattr(torch, "_foreach_copy_", lambda to, of: calls.append(len(to)))
    here, away = [torch.zeros(2), torch.zeros(3)], [torch.ones(2), torch.ones(3)]
    copy_each(here, away)
    copy_each([], [])
    copy_each([tensor.to("meta") for tensor in here], away)
    copy_each([here[0].to("meta"), here[1]], away)
    assert calls == [2]
    assert here[1].tolist() == [1, 1, 1]  # one by one


def test_state_that_torch_makes_for_a_new_optimizer_tells_of_no_step() -> None:
    module = nn.Linear(2, 2)
    inner = optim.AdamW(module.parameters())
    get_optimizer_state_dict(module, inner)
    parameters = list(module.parameters())
    (fragment,) = Layout(["weight", "bias"], parameters, 1).fragments
    fragment_state = FragmentState(fragment, parameters, inner, 0)
    assert all(int(state["step"]) == 1 for state in inner.state.values())
    assert not fragment_state.has_stepped()
    module(torch.ones(2)).sum().backward()
    inner.step()
    assert fragment_state.has_stepped()


# ── late adoption is exact ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("name", "moment"), EACH)
@settings(max_examples=many(8, 20))  # of each of 33 moments
@given(
    seed=st.integers(0, 2**20),
    counts=st.lists(st.integers(1, 9), min_size=3, max_size=3),
    lag=st.integers(0, 7),
    double=st.booleans(),
)
def test_late_adoption_is_averaging_back_then(
    name: str, moment: Moment, seed: int, counts: list[int], lag: int, double: bool
) -> None:
    """Learners of different age, whatever gradients come in between, none at times where the
    optimizer counts."""
    dtype, rest = (
        torch.float64 if double else torch.float32,
        0.0 if name.startswith(COUNTLESS) else 0.3,
    )
    late = [
        Learner(OPTIMIZERS[name], seed + m, dtype).train(1).train(t - 1, rest)
        for m, t in enumerate(counts)
    ]
    then = deepcopy(late)
    averaged_by_the_book(then, moment)
    synced(late, moment, lag, rest)
    for one, other in zip(late, then, strict=True):
        other.train(lag, rest)
        for i in range(len(SHAPES)):
            size = max(float(learner.state(moment.name, i).abs().max()) for learner in late + then)
            apart = (one.state(moment.name, i) - other.state(moment.name, i)).abs().max()
            assert apart <= (1e-6 if double else 3e-6) * size


@pytest.mark.parametrize(("name", "moment"), EACH)
def test_of_learners_that_are_alike_in_age_it_is_the_plain_mean(name: str, moment: Moment) -> None:
    learners = [Learner(OPTIMIZERS[name], seed).train(4) for seed in range(3)]
    mean = torch.stack([learner.state(moment.name).double() for learner in learners]).mean(0)
    synced(learners, moment)
    for learner in learners:
        assert torch.allclose(learner.state(moment.name).double(), mean, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["Adam", "NAdam", "RAdam", "Adamax"])
def test_a_young_learner_does_not_make_an_old_one_forget(name: str) -> None:
    """Of equal gradients there is nothing to average, whatever the ages; the plain mean would be
    half of the old."""
    young, old = Learner(OPTIMIZERS[name]), Learner(OPTIMIZERS[name])
    for learner, steps in ((young, 1), (old, 300)):
        for _ in range(steps):
            learner.step([torch.full(shape, 0.5) for shape in SHAPES])
    before = [deepcopy(learner.everything()) for learner in (young, old)]
    for moment in young.moments:
        synced([young, old], moment)
    for learner, states in zip((young, old), before, strict=True):
        for state, was in zip(learner.everything(), states, strict=True):
            assert torch.allclose(state, was, rtol=1e-4, atol=0)


@pytest.mark.parametrize(("name", "moment"), EACH)
def test_the_mean_over_the_learners_stays_what_it_was(name: str, moment: Moment) -> None:
    learners = [Learner(OPTIMIZERS[name], seed).train(2 + 3 * seed) for seed in range(4)]
    before = torch.stack([learner.read(moment)[0].double() for learner in learners])
    synced(learners, moment)
    after = torch.stack([learner.read(moment)[0].double() for learner in learners])
    assert torch.allclose(
        after.mean(0), before.mean(0), rtol=1e-5, atol=1e-6 * float(before.abs().max())
    )
    # all have the same
    assert float((after - after.mean(0)).abs().max()) <= 1e-5 * float(before.abs().max())
    assert float((before - before.mean(0)).abs().max()) > 1e-2 * float(before.abs().max())


@pytest.mark.parametrize(("name", "moment"), EACH)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_alone_nothing_changes(name: str, moment: Moment, dtype: torch.dtype) -> None:
    learner = Learner(OPTIMIZERS[name], 0, dtype).train(3)
    learner.state(moment.name)[0, 0] = -0.0
    own, then = learner.read(moment)
    before = bits(learner.everything())
    learner.correct(moment, own - own, then)
    if moment.nonnegative:
        learner.state(moment.name)[0, 0] = -0.0
    assert bits(learner.everything()) == before


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**20),
    lag=st.integers(0, 5),
    name=st.sampled_from(["Adam", "Adam, short", "AMSGrad", "RMSprop"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    narrow=st.booleans(),
)
def test_a_second_moment_is_never_negative(
    seed: int, lag: int, name: str, dtype: torch.dtype, narrow: bool
) -> None:
    """Also where the mean is rounded on its way, and the state to half precision."""
    learners = [Learner(OPTIMIZERS[name], seed + m, dtype).train(1 + m) for m in range(2)]
    moment = learners[0].moments[-1]
    readings = [learner.read(moment) for learner in learners]
    mean = (readings[0][0] + readings[1][0]) / 2
    mean = mean.sqrt().bfloat16().float() ** 2 if narrow else mean
    for learner, (own, then) in zip(learners, readings, strict=True):
        for _ in range(lag):
            learner.step([torch.zeros(shape, dtype=dtype) for shape in SHAPES])
        learner.correct(moment, mean - own, then)
        assert all(float(learner.state(moment.name, i).min()) >= 0 for i in range(2))


@pytest.mark.parametrize("name", ["Adam", "AMSGrad", "RMSprop, centered"])
@pytest.mark.parametrize("batch", [1, 20, 1 << 20])
def test_a_correction_is_the_same_tensor_by_tensor(
    name: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mend_optim.model.many_tensors.BATCH", batch)
    one, other = (
        Learner(OPTIMIZERS[name], seed, parameters=is_unknown_optimizer()) for seed in (1, 2)
    )
    for learner in (one, other):
        for _ in range(3):
            learner.step(learner.noise())
    for moment in one.moments:
        (own, then), (theirs, _) = one.read(moment), other.read(moment)
        one.step(one.noise())
        decay = decay_of(moment, one.inner.param_groups[0])
        assert decay is not None
        expected = []
        for i, t in enumerate(then):
            state = one.state(moment.name, i).clone()
            state = torch.view_as_real(state) if state.is_complex() else state
            factor = decay * (1 - decay**t if moment.corrected else 1)
            part = (theirs - own)[one.fragment.span(i)].view(state.shape)
            state.sub_(torch.rsub(part, 0, alpha=factor))
            expected.append(state.clamp_(min=0) if moment.nonnegative else state)
        one.correct(moment, theirs - own, then)
        states = [one.state(moment.name, i) for i in range(len(expected))]
        assert bits(states) == bits(expected)


def test_a_second_moment_that_rounding_would_make_negative_is_zero() -> None:
    learner = Learner(OPTIMIZERS["RMSprop"]).train(1)
    (moment,) = learner.moments
    own, then = learner.read(moment)
    learner.correct(moment, -1.01 * own, then)
    assert all(float(learner.state(moment.name, i).abs().max()) == 0 for i in range(2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_narrow_state_is_read_without_rounding_it_once_more(dtype: torch.dtype) -> None:
    learner = Learner(OPTIMIZERS["Adam, short"], 0, dtype).train(2)
    for moment, decay in zip(learner.moments, (0.5, 0.7), strict=True):
        state = torch.cat([learner.state(moment.name, i).flatten() for i in range(2)])
        assert torch.equal(learner.read(moment)[0], state.float() / (1 - decay**2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_narrow_state_is_rounded_once(dtype: torch.dtype) -> None:
    learner = Learner(OPTIMIZERS["SGD"], 0, dtype).train(2)
    (moment,) = learner.moments
    own, then = learner.read(moment)
    values = torch.randn(14, generator=torch.Generator().manual_seed(1)) * 1e-2
    learner.correct(moment, values, then)
    exact = torch.cat([learner.state(moment.name, i).flatten() for i in range(2)])
    assert torch.equal(exact, (own + values).to(dtype))
    assert not torch.equal(exact, (own.to(dtype) + values.to(dtype)))


def test_the_present_decay_of_its_own_group_counts() -> None:
    def make(p: list[Tensor]) -> Optimizer:
        return optim.SGD(
            [{"params": p[:1], "momentum": 0.9}, {"params": p[1:], "momentum": 0.2}], lr=LR
        )

    learner = Learner(make).train(2)
    (moment,) = learner.moments
    _, then = learner.read(moment)
    learner.inner.param_groups[0]["momentum"] = 0.5  # by a schedule, say
    learner.train(2)
    before = [learner.state("momentum_buffer", i).clone() for i in range(2)]
    learner.correct(moment, torch.ones(14), then)
    for i, factor in enumerate((0.25, 0.04)):
        assert torch.allclose(
            learner.state("momentum_buffer", i) - before[i], torch.tensor(factor), atol=1e-5
        )


@pytest.mark.parametrize(("decay", "change"), [(1.0, 1.0), (0.0, 0.0), (1.5, None), (-0.1, None)])
def test_a_moment_may_forget_nothing_or_all_but_not_grow(
    decay: float, change: float | None
) -> None:
    learner = Learner(OPTIMIZERS["SGD"]).train(2)
    (moment,) = learner.moments
    learner.inner.param_groups[0]["momentum"] = decay
    _, then = learner.read(moment)
    assert then == ((0, 0) if change is None else (2, 2))
    learner.train(1)
    before = learner.state("momentum_buffer").clone()
    learner.correct(moment, torch.ones(14), (2, 2))
    assert torch.allclose(
        learner.state("momentum_buffer") - before, torch.tensor(change or 0.0), atol=1e-5
    )


# ── what may be there instead ─────────────────────────────────────────────────────────────────────


def is_unknown_optimizer() -> list[Tensor]:
    draws = torch.Generator().manual_seed(0)
    return [
        torch.randn(4, 6, generator=draws).t(),
        torch.randn(3, 4, generator=draws)[:, ::2],
        torch.randn(2, 3, 4, 5, generator=draws).to(memory_format=torch.channels_last),
        torch.randn(3, generator=draws, dtype=torch.complex64),
        torch.randn((), generator=draws),
        torch.randn(0, 3, generator=draws),
        torch.randn(1, generator=draws).expand(1),
        torch.randn(5, generator=draws).double(),
        torch.randn(5, generator=draws).bfloat16(),
    ]


@pytest.mark.parametrize(
    "name", ["Adam", "AMSGrad", "NAdam", "SGD, dampening", "RMSprop, centered", "Lion"]
)
def test_tensors_of_every_kind(name: str) -> None:
    """One learner is corrected to the moments of another."""
    one, other = (
        Learner(OPTIMIZERS[name], seed, parameters=is_unknown_optimizer()) for seed in (1, 2)
    )
    if name == "Lion":  # no sign of a complex number
        one, other = (
            Learner(OPTIMIZERS[name], seed, parameters=is_unknown_optimizer()[4:])
            for seed in (1, 2)
        )
    for learner in (one, other):
        for _ in range(3):
            learner.step(learner.noise())
    for moment in one.moments:
        (own, then), (theirs, _) = one.read(moment), other.read(moment)
        assert own.isfinite().all()
        one.correct(moment, theirs - own, then)
        for i, p in enumerate(one.parameters):
            close = 1e-2 if p.dtype is torch.bfloat16 else 1e-5
            assert torch.allclose(
                one.state(moment.name, i), other.state(moment.name, i), rtol=close, atol=close
            )


@pytest.mark.parametrize(
    "instead",
    [
        lambda s: s.to(torch.uint8),
        lambda s: s.flatten(),
        lambda s: s[:1],
        lambda s: s.to(torch.complex64),
        lambda s: s.to_sparse(),
        lambda s: None,
        lambda s: 3.0,
    ],
)
def test_a_state_that_is_not_as_expected_is_left_alone(instead: Callable[[Tensor], Any]) -> None:
    learner = Learner(OPTIMIZERS["Adam"]).train(2)
    moment, state = learner.moments[0], learner.inner.state[learner.parameters[0]]
    state["exp_avg"] = put = instead(state["exp_avg"])
    before = deepcopy(put)
    values, updates = learner.read(moment)
    assert updates == (0, 2)
    assert values[:6].tolist() == [0] * 6
    learner.correct(moment, torch.ones(14), (2, 2))
    learner.steps = 2
    clip_first_moment(learner.fragment_state)
    assert state["exp_avg"] is put
    assert not isinstance(put, Tensor) or torch.equal(put.to_dense(), before.to_dense())


@pytest.mark.parametrize("name", ["Adam", "SGD"])
def test_what_was_absent_then_or_is_now_stays_as_it_is(name: str) -> None:
    learner = Learner(OPTIMIZERS[name])
    moment = learner.moments[0]
    learner.step([None, torch.ones(2, 4)])
    _, then = learner.read(moment)
    learner.train(2)
    before = learner.state(moment.name).clone()
    learner.correct(moment, torch.ones(14), then)
    assert torch.equal(learner.state(moment.name), before)
    assert then == (0, 1)
    _, then = learner.read(moment)
    del learner.inner.state[learner.parameters[0]]
    learner.correct(moment, torch.ones(14), then)
    assert learner.parameters[0] not in learner.inner.state


def test_a_state_that_was_made_anew_stays_as_it_is() -> None:
    """It counts fewer updates than then: older than itself, the correction would grow."""
    learner = Learner(OPTIMIZERS["Adam"]).train(5)
    moment = learner.moments[0]
    _, then = learner.read(moment)
    learner.inner.state.clear()
    learner.train(2)
    before = bits(learner.everything())
    learner.correct(moment, torch.ones(14), then)
    assert bits(learner.everything()) == before


def test_a_state_without_an_update_is_absent() -> None:
    """GradScaler's first step of a fused optimizer leaves one where the gradients overflow."""
    learner = Learner(OPTIMIZERS["Adam"]).train(1)
    learner.inner.state[learner.parameters[0]]["step"].zero_()
    values, updates = learner.read(learner.moments[0])
    assert updates == (0, 1)
    assert values[:6].tolist() == [0] * 6


# ── a mean gradient without its variance ──────────────────────────────────────────────────────────


def rare(name: str) -> Learner:
    """Has met no gradient of its first tensor, but others have, and sent its first moment."""
    learner = Learner(OPTIMIZERS[name])
    for _ in range(30):
        learner.step([torch.zeros(3, 2), torch.ones(2, 4)])
    own, then = learner.read(learner.moments[0])
    theirs = own.clone()
    theirs[:6] = 1e-3
    learner.correct(learner.moments[0], theirs - own, then)
    return learner


@pytest.mark.parametrize("name", ["Adam", "AdamW", "AMSGrad", "NAdam", "RAdam", "Adamax"])
@pytest.mark.parametrize("held", [True, False])
def test_nobody_is_thrown_away_by_a_first_moment_that_comes_without_a_second(
    name: str, held: bool
) -> None:
    learner = rare(name)
    if held:
        clip_first_moment(learner.fragment_state)
    before = learner.parameters[0].detach().clone()
    learner.step([torch.zeros(3, 2), torch.ones(2, 4)])
    moved = float((learner.parameters[0].detach() - before).abs().max()) / LR
    assert moved <= 2 if held else moved > 1e4


@pytest.mark.parametrize("name", ["Adam", "Adam, short", "AdamW", "NAdam", "Adamax"])
@given(
    st.lists(st.sampled_from([0.0, 1e-6, 1e-3, -1e-3, 1.0, -30.0]), min_size=1, max_size=30),
    st.booleans(),
)
def test_nobody_alone_is_restrained(name: str, gradients: list[float], narrow: bool) -> None:
    learner = Learner(OPTIMIZERS[name], 0, torch.bfloat16 if narrow else torch.float32)
    for g in gradients:
        learner.step(
            [
                torch.full(shape, g, dtype=p.dtype)
                for shape, p in zip(SHAPES, learner.parameters, strict=True)
            ]
        )
    before = bits(learner.everything())
    clip_first_moment(learner.fragment_state)
    assert bits(learner.everything()) == before


@settings(max_examples=30)
@given(
    st.integers(0, 2**20), st.lists(st.integers(20, 40), min_size=2, max_size=4), st.integers(0, 6)
)
def test_nobody_is_restrained_whose_moments_are_both_averaged(
    seed: int, counts: list[int], lag: int
) -> None:
    learners = [Learner(OPTIMIZERS["Adam, short"], seed + m).train(t) for m, t in enumerate(counts)]
    readings = [[learner.read(moment) for moment in learner.moments] for learner in learners]
    for learner in learners:
        learner.train(lag)
    for k, moment in enumerate(learners[0].moments):
        mean = torch.stack([reading[k][0] for reading in readings]).mean(0)
        for learner, reading in zip(learners, readings, strict=True):
            learner.correct(moment, mean - reading[k][0], reading[k][1])
    for learner in learners:
        before = bits(learner.everything())
        clip_first_moment(learner.fragment_state)
        assert bits(learner.everything()) == before


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.7), (0.95, 0.9), (0.9, 0.81), (0.0, 0.9)])
@pytest.mark.parametrize("t", [1, 2, 5, 40])
def test_the_bound_is_twice_the_most_that_adam_gets(betas: tuple[float, float], t: int) -> None:
    """Gradients that grow as (β₁/β₂)^k are the worst for the root, equal ones that shrink as β₂^k
    for the maximum."""
    beta1, beta2 = betas
    worst = [(beta2 / (beta1 or 1e-3)) ** k for k in range(t)] if beta1 else [0.0] * (t - 1) + [1.0]
    m, root, _ = reference.adam_moments(beta1, beta2, worst)
    shrinking = [beta2**k for k in range(t)]
    n, _, u = reference.adam_moments(beta1, beta2, shrinking)
    for name, most in (("Adam", m / root), ("Adamax", n / u)):
        kind = getattr(optim, name)
        learner = Learner(lambda p, kind=kind: kind(p, betas=betas)).train(t)
        for i in range(2):
            learner.state("exp_avg", i).fill_(1e9)
        clip_first_moment(learner.fragment_state)
        for i in range(2):
            v = (
                learner.state("exp_avg_sq", i).sqrt()
                if name == "Adam"
                else learner.state("exp_inf", i)
            )
            assert torch.allclose(learner.state("exp_avg", i), 2 * most * v, rtol=1e-3)


def test_other_moments_are_not_restrained() -> None:
    for name in ("SGD", "RMSprop, momentum", "Lion"):
        learner = Learner(OPTIMIZERS[name]).train(2)
        for state in learner.everything():
            state.fill_(1e9)
        before = bits(learner.everything())
        clip_first_moment(learner.fragment_state)
        assert bits(learner.everything()) == before


# ── a newcomer ────────────────────────────────────────────────────────────────────────────────────


def taken_over(
    newcomer: Learner, veteran: Learner, moments: Sequence[Moment] | None = None
) -> None:
    moments = veteran.moments if moments is None else moments
    readings = {moment.name: veteran.read(moment) for moment in moments}
    values, updates = {n: r[0] for n, r in readings.items()}, {n: r[1] for n, r in readings.items()}
    install(newcomer.moments, newcomer.fragment_state, values, updates)


def next_to(veteran: Learner, newcomer: Learner) -> None:
    """The newcomer has the veteran's weights, as joining gives it."""
    with torch.no_grad():
        for mine, theirs in zip(newcomer.parameters, veteran.parameters, strict=True):
            mine.copy_(theirs)


# Adamax divides by a maximum, which is not averaged: it has a test of its own, below.
@pytest.mark.parametrize("used", [0, 4])
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "Adamax"])
def test_a_newcomer_goes_on_like_one_that_had_these_moments_all_along(name: str, used: int) -> None:
    veteran, newcomer = (
        Learner(OPTIMIZERS[name], 1).train(25),
        Learner(OPTIMIZERS[name], 2).train(used),
    )
    if name == "AMSGrad":  # nor is that, but the next one is as great
        for i in range(2):
            veteran.state("max_exp_avg_sq", i).zero_()
            if used:
                newcomer.state("max_exp_avg_sq", i).zero_()
    next_to(veteran, newcomer)
    taken_over(newcomer, veteran)
    for learner in (veteran, newcomer):
        learner.draws.manual_seed(5)
        learner.train(2)
    for one, other in zip(newcomer.everything(), veteran.everything(), strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-9)
    for mine, theirs in zip(newcomer.parameters, veteran.parameters, strict=True):
        assert torch.allclose(mine, theirs, rtol=0, atol=LR / 100)


@pytest.mark.parametrize("used", [0, 4])
def test_a_newcomer_has_no_use_for_a_mean_without_what_divides_it(used: int) -> None:
    """Adamax's maximum stays with who has it; and before the first round of second moments there
    are none."""
    for name, moments in (("Adamax", None), ("Adam", [Learner(OPTIMIZERS["Adam"]).moments[0]])):
        veteran, newcomer = (
            Learner(OPTIMIZERS[name], 1).train(25),
            Learner(OPTIMIZERS[name], 2).train(used),
        )
        before, had = bits(newcomer.everything()), len(newcomer.inner.state)
        taken_over(newcomer, veteran, moments)
        newcomer.moments = newcomer.moments[:1]  # nor if it is asked for no other
        taken_over(newcomer, veteran, moments)
        assert bits(newcomer.everything()) == before
        assert len(newcomer.inner.state) == had


def test_moments_of_different_rounds_are_held_together() -> None:
    """Of a rare word, the first may be newer than the second: from before anybody met it."""
    veteran, newcomer = Learner(OPTIMIZERS["Adam"], 1).train(25), Learner(OPTIMIZERS["Adam"], 2)
    (m, _), (v, _) = (veteran.read(moment) for moment in veteran.moments)
    v[:6] = 0
    updates = {"exp_avg": (25, 25), "exp_avg_sq": (13, 13)}
    values = {"exp_avg": m, "exp_avg_sq": v}
    install(newcomer.moments, newcomer.fragment_state, values, updates)
    assert newcomer.count(0) == 25
    assert newcomer.state("exp_avg", 0).abs().max() == 0
    assert torch.allclose(newcomer.read(newcomer.moments[0])[0][6:], m[6:])
    assert torch.allclose(newcomer.read(newcomer.moments[1])[0], v)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_tensor_that_nobody_has_moments_of_stays_without(name: str) -> None:
    veteran, newcomer = Learner(OPTIMIZERS[name], 1), Learner(OPTIMIZERS[name], 2)
    veteran.step([None, torch.ones(2, 4)])
    if name.startswith(COUNTLESS):
        assert veteran.read(veteran.moments[0])[1] == (0, 1)
    taken_over(newcomer, veteran)
    assert newcomer.parameters[0] not in newcomer.inner.state
    assert (newcomer.parameters[1] in newcomer.inner.state) == (name != "Adamax")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_making_the_first_state_leaves_no_other_trace(name: str) -> None:
    veteran, newcomer = Learner(OPTIMIZERS[name], 1).train(3), Learner(OPTIMIZERS[name], 2)
    calls: list[str] = []
    inner = newcomer.inner
    inner.register_step_pre_hook(lambda *_: calls.append("pre"))
    inner.register_step_post_hook(lambda *_: calls.append("post"))
    everywhere = register_optimizer_step_pre_hook(lambda *_: calls.append("all"))
    scheduler = optim.lr_scheduler.StepLR(inner, 5)
    wrapped = inner.step
    with torch.no_grad():
        newcomer.parameters[0][0, 0] = -0.0
        newcomer.parameters[0][0, 1] = math.nan
    newcomer.parameters[0].grad = torch.ones(3, 2)
    groups = [{**group, "params": list(group["params"])} for group in inner.param_groups]
    before, gradient = bits(newcomer.parameters), newcomer.parameters[0].grad
    try:
        taken_over(newcomer, veteran)
    finally:
        everywhere.remove()
    assert bits(newcomer.parameters) == before
    assert newcomer.parameters[0].grad is gradient
    assert gradient.tolist() == [[1, 1]] * 3
    assert newcomer.parameters[1].grad is None
    assert len(inner.param_groups) == len(groups)
    for group, was in zip(inner.param_groups, groups, strict=True):
        assert group.keys() == was.keys()
        assert all(group[key] is was[key] for key in was if key != "params")
        assert all(p is q for p, q in zip(group["params"], was["params"], strict=True))
    assert set(inner.state) <= set(newcomer.parameters)
    assert calls == []
    assert inner.step is wrapped
    assert not getattr(inner, "_opt_called", False)
    inner.step()
    assert calls == ["pre", "post"]
    assert scheduler.last_epoch == 0


def test_an_epsilon_of_zero_does_no_harm() -> None:
    """A step of zero gradients with it is 0/0, which a learning rate of 0 does not make better."""

    def make(p: Any) -> Optimizer:
        return optim.Adam(p, lr=LR, eps=0.0)

    veteran, newcomer = Learner(make, 1).train(3), Learner(make, 2)
    taken_over(newcomer, veteran)
    newcomer.train(1)
    assert all(p.isfinite().all() for p in newcomer.parameters)
    assert newcomer.read(newcomer.moments[0])[1] == (4, 4)


def test_a_class_that_steps_by_its_base_runs_no_hooks_either() -> None:
    class Ours(optim.AdamW):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    # torch wraps the step of a class when it is first used
    optim.AdamW([nn.Parameter(torch.zeros(1))])
    newcomer, calls = Learner(lambda p: Ours(p, lr=LR), 2), []
    newcomer.inner.register_step_pre_hook(lambda *_: calls.append(1))
    taken_over(newcomer, Learner(OPTIMIZERS["AdamW"], 1).train(3))
    assert newcomer.count(0) == 3
    assert calls == []


class Stubborn(Optimizer):
    """Steps with a closure only."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": LR})

    def step(self, closure: Any) -> Any:  # type: ignore[override]
        self.state[self.param_groups[0]["params"][0]]["half"] = 1
        return closure()


def test_an_optimizer_that_cannot_make_its_state_starts_without() -> None:
    newcomer = Learner(Stubborn)
    newcomer.moments = (Moment(name="m", order="first", decay=0.9),)
    groups = newcomer.inner.param_groups
    values, updates = {"m": torch.ones(14)}, {"m": (1, 1)}
    install(newcomer.moments, newcomer.fragment_state, values, updates)
    assert not newcomer.inner.state
    assert newcomer.inner.param_groups is groups
    assert groups[0]["params"] == newcomer.parameters


def test_a_frozen_parameter_gets_no_state() -> None:
    veteran, newcomer = Learner(OPTIMIZERS["Adam"], 1).train(3), Learner(OPTIMIZERS["Adam"], 2)
    newcomer.parameters[0].requires_grad_(False)
    taken_over(newcomer, veteran)
    assert newcomer.parameters[0] not in newcomer.inner.state
    assert newcomer.count(1) == 3


def test_an_empty_state_is_made_and_a_strange_one_kept() -> None:
    veteran = Learner(OPTIMIZERS["SGD"], 1).train(3)
    for empty in ({}, {"momentum_buffer": None}):
        newcomer = Learner(OPTIMIZERS["SGD"], 2)
        newcomer.inner.state[newcomer.parameters[0]] = dict(empty)
        taken_over(newcomer, veteran)
        assert torch.equal(newcomer.state("momentum_buffer"), veteran.state("momentum_buffer"))
    quantized = {"momentum_buffer": torch.zeros(3, 2, dtype=torch.uint8)}
    newcomer.inner.state[newcomer.parameters[0]] = quantized
    taken_over(newcomer, veteran)
    assert newcomer.inner.state[newcomer.parameters[0]] is quantized
    assert quantized["momentum_buffer"].sum() == 0


@pytest.mark.parametrize("name", ["Adam", "NAdam", "SGD, dampening", "RMSprop, centered"])
def test_a_newcomer_with_tensors_of_every_kind(name: str) -> None:
    veteran, newcomer = (
        Learner(OPTIMIZERS[name], seed, parameters=is_unknown_optimizer()) for seed in (1, 2)
    )
    for _ in range(3):
        veteran.step(veteran.noise())
    taken_over(newcomer, veteran)
    for one, other in zip(newcomer.everything(), veteran.everything(), strict=True):
        assert (one.dtype, one.stride()) == (other.dtype, other.stride())
        close = 1e-2 if one.dtype is torch.bfloat16 else 1e-5
        assert torch.allclose(one, other, rtol=close, atol=1e-6)


def test_the_counters_of_a_peer_that_lies_do_no_harm() -> None:
    newcomer = Learner(OPTIMIZERS["NAdam"])
    most = 2**32 - 1
    values = {"exp_avg": torch.ones(14), "exp_avg_sq": torch.ones(14)}
    updates = {"exp_avg": (most, 1), "exp_avg_sq": (1, most)}
    install(newcomer.moments, newcomer.fragment_state, values, updates)
    before = [p.detach().clone() for p in newcomer.parameters]
    newcomer.train(3)
    moved = [p.detach() - q for p, q in zip(newcomer.parameters, before, strict=True)]
    assert max(float(change.abs().max()) for change in moved) < 100 * LR


# ── a GPU ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("options", [{}, {"capturable": True}, {"fused": True}])
def test_on_a_gpu_it_is_the_same(options: dict[str, bool]) -> None:
    draws = torch.Generator().manual_seed(0)
    host = Learner(
        lambda p: optim.Adam(p, lr=LR), parameters=[torch.randn(s, generator=draws) for s in SHAPES]
    )
    device = Learner(
        lambda p: optim.Adam(p, lr=LR, **options),
        parameters=[p.detach().to("cuda") for p in host.parameters],
    )
    for _ in range(3):
        gradients = [torch.randn(s, generator=draws) for s in SHAPES]
        host.step(gradients)
        device.step([g.to("cuda") for g in gradients])
    for moment in host.moments:
        out = torch.empty(14)
        updates = read(moment, device.fragment_state, out)
        values, then = host.read(moment)
        assert updates == then == (3, 3)
        assert torch.allclose(out, values, rtol=1e-4)
        change = torch.ones(14)
        host.correct(moment, change, then)
        device.correct(moment, change, then)
        for i in range(2):
            assert torch.allclose(
                device.state(moment.name, i).cpu(), host.state(moment.name, i), rtol=1e-4
            )


# ── earlier steps ─────────────────────────────────────────────────────────────────────────────────


class Uncounted(optim.SGD):
    """Keeps a place for a count, and does not count."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter].update(step=None, average=parameter.grad.clone())


class Opaque(Tensor):
    """A tensor that knows few operations, as torchao's quantized state."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.any:
            raise NotImplementedError("unimplemented operator: any")
        return super().__torch_function__(func, types, args, kwargs or {})


class Keeping(optim.Optimizer):
    """Keeps whatever `keep` makes of a gradient."""

    def __init__(self, params: Any, keep: Callable[[Tensor], Any]) -> None:
        super().__init__(params, {"lr": 0.1})
        self._keep = keep

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter] = self._keep(parameter.grad.clone())


KEPT: dict[str, Callable[[Tensor], Any]] = {
    "a list": lambda gradient: [gradient, 1],
    "a tensor": lambda gradient: gradient,
    "nested": lambda gradient: {"factors": {"left": [gradient]}},
    "opaque": lambda gradient: {"step": 1, "quantized": gradient.as_subclass(Opaque)},
}


def stepped_once(inner: Optimizer, parameter: nn.Parameter) -> FragmentState:
    """The state of an optimizer that told of no step before its first one."""
    (fragment,) = Layout(["w"], [parameter], 1).fragments
    state = FragmentState(fragment, [parameter], inner, 0)
    assert not state.has_stepped()
    parameter.grad = torch.ones(3)
    inner.step()
    return state


@pytest.mark.parametrize("kind", KEPT)
def test_whatever_an_optimizer_keeps_tells_of_earlier_steps(kind: str) -> None:
    parameter = nn.Parameter(torch.full((3,), 2.0))
    inner = Keeping([parameter], KEPT[kind])
    state = stepped_once(inner, parameter)
    assert state.has_stepped()
    named = ["factors"] if kind == "nested" else ["quantized", "step"] if kind == "opaque" else []
    assert state.names() == named


@pytest.mark.parametrize(
    "make",
    [
        optim.AdamW,
        optim.Adagrad,  # has state before its first step
        lambda p: optim.Adagrad(p, initial_accumulator_value=0.1),
        lambda p: optim.SGD(p, momentum=0.9),
        Uncounted,
    ],
)
def test_an_optimizers_state_tells_of_earlier_steps(make: Callable[..., Optimizer]) -> None:
    parameter = nn.Parameter(torch.full((3,), 2.0))
    inner = make([parameter])
    assert stepped_once(inner, parameter).has_stepped()


def test_an_optimizer_without_state_tells_nothing() -> None:
    parameter = nn.Parameter(torch.ones(3))
    inner = optim.SGD([parameter])
    (fragment,) = Layout(["w"], [parameter], 1).fragments
    parameter.grad = torch.ones(3)
    inner.step()
    assert not FragmentState(fragment, [parameter], inner, 0).has_stepped()
