"""A learner goes on from a checkpoint among others that have moved on: its work counts once, or is
dropped and counted as dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from types import MappingProxyType
from typing import Any
from unittest.mock import Mock

import pytest

from mend_optim import MendOptimizer, RoundRecord, UsageError
from mend_optim.protocol.lineage import PeerId
from mend_optim.settings import Settings
from tests.support.checkpoints import Saved, anchors, load, me, newcomer, progress, resumed, save
from tests.support.learners import (
    LOOPBACK,
    TIMING,
    Watch,
    cluster,
    descent,
    drive,
    parameters,
    read,
    same,
    settle,
    start,
    step,
    together,
    until,
    wave,
)

# the gradients of the learner of that name
PULL = {"a": 1.0, "b": 2.0, "c": 4.0, "x": 8.0, "y": 16.0, "z": 32.0}
# The plain mean, as the anchor then tells the work in it whatever steps each learner has taken.
FREE: dict[str, Any] = {"merge": "mean", "sync_every": 4}  # after four steps it calls the others
STILL: dict[str, Any] = {"merge": "mean", "sync_every": 1000}  # only `settle` merges
VICTIMS = [0, 1, 2]  # it may be the sealer, or the peer that the others dialled


def train(optimizers: Sequence[MendOptimizer], steps: int) -> None:
    drive(optimizers, steps, lambda i, s: PULL[optimizers[i].name])


def seals(*optimizers: MendOptimizer) -> list[RoundRecord]:
    """All seals that any of them adopted, each once."""
    return list({r.digest: r for o in optimizers for r in o.status().rounds if r.members}.values())


def merged(rounds: Iterable[RoundRecord]) -> Counter[PeerId]:
    """Merged tokens by author; a round in several ledgers counts once."""
    counts: Counter[PeerId] = Counter()
    for member in (m for record in {r.digest: r for r in rounds}.values() for m in record.members):
        counts[PeerId(member.name, member.incarnation)] += member.tokens
    return +counts


def shares(*optimizers: MendOptimizer) -> dict[tuple[str, str], float]:
    """By round and member, the share of its work that was offered after missed rounds."""
    records = ((o.name, record) for o in optimizers for record in o.status().rounds)
    return {(record.digest, name): record.share for name, record in records if record.mine}


def assert_sum(
    optimizer: MendOptimizer,
    first: float,
    rounds: Iterable[RoundRecord],
    offered: Mapping[tuple[str, str], float] = MappingProxyType({}),
) -> None:
    """The anchor is the first weights plus all merged work, by the recorded weights and shares, and
    nothing else."""
    moved = sum(
        m.weight * m.steps * PULL[m.name] * offered.get((record.digest, m.name), 1.0)
        for record in rounds
        for m in record.members
    )
    assert anchors(optimizer)[0][0].item() == pytest.approx(first - moved, rel=1e-5)


def assert_settled(optimizers: Sequence[MendOptimizer], tokens: int) -> None:
    """All hold one anchor with so many tokens, and nothing is left to merge."""
    statuses = [o.status() for o in optimizers]
    assert len({s.fragments[0].digest for s in statuses}) == 1
    assert [(s.fragments[0].tokens, s.unmerged_tokens) for s in statuses] == [(tokens, 0)] * len(
        statuses
    )


def take_out(made: list[MendOptimizer], victim: int) -> tuple[MendOptimizer, list[MendOptimizer]]:
    return made[victim], [o for o in made if o is not made[victim]]


def show(optimizer: MendOptimizer) -> None:
    """Wait until it has met a learner of another genesis; then take a step, at which it can make
    its weights an anchor."""
    assert optimizer._learner
    optimizer._run.ensure_joined()
    state = optimizer._learner.engine.state
    until(optimizer, lambda: state.mode.founding or not state.alone)
    train([optimizer], 1)


def how(optimizer: MendOptimizer) -> list[tuple[str, bool, int]]:
    return [(r.reason, r.mine, r.dropped_tokens) for r in optimizer.status().rounds[:2]]


# ── one of three ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("victim", VICTIMS)
def test_work_that_the_old_process_offered_after_its_checkpoint_is_dropped(victim: int) -> None:
    with cluster(*(descent(500.0) for _ in range(3)), **STILL) as made:
        train(made, 5)
        settle(made)
        train(made, 3)
        saved = save(made[victim])
        settle(made)
        train(made, 2)
        settle(made)
        old, others = take_out(made, victim)
        old.close()
        train(others, 4)
        settle(others)
        with closing(newcomer(descent(0.0), old.name, *others, **STILL)) as new:
            load(new, saved)
            start([*others, new])
            assert how(new) == [("restored", False, 0), ("pulled", False, 3)]
            assert same(parameters(new), anchors(others[0]))
            train([*others, new], 2)
            settle([*others, new])
            assert_settled([*others, new], tokens := 3 * 10 + 2 * 4 + 3 * 2)
            assert (new.status().step, new.status().tokens, new.status().dropped_tokens) == (
                10,
                10,
                3,
            )
            rounds = seals(old, *others, new)
            expected = {me(old): 10, me(new): 2, **{me(o): 16 for o in others}}
            assert merged(rounds) == expected
            assert sum(expected.values()) == tokens
            assert_sum(new, 500.0, rounds)


@pytest.mark.parametrize("victim", VICTIMS)
def test_an_offer_that_was_merged_after_the_checkpoint_is_not_offered_again_and_the_rest_is_kept(
    victim: int,
) -> None:
    with cluster(*(descent(500.0) for _ in range(3)), **FREE) as made:
        old, others = take_out(made, victim)
        train([old], 5)
        pending = progress(old).pending
        assert pending is not None
        assert pending.tokens == 4
        saved = save(old)
        train(others, 4)
        for other in others:
            until(
                other,
                lambda other=other: progress(other).lineage.last_merged(me(old)) == pending.seq,
            )
        old.close()
        train(others, 4)
        settle(others)
        with closing(newcomer(descent(0.0), old.name, *others, **FREE)) as new:
            load(new, saved)
            start([*others, new])
            restored, merged_since = how(new)
            assert restored == ("restored", False, 0)
            # It comes as a whole anchor, or as the seal in answer to the offer, if that is faster.
            assert merged_since in [("pulled", True, 0), ("all_present", True, 0)]
            assert new.status().unmerged_tokens == 1
            assert read(new)[0] == pytest.approx(anchors(new)[0][0].item() - PULL[new.name])
            settle([*others, new])
            train([*others, new], 2)
            settle([*others, new])
            assert_settled([*others, new], 5 + 2 * 8 + 3 * 2)
            assert new.status().dropped_tokens == 0
            rounds = seals(old, *others, new)
            assert merged(rounds) == {me(old): 5, me(new): 2, **{me(o): 10 for o in others}}
            offered = shares(old, *others, new)
            assert min(offered.values()) < 1
            assert_sum(new, 500.0, rounds, offered)


@pytest.mark.parametrize("alone", [3, 5])
@pytest.mark.parametrize("victim", VICTIMS)
def test_what_nobody_merged_is_kept_and_merged_once(victim: int, alone: int) -> None:
    """The work may have been offered before or not; a sealer may hold the offer of the dead
    process."""
    with cluster(*(descent(500.0) for _ in range(3)), **FREE) as made:
        old, others = take_out(made, victim)
        train([old], alone)
        saved = save(old)
        old.close()
        with closing(newcomer(descent(0.0), old.name, *others, **FREE)) as new:
            load(new, saved)
            start([*others, new])
            assert same(parameters(new), saved[0])
            train([*others, new], 6)
            settle([*others, new])
            assert_settled([*others, new], alone + 3 * 6)
            assert [o.status().dropped_tokens for o in (*others, new)] == [0, 0, 0]
            rounds = seals(old, *others, new)
            counts = merged(rounds)
            assert counts[me(old)] >= alone  # the first new steps may travel with what it left
            assert counts[me(old)] + counts[me(new)] == alone + 6
            assert [counts[me(o)] for o in others] == [6, 6]
            assert_sum(new, 500.0, rounds)


def test_going_on_twice_from_one_checkpoint_counts_its_work_once() -> None:
    """The old process never died: its twin, under another name, has the same work in its
    weights."""
    with cluster(*(descent(500.0) for _ in range(2)), **FREE) as made:
        train(made[:1], 5)
        with closing(newcomer(descent(0.0), "x", *made, **FREE)) as twin:
            load(twin, save(made[0]))
            start([*made, twin])
            train([*made, twin], 6)
            settle([*made, twin])
            rounds = seals(*made, twin)
            counts = merged(rounds)
            dropped = [o.status().dropped_tokens for o in (*made, twin)]
            assert_settled([*made, twin], sum(counts.values()))
            assert_sum(twin, 500.0, rounds)
            assert counts[me(made[0])] >= 5
            assert counts[me(made[1])] == 6
            assert dropped[1] == 0
            assert 5 + 3 * 6 - sum(dropped) <= sum(counts.values()) <= 5 + 3 * 6


# ── a greater checkpoint ──────────────────────────────────────────────────────────────────────────


def test_a_cluster_adopts_the_anchor_of_a_checkpoint_that_is_ahead_of_it() -> None:
    with cluster(*(descent(500.0) for _ in range(3)), **STILL) as made:
        train(made, 5)
        settle(made)
        early = [save(o) for o in made[1:]]
        train(made, 5)
        settle(made)
        train(made[:1], 2)
        late, ahead = save(made[0]), anchors(made[0])
    with resumed(
        [lambda: descent(0.0)] * 2, early, each=[{"name": "b"}, {"name": "c"}], **STILL
    ) as others:
        train(others, 1)
        with closing(newcomer(descent(0.0), "a", *others, **STILL)) as new:
            load(new, late)
            start([new, *others])
            for other in others:
                until(other, lambda other=other: progress(other).lineage == progress(new).lineage)
            assert same(anchors(new), ahead)
            settle([*others, new])
            assert_settled([*others, new], 3 * 10 + 2 + 2 * 1)
            assert [o.status().dropped_tokens for o in (*others, new)] == [0, 0, 0]


def test_a_cluster_of_another_origin_adopts_a_greater_checkpoint_whole() -> None:
    with cluster(descent(500.0), descent(500.0), **STILL) as made:
        train(made, 5)
        settle(made)
        train(made[:1], 2)
        saved = save(made[0])
    with cluster(
        descent(90.0), descent(90.0), each=[{"name": "b"}, {"name": "c"}], **STILL
    ) as others:
        train(others, 2)
        with closing(newcomer(descent(0.0), "a", *others, **STILL)) as new:
            load(new, saved)
            show(new)
            for other in others:
                until(other, lambda other=other: progress(other).lineage == progress(new).lineage)
            settle([*others, new])
            assert_settled([*others, new], 13)
            assert read(others[0]) == read(new) == [pytest.approx(saved[0][0][0].item() - 1)]
            assert [o.status().dropped_tokens for o in (*others, new)] == [2, 2, 0]


# ── clones ────────────────────────────────────────────────────────────────────────────────────────

CLONES = [{"name": name} for name in "xyz"]


def one_checkpoint(unmerged: int) -> tuple[PeerId, Saved]:
    """The checkpoint of a learner with so much unmerged work (up to 5 steps); four steps of it are
    in an offer, if there are that many."""
    overlap = 3 if unmerged else 0
    with cluster(descent(500.0), descent(500.0), **FREE, adopt_after=overlap) as made:
        train(made, 8 + overlap)
        train(made[:1], max(0, unmerged - 3))
        status, saved = made[0].status(), save(made[0])
        assert (status.fragments[0].tokens, status.unmerged_tokens, anchor_in(saved)) == (
            16,
            unmerged,
            488.0,
        )
        return me(made[0]), saved


def anchor_in(saved: Saved) -> float:
    return float(saved[1]["mend"]["fragments"][0]["tensors"]["anchor"][0])


@pytest.mark.parametrize("options", [FREE, {**FREE, "adopt_after": 0}, {**FREE, "adopt_after": 2}])
@pytest.mark.parametrize("unmerged", [0, 3, 5])
def test_a_whole_cluster_may_start_from_the_checkpoint_of_one(
    unmerged: int, options: dict[str, Any]
) -> None:
    """The checkpoint's unmerged work is in the weights of all, and once in the one anchor."""
    author, saved = one_checkpoint(unmerged)
    options = {**options, "failslow": None}  # a busy machine makes learners slow
    with resumed([lambda: descent(0.0)] * 3, [saved] * 3, each=CLONES, **options) as made:
        train(made, 12)
        settle(made)
        rounds = seals(*made)
        counts = merged(rounds)
        assert {r.reason for r in rounds} == {"all_present"}, (
            "who brings nothing new must not hold up the others"
        )
        assert_settled(made, 16 + sum(counts.values()))
        assert_sum_of_clones(made, anchor_in(saved), author, rounds)
        for optimizer in made:  # of its own twelve steps, none is lost uncounted, none counts twice
            own, dropped = counts[me(optimizer)], optimizer.status().dropped_tokens
            assert 12 <= own + dropped + (counts[author] - unmerged) <= 12 + unmerged + 12
        assert counts[author] >= unmerged
        assert sum(counts.values()) <= unmerged + 3 * 12


