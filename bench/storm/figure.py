"""One figure of a run, with its goal, and how figures are printed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from bench.goal import met

Statistic = Callable[[Sequence[float]], float]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """`value` is compared with the goal: the median, unless the notes say otherwise. `met` is None
    without a goal, or without values."""

    what: str
    unit: str
    value: float | None
    goal: str
    met: bool | None
    n: int
    min: float | None
    median: float | None
    max: float | None
    notes: str


def spread(
    what: str,
    unit: str,
    values: Sequence[float],
    *,
    goal: str = "",
    notes: str = "",
    value: Statistic = median,
) -> Figure:
    """A figure made of many values. `goal`: "<= 1" or ">= 0.99"."""
    if not values:
        return Figure(
            what=what,
            unit=unit,
            value=None,
            goal=goal,
            met=None,
            n=0,
            min=None,
            median=None,
            max=None,
            notes=notes,
        )
    middle = value(values)
    return Figure(
        what=what,
        unit=unit,
        value=middle,
        goal=goal,
        met=met(middle, goal),
        n=len(values),
        min=min(values),
        median=median(values),
        max=max(values),
        notes=notes,
    )


def none_of(what: str, found: Sequence[str], n: int, notes: str = "") -> Figure:
    """A count that should be 0, of `n` occasions; the notes name the first ones found."""
    named = "; ".join([notes, *found[:3]] if notes else found[:3])
    k = float(len(found))
    return Figure(
        what=what,
        unit="",
        value=k,
        goal="<= 0",
        met=not found,
        n=n,
        min=None,
        median=None,
        max=None,
        notes=named,
    )


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def table(figures: Sequence[Figure]) -> str:
    """Aligned columns; a missed goal stands out."""
    verdicts = {True: "yes", False: "NO", None: ""}
    head = ("", "value", "unit", "goal", "met", "n", "median", "min", "max", "notes")
    rows = [
        (
            f.what,
            _short(f.value),
            f.unit,
            f.goal,
            verdicts[f.met],
            str(f.n),
            *map(_short, three),
            f.notes,
        )
        for f in figures
        for three in [(f.median, f.min, f.max)]
    ]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in [head, *rows])
