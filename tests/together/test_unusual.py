"""Two learners whose optimizers have unusual state or steps: the effects of a merge on them, and
the state that it leaves alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import ASGD, LBFGS, SGD, Adam, AdamW, Optimizer, Rprop, SparseAdam

from mend_optim import MendOptimizer, UsageError
from tests.support.learners import (
    LOCKSTEP,
    cluster,
    descent,
    drive,
    parameters,
    read,
    same,
    settle,
    together,
)
from tests.together.unusual import (
    Complex,
    Frozen,
    Make,
    Mixed,
    Problem,
    Tied,
    alike,
    anchor,
    copies,
    dense,
    joint_loss,
    matrices,
    mean,
    problem,
    table,
)

TOKENS = (1, 3)


class Odd(Optimizer):
    """An optimizer with lists, ints and nested dicts in its state. It replaces the tensors behind
    its parameters."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})
        self.taken = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.taken += 1
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state.setdefault("norms", []).append(float(p.grad.norm()))
                state["seen"] = state.get("seen", 0) + 1
                nest = state.setdefault("nest", {"of": {"means": []}, "sign": None})
                nest["of"]["means"] = [*nest["of"]["means"][-2:], float(p.grad.mean())]
                nest["sign"] = p.grad.sign()
                p.data = p.data - group["lr"] * (
                    p.grad + 0.1 * nest["sign"] * abs(nest["of"]["means"][0])
                )


