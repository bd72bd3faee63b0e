"""How much throughput remains on a slow network: every offer reaches its sealer late.

All settings run at the same time. Each is a cluster of two learners, one in either process. A step
is a sleep and `step()`. A window has one boundary; its floor is the same window of the overlapped
learner whose offers are on time."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

from bench.cluster.learners import Seat, Still, delay_offers, run_learners, transformer
from bench.result import Result, compared
from mend_optim import MendOptimizer

WIDTH, LAYERS = 64, 8  # 0.4 M elements in 96 tensors
SYNC_EVERY, STEP_S, WINDOWS = 128, 0.02, 3
DELAYS_MS = (0, 500, 1000, 2000)


class Setting(NamedTuple):
    delay_ms: int
    adopt_after: int | None


SETTINGS = [Setting(delay_ms, adopt_after) for adopt_after in (None, 0) for delay_ms in DELAYS_MS]


def _windows(optimizer: MendOptimizer, out: list[float]) -> None:
    """The seconds of every window; the first begins one step before the first boundary."""
    marks = []
    for step in range(2, SYNC_EVERY * (WINDOWS + 1)):
        time.sleep(STEP_S)
        optimizer.step()
        if step % SYNC_EVERY == SYNC_EVERY - 1:
            marks.append(time.monotonic())
    out += [end - start for start, end in itertools.pairwise(marks)]


def _learn(seat: Seat) -> list[list[float]]:
    """The windows of every setting, and those of a learner alone."""
    learners = []
    for cluster, setting in enumerate(SETTINGS):
        inner = Still(transformer(WIDTH, LAYERS))
        optimizer = seat.join(
            inner, cluster, sync_every=SYNC_EVERY, adopt_after=setting.adopt_after
        )
        delay_offers(optimizer, setting.delay_ms / 1e3)
        learners.append(optimizer)
    learners.append(MendOptimizer(Still(transformer(WIDTH, LAYERS))))
    for optimizer in learners:
        optimizer.step()
    seat.meet()
    windows: list[list[float]] = [[] for _ in learners]
    threads = [
        threading.Thread(target=_windows, args=pair) for pair in zip(learners, windows, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seat.meet()
    for optimizer in learners:
        optimizer.close()
    return windows


def _rates(learners: list[list[list[float]]], index: int) -> list[float]:
    return [SYNC_EVERY / took for windows in learners for took in windows[index]]


def run() -> Iterator[Result]:
    learners = run_learners(_learn, 2, clusters=len(SETTINGS))
    in_time, alone = _rates(learners, 0), _rates(learners, len(SETTINGS))
    notes = "floor = alone; 0.4 M float32, 128 steps of 20 ms between boundaries"
    yield compared(
        "delay", "throughput, offers in time, overlapped", "1/s", in_time, alone, notes=notes
    )
    for index, (delay_ms, adopt_after) in enumerate(SETTINGS[1:], start=1):
        overlapped = adopt_after is None
        lag = f"{delay_ms} ms late" if delay_ms else "in time"
        what = f"throughput, offers {lag}, " + ("overlapped" if overlapped else "synchronous")
        floor = "floor = in time, overlapped" + ("" if overlapped else "; adopt_after=0")
        yield compared(
            "delay",
            what,
            "1/s",
            _rates(learners, index),
            in_time,
            goal=">= 0.995" if overlapped else "",
            notes=floor,
        )
