"""Learners on a long link that loses packets, with the kernel's TCP."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from bench.cluster.learners import Seat, learner_at, run_learners, transformer
from bench.cluster.long_wire import LongWay, joined_afar
from bench.cluster.namespaces import End, absent
from mend_optim.protocol.lineage import content_digest

PORT, FRAGMENTS, STEPS, END_S = 29700, 4, 40, 120.0
WAY = LongWay(delay_s=0.02, loss=0.01, rate=12.5e6)


@pytest.fixture(autouse=True)
def permitted() -> None:
    if reason := absent():
        pytest.skip(reason)


def _train(ends: Sequence[End], seat: Seat) -> tuple[int, bytes]:
    """Train to the end; the packets that the kernel has sent again, and a digest of the weights."""
    model = transformer(64, 4)
    optimizer = learner_at(ends, PORT, seat, model, fragments=FRAGMENTS, sync_every=4)
    with closing(optimizer):
        optimizer.join()
        for _ in range(STEPS):
            optimizer.step()
        ended = optimizer.finish(END_S)
        assert ended, ended.reason
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model)
    return _sent_again(), content_digest(weights)


def _sent_again() -> int:
    """How many TCP segments this process's network namespace has sent again."""
    lines = Path("/proc/self/net/snmp").read_text().splitlines()
    names, values = (line.split() for line in lines if line.startswith("Tcp:"))
    return int(values[names.index("RetransSegs")])


def test_learners_on_a_link_that_loses_packets_end_on_one_model() -> None:
    with joined_afar(WAY) as ends:
        (some, one), (others, other) = run_learners(partial(_train, ends), 2)
    assert one == other
    assert some + others > 0
