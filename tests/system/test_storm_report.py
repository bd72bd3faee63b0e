"""The figures of the storm bench, from journals that are small enough to compute the answers by
hand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from bench.storm import spans
from bench.storm.correctness import (
    disagreements,
    loss_rises,
    loss_windows,
    went_back,
    wrong_adoptions,
)
from bench.storm.faults import KINDS, LONGEST_S, SHORTEST_S, plan
from bench.storm.figure import Figure, spread, table
from bench.storm.figures import delay, interval, storm_figures, windows
from bench.storm.growth import settled_part, slope, slope_error, soak_figures
from bench.storm.journal import Journal, Line, read
from bench.storm.log import Log
from bench.storm.report import ledger_gaps
from bench.storm.splits import one_lineage, partition_figures


def say(t: float, event: str, who: str = "", life: int = 1, **facts: Any) -> Line:
    return {"t": t, "event": event, **({"who": who, "life": life} if who else {}), **facts}


def birth(t: float, who: str, life: int = 1) -> list[Line]:
    """A process: ordered at t, its first line half a second later, joined at t + 1."""
    names = {"start": 0.0, "born": 0.5, "ready": 1.0}
    return [say(t + later, event, who, life, step_tokens=1) for event, later in names.items()]


def adoption(
    t: float, who: str, version: int, members: str = "", life: int = 1, **facts: Any
) -> Line:
    named = [{"name": name} for name in members]
    own = {
        "fragment": 0,
        "tokens": 100 * version,
        "version": version,
        "digest": f"d{version}",
        "reason": "all_present",
    }
    return say(t, "round", who, life, **{**own, "members": named, **facts})


def steps(
    who: str, begin: float, end: float, per_s: float, life: int = 1, loss: float = 1.0
) -> list[Line]:
    n = round((end - begin) * per_s)
    return [say(begin + (i + 0.5) / per_s, "step", who, life, loss=loss) for i in range(n)]


def log(*parts: Iterable[Line] | Line) -> Log:
    lines = [line for part in parts for line in ([part] if isinstance(part, dict) else part)]
    return Log(sorted(lines, key=lambda line: line["t"]))


def phase(t: float, name: str, **facts: Any) -> Line:
    return say(t, "phase", phase=name, **facts)


def strike(id: int, kind: str, who: str, begin: float, end: float, seen: bool = True) -> list[Line]:
    return [
        say(begin, "strike", who, id=id, kind=kind),
        say(end, "relief", who, id=id, kind=kind, seen=seen),
    ]


def figure(found: Iterable[Figure], start: str) -> Figure:
    (one,) = [figure for figure in found if figure.what.startswith(start)]
    return one


# ── sets of moments ───────────────────────────────────────────────────────────────────────────────


def test_spans_are_sets_of_moments() -> None:
    assert spans.union([(3, 4), (0, 2), (1, 3), (5, 5)]) == [(0, 4)]
    assert spans.without([(0, 10)], [(2, 3), (5, 20)]) == [(0, 2), (3, 5)]
    assert spans.common([(0, 4), (6, 9)], [(3, 7)]) == [(3, 4), (6, 7)]
    assert spans.length([(0, 4), (6, 9)]) == 7
    assert spans.count([0.0, 1.0, 2.0, 3.0], [(1, 3), (3, 4)]) == 3


# ── the weather ───────────────────────────────────────────────────────────────────────────────────


def test_the_same_seed_makes_the_same_weather() -> None:
    assert plan(3, 60, 120) == plan(3, 60, 120) != plan(4, 60, 120)


def test_weather_is_as_bad_as_it_was_ordered() -> None:
    faults = plan(0, 600, 120)
    assert len(faults) == pytest.approx(1200, rel=0.1)
    assert {fault.kind for fault in faults} == set(KINDS)
    assert all(SHORTEST_S <= fault.lasts_s <= LONGEST_S and 0 <= fault.pick < 1 for fault in faults)
    assert [fault.at_s for fault in faults] == sorted(fault.at_s for fault in faults)
    assert plan(0, 600, 0) == []


# ── a storm ───────────────────────────────────────────────────────────────────────────────────────


def storm() -> Log:
    """Three learners seal every 10 s from 10 s on. At 100 s b is stopped for 20 s. At 150 s c is
    killed, and comes back in a second. While b is stopped, a and c take 19 steps a second, else 20.
    """
    seals = [t for t in range(10, 200, 10) if t not in (110,)]
    return log(
        say(0, "run"),
        *(birth(0, who) for who in "abc"),
        phase(1, "warm-up"),
        phase(60, "storm"),
        *(
            steps(who, a, b, rate)
            for who in "ac"
            for a, b, rate in ((1, 100, 20), (100, 125, 19), (125, 150, 20))
        ),
        steps("a", 150, 200, 20),
        steps("b", 1, 100, 20),
        steps("b", 120, 200, 20),
        (adoption(t, "a", t // 10, "ac" if t == 120 else "abc") for t in seals),
        (adoption(t, "b", t // 10, "abc") for t in seals if t != 120),
        adoption(120.5, "b", 12),
        strike(1, "stop", "b", 100, 120),
        strike(2, "kill", "c", 150.5, 150.5),
        say(150.5, "ended", "c", status=-9, meant=True),
        birth(151, "c", 2),
        steps("c", 152, 200, 20, life=2),
        phase(200, "end"),
    )


def test_who_is_live() -> None:
    live = storm().live
    assert live == {"a": [(1, 200)], "b": [(1, 100), (120, 200)], "c": [(1, 150.5), (152, 200)]}


def test_windows_tell_storm_from_calm() -> None:
    assert windows(storm()) == {
        "warm-up": [(1, 60)],
        "calm": [(60, 100), (125, 150.5), (157, 200)],
        "storm": [(100, 125), (150.5, 157)],
    }


def test_throughput_of_survivors() -> None:
    found = figure(storm_figures(storm()), "survivors' steps/s, storm over fault-free")
    # a: 25 s of 19/s and 6.5 s of 20/s; b: 11.5 s of 20/s; c: 25 s of 19/s and 5 s of 20/s
    ratios = [(25 * 19 + 5 * 20) / 30 / 20, (25 * 19 + 6.5 * 20) / 31.5 / 20, 1.0]
    assert (found.n, found.met) == (3, False)
    assert (found.min, found.median, found.max) == pytest.approx(ratios, abs=0.003)


def test_a_survivor_that_stands_still_in_the_storm_counts() -> None:
    still = log(
        say(0, "run"),
        *(birth(0, who) for who in "ab"),
        phase(1, "warm-up"),
        phase(10, "storm"),
        *(strike(i, "stop", "b", t, t + 5) for i, t in enumerate((50, 60))),
        steps("a", 1, 50, 20),
        steps("a", 70, 100, 20),
        steps("b", 1, 100, 20),
        phase(100, "end"),
    )
    found = figure(storm_figures(still), "survivors' steps/s, storm over fault-free")
    assert (found.min, found.met) == (0.0, False)


def test_throughput_beside_the_calm_around_it() -> None:
    """A machine that becomes slower gradually does not count."""
    found = figure(storm_figures(storm()), "survivors' steps, trouble")
    # from 100 s to 125 s: a and c at 19/s, b 5 s at 20/s; from 150.5 s to 157 s: a and b, and c
    # from 152 s on
    expected, taken = (25 + 25 + 5) * 20 + (6.5 + 6.5 + 5) * 20, 50 * 19 + 5 * 20 + 18 * 20
    assert found.value == pytest.approx(taken / expected, abs=0.002)
    assert (found.n, found.met) == (2, False)
    assert (found.min, found.max) == pytest.approx((1050 / 1100, 1.0), abs=0.005)


def test_the_next_seal_after_a_fault() -> None:
    story = storm()
    assert interval(story) == 10
    stop, kill = story.faults
    assert delay(story, stop, 10.0) == 1.0  # at 120 s, not at 110 s
    assert delay(story, kill, 10.0) == 0.0
    assert figure(storm_figures(story), "survivors' next seal").met is True


def test_participation_counts_who_could_take_part() -> None:
    found = list(storm_figures(storm()))
    since_last = figure(found, "live learners that are in a seal, live since")
    assert (since_last.value, since_last.n) == (1.0, 13)
    births = (birth(0, who) for who in "abcd")
    missing = log(
        say(0, "run"), *births, phase(0, "storm"), adoption(5, "a", 1, "abc"), phase(9, "end")
    )
    assert figure(storm_figures(missing), "live learners that are in a seal, live at").value == 0.75


def test_the_way_back() -> None:
    found = list(storm_figures(storm()))
    assert figure(found, "process start").value == 0.5
    assert figure(found, "killed: first line to joined").value == 0.5
    assert figure(found, "killed: first line to its first seal").value == 160 - 151.5
    assert figure(found, "stop: end of it").value == 0.5


def test_faults_must_have_been_seen() -> None:
    blind = log(
        say(0, "run"),
        birth(0, "a"),
        strike(1, "stop", "a", 2, 3),
        strike(2, "stop", "a", 4, 5, seen=False),
    )
    found = figure(storm_figures(blind), "faults, stop")
    assert (found.value, found.met, found.n) == (0.0, False, 2)


def test_who_ends_unbidden_is_named() -> None:
    fallen = log(say(0, "run"), birth(0, "a"), say(3, "ended", "a", status=1, meant=False))
    found = figure(storm_figures(fallen), "learners that ended unbidden")
    assert (found.value, found.met, found.notes) == (1.0, False, "a1 with 1")


# ── what was adopted ──────────────────────────────────────────────────────────────────────────────


def course(rejoined_at: float) -> Log:
    """The losses of a and b fall from 4 to 2. b dies at 40 s; its second life begins with that
    loss."""
    return log(
        say(0, "run"),
        *(birth(0, who) for who in "ab"),
        *(
            steps(who, 1 + t, 2 + t, 8, loss=max(2.0, 4.0 - 0.1 * t))
            for who in "ab"
            for t in range(39)
        ),
        steps("a", 40, 60, 8, loss=2.0),
        say(40, "ended", "b", status=-9, meant=True),
        birth(40, "b", 2),
        steps("b", 41, 60, 8, life=2, loss=rejoined_at),
    )


def test_weights_of_a_random_model_are_seen() -> None:
    assert wrong_adoptions(course(rejoined_at=2.2)) == []
    assert wrong_adoptions(course(rejoined_at=4.0)) == ["b2 at 41.9 s, loss 4.00"]


def test_who_begins_alone_may_be_random_until_its_first_anchor() -> None:
    alone = course(rejoined_at=4.0)
    met = [say(40.9, "alone", "b", 2), adoption(59.9, "b", 9, life=2, reason="pulled")]
    assert wrong_adoptions(log(alone.lines, met)) == []


def test_who_slept_while_the_others_learned_is_not_to_blame() -> None:
    slept = log(
        say(0, "run"),
        *(birth(0, who) for who in "ab"),
        *(steps("a", 1 + t, 2 + t, 8, loss=max(2.0, 4.0 - 0.2 * t)) for t in range(39)),
        *(steps("b", 1 + t, 2 + t, 8, loss=4.0) for t in (0, 1, 37, 38)),
    )
    assert wrong_adoptions(slept) == []


def test_lineages_only_grow() -> None:
    assert (
        went_back(log(adoption(1, "a", 1), adoption(2, "a", 2), adoption(3, "a", 1, life=2))) == []
    )
    assert went_back(log(adoption(1, "a", 2), adoption(2, "a", 1))) == ["a1 at version 1"]


def test_rivals_must_come_together() -> None:
    rivals = [adoption(1, "a", 1), adoption(1, "b", 1, digest="x1")]
    parted = [*rivals, adoption(2, "a", 2), adoption(2, "b", 2, digest="x2")]
    assert disagreements(log(rivals)) == []  # neither has adopted anything later
    assert len(disagreements(log(parted))) == 1
    assert disagreements(log(parted, adoption(3, "a", 3), adoption(3, "b", 3))) == []


def test_losses_must_fall() -> None:
    rounds = [adoption(t, "a", t) for t in range(1, 32)]
    falls = [2.0, 1.5, 1.0]
    parts = [steps("a", 1 + 10 * i, 11 + 10 * i, 8, loss=loss) for i, loss in enumerate(falls)]
    assert [(mean, n) for mean, _, n in loss_windows(log(rounds, *parts))] == [
        (2.0, 80),
        (1.5, 80),
        (1.0, 80),
    ]
    assert loss_rises(log(rounds, *parts))[0] == []
    assert [
        rise[:8] for rise in loss_rises(log(rounds, *parts, steps("a", 21, 31, 8, loss=3.0)))[0]
    ] == ["window 3"]


def test_every_event_is_in_the_ledger() -> None:
    told = log(adoption(1, "a", 1), adoption(2, "a", 2), adoption(2, "b", 2))
    assert ledger_gaps(told, {"a": {"d1", "d2"}, "b": {"d2", "d3"}}) == []
    assert ledger_gaps(told, {"a": {"d1"}, "b": {"d2"}}) == ["a at version 2"]


# ── a partition ───────────────────────────────────────────────────────────────────────────────────


def test_a_partition() -> None:
    split = log(
        say(0, "run"),
        *(birth(0, who) for who in "abcd"),
        (adoption(5, who, 1, "abcd") for who in "abcd"),
        phase(10, "partition", sides=["ab", "cd"]),
        (adoption(t, who, t // 10, "ab") for t in (20, 30) for who in "ab"),
        (adoption(25, who, 2, "cd", digest="x2") for who in "cd"),
        say(40, "evicted", "a"),
        phase(70, "healed"),
        adoption(
            71,
            "c",
            3,
            reason="pulled",
            superseded=["c", "d"],
            dropped_tokens=7,
            superseded_tokens=100,
        ),
        adoption(72, "d", 3, reason="pulled", superseded=["c", "d"]),
        phase(90, "end"),
    )
    assert one_lineage(split, 70) == 72
    found = list(partition_figures(split))
    assert figure(found, "seals of a+b").value == 2
    assert figure(found, "seals of c+d").value == 1
    assert figure(found, "  a+b: cut to an eviction").value == 30
    assert figure(found, "end of the partition").value == 2
    assert figure(found, "tokens that a+b merged").value == 200
    assert figure(found, "tokens superseded").value == 100
    assert figure(found, "  as the ledgers say").value == 100
    assert figure(found, "tokens dropped").value == 7


# ── a soak ────────────────────────────────────────────────────────────────────────────────────────


def samples(per_hour_kb: float, threads: int = 5) -> list[Line]:
    """A sample every 5 s for an hour; the first third is far above the rest."""
    warm = [5000.0] * 240 + [0.0] * 480
    others = [
        {
            "anon_kb": 9,
            "threads": threads + 5 + 3 * (i > 700),
            "names": {"event_engine": 5 + 2 * (i > 700)},
        }
        for i in range(720)
    ]
    return [
        say(
            5.0 * i,
            "sample",
            "a",
            rss_kb=kb + 1000 + per_hour_kb * i / 720,
            fds=20 + i / 360,
            **others[i],
        )
        for i, kb in enumerate(warm)
    ]


def test_slopes_leave_out_the_first_third() -> None:
    lines = settled_part(samples(2048.0))
    assert len(lines) == 480
    assert slope(lines, "rss_kb") == pytest.approx(2048.0)
    assert slope_error(lines, "rss_kb") == pytest.approx(0.0, abs=1e-3)


def test_a_soak() -> None:
    ends = [say(3700, "ending", "a", by="Ctrl-C", status=1, took_s=0.5, left="")]
    story = log(
        say(0, "run"), birth(0, "a"), samples(2048.0), ends, say(3701, "orphans", pids=[77])
    )
    found = list(soak_figures(story))
    assert figure(found, "slope of resident").value == pytest.approx(2.0)
    assert figure(found, "slope of open files").value == pytest.approx(2.0)
    assert (figure(found, "growth of threads").value, figure(found, "growth of threads").met) == (
        1.0,
        False,
    )
    assert figure(found, "growth of gRPC's own").value == 2
    assert figure(found, "to the end of the process after Ctrl-C").value == 0.5
    assert (
        figure(found, "processes left behind").met,
        figure(found, "processes left behind").notes,
    ) == (False, "77")


# ── the rest ──────────────────────────────────────────────────────────────────────────────────────


def test_figures() -> None:
    assert spread("", "", [3.0, 1.0, 2.0], goal="<= 2").met is True
    assert spread("", "", [3.0, 1.0, 2.0], goal="<= 2", value=max).met is False
    nothing = spread("nothing", "", [], goal="<= 2")
    assert (nothing.value, nothing.met) == (None, None)
    assert "NO" in table([spread("", "", [3.0], goal="<= 2"), nothing])


def test_a_torn_line_is_passed_over(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl", who="a")
    journal.say("born", pid=1)
    journal.path.open("ab").write(b'{"t": 5, "ev')
    (line,) = read(journal.path)
    assert (line["event"], line["who"], line["pid"]) == ("born", "a", 1)