class Lookahead(Optimizer):
    """Gradient descent that goes half of the way back at every second step (arXiv 1907.08610)."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})
        for p in (p for group in self.param_groups for p in group["params"]):
            self.state[p] = {"slow": p.detach().clone(), "steps": 0}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                p.add_(p.grad, alpha=-group["lr"])
                state["steps"] += 1
                if state["steps"] % 2 == 0:
                    state["slow"].lerp_(p, 0.5)
                    p.copy_(state["slow"])


def of_torch(name: str) -> Any:
    """An optimizer of torch; skips the test if this version of torch lacks it."""
    return getattr(torch.optim, name, None) or pytest.skip(
        f"torch {torch.__version__} has no {name}"
    )


def of_schedulefree(name: str) -> Any:
    return getattr(pytest.importorskip("schedulefree"), name)


@dataclass(frozen=True)
class Kind:
    make: Make
    model: Callable[[], nn.Module] = dense
    closure: bool = False


KINDS = {
    "LBFGS": Kind(lambda p: LBFGS(p, lr=0.3, max_iter=4, history_size=3), closure=True),
    "LBFGS wolfe": Kind(
        lambda p: LBFGS(p, max_iter=3, line_search_fn="strong_wolfe"), closure=True
    ),
    "SparseAdam": Kind(lambda p: SparseAdam(list(p), lr=0.1), table),
    "Adafactor": Kind(lambda p: of_torch("Adafactor")(p, lr=0.1)),
    "Muon": Kind(lambda p: of_torch("Muon")(p, lr=0.05), matrices),
    "amsgrad": Kind(lambda p: Adam(p, lr=0.05, amsgrad=True)),
    "nesterov": Kind(lambda p: SGD(p, lr=0.03, momentum=0.9, nesterov=True)),
    "Rprop": Kind(lambda p: Rprop(p, lr=0.01)),
    "ASGD": Kind(lambda p: ASGD(p, lr=0.3, t0=2)),
    "complex": Kind(lambda p: Adam(p, lr=0.1), Complex),
    "bf16 and float32": Kind(lambda p: AdamW(p, lr=0.05), Mixed),
    "tied": Kind(lambda p: Adam(p, lr=0.05), Tied),
    "frozen and unused": Kind(lambda p: Adam(p, lr=0.05), Frozen),
    "odd": Kind(lambda p: Odd(p, lr=0.2)),
    "Lookahead": Kind(lambda p: Lookahead(p, lr=0.3)),
    "schedule-free": Kind(lambda p: of_schedulefree("AdamWScheduleFree")(p, lr=0.1)),
    "schedule-free closure": Kind(
        lambda p: of_schedulefree("AdamWScheduleFreeClosure")(p, lr=0.1, warmup_steps=0),
        closure=True,
    ),
}


def two(kind: str) -> list[Problem]:
    chosen = KINDS[kind]
    return [problem(i, chosen.model, chosen.make, chosen.closure) for i in range(2)]


def train(
    optimizers: Sequence[MendOptimizer],
    problems: Sequence[Problem],
    steps: int,
    forget: bool = False,
) -> list[list[list[Tensor]]]:
    """All learners take `steps` steps, each in a thread of its own. Returns the parameters of each
    after every step. `forget`: throw the inner state away after every step in which a correction
    moved the parameters, too."""

    def loop(i: int) -> list[list[Tensor]]:
        path: list[list[Tensor]] = []
        for _ in range(steps):
            optimizers[i].count_tokens(TOKENS[i])
            problems[i].step(optimizers[i])
            path.append(copies(optimizers[i]))
            if forget and not same(path[-1], left[i]):
                optimizers[i].state.clear()
        return path

    left: dict[int, list[Tensor]] = {}
    hooks = [
        p.inner.register_step_post_hook(lambda o, *_, i=i: left.update({i: copies(o)}))
        for i, p in enumerate(problems)
    ]

    try:
        return together(*(lambda i=i: loop(i) for i in range(len(problems))))
    finally:
        for hook in hooks:
            hook.remove()


def members(optimizer: MendOptimizer) -> set[str]:
    return {member.name for record in optimizer.status().rounds for member in record.members}


@pytest.mark.parametrize("kind", KINDS)
def test_two_learners_train_one_model(kind: str) -> None:
    """Anchors are adopted as soon as they are ready. The model has two fragments, or one if it has
    only one tensor."""
    problems = two(kind)
    inners = [p.inner for p in problems]
    before = joint_loss(problems, copies(inners[0]))
    fragments = min(2, len(parameters(inners[0])))
    with cluster(*inners, sync_every=3, fragments=fragments) as optimizers:
        for _ in range(5):
            train(optimizers, problems, 6, forget="LBFGS" in kind)
            settle(optimizers)
            if "LBFGS" in kind:
                for optimizer in optimizers:
                    optimizer.state.clear()
        statuses = [o.status() for o in optimizers]
        assert min(s.rounds_adopted for s in statuses) >= 5 * fragments
        assert [members(o) for o in optimizers] == [{"a", "b"}, {"a", "b"}]
        assert [[f.tokens for f in s.fragments] for s in statuses] == [[120] * fragments] * 2
        assert [(s.unmerged_tokens, s.dropped_tokens) for s in statuses] == [(0, 0)] * 2
        merged = [anchor(o) for o in optimizers]
        assert same(*merged)
        assert joint_loss(problems, merged[0]) < 0.7 * before


@pytest.mark.parametrize("kind", KINDS)
def test_an_anchor_is_the_mean_of_two_bare_optimizers(kind: str) -> None:
    """In lockstep. The test merges the twins by hand, then gives them the learners' weights to the
    bit. So the state of the bare and the wrapped optimizers must be the same to the bit: a merge
    touches nothing but parameters."""
    problems, twins = two(kind), two(kind)
    with cluster(*(p.inner for p in problems), **LOCKSTEP, moments=None) as optimizers:
        paths = train(optimizers, problems, 6)
        assert [o.status().rounds_adopted for o in optimizers] == [6, 6]
        weights = [[m.weight for m in r.members] for r in optimizers[0].status().rounds]
        assert weights == [[0.25, 0.75]] * 6
        states = [p.inner.state_dict() for p in problems]
    for here, there in zip(*paths, strict=True):
        assert same(here, there)
        for twin in twins:
            twin.step(twin.inner)
        own = [copies(twin.inner) for twin in twins]
        expected = mean(own, TOKENS)
        for parameter, value in zip(expected, here, strict=True):
            tolerance = 1e-2 if value.dtype is torch.bfloat16 else 2e-6
            torch.testing.assert_close(parameter, value, rtol=tolerance, atol=tolerance)
        assert not same(*own)
        for twin in twins:
            with torch.no_grad():
                for parameter, value in zip(twin.model.parameters(), here, strict=True):
                    parameter.copy_(value)
    assert [p.calls for p in problems] == [t.calls for t in twins]
    assert all(
        alike(state, twin.inner.state_dict()) for state, twin in zip(states, twins, strict=True)
    )
    assert not alike(*states)  # each learner has its own state


# ── effects of a merge ────────────────────────────────────────────────────────────────────────────

CURVATURE = torch.tensor([1.0, 2.0, 5.0])


def quadratic(learner: int) -> tuple[nn.Parameter, LBFGS, Callable[[], Tensor]]:
    """½ Σ cᵢ (xᵢ - learner)². The change of its gradient along a step is known: curvature times
    step."""
    x = nn.Parameter(torch.full((3,), 4.0))
    optimizer = LBFGS([x], lr=0.2, max_iter=4)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (CURVATURE * (x - learner) ** 2).sum() / 2
        loss.backward()
        return loss

    return x, optimizer, closure


def pair_errors(optimizer: Optimizer) -> list[Tensor]:
    """y - A s of every curvature pair (s, y) in the history. It is zero unless something other than
    the optimizer moved the parameters."""
    (state,) = optimizer.state.values()
    return [y - CURVATURE * s for y, s in zip(state["old_dirs"], state["old_stps"], strict=True)]


@pytest.mark.parametrize("forget", [False, True])
def test_lbfgs_takes_a_merge_for_its_own_step_unless_it_forgets(forget: bool) -> None:
    """The first pair after a merge includes the change of the gradient that the merge caused, but
    not the movement."""
    made = [quadratic(i) for i in range(2)]
    x, inner, _ = made[0]
    moved: list[Tensor] = []
    with cluster(*(optimizer for _, optimizer, _ in made), **LOCKSTEP) as optimizers:
        inner.register_step_post_hook(lambda *_: moved.append(x.detach().clone()))

        def loop(i: int) -> None:
            for s in range(2):
                optimizers[i].step(made[i][2])  # type: ignore[arg-type]
                if s == 0 and i == 0:
                    moved.append(x.detach().clone())
                if s == 0 and forget:
                    optimizers[i].state.clear()

        together(lambda: loop(0), lambda: loop(1))
        errors = pair_errors(inner)
    correction = moved[1] - moved[0]
    assert correction.abs().min() > 0.01
    # a step of n moves makes n - 1 pairs
    own = [torch.zeros(3)] * (inner.state[x]["n_iter"] // (1 if forget else 2) - 1)
    expected = own if forget else [*own, CURVATURE * correction, *own]
    torch.testing.assert_close(errors, expected, rtol=1e-4, atol=1e-5)


def test_lbfgs_that_forgets_at_every_merge_does_better_where_data_differ() -> None:
    def end(forget: bool) -> float:
        problems = [
            problem(i, dense, lambda p: LBFGS(p, max_iter=4), closure=True) for i in range(2)
        ]
        for i, p in enumerate(problems):
            p.x = p.x + (2 * i - 1)
        before = joint_loss(problems, copies(problems[0].inner))
        with cluster(*(p.inner for p in problems), **LOCKSTEP) as optimizers:
            for _ in range(24):
                train(optimizers, problems, 1, forget)
            return joint_loss(problems, anchor(optimizers[0])) / before

    forgetful, faithful = end(forget=True), end(forget=False)
    assert forgetful < 0.5
    assert forgetful < 0.8 * faithful


def test_rows_that_one_learner_touched_move_by_its_share() -> None:
    """A delta of zero counts with all its tokens. So does a parameter without a gradient."""
    problems = two("SparseAdam")
    before = copies(problems[0].inner)[0]
    with cluster(*(p.inner for p in problems), **LOCKSTEP) as optimizers:
        problems[0].inner.register_step_post_hook(lambda o, *_: alone.append(copies(o)[0]))
        alone: list[Tensor] = []
        ((after,),), _ = train(optimizers, problems, 1)
    only_a = sorted(set(problems[0].x.tolist()) - set(problems[1].x.tolist()))
    nobody = sorted(set(range(10)) - set(problems[0].x.tolist()) - set(problems[1].x.tolist()))
    assert only_a
    assert nobody
    torch.testing.assert_close((after - before)[only_a], 0.25 * (alone[0] - before)[only_a])
    assert torch.equal(after[nobody], before[nobody])


def test_a_gradient_of_one_learner_moves_all() -> None:
    """At every second step a learner has no gradient: its own step moves nothing, and it still
    takes part in the round."""
    with cluster(descent(1.0, 5.0), descent(1.0, 5.0), **LOCKSTEP) as optimizers:
        drive(optimizers, 4, lambda i, s: None if s % 2 == i else 2.0)
        assert [o.status().rounds_adopted for o in optimizers] == [4, 4]
        assert [read(o) for o in optimizers] == [[-3.0, 1.0]] * 2


def test_a_newcomer_gets_frozen_parameters_and_they_never_move() -> None:
    def learner(value: float) -> tuple[Tensor, Optimizer]:
        frozen = nn.Parameter(torch.tensor([value, -0.1]), requires_grad=False)
        return frozen, SGD([frozen, nn.Parameter(torch.ones(3))], lr=0.1)

    (first, inner), (late, joining) = learner(0.3), learner(0.7)
    firsts = [first.clone(), late.clone()]
    with cluster(inner, joining, sync_every=2) as optimizers:
        for _ in range(2):  # one takes the other's first weights; then nothing moves
            drive_last(optimizers, 4)
            settle(optimizers)
            assert torch.equal(first, late)
            assert any(torch.equal(first, weights) for weights in firsts)
        assert min(o.status().rounds_adopted for o in optimizers) >= 2
        assert read(optimizers[0])[1] < 0.7


def drive_last(optimizers: Sequence[Optimizer], steps: int) -> None:
    """Steps with a gradient of the last parameter only: i + 1 for learner i."""

    def loop(i: int) -> None:
        for _ in range(steps):
            last = optimizers[i].param_groups[-1]["params"][-1]
            last.grad = torch.full_like(last, 1.0 + i)
            optimizers[i].step()

    together(*(lambda i=i: loop(i) for i in range(len(optimizers))))


def test_a_tied_parameter_is_merged_once_and_stays_tied() -> None:
    problems = two("tied")
    with cluster(*(p.inner for p in problems), **LOCKSTEP) as optimizers:
        train(optimizers, problems, 3)
        assert len(parameters(optimizers[0])) == 3
        for p in problems:
            assert p.model.first.weight is p.model.second.weight


def test_asgd_averages_its_own_learners_parameters() -> None:
    """`ax` is the mean of the learner's own parameters after each inner step, before the merge."""
    problems = two("ASGD")
    left: list[list[Tensor]] = [[], []]
    with cluster(*(p.inner for p in problems), **LOCKSTEP) as optimizers:
        for i, p in enumerate(problems):
            p.inner.register_step_post_hook(lambda o, *_, i=i: left[i].append(copies(o)[0]))
        train(optimizers, problems, 6)
        averages = [next(iter(p.inner.state.values()))["ax"] for p in problems]
        assert same(parameters(optimizers[0]), parameters(optimizers[1]))
    assert not torch.equal(*averages)
    for average, own in zip(averages, left, strict=True):
        # the mean begins after t0 + 1 steps
        torch.testing.assert_close(average, torch.stack(own[3:]).mean(0))


