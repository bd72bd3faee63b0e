from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mend_optim.errors import UsageError
from mend_optim.membership.changepoint import RunLengths
from mend_optim.membership.failslow import FailSlow, Pace, Verdict, Watch, is_sound
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Level
from tests import reference

A, B, C, D = EVERYBODY = [PeerId(name, 1) for name in "abcd"]
BLOCK, SKIP = 4, 2
STEADY = Level(1.0, 1.0, 0.01, 30)
SLOW = Level(2.0, 1.0, 0.01, 5)

Series = Sequence[float]
Levels = dict[PeerId, dict[str, Level]]


def paced(seconds: Series, amount: float = 1.0) -> Pace:
    """The pace after these durations, past the blocks that are left out."""
    pace = Pace()
    for value in [1.0] * BLOCK * SKIP:
        pace.add(value, 1.0)
    for value in seconds:
        pace.add(value, amount)
    return pace


def level(seconds: Series, amount: float = 1.0) -> Level:
    found = paced(seconds, amount).level
    assert found
    return found


def blocks(*values: float) -> list[float]:
    """Durations: every block's, `BLOCK` times."""
    return [value for value in values for _ in range(BLOCK)]


def jittered(seed: int, steps: int, learners: int = 4, cv: float = 0.1) -> np.ndarray:
    """Log-normal durations of so many learners, with this coefficient of variation."""
    return np.exp(
        np.random.default_rng(seed).normal(0, math.sqrt(math.log(1 + cv * cv)), (learners, steps))
    )


def watched(durations: np.ndarray, every: int = 1) -> list[tuple[int, str, str]]:
    """(step, learner, what happened), where all are judged at every so many steps."""
    paces, watch, found = [Pace() for _ in durations], Watch(FailSlow()), []
    for step, now in enumerate(durations.T.tolist(), 1):
        for pace, seconds in zip(paces, now, strict=True):
            pace.add(seconds, 1.0)
        if step % every == 0:
            levels = {
                peer: {"compute": p.level}
                for peer, p in zip(EVERYBODY, paces, strict=False)
                if p.level
            }
            found += [
                (step, verdict.peer.name, kind) for kind, verdict in watch.judge(step, levels)
            ]
    return found


def of(*levels: Level) -> Levels:
    """The reports of a, b, … on their compute."""
    return {peer: {"compute": level} for peer, level in zip(EVERYBODY, levels, strict=False)}


def later(levels: Levels, blocks: int) -> Levels:
    """The same so many blocks later."""
    return {
        p: {c: x._replace(run=x.run + blocks) for c, x in causes.items()}
        for p, causes in levels.items()
    }


def settled(watch: Watch, levels: Levels, at: float = 0.0) -> list[tuple[str, Verdict]]:
    """The verdicts when everybody stays at these levels."""
    return [turn for blocks in range(3) for turn in watch.judge(at, later(levels, blocks))]


def flagged(levels: Levels, policy: FailSlow | None = None) -> set[PeerId]:
    watch = Watch(policy or FailSlow())
    settled(watch, levels)
    return set(watch.failing)


# ── a learner's own pace ──────────────────────────────────────────────────────────────────────────


def test_there_is_a_level_after_three_blocks_past_the_first_two() -> None:
    pace = Pace()
    for _ in range(BLOCK * (SKIP + 3)):
        assert pace.level is None
        pace.add(3.0, 2.0)
    assert pace.level
    assert pace.level[:2] == pytest.approx((1.5, 1.5))
    assert pace.level.run == 3


def test_what_is_left_out_at_the_beginning_changes_nothing() -> None:
    paces = Pace(), Pace()
    for step in range(100):
        paces[0].add(50.0 if step < BLOCK * SKIP else 1.0, 1.0)
        paces[1].add(1.0, 1.0)
    assert paces[0].level == paces[1].level


@given(st.floats(1e-6, 1e6), st.integers(3, 200))
def test_a_constant_series_has_one_level(seconds: float, count: int) -> None:
    found = level(blocks(*[seconds] * count))
    assert found[:2] == pytest.approx((seconds, seconds))
    assert found.before == found.now
    assert found.run == count


