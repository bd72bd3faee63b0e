"""Learners that average their moments (DES-LOC, arXiv 2505.22549): comparison with Local Adam by
hand, bytes, joining, failures."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import SGD, AdamW, Optimizer

from mend_optim import Adoption, Grace, MendOptimizer, Moment, MomentSchedule
from mend_optim.codecs.registry import CODECS
from mend_optim.protocol.messages import Message, Offer, Seal, State
from mend_optim.worker.moment_means import LATEST, MEAN, OWN
from tests.support.checkpoints import anchors, assert_alike, load, newcomer, progress, resumed, save
from tests.support.learners import (
    LOCKSTEP,
    LOOPBACK,
    PATIENCE_S,
    TIMING,
    Watch,
    cluster,
    parameters,
    same,
    settle,
    start,
    together,
    until,
)

EACH_ROUND = MomentSchedule(first=1, second=1)
# only `settle` merges
STILL: dict[str, Any] = {"sync_every": 1000, "moments": EACH_ROUND}
SHAPES = [(5, 3), (7,)]
MOMENTS = ("exp_avg", "exp_avg_sq")

Make = Callable[[Sequence[Parameter]], Optimizer]
Grad = Callable[[int, int, Tensor], "Tensor | None"]  # (learner, step, parameter) → gradient


def fresh(seed: int = 0) -> list[Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def noise(learner: int, step: int, parameter: Tensor) -> Tensor:
    """Gradients that do not depend on the parameters. Their size differs from learner to learner,
    and most have one sign. No gradient is less than half of another, so no mean of first moments is
    too great for a learner's second moments."""
    generator = torch.Generator().manual_seed(10_000 * learner + 10 * step + parameter.ndim)
    chance, size = torch.rand(2, *parameter.shape, generator=generator)
    signs = torch.where(chance < 0.5 + 0.1 * learner, 1.0, -1.0)
    return (signs * (1 + 0.3 * (learner + size))).to(parameter.dtype)


def pull(learner: int, step: int, parameter: Tensor) -> Tensor:
    """Gradients of a quadratic bowl. Each learner's bowl has its minimum elsewhere."""
    return parameter.detach() - learner + 0.1 * noise(learner, step, parameter)


def state(optimizer: Optimizer, i: int = 0) -> dict[str, Any]:
    """The state that the optimizer keeps for its i-th parameter."""
    each = [p for group in optimizer.param_groups for p in group["params"]]
    found: dict[str, Any] = optimizer.state[each[i]]
    return found


def near(a: Tensor, b: Tensor, rel: float = 1e-5) -> bool:
    """Equal except for rounding, relative to the greatest value."""
    return bool(((a.double() - b.double()).abs() <= rel * max(float(b.abs().max()), 1e-12)).all())


def alike(these: Sequence[Tensor], those: Sequence[Tensor]) -> bool:
    return all(near(a, b) for a, b in zip(these, those, strict=True))


class Seen(NamedTuple):
    """A learner after a step. `weights` and each of `moments` are lists over the parameters."""

    weights: list[Tensor]
    moments: dict[str, list[Tensor]]


def look(optimizer: Optimizer) -> Seen:
    count = len(parameters(optimizer))
    names = [name for name in (*MOMENTS, "momentum_buffer") if name in state(optimizer)]
    return Seen(
        [p.clone() for p in parameters(optimizer)],
        {name: [state(optimizer, i)[name].clone() for i in range(count)] for name in names},
    )


def train(
    optimizers: Sequence[Optimizer], steps: int, grad: Grad, first: int = 0
) -> list[list[Seen]]:
    """All learners step, each in a thread of its own. Returns the state of each after each step."""

    def loop(i: int) -> list[Seen]:
        seen = []
        for s in range(first, first + steps):
            for parameter in (p for group in optimizers[i].param_groups for p in group["params"]):
                parameter.grad = grad(i, s, parameter) if parameter.requires_grad else None
            optimizers[i].step()
            seen.append(look(optimizers[i]))
        return seen

    return together(*(lambda i=i: loop(i) for i in range(len(optimizers))))


# ── Local Adam, by hand ───────────────────────────────────────────────────────────────────────────

LR, WD, BETAS, EPS, MU = 0.05, 0.1, (0.8, 0.95), 1e-8, 0.7


def adamw(parameters: Sequence[Parameter]) -> Optimizer:
    return AdamW(parameters, lr=LR, betas=BETAS, eps=EPS, weight_decay=WD)


def sgd(parameters: Sequence[Parameter]) -> Optimizer:
    return SGD(parameters, lr=LR, momentum=MU)


def one_adamw(w: Tensor, held: dict[str, Tensor], g: Tensor, t: int) -> None:
    m, v = (
        held.setdefault("exp_avg", torch.zeros_like(w)),
        held.setdefault("exp_avg_sq", torch.zeros_like(w)),
    )
    w -= LR * WD * w
    m += (1 - BETAS[0]) * (g - m)
    v += (1 - BETAS[1]) * (g * g - v)
    w -= LR * (m / (1 - BETAS[0] ** t)) / ((v / (1 - BETAS[1] ** t)).sqrt() + EPS)


def one_sgd(w: Tensor, held: dict[str, Tensor], g: Tensor, t: int) -> None:
    buffer = held.setdefault("momentum_buffer", torch.zeros_like(w))
    buffer *= MU
    buffer += g
    w -= LR * buffer


OPTIMIZERS: dict[str, tuple[Make, Callable[..., None]]] = {
    "AdamW": (adamw, one_adamw),
    "SGD": (sgd, one_sgd),
}