def test_rprop_keeps_its_own_step_sizes() -> None:
    """Step sizes follow from the signs of two gradients, the older one from before the merge."""
    problems = two("Rprop")
    with cluster(*(p.inner for p in problems), **LOCKSTEP) as optimizers:
        train(optimizers, problems, 6)
        sizes = [
            torch.cat([s["step_size"].flatten() for s in p.inner.state.values()]) for p in problems
        ]
        assert same(parameters(optimizers[0]), parameters(optimizers[1]))
    assert not torch.equal(*sizes)


def test_slow_weights_in_the_state_pull_a_learner_back_until_the_next_merge() -> None:
    """A merge does not move the slow weights. So Lookahead takes back half of the work of others.
    A merge of all is linear, so it has all of that work again."""
    inners = [Lookahead([nn.Parameter(torch.zeros(3))], lr=1.0) for _ in range(2)]
    before: list[float] = []
    with cluster(*inners, **LOCKSTEP) as optimizers:
        inners[0].register_step_post_hook(lambda o, *_: before.append(read(o)[0]))
        drive(optimizers, 2, lambda i, s: -4.0 * i)  # b alone learns
        # at the second step: half of the 2 that the first merge brought
        assert before == [0.0, 1.0]
        # b is at (0 + 2 + 4) / 2 = 3. The mean of both is 2: one Lookahead on the mean gradient
        # gets there, too.
        assert [read(o) for o in optimizers] == [[2.0], [2.0]]


