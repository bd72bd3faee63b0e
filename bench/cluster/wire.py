"""The bytes of a learner in either direction on the wire, over those of its packets, for two to
four learners: the kernel counts what passes through the interface of each, with headers, beats and
answers. The bench `volume` tells the same of packets alone, for more learners.

Learners are around a switch, and each seals one fragment. Rounds are in lockstep, so that every
learner is in each of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import NamedTuple

from bench.cluster.learners import Seat, learner_at, run_learners, transformer
from bench.cluster.namespaces import End, switched
from bench.result import Result, plain
from mend_optim import MendOptimizer
from mend_optim.codecs.registry import CODECS

WIDTH, LAYERS = 256, 1  # 0.8 M elements in 12 tensors
MEMBERS = (2, 3, 4)
PERIOD, LATE, STEP_S = 20, 15, 0.1
WARM, ROUNDS = 2, 5
PORT, END_S = 29900, 30.0
GOAL = "<= 2.2"


class Moved(NamedTuple):
    """The bytes of one learner in the rounds that were measured."""

    sent: int
    received: int
    #: Those of its offers, by fragment: the ledger does not have those that it sealed itself.
    packets: Counter[int]
    #: Anchors that it took whole, as float32, because their seals did not come.
    pulled: int


def _learn(ends: Sequence[End], codec: str, seat: Seat) -> Moved:
    end = ends[seat.rank]
    optimizer = learner_at(
        ends,
        PORT,
        seat,
        transformer(WIDTH, LAYERS),
        sync_every=PERIOD,
        adopt_after=LATE,
        fragments=len(ends),
        codec=codec,
        moments=None,
    )
    with closing(optimizer):
        optimizer.join()
        seat.meet()
        # No round is under way at the step after its anchor is adopted.
        _train(optimizer, PERIOD * WARM + LATE + 1)
        seat.meet()
        before, begun = end.counters(), len(optimizer.status().rounds)
        seat.meet()
        _train(optimizer, PERIOD * ROUNDS)
        seat.meet()
        after, rounds = end.counters(), optimizer.status().rounds[begun:]
        seat.meet()
        if not optimizer.finish(END_S):
            raise TimeoutError(f"the learners did not end together within {END_S:g} s")
    packets = Counter[int]()
    for record in rounds:
        if record.sealer != optimizer.name:
            packets[record.fragment] += record.offer_bytes
    sent, received = after.sent - before.sent, after.received - before.received
    pulled = sum(record.reason == "pulled" for record in rounds)
    return Moved(sent, received, packets, pulled)


def _train(optimizer: MendOptimizer, steps: int) -> None:
    for _ in range(steps):
        due = time.monotonic() + STEP_S
        optimizer.step()
        time.sleep(max(0.0, due - time.monotonic()))


def run() -> Iterator[Result]:
    for codec in CODECS:
        for members in MEMBERS:
            with switched(members) as ends:
                moved = run_learners(partial(_learn, ends, codec), members)
            # All learners offer as many bytes of a fragment, but for its sealer.
            own = sum(max(each.packets[p] for each in moved) for p in range(members))
            busier = [max(each.sent, each.received) / own for each in moved]
            pulled = sum(each.pulled for each in moved)
            yield plain(
                "wire",
                f"{codec}, {members} learners, up or down over the own packets",
                "ratio",
                busier,
                f"the busier direction of each learner, as the kernel counts it; {pulled} anchors"
                " came whole",
                goal=GOAL,
            )