def by_hand(
    one_step: Callable[..., None],
    learners: int,
    steps: int,
    every: int,
    grad: Grad,
    periods: tuple[int, int] = (1, 1),
) -> list[list[Seen]]:
    """Local Adam in float64: at every `every`-th step, all learners take the mean of the parameters
    and of the moments that are due."""
    weights = [[p.detach().double() for p in fresh()] for _ in range(learners)]
    held: list[list[dict[str, Tensor]]] = [[{} for _ in SHAPES] for _ in range(learners)]
    seen: list[list[Seen]] = [[] for _ in range(learners)]
    for s in range(steps):
        for i in range(learners):
            for w, state in zip(weights[i], held[i], strict=True):
                one_step(w, state, grad(i, s, w), s + 1)
        version = (s + 1) // every
        if (s + 1) % every == 0:
            for k in range(len(SHAPES)):
                due = [name for name in held[0][k] if version % periods[name == "exp_avg_sq"] == 0]
                for tensors in (
                    [w[k] for w in weights],
                    *([h[k][name] for h in held] for name in due),
                ):
                    mean = torch.stack(tensors).mean(0)
                    for tensor in tensors:
                        tensor.copy_(mean)
        for i in range(learners):
            moments = {name: [h[name].clone() for h in held[i]] for name in held[i][0]}
            seen[i].append(Seen([w.clone() for w in weights[i]], moments))
    return seen


