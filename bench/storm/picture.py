"""One picture of a run: the learners' states, the members of every seal, the losses. Needs
matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no screen

from matplotlib import pyplot
from matplotlib.patches import Patch

from bench.storm.correctness import groups
from bench.storm.log import Fault, Log
from bench.storm.spans import Span

COLORS = {
    "training": "#bcd7c1",
    "joining": "#f2d16b",
    "kill": "#c0392b",
    "stop": "#7d5ba6",
    "cut both ways": "#2c7fb8",
    "cut outward": "#41b6c4",
    "cut inward": "#a1dab4",
    "parted": "#2c7fb8",
}
SHOWN_GROUPS = 4  # groups of steps per point of a loss curve


def draw(log: Log, path: Path) -> None:
    rows = len(log.learners)
    figure, axes = pyplot.subplots(
        3,
        1,
        sharex=True,
        figsize=(14, 5 + 0.4 * rows),
        height_ratios=[0.35 * rows + 0.5, 2, 3],
        layout="constrained",
    )
    _states(log, axes[0])
    _members(log, axes[1])
    _losses(log, axes[2])
    axes[2].set_xlabel("seconds")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _bar(axis: Any, row: int, spans: Sequence[Span], kind: str, began: float) -> None:
    axis.broken_barh(
        [(a - began, b - a) for a, b in spans], (row - 0.4, 0.8), facecolors=COLORS[kind]
    )


def _states(log: Log, axis: Any) -> None:
    """A row for every learner: its state, and its faults."""
    shown = ["training", "joining", *dict.fromkeys(fault.kind for fault in log.faults)]
    for row, who in enumerate(log.learners):
        _bar(axis, row, log.up(who), "training", log.began)
        joining = [
            (p.ordered, min(p.ready, p.ended, log.ended)) for p in log.processes if p.who == who
        ]
        _bar(axis, row, [span for span in joining if span[0] < span[1]], "joining", log.began)
        for fault in [fault for fault in log.faults if fault.who == who]:
            _mark(log, axis, row, fault)
    if "partition" in log.phases:
        shown.append("parted")
        healed = log.phases.get("healed", log.ended)
        axis.axvspan(
            log.phases["partition"] - log.began,
            healed - log.began,
            color=COLORS["parted"],
            alpha=0.3,
        )
    axis.set_yticks(range(len(log.learners)), log.learners)
    axis.invert_yaxis()
    axis.legend(
        handles=[Patch(color=COLORS[kind], label=kind) for kind in shown],
        ncols=len(shown),
        loc="lower left",
        bbox_to_anchor=(0, 1),
        frameon=False,
    )


def _mark(log: Log, axis: Any, row: int, fault: Fault) -> None:
    if fault.kind == "kill":
        axis.plot(fault.begin - log.began, row, "x", color=COLORS["kill"])
    else:
        _bar(axis, row, [(fault.begin, min(fault.end, log.ended))], fault.kind, log.began)


def _members(log: Log, axis: Any) -> None:
    for reason, color in (("all_present", "#444444"), ("grace_expired", "#e67e22")):
        seals = [seal for seal in log.seals if seal.reason == reason]
        axis.plot(
            [s.t - log.began for s in seals],
            [len(s.members) for s in seals],
            ".",
            color=color,
            label=reason,
        )
    changes = sorted({t for spans in log.live.values() for span in spans for t in span})
    live = [sum(any(a <= t < b for a, b in spans) for spans in log.live.values()) for t in changes]
    axis.step(
        [t - log.began for t in changes],
        live,
        where="post",
        color="#999999",
        linewidth=0.8,
        label="live",
    )
    axis.set_ylabel("members of a seal")
    axis.set_ylim(0, len(log.learners) + 0.5)
    axis.legend(loc="lower left", ncols=3, frameon=False)


def _losses(log: Log, axis: Any) -> None:
    for who in log.learners:
        for (name, _), steps in log.steps.items():
            points = groups(steps) if name == who else []
            parts = [points[i : i + SHOWN_GROUPS] for i in range(0, len(points), SHOWN_GROUPS)]
            moments, means = (
                [p[-1][0] - log.began for p in parts],
                [mean(loss for _, loss in p) for p in parts],
            )
            axis.plot(moments, means, color=f"C{log.learners.index(who)}", linewidth=0.7)
    axis.set_ylabel("loss")
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter("{x:.2f}")
    axis.yaxis.set_minor_formatter("{x:.2f}")