def assert_sum_of_clones(
    made: Sequence[MendOptimizer], first: float, author: PeerId, rounds: Iterable[RoundRecord]
) -> None:
    """An offer with the author's work may also hold steps of its sender: for those, only the bound
    of the gradient is known."""
    least = most = 0.0
    for member in (m for record in rounds for m in record.members):
        known = member.incarnation != author.incarnation
        pulls = [PULL[member.name]] if known else [PULL["a"], PULL["z"]]
        least += member.weight * member.steps * min(pulls)
        most += member.weight * member.steps * max(pulls)
    now = anchors(made[0])[0][0].item()
    assert first - most - 1e-3 <= now <= first - least + 1e-3


# ── other weights ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("unmerged", [0, 3, 5])
def test_weights_that_were_not_loaded_are_replaced_by_the_anchor(unmerged: int) -> None:
    _, saved = one_checkpoint(unmerged)
    watch = Watch()
    with ExitStack() as stack:
        others = stack.enter_context(
            resumed([lambda: descent(0.0)], [saved], each=[{"name": "b"}], **FREE)
        )
        new = stack.enter_context(
            closing(newcomer(descent(-7e6), "a", *others, on_event=watch, **FREE))
        )
        new.load_state_dict(saved[1])
        start([*others, new])
        assert read(new) == [anchor_in(saved)]
        assert watch.until("restored")[0].facts["intact"] is False
        assert (new.status().unmerged_tokens, new.status().dropped_tokens) == (0, unmerged)
        assert how(new)[0] == ("restored", False, unmerged)
        assert (new.status().step, new.status().tokens) == (8 + unmerged, 8 + unmerged)
        train([*others, new], 6)
        settle([*others, new])
        assert_settled([*others, new], 16 + unmerged + 12)
        assert anchors(new)[0][0].item() > 0


