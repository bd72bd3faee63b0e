"""Real learners whose clocks leap: one is set back between two starts, or a machine was
suspended."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import pytest

from mend_optim import MendOptimizer, Timing
from mend_optim.runtime import clock
from tests.support.checkpoints import me
from tests.support.learners import (
    LOCKSTEP,
    LOOPBACK,
    TIMING,
    Watch,
    cluster,
    descent,
    drive,
    read,
    settle,
    start,
    step,
    until,
)

HASTY = Timing(beat_s=0.2, join_timeout_s=1.0, round_timeout_s=30.0, evict_after_s=30.0)
OPTIONS: dict[str, Any] = {**LOCKSTEP, "listen": LOOPBACK, "timing": TIMING}


def turn_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, the clock that new learners read is an hour behind."""
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() - 3600 * 10**9)


def test_a_learner_that_left_comes_back_with_its_clock_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with cluster(descent(1.0), descent(1.0), **LOCKSTEP) as (a, b):
        drive([a, b], 3, lambda i, s: 1.0)
        former = me(b)
        b.close()
        turn_back(monkeypatch)
        watch = Watch()
        peers = [a.status().address]
        again = MendOptimizer(descent(9.0), name="b", peers=peers, on_event=watch, **OPTIONS)
        with closing(again):
            start([a, again])
            assert me(again) > former
            (event,) = watch.until("renewed")
            assert event.facts["before"] < former.incarnation < event.facts["after"]
            drive([a, again], 3, lambda i, s: 1.0)
            settle([a, again])
            assert read(a) == read(again)
            records = [record for record in a.status().rounds if record.members]
            assert {m.incarnation for m in records[-1].members if m.name == "b"} == {
                me(again).incarnation
            }


def test_a_learner_goes_beyond_the_incarnations_of_its_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is nobody who could tell it: all were killed."""
    with cluster(descent(1.0), descent(1.0), **LOCKSTEP) as (a, b):
        drive([a, b], 3, lambda i, s: 1.0)
        former, saved = me(b), b.state_dict()
    turn_back(monkeypatch)
    with closing(MendOptimizer(descent(1.0), name="b", **OPTIONS)) as again:
        assert me(again) < former
        again.load_state_dict(saved)
        assert me(again) > former
    with closing(MendOptimizer(descent(1.0), name="c", **OPTIONS)) as other:
        named = me(other)
        other.load_state_dict(saved)
        assert me(other) == named


def test_two_live_processes_of_one_name_both_hear_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one with the later start trains on with the others. The other one trains alone."""
    heard, told, seen = Watch(), Watch(), Watch()
    each = [{"on_event": seen}, {"on_event": heard}]
    with cluster(descent(1.0), descent(1.0), each=each, **LOCKSTEP) as (a, b):
        living = me(b)
        turn_back(monkeypatch)
        options = {**OPTIONS, "timing": HASTY, "peers": [a.status().address]}
        twin = MendOptimizer(descent(1.0), name="b", on_event=told, **options)
        with closing(twin):
            step(twin, 1.0)
            reasons = {w.until("refused")[0].facts["reason"] for w in (heard, told, seen)}
            (reason,) = reasons
            assert "'b'" in reason
            assert living.started in reason
            assert me(twin).started in reason
            assert "give each a name of its own" in reason
            assert me(twin) < living
            drive([a, b], 3, lambda i, s: 1.0)
            settle([a, b])
            assert twin.status().step == 1


def test_learners_of_a_suspended_machine_notice_it_and_train_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python's own clock stands still meanwhile, and so do the timers of the network loop."""
    heard = Watch()
    with cluster(descent(1.0), descent(1.0), each=[{"on_event": heard}, {}], **LOCKSTEP) as (a, b):
        drive([a, b], 3, lambda i, s: 1.0)
        now = clock.now
        resumed_at = now() + 3600.0
        monkeypatch.setattr(clock, "now", lambda: now() + 3600.0)
        for optimizer in (a, b):
            assert optimizer._learner
            stops = optimizer._learner.engine.state.stops
            # Asked of an earlier time, it tells the last stop that the network loop has seen.
            until(optimizer, lambda stops=stops: stops.last(0.0) >= resumed_at)
        drive([a, b], 3, lambda i, s: 1.0)
        settle([a, b])
        assert read(a) == read(b)
        assert not heard.of("evicted")
        assert not heard.of("suspected")
