"""Two learners and every codec: the same anchor to the bit, nothing lost for good, and the promised
number of bytes."""

from __future__ import annotations

import math
from contextlib import closing

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import SGD

from mend_optim import Int8, MendOptimizer, PowerSGD
from mend_optim.codecs.registry import CODECS, Codec, codec_name
from mend_optim.engine.seal_chain import MOST_SEALS
from mend_optim.engine.state import EngineState
from mend_optim.protocol.lineage import NOWHERE
from tests.support.checkpoints import load, newcomer, progress, save
from tests.support.learners import LOCKSTEP, cluster, parameters, together

SHAPES = [(96, 64), (64,), (8, 4, 3, 3), (), (0,)]
NUMEL = sum(map(math.prod, SHAPES))
ROUNDS = 12
TOLD: list[Codec] = [*CODECS.values(), PowerSGD(rank=2, back="same"), Int8(back="same")]

# The greatest share of float32's bytes, up and down, with two learners: the merged delta holds
# both offers.
SHARES = {
    "none": (1.0, 1.0),
    "bf16": (0.52, 1.0),
    "int8": (0.28, 0.55),
    "int4": (0.15, 0.3),
    "float4": (0.15, 0.3),
    "sparse": (0.06, 0.12),
    "powersgd": (0.15, 0.3),
    codec_name(TOLD[-2]): (0.09, 0.09),
    codec_name(TOLD[-1]): (0.28, 0.28),
}


def gradients(learner: int, step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1000 * learner + step)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def held_back(optimizer: MendOptimizer) -> Tensor:
    """The values that this learner's codec has lost so far and will offer again: beside the
    weights, or in them."""
    assert optimizer._learner is not None
    assert optimizer._learner.worker.anchors is not None
    feedback = optimizer._learner.worker.anchors.fragments[0].feedback
    assert feedback.weights_residual is None or feedback.residual is None
    residual = feedback.residual if feedback.weights_residual is None else feedback.weights_residual
    return torch.zeros(NUMEL) if residual is None else residual


def flat(optimizer: MendOptimizer) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in parameters(optimizer)])


def returned(optimizer: MendOptimizer) -> Tensor:
    """The values that the way back has lost so far, if this learner sealed."""
    assert optimizer._learner is not None
    assert optimizer._learner.worker.anchors is not None
    feedback = optimizer._learner.worker.anchors.fragments[0].payload.feedback
    return (
        torch.zeros(NUMEL) if feedback is None or feedback.residual is None else feedback.residual
    )


def lost_by(optimizers: list[MendOptimizer]) -> Tensor:
    """The values that the anchor still lacks: what the learners hold back counts by half, as in
    their mean."""
    own = sum(map(held_back, optimizers), torch.zeros(NUMEL))
    return own / 2 + sum(map(returned, optimizers), torch.zeros(NUMEL))


def mean_progress(steps: int) -> Tensor:
    """The sum of all gradients of so many steps, as the mean of the two learners."""
    every = (gradients(i, step) for i in range(2) for step in range(steps))
    return sum(torch.cat([g.flatten() for g in those]) for those in every) / 2


