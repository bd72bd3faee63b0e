"""A clock that was set in mid-run, perhaps between two files of a learner: times don't tell which
lines come first."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence

import pytest

from mend_optim.cli.ledger.story import story_of
from mend_optim.cli.ledger.text import text_of
from mend_optim.cli.ledger.verdict import verdict_of
from tests.support.ledgers import Ledgers, Record, Source

TOKENS = {"a": 30, "b": 20}
HOUR = 3600.0
#: By how much the clock was set between two files.
SETS = [0.0, -2 * HOUR, 2 * HOUR]


def a_run() -> Ledgers:
    """b saves a checkpoint after two rounds, is killed after four, and goes on from it. At the end
    it rests: it takes two rounds more, and offers nothing."""
    ledgers = Ledgers("ab")
    for _ in range(2):
        ledgers.round(TOKENS)
    saved = ledgers.lineages["b"]
    for _ in range(2):
        ledgers.round(TOKENS)
    ledgers.restart("b")
    current, ledgers.lineages["b"] = ledgers.lineages["a"], saved
    ledgers.whole("b", of="b", reason="restored")
    ledgers.lineages["a"] = current
    ledgers.whole("b", of="a")
    for _ in range(3):
        ledgers.round(TOKENS)
    for _ in range(2):
        ledgers.round({"a": 30}, "ab")
    return ledgers


def renamed(records: Sequence[Record], at: int, set_s: float) -> list[Source]:
    """A ledger in two files, the newer one first, as `ls` lists them. The clock was set between the
    two."""
    older, newer = copy.deepcopy(records[:at]), copy.deepcopy(records[at:])
    for record in newer:
        record["time"] += set_s
    return [
        ("b.jsonl", [json.dumps(record) for record in newer]),
        ("b.jsonl.1", [json.dumps(record) for record in older]),
    ]


@pytest.mark.parametrize("set_s", SETS)
@pytest.mark.parametrize("at", range(1, 11))
def test_a_ledger_in_two_files_tells_the_same_whatever_the_clock_says(
    at: int, set_s: float
) -> None:
    ledgers = a_run()
    assert len(ledgers.files["b"]) == 11
    whole = story_of(ledgers.text)
    others = [source for source in ledgers.text if source[0] != "b.jsonl"]
    story = story_of([*others, *renamed(ledgers.files["b"], at, set_s)])
    assert verdict_of(story).status == verdict_of(whole).status == 0
    assert [found.text for found in verdict_of(story).findings] == [
        found.text for found in verdict_of(whole).findings
    ]
    assert {name: (each.tokens, each.uncounted) for name, each in story.accounts.items()} == {
        name: (each.tokens, each.uncounted) for name, each in whole.accounts.items()
    }
    assert story.accounts["b"].uncounted == 40


@pytest.mark.parametrize("set_s", SETS)
@pytest.mark.parametrize("until", [3, 6])
def test_the_last_rounds_are_the_last_whatever_a_clock_said_before(
    until: int, set_s: float
) -> None:
    """The clock of the sealer was wrong until some round."""
    ledgers = Ledgers("ab")
    for _ in range(6):
        ledgers.round(TOKENS)
    for record in ledgers.files["a"][:until]:
        record["time"] += set_s
    story = story_of(ledgers.text)
    assert [each.version for each in story.sequence] == [1, 2, 3, 4, 5, 6]
    rows = text_of(story, verdict_of(story), 2).splitlines()
    assert [row.split("all_present")[0].split()[-1] for row in rows if " all_present " in row] == [
        "5",
        "6",
    ]
