"""Several connections on a long link: how often two learners sync the whole model, with as many
lanes as there are by default, over one.

Packets take 50 ms each way, and one in a thousand is lost, as on many ways between continents. What
a connection then carries is up to the kernel's congestion control. Reno's answer to a lost packet
is that of CUBIC, the default of most systems, on links of this speed. BBR takes less notice of it.

A step takes a fixed time, and rounds begin as often as they end (`sync_every="auto"`). One pair of
learners after the other is measured, in turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial

from bench.cluster.divided import Pace, pace, train, typical
from bench.cluster.learners import Seat, learner_at, run_learners, transformer
from bench.cluster.long_wire import LongWay, congestion_control, joined_afar
from bench.cluster.namespaces import End
from bench.result import Result, compared, plain
from mend_optim.transport import lanes

WIDTH, LAYERS, FRAGMENTS = 256, 5, 8  # 3.9 M elements
WAY = LongWay(delay_s=0.05, loss=0.001, rate=12.5e6)
SETTLE_S, MEASURE_S = 20.0, 40.0
PORT, TIMES = 29700, 2
RENO = "reno"  # every kernel has it


def _learn(ends: Sequence[End], most: int, seat: Seat) -> Pace:
    lanes.MOST = most
    model = transformer(WIDTH, LAYERS)
    with closing(learner_at(ends, PORT, seat, model, fragments=FRAGMENTS)) as optimizer:
        optimizer.join()
        seat.meet()
        train(optimizer, SETTLE_S)
        found = pace(optimizer, MEASURE_S)
        seat.meet()
    return found


def _measure(congestion: str, most: int) -> Pace:
    """The pace of two learners: the median of both."""
    with joined_afar(WAY, congestion) as ends:
        return typical(run_learners(partial(_learn, ends, most), 2))


def run() -> Iterator[Result]:
    for congestion in dict.fromkeys((RENO, congestion_control())):
        pairs = [
            tuple(_measure(congestion, most) for most in (lanes.MOST, 1)) for _ in range(TIMES)
        ]
        several, one = zip(*pairs, strict=True)
        what = f"100 ms there and back, 0.1 % of packets lost, {congestion}"
        yield compared(
            "afar",
            f"syncs of the whole model, {what}",
            "1/s",
            [found.syncs for found in several],
            [found.syncs for found in one],
            notes=f"{lanes.MOST} lanes at most over one; {FRAGMENTS} fragments, 15.7 MB",
        )
        for paces, most in ((several, lanes.MOST), (one, 1)):
            taken = [float(found.latency) for found in paces]
            yield plain("afar", f"steps of a round, {what}, lanes: {most}", "1", taken)