@pytest.mark.parametrize("learners", [2, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_averaging_in_every_round_is_local_adam(name: str, learners: int) -> None:
    """Parameters and moments are averaged at every third step. The gradients depend on the
    parameters."""
    make, one_step = OPTIMIZERS[name]
    options = {**LOCKSTEP, "sync_every": 3, "moments": EACH_ROUND}
    with cluster(*(make(fresh()) for _ in range(learners)), **options) as made:
        found = train(made, 14, pull)
    expected = by_hand(one_step, learners, 14, 3, pull)
    for i in range(learners):
        for here, there in zip(found[i], expected[i], strict=True):
            assert here.moments.keys() == there.moments.keys() != set()
            assert alike(here.weights, there.weights)
            assert all(
                alike(here.moments[moment], there.moments[moment]) for moment in there.moments
            )
    one, other = (seen[10].moments for seen in found[:2])  # between two rounds
    assert not any(near(one[moment][0], other[moment][0], 1e-3) for moment in one)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_late_adoption_has_the_result_of_averaging_back_then(name: str) -> None:
    """Two steps late, with gradients that do not depend on the parameters. Until the adoption the
    learners differ from that result. The mean of the momenta is the same early or late, so SGD's
    anchors are the same, too."""
    make, one_step = OPTIMIZERS[name]
    with cluster(
        make(fresh()),
        make(fresh()),
        sync_every=4,
        adopt_after=2,
        adoption=Adoption(gain=1),
        merge="mean",
        moments=EACH_ROUND,
    ) as made:
        found = train(made, 15, noise)
        merged = anchors(made[0])
    expected = by_hand(one_step, 2, 15, 4, noise)
    for i in range(2):
        for count, (here, there) in enumerate(zip(found[i], expected[i], strict=True), 1):
            settled = count < 4 or count % 4 in (2, 3)
            for moment in there.moments:
                pairs = zip(here.moments[moment], there.moments[moment], strict=True)
                assert [near(a, b, 1e-5 if settled else 1e-3) for a, b in pairs] == [settled] * len(
                    SHAPES
                ), count
    if name == "SGD":
        assert all(near(a, b) for a, b in zip(merged, expected[0][11].weights, strict=True))


def agreeing(found: Sequence[Sequence[Seen]], moment: str) -> list[int]:
    """The steps after which all learners have the same moment. After all other steps they differ
    clearly."""
    same_at = []
    for count, (one, *others) in enumerate(zip(*found, strict=True), 1):
        pairs = [
            (a, b)
            for o in others
            for a, b in zip(one.moments[moment], o.moments[moment], strict=True)
        ]
        alike = [near(a, b) for a, b in pairs]
        assert all(alike) or not any(near(a, b, 1e-3) for a, b in pairs)
        same_at += [count] if all(alike) else []
    return same_at


@pytest.mark.parametrize(
    ("told", "first", "second"),
    [
        ({"moments": MomentSchedule()}, [3, 6, 9, 12], [6, 12]),
        ({"moments": MomentSchedule(first=3, second=6)}, [3, 6, 9, 12], [6, 12]),
        ({"moments": MomentSchedule(first=4, second=2)}, [4, 8, 12], [2, 4, 6, 8, 10, 12]),
        ({"moments": MomentSchedule(first="half_life", second="half_life")}, [3, 6, 9, 12], []),
        ({"moments": None}, [], []),
    ],
    ids=["default", "3 and 6", "4 and 2", "half lives of 3.1 and 13.5", "never"],
)
def test_moments_agree_after_the_rounds_that_average_them_and_no_others(
    told: dict[str, Any], first: list[int], second: list[int]
) -> None:
    with cluster(adamw(fresh()), adamw(fresh()), **LOCKSTEP, **told) as made:
        found = train(made, 12, noise)
        assert [o.status().fragments[0].version for o in made] == [12, 12]
    assert (agreeing(found, "exp_avg"), agreeing(found, "exp_avg_sq")) == (first, second)
    if first:
        periods = (first[0], second[0] if second else 13)
        for here, there in zip(
            found[1], by_hand(one_adamw, 2, 12, 1, noise, periods)[1], strict=True
        ):
            assert all(near(here.moments[name][0], there.moments[name][0]) for name in MOMENTS)


@pytest.mark.parametrize("coding", list(CODECS))
def test_moments_stay_local_if_they_would_be_most_of_the_bytes(coding: str) -> None:
    options = {**LOCKSTEP, "sync_every": 20, "codec": coding}
    with cluster(adamw(fresh()), adamw(fresh()), **options) as made:
        found = train(made, 120, noise)
    assert agreeing(found, "exp_avg_sq") == ([120] if coding in ("none", "bf16") else [])


def test_moments_stay_local_if_rounds_are_frequent() -> None:
    with cluster(adamw(fresh()), adamw(fresh()), **{**LOCKSTEP, "sync_every": 19}) as made:
        found = train(made, 6 * 19, noise)
    assert agreeing(found, "exp_avg_sq") == []


def test_fragments_average_their_moments_in_their_own_rounds() -> None:
    """Two fragments take turns half a period apart. Each has versions of its own."""
    options = {
        "sync_every": 2,
        "fragments": 2,
        "adopt_after": 0,
        "moments": MomentSchedule(first=2, second=3),
    }
    with cluster(adamw(fresh()), adamw(fresh()), **options) as made:
        found = train(made, 13, noise)
        assert [f.version for f in made[0].status().fragments] == [7, 6]
    for name, period in zip(MOMENTS, (2, 3), strict=True):
        for k, offset in enumerate((1, 2)):  # fragment k is merged at steps 2 n - 1 + k
            pairs = zip(
                *([seen.moments[name][k] for seen in found[i]] for i in range(2)), strict=True
            )
            agree = [count for count, (a, b) in enumerate(pairs, 1) if near(a, b)]
            assert agree == [
                step for step in range(offset, 14, 2) if ((step - offset) // 2 + 1) % period == 0
            ]


@pytest.mark.parametrize("coding", [name for name in CODECS if name != "none"])
def test_with_a_codec_moments_agree_but_for_rounding_and_squares_stay_positive(coding: str) -> None:
    """All learners take one rounded mean. So they agree with each other better than with the exact
    mean."""
    with cluster(
        adamw(fresh()), adamw(fresh()), codec=coding, moments=EACH_ROUND, **LOCKSTEP
    ) as made:
        found = train(made, 8, noise)
    for name in MOMENTS:
        assert agreeing(found, name) == list(range(1, 9))
    expected = by_hand(one_adamw, 2, 8, 1, noise)
    for here, there in zip(found[0], expected[0], strict=True):
        assert all(near(here.moments[name][0], there.moments[name][0], 2.0**-5) for name in MOMENTS)
        assert all(bool((v >= 0).all()) for v in here.moments["exp_avg_sq"])


def test_each_learner_counts_once_whatever_its_tokens() -> None:
    """Parameters are averaged by tokens; moments are not."""
    each = [{"tokens_per_step": 1}, {"tokens_per_step": 9}]
    with cluster(
        adamw(fresh()), adamw(fresh()), each=each, sync_every=3, adopt_after=0, moments=EACH_ROUND
    ) as made:
        ((*_, one), _) = train(made, 3, noise)
    expected = by_hand(one_adamw, 2, 3, 3, noise)[0][-1]
    assert all(alike(one.moments[name], expected.moments[name]) for name in MOMENTS)
    assert not alike(one.weights, expected.weights)


def test_a_learners_second_moments_bound_the_mean_of_first_moments() -> None:
    """The second learner has met no gradient in some places where the first has. There the other's
    m over its own v of 0 would be a leap."""

    def grad(i: int, s: int, parameter: Tensor) -> Tensor:
        return noise(i, s, parameter) * (
            1.0 if i == 0 else torch.arange(parameter.numel()).view(parameter.shape) % 2
        )

    told = MomentSchedule(first=1, second=4)
    with cluster(adamw(fresh()), adamw(fresh()), moments=told, **LOCKSTEP) as made:
        train(made, 3, grad)
        never = torch.arange(15).view(5, 3) % 2 == 0
        assert not bool(state(made[1])["exp_avg_sq"][never].any())
        assert not bool(state(made[1])["exp_avg"][never].any())
        assert bool((state(made[1])["exp_avg"][~never] != 0).all())
        train(made, 2, grad, 3)
        assert bool((state(made[1])["exp_avg_sq"][never] > 0).all())
        assert bool((state(made[1])["exp_avg"][never] != 0).all())


def test_the_moments_of_an_added_group_are_averaged() -> None:
    with cluster(adamw(fresh()), adamw(fresh()), moments=EACH_ROUND, **LOCKSTEP) as made:
        train(made, 2, noise)
        for optimizer in made:
            optimizer.add_param_group(
                {"params": [Parameter(torch.ones(4, 2, 3))], "betas": (0.5, 0.5)}
            )
        train(made, 4, noise, 2)
        assert all(f.version > 1 for f in made[0].status().fragments)
        for name in MOMENTS:
            assert near(*(state(o, 2)[name] for o in made))


# ── alone, and with moments=None ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "place", [{}, {"listen": LOOPBACK, "timing": TIMING}], ids=["no peers", "nobody came"]
)
def test_alone_it_is_the_inner_optimizer_to_the_bit(place: dict[str, Any]) -> None:
    bare = adamw(fresh())
    with closing(
        MendOptimizer(adamw(fresh()), moments=EACH_ROUND, **LOCKSTEP, **place)
    ) as optimizer:
        assert_alike(*train([optimizer], 9, pull), *train([bare], 9, pull))
        assert_alike(optimizer.inner.state_dict(), bare.state_dict())


def test_a_learner_whose_peers_are_at_rest_keeps_its_moments_to_the_bit() -> None:
    bare = adamw(fresh())
    with cluster(adamw(fresh()), adamw(fresh()), **STILL) as made:
        for first in (0, 3):
            train(made[:1], 3, noise, first)
            settle(made)
        assert made[0].status().fragments[0].version == 2
        train([bare], 6, noise)
        assert_alike(state(made[0]), state(bare))


class Tap:
    """Notes the names of all sections that a learner sends. A message that is sent again, because
    its receiver was slow to answer, is noted once."""

    def __init__(self, optimizer: MendOptimizer) -> None:
        assert optimizer._learner is not None
        transport = optimizer._learner.network.transport
        noted_before: list[Message] = []
        self.sections: list[tuple[str, list[str]]] = []
        send = transport.send

        def noted(to: Any, message: Message, reply: str) -> None:
            again = message in noted_before
            if isinstance(message, Offer | Seal | State) and not again:
                noted_before.append(message)
                moments = [name for name in sorted(message.sections) if name.startswith("moment.")]
                self.sections.append((type(message).__name__, moments))
            send(to, message, reply)

        transport.send = noted  # type: ignore[method-assign]

    @property
    def moments(self) -> set[str]:
        return {name for _, names in self.sections for name in names}

    @property
    def kinds(self) -> set[str]:
        return {kind for kind, _ in self.sections}


def test_moments_none_sends_and_changes_no_moments() -> None:
    """Offers, seals and the anchors for newcomers carry no moments. The inner optimizer's state is
    the same as alone."""
    bare = [adamw(fresh()) for _ in range(2)]
    with cluster(adamw(fresh()), adamw(fresh()), moments=None, **LOCKSTEP) as made:
        taps = [Tap(o) for o in made]
        train(made, 7, noise)
        for i, (optimizer, own) in enumerate(zip(made, bare, strict=True)):
            train([own], 7, lambda _, s, p, i=i: noise(i, s, p))
            for k in range(len(SHAPES)):
                assert_alike(state(optimizer, k), state(own, k))
        with closing(newcomer(adamw(fresh(9)), "c", *made, moments=None, **LOCKSTEP)) as joiner:
            assert joiner.join().rounds[-1].reason == "pulled"
            assert not joiner.inner.state
        assert taps[0].kinds | taps[1].kinds == {"Offer", "Seal", "State"}
        assert taps[0].moments | taps[1].moments == set()


def test_only_moments_that_are_due_travel() -> None:
    with cluster(adamw(fresh()), adamw(fresh()), **LOCKSTEP, moments=MomentSchedule()) as made:
        taps = [Tap(o) for o in made]
        train(made, 7, noise)
        both = ["moment.exp_avg", "moment.exp_avg_sq"]
        for kind in ("Offer", "Seal"):
            (sent,) = [
                each for each in ([m for k, m in tap.sections if k == kind] for tap in taps) if each
            ]
            assert sent == [[], [], both[:1], [], [], both, []]


@pytest.mark.parametrize(
    ("here", "there", "words"),
    [
        (MomentSchedule(), None, "moments: here first 3, second 6, there never"),
        (
            MomentSchedule(),
            MomentSchedule(second=7),
            "moments: here first 3, second 6, there first 3, second 7",
        ),
        (None, MomentSchedule(first="half_life"), "moments: here never, there first 3, second 6"),
    ],
)
def test_learners_with_different_schedules_refuse_each_other(
    here: Any, there: Any, words: str
) -> None:
    watches = [Watch(), Watch()]
    each = [{"moments": m, "on_event": w} for m, w in zip((here, there), watches, strict=True)]
    with cluster(adamw(fresh()), adamw(fresh()), each=each, started=False, sync_every=1):
        reason = watches[0].until("refused")[0].facts["reason"]
        assert reason == f"{words}; pass the same moments to both"
        assert watches[1].until("refused")[0].facts["reason"].startswith("moments: here ")


# ── bytes ─────────────────────────────────────────────────────────────────────────────────────────

ROUNDS, LARGE = 12, (100, 60)
NUMEL = math.prod(LARGE)


def round_bytes(told: MomentSchedule | None, every: int = 1) -> float:
    """The bytes that one learner offers in a round: the average of twelve, by the ledger."""
    inners = [
        adamw([Parameter(torch.randn(LARGE, generator=torch.Generator().manual_seed(1)))])
        for _ in range(2)
    ]
    with cluster(*inners, sync_every=every, adopt_after=0, moments=told) as made:
        train(made, ROUNDS * every, noise)
        records = [o.status().rounds for o in made]
    assert [len(rounds) for rounds in records] == [ROUNDS, ROUNDS]
    offered = [[r.offer_bytes for r in rounds] for rounds in records]
    assert offered[0] == offered[1]
    return sum(offered[0]) / ROUNDS


def test_bytes_are_half_of_averaging_in_every_round_and_a_170th_of_all_reducing_gradients() -> None:
    """In parameters per step: 1/H + 1/3H + 1/6H against 3/H and against 1, at H = 256. A round has
    the same number of bytes at any H."""
    often, rarely, never = (
        round_bytes(told) for told in (EACH_ROUND, MomentSchedule(first=3, second=6), None)
    )
    assert rarely / often == pytest.approx(1 / 2, rel=0.02)
    assert never / often == pytest.approx(1 / 3, rel=0.02)
    assert round_bytes(MomentSchedule(first=3, second=6), every=3) == rarely
    assert 4 * NUMEL / (rarely / 256) == pytest.approx(170.7, rel=0.02)


def test_seals_are_as_cheap_as_offers() -> None:
    """A seal has one mean for each moment, whatever the number of members."""
    inners = [adamw([Parameter(torch.zeros(LARGE))]) for _ in range(3)]
    with cluster(*inners, **LOCKSTEP, moments=MomentSchedule()) as made:
        train(made, 6, noise)
        for optimizer in made:
            for record in optimizer.status().rounds:
                moments = {3: 1, 6: 2}.get(record.version, 0)
                assert record.merged_bytes == pytest.approx((1 + moments) * 4 * NUMEL, rel=0.02)


# ── joining ───────────────────────────────────────────────────────────────────────────────────────


def twin(optimizer: MendOptimizer, make: Make) -> Optimizer:
    """A plain optimizer with copies of its weights and state."""
    alike = make([Parameter(p.clone()) for p in parameters(optimizer)])
    alike.load_state_dict(copy.deepcopy(optimizer.inner.state_dict()))
    return alike


def steps_alike(optimizer: MendOptimizer, veteran: Optimizer) -> bool:
    """Whether both make the same next update with the same gradients."""
    before = [p.clone() for p in parameters(veteran)]
    assert all(near(a, b, 1e-6) for a, b in zip(parameters(optimizer), before, strict=True))
    for one in (optimizer, veteran):
        train([one], 1, lambda _, s, p: noise(5, s, p))
    pairs = zip(parameters(optimizer), parameters(veteran), before, strict=True)
    return all(near(a - c, b - c, 1e-4) for a, b, c in pairs)


@pytest.mark.parametrize("former", [0, 3], ids=["new", "that has trained alone"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_newcomers_first_step_is_the_step_of_the_others(name: str, former: int) -> None:
    """The others have done 5 and 8 steps. The newcomer's own weights, state and count are gone."""
    make, _ = OPTIMIZERS[name]
    with cluster(make(fresh()), make(fresh()), **STILL) as made:
        together(
            lambda: train(made[:1], 5, noise),
            lambda: train(made[1:], 8, lambda _, s, p: noise(1, s, p)),
        )
        settle(made)
        veteran, inner = twin(made[1], make), make(fresh(9))
        train([inner], former, noise)
        with closing(newcomer(inner, "c", *made, **STILL)) as joiner:
            joiner.join()
            for k in range(len(SHAPES)):
                here, there = state(inner, k), state(veteran, k)
                assert here.keys() == there.keys()
                assert all(near(torch.as_tensor(here[n]), torch.as_tensor(there[n])) for n in here)
            assert int(state(inner).get("step", 8)) == 8
            assert steps_alike(joiner, veteran)


def test_a_newcomer_with_an_optimizer_without_such_moments_joins() -> None:
    with cluster(adamw(fresh()), adamw(fresh()), **STILL) as made:
        train(made, 3, noise)
        settle(made)
        with closing(newcomer(SGD(fresh(9), lr=LR), "c", *made, **STILL)) as joiner:
            joiner.join()
            assert not joiner.inner.state
            assert same(parameters(joiner), anchors(made[0]))


def join_in_training(veteran: MendOptimizer, joiner: MendOptimizer) -> None:
    """One learner trains until another has joined it."""
    joined = threading.Event()

    def train_on() -> None:
        while not joined.is_set():
            train([veteran], 1, noise, veteran.status().step)

    def join() -> None:
        try:
            joiner.join()
        finally:
            joined.set()

    together(train_on, join)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_learner_alone_hands_its_moments_to_the_first_newcomer(name: str) -> None:
    make, _ = OPTIMIZERS[name]
    bare = make(fresh())
    with closing(
        MendOptimizer(make(fresh()), name="a", listen=LOOPBACK, timing=TIMING, **STILL)
    ) as veteran:
        train([veteran], 4, noise)
        with closing(newcomer(make(fresh(9)), "b", veteran, **STILL)) as joiner:
            join_in_training(veteran, joiner)
            tokens = progress(joiner).lineage.tokens  # one per step in the anchor
            assert 4 < tokens <= veteran.status().step
            train([bare], tokens, noise)
            assert int(state(joiner).get("step", tokens)) == tokens
            for k in range(len(SHAPES)):
                for moment in state(bare, k):
                    assert near(
                        torch.as_tensor(state(joiner, k)[moment]),
                        torch.as_tensor(state(bare, k)[moment]),
                    )
            assert steps_alike(joiner, bare)


def test_a_newcomer_begins_without_moments_if_no_round_has_averaged_them() -> None:
    """First moments over second moments of zero would be worse."""
    options = {"moments": MomentSchedule(first=1, second=6), "sync_every": 1000}
    with cluster(adamw(fresh()), adamw(fresh()), **options) as made:
        train(made, 5, noise)
        settle(made)
        with closing(newcomer(adamw(fresh(9)), "c", *made, **options)) as joiner:
            joiner.join()
            assert not joiner.inner.state


def saved_after(rounds: int) -> Any:
    """The checkpoint of a learner whose moments were averaged in `rounds` rounds."""
    with cluster(adamw(fresh()), adamw(fresh()), moments=EACH_ROUND, **LOCKSTEP) as made:
        train(made, rounds, noise)
        assert progress(made[0]).averaged == {"first": rounds, "second": rounds}
        return save(made[0])


def test_a_newcomer_from_another_cluster_is_averaged_like_the_others() -> None:
    """Its old cluster had more rounds, this one has more tokens. The averages there don't count
    here."""
    saved, rich = (
        saved_after(9),
        {"tokens_per_step": 1000, "moments": EACH_ROUND, "sync_every": 1000},
    )
    with cluster(
        adamw(fresh(3)), adamw(fresh(3)), each=[{"name": "x"}, {"name": "y"}], **rich
    ) as made:
        train(made, 2, noise)
        settle(made)
        with closing(newcomer(adamw(fresh(9)), "a", *made, **rich)) as mover:
            load(mover, saved)
            start([*made, mover])
            assert mover.status().rounds[-1].reason == "pulled"
            everybody = [*made, mover]
            train(everybody, 2, noise)
            settle(everybody)
            assert progress(mover).lineage.version < 9
            one, *others = (squares(o) for o in everybody)
            assert all(near(one, other) for other in others)


def squares(optimizer: Optimizer) -> Tensor:
    """v / (1 - β^t), the first parameter's."""
    found: Tensor = state(optimizer)["exp_avg_sq"] / (1 - BETAS[1] ** int(state(optimizer)["step"]))
    return found


# ── optimizers of all kinds ───────────────────────────────────────────────────────────────────────


class Signs(Optimizer):
    """An optimizer unknown to the library. It follows the sign of an average that it keeps."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"decay": 0.75})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                average = self.state[p].setdefault("average", torch.zeros_like(p))
                average.lerp_(p.grad, 1 - group["decay"])
                p.sub_(average.sign(), alpha=0.1)


def test_an_unknown_optimizer_trains_and_keeps_its_state() -> None:
    with cluster(Signs(fresh()), Signs(fresh()), moments=EACH_ROUND, **LOCKSTEP) as made:
        taps = [Tap(o) for o in made]
        train(made, 6, noise)
        assert same(*map(parameters, made))
        assert taps[0].moments | taps[1].moments == set()
        assert not near(*(state(o)["average"] for o in made), 1e-3)


def test_named_moments_are_averaged_like_known_ones() -> None:
    named = (Moment(name="average", order="first", decay="decay"),)
    told = MomentSchedule(first=2, states=named)
    with cluster(Signs(fresh()), Signs(fresh()), moments=told, **LOCKSTEP) as made:
        for count in range(5):
            train(made, 1, noise, count)
            assert near(*(state(o)["average"] for o in made)) == (count % 2 == 1)


@pytest.mark.parametrize(("name", "told"), [("avrage", 1), ("average", 0)])
def test_a_moments_name_without_a_state_is_reported_once(name: str, told: int) -> None:
    watch = Watch()
    named = MomentSchedule(first=1, states=(Moment(name=name, order="first", decay="decay"),))
    each = [{"on_event": watch}, {}]
    with cluster(
        Signs(fresh()), Signs(fresh()), each=each, moments=named, fragments=2, sync_every=4
    ) as made:
        train(made, 12, noise)
        settle(made)
    texts = [event.text for event in watch.of("unknown")]
    assert len(texts) == told
    assert all(
        "no parameter has a state 'avrage' of its own shape" in t and "there is: average" in t
        for t in texts
    )


def test_learners_with_different_optimizers_train_together() -> None:
    """Neither learner knows the other's moments. The model is large enough for its
    messages to be measured."""
    inners = [AdamW([Parameter(torch.zeros(LARGE))]), SGD([Parameter(torch.zeros(LARGE))], lr=LR)]
    with cluster(*inners, sync_every=1000, moments=EACH_ROUND) as made:
        train(made, 3, noise)
        assert all(together(*(lambda o=o: o.synchronize(PATIENCE_S) for o in made)))
        assert [o.status().fragments[0].tokens for o in made] == [6, 6]


def groups(frozen: bool = True) -> Optimizer:
    """Two groups with different decays. The last parameter is frozen."""
    (a, b), still = fresh(), Parameter(torch.ones(4), requires_grad=False)
    return AdamW(
        [{"params": [a], "betas": (0.5, 0.7)}, {"params": [b, still], "betas": BETAS}], lr=LR
    )


def test_groups_use_their_own_decays_and_frozen_parameters_have_no_moments() -> None:
    """Adoption is two steps late, so the decays matter."""
    with cluster(groups(), groups(), sync_every=4, adopt_after=2, moments=EACH_ROUND) as made:
        together(*(lambda i=i: walk(made[i], i, 6) for i in range(2)))
        for optimizer in made:
            assert set(map(id, optimizer.state)) == {id(p) for p in trained(optimizer)}
            for k, (beta1, beta2) in enumerate([(0.5, 0.7), BETAS]):
                m, v = (torch.zeros(SHAPES[k], dtype=torch.float64) for _ in range(2))
                own = [average_of(i, k, 4, beta1, beta2) for i in range(2)]
                i = made.index(optimizer)
                for total, pick, beta in ((m, 0, beta1), (v, 1, beta2)):
                    total += (own[0][pick] + own[1][pick]) / 2
                    for s in (4, 5):
                        g = noise(i, s, fresh()[k]).double() ** (1 + pick)
                        total += (1 - beta) * (g - total)
                assert near(state(optimizer, k)["exp_avg"], m)
                assert near(state(optimizer, k)["exp_avg_sq"], v)


def trained(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]


def walk(optimizer: Optimizer, i: int, steps: int) -> None:
    for s in range(steps):
        for parameter in trained(optimizer):
            parameter.grad = noise(i, s, parameter)
        optimizer.step()


def average_of(
    learner: int, k: int, steps: int, beta1: float, beta2: float
) -> tuple[Tensor, Tensor]:
    """The moments of parameter k after so many steps without any averaging."""
    m = v = torch.zeros(SHAPES[k], dtype=torch.float64)
    for s in range(steps):
        g = noise(learner, s, fresh()[k]).double()
        m, v = m + (1 - beta1) * (g - m), v + (1 - beta2) * (g * g - v)
    return m, v


def test_a_learner_without_gradients_of_a_parameter_has_no_part_in_its_moments() -> None:
    """One of three learners never has a gradient of the second parameter. The others average their
    moments; this learner gets nothing but weights."""

    def grad(i: int, s: int, parameter: Tensor) -> Tensor | None:
        return None if i == 2 and parameter.ndim == 1 else noise(i, s, parameter)

    with cluster(
        *(adamw(fresh()) for _ in range(3)), sync_every=3, adopt_after=0, moments=EACH_ROUND
    ) as made:
        for first in (0, 3):
            together(
                *(lambda i=i, first=first: walk_with(made[i], i, first, 3, grad) for i in range(3))
            )
            seen = [
                [state(o, k) if p.grad is not None else {} for k, p in enumerate(trained(o))]
                for o in made
            ]
            assert [len(each[1]) for each in seen] == [3, 3, 0]
            assert same(*([p.detach() for p in trained(o)] for o in (made[0], made[2])))
            for name in MOMENTS:
                assert near(seen[0][0][name], seen[2][0][name])
                assert near(seen[0][1][name], seen[1][1][name])
        beta1, beta2 = BETAS
        (m0, v0), (m1, v1) = (average_of(i, 1, 6, beta1, beta2) for i in (0, 1))
        assert near(seen[0][1]["exp_avg"], (m0 + m1) / 2)
        assert near(seen[0][1]["exp_avg_sq"], (v0 + v1) / 2)


def walk_with(optimizer: Optimizer, i: int, first: int, steps: int, grad: Grad) -> None:
    for s in range(first, first + steps):
        for parameter in trained(optimizer):
            parameter.grad = grad(i, s, parameter)
        optimizer.step()


def test_learners_of_different_age_agree_on_the_update() -> None:
    """One learner has had half as many gradients of the parameter. Both agree on m / (1 - β^t),
    each with its own t."""

    def grad(i: int, s: int, parameter: Tensor) -> Tensor | None:
        return None if i and s % 2 and parameter.ndim == 1 else noise(i, s, parameter)

    with cluster(
        adamw(fresh()), adamw(fresh()), sync_every=4, adopt_after=0, moments=EACH_ROUND
    ) as made:
        together(*(lambda i=i: walk_with(made[i], i, 0, 4, grad) for i in range(2)))
        young, old = state(made[1], 1), state(made[0], 1)
        assert (int(young["step"]), int(old["step"])) == (2, 4)
        for name, beta in zip(MOMENTS, BETAS, strict=True):
            assert near(young[name] / (1 - beta**2), old[name] / (1 - beta**4))
            assert not near(young[name], old[name], 1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_moments_of_other_dtypes(dtype: torch.dtype) -> None:
    def make() -> Optimizer:
        return adamw([Parameter(p.detach().to(dtype)) for p in fresh()])

    with cluster(make(), make(), moments=EACH_ROUND, **LOCKSTEP) as made:
        train(made, 4, noise)
        for name in MOMENTS:
            a, b = (state(o)[name] for o in made)
            assert a.dtype == dtype
            assert near(a, b, 2.0**-6 if dtype is torch.bfloat16 else 1e-6)


# ── checkpoints ───────────────────────────────────────────────────────────────────────────────────

OVERLAP: dict[str, Any] = {
    "sync_every": 7,
    "adopt_after": 4,
    "moments": MomentSchedule(first=1, second=2),
}
STEPS = 41


def uninterrupted(make: Make, options: dict[str, Any]) -> list[Any]:
    with cluster(make(fresh()), make(fresh()), **options) as straight:
        train(straight, STEPS, pull)
        return [
            (parameters(o), anchors(o), o.inner.state_dict(), progress(o).averaged)
            for o in straight
        ]


def tensors_in(saved: Any) -> set[str]:
    return set(saved[1]["mend"]["fragments"][0]["tensors"])


def goes_on(make: Make, options: dict[str, Any], saved: Sequence[Any], at: Sequence[int]) -> None:
    """Restored learners get to the same end, to the bit."""
    with resumed([lambda: make(fresh(9))] * 2, saved, **options) as again:
        together(
            *(
                lambda i=i: [
                    train([again[i]], 1, lambda _, s, p: pull(i, s, p), s)
                    for s in range(at[i], STEPS)
                ]
                for i in range(2)
            )
        )
        for optimizer, (own, merged, inner, averaged) in zip(
            again, uninterrupted(make, options), strict=True
        ):
            assert same(parameters(optimizer), own)
            assert same(anchors(optimizer), merged)
            assert_alike(optimizer.inner.state_dict(), inner)
            assert progress(optimizer).averaged == averaged != {}


@pytest.mark.parametrize("coding", ["none", "int8"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_restart_with_moments_on_their_way(name: str, coding: str) -> None:
    """One learner has offered its moments; the other has not reached that boundary yet."""
    make, options = OPTIMIZERS[name][0], {**OVERLAP, "codec": coding}
    at = (30, 27)
    with cluster(make(fresh()), make(fresh()), **options) as made:
        together(
            *(
                lambda i=i: train(made[i : i + 1], at[i], lambda _, s, p: pull(i, s, p))
                for i in range(2)
            )
        )
        saved = [save(o) for o in made]
    sent = {OWN + moment for moment in (MOMENTS if name == "AdamW" else ["momentum_buffer"])}
    assert [sent & tensors_in(s) for s in saved] == [sent, set()]
    goes_on(make, options, saved, at)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_restart_with_a_mean_that_is_not_adopted_yet(name: str) -> None:
    make = OPTIMIZERS[name][0]
    with cluster(make(fresh()), make(fresh()), **OVERLAP) as made:
        train(made, 30, pull)
        for optimizer in made:
            assert optimizer._learner is not None
            until(optimizer, lambda learner=optimizer._learner: learner.worker.mailbox)
        saved = [save(o) for o in made]
    first = MOMENTS[0] if name == "AdamW" else "momentum_buffer"
    assert all({MEAN + first, LATEST + first} <= tensors_in(s) for s in saved)
    assert all(OWN + first not in tensors_in(s) for s in saved)
    goes_on(make, OVERLAP, saved, (30, 30))


@pytest.mark.parametrize("gain", [1, None])
@pytest.mark.parametrize("coding", ["none", "int8"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_restart_after_a_seal_that_only_one_learner_got(
    name: str, coding: str, gain: float | None
) -> None:
    """No learner has that seal any more. The other one takes the whole anchor that the seal
    made."""
    make = OPTIMIZERS[name][0]
    options = {**OVERLAP, "codec": coding, "adoption": Adoption(gain=gain)}
    with cluster(make(fresh()), make(fresh()), **options) as made:
        train(made, 20, pull)
        deaf, sealer = made[0]._learner, made[1]._learner
        assert deaf is not None
        assert sealer is not None
        if deaf.engine.state.roster.sealer(0) == deaf.engine.state.me:
            deaf, sealer = sealer, deaf
        heard, deaf.engine.receive = deaf.engine.receive, lambda now, message: None  # type: ignore[method-assign]
        try:
            train(made, 4, pull, 20)
            until(made[0], lambda: sealer.worker.mailbox)
            saved = [save(o) for o in made]
        finally:
            deaf.engine.receive = heard  # type: ignore[method-assign]
    first = MOMENTS[0] if name == "AdamW" else "momentum_buffer"
    found = [{MEAN + first, OWN + first} & tensors_in(s) for s in saved]
    assert found in ([{MEAN + first}, {OWN + first}], [{OWN + first}, {MEAN + first}])
    goes_on(make, options, saved, (24, 24))


# ── failures ──────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def spoiled(name: str, value: float, watch: Watch, **options: Any) -> Iterator[list[MendOptimizer]]:
    """Three trained learners. The moments of the last one have held this value since its second
    step."""
    each = [{}, {}, {"on_event": watch}]
    with cluster(
        *(adamw(fresh()) for _ in range(3)), each=each, moments=EACH_ROUND, **options
    ) as made:
        train(made, 1, noise)
        state(made[2])[name][0, 0] = value
        train(made, 5, noise, 1)
        yield made


def sound(optimizer: Optimizer) -> bool:
    tensors = [*parameters(optimizer), *(state(optimizer, k)[n] for k in range(2) for n in MOMENTS)]
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def test_an_infinite_variance_reaches_nobody() -> None:
    """The weights stay sound, and the learner goes on taking part. The others average theirs."""
    watch = Watch()
    with spoiled("exp_avg_sq", math.inf, watch, sync_every=1000) as made:
        settle(made)
        (fault,) = watch.until("fault")
        assert fault.text.startswith(
            "fragment 0 was offered without moments: its exp_avg_sq is not finite"
        )
        assert made[0].status().fragments[0].tokens == 18
        assert [sound(o) for o in made] == [True, True, False]
        assert near(squares(made[0]), squares(made[1]))
        for k in range(2):
            assert all(near(state(made[0], k)["exp_avg"], state(o, k)["exp_avg"]) for o in made[1:])
        with closing(
            newcomer(adamw(fresh(9)), "d", *made, sync_every=1000, moments=EACH_ROUND)
        ) as joiner:
            joiner.join()
            assert sound(joiner)


def test_a_nan_among_first_moments_reaches_nobody() -> None:
    """The next step makes the weights NaN, too. Both begin anew."""
    watch = Watch()
    with spoiled("exp_avg", math.nan, watch, sync_every=2, quorum=2, grace=Grace(max_s=0)) as made:
        assert watch.until("healed")[0].facts["reason"] == "its parameters are not finite"
        settle(made)
        assert [sound(o) for o in made] == [True, True, True]
        assert made[2].status().tokens == 6
        assert made[2].status().dropped_tokens > 0


@pytest.mark.parametrize("fragments", [1, 2])
def test_a_learner_alone_hands_on_its_weights_even_if_its_moments_are_infinite(
    fragments: int,
) -> None:
    """One gradient was too great and left an infinite variance. The weights are fine, and better
    than any first weights."""
    options = {**STILL, "fragments": fragments}
    with closing(
        MendOptimizer(adamw(fresh()), name="a", listen=LOOPBACK, timing=TIMING, **options)
    ) as veteran:
        train([veteran], 4, noise)
        state(veteran, 0)["exp_avg_sq"][0, 0] = math.inf
        with closing(newcomer(adamw(fresh(9)), "b", veteran, **options)) as joiner:
            join_in_training(veteran, joiner)
            tokens = progress(joiner).lineage.tokens
            assert tokens > 4
            settle([veteran, joiner])
            assert same(anchors(veteran), anchors(joiner))
            assert all(bool(p.isfinite().all()) for p in parameters(joiner))