def test_an_odd_state_can_be_saved_and_loaded_through_the_wrapper() -> None:
    problems = two("odd")
    with cluster(*(p.inner for p in problems), **LOCKSTEP) as optimizers:
        train(optimizers, problems, 3)
        saved = copy.deepcopy(
            {key: optimizers[0].state_dict()[key] for key in ("state", "param_groups")}
        )
        first = problems[0].inner.param_groups[0]["params"][0]
        state = optimizers[0].state[first]
        assert (state["seen"], len(state["norms"]), problems[0].inner.taken) == (3, 3, 3)
        train(optimizers, problems, 1)
        assert not alike(saved, problems[0].inner.state_dict())
        optimizers[0].load_state_dict(saved)
        assert alike(saved, problems[0].inner.state_dict())
        train(optimizers, problems, 1)  # rounds go on
        assert optimizers[0].status().rounds_adopted == 5


def put_another(optimizer: Optimizer) -> None:
    optimizer.param_groups[0]["params"][0] = nn.Parameter(torch.full((3,), 9.0))


def make_narrow(optimizer: Optimizer) -> None:
    """Does the same as `model.bfloat16()`."""
    (parameter,) = optimizer.param_groups[0]["params"]
    parameter.data = parameter.data.bfloat16()


@pytest.mark.parametrize("change", [put_another, make_narrow])
def test_replaced_parameters_are_refused(change: Callable[[Optimizer], None]) -> None:
    """Another tensor of the same shape: offers would come from a tensor that nobody trains now.
    Another dtype: the fingerprint includes it, and rounding to a narrow one would lose values."""
    with cluster(descent(1.0), descent(1.0), **LOCKSTEP) as optimizers:
        drive(optimizers, 1, lambda i, s: 1.0)
        for optimizer in optimizers:
            change(optimizer)
        with pytest.raises(UsageError, match="parameter 0 must keep its"):
            drive(optimizers, 1, lambda i, s: 1.0)


