"""The report of the bench "learning": each run beside training alone and beside data parallel of
its own seed.

Every arm is shown at the learning rate that serves it best in that cell, among those that were
tried: the one with the least loss, averaged over the seeds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev

from bench.cluster.runs import (
    ALONE,
    AUTO,
    PARALLEL,
    QUARTERS,
    Cell,
    Outcome,
    Record,
    runs_freely,
)
from bench.result import Result, compared

#: The arm that has goals.
NEW = "new"
#: Gaps closed with τ ≤ 1, by members and H.
GOALS = {(2, 2): 0.70, (2, 20): 0.38, (4, 2): 0.65, (4, 20): 0.30}
LATE, LATE_GOAL = 5, 0.20


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The part of a run's settings that all arms share."""

    task: str
    steps: int
    batch: int

    def __str__(self) -> str:
        return f"{self.task}, {self.steps} steps, batch {self.batch}"


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The outcomes of an arm at its best rate, by seed."""

    rate: float
    outcomes: dict[int, Outcome]

    @property
    def loss(self) -> float:
        return mean(outcome.held_out[-1] for outcome in self.outcomes.values())


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """An arm in a cell, beside its baselines. `parallel` is None with one learner, since data
    parallel is then the same as alone."""

    setting: Setting
    cell: Cell
    arm: str
    own: Tuned
    alone: Tuned
    parallel: Tuned | None

    @property
    def seeds(self) -> list[int]:
        """The seeds of which all runs are there."""
        seeds = self.own.outcomes.keys() & self.alone.outcomes.keys()
        return sorted(seeds & self.parallel.outcomes.keys() if self.parallel else seeds)

    @property
    def won(self) -> list[float]:
        """Nats by which the arm is better than alone, by seed."""
        return [-excess for excess in self.excess(QUARTERS - 1)]

    @property
    def gaps(self) -> list[float]:
        """Nats by which data parallel is better than alone, by seed."""
        assert self.parallel
        return [
            self.alone.outcomes[seed].held_out[-1] - self.parallel.outcomes[seed].held_out[-1]
            for seed in self.seeds
        ]

    @property
    def closed(self) -> list[float]:
        """The shares of the gap, by seed; empty where data parallel is no better than alone."""
        if self.parallel is None or min(self.gaps) <= 0:
            return []
        return [won / gap for won, gap in zip(self.won, self.gaps, strict=True)]

    def excess(self, quarter: int, *, anchor: bool = False) -> list[float]:
        """Nats by which the arm is worse than alone after that quarter, by seed: the model that a
        user has then, or the anchor."""
        found = []
        for seed in self.seeds:
            outcome = self.own.outcomes[seed]
            losses = outcome.held_out if anchor else outcome.in_hand
            found.append(losses[quarter] - self.alone.outcomes[seed].held_out[quarter])
        return found

    @property
    def place(self) -> str:
        return f"{self.setting}, M {self.cell.members}, {_period_and_late(self.cell)}"


def _period_and_late(cell: Cell) -> str:
    late = "offers late by" if runs_freely(cell.period) else "τ"
    return f"H {cell.period}, {late} {cell.late}{cell.differences}"


def comparisons(records: Iterable[Record]) -> list[Comparison]:
    """Every arm in every cell whose baselines are there."""
    rates: dict[tuple[Setting, str, Cell], dict[float, dict[int, Outcome]]]
    rates = defaultdict(lambda: defaultdict(dict))
    for record in records:
        run = record.run
        setting = Setting(task=run.task, steps=run.steps, batch=run.batch)
        rates[setting, run.arm, run.cell][run.rate][run.seed] = record.outcome
    tuned = {key: _tune(outcomes) for key, outcomes in rates.items()}
    found = []
    for (setting, arm, cell), own in tuned.items():
        alone = tuned.get((setting, ALONE, Cell(members=1, period=0, late=0)))
        baseline = replace(cell, period=0, late=0)
        parallel = tuned.get((setting, PARALLEL, baseline))
        if arm in (ALONE, PARALLEL) or alone is None or (parallel is None and cell.members > 1):
            continue
        comparison = Comparison(
            setting=setting, cell=cell, arm=arm, own=own, alone=alone, parallel=parallel
        )
        if comparison.seeds:
            found.append(comparison)
    return found


def _tune(rates: dict[float, dict[int, Outcome]]) -> Tuned:
    """The best rate among those with most seeds: an unfinished rate is not chosen by its luck."""
    most = max(map(len, rates.values()))
    complete = [
        Tuned(rate=rate, outcomes=outcomes)
        for rate, outcomes in rates.items()
        if len(outcomes) == most
    ]
    return min(complete, key=lambda tuned: tuned.loss)


# ── lines of the bench ────────────────────────────────────────────────────────────────────────────


def results(records: Sequence[Record]) -> Iterator[Result]:
    """For each cell and arm, the share of the gap that is closed; for the new rules also the worst
    quarter beside alone."""
    for comparison in comparisons(records):
        if comparison.closed:
            yield _closed(comparison)
        if comparison.arm == NEW:
            yield _worst_quarter(comparison)


def _closed(comparison: Comparison) -> Result:
    return compared(
        "learning",
        f"{comparison.place}, {comparison.arm}: gap between alone and data parallel closed",
        "nats",
        comparison.won,
        comparison.gaps,
        goal=goal(comparison.cell) if comparison.arm == NEW else "",
        notes=f"floor = the gap; rate {comparison.own.rate:g}; a pair for each seed",
    )


def goal(cell: Cell) -> str:
    if not runs_freely(cell.period) and cell.late <= 1 and (cell.members, cell.period) in GOALS:
        return f">= {GOALS[cell.members, int(cell.period)]:g}"
    return f">= {LATE_GOAL:g}" if cell.late >= LATE else ">= 0"


def _worst_quarter(comparison: Comparison) -> Result:
    """Held-out losses over alone's after the quarter that has the largest mean ratio, of the model
    that a user has then."""

    def losses(tuned: Tuned, quarter: int) -> list[float]:
        return [tuned.outcomes[seed].in_hand[quarter] for seed in comparison.seeds]

    def ratio(quarter: int) -> float:
        pairs = zip(losses(comparison.own, quarter), losses(comparison.alone, quarter), strict=True)
        return mean(loss / floor for loss, floor in pairs)

    worst = max(range(QUARTERS), key=ratio)
    return compared(
        "learning",
        f"{comparison.place}, {comparison.arm}: held-out loss after the worst quarter over alone's",
        "nats",
        losses(comparison.own, worst),
        losses(comparison.alone, worst),
        goal="<= 1",
        notes=f"quarter {worst + 1}; a pair for each seed",
    )


# ── tables ────────────────────────────────────────────────────────────────────────────────────────


def report(records: Sequence[Record]) -> str:
    """All tables, in Markdown."""
    found = comparisons(records)
    if not found:
        return "No run has both baselines beside it yet."
    return "\n".join([*_tables(found), *_choices(found), *_extremes(found), *_quarters(found)])


def _row(*columns: str) -> str:
    return f"| {' | '.join(columns)} |"


def _header(*columns: str) -> list[str]:
    return [_row(*columns), "|" + "---|" * len(columns)]


def _arms(found: Iterable[Comparison]) -> list[str]:
    return list(dict.fromkeys(comparison.arm for comparison in found))


def _tables(found: Sequence[Comparison]) -> Iterator[str]:
    """For every setting and number of learners, the gap closed by each arm in each cell."""
    groups: dict[tuple[Setting, int], list[Comparison]] = defaultdict(list)
    for comparison in found:
        groups[comparison.setting, comparison.cell.members].append(comparison)
    for (setting, members), group in groups.items():
        arms = _arms(group)
        shown = {(c.cell, c.arm): _shown(c) for c in group}
        yield f"## {setting}, {members} learner{'s' * (members > 1)}\n"
        yield f"{_baselines(group[0])}\n"
        yield from _header("", *arms)
        for cell in dict.fromkeys(c.cell for c in group):
            yield _row(_period_and_late(cell), *(shown.get((cell, arm), "") for arm in arms))
        yield ""


def _baselines(comparison: Comparison) -> str:
    alone, parallel = comparison.alone, comparison.parallel
    text = f"Alone ends at {alone.loss:.4f} nats (rate {alone.rate:g})"
    if parallel is None:
        return f"{text}. Cells show the distance to that."
    return (
        f"{text}, data parallel at {parallel.loss:.4f} (rate {parallel.rate:g}). Cells show the "
        "share of that gap which is closed: mean (min to max, n seeds)."
    )


def _shown(comparison: Comparison) -> str:
    if comparison.closed:
        shares = [100 * share for share in comparison.closed]
        spread = f"({min(shares):.0f} to {max(shares):.0f}, {len(shares)})"
        text = f"{mean(shares):.0f} % {spread}"
    else:
        text = f"{_mnats(comparison.excess(QUARTERS - 1))} to alone"
    if periods := {o.chosen for o in comparison.own.outcomes.values() if o.chosen}:
        text += f", H {min(periods)} to {max(periods)}"
    if outsized := sum(o.outsized for o in comparison.own.outcomes.values()):
        text += f", {outsized} offers refused"
    rate = comparison.own.rate
    return text if rate == comparison.alone.rate else f"{text} at rate {rate:g}"


def _mnats(nats: Sequence[float]) -> str:
    if not all(map(math.isfinite, nats)):
        return "diverged"
    low, high = 1e3 * min(nats), 1e3 * max(nats)
    return f"{1e3 * mean(nats):+.1f} mnat ({low:+.1f} to {high:+.1f})"


def _choices(found: Sequence[Comparison]) -> Iterator[str]:
    """The H that a cluster chose, beside those that were chosen for it on the same link."""
    chosen = [c for c in found if c.cell.period == AUTO]
    rows = [
        _row(choice.place, _period_and_late(fixed.cell), difference)
        for choice in chosen
        for fixed in found
        if _is_fixed(choice, fixed) and (difference := _difference(choice, fixed))
    ]
    if rows:
        yield "## The choice of H\n"
        yield "Points of the gap: mean ± standard error of the paired difference (n seeds).\n"
        yield from _header("choice", "fixed", "choice less fixed")
        yield from rows
        yield ""


def _is_fixed(choice: Comparison, fixed: Comparison) -> bool:
    """Whether this is the same, but for an H that was not chosen by the cluster."""
    alike = (fixed.setting, fixed.arm) == (choice.setting, choice.arm)
    is_free = runs_freely(fixed.cell.period) and fixed.cell.period != AUTO
    return alike and is_free and replace(fixed.cell, period=AUTO) == choice.cell


def _difference(choice: Comparison, fixed: Comparison) -> str:
    """Empty with fewer than two seeds of both."""
    shares = dict(zip(fixed.seeds, fixed.closed, strict=False))
    pairs = zip(choice.seeds, choice.closed, strict=False)
    points = [100 * (share - shares[seed]) for seed, share in pairs if seed in shares]
    if len(points) < 2:
        return ""
    return f"{mean(points):+.1f} ± {stdev(points) / math.sqrt(len(points)):.1f} ({len(points)})"


def _extremes(found: Sequence[Comparison]) -> Iterator[str]:
    yield "## Best and worst cells\n"
    yield from _header("", "best", "worst")
    for arm in _arms(found):
        ranked = sorted(
            (c for c in found if c.arm == arm and c.closed), key=lambda c: mean(c.closed)
        )
        if ranked:
            places = (f"{_shown(c)}: {c.place}" for c in (ranked[-1], ranked[0]))
            yield _row(arm, *places)
    yield ""


def _quarters(found: Sequence[Comparison]) -> Iterator[str]:
    """How often an arm is behind alone during the run."""
    yield "## Worse than alone\n"
    yield (
        "Cells whose held-out loss is above alone's at the end of a quarter, averaged over the "
        "seeds; in parentheses those that are above it in every seed, and the largest mean. The "
        "model in hand is a learner's own weights and, at the end, those that all share; an "
        "anchor lacks the steps that no round has merged yet.\n"
    )
    yield from _header("", *(f"quarter {quarter + 1}" for quarter in range(QUARTERS)))
    for arm in _arms(found):
        group = [comparison for comparison in found if comparison.arm == arm]
        for anchor, name in ((False, "the model in hand"), (True, "the anchor")):
            counts = (_worse(group, quarter, anchor) for quarter in range(QUARTERS))
            yield _row(f"{arm}, {name}", *counts)
    yield ""
    yield from _list_of_worse(found)


def _worse(group: Sequence[Comparison], quarter: int, anchor: bool) -> str:
    excesses = [c.excess(quarter, anchor=anchor) for c in group]
    behind = [excess for excess in excesses if mean(excess) > 0]
    if not behind:
        return f"0 of {len(group)}"
    always = sum(min(excess) > 0 for excess in excesses)
    most = 1e3 * max(map(mean, behind))
    return f"{len(behind)} of {len(group)} ({always}, {most:.1f} mnat)"


def _list_of_worse(found: Sequence[Comparison]) -> Iterator[str]:
    """The cells in which the new rules' model in hand is behind alone's."""
    for comparison in (c for c in found if c.arm == NEW):
        for quarter in range(QUARTERS):
            excess = comparison.excess(quarter)
            if mean(excess) > 0:
                yield f"- {comparison.place}, quarter {quarter + 1}: {_mnats(excess)}"