@pytest.mark.parametrize("told", TOLD, ids=codec_name)
def test_learners_agree_to_the_bit_and_lose_nothing_for_good(told: Codec) -> None:
    models = [[Parameter(torch.zeros(shape)) for shape in SHAPES] for _ in range(2)]
    with cluster(*(SGD(model, lr=1.0) for model in models), codec=told, **LOCKSTEP) as optimizers:

        def loop(i: int) -> None:
            for step in range(ROUNDS):
                for parameter, gradient in zip(models[i], gradients(i, step), strict=True):
                    parameter.grad = gradient
                optimizers[i].step()

        together(lambda: loop(0), lambda: loop(1))
        own = [flat(optimizer) for optimizer in optimizers]
        with optimizers[0].global_weights(), optimizers[1].global_weights():
            moved, others = map(flat, optimizers)
        assert torch.equal(moved, others)
        for optimizer, weights in zip(optimizers, own, strict=True):
            assert torch.equal(
                weights, moved - held_back(optimizer) if told.residual_in_weights else moved
            )  # type: ignore[arg-type]
        records = [optimizer.status().rounds for optimizer in optimizers]
        assert [r.digest for r in records[0]] == [r.digest for r in records[1]]
        trained = mean_progress(ROUNDS)
        lost = lost_by(optimizers)
        torch.testing.assert_close(-moved + lost, trained, rtol=1e-4, atol=1e-4)
        assert torch.any(lost != 0) == (not told.exact)  # type: ignore[arg-type]
        most_up, most_down = SHARES[codec_name(told)]
        sizes = 8 * len(models)  # a seal tells the size of each offer
        for record in [r for rounds in records for r in rounds if r.members]:
            assert 0 < record.offer_bytes <= most_up * 4 * NUMEL
            assert 0 < record.merged_bytes <= most_down * 4 * NUMEL + sizes


STAYS = [codec for codec in TOLD if codec.residual_in_weights]


def train_and_rest(
    models: list[list[Parameter]], optimizers: list[MendOptimizer], steps: int
) -> None:
    """Each learner trains on gradients of its own; then all synchronize until nothing is left to
    merge."""

    def loop(i: int) -> None:
        for step in range(steps):
            for parameter, gradient in zip(models[i], gradients(i, step), strict=True):
                parameter.grad = gradient
            optimizers[i].step()
        assert optimizers[i].synchronize()

    together(*(lambda i=i: loop(i) for i in range(len(models))))
    assert all(optimizer.synchronize() for optimizer in optimizers)


