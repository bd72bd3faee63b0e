"""Pictures of the bench "learning": the losses of every arm, a panel for each cell. Needs
matplotlib."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no screen

from matplotlib import pyplot

from bench.cluster.gaps import Comparison, Setting, Tuned
from bench.cluster.runs import ALONE, PARALLEL, QUARTERS

COLORS = {
    ALONE: "#444444",
    PARALLEL: "#2c7fb8",
    "new": "#2ca25f",
    "whole correction": "#e67e22",
    "0.7/0.9": "#c0392b",
    "gain alone": "#7d5ba6",
    "norms alone": "#f2d16b",
    "rda": "#41b6c4",
}
COLUMNS, PANEL_INCHES = 3, (5.0, 3.6)
WARM = 0.1  # of a run, in which the loss falls too far to show


def draw(found: Sequence[Comparison], folder: Path) -> Iterator[Path]:
    """A picture for every setting and number of learners; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    groups: dict[tuple[Setting, int], list[Comparison]] = defaultdict(list)
    for comparison in found:
        groups[comparison.setting, comparison.cell.members].append(comparison)
    for (setting, members), group in groups.items():
        name = f"{setting.task}-m{members}-steps{setting.steps}-batch{setting.batch}.png"
        _draw_group(group, f"{setting}, M {members}", folder / name)
        yield folder / name


def _draw_group(group: Sequence[Comparison], title: str, path: Path) -> None:
    cells = list(dict.fromkeys(comparison.cell for comparison in group))
    columns = min(COLUMNS, len(cells))
    rows = -(-len(cells) // columns)
    width, height = PANEL_INCHES
    figure, axes = pyplot.subplots(
        rows,
        columns,
        squeeze=False,
        sharex=True,
        sharey=True,
        figsize=(width * columns, height * rows),
        layout="constrained",
    )
    for axis, cell in zip(axes.flat, cells, strict=False):
        arms = [comparison for comparison in group if comparison.cell == cell]
        _draw_cell(axis, arms)
        axis.set_title(f"H {cell.period}, τ {cell.late}")
    for axis in axes.flat[len(cells) :]:
        axis.set_axis_off()
    axes[0, 0].legend(frameon=False)
    figure.suptitle(f"{title}: training loss (line), held-out loss of the global weights (dots)")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_cell(axis: Any, arms: Sequence[Comparison]) -> None:
    steps = arms[0].setting.steps
    if arms[0].parallel:
        _draw_arm(axis, PARALLEL, arms[0].parallel, steps)
    _draw_arm(axis, ALONE, arms[0].alone, steps)
    for comparison in arms:
        _draw_arm(axis, comparison.arm, comparison.own, steps)
    axis.set_xlabel("steps")
    axis.set_ylabel("nats")


def _draw_arm(axis: Any, arm: str, tuned: Tuned, steps: int) -> None:
    """The means over the seeds."""
    outcomes = list(tuned.outcomes.values())
    training = [mean(part) for part in zip(*(o.training for o in outcomes), strict=True)]
    held_out = [mean(part) for part in zip(*(o.held_out for o in outcomes), strict=True)]
    first = round(WARM * len(training))
    at = [steps * (i + 1) / len(training) for i in range(len(training))]
    axis.plot(at[first:], training[first:], color=COLORS[arm], linewidth=0.8, label=arm)
    quarters = [steps * (i + 1) / QUARTERS for i in range(QUARTERS)]
    axis.plot(quarters, held_out, "o", color=COLORS[arm], markersize=4)