def test_double_precision_is_merged_in_single() -> None:
    inners = [
        SGD([nn.Parameter(torch.full((3,), 1 / 3, dtype=torch.float64))], lr=1.0) for _ in range(2)
    ]
    with cluster(*inners, **LOCKSTEP) as optimizers:
        drive(optimizers, 1, lambda i, s: 0.1 * i)
        (value,) = parameters(optimizers[0])
        assert value.dtype is torch.float64
        assert torch.equal(value, value.float().double())
        torch.testing.assert_close(value.float(), torch.full((3,), 1 / 3 - 0.05))


# ── two optimizers for one model ──────────────────────────────────────────────────────────────────


def halves(model: nn.Module) -> tuple[Optimizer, Optimizer]:
    """Muon for the matrices, AdamW for the rest."""
    flat = [p for p in model.parameters() if p.ndim != 2]
    return of_torch("Muon")([p for p in model.parameters() if p.ndim == 2], lr=0.05), AdamW(
        flat, lr=0.05
    )


def test_muon_beside_adamw_is_two_clusters() -> None:
    problems, twins = two("nesterov"), two("nesterov")
    pairs, bare = [halves(p.model) for p in problems], [halves(t.model) for t in twins]
    before = joint_loss(problems, list(problems[0].model.parameters()))
    with ExitStack() as stack:
        muons = stack.enter_context(cluster(pairs[0][0], pairs[1][0], **LOCKSTEP, moments=None))
        rest = [{"name": "a rest"}, {"name": "b rest"}]
        adams = stack.enter_context(
            cluster(pairs[0][1], pairs[1][1], each=rest, **LOCKSTEP, moments=None)
        )

        def loop(i: int) -> list[list[Tensor]]:
            path = []
            for _ in range(15):
                problems[i].backward()
                for optimizer in (muons[i], adams[i]):
                    optimizer.count_tokens(TOKENS[i])
                    optimizer.step()
                path.append([p.detach().clone() for p in problems[i].model.parameters()])
            return path

        paths = together(lambda: loop(0), lambda: loop(1))
        for pair in (muons, adams):
            settle(pair)
            assert [o.status().rounds_adopted for o in pair] == [15, 15]
            assert same(anchor(pair[0]), anchor(pair[1]))
        assert [members(o) for o in (muons[0], adams[0])] == [{"a", "b"}, {"a rest", "b rest"}]
        with muons[1].global_weights(), adams[1].global_weights():
            assert joint_loss(problems[::-1], list(problems[1].model.parameters())) < 0.7 * before
    for here, there in zip(*paths, strict=True):
        assert same(here, there)
        for twin, optimizers in zip(twins, bare, strict=True):
            twin.backward()
            for optimizer in optimizers:
                optimizer.step()
        own = [[p.detach().clone() for p in twin.model.parameters()] for twin in twins]
        torch.testing.assert_close(mean(own, TOKENS), here, rtol=2e-6, atol=2e-6)
        for twin in twins:
            with torch.no_grad():
                for parameter, value in zip(twin.model.parameters(), here, strict=True):
                    parameter.copy_(value)