@pytest.mark.parametrize("factor", [1.5, 2.0, 2.6])
@pytest.mark.parametrize("before", [3, 10, 63, 64, 65, 300])
def test_a_step_is_found_in_its_third_block_and_not_before(before: int, factor: float) -> None:
    at_two, at_three = (level(blocks(*[1.0] * before, *[factor] * after)) for after in (2, 3))
    assert at_two[:2] == (1.0, 1.0)
    assert at_two.run == before + 2
    assert at_three[:2] == pytest.approx((factor, 1.0))
    assert at_three.run == 3


@pytest.mark.parametrize(("factor", "block"), [(2.6, 4), (2.7, 3), (3.9, 3), (4.1, 2), (1e6, 2)])
@pytest.mark.parametrize("before", [3, 65])
def test_fewer_steps_make_a_block_of_who_is_very_slow(
    before: int, factor: float, block: int
) -> None:
    """At 8/3 times slower three take as long as two blocks did, at 4 times two."""
    steps = 3 * block
    early, late = (
        level([*blocks(*[1.0] * before), *[factor] * count]) for count in (steps - 1, steps)
    )
    assert early == level(blocks(*[1.0] * before))._replace(run=before + 2, spread=early.spread)
    assert late[:2] == pytest.approx((factor, 1.0))
    assert late.run == 3


def test_how_slow_is_measured_from_the_fastest_level() -> None:
    """So the blocks stay short until it is over, also when the slow level is the present one."""
    slow = [*blocks(*[1.0] * 10), *[5.0] * 40]
    assert level(slow).run == 20
    assert level([*slow, *[1.0] * 4]).run == 21
    assert level([*slow, *[1.0] * 12])[:2] == (1.0, 1.0)


@pytest.mark.parametrize("factor", [0.2, 0.5, 0.8])
def test_who_became_faster_has_never_been_faster(factor: float) -> None:
    found = level(blocks(*[1.0] * 20, *[factor] * 3))
    assert found[:2] == pytest.approx((factor, factor))
    assert found.run == 3


def test_before_is_the_fastest_of_the_steady_levels() -> None:
    found = level(blocks(*[1.5] * 10, *[1.0] * 10, *[2.0] * 10, *[2.5] * 10))
    assert found[:2] == pytest.approx((2.5, 1.0))
    assert found.run == 10


def test_what_lasted_for_less_than_three_blocks_was_no_level() -> None:
    assert level(blocks(*[2.0] * 10, 1.0, 1.0, *[4.0] * 10))[:2] == pytest.approx((4.0, 2.0))
    assert level(blocks(1.0, 1.0, *[4.0] * 10))[:2] == pytest.approx((4.0, 4.0))


def test_levels_of_long_ago_are_forgotten() -> None:
    changes = [seconds for seconds in [1.0, *[2.0, 3.0] * 4] for _ in range(5)]
    assert level(blocks(*changes))[:2] == pytest.approx((3.0, 1.0))
    assert level(blocks(*changes, *[2.0] * 5))[:2] == pytest.approx((2.0, 2.0))


@given(st.floats(1 / 1.09, 1.09), st.integers(0, 10**6))
def test_less_than_ten_percent_is_no_change(factor: float, seed: int) -> None:
    seconds = jittered(seed, 4 * 60, 1, cv=0.003)[0]
    seconds[4 * 30 :] *= factor
    found = level(seconds.tolist())
    assert found.before == found.now
    assert found.run == 60


def test_a_small_change_is_none_for_its_last_block_either() -> None:
    assert level(blocks(*[1.0] * 30, *[1.08] * 8, 1.13)).run == 39


@given(st.floats(1e-6, 1e6), st.integers(0, 99))
def test_a_single_spike_is_not_seen(factor: float, at: int) -> None:
    seconds = blocks(*[1.0] * 25)
    seconds[at] *= factor
    assert level(seconds) == level(blocks(*[1.0] * 25))


@example(1.5, 5, 2, 1)
@given(st.floats(1.2, 2.6), st.integers(4, 40), st.integers(1, 2), st.integers(0, 10))
def test_a_stall_of_one_or_two_blocks_is_no_change(
    factor: float, before: int, stall: int, after: int
) -> None:
    found = level(blocks(*[1.0] * before, *[factor] * stall, *[1.0] * after))
    assert found[:2] == (1.0, 1.0)
    assert found.run == before + stall + after