@pytest.mark.parametrize("adopt_after", [0, None])
@pytest.mark.parametrize("told", STAYS, ids=codec_name)
def test_at_rest_what_stayed_in_the_weights_is_merged_too_and_all_have_the_same(
    told: Codec, adopt_after: int | None
) -> None:
    models = [[Parameter(torch.zeros(shape)) for shape in SHAPES] for _ in range(2)]
    settings = {**LOCKSTEP, "adopt_after": adopt_after, "codec": told}
    with cluster(*(SGD(model, lr=1.0) for model in models), **settings) as optimizers:
        train_and_rest(models, optimizers, ROUNDS)
        own = [flat(optimizer) for optimizer in optimizers]
        with optimizers[0].global_weights():
            moved = flat(optimizers[0])
        for optimizer, weights in zip(optimizers, own, strict=True):
            torch.testing.assert_close(weights, moved, rtol=1e-5, atol=1e-5)
            assert float(held_back(optimizer).norm()) <= 0.05 * float(moved.norm())
            assert optimizer.status().unmerged_tokens == 0
        assert optimizers[0].status().fragments[0].tokens == 2 * ROUNDS
        if adopt_after is None:  # in whichever rounds, with whichever weights
            return
        trained = mean_progress(ROUNDS)
        lost = lost_by(optimizers)
        torch.testing.assert_close(-moved + lost, trained, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("told", STAYS, ids=codec_name)
def test_at_rest_nothing_stays_with_the_sealer_either(told: Codec) -> None:
    """Unmerged steps are merged at rest, and no later round could carry what the way back would
    lose of them."""
    models = [[Parameter(torch.zeros(shape)) for shape in SHAPES] for _ in range(2)]
    settings = {**LOCKSTEP, "sync_every": 4, "codec": told}
    with cluster(*(SGD(model, lr=1.0) for model in models), **settings) as optimizers:
        train_and_rest(models, optimizers, 6)
        with optimizers[0].global_weights():
            moved = flat(optimizers[0])
        trained = mean_progress(6)
        assert float((moved + trained).norm()) <= 0.05 * float(trained.norm())


def test_what_stayed_of_many_steps_weighs_as_many_at_rest_whatever_it_goes_with() -> None:
    """One learner has one more step, the other five more whose progress is zero: half of the first
    learner's progress is in the mean."""
    models = [[Parameter(torch.zeros(shape)) for shape in SHAPES] for _ in range(2)]
    settings = {"sync_every": 8, "adopt_after": 0, "codec": PowerSGD(rank=2)}
    with cluster(*(SGD(model, lr=1.0) for model in models), **settings) as optimizers:

        def loop(i: int) -> None:
            for step in range(8 + (1, 5)[i]):
                for parameter, gradient in zip(models[i], gradients(i, step), strict=True):
                    parameter.grad = gradient if i == 0 and step < 8 else torch.zeros_like(gradient)
                optimizers[i].step()
            assert optimizers[i].synchronize()

        together(lambda: loop(0), lambda: loop(1))
        assert all(together(*(lambda o=o: o.synchronize() for o in optimizers)))
        trained = sum(torch.cat([g.flatten() for g in gradients(0, step)]) for step in range(8))
        with optimizers[0].global_weights():
            moved = flat(optimizers[0])
        assert float(-moved @ trained / (trained @ trained)) == pytest.approx(0.5, rel=0.02)


def test_where_a_merge_knows_no_shares_what_stayed_stays_at_rest_too() -> None:
    models = [[Parameter(torch.zeros(shape)) for shape in SHAPES] for _ in range(2)]
    settings = {**LOCKSTEP, "codec": PowerSGD(rank=2), "merge": "median"}
    with cluster(*(SGD(model, lr=1.0) for model in models), **settings) as optimizers:

        def loop(i: int) -> None:
            for parameter, gradient in zip(models[i], gradients(i, 0), strict=True):
                parameter.grad = gradient
            optimizers[i].step()
            assert optimizers[i].synchronize()

        together(lambda: loop(0), lambda: loop(1))
        for optimizer in optimizers:
            own = flat(optimizer)
            with optimizer.global_weights():
                assert float((own - flat(optimizer)).norm()) > 1.0


@pytest.mark.parametrize(
    "told", ["sparse", Int8(back="same"), PowerSGD(rank=2, back="same")], ids=str
)
@pytest.mark.parametrize(("steps", "how"), [(3, "all_present"), (MOST_SEALS + 2, "pulled")])
def test_what_a_restored_learners_former_self_offered_since_is_not_offered_again(
    told: Codec, steps: int, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint holds nothing unmerged, but it holds what the codec had lost. The process that
    saved it went on. What it has done since comes by seals, or in a whole anchor."""
    # As if a newcomer were about to join: the sealer keeps its last seals.
    monkeypatch.setattr(EngineState, "had", lambda *_: [NOWHERE])
    models = [[Parameter(torch.zeros(shape)) for shape in SHAPES] for _ in range(3)]
    with cluster(*(SGD(model, lr=1.0) for model in models[:2]), codec=told, **LOCKSTEP) as (
        old,
        other,
    ):

        def train(first: int, last: int) -> None:
            def loop(i: int) -> None:
                for step in range(first, last):
                    for parameter, gradient in zip(models[i], gradients(i, step), strict=True):
                        parameter.grad = gradient
                    (old, other)[i].step()

            together(lambda: loop(0), lambda: loop(1))

        train(0, 3)
        saved = save(old)
        assert held_back(old).any()
        train(3, 3 + steps)
        old.close()
        with closing(newcomer(SGD(models[2], lr=1.0), "a", other, codec=told, **LOCKSTEP)) as again:
            load(again, saved)
            assert again.join().rounds[-1].reason == how
            assert not held_back(again).any()
            assert not returned(again).any()


@pytest.mark.parametrize("loaded", ["the weights", "others"])
def test_a_sealer_tells_what_it_holds_and_what_it_gives_up(loaded: str) -> None:
    """Its next process goes on from a checkpoint. The others have gone on without that, so the
    process takes their anchor whole. Beside other weights it gives up what the checkpoint has."""
    told = Int8(back="same")
    models = [[Parameter(torch.zeros(shape)) for shape in SHAPES] for _ in range(3)]
    inners = (SGD(model, lr=1.0) for model in models[:2])
    with cluster(*inners, codec=told, **LOCKSTEP) as optimizers:

        def train(first: int, last: int) -> None:
            def loop(i: int) -> None:
                for step in range(first, last):
                    for parameter, gradient in zip(models[i], gradients(i, step), strict=True):
                        parameter.grad = gradient
                    optimizers[i].step()

            together(lambda: loop(0), lambda: loop(1))

        train(0, 3)
        for optimizer in optimizers:
            held = optimizer.status().held_residual
            assert held == pytest.approx(returned(optimizer).norm().item(), rel=1e-5)
            assert optimizer.status().dropped_residual == 0
        old, other = sorted(optimizers, key=lambda optimizer: -optimizer.status().held_residual)
        assert old.status().held_residual > other.status().held_residual == 0
        saved, held = save(old), old.status().held_residual
        train(3, 6)
        old.close()
        name = old.status().name
        with closing(
            newcomer(SGD(models[2], lr=1.0), name, other, codec=told, **LOCKSTEP)
        ) as again:
            weights, state = saved
            load(again, saved if loaded == "the weights" else ([w + 1 for w in weights], state))
            assert again.join().rounds[-1].reason == "pulled"
            status = again.status()
            assert (status.held_residual, status.dropped_residual) == (0, held)


@pytest.mark.parametrize("offered", [True, False])
def test_what_stayed_in_the_weights_of_a_checkpoint_is_closed_once(offered: bool) -> None:
    """Either by the offer that its process left at a sealer, or by the process that goes on from
    it."""
    told = PowerSGD(rank=2)
    models = [[Parameter(torch.zeros(shape)) for shape in SHAPES] for _ in range(4)]
    with cluster(
        *(SGD(model, lr=1.0) for model in models[:3]), codec=told, **LOCKSTEP
    ) as optimizers:

        def loop(i: int) -> None:
            for step in range(3):
                for parameter, gradient in zip(models[i], gradients(i, step), strict=True):
                    parameter.grad = gradient if i == 0 else torch.zeros_like(gradient)
                optimizers[i].step()

        together(*(lambda i=i: loop(i) for i in range(3)))
        old, *others = optimizers
        saved, rest = save(old), held_back(old).clone()
        with others[0].global_weights():
            before = flat(others[0])
        if offered:
            assert not old.synchronize(1.0)
        old.close()
        with closing(
            newcomer(SGD(models[3], lr=1.0), "a", others[0], codec=told, **LOCKSTEP)
        ) as again:
            load(again, saved)
            again.join()
            for _ in range(2):
                assert all(together(*(lambda o=o: o.synchronize() for o in (*others, again))))
            with others[0].global_weights():
                moved = before - flat(others[0])
            assert float(moved @ rest / (rest @ rest)) == pytest.approx(1 / 3, rel=0.01)
            torch.testing.assert_close(flat(again), before - moved, rtol=1e-4, atol=1e-4)


def test_weights_that_a_restored_learner_replaced_have_nothing_left_to_close() -> None:
    told, models = (
        PowerSGD(rank=2),
        [[Parameter(torch.zeros(shape)) for shape in SHAPES] for _ in range(3)],
    )
    with cluster(*(SGD(model, lr=1.0) for model in models[:2]), codec=told, **LOCKSTEP) as (
        old,
        other,
    ):

        def loop(i: int) -> None:
            for parameter, gradient in zip(models[i], gradients(i, 0), strict=True):
                parameter.grad = gradient
            (old, other)[i].step()

        together(lambda: loop(0), lambda: loop(1))
        weights, state = save(old)
        assert progress(old).residual.unsent
        old.close()
        with closing(newcomer(SGD(models[2], lr=1.0), "a", other, codec=told, **LOCKSTEP)) as again:
            load(again, ([value + 1 for value in weights], state))
            again.join()
            assert not held_back(again).any()
            assert not progress(again).residual.unsent
