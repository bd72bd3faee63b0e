"""The lines of ledgers in memory: a run of weeks has millions."""

from __future__ import annotations

import json
import tracemalloc

from mend_optim.cli.ledger.lines import KnownMembers, Line, read_lines
from tests.support.ledgers import Ledgers


def read_all(ledgers: Ledgers) -> dict[str, list[Line]]:
    """The lines of each learner, read one file after the other."""
    known = KnownMembers()
    return {
        name: read_lines(name, map(json.dumps, records), known)[0]
        for name, records in ledgers.files.items()
    }


def test_lines_take_little_more_memory_than_their_text() -> None:
    ledgers = Ledgers("abcdefgh")
    for _ in range(100):
        ledgers.round({name: 1000 + i for i, name in enumerate(ledgers.names)})
    records = ledgers.files["a"]
    size = sum(len(json.dumps(record)) for record in records)
    known = KnownMembers()  # held until all ledgers of the run are read
    tracemalloc.start()
    try:
        lines, _ = read_lines("a.jsonl", (json.dumps(record) for record in records), known)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert [line.raw for line in lines] == records
    assert taken < 3 * size


def test_what_all_ledgers_tell_of_a_round_is_held_once() -> None:
    ledgers = Ledgers("abc")
    for _ in range(3):
        ledgers.round(dict.fromkeys("abc", 1000), takers="bc")
        ledgers.whole("a", of="b")  # its ledger is read first, and names no members
    lines = read_all(ledgers)
    assert [line.record.members for line in lines["a"]] == [()] * 3
    for first, second in zip(lines["b"], lines["c"], strict=True):
        assert len(first.record.members) == 3
        assert first.record.members is second.record.members


def test_each_ledger_is_read_as_it_is_though_another_tells_other_members() -> None:
    ledgers = Ledgers("abc")
    for _ in range(2):
        ledgers.round(dict.fromkeys("abc", 1000))
    forged = ledgers.files["b"][1]["members"]
    forged[0]["tokens"] += 1
    ledgers.files["c"][0]["members"].pop()
    ledgers.files["c"][1]["members"] = [{**forged[0], "tokens": "many"}]
    lines = read_all(ledgers)
    told = {
        name: [[m.tokens for m in line.record.members] for line in lines[name]] for name in "abc"
    }
    assert told == {
        "a": [[1000] * 3, [1000] * 3],
        "b": [[1000] * 3, [1001, 1000, 1000]],
        "c": [[1000] * 2],  # and a damaged line
    }


def test_what_is_no_member_is_named_though_another_ledger_tells_of_its_anchor() -> None:
    ledgers = Ledgers("ab")
    ledgers.round({"a": 1, "b": 1})
    ledgers.files["b"][0]["members"] = ["x", "y"]
    known = KnownMembers()
    read_lines("a", map(json.dumps, ledgers.files["a"]), known)
    _, damage = read_lines("b", map(json.dumps, ledgers.files["b"]), known)
    assert [bad.why for bad in damage.lines] == ["'x' is no record"]


def test_true_is_no_number_and_a_number_is_no_truth() -> None:
    ledgers = Ledgers("ab")
    for _ in range(3):
        ledgers.round({"a": 1, "b": 1})
    ledgers.files["a"][1]["tokens"] = True
    ledgers.files["a"][2]["mine"] = 1
    good, damage = read_lines("a", map(json.dumps, ledgers.files["a"]))
    assert [line.number for line in good] == [1]
    assert [bad.why for bad in damage.lines] == [
        "its field 'tokens' is True",
        "its field 'mine' is 1",
    ]
