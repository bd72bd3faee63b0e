"""Weights that are loaded in mid-run: after `reset_progress()`, nobody takes the jump for
progress."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mend_optim import Adoption, MendOptimizer, UsageError
from tests.support.checkpoints import anchors, progress, resumed, save
from tests.support.learners import (
    cluster,
    descent,
    drive,
    parameters,
    read,
    same,
    settle,
    step,
    together,
    until,
)

# Sums of these are exact in float32, so that no sum is rounded.
FREE: dict[str, Any] = {"sync_every": 4, "merge": "mean", "adoption": Adoption(gain=0.5)}

RARE = {**FREE, "sync_every": 100}


def jump(optimizer: MendOptimizer, value: float) -> None:
    """What `model.load_state_dict` does."""
    for parameter in parameters(optimizer):
        parameter.fill_(value)


def account(made: list[MendOptimizer]) -> int:
    """The tokens in the model, and those that are in none."""
    tokens = {optimizer.status().fragments[0].tokens for optimizer in made}
    assert len(tokens) == 1
    dropped = sum(optimizer.status().dropped_tokens for optimizer in made)
    return tokens.pop() + dropped


@pytest.mark.parametrize("options", [FREE, {**FREE, "fragments": 2}, {**FREE, "codec": "int8"}])
def test_the_model_has_nothing_of_the_jump_and_every_token_is_accounted_for(
    options: dict[str, Any],
) -> None:
    """The gradient of every step is 1 or 3, so the anchor tells the work in it, or at least its
    size; the jump is far greater."""
    with cluster(descent(0.0, 0.0), descent(0.0, 0.0), **options) as made:
        drive(made, 10, lambda i, s: (1.0, 3.0)[i])
        jump(made[0], 2.0**14)
        made[0].reset_progress()
        assert read(made[0]) == [2.0**14] * 2
        drive(made, 10, lambda i, s: (1.0, 3.0)[i])
        settle(made)
        assert account(made) == 40
        assert all(-60 <= value <= -10 for value in read(made[0]))
        # A float32 as great as the jump is rounded to 2**-9.
        assert read(made[0]) == pytest.approx(read(made[1]), abs=0.02)


def twin(steps: int) -> list[float]:
    """The anchor of two learners that never jump, with so many steps of the first one in it."""
    with cluster(descent(0.0), descent(0.0), **RARE) as made:
        together(lambda: drive([made[0]], steps, up), lambda: drive([made[1]], 12, up))
        settle(made)
        return read(made[0])


def up(i: int, s: int) -> float:
    return 1.0


def test_it_offers_what_a_learner_offers_that_never_had_the_dropped_steps() -> None:
    """Nothing is merged before the jump, since the other learner does not step until then."""
    with cluster(descent(0.0), descent(0.0), **RARE) as made:
        drive(made[:1], 5, up)
        jump(made[0], 77.0)
        made[0].reset_progress()
        assert made[0].status().dropped_tokens == 5
        together(lambda: drive([made[0]], 6, up), lambda: drive([made[1]], 12, up))
        settle(made)
        assert account(made) == 5 + 6 + 12
        assert read(made[0]) == read(made[1]) == twin(6)


def test_an_offer_on_its_way_stays() -> None:
    """The other learner does not step, so that there is no quorum: the offer waits."""
    with cluster(descent(0.0), descent(0.0), **FREE) as made:
        step(made[0], 1.0)
        drive(made[:1], 5, up)
        until(made[0], lambda: progress(made[0]).pending and progress(made[0]).pending.offer)
        offered = progress(made[0]).pending.tokens  # type: ignore[union-attr]
        jump(made[0], 2.0**14)
        made[0].reset_progress()
        assert made[0].status().dropped_tokens == 6 - offered
        drive(made, 4, up)
        settle(made)
        assert account(made) == 6 + 8
        assert read(made[0])[0] > -14


def test_a_correction_on_its_way_to_the_former_weights_is_not_applied_to_the_loaded_ones() -> None:
    with cluster(descent(0.0), descent(0.0), **FREE) as made:
        drive(made, 4, lambda i, s: (1.0, 3.0)[i])
        until(made[0], lambda: progress(made[0]).correction_pending)
        jump(made[0], 2.0**14)
        made[0].reset_progress()
        assert not progress(made[0]).correction_pending
        step(made[0], 1.0)
        assert read(made[0]) == [2.0**14 - 1]


def test_lockstep_goes_on_after_it() -> None:
    options = {"sync_every": 2, "adopt_after": 1, "merge": "mean"}
    with cluster(descent(0.0), descent(0.0), **options) as made:
        drive(made, 5, up)
        jump(made[0], 2.0**14)
        made[0].reset_progress()
        drive(made, 5, up)
        settle(made)
        assert account(made) == 20
        assert -10 <= read(made[0])[0] < 0


def test_a_checkpoint_keeps_it() -> None:
    with cluster(descent(0.0), descent(0.0), **FREE) as made:
        drive(made, 6, up)
        jump(made[0], 2.0**14)
        made[0].reset_progress()
        drive(made, 1, up)
        saved = [save(optimizer) for optimizer in made]
    with resumed([lambda: descent(0.0)] * 2, saved, **FREE) as made:
        # A round may have come in between, and each one halves the disagreement.
        assert read(made[0])[0] > 2.0**10
        drive(made, 3, up)
        settle(made)
        assert account(made) == 20
        assert -20 <= read(made[0])[0] < 0


def test_beside_other_weights_a_checkpoint_keeps_neither_it_nor_the_offer_on_its_way() -> None:
    """The other learner does not step before the checkpoint, so that the offer waits."""
    with cluster(descent(0.0), descent(0.0), **FREE) as made:
        step(made[0], 1.0)
        drive(made[:1], 5, up)
        until(made[0], lambda: progress(made[0]).pending and progress(made[0]).pending.offer)
        jump(made[0], 2.0**14)
        made[0].reset_progress()
        drive(made[:1], 1, up)
        (_, state), other = map(save, made)
    saved = [([torch.full((1,), 100.0)], state), other]
    with resumed([lambda: descent(0.0)] * 2, saved, **FREE) as made:
        assert same(parameters(made[0]), anchors(made[0]))
        drive(made, 4, up)
        settle(made)
        assert account(made) == 7 + 8
        assert same(parameters(made[0]), parameters(made[1]))
        assert -8 <= read(made[0])[0] < 0


def test_narrow_weights_are_what_was_loaded() -> None:
    """What the former weights had lost by rounding is no part of them."""
    inners = [descent(1.0, dtype=torch.bfloat16, lr=2.0**-9) for _ in range(2)]
    with cluster(*inners, **FREE) as made:
        drive(made, 6, up)
        assert made[0]._run.handover
        (lost,) = made[0]._run.handover._tensors._rounding
        assert lost is not None
        lost.fill_(2.0**-12)
        jump(made[0], 3.0)
        made[0].reset_progress()
        assert not lost.any()
        settle(made)
        assert same(parameters(made[0]), parameters(made[1]))
        assert read(made[0])[0] <= 1.0


def test_before_the_first_step_and_alone_it_does_nothing() -> None:
    with cluster(descent(0.0), descent(0.0), started=False, **FREE) as made:
        jump(made[0], 5.0)
        made[0].reset_progress()
        assert made[0].status().dropped_tokens == 0
    alone = MendOptimizer(descent(0.0), name="a")
    step(alone, 1.0)
    alone.reset_progress()
    assert (read(alone), alone.status().dropped_tokens) == ([-1.0], 0)


def test_a_learner_whose_peers_have_left_keeps_its_progress() -> None:
    with cluster(descent(0.0), descent(0.0), **FREE) as made:
        drive(made, 6, up)
        made[1].close()
        until(made[0], lambda: made[0]._learner.engine.state.alone)  # type: ignore[union-attr]
        drive(made[:1], 3, up)
        before = made[0].status()
        made[0].reset_progress()
        assert made[0].status().unmerged_tokens == before.unmerged_tokens > 0
        assert made[0].status().dropped_tokens == 0


def test_after_a_rest_the_loaded_weights_are_trained() -> None:
    """At rest a learner gives its disagreement up: it is over now."""
    with cluster(descent(0.0), descent(0.0), **FREE) as made:
        drive(made, 6, up)
        settle(made)
        jump(made[0], 2.0**14)
        made[0].reset_progress()
        step(made[0], 1.0)
        assert read(made[0]) == [2.0**14 - 1]
        assert anchors(made[0])[0][0].item() < 0


def test_it_is_refused_inside_global_weights() -> None:
    with cluster(descent(0.0), descent(0.0), **FREE) as made:
        drive(made, 1, up)
        with made[0].global_weights(), pytest.raises(UsageError, match="reset_progress"):
            made[0].reset_progress()
