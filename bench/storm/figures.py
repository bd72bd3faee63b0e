"""The figures of a storm, from its journal alone. Pure functions: a log in, figures out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import mean, median

from bench.storm.figure import Figure, none_of, spread
from bench.storm.log import NEVER, Fault, Log, Seal
from bench.storm.spans import Spans, common, count, length, without

SETTLING_S = 5.0  # for so long after a fault, others may still feel its effects
FEWEST_STEPS = 100  # fewer give no reliable pace
# How much calm to look at before and after a span of trouble; or as long as the span, if longer.
AROUND_S = 20.0
BACK_S = 2.0


def storm_figures(log: Log) -> Iterator[Figure]:
    yield from throughput(log)
    yield from participation(log)
    yield from lateness(log)
    yield from comebacks(log)
    yield from faults(log)


# ── throughput ────────────────────────────────────────────────────────────────────────────────────


def pace(log: Log, who: str, spans: Spans) -> float | None:
    """Steps per second of that learner in these spans; None if there are too few steps to tell."""
    steps = count(log.step_times[who], spans)
    return steps / length(spans) if steps >= FEWEST_STEPS else None


def windows(log: Log) -> dict[str, Spans]:
    """The warm-up; the time without faults after it; and the storm: all the rest until the end."""
    begin, storm = log.phases.get("warm-up", log.began), log.phases.get("storm", log.ended)
    wide = [(a, b + SETTLING_S) for a, b in log.troubled]
    after: Spans = [(storm, log.ended)]
    warm_up = without([(begin, storm)], log.troubled)
    return {"warm-up": warm_up, "calm": without(after, wide), "storm": common(after, wide)}


def throughput(log: Log) -> Iterator[Figure]:
    """Steps of the survivors: learners without a fault of their own while another has one."""
    spans, ratios = windows(log), []
    for who in log.learners:
        stormy = common(log.live[who], spans["storm"])
        floor = pace(log, who, common(log.live[who], spans["calm"]))
        # Enough steps were due: a learner that took none of them counts, too.
        if floor and floor * length(stormy) >= FEWEST_STEPS:
            ratios.append(count(log.step_times[who], stormy) / length(stormy) / floor)
    stormy_s, calm_s = length(spans["storm"]), length(spans["calm"])
    notes = f"by learner; {stormy_s:.0f} s of storm, {calm_s:.0f} s of calm"
    yield spread(
        "survivors' steps/s, storm over fault-free windows", "", ratios, goal=">= 0.99", notes=notes
    )
    kept = list(steps_around_trouble(log))
    expected, taken = sum(e for e, _ in kept), sum(t for _, t in kept)
    found = [t / e for e, t in kept]
    error = (
        math.sqrt(sum((t - e * taken / expected) ** 2 for e, t in kept)) / expected if kept else 0.0
    )
    what = "survivors' steps, trouble over the calm around it"
    notes = f"by span of trouble; value: all of them, standard error {error:.2g}"
    yield spread(what, "", found, goal=">= 0.99", notes=notes, value=lambda _: taken / expected)


def steps_around_trouble(log: Log) -> Iterator[tuple[float, int]]:
    """For each span of trouble, the expected and the actual steps of its survivors.

    The expected steps follow from each survivor's own pace in the calm around the span, so a
    machine that is faster in one minute than in another does not change the ratio."""
    spans = windows(log)
    calm = [*spans["warm-up"], *spans["calm"]]
    for begin, end in spans["storm"]:
        reach = max(end - begin, AROUND_S)
        expected, taken = 0.0, 0
        for who in log.learners:
            mine, around = common(log.live[who], [(begin, end)]), common(log.live[who], calm)
            usual = pace(log, who, common(around, [(begin - reach, end + reach)]))
            if usual:
                expected += usual * length(mine)
                taken += count(log.step_times[who], mine)
        if expected:
            yield expected, taken


# ── participation ─────────────────────────────────────────────────────────────────────────────────


def participation(log: Log) -> Iterator[Figure]:
    """Of the learners that are live when a round is sealed, the share that is in it."""
    stormy = [
        seal for seal in log.seals if log.phases.get("storm", log.began) <= seal.t < log.ended
    ]
    at_seal = [
        share for seal in stormy if (share := _share(log, seal, [(seal.t, seal.t)])) is not None
    ]
    known = [
        share
        for before, seal in pairwise(log.seals)
        if seal in stormy and (share := _share(log, seal, [(before.t, seal.t)])) is not None
    ]
    notes = "mean over seals; live = joined, and no fault upon it"
    yield spread(
        "live learners that are in a seal, live since the last seal",
        "",
        known,
        goal=">= 0.95",
        notes=notes,
        value=mean,
    )
    yield spread(
        "live learners that are in a seal, live at its moment",
        "",
        at_seal,
        goal=">= 0.95",
        notes=notes,
        value=mean,
    )
    reasons = Counter(seal.reason for seal in stormy)
    told = ", ".join(f"{reason} {n}" for reason, n in sorted(reasons.items()))
    yield spread("members of a seal", "", [float(len(seal.members)) for seal in stormy], notes=told)


def _share(log: Log, seal: Seal, during: Spans) -> float | None:
    ((begin, end),) = during
    live = [
        who
        for who, spans in log.live.items()
        if any(a <= begin and end < b for a, b in spans)  # all the time
    ]
    return sum(who in seal.members for who in live) / len(live) if live else None


# ── lateness ──────────────────────────────────────────────────────────────────────────────────────


def interval(log: Log) -> float | None:
    """Seconds between seals where nothing is wrong."""
    calm = windows(log)
    free = [*calm["warm-up"], *calm["calm"]]
    gaps = [b.t - a.t for a, b in pairwise(log.seals) if any(s <= a.t and b.t < e for s, e in free)]
    return median(gaps) if gaps else None


def delay(log: Log, fault: Fault, usual_s: float) -> float | None:
    """How much later than usual the first seal after the begin of a fault is, in usual intervals; 0
    if it is in time."""
    before = [seal.t for seal in log.seals if seal.t <= fault.begin]
    after = [seal.t for seal in log.seals if seal.t > fault.begin]
    if not before or (not after and log.ended - before[-1] < 2 * usual_s):
        return None  # the run ended first
    return max(0.0, ((after[0] if after else log.ended) - before[-1] - usual_s) / usual_s)


def lateness(log: Log) -> Iterator[Figure]:
    usual_s = interval(log)
    if usual_s is None:
        return
    late = [
        (fault.kind, d) for fault in log.faults if (d := delay(log, fault, usual_s)) is not None
    ]
    notes = f"in usual intervals of {usual_s:.2f} s"
    yield spread(
        "survivors' next seal after a fault, how late",
        "rounds",
        [d for _, d in late],
        goal="<= 1",
        notes=notes,
    )
    for kind in sorted({kind for kind, _ in late}):
        yield spread(f"  after {kind}", "rounds", [d for k, d in late if k == kind])
    more = [float(d > 1) for _, d in late]
    yield spread("  share of faults with more than one round", "", more, notes="mean", value=mean)
    gaps = [(b.t - a.t) / usual_s for a, b in pairwise(log.seals)]
    yield spread("time between seals", "rounds", gaps, notes=f"all of the run; {notes}")


# ── coming back ───────────────────────────────────────────────────────────────────────────────────


def comebacks(log: Log) -> Iterator[Figure]:
    again = [p for p in log.processes if p.life > 1 and p.born < NEVER]
    started = [p.born - p.ordered for p in again]
    yield spread(
        "process start: order to the learner's first line",
        "s",
        started,
        notes="a fork, torch is imported",
    )
    joined = [p.ready - p.born for p in again if p.ready < NEVER]
    lost = sum(p.ready == NEVER and min(p.ended, log.ended) - p.born > BACK_S for p in again)
    notes = f"besides process start; {lost} never; {sum(p.alone for p in again)} alone"
    yield spread("killed: first line to joined", "s", joined, goal=f"<= {BACK_S:g}", notes=notes)
    yield spread("killed: first line to its first seal as a member", "s", _first_seals(log))
    for kind in sorted({f.kind for f in log.faults} - {"kill"}):
        back = [
            _next_adoption(log, fault) - fault.end for fault in log.faults if fault.kind == kind
        ]
        reached = [seconds for seconds in back if seconds < NEVER]
        notes = f"{len(back) - len(reached)} never" if len(back) > len(reached) else ""
        yield spread(f"{kind}: end of it to the next anchor adopted", "s", reached, notes=notes)


def _first_seals(log: Log) -> list[float]:
    found = []
    for p in log.processes:
        mine = [s.t for s in log.seals if p.who in s.members and p.ready < s.t < p.ended]
        found += [mine[0] - p.born] if p.life > 1 and mine else []
    return found


def _next_adoption(log: Log, fault: Fault) -> float:
    later = (a.t for a in log.adoptions if a.who == fault.who and a.t > fault.end)
    return next(later, NEVER)


# ── faults ────────────────────────────────────────────────────────────────────────────────────────


def faults(log: Log) -> Iterator[Figure]:
    for kind, n in sorted(Counter(fault.kind for fault in log.faults).items()):
        seen = [
            float(fault.seen) for fault in log.faults if fault.kind == kind and fault.end < NEVER
        ]
        yield spread(
            f"faults, {kind}: {n}, seen to have happened", "", seen, goal=">= 1", value=_least
        )
    unbidden = [
        f"{p.who}{p.life} with {p.status}" for p in log.processes if p.ended < NEVER and not p.meant
    ]
    yield none_of("learners that ended unbidden", unbidden, len(log.processes))


def _least(values: Sequence[float]) -> float:
    return min(values)