def test_pauses_at_every_50_steps_are_not_seen() -> None:
    seconds = [30.0 if step % 50 == 49 else 1.0 for step in range(2000)]
    assert level(seconds) == level([1.0] * 2000)


series = st.lists(st.tuples(st.floats(0.1, 10.0), st.integers(1, 12)), min_size=1, max_size=6)


def levels_of(parts: list[tuple[float, int]], seed: int) -> list[float]:
    """A series of levels, each for so many blocks, with 5 % of jitter."""
    seconds = np.array(
        blocks(*(value for value, count in parts for _ in range(count)), 1.0, 1.0, 1.0)
    )
    return (seconds * jittered(seed, len(seconds), 1, cv=0.05)[0]).tolist()


@given(series, st.integers(0, 10**6), st.integers(-60, 60))
def test_scale_moves_the_levels_and_nothing_else(
    parts: list[tuple[float, int]], seed: int, power: int
) -> None:
    seconds, c = levels_of(parts, seed), 2.0**power
    found, scaled = level(seconds), level([c * value for value in seconds])
    assert scaled == found._replace(now=c * found.now, before=c * found.before)
    assert level(seconds, amount=1 / c) == scaled


@given(series, st.integers(0, 10**6))
def test_a_level_is_sound_and_among_what_was_seen(
    parts: list[tuple[float, int]], seed: int
) -> None:
    seconds = levels_of(parts, seed)
    found = level(seconds)
    assert is_sound(found)
    # A level is exp(log(rate)): right but for the last bits.
    least, most = min(seconds) * (1 - 1e-12), max(seconds) * (1 + 1e-12)
    assert least <= found.before <= found.now <= most
    assert 3 <= found.run <= len(seconds) // BLOCK


@pytest.mark.parametrize(
    "wrong", [0.0, -1.0, math.nan, math.inf, -math.inf, 1e300, 1e-300, 10**400]
)
def test_what_is_no_duration_is_ignored(wrong: float) -> None:
    pace, other = Pace(), Pace()
    for seconds in blocks(*[1.0] * 10, *[2.0] * 4):
        pace.add(wrong, 1.0)
        pace.add(1.0, wrong)
        pace.add(seconds, 1.0)
        other.add(seconds, 1.0)
    assert pace.level == other.level


def test_the_greatest_contrast_is_survived() -> None:
    found = level([1e-49 if step < 200 else 1e49 for step in range(400)], amount=1.0)
    assert found.now / found.before == pytest.approx(1e98)
    assert is_sound(found)


@pytest.mark.parametrize("cv", [0.1, 0.3])
def test_the_spread_is_the_standard_error_of_the_level(cv: float) -> None:
    found = [level(row) for row in jittered(1, 4 * 40, 200, cv).tolist()]
    error = np.std([math.log(x.now) for x in found])
    assert np.mean([x.spread for x in found]) == pytest.approx(error, rel=0.3)


def test_the_jitter_of_earlier_levels_is_remembered() -> None:
    steps = 4 * 43
    calm, wild = jittered(5, steps, 1, cv=0.01)[0], jittered(5, steps, 1, cv=0.2)[0]
    for row in calm, wild:
        row[4 * 40 :] = 2.0
    assert level(wild.tolist()).run == level(calm.tolist()).run == 3
    assert level(wild.tolist()).spread > 2 * level(calm.tolist()).spread


# ── beside slow twins ─────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.floats(-3, 3) | st.sampled_from([0.0, 0.05, 1.0]), min_size=1, max_size=64))
def test_run_lengths_are_those_of_the_definition(observations: list[float]) -> None:
    runs = RunLengths()
    for x in observations:
        runs.add(x)
    expected = reference.run_lengths(observations)
    assert runs.mass[: len(expected)] == pytest.approx(expected, rel=1e-6, abs=1e-12)
    assert runs.mass[len(expected) :].sum() == 0
    assert runs.shortest() == next(k for k in range(len(expected)) if sum(expected[: k + 1]) > 0.9)