# ── schedule-free ─────────────────────────────────────────────────────────────────────────────────


def average(inner: Optimizer) -> list[Tensor]:
    """The x that `eval()` shows. The optimizer and its parameters stay as before."""
    before = copies(inner)
    inner.eval()  # type: ignore[attr-defined]
    found = copies(inner)
    inner.train()  # type: ignore[attr-defined]
    with torch.no_grad():
        for parameter, value in zip(
            (p for g in inner.param_groups for p in g["params"]), before, strict=True
        ):
            parameter.copy_(value)
    return found


def test_schedule_free_merges_y_and_its_own_eval_is_worse() -> None:
    """`eval()` computes x from the merged y and from a z that only this learner's gradients moved.
    So every learner gets another x. The anchor is the merged y: evaluate these weights."""
    problems = two("schedule-free")
    with cluster(*(p.inner for p in problems), **LOCKSTEP) as optimizers:
        train(optimizers, problems, 60)
        assert same(parameters(optimizers[0]), parameters(optimizers[1]))
        merged, own = anchor(optimizers[0]), [average(p.inner) for p in problems]
        assert not same(*own)
        assert joint_loss(problems, merged) < 0.5 * min(joint_loss(problems, x) for x in own)


def test_schedule_free_with_a_closure_merges_x() -> None:
    """Its parameters are x between steps. So the anchor is x, and no mode can be wrong."""
    problems = two("schedule-free closure")
    with cluster(*(p.inner for p in problems), **LOCKSTEP) as optimizers:
        before = joint_loss(problems, anchor(optimizers[0]))
        train(optimizers, problems, 60)
        merged = anchor(optimizers[0])
        assert same(merged, parameters(optimizers[1]))
        assert joint_loss(problems, merged) < 0.2 * before
        assert not hasattr(problems[0].inner, "eval")