def test_a_model_saved_as_the_global_one_goes_on_from_there() -> None:
    with cluster(descent(500.0), descent(500.0), sync_every=4, adopt_after=0) as made:
        train(made, 8)
        drive(made, 3, lambda i, s: 1.0)
        own = save(made[0])
        with made[0].global_weights():
            saved = save(made[0])
        assert (own[0][0][0], saved[0][0][0]) == (485.0, 488.0)
        assert saved[1]["mend"]["weights"] == own[1]["mend"]["weights"]
    watch = Watch()
    with resumed([lambda: descent(0.0)], [saved], on_event=watch, **FREE) as (new,):
        assert watch.until("restored")[0].facts["intact"] is False
        assert read(new) == [488.0]
        assert (new.status().unmerged_tokens, new.status().dropped_tokens) == (0, 3)


def test_intact_weights_are_said_to_be_so() -> None:
    _, saved = one_checkpoint(3)
    watch = Watch()
    with resumed([lambda: descent(0.0)], [saved], on_event=watch, **FREE):
        facts = watch.until("restored")[0].facts
        assert (facts["intact"], facts["unmerged_tokens"], facts["step"], facts["tokens"]) == (
            True,
            3,
            11,
            11,
        )


def test_whom_a_restored_learner_expects_and_does_not_find_is_not_merged_with() -> None:
    _, saved = one_checkpoint(3)
    with cluster(descent(0.0), descent(0.0), **FREE) as made:
        gone = made[1].status().address
    hasty = replace(TIMING, join_timeout_s=0.1)
    with closing(
        MendOptimizer(descent(0.0), listen=LOOPBACK, peers=[gone], timing=hasty, **FREE)
    ) as new:
        load(new, saved)
        assert not new.synchronize(0.0)
        assert (new.status().joined, new.status().unmerged_tokens) == (True, 3)