def test_long_runs_are_as_good_as_one() -> None:
    observations = [random.Random(1).gauss(0, 0.05) for _ in range(150)] + [0.5] * 4
    runs = RunLengths()
    for t, x in enumerate(observations):
        runs.add(x)
        assert runs.mass.sum() == pytest.approx(1)
        if t == 149:
            assert runs.shortest() == 64
    expected = reference.run_lengths(observations)
    assert runs.mass[:10] == pytest.approx(expected[:10], abs=1e-5)
    assert runs.shortest() == 4


ratios = st.sampled_from([1.0, 1.0, 1.0, 1.05, 1.1, 1.19, 1.21, 1.5, 2.0, 5.0])
told = st.builds(
    lambda before, ratio, spread, run: Level(before * ratio, before, spread, run),
    st.sampled_from([0.5, 0.9, 1.0, 1.0, 1.0, 1.0, 1.1, 3.0]),
    ratios,
    st.sampled_from([0.0, 0.01]) | st.floats(0, 0.3),
    st.integers(6, 10) | st.integers(1, 10),
)
everybody_told = st.integers(1, 4).flatmap(lambda n: st.lists(told, min_size=n, max_size=n))
policies = st.builds(
    FailSlow,
    threshold=st.sampled_from([1.15, 1.2, 1.45]),
    score=st.floats(0.5, 6),
    patience=st.integers(1, 8),
)


@given(everybody_told, policies)
def test_who_fails_is_who_meets_the_four_conditions(levels: list[Level], policy: FailSlow) -> None:
    expected = reference.failing(levels, policy.threshold, policy.score, policy.patience)
    assert flagged(of(*levels), policy) == {EVERYBODY[i] for i in expected}


@given(everybody_told, st.permutations(EVERYBODY), st.integers(-40, 40))
def test_neither_names_nor_scale_decide(
    levels: list[Level], names: list[PeerId], power: int
) -> None:
    c = 2.0**power
    renamed = {
        n: {"compute": x._replace(now=c * x.now, before=c * x.before)}
        for n, x in zip(names, levels, strict=False)
    }
    assert {names[EVERYBODY.index(peer)] for peer in flagged(of(*levels))} == flagged(renamed)


# ── verdicts on levels ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("others", [1, 2, 3])
def test_who_became_slower_fails_beside_however_many(others: int) -> None:
    assert flagged(of(SLOW, *[STEADY] * others)) == {A}


def test_alone_the_own_past_is_all_there_is() -> None:
    assert flagged(of(SLOW)) == {A}
    assert flagged(of(STEADY)) == set()
    assert flagged(of(SLOW._replace(spread=1.0))) == set()


def test_steady_but_slower_hardware_never_fails() -> None:
    assert flagged(of(Level(9.0, 9.0, 0.01, 500), STEADY, STEADY)) == set()


def test_when_all_become_slower_alike_nobody_fails() -> None:
    assert flagged(of(SLOW, SLOW, SLOW, SLOW)) == set()


def test_who_is_still_as_fast_as_the_others_holds_nobody_up() -> None:
    assert flagged(of(Level(1.0, 0.5, 0.01, 9), STEADY, STEADY)) == set()
    assert flagged(of(Level(1.21, 0.5, 0.01, 9), STEADY, STEADY)) == {A}


def test_jitter_is_doubt() -> None:
    assert flagged(of(SLOW._replace(spread=math.log(2) / 3.4), STEADY)) == set()
    assert flagged(of(SLOW._replace(spread=math.log(2) / 3.6), STEADY)) == {A}


def test_others_that_disagree_are_doubt() -> None:
    unequal = [Level(ratio, 1.0, 0.01, 30) for ratio in (1.0, 1.2, 1.5)]
    assert flagged(of(Level(2.2, 1.0, 0.01, 30), *unequal)) == set()
    assert flagged(of(Level(3.2, 1.0, 0.01, 30), *unequal)) == {A}


def test_patience_is_counted_in_blocks() -> None:
    policy = FailSlow(patience=6)
    assert flagged(of(SLOW._replace(run=5), STEADY), policy) == set()
    assert flagged(of(SLOW._replace(run=6), STEADY), policy) == {A}


