"""A bench's results: one JSON line per number, with the machine it was measured on."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import grpc
import torch

from bench.goal import met

DIGITS = 5


@dataclass(frozen=True, kw_only=True)
class Result:
    """One number. `value` is its median, in `unit`. `ratio` is the median of value over floor, over
    n pairs that were measured side by side.

    `min`, `median` and `max` describe the spread of the ratio, or of the value where there is no
    floor. `met` says whether the ratio reaches the goal, or the value without a floor. `goal` and
    `met` are null for numbers that have no goal, and `ratio` without a floor."""

    bench: str
    what: str
    value: float
    unit: str
    ratio: float | None
    goal: str | None
    met: bool | None
    n: int
    min: float
    median: float
    max: float
    notes: str


def plain(
    bench: str,
    what: str,
    unit: str,
    values: Sequence[float],
    notes: str = "",
    *,
    goal: str = "",
) -> Result:
    """A number without a floor. A goal is one for the number itself."""
    middle = median(values)
    return Result(
        bench=bench,
        what=what,
        value=middle,
        unit=unit,
        ratio=None,
        goal=goal or None,
        met=met(middle, goal),
        n=len(values),
        min=min(values),
        median=middle,
        max=max(values),
        notes=notes,
    )


def compared(
    bench: str,
    what: str,
    unit: str,
    values: Sequence[float],
    floors: Sequence[float],
    *,
    goal: str = "",
    notes: str = "",
) -> Result:
    """A number over its floor; the i-th value and the i-th floor were measured side by side.
    `goal`: "<= 1.5" or ">= 0.98"."""
    ratios = [value / floor for value, floor in zip(values, floors, strict=True)]
    middle = median(ratios)
    floor = f"floor {_short(median(floors))} {unit}"
    return Result(
        bench=bench,
        what=what,
        value=median(values),
        unit=unit,
        ratio=middle,
        goal=goal or None,
        met=met(middle, goal),
        n=len(ratios),
        min=min(ratios),
        median=middle,
        max=max(ratios),
        notes=f"{floor}; {notes}" if notes else floor,
    )


def line(result: Result, machine: dict[str, Any]) -> str:
    """The result as one line of JSON."""
    fields = {name: _short(value) for name, value in asdict(result).items()}
    return json.dumps({**fields, "environment": machine}, ensure_ascii=False)


def _short(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def environment() -> dict[str, Any]:
    """The machine and the versions that this was measured with."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "grpc": grpc.__version__,
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": 1,
        "platform": platform.platform(),
        "commit": _commit(),
    }


def _cpu() -> str:
    try:
        listed = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        listed = []
    names = (entry.split(":", 1)[1].strip() for entry in listed if entry.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _commit() -> str:
    """The commit, with a plus if the working tree differs from it; empty outside a repository."""
    root = Path(__file__).parent.parent
    ask = ["git", "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+"]
    try:
        return subprocess.run(
            ask, cwd=root, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
