"""The period that a run chooses: the rule, what a learner measures, and who decides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim import AutoPeriod, Moment, MomentSchedule, UsageError
from mend_optim.engine.accounts import Totals
from mend_optim.engine.effects import Advance, Export, Inspect, Install
from mend_optim.engine.engine import Engine
from mend_optim.engine.joining import Resumed
from mend_optim.engine.period import FEWEST, LAST, Latency, read_period
from mend_optim.engine.policies import Policies
from mend_optim.engine.progress import Progress
from mend_optim.engine.schedule import Schedule
from mend_optim.engine.state import EngineState
from mend_optim.protocol.lineage import Lineage
from mend_optim.protocol.messages import Packet, Seal, State, Want
from tests import reference
from tests.support.engines import (
    BASE,
    FOURTH,
    GENESIS,
    ME,
    PEER,
    THIRD,
    DrivenEngine,
    among_peers,
    grown,
    offer_of,
    seal_of,
    state_of,
)

UNBOUNDED = AutoPeriod()
LATENCIES = st.sampled_from([100, 600, 2000]).flatmap(
    lambda most: st.lists(st.integers(1, most), min_size=1, max_size=8)
)


def following(present: int, *latencies: int, auto: AutoPeriod = UNBOUNDED, **facts: Any) -> int:
    return auto.next(present, latencies, **{"nbytes": 0, "step_s": 1.0, **facts})


# The rule


@pytest.mark.parametrize(
    ("present", "latency", "period"),
    [
        (20, 1, 1),
        (20, 14, 14),
        (20, 15, 20),
        (20, 25, 20),
        (20, 26, 26),
        (1, 2, 1),
        (1, 3, 3),
        (2, 1, 2),
        (3, 1, 1),
        (8, 10, 8),
        (8, 11, 11),
        (100, 75, 100),
        (100, 74, 74),
        (20, 5000, 512),
    ],
)
def test_rounds_follow_one_another_without_a_pause(present: int, latency: int, period: int) -> None:
    assert following(present, latency) == period


def test_without_measurements_the_period_stays() -> None:
    assert following(77) == 77


@given(st.integers(1, 512), LATENCIES, st.integers(1, 200), st.integers(0, 600))
def test_the_rule_is_that_of_its_twin(
    present: int, latencies: list[int], least: int, more: int
) -> None:
    auto = AutoPeriod(least=least, most=least + more)
    present = min(max(present, auto.least), auto.most)
    found = following(present, *latencies, auto=auto)
    assert found == reference.next_period(present, latencies, auto.least, auto.most)


@given(st.integers(1, 512), LATENCIES, st.integers(1, 40), st.integers(0, 400))
def test_the_limits_hold(present: int, latencies: list[int], least: int, more: int) -> None:
    auto = AutoPeriod(least=least, most=least + more)
    present = min(max(present, auto.least), auto.most)
    assert auto.least <= following(present, *latencies, auto=auto) <= auto.most


@given(st.integers(1, 512), st.integers(1, 600))
def test_the_same_latency_settles_after_one_decision(present: int, latency: int) -> None:
    once = following(present, latency)
    assert following(once, latency) == once


@given(st.integers(1, 512), LATENCIES)
def test_a_bound_on_traffic_makes_the_period_as_long_as_it_needs(
    present: int, latencies: list[int]
) -> None:
    auto = AutoPeriod(bytes_per_s=1000.0, most=10_000)
    facts = {"nbytes": 50_000, "step_s": 0.5}
    period = following(present, *latencies, auto=auto, **facts)
    assert max(period, present * 1.25) >= 100


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"least": 0}, r"sync_every.least must be an int >= 1, got 0"),
        ({"least": True}, r"sync_every.least must be an int >= 1, got True"),
        ({"least": 9, "most": 8}, r"sync_every.most must be an int >= 9, got 8"),
        ({"bytes_per_s": 0}, r"sync_every.bytes_per_s must be None or a number > 0, got 0"),
    ],
)
def test_limits_that_make_no_sense_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        AutoPeriod(**wrong)


# The argument


def test_auto_begins_with_the_shortest_period_and_a_number_is_kept() -> None:
    assert read_period("auto", 1, None) == (Schedule(sync_every=1), AutoPeriod())
    assert read_period(AutoPeriod(least=8), 1, None)[0].sync_every == 8
    assert read_period(7, 2, None) == (Schedule(sync_every=7, fragments=2), None)
    assert read_period("auto", 24, None)[0].sync_every == 1
    assert read_period("auto", None, None)[0].fragments == 1


@pytest.mark.parametrize(("overlap", "period"), [(0, 20), (19, 20), (50, 50)])
def test_in_lockstep_the_period_is_fixed_from_the_start(overlap: int, period: int) -> None:
    schedule, auto = read_period("auto", 1, overlap)
    assert (schedule.sync_every, schedule.adopt_after, auto) == (period, overlap, None)


def test_in_lockstep_each_fragment_has_a_step_of_its_own() -> None:
    assert read_period("auto", 24, 0)[0].sync_every == 24


@pytest.mark.parametrize("arguments", [(4, 5, None), (4, 5, 0), (AutoPeriod(most=4), 5, 2)])
def test_a_fixed_period_has_a_step_for_each_fragment(arguments: tuple[Any, ...]) -> None:
    words = "fragments must be at most sync_every=4, got 5; .* raise sync_every or lower fragments"
    with pytest.raises(UsageError, match=words):
        read_period(*arguments)


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "often", None])
def test_anything_else_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="sync_every must be an int >= 1, 'auto' or"):
        read_period(wrong, 1, None)


# Measuring


@given(st.lists(st.integers(0, 100)))
def test_a_learner_tells_the_median_of_its_last_rounds(steps: list[int]) -> None:
    latency = Latency()
    for each in steps:
        latency.add(each)
    last = sorted(steps[-LAST:])
    assert latency.median == (max(1, last[len(last) // 2]) if len(steps) >= FEWEST else 0)


# Deciding


def automatic(seals: bool = True) -> DrivenEngine:
    """A learner whose period is 20 and may become another one."""
    driven = DrivenEngine(seals=seals, sync_every=20, auto=AutoPeriod())
    driven.beat()
    return driven


def period(driven: DrivenEngine) -> int:
    return driven.engine.state.schedule.sync_every


def sealed_here(driven: DrivenEngine, *latencies: int) -> Seal:
    """The seal of a round that this learner and its peers take part in; the peers tell these
    latencies."""
    for peer, latency in zip((PEER, THIRD, FOURTH), latencies or (0,), strict=False):
        driven.beat(peer, latency=latency)
        driven.receive(offer_of(peer))
        (inspect,) = driven.jobs(Inspect)
        driven.done(inspect)
    driven.offer(20)
    driven.tick(0.0)
    driven.done(driven.merge())
    return driven.sent(Seal)[0][1]


def test_the_sealer_tells_the_period_that_the_learners_latencies_ask_for() -> None:
    assert sealed_here(automatic(), 40, 40).period == 40
    assert sealed_here(automatic(), 5, 5, 1).period == 5
    assert sealed_here(automatic()).period == 20


def test_the_period_stays_until_most_learners_have_told_their_latency() -> None:
    assert sealed_here(automatic(), 40).period == 20
    assert sealed_here(automatic(), 40, 0).period == 20
    assert sealed_here(automatic(), 40, 40, 0).period == 20
    assert sealed_here(automatic(), 40, 40, 40).period == 40


def test_with_a_limit_on_traffic_the_period_is_that_of_the_fastest_learner() -> None:
    """The first learner at its boundary begins a round: here this one, ten times before others."""
    periods = []
    for own_s in (1.0, 0.1):
        auto = AutoPeriod(bytes_per_s=100.0, most=10_000)
        driven = DrivenEngine(sync_every=20, auto=auto)
        driven.beat()
        driven.offer(20)
        driven.engine.state.step_s = own_s
        driven.receive(
            replace(
                offer_of(PEER), sections={"delta": Packet("none", 1250, memoryview(bytes(5000)))}
            )
        )
        driven.done(driven.jobs(Inspect)[0])
        driven.beat(PEER, latency=1)
        for _ in range(FEWEST):
            driven.engine.state.latency.add(1)
        driven.tick(0.0)
        driven.done(driven.merge())
        periods.append(driven.sent(Seal)[0][1].period)
    assert periods == [50, 500]


def test_a_run_with_a_fixed_period_tells_none() -> None:
    driven = DrivenEngine(sync_every=20)
    driven.beat()
    assert sealed_here(driven, 40).period == 0


@pytest.mark.parametrize(("asked", "chosen"), [(40, 40), (1, 1), (0, 20), (10**12, 512), (20, 20)])
def test_a_seal_sets_the_period_within_the_limits(asked: int, chosen: int) -> None:
    driven = automatic(seals=False)
    driven.receive(replace(seal_of(BASE), period=asked))
    (advance,) = driven.jobs(Advance)
    driven.done(advance)
    assert period(driven) == chosen
    changes = driven.events("period")
    assert len(changes) == (chosen != 20)
    assert all(event.facts["sync_every"] == chosen for event in changes)


def test_a_whole_anchor_sets_the_period() -> None:
    driven = automatic(seals=False)
    driven.beat(PEER, grown(BASE))
    driven.receive(replace(state_of(grown(BASE)), period=50))
    (install,) = driven.jobs(Install)
    driven.done(install)
    assert period(driven) == 50


def test_no_peer_changes_a_fixed_period() -> None:
    driven = among_peers(sync_every=20)
    driven.receive(replace(seal_of(BASE), period=40))
    (advance,) = driven.jobs(Advance)
    driven.done(advance)
    assert period(driven) == 20


def test_after_a_change_the_next_turn_is_a_whole_new_period_away() -> None:
    """Not after the snapshot: turns are staggered anew from the step of the change."""
    driven = automatic(seals=False)
    offer = driven.offer(20)
    driven.step(5)
    driven.receive(replace(seal_of(BASE, offer.entry), period=30))
    (advance,) = driven.jobs(Advance)
    driven.done(advance)
    driven.apply()
    driven.step(29)
    assert driven.engine.boundaries.fragments_to_copy() == []
    driven.step(1)
    assert driven.engine.boundaries.fragments_to_copy() == [0]


def test_a_whole_anchor_that_a_peer_gets_tells_the_period() -> None:
    driven = automatic()
    driven.engine.state.set_period(33)
    driven.receive(Want(PEER, 0, b""))
    (export,) = driven.jobs(Export)
    driven.done(export)
    assert [state.period for _, state in driven.sent(State)] == [33]


@pytest.mark.parametrize(("auto", "chosen"), [(AutoPeriod(), 44), (None, 20)])
def test_a_checkpoint_goes_on_with_its_period(auto: AutoPeriod | None, chosen: int) -> None:
    policies = Policies(schedule=Schedule(sync_every=20), auto=auto)
    engine = Engine(ME, "", (), policies, 0.0)
    engine.begin(0.0, GENESIS, (b"",), Resumed(Totals(4, 40), (), period=44))
    assert engine.state.schedule.sync_every == chosen


def rounds_that_take(driven: DrivenEngine, steps: int, count: int) -> None:
    """Rounds whose anchors come so many inner steps after the snapshot."""
    for _ in range(count):
        offer = driven.offer(period(driven))
        driven.step(steps)
        driven.receive(seal_of(driven.lineage, offer.entry))
        (advance,) = driven.jobs(Advance)
        driven.done(advance)
        driven.apply()


def test_beats_tell_how_long_rounds_take() -> None:
    driven = automatic(seals=False)
    rounds_that_take(driven, 7, FEWEST - 1)
    assert driven.engine.beats.make().latency == 0
    rounds_that_take(driven, 7, 1)
    assert driven.engine.beats.make().latency == 7
    driven.engine.state.set_period(9)
    assert driven.engine.beats.make().latency == 7, "a change does not make it unknown"


@pytest.mark.parametrize(("steps", "late"), [(4, 0), (19, 0), (20, 1), (25, 1)])
def test_rounds_that_are_too_late_to_gain_much_are_told_of_once(steps: int, late: int) -> None:
    driven = automatic(seals=False)
    rounds_that_take(driven, steps, LAST)
    events = driven.events("late")
    assert len(events) == late
    assert all(event.facts == {"latency": steps, "sync_every": 20} for event in events)


@pytest.mark.parametrize("fragments", [1, 4])
def test_late_rounds_are_not_told_of_while_a_run_begins(fragments: int) -> None:
    """The first rounds of each fragment wait for learners that compile their models."""
    driven = DrivenEngine(fragments=fragments, sync_every=30)
    state = driven.engine.state
    for steps, count in ((30, LAST * fragments - 5), (4, LAST), (30, LAST)):
        assert driven.events("late") == []
        for i in range(count):
            state.measured(i % fragments, state.me, state.totals.step - steps)
    assert len(driven.events("late")) == 1


@pytest.mark.parametrize("now", [1, 100])
def test_while_the_period_is_not_right_yet_late_rounds_are_not_told_of(now: int) -> None:
    """With the right one, rounds may take less time."""
    driven = automatic(seals=False)
    driven.engine.state.set_period(now)
    rounds_that_take(driven, 25, LAST)
    assert driven.events("late") == []
    driven.engine.state.set_period(25)
    rounds_that_take(driven, 25, 8)
    assert len(driven.events("late")) == 1


@pytest.mark.parametrize(("now", "due"), [(19, ()), (20, ("exp_avg",))])
def test_moments_wait_for_a_period_that_is_long_enough(now: int, due: tuple[str, ...]) -> None:
    moment = Moment(name="exp_avg", order="first", decay=0.9)
    policies = Policies(
        schedule=Schedule(sync_every=now),
        auto=AutoPeriod(),
        moments=(moment,),
        periods=MomentSchedule(first=3, second=6),
        least_period=20,
    )
    state = EngineState(ME, "", (), policies)
    assert state.moments_due(0, 3) == due
    progress = Progress(ME, 0, Lineage.fresh(GENESIS), 0)
    progress.lineage = replace(progress.lineage, version=2)
    assert state.moments_owed(progress) == due