def test_who_is_slow_is_told_once() -> None:
    watch = Watch(FailSlow())
    assert settled(watch, of(SLOW, STEADY), 10.0) == [
        ("slow", Verdict(peer=A, cause="compute", since=10.0, ratio=pytest.approx(2.0)))
    ]
    assert watch.failing[A].since == 10.0
    assert watch.judge(11.0, of(SLOW, STEADY)) == []


def test_a_suspect_waits_until_the_others_could_say_the_same() -> None:
    watch, quiet = Watch(FailSlow()), of(SLOW, STEADY)
    quiet_b = quiet[B]
    for block in range(10):
        assert watch.judge(0.0, {**later(quiet, block), B: quiet_b}) == []
    assert watch.judge(0.0, later(quiet, 11)) == []
    assert [kind for kind, _ in watch.judge(0.0, later(quiet, 12))] == ["slow"]


def test_a_suspect_must_go_on_itself() -> None:
    watch, levels = Watch(FailSlow()), of(SLOW, STEADY, STEADY, STEADY)
    for block in range(10):
        assert watch.judge(0.0, {**later(levels, block), A: levels[A]}) == []


@pytest.mark.parametrize(
    ("others", "silent", "enough"), [(3, 1, True), (3, 2, False), (2, 1, False), (1, 1, False)]
)
def test_more_than_half_of_the_others_are_enough(others: int, silent: int, enough: bool) -> None:
    watch, levels = Watch(FailSlow()), of(SLOW, *[STEADY] * others)
    quiet = {peer: levels[peer] for peer in list(levels)[-silent:]}
    found = [
        kind
        for block in range(9)
        for kind, _ in watch.judge(0.0, {**later(levels, block), **quiet})
    ]
    assert found == ["slow"] * enough


def test_a_suspicion_that_ends_starts_anew() -> None:
    watch, levels = Watch(FailSlow()), of(SLOW, STEADY)
    for block in range(10):
        between = of(STEADY, STEADY) if block % 2 else levels
        assert watch.judge(0.0, later(between, block)) == []
    for block in range(10):
        between = {B: levels[B]} if block % 2 else levels
        assert watch.judge(0.0, later(between, block)) == []


def test_who_fails_again_is_a_suspect_again() -> None:
    watch = Watch(FailSlow())
    settled(watch, of(SLOW, STEADY))
    watch.judge(1.0, of(STEADY, STEADY))
    assert watch.judge(2.0, of(SLOW, STEADY)) == []
    assert [kind for kind, _ in settled(watch, of(SLOW, STEADY))] == ["slow"]


def test_it_is_over_below_recover_and_not_before() -> None:
    watch = Watch(FailSlow(recover=1.1))
    settled(watch, of(SLOW, STEADY))
    assert watch.judge(1.0, of(Level(1.11, 1.0, 0.5, 1), STEADY)) == []
    assert watch.failing[A].ratio == pytest.approx(1.11)
    assert [
        (kind, v.peer) for kind, v in watch.judge(2.0, of(Level(1.09, 1.0, 0.01, 3), STEADY))
    ] == [("recovered", A)]
    assert watch.failing == {}


def test_it_is_over_when_the_others_are_as_slow() -> None:
    watch = Watch(FailSlow())
    settled(watch, of(SLOW, STEADY, STEADY))
    assert [kind for kind, _ in watch.judge(1.0, of(SLOW, SLOW, SLOW))] == ["recovered"]


def test_what_was_lost_is_counted_and_told_once() -> None:
    watch = Watch(FailSlow(restart_s=30.0))
    settled(watch, of(SLOW, STEADY), 100.0)
    assert watch.judge(120.0, of(SLOW, STEADY)) == []
    assert watch.failing[A].lost_s == pytest.approx(10.0)
    worse = of(SLOW._replace(now=4.0), STEADY)
    assert watch.judge(130.0, worse) == []
    assert watch.failing[A].lost_s == pytest.approx(15.0)
    ((kind, verdict),) = watch.judge(150.0, worse)
    assert (kind, verdict.lost_s, verdict.lost_per_hour_s) == (
        "costly",
        pytest.approx(30.0),
        pytest.approx(2700.0),
    )
    assert watch.judge(1000.0, worse) == []
    ((kind, verdict),) = watch.judge(1004.0, of(STEADY, STEADY))
    assert (kind, verdict.since, verdict.lost_s) == ("recovered", 100.0, pytest.approx(670.5))