def test_untrained_weights_do_not_win_by_the_tokens_of_a_checkpoint_of_one_alone() -> None:
    """A checkpoint saved without peers holds no anchor. Random weights must not pass for trained
    ones."""
    alone = MendOptimizer(descent(500.0), name="a")
    train([alone], 1000)
    saved = save(alone)
    with cluster(
        descent(90.0), descent(90.0), each=[{"name": "b"}, {"name": "c"}], **STILL
    ) as others:
        train(others, 2)
        settle(others)
        with closing(newcomer(descent(-7e6), "a", *others, **STILL)) as new:
            new.load_state_dict(saved[1])
            start([*others, new])
            settle([*others, new])
            assert anchors(others[0])[0][0].item() > 0
            assert_settled([*others, new], 4)


# ── alone and not ─────────────────────────────────────────────────────────────────────────────────


def alone(first: float, steps: int, saved: Saved | None = None) -> Saved:
    """The checkpoint of a learner without peers."""
    optimizer = MendOptimizer(descent(first), name="a")
    if saved:
        load(optimizer, saved)
    train([optimizer], steps)
    return save(optimizer)


def test_what_was_trained_alone_counts_among_peers() -> None:
    saved = alone(500.0, 7)
    with cluster(
        descent(0.0), descent(90.0), each=[{"name": "a"}, {"name": "b"}], started=False, **STILL
    ) as made:
        load(made[0], saved)
        start(made)
        assert (made[0].status().step, made[0].status().tokens) == (7, 7)
        settle(made)
        assert_settled(made, 7)
        assert read(made[1]) == [493.0]
        assert made[1].status().position == 7
        train(made, 2)
        settle(made)
        assert_settled(made, 11)