def test_schedule_free_modes_are_called_on_the_inner_optimizer() -> None:
    problems = two("schedule-free")
    with cluster(*(p.inner for p in problems), **LOCKSTEP) as optimizers:
        optimizers[0].eval()  # type: ignore[attr-defined]
        with pytest.raises(Exception, match="not in train mode"):
            optimizers[0].step()
        assert optimizers[0].status().step == 0
        optimizers[0].train()  # type: ignore[attr-defined]
        train(optimizers, problems, 2)
        assert [o.status().rounds_adopted for o in optimizers] == [2, 2]


def test_schedule_free_can_be_evaluated_between_steps() -> None:
    """Without a merge in between, `train()` undoes `eval()` except for rounding. In eval mode
    `global_weights()` shows the same y."""
    problems, twins = two("schedule-free"), two("schedule-free")
    ends = []
    for these, look in ((problems, True), (twins, False)):
        with cluster(*(p.inner for p in these), **LOCKSTEP) as optimizers:
            train(optimizers, these, 5)
            if look:
                for optimizer in optimizers:
                    shown = anchor(optimizer)
                    optimizer.inner.eval()  # type: ignore[attr-defined]
                    assert same(anchor(optimizer), shown)
                    assert not same(parameters(optimizer), shown)
                    optimizer.inner.train()  # type: ignore[attr-defined]
            train(optimizers, these, 5)
            ends.append(anchor(optimizers[0]))
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("everybody", [True, False])
def test_schedule_free_must_not_synchronize_in_eval_mode(everybody: bool) -> None:
    """A learner in eval mode offers x in place of y, so the anchor is not the mean of the ys."""
    problems = two("schedule-free")
    with cluster(
        *(p.inner for p in problems), sync_every=100, merge="mean", weighting="tokens"
    ) as optimizers:
        train(optimizers, problems, 10)
        expected = mean([copies(o) for o in optimizers], TOKENS)
        for optimizer in optimizers[: 2 if everybody else 1]:
            optimizer.inner.eval()  # type: ignore[attr-defined]
        offered = mean([copies(o) for o in optimizers], TOKENS)
        settle(optimizers)
        torch.testing.assert_close(anchor(optimizers[0]), offered, rtol=1e-5, atol=1e-5)
        assert not all(map(torch.allclose, offered, expected))


def test_schedule_free_mode_changed_inside_global_weights_must_be_changed_back() -> None:
    """The end of the block restores the parameters to the bit, but not the optimizer's mode."""
    problems = two("schedule-free")
    with cluster(*(p.inner for p in problems), **LOCKSTEP) as optimizers:
        train(optimizers, problems, 4)
        inner, before = problems[0].inner, copies(optimizers[0])
        with optimizers[0].global_weights():
            inner.eval()  # type: ignore[attr-defined]
        assert same(copies(optimizers[0]), before)
        assert not inner.param_groups[0]["train_mode"]
        inner.train()  # type: ignore[attr-defined]
        assert not same(copies(optimizers[0]), before)


def test_a_schedule_free_wrapper_goes_around_a_learner_not_inside() -> None:
    """The wrapper gives the learner z as its parameters. So z is merged, and every learner averages
    merged values into x."""
    wrap = of_schedulefree("ScheduleFreeWrapper")
    with pytest.raises(UsageError, match=r"inner must be a torch\.optim\.Optimizer"):
        MendOptimizer(wrap(SGD(dense().parameters(), lr=0.1)))
    problems = two("nesterov")
    before = joint_loss(problems, copies(problems[0].inner))
    with cluster(*(SGD(p.model.parameters(), lr=0.2) for p in problems), **LOCKSTEP) as optimizers:
        outsides = [wrap(optimizer) for optimizer in optimizers]

        def loop(i: int) -> None:
            outsides[i].train()
            for _ in range(30):
                problems[i].step(outsides[i])
            outsides[i].eval()

        together(lambda: loop(0), lambda: loop(1))
        averages = [copies(o) for o in optimizers]
        assert [o.status().rounds_adopted for o in optimizers] == [30, 30]
        assert same(*averages)
        assert joint_loss(problems, averages[0]) < 0.6 * before
        assert not same(averages[0], anchor(optimizers[0]))  # the anchor is z