def test_time_that_goes_back_loses_nothing() -> None:
    watch = Watch(FailSlow())
    settled(watch, of(SLOW, STEADY), 100.0)
    watch.judge(90.0, of(SLOW, STEADY))
    assert watch.failing[A].lost_s == 0


def test_who_left_is_forgotten_without_a_word() -> None:
    watch = Watch(FailSlow())
    settled(watch, of(SLOW, STEADY))
    assert watch.judge(1.0, {B: {"compute": STEADY}}) == []
    assert watch.failing == {}
    assert watch.judge(2.0, of(SLOW, STEADY)) == []


def test_a_new_incarnation_begins_anew() -> None:
    watch = Watch(FailSlow())
    settled(watch, of(SLOW, STEADY))
    reborn = PeerId("a", 2)
    assert watch.judge(1.0, {reborn: {"compute": SLOW}, B: {"compute": STEADY}}) == []
    assert watch.failing == {}


def test_without_a_level_nobody_is_failing() -> None:
    watch = Watch(FailSlow())
    settled(watch, of(SLOW, STEADY))
    assert [kind for kind, _ in watch.judge(1.0, {A: {}, B: {"compute": STEADY}})] == ["recovered"]
    assert watch.failing == {}


def test_causes_are_judged_apart_and_the_worst_is_shown() -> None:
    watch = Watch(FailSlow())
    worse = SLOW._replace(now=3.0)
    levels = {
        A: {"link": SLOW, "compute": worse},
        B: {"link": STEADY, "compute": STEADY},
        C: {"compute": STEADY},
    }
    assert [(kind, v.cause) for kind, v in settled(watch, levels)] == [
        ("slow", "compute"),
        ("slow", "link"),
    ]
    assert watch.failing[A].cause == "compute"
    levels[A] = {"link": SLOW, "compute": STEADY}
    assert [(kind, v.cause) for kind, v in watch.judge(1.0, levels)] == [("recovered", "compute")]
    assert watch.failing[A].cause == "link"


def test_what_changed_is_told_in_the_order_of_names() -> None:
    slow = "hbfdcl"
    levels = {
        PeerId(name, 1): {"compute": SLOW if name in slow else STEADY}
        for name in "hnbakfdicoljmgep"
    }
    assert [v.peer.name for _, v in settled(Watch(FailSlow()), levels)] == sorted(slow)


@pytest.mark.parametrize(
    "wrong",
    [
        Level(math.nan, 1.0, 0.1, 5),
        Level(5.0, math.nan, 0.1, 5),
        Level(math.inf, 1.0, 0.1, 5),
        Level(5.0, 0.0, 0.1, 5),
        Level(5.0, -1.0, 0.1, 5),
        Level(1.0, 2.0, 0.1, 5),
        Level(5.0, 1.0, math.nan, 5),
        Level(5.0, 1.0, -1.0, 5),
        Level(5.0, 1.0, math.inf, 5),
        Level(1e300, 1e-300, 0.1, 5),
    ],
)
def test_a_level_that_cannot_be_is_no_level(wrong: Level) -> None:
    assert not is_sound(wrong)
    for peers in (EVERYBODY, EVERYBODY[::-1]):
        levels = dict(
            zip(peers, ({"compute": x} for x in (SLOW, wrong, STEADY, STEADY)), strict=True)
        )
        assert flagged(levels) == {peers[0]}


# ── from durations to verdicts ────────────────────────────────────────────────────────────────────

AT, UNTIL, STEPS = 4 * 30, 4 * 60, 4 * 90


@pytest.mark.parametrize("learners", [2, 4])
@pytest.mark.parametrize("factor", [1.5, 2.0, 5.0])
def test_a_slowdown_is_found_within_five_blocks_and_its_end_too(
    factor: float, learners: int
) -> None:
    for seed in range(15):
        durations = jittered(seed, STEPS, learners)
        durations[0, AT:UNTIL] *= factor
        (found, who, kind), (over, _, end) = watched(durations, every=BLOCK)
        assert (who, kind, end) == ("a", "slow", "recovered")
        assert AT < found <= AT + 5 * BLOCK
        assert UNTIL < over <= UNTIL + 5 * BLOCK


