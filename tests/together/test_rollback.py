"""A user takes a run back to an earlier anchor, on one learner: all learners follow, and no work of
the time since comes back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, AdamW

from mend_optim import ClosedError, MendOptimizer, MomentSchedule, Nesterov, PowerSGD, UsageError
from tests.support.checkpoints import adam, anchors, load, newcomer, progress, save
from tests.support.learners import (
    LOCKSTEP,
    PATIENCE_S,
    TIMING,
    Watch,
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
    wave,
    weights,
)

FREE: dict[str, Any] = {"sync_every": 4}


def ruined(i: int, s: int) -> float:
    """Gradients of an accident, in a direction of their own."""
    return -100.0 * (1 + i)


def rollbacks(optimizer: MendOptimizer) -> int:
    return optimizer.status().rollbacks


def followed(made: Sequence[MendOptimizer], number: int = 1) -> None:
    """Wait until all have heard of the rollback, and their weights are the anchor."""
    for optimizer in made:
        until(optimizer, lambda o=optimizer: rollbacks(o) >= number)
    settle(made)


def fragments_of_others(optimizer: MendOptimizer) -> int:
    """The most fragments that a peer has shown to this learner."""
    assert optimizer._learner is not None
    return max(len(beat.reports) for beat in optimizer._learner.engine.state.live_beats())


def account(made: Sequence[MendOptimizer]) -> int:
    """All tokens that were trained, by what became of them."""
    found = [progress(optimizer) for optimizer in made]
    (tokens,) = {fragment.lineage.tokens for fragment in found}
    return tokens + sum(each.dropped_tokens + each.superseded_tokens for each in found)


def agree(made: Sequence[MendOptimizer]) -> None:
    """All have the same anchor to the bit. Their weights are that anchor, up to the rounding of the
    corrections that were added to them."""
    common = anchors(made[0])
    for optimizer in made:
        assert same(anchors(optimizer), common)
        for parameter, value in zip(parameters(optimizer), common, strict=True):
            torch.testing.assert_close(parameter, value, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        FREE,
        {**FREE, "fragments": 2},
        {**FREE, "codec": "int8"},
        {**FREE, "codec": PowerSGD(rank=1), "merge": "mean"},
        {**FREE, "outer": Nesterov(momentum=0.9)},
        {**FREE, "adopt_after": 2},
        # Two that take a step before the third one does may merge without it. Then it waits for
        # them at its last step, and they take no further one.
        {**LOCKSTEP, "timing": replace(TIMING, round_timeout_s=2.0)},
    ],
)
def test_all_learners_go_back_to_the_bit_and_every_token_is_accounted_for(
    options: dict[str, Any],
) -> None:
    watches = [Watch() for _ in range(3)]
    each = [{"on_event": watch} for watch in watches]
    with cluster(*(descent(0.0, 0.0) for _ in watches), each=each, guard=None, **options) as made:
        drive(made, 8, wave)
        settle(made)
        good, saved = anchors(made[0]), save(made[1])[1]
        tokens = made[0].status().fragments[0].tokens
        drive(made, 8, ruined)
        status = made[2].rollback(saved)
        assert (status.rollbacks, status.rolled_back_by) == (1, "c")
        assert same(parameters(made[2]), good)
        followed(made)
        for optimizer, watch in zip(made, watches, strict=True):
            assert same(parameters(optimizer), good)
            status = optimizer.status()
            assert (status.rolled_back_by, status.fragments[0].tokens) == ("c", tokens)
            (told,) = watch.until("rolled_back")
            facts = told.facts
            assert (facts["by"], facts["number"], facts["tokens"]) == ("c", 1, tokens)
            assert facts["dropped_tokens"] + facts["superseded_tokens"] == 8
            lines = [r for r in status.rounds if r.reason == "rolled_back"]
            assert {r.sealer for r in lines} == {"c"}
            assert len(lines) == len(status.fragments)
        assert account(made) == 3 * 16
        drive(made, 8, wave)
        settle(made)
        assert account(made) == 3 * 24
        assert made[0].status().fragments[0].tokens == tokens + 3 * 8
        agree(made)
        assert all(abs(value) < 50 for value in read(made[0]))


@pytest.mark.parametrize("options", [FREE, {**FREE, "fragments": 2}, LOCKSTEP])
def test_learners_that_train_on_meanwhile_stop_for_nothing(options: dict[str, Any]) -> None:
    """They hear of the rollback somewhere in the middle of their steps and rounds."""
    with cluster(*(descent(0.0, 0.0) for _ in "abc"), guard=None, **options) as made:
        drive(made, 8, wave)
        settle(made)
        saved = save(made[0])[1]

        def grad(i: int, s: int) -> float:
            if s == 20 and i == 1:
                made[1].rollback(saved)
            return ruined(i, s) if not rollbacks(made[i]) else wave(i, s)

        def train(i: int) -> None:
            for s in range(40):
                step(made[i], grad(i, s))
            # Some are done sooner: nobody waits for their steps while they rest.
            made[i].synchronize(PATIENCE_S)

        together(*(partial(train, i) for i in range(3)))
        followed(made)
        assert account(made) == 3 * 48
        agree(made)
        assert all(abs(value) < 500 for value in read(made[0]))


def test_a_script_that_starts_anew_can_take_the_others_back() -> None:
    with cluster(descent(0.0), descent(0.0), **FREE) as made:
        drive(made, 8, wave)
        settle(made)
        good, saved = anchors(made[0]), save(made[0])[1]
        drive(made, 8, wave)
        settle(made)
        operator = newcomer(descent(5.0), "operator", made[0], **FREE)
        with closing(operator):
            operator.rollback(saved)
            assert same(parameters(operator), good)
            followed([*made, operator])
            assert all(same(parameters(optimizer), good) for optimizer in made)
            assert {o.status().rolled_back_by for o in made} == {"operator"}


def test_a_model_that_is_not_finite_on_any_learner_is_trained_again() -> None:
    with cluster(descent(1.0), descent(1.0), **FREE) as made:
        drive(made, 8, wave)
        settle(made)
        good, saved = anchors(made[0]), save(made[0])[1]
        for optimizer in made:
            parameters(optimizer)[0].fill_(math.nan)
        drive(made, 1, wave)
        made[0].rollback(saved)
        followed(made)
        assert same(parameters(made[0]), good)
        assert same(parameters(made[1]), good)


def moments(optimizer: MendOptimizer, name: str) -> list[Tensor]:
    return [optimizer.state[p][name].clone() for p in optimizer.param_groups[0]["params"]]


def test_moments_are_those_of_the_checkpoint_and_begin_anew_where_it_has_none() -> None:
    """Averaged moments come with the anchor. Others are those of the accident, on every learner."""
    for schedule in (MomentSchedule(first=1, second=1), None):
        with cluster(adam(), adam(), guard=None, moments=schedule, **FREE) as made:
            drive(made, 8, wave)
            settle(made)
            saved = save(made[0])[1]
            drive(made, 2, ruined)
            assert all(bool((m > 10).any()) for m in moments(made[1], "exp_avg_sq"))
            made[0].rollback(saved)
            followed(made)
            for optimizer in made:
                found = torch.cat([m.flatten() for m in moments(optimizer, "exp_avg_sq")])
                kept = saved["mend"]["fragments"][0]["tensors"].get("latest exp_avg_sq")
                assert (kept is None) == (schedule is None)
                # They travel without the bias of so few updates.
                mean = torch.zeros(73) if kept is None else kept[:73] * (1 - 0.999**8)
                torch.testing.assert_close(found, mean, rtol=0.03, atol=0)
                updates = set(map(float, moments(optimizer, "step")))
                assert updates == {0.0 if kept is None else 8.0}


def test_a_learner_from_an_older_checkpoint_takes_the_model_after_the_rollback() -> None:
    """Its checkpoint has more tokens than the model, and work that was given up."""
    with cluster(descent(0.0), descent(0.0), descent(0.0), **FREE) as made:
        drive(made, 8, wave)
        settle(made)
        good, saved = anchors(made[0]), save(made[0])[1]
        drive(made, 8, wave)
        settle(made)
        drive(made[2:], 2, ruined)
        later = save(made[2])
        made[2].close()
        made[0].rollback(saved)
        followed(made[:2])
        again = newcomer(descent(0.0), "c", made[0], **FREE)
        with closing(again):
            load(again, later)
            again.join()
            followed([*made[:2], again])
            assert rollbacks(again) == 1
            assert same(parameters(again), good)
            assert again.status().dropped_tokens == 2


def test_a_second_rollback_wins_and_two_at_a_time_end_on_one_model() -> None:
    with cluster(descent(0.0), descent(0.0), **FREE) as made:
        saved, good = [], []
        for _ in range(2):
            drive(made, 8, wave)
            settle(made)
            saved.append(save(made[0])[1])
            good.append(anchors(made[0]))
        made[0].rollback(saved[1])
        followed(made)
        made[1].rollback(saved[0])
        followed(made, 2)
        assert all(same(parameters(optimizer), good[0]) for optimizer in made)
        assert {optimizer.status().rolled_back_by for optimizer in made} == {"b"}
        together(lambda: made[0].rollback(saved[1]), lambda: made[1].rollback(saved[0]))
        followed(made, 3)
        until(made[0], lambda: made[0]._learner.engine.state.genesis == genesis(made[1]))  # type: ignore[union-attr]
        settle(made)
        agree(made)


def genesis(optimizer: MendOptimizer) -> bytes:
    assert optimizer._learner
    return optimizer._learner.engine.state.genesis


def test_a_checkpoint_after_a_rollback_goes_on_from_there() -> None:
    with cluster(descent(0.0), descent(0.0), **FREE) as made:
        drive(made, 8, wave)
        settle(made)
        saved = save(made[0])[1]
        drive(made, 8, wave)
        made[0].rollback(saved)
        followed(made)
        drive(made, 4, wave)
        settle(made)
        later, good = save(made[1]), anchors(made[1])
        tokens = made[1].status().fragments[0].tokens
    with cluster(descent(0.0), descent(0.0), started=False, **FREE) as made:
        load(made[0], later)
        together(*(optimizer.join for optimizer in made))
        settle(made)
        assert all(same(parameters(optimizer), good) for optimizer in made)
        assert {optimizer.status().fragments[0].tokens for optimizer in made} == {tokens}
        assert {optimizer.status().rolled_back_by for optimizer in made} == {"a"}


def test_a_learner_that_finishes_ends_on_the_model_after_the_rollback() -> None:
    with cluster(descent(0.0), descent(0.0), **FREE) as made:
        drive(made, 8, wave)
        settle(made)
        good, saved = anchors(made[0]), save(made[0])[1]
        drive(made, 6, wave)

        def last() -> Any:
            made[0].rollback(saved)
            return made[0].finish()

        ends = together(last, made[1].finish)
        assert all(ends)
        assert all(same(parameters(optimizer), good) for optimizer in made)


def test_a_learner_whose_peers_are_gone_goes_back_and_brings_it_to_the_next_one() -> None:
    with cluster(descent(0.0), descent(0.0), **FREE) as made:
        drive(made, 8, wave)
        settle(made)
        good, saved = anchors(made[0]), save(made[0])[1]
        made[1].close()
        until(made[0], lambda: made[0]._learner.engine.state.roster.alone)  # type: ignore[union-attr]
        drive(made[:1], 5, ruined)
        made[0].rollback(saved)
        assert same(parameters(made[0]), good)
        assert made[0].status().dropped_tokens == 5
        joined = newcomer(descent(7.0), "c", made[0], **FREE)
        with closing(joined):
            joined.join()
            followed([made[0], joined])
            assert same(parameters(joined), good)


def test_buffers_go_back_with_the_weights() -> None:
    def norm() -> tuple[torch.nn.BatchNorm1d, SGD]:
        module = torch.nn.BatchNorm1d(2)
        return module, SGD(module.parameters(), lr=0.1)

    pairs = [norm(), norm()]
    each = [{"buffers": module} for module, _ in pairs]
    with cluster(*(inner for _, inner in pairs), each=each, **FREE) as made:
        drive(made, 4, wave)
        settle(made)
        saved = save(made[0])[1]
        for module, _ in pairs:
            assert module.running_mean is not None
            module.running_mean.fill_(1e6)
        drive(made, 4, wave)
        settle(made)
        made[0].rollback(saved)
        followed(made)
        for module, _ in pairs:
            assert module.running_mean is not None
            assert module.running_mean.tolist() == [0.0, 0.0]


def test_an_added_group_goes_back_with_the_rest() -> None:
    with cluster(descent(0.0), descent(0.0), **FREE) as made:
        drive(made, 4, wave)
        for optimizer in made:
            optimizer.add_param_group({"params": weights(1.0)})
        drive(made, 8, wave)
        settle(made)
        good, saved = anchors(made[0]), save(made[0])[1]
        drive(made, 4, ruined)
        made[1].rollback(saved)
        followed(made)
        assert len(good) == 2
        assert all(same(parameters(optimizer), good) for optimizer in made)
        drive(made, 4, wave)
        settle(made)
        agree(made)


def test_a_group_that_only_others_have_added_keeps_a_learner_from_going_back_without_it() -> None:
    with cluster(descent(0.0), descent(0.0), **FREE) as made:
        drive(made, 8, wave)
        settle(made)
        saved = save(made[0])[1]
        made[1].add_param_group({"params": weights(1.0)})
        until(made[0], lambda: fragments_of_others(made[0]) == 2)
        with pytest.raises(UsageError, match=r"parameter groups of the run, and .* has 1 more"):
            made[0].rollback(saved)
        assert rollbacks(made[0]) == 0
        made[0].add_param_group({"params": weights(1.0)})
        drive(made, 8, wave)
        settle(made)
        made[0].rollback(save(made[1])[1])
        followed(made)
        agree(made)


def test_what_cannot_be_gone_back_to_is_refused_and_changes_nothing() -> None:
    alone = MendOptimizer(descent(0.0), name="alone")
    with pytest.raises(UsageError, match=r"rollback\(\) must be called with peers, got none"):
        alone.rollback(alone.state_dict())
    with cluster(descent(0.0), descent(0.0), **FREE) as made:
        early = save(made[0])[1]
        drive(made, 8, wave)
        settle(made)
        saved, before = save(made[0])[1], [value.clone() for value in parameters(made[0])]
        with pytest.raises(UsageError, match="all 1 fragments had been merged, got 0; take"):
            made[0].rollback(early)
        with pytest.raises(UsageError, match="format"):
            made[0].rollback({"mend": {"format": "9"}})
        other = AdamW(weights(1.0, 2.0))
        with pytest.raises(UsageError, match="the entry 'mend', got the entries"):
            made[0].rollback(other.state_dict())
        damaged = {**saved["mend"], "content": "00" * 16}
        with pytest.raises(UsageError, match=r"damaged, .*; give it the checkpoint of") as caught:
            made[0].rollback(damaged)
        assert "del state_dict" not in str(caught.value)
        with made[0].global_weights(), pytest.raises(UsageError, match="inside global_weights"):
            made[0].rollback(saved)
        assert same(parameters(made[0]), before)
        assert rollbacks(made[0]) == 0
        step(made[0], 1.0)
        made[0].close()
        with pytest.raises(ClosedError):
            made[0].rollback(saved)
