"""The end of a run: learners that finish hold one model, bit for bit, however many steps each of
them took."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import Parameter
from torch.optim import SGD

from mend_optim import Adoption, ClosedError, Finish, MendError, MendOptimizer, PowerSGD, UsageError
from mend_optim.finish import NO_QUORUM, NOBODY_YET
from mend_optim.handover import LEFT_OUT, REPLACED
from tests.support.learners import (
    LOOPBACK,
    PATIENCE_S,
    TIMING,
    Watch,
    cluster,
    descent,
    parameters,
    same,
    step,
    together,
)

FREE: dict[str, Any] = {"sync_every": 3}


def noisy(*values: float) -> SGD:
    """Plain descent over parameters of several shapes."""
    return SGD([Parameter(torch.full((5, 4), value)) for value in values], lr=0.1)


def train(optimizer: MendOptimizer, steps: int, seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                noise = torch.randn(parameter.shape, generator=draws)
                parameter.grad = noise.to(parameter.dtype)
        optimizer.step()


def run(optimizers: list[MendOptimizer], steps: list[int]) -> list[Finish]:
    def work(i: int) -> Callable[[], Finish]:
        def loop() -> Finish:
            train(optimizers[i], steps[i], i)
            return optimizers[i].finish()

        return loop

    return together(*(work(i) for i in range(len(optimizers))))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"adopt_after": 0},
        {"adoption": Adoption(gain=0.3)},
        {"codec": PowerSGD(rank=1)},
        {"codec": "int4"},
        {"fragments": 2},
    ],
    ids=["free", "lockstep", "late", "powersgd", "int4", "fragments"],
)
def test_all_end_on_one_model(options: dict[str, Any]) -> None:
    inners = [noisy(1.0, 2.0) for _ in range(3)]
    with cluster(*inners, **{**FREE, **options}) as made:
        found = run(made, [20, 31, 8])
        assert all(found), found
        assert len({finish.digest for finish in found}) == 1
        for finish in found:
            assert finish.tokens == {"a": 20, "b": 31, "c": 8}
            assert finish.unmerged_tokens + finish.dropped_tokens + finish.superseded_tokens == 0
        for other in made[1:]:
            assert same(parameters(made[0]), parameters(other))
        assert all(optimizer._learner.closed for optimizer in made if optimizer._learner)


def test_learners_that_nobody_can_dial_end_together() -> None:
    """Two of them never hear each other: the one that both can dial tells each of the other."""
    hub = MendOptimizer(noisy(1.0), name="hub", listen="127.0.0.1:0", timing=TIMING, **FREE)
    peers = [hub.status().address]
    others = [
        MendOptimizer(noisy(1.0), name=name, peers=peers, timing=TIMING, **FREE)
        for name in ("left", "right")
    ]
    made = [hub, *others]
    try:
        together(*(partial(optimizer.join) for optimizer in made))
        ends = run(made, [9, 13, 6])
    finally:
        for optimizer in made:
            optimizer.close()
    assert all(end.agreed for end in ends)
    assert len({end.digest for end in ends}) == 1
    assert all(end.tokens == {"hub": 9, "left": 13, "right": 6} for end in ends)
    assert same(*map(parameters, made[:2]))
    assert same(*map(parameters, made[1:]))


def test_a_narrow_model_ends_equal_too() -> None:
    inners = [descent(1.0, 3.0, dtype=torch.bfloat16, lr=0.01) for _ in range(2)]
    with cluster(*inners, **FREE) as made:
        assert all(run(made, [7, 16]))
        assert same(parameters(made[0]), parameters(made[1]))


def test_those_that_have_ended_are_neither_suspected_nor_waiting() -> None:
    with cluster(noisy(1.0), noisy(1.0), **FREE) as made:
        assert all(run(made, [3, 3]))
        for optimizer in made:
            assert optimizer.status().ended == "agreed"
            peers = optimizer.status().roster
            assert {(peer.state, peer.finishing) for peer in peers} <= {("ended", False)}


def test_a_learner_that_closes_does_not_suspect_the_others() -> None:
    with cluster(noisy(1.0), noisy(1.0), **FREE) as (a, b):
        together(lambda: train(a, 3, 0), lambda: train(b, 3, 1))
        assert a.status().ended == ""
        a.close()
        assert a.status().ended == "left"
        assert [peer.state for peer in a.status().roster] == ["alive"]


def test_a_learner_that_ends_early_stays_for_the_others() -> None:
    """Its quorum of three needs all of them, until the last step of the last."""
    inners = [noisy(1.0) for _ in range(3)]
    with cluster(*inners, quorum=3, **FREE) as made:
        found = run(made, [3, 3, 60])
        assert all(found)
        assert made[2].status().fragments[0].tokens == 66


def test_it_goes_on_after_a_timeout() -> None:
    with cluster(noisy(1.0), noisy(1.0), **FREE) as (a, b):
        together(lambda: train(a, 4, 0), lambda: train(b, 4, 1))
        finish = a.finish(timeout=0)
        assert not finish
        assert "on the roster: b" in finish.reason
        assert a.status().ended == ""
        found = run([a, b], [5, 5])
        assert all(found)
        assert found[0].tokens == {"a": 9, "b": 9}


def test_scripts_that_end_two_runs_in_two_orders_end_them_by_turns() -> None:
    def end(*waiting: MendOptimizer) -> None:
        while waiting:
            waiting = tuple(each for each in waiting if not each.finish(timeout=0.1).tokens)

    pairs = cluster(noisy(1.0), noisy(1.0), **FREE), cluster(noisy(1.0), noisy(1.0), **FREE)
    with pairs[0] as (a, b), pairs[1] as (c, d):
        together(*(partial(train, each, 4, seed) for seed, each in enumerate((a, b, c, d))))
        together(lambda: end(a, c), lambda: end(d, b))
        for one, other in ((a, b), (c, d)):
            assert one.finish().digest == other.finish().digest != ""
            assert same(parameters(one), parameters(other))
    alone = MendOptimizer(noisy(1.0))
    train(alone, 1, 0)
    end(alone)


def test_the_last_learner_keeps_what_nobody_else_merges() -> None:
    with cluster(noisy(1.0), noisy(1.0), **FREE) as (a, b):
        together(lambda: train(a, 6, 0), lambda: train(b, 6, 1))
        b.close()
        train(a, 4, 2)
        before = [parameter.clone() for parameter in parameters(a)]
        finish = a.finish()
        assert finish
        assert list(finish.tokens) == ["a"]
        assert (finish.unmerged_tokens > 0) == ("nobody is left" in finish.reason)
        assert (finish.unmerged_tokens > 0) == (not finish.digest)
        assert finish.unmerged_tokens == 0 or same(before, parameters(a))


def test_learners_that_never_met_end_on_no_common_digest() -> None:
    """Their anchors are equal first weights, and their parameters have left them."""
    for rate in (1.0, 0.5):
        with cluster(noisy(rate), **FREE) as (a,):
            train(a, 3, 0)
            finish = a.finish()
            assert finish
            assert (finish.unmerged_tokens, finish.digest) == (3, "")
            assert finish.reason == NOBODY_YET.format("")


def test_a_learner_that_never_had_company_has_not_lost_any() -> None:
    with cluster(noisy(1.0), **FREE) as (a,):
        train(a, 3, 0)
        outcome = a.synchronize(0)
        assert (outcome.unmerged_tokens, outcome.reason) == (3, NOBODY_YET.format(""))


def test_a_learner_that_was_refused_says_at_its_end_by_whom_and_why() -> None:
    pair = noisy(1.0), noisy(1.0)
    each: list[dict[str, Any]] = [{"merge": "mean"}, {"merge": "rda"}]
    with cluster(*pair, each=each, started=False, **FREE) as (a, b):
        where = a.status().address
        train(b, 3, 0)
        waited, finish = b.synchronize(1), b.finish()
        why = f"at {where} (refused: merge: here rda, there mean; pass the same merge to both);"
        assert why in waited.reason
        assert why in finish.reason
        assert finish.unmerged_tokens == waited.unmerged_tokens == 3


def test_without_a_quorum_nobody_gets_untrained_weights() -> None:
    with cluster(noisy(1.0), noisy(1.0), quorum=3, **FREE) as (a, b):
        together(lambda: train(a, 6, 0), lambda: train(b, 6, 1))
        before = [parameter.clone() for parameter in parameters(a)]
        first, second = run([a, b], [0, 0])
        assert not first
        assert not second
        assert (a.status().ended, b.status().ended) == ("left", "left")
        assert (first.unmerged_tokens, first.reason) == (6, NO_QUORUM.format(3, 2))
        assert same(before, parameters(a))
        assert not same(parameters(a), parameters(b))
        assert (first.digest, second.digest) == ("", "")
        assert a.finish() == first


@pytest.mark.parametrize(
    ("quorum", "told"), [(2, []), (3, [LEFT_OUT.format(6, NO_QUORUM.format(3, 2))])]
)
def test_the_end_of_a_with_block_tells_of_work_that_it_leaves_out(
    quorum: int, told: list[str]
) -> None:
    """Nobody sees what `finish()` returns there."""
    watch = Watch()
    inners = noisy(1.0), noisy(1.0)
    with cluster(*inners, quorum=quorum, each=[{"on_event": watch}, {}], **FREE) as (a, b):
        together(lambda: train(a, 6, 0), lambda: train(b, 6, 1))
        together(lambda: leave_block(a), lambda: leave_block(b))
    assert [event.text for event in watch.of("unfinished")] == told


def leave_block(optimizer: MendOptimizer) -> None:
    with optimizer:
        pass


def test_until_something_is_merged_the_global_weights_are_the_own_ones(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with cluster(noisy(1.0), noisy(1.0), sync_every=100) as (a, b):
        together(lambda: train(a, 6, 0), lambda: train(b, 6, 1))
        own = [parameter.clone() for parameter in parameters(a)]
        for _ in range(2):
            with a.global_weights():
                assert same(own, parameters(a))
        assert caplog.text.count("a: nothing is merged yet") == 1
        together(a.synchronize, b.synchronize)
        with a.global_weights():
            assert not same(own, parameters(a))


def test_after_the_end_the_global_weights_are_what_the_script_has_loaded() -> None:
    """A script evaluates its best model, or trains on alone: the last anchor is neither."""
    with cluster(noisy(1.0), noisy(1.0), **FREE) as (a, b):
        run([a, b], [6, 6])
        with a.global_weights():
            assert same(parameters(a), parameters(b))
        fill(a, 50.0)
        with a.global_weights():
            assert a.param_groups[0]["params"][0].eq(50.0).all()
        train(a, 1, 0)
        own = [parameter.clone() for parameter in parameters(a)]
        with a.global_weights():
            assert same(own, parameters(a))


def test_after_a_close_the_global_weights_are_the_anchor_until_a_step() -> None:
    with cluster(noisy(1.0), noisy(1.0), **FREE) as (a, b):
        together(lambda: train(a, 6, 0), lambda: train(b, 6, 1))
        assert all(together(a.synchronize, b.synchronize))
        anchor = [parameter.clone() for parameter in parameters(a)]
        train(a, 1, 0)
        a.close()
        with a.global_weights():
            assert same(anchor, parameters(a))
        train(a, 1, 0)
        own = [parameter.clone() for parameter in parameters(a)]
        with a.global_weights():
            assert same(own, parameters(a))


def fill(optimizer: MendOptimizer, value: float) -> None:
    for parameter in parameters(optimizer):
        parameter.fill_(value)


@pytest.mark.parametrize("steps", [0, 40])
def test_weights_that_no_step_has_moved_are_replaced_and_it_is_told_once(steps: int) -> None:
    told = Watch()
    with cluster(noisy(1.0), noisy(1.0), each=[{"on_event": told}, {}], sync_every=2) as (a, b):
        together(lambda: train(a, steps, 0), lambda: train(b, steps, 1))
        assert all(together(a.synchronize, b.synchronize))
        fill(a, 50.0)
        assert not a.finish(0)
        found = together(a.finish, b.finish)
        assert all(found)
        assert found[0].digest == found[1].digest
        assert same(parameters(a), parameters(b))
        a.close()
        (event,) = told.of("jumped")
        assert event.text == REPLACED.format(steps)


def test_a_learner_that_ends_alone_keeps_what_no_step_has_moved() -> None:
    told = Watch()
    timing = replace(TIMING, join_timeout_s=0.1)
    with closing(
        MendOptimizer(noisy(1.0), name="a", listen=LOOPBACK, timing=timing, on_event=told)
    ) as alone:
        alone.join()
        fill(alone, 50.0)
        assert alone.finish()
        assert parameters(alone)[0][0, 0] == 50.0
        alone.close()
        assert told.of("jumped") == []


def test_a_learner_that_ends_alone_leaves_no_work_out() -> None:
    """Its own weights have all of it, although no anchor does."""
    told, timing = Watch(), replace(TIMING, join_timeout_s=0.1)
    with closing(
        MendOptimizer(noisy(1.0), name="a", listen=LOOPBACK, timing=timing, on_event=told)
    ) as alone:
        train(alone, 3, 0)
        assert alone.status().unmerged_tokens == 3
        assert alone.finish()
    assert told.of("unfinished") == []


def test_alone_it_is_done_at_once() -> None:
    optimizer = MendOptimizer(descent(1.0), name="a")
    step(optimizer, 1.0)
    finish = optimizer.finish()
    assert (bool(finish), dict(finish.tokens), finish.reason) == (True, {"a": 1}, "")


def test_a_block_that_ends_finishes() -> None:
    ends: dict[str, list[torch.Tensor]] = {}

    def work(optimizer: MendOptimizer, steps: int) -> Callable[[], None]:
        def loop() -> None:
            with optimizer:
                train(optimizer, steps, steps)
            ends[optimizer.name] = parameters(optimizer)

        return loop

    with cluster(noisy(1.0), noisy(1.0), **FREE) as (a, b):
        together(work(a, 10), work(b, 23))
    assert same(ends["a"], ends["b"])


def test_a_block_that_fails_does_not_wait() -> None:
    with cluster(noisy(1.0), noisy(1.0), **FREE) as (a, b):
        together(lambda: train(a, 4, 0), lambda: train(b, 4, 1))
        with pytest.raises(ZeroDivisionError), a:
            raise ZeroDivisionError
        assert b.finish()


def test_a_block_without_a_step_does_not_wait() -> None:
    with MendOptimizer(
        descent(1.0), name="a", listen=LOOPBACK, peers=["127.0.0.1:9"], timing=TIMING
    ) as optimizer:
        pass
    assert optimizer._learner
    assert optimizer._learner.closed


def test_a_second_call_tells_the_same_end_until_something_is_trained() -> None:
    """A library may call it before the script does."""
    with cluster(noisy(1.0), noisy(1.0), **FREE) as made:
        found = run(made, [4, 7])
        assert all(found)
        a, b = made
        assert [a.finish(), b.finish()] == found
        train(a, 1, 0)
        with pytest.raises(ClosedError):
            a.finish()
        b.load_state_dict(b.state_dict())  # from here on it is alone
        assert b.finish().tokens == {"b": 7}


def test_steps_after_the_end_are_nobody_elses_and_the_user_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A script that calls finish() in mid-run, as a barrier, trains alone from then on."""
    with cluster(noisy(1.0), noisy(1.0), **FREE) as made:
        assert all(run(made, [4, 7]))
        a, _ = made
        assert not told_alone(caplog)
        train(a, 3, 0)
        (line,) = told_alone(caplog)
        assert line.startswith(
            "a: trains alone from here on, because its run has ended, by finish()"
        )
        status = a.status()
    assert (status.step, status.tokens, status.position) == (7, 7, 7)
    assert (status.unmerged_tokens, status.fragments[0].unmerged_tokens) == (3, 3)
    assert str(status).startswith("a has ended, and 3 of its tokens are in no anchor")


