"""The size of a beat by the number of learners, as docs/operations.md has it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mend_optim.membership.broadcasts import FANOUT
from mend_optim.protocol.lineage import Key, PeerId
from mend_optim.protocol.messages import Beat, Content, Report, Rumor
from mend_optim.transport.wire import encode_control

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"
ROW = re.compile(r"^\| (\d+) \| ([\d.]+) kB \| (\d+) \| ([\d.]+) kB/s \|$", re.MULTILINE)
STARTED = 1_795_640_658_412_619_920
FRAGMENTS = 4


def beat(learners: int) -> Beat:
    """A beat after a day, of one of so many learners in four fragments."""
    key = Key(10**10, 1_000_000, b"k" * 16)
    peers = [PeerId(f"learner-{i}", STARTED + i) for i in range(learners)]
    addresses = [f"10.0.{i // 256}.{i % 256}:29600" for i in range(learners)]
    rumors = [Rumor(p, at, 86_400) for p, at in zip(peers, addresses, strict=True)]
    return Beat(
        peer=peers[0],
        address=addresses[0],
        count=86_400,
        step=1_000_000,
        tokens=10**10,
        seconds_per_step=0.1,
        training=True,
        genesis=b"g" * 16,
        reports=tuple(
            Report(key, (), b"g" * 16, Content(key, b"c" * 16)) for _ in range(FRAGMENTS)
        ),
        roster=tuple(rumors[1:]),
        position=1_000_000,
    )


@pytest.mark.parametrize("learners", [16, 64, 256, 1000])
def test_the_page_has_the_size_of_a_beat(learners: int) -> None:
    rows = {int(row[0]): row[1:] for row in ROW.findall(PAGE.read_text(encoding="utf-8"))}
    size = len(encode_control(beat(learners))) / 1e3
    sent = min(FANOUT, learners - 1)
    assert rows[learners] == (f"{size:.1f}", str(sent), f"{size * sent:.0f}")