def test_from_peers_to_alone_and_back() -> None:
    with cluster(descent(500.0), descent(500.0), **STILL) as made:
        train(made, 4)
        settle(made)
        train(made, 2)
        saved = save(made[0])
    later = alone(0.0, 5, saved)
    assert (later[1]["mend"]["step"], later[1]["mend"]["tokens"]) == (11, 11)
    with cluster(
        descent(0.0), descent(90.0), each=[{"name": "a"}, {"name": "b"}], started=False, **STILL
    ) as made:
        load(made[0], later)
        together(lambda: show(made[0]), lambda: made[1]._run.ensure_joined())  # type: ignore[func-returns-value]
        settle(made)
        assert_settled(made, 4 + 4 + 2 + 5 + 1)
        assert read(made[1]) == read(made[0]) == [later[0][0][0].item() - 1]
        assert made[0].status().step == 12


def test_a_learner_that_cannot_start_anew_does_not_train_alone_in_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its files of credentials may be gone by now, or another program may have its port."""
    with cluster(descent(0.0), descent(0.0), sync_every=2) as (a, _):
        drive([a], 1, wave)
        saved, trained = a.state_dict(), read(a)
        with monkeypatch.context() as broken:
            broken.setattr(Settings, "connect", Mock(side_effect=UsageError("its port is taken")))
            for call in (lambda: a.load_state_dict(saved), lambda: step(a, 1.0), a.synchronize):
                with pytest.raises(UsageError, match="its port is taken"):
                    call()
        assert read(a) == trained
        a.join()
        assert a.status().joined