def test_a_checkpoint_that_is_loaded_after_the_end_begins_no_other_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with cluster(noisy(1.0), noisy(1.0), **FREE) as made:
        assert all(run(made, [4, 7]))
        a, _ = made
        a.load_state_dict(a.state_dict())
        assert not told_alone(caplog)
        train(a, 3, 0)
        assert len(told_alone(caplog)) == 1


def told_alone(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "trains alone from here on" in line]


def test_a_learner_that_was_closed_counts_what_it_trains_alone() -> None:
    with cluster(noisy(1.0), noisy(1.0), **FREE) as made:
        a, b = made
        together(lambda: train(a, 4, 0), lambda: train(b, 4, 1))
        a.close()
        left = a.status()
        train(a, 3, 0)
        status = a.status()
    assert status.position - left.position == 3
    assert status.unmerged_tokens - left.unmerged_tokens == 3


def test_it_refuses_what_it_cannot_do() -> None:
    optimizer = MendOptimizer(descent(1.0), name="a", listen=LOOPBACK)
    with pytest.raises(
        UsageError, match="timeout must be None or a number of seconds >= 0, got -1"
    ):
        optimizer.finish(timeout=-1)
    optimizer.close()
    with pytest.raises(ClosedError):
        optimizer.finish()


@pytest.mark.parametrize("fault", [None, MemoryError("a fault of a background thread")])
@pytest.mark.parametrize("call", [MendOptimizer.finish, MendOptimizer.synchronize])
def test_it_raises_if_its_learner_ends_while_it_waits(
    call: Callable[[MendOptimizer], object], fault: MemoryError | None
) -> None:
    """Another thread closes it, or a thread of it fails."""
    with cluster(descent(1.0), descent(1.0), **FREE) as (a, b):
        learner = a._learner
        assert learner
        together(lambda: step(a, 1.0), lambda: step(b, 1.0))

        def end() -> None:
            assert learner.wait(lambda: learner.engine.state.resting, PATIENCE_S)
            learner.guard.end(fault) if fault else a.close()

        with pytest.raises(MendError, match="failed" if fault else "was closed"):
            together(partial(call, a), end)