def test_a_great_slowdown_is_found_in_half_as_many_steps() -> None:
    for seed in range(15):
        durations = jittered(seed, STEPS)
        durations[0, AT + seed % 4 : UNTIL] *= 5
        (found, who, _), *_ = watched(durations)
        assert who == "a"
        assert found <= AT + 4 * BLOCK


def test_a_slowdown_within_a_block_takes_but_two_blocks_more() -> None:
    for seed in range(15):
        durations = jittered(seed, STEPS)
        durations[0, AT + 1 + seed % 3 : UNTIL] *= 2
        (found, who, _), *_ = watched(durations)
        assert who == "a"
        assert found <= AT + 7 * BLOCK


def test_jitter_spikes_and_pauses_are_no_verdict() -> None:
    for seed in range(3):
        durations = jittered(seed, 16 * 300)
        durations[np.random.default_rng(seed).random(durations.shape) < 0.02] *= 10
        durations[:, 49::50] *= 20
        assert watched(durations, every=BLOCK) == []


def test_different_hardware_and_small_changes_are_no_verdict() -> None:
    durations = jittered(3, 16 * 60, cv=0.03) * np.array([[1.0], [1.3], [2.0], [5.0]])
    durations[:, 400:] *= np.array([[1.09], [1 / 1.09], [1.0], [1.09]])
    assert watched(durations, every=BLOCK) == []


def test_a_slow_learner_among_fast_ones_is_judged_by_its_own_past() -> None:
    durations = jittered(4, STEPS) * np.array([[3.0], [1.0], [1.0], [1.0]])
    durations[0, AT:] *= 1.5
    assert [(who, kind) for _, who, kind in watched(durations)] == [("a", "slow")]


@pytest.mark.parametrize("beat", [1, 3, 8, 40])
@pytest.mark.parametrize("learners", [2, 4])
def test_when_all_slow_down_and_recover_at_once_nobody_fails(learners: int, beat: int) -> None:
    """Whatever the phase of their blocks and beats: the one that judges hears of the others later
    than of itself."""
    for seed in range(6):
        phases = random.Random(seed)
        durations = jittered(seed, STEPS, learners)
        durations[:, AT:UNTIL] *= 1.6
        paces, watch, told = [Pace() for _ in range(learners)], Watch(FailSlow()), {}
        for pace in paces:
            for _ in range(phases.randrange(BLOCK)):
                pace.add(1.0, 1.0)
        turns = [0, *(phases.randrange(beat) for _ in paces[1:])]
        for step, now in enumerate(durations.T.tolist()):
            for peer, pace, seconds, turn in zip(EVERYBODY, paces, now, turns, strict=False):
                pace.add(seconds, 1.0)
                if pace.level and (peer == A or (step + turn) % beat == 0):
                    told[peer] = {"compute": pace.level}
            assert watch.judge(step, told) == []


# ── the policy ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"threshold": 1.1}, "failslow.threshold must be a number > 1.1, got 1.1"),
        ({"threshold": math.nan}, "failslow.threshold .* got nan"),
        ({"threshold": "2"}, "failslow.threshold .* got '2'"),
        ({"score": 0}, "failslow.score must be a number > 0, got 0"),
        ({"patience": 0}, "failslow.patience must be an int >= 1, got 0"),
        ({"patience": 2.0}, "failslow.patience .* got 2.0"),
        ({"patience": True}, "failslow.patience .* got True"),
        ({"recover": 1.0}, "failslow.recover must be a number > 1, got 1.0"),
        (
            {"recover": 1.3},
            "failslow.recover must be at most threshold=1.2, got 1.3; otherwise .* at once",
        ),
        ({"restart_s": 0.0}, "failslow.restart_s must be a number > 0, got 0.0"),
        ({"restart_s": True}, "failslow.restart_s .* got True"),
    ],
)
def test_a_wrong_policy_is_named(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        FailSlow(**wrong)


def test_recover_may_be_the_threshold() -> None:
    assert FailSlow(threshold=1.5, recover=1.5).recover == 1.5
