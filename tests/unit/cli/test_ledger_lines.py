"""The lines of a ledger in memory: a run of weeks has millions."""

from __future__ import annotations

import json
import tracemalloc

from mend_optim.cli.ledger.lines import read_lines
from tests.support.ledgers import Ledgers


def test_lines_take_little_more_memory_than_their_text() -> None:
    ledgers = Ledgers("abcdefgh")
    for _ in range(100):
        ledgers.round({name: 1000 + i for i, name in enumerate(ledgers.names)})
    records = ledgers.files["a"]
    size = sum(len(json.dumps(record)) for record in records)
    tracemalloc.start()
    try:
        lines, _ = read_lines("a.jsonl", (json.dumps(record) for record in records))
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert [line.raw for line in lines] == records
    assert taken < 3 * size
