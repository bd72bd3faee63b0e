"""The figures of a soak: whether anything grows that should not, and whether anything is left
behind."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import mean

from bench.storm.figure import Figure, none_of, spread
from bench.storm.journal import Line
from bench.storm.log import Log

SETTLED = 1 / 3  # the first third of the samples is left out: buffers fill, caches warm up
HOUR_S = 3600.0
GROW = (
    ("rss_kb", "resident memory", "MB/h", 1024),
    ("anon_kb", "anonymous memory", "MB/h", 1024),
    # some are open only for moments: an absent learner is dialled again and again
    ("fds", "open files", "1/h", 1),
)


def soak_figures(log: Log) -> Iterator[Figure]:
    samples = log.of("sample")
    settled = [settled_part(_of(samples, who)) for who in sorted({line["who"] for line in samples})]
    settled = [lines for lines in settled if len(lines) > 2]
    notes = f"by learner, least squares after the first third, {_minutes(settled):.1f} min"
    for key, what, unit, scale in GROW:
        slopes = [slope(lines, key) / scale for lines in settled]
        yield spread(f"slope of {what}", unit, slopes, notes=notes)
        yield spread(
            f"  its standard error, {what}",
            unit,
            [slope_error(lines, key) / scale for lines in settled],
        )
    named = "the most; last five samples over first five"
    for what, counted, goal in (
        ("threads", _threads, "<= 0"),
        ("gRPC's own pool of threads", _pool, ""),
    ):
        grown = [
            mean(map(counted, lines[-5:])) - mean(map(counted, lines[:5])) for lines in settled
        ]
        yield spread(f"growth of {what}", "", grown, goal=goal, notes=named, value=max)
    yield spread("seals", "", [float(len(log.seals))], notes=f"{_visits(log)} visits of a guest")
    yield from endings(log)


def _pool(sample: Line) -> int:
    """Threads in gRPC's own pool: gRPC adds one when work has waited there, and removes it after a
    long idle time."""
    return int(sample["names"].get("event_engine", 0))


def _threads(sample: Line) -> int:
    return int(sample["threads"]) - _pool(sample)


def _of(samples: Sequence[Line], who: str) -> list[Line]:
    return [line for line in samples if line["who"] == who and "rss_kb" in line]


def settled_part(lines: Sequence[Line]) -> list[Line]:
    return list(lines[int(len(lines) * SETTLED) :])


def _minutes(settled: Sequence[Sequence[Line]]) -> float:
    return (settled[0][-1]["t"] - settled[0][0]["t"]) / 60 if settled else 0.0


def _line(lines: Sequence[Line], key: str) -> tuple[float, float, float]:
    """Least squares of y over t: slope, Σ (t - t̄)², Σ residual²."""
    t = [line["t"] for line in lines]
    y = [float(line[key]) for line in lines]
    middle_t, middle_y = mean(t), mean(y)
    stt = sum((a - middle_t) ** 2 for a in t)
    slope = sum((a - middle_t) * (b - middle_y) for a, b in zip(t, y, strict=True)) / stt
    rest = sum((b - middle_y - slope * (a - middle_t)) ** 2 for a, b in zip(t, y, strict=True))
    return slope, stt, rest


def slope(lines: Sequence[Line], key: str) -> float:
    """The growth per hour."""
    return HOUR_S * _line(lines, key)[0]


def slope_error(lines: Sequence[Line], key: str) -> float:
    """The standard error of the slope."""
    _, stt, rest = _line(lines, key)
    return HOUR_S * math.sqrt(rest / (len(lines) - 2) / stt)


def _visits(log: Log) -> int:
    staying = {line["who"] for line in log.of("sample")}
    return sum(p.who not in staying for p in log.processes)


def endings(log: Log) -> Iterator[Figure]:
    """How learners end when told to, in each of the possible ways."""
    for line in log.of("ending"):
        gone = line["status"] is not None and not line["left"]
        notes = (
            f"status {line['status']}"
            if gone
            else f"still there: {line['left'] or 'had to be killed'}"
        )
        yield spread(
            f"to the end of the process after {line['by']}", "s", [line["took_s"]], notes=notes
        )
    stuck = [f"{line['who']}{line['life']}" for line in log.of("stuck")]
    yield none_of("learners that did not end when told to", stuck, len(log.processes))
    left = [str(pid) for line in log.of("orphans") for pid in line["pids"]]
    yield none_of("processes left behind", left, len(log.processes))
    closed = log.of("closed")
    threads = [f"{line['who']}: {line['threads']}" for line in closed if line["threads"]]
    yield none_of("threads left behind by close()", threads, len(closed))
