"""Ledgers as one story: true runs are sound, and each kind of forgery is found."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mend_optim.cli.ledger.forks import Fate
from mend_optim.cli.ledger.story import story_of
from mend_optim.cli.ledger.verdict import Severity, Verdict, verdict_of
from tests.support.ledgers import Files, Ledgers, Source, of_version

NAMES = ("a", "b", "c")
works = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 900), min_size=1)
few = settings(max_examples=20)
runs = st.lists(works, min_size=4, max_size=12)


def run_of(rounds: list[dict[str, int]], names: tuple[str, ...] = NAMES) -> Ledgers:
    ledgers = Ledgers(names)
    for members in rounds:
        ledgers.round(members)
    return ledgers


def judged(files: list[Source]) -> Verdict:
    return verdict_of(story_of(files))


def texts(verdict: Verdict, severity: Severity) -> str:
    return "\n".join(f.text for f in verdict.findings if f.severity is severity)


@few
@given(runs, st.permutations(NAMES))
def test_a_true_run_is_sound_whichever_ledgers_come_first(
    rounds: list[dict[str, int]], order: list[str]
) -> None:
    files = dict(run_of(rounds).text)
    verdict = judged([(f"{name}.jsonl", files[f"{name}.jsonl"]) for name in order])
    assert verdict.findings == ()
    assert verdict.status == 0


@few
@given(runs)
def test_the_ledger_of_one_learner_is_enough_where_it_took_every_seal(
    rounds: list[dict[str, int]],
) -> None:
    assert judged(run_of(rounds).text[1:2]).findings == ()


@few
@given(runs, st.data())
def test_a_double_merge_is_found(rounds: list[dict[str, int]], data: Any) -> None:
    """An offer is in a second round, and every line agrees on that."""
    late = data.draw(st.integers(2, len(rounds)))
    early = data.draw(st.integers(1, late - 1))

    def merge_again(files: Files) -> None:
        again = next(of_version(files, early))["members"][0]
        more = again["tokens"] - sum(rounds[late - 1].values())
        for record in (each for records in files.values() for each in records):
            record["tokens"] += more if record["version"] >= late else 0
            if record["version"] == late:
                record["members"] = [{**again, "weight": 1.0}]

    verdict = judged(run_of(rounds).forged(merge_again))
    told = texts(verdict, Severity.BROKEN)
    assert "which was merged before" in told or "although its offer" in told
    assert verdict.status == 1


@few
@given(runs, st.data())
def test_an_open_fork_is_found_and_a_healed_one_is_no_fault(
    rounds: list[dict[str, int]], data: Any
) -> None:
    ledgers = run_of(rounds, (*NAMES, "d"))
    for _ in range(data.draw(st.integers(2, 4))):
        ledgers.round({"a": 5, "b": 5}, ("a", "b"))
        ledgers.round({"c": 3, "d": 3}, ("c", "d"))
    (fork,) = story_of(ledgers.text).forks[0]
    assert fork.fate is Fate.OPEN
    assert fork.at is not None
    assert fork.at[1] == len(rounds)
    verdict = judged(ledgers.text)
    assert "ended on it, and the others went on without it" in texts(verdict, Severity.BROKEN)
    assert verdict.status == 1

    for name in ("c", "d"):
        ledgers.whole(name, of="a", superseded=("c", "d"), superseded_tokens=6)
    ledgers.round({"a": 5, "c": 5})
    verdict = judged(ledgers.text)
    assert verdict.status == 0
    assert "all came back from it" in texts(verdict, Severity.NOTE)
    assert story_of(ledgers.text).accounts["c"].superseded == 6


def test_what_is_lost_in_each_fragment_is_lost_once() -> None:
    """All fragments have the same tokens. A later process loses others."""
    fragments = [Ledgers(NAMES, fragment) for fragment in range(3)]
    for ledgers, dropped in zip(fragments, (40, 70, 50), strict=True):
        ledgers.round({"a": 90, "b": 90, "c": 90})
        ledgers.whole("a", of="a", reason="healed", dropped_tokens=dropped)
        ledgers.whole("a", of="a", superseded_tokens=9 - ledgers.fragment)
        ledgers.restart("a")
        ledgers.whole("a", of="b", reason="reset", dropped_tokens=5)
    account = story_of([source for each in fragments for source in each.text]).accounts["a"]
    assert (account.dropped, account.superseded) == (75, 9)


def test_the_tokens_of_all_learners_add_up_to_those_of_the_run() -> None:
    """Where a run ends, its fragments have not merged the same work of each learner."""
    fragments = [Ledgers(NAMES, fragment) for fragment in range(3)]
    fragments[0].round({"a": 90, "b": 10})
    fragments[1].round({"a": 60, "b": 50})
    fragments[2].round({"a": 5, "b": 70, "c": 20})
    story = story_of([source for each in fragments for source in each.text])
    assert story.tokens == 110
    assert [story.accounts[name].tokens for name in NAMES[:3]] == [60, 50, 0]


@few
@given(runs, st.data())
def test_lines_that_one_ledger_lacks_are_found(rounds: list[dict[str, int]], data: Any) -> None:
    gone = data.draw(st.integers(2, len(rounds) - 1))

    def lose(files: Files) -> None:
        del files["b"][gone - 1]

    verdict = judged(run_of(rounds).forged(lose))
    assert verdict.status == 3
    assert f"b took version {gone + 1}" in texts(verdict, Severity.INCOMPLETE)


@few
@given(runs, st.data())
def test_a_round_that_no_ledger_tells_of_is_found(rounds: list[dict[str, int]], data: Any) -> None:
    gone = data.draw(st.integers(2, len(rounds) - 1))

    def lose(files: Files) -> None:
        for records in files.values():
            records[:] = [record for record in records if record["version"] != gone]

    verdict = judged(run_of(rounds).forged(lose))
    assert verdict.status == 3
    assert f"how version {gone + 1} came to be" in texts(verdict, Severity.INCOMPLETE)


@few
@given(runs, st.data())
def test_a_number_that_is_changed_in_one_line_is_found(
    rounds: list[dict[str, int]], data: Any
) -> None:
    what = data.draw(st.sampled_from(["tokens", "member", "seq", "weight", "digest"]))
    # The last digest of one learner alone may be that of a sealer's that died.
    version = data.draw(st.integers(2, len(rounds) - (what == "digest")))
    by = data.draw(st.integers(1, 50))

    def change(files: Files) -> None:
        record = files["b"][version - 1]
        if what == "tokens":
            record["tokens"] += by
        elif what == "digest":
            record["digest"] = "00" * 16
        else:
            field = {"member": "tokens"}.get(what, what)
            record["members"][0][field] += by

    assert judged(run_of(rounds).forged(change)).status != 0


def test_a_copy_of_a_ledger_changes_nothing() -> None:
    files = run_of([{"a": 1, "b": 2, "c": 3}] * 4).text
    copied = [*files, ("copy.jsonl", files[0][1])]
    assert judged(copied).findings == ()
    assert story_of(copied).accounts == story_of(files).accounts


def test_one_digest_of_two_anchors_is_found() -> None:
    def copy_digest(files: Files) -> None:
        for records in files.values():
            records[3]["digest"] = records[1]["digest"]

    verdict = judged(run_of([{"a": 1, "b": 2, "c": 3}] * 4).forged(copy_digest))
    assert "give one digest" in texts(verdict, Severity.BROKEN)


def test_weights_that_are_not_one_in_sum_are_found() -> None:
    def weigh_more(files: Files) -> None:
        for record in of_version(files, 2):
            record["members"][0]["weight"] += 0.1

    verdict = judged(run_of([{"a": 1, "b": 2, "c": 3}] * 4).forged(weigh_more))
    assert "the weights of its members are not 1 in sum" in texts(verdict, Severity.BROKEN)
    assert verdict.status == 1


def test_tokens_that_do_not_add_up_are_no_gap() -> None:
    def count_more(files: Files) -> None:
        for record in of_version(files, 3):
            record["members"][0]["tokens"] += 5

    verdict = judged(run_of([{"a": 1, "b": 2, "c": 3}] * 4).forged(count_more))
    assert "the tokens don't add up" in texts(verdict, Severity.BROKEN)


def test_an_anchor_that_lacks_merged_work_does_not_follow_from_the_one_before() -> None:
    ledgers = Ledgers("ab")
    for _ in range(2):
        ledgers.round({"a": 4, "b": 4})
    ledgers.round({"a": 4}, ("a",))
    ledgers.round({"a": 4}, ("a",))
    ledgers.round({"b": 4}, ("b",))
    ledgers.whole("b", of="a", superseded=("b",))
    verdict = judged(ledgers.text[1:])
    assert "no ledger says how version 4 came to be" in texts(verdict, Severity.INCOMPLETE)


def test_of_two_anchors_that_fit_neither_is_taken_for_the_base() -> None:
    ledgers = Ledgers("abcd")
    ledgers.round({"a": 4, "c": 4})
    ledgers.round({"a": 4, "b": 4}, ("a", "b"))
    ledgers.round({"c": 4, "d": 4}, ("c", "d"))
    at = ledgers.lineages["a"]
    ledgers.round({"a": 4, "b": 4}, ("a", "b"))
    ledgers.restart("d")
    ledgers.whole("d", of="a")
    files = ledgers.files
    files["d"] = [*files["d"][:2], {**files["a"][-1], "name": "d", "incarnation": 2}]
    for name in "ab":
        del files[name][-1]
    assert at.version == 2
    verdict = judged(ledgers.text)
    assert "no ledger" in texts(verdict, Severity.INCOMPLETE)


def test_a_learner_that_gets_on_alone_is_an_open_fork() -> None:
    """It is not stranded: it has sealed more than once."""
    ledgers = run_of([{"a": 1, "b": 2, "c": 3}] * 2)
    for _ in range(2):
        ledgers.round({"c": 4}, ("c",))
        ledgers.round({"a": 4, "b": 4}, ("a", "b"))
    assert "c ended on it" in texts(judged(ledgers.text), Severity.BROKEN)


def test_two_learners_that_end_on_one_other_anchor_are_an_open_fork() -> None:
    ledgers = run_of([{"a": 1, "b": 2, "c": 3}] * 2, (*NAMES, "d", "e"))
    ledgers.round({"d": 4, "e": 4}, ("d", "e"))
    ledgers.round({"a": 4, "b": 4}, ("a", "b", "c"))
    assert "d, e ended on it" in texts(judged(ledgers.text), Severity.BROKEN)


def sealer_dies(ledgers: Ledgers) -> None:
    """It has taken its own seal, and nobody else has it."""
    ledgers.round({"a": 4, "b": 4}, ("a",), salt="dies")


def test_a_sealer_that_died_with_its_last_seal_is_a_note() -> None:
    ledgers = run_of([{"a": 1, "b": 2, "c": 3}] * 3)
    sealer_dies(ledgers)
    ledgers.round({"b": 4, "c": 4}, ("b", "c"))
    ledgers.round({"b": 4, "c": 4}, ("b", "c"))
    verdict = judged(ledgers.text)
    assert verdict.status == 0
    assert "is the last line of a" in texts(verdict, Severity.NOTE)

    ledgers.restart("a")
    ledgers.whole("a", of="b")
    assert "all came back from it" in texts(judged(ledgers.text), Severity.NOTE)


def test_a_rollback_gives_up_what_came_after() -> None:
    """A learner that had ended before did not follow."""
    ledgers = run_of([{"a": 1, "b": 2, "c": 3}] * 3)
    at = ledgers.lineages["a"]
    ledgers.round({"a": 9, "b": 9})
    ledgers.round({"a": 9, "b": 9})
    back = at.rolled_back(b"another genesis")
    ledgers.lineages["a"] = back
    for name in ("a", "b"):
        ledgers.whole(name, of="a", reason="rolled_back", sealer="a")
    ledgers.round({"a": 2, "b": 2}, ("a", "b"))
    verdict = judged(ledgers.text)
    assert verdict.status == 0
    assert "given up by a rollback, and c had ended before" in texts(verdict, Severity.NOTE)
    assert story_of(ledgers.text).tokens == 18 + 4


def two_clusters(apart_s: float) -> list[Source]:
    one, other = Ledgers("ab"), Ledgers("cd", genesis=b"h" * 16)
    other.now += apart_s
    for ledgers in (one, other):
        first, second = ledgers.names
        for _ in range(3):
            ledgers.round({first: 2, second: 2})
    return one.text + other.text


def test_two_clusters_that_never_met_are_no_run() -> None:
    verdict = judged(two_clusters(0))
    assert verdict.status == 1
    assert "nothing in common" in texts(verdict, Severity.BROKEN)


def test_of_learners_that_never_met_at_another_time_no_ledger_tells_what_they_were() -> None:
    verdict = judged(two_clusters(1000))
    assert verdict.status == 3
    told = texts(verdict, Severity.INCOMPLETE)
    assert "a, b: a branch with versions 1 to 3; it has no anchor and no learner in common" in told
    assert "No ledger tells whether it was another run" in told


def test_an_earlier_learner_that_merged_nothing_is_a_note() -> None:
    earlier = Ledgers("cd", genesis=b"h" * 16)
    earlier.whole("d", of="c")
    later = Ledgers("ab")
    later.now += 1000
    later.whole("b", of="a")
    for _ in range(3):
        later.round({"a": 2, "b": 2})
    verdict = judged(earlier.text + later.text)
    assert verdict.status == 0
    assert texts(verdict, Severity.NOTE) == (
        "d ended with first weights, on which nothing was merged"
    )


def second_run(*, restarts: bool) -> list[Source]:
    """One run after the other in the same files, with other first weights."""
    first = Ledgers("ab")
    second = Ledgers("ab", genesis=b"h" * 16)
    second.now += 1000
    for ledgers in (first, second):
        if restarts and ledgers is second:
            ledgers.restart("a")
            ledgers.restart("b")
        for _ in range(3):
            ledgers.round({"a": 2, "b": 2})
    both = zip(first.text, second.text, strict=True)
    return [(name, [*lines, *more]) for (name, lines), (_, more) in both]


def test_a_second_run_of_the_same_learners_in_the_same_files_is_a_note() -> None:
    verdict = judged(second_run(restarts=True))
    assert verdict.status == 0
    told = texts(verdict, Severity.NOTE)
    assert "another run" in told
    assert "came back" not in told


def same_first_weights(
    *, overlap: bool = False, shared: bool = False, again: bool = False
) -> list[Source]:
    """A run of a and b, and one of c and d, with the same first weights, which b and d have taken
    whole. They are one after the other, unless they `overlap`; or c is a process that was `shared`:
    it had an offer in the first run; or b is started `again`, and takes the place of d."""
    first, last = Ledgers("abc" if shared else "ab"), "b" if again else "d"
    second = Ledgers(f"c{last}")
    second.now += 5 if overlap else 1000
    second.restart(last)
    for ledgers in (first, second):
        sealer, taker = ("a", "b") if ledgers is first else ("c", last)
        ledgers.whole(taker, of=sealer)
        workers = {sealer: 2, taker: 2}
        for _ in range(3):
            members = workers | {"c": 2} if shared and ledgers is first else workers
            ledgers.round(members, (sealer, taker))
    of_both = {name: [*lines] for name, lines in first.text if name != "c"}
    return [*of_both.items(), *second.text]


def test_of_learners_with_the_same_first_weights_no_ledger_tells_either() -> None:
    verdict = judged(same_first_weights())
    assert verdict.status == 3
    told = texts(verdict, Severity.INCOMPLETE)
    assert "only the first weights and no learner in common with the others'" in told


def test_an_earlier_run_with_the_same_first_weights_is_a_note_if_a_learner_was_in_both() -> None:
    verdict = judged(same_first_weights(again=True))
    assert verdict.status == 0
    (told,) = [note for note in texts(verdict, Severity.NOTE).splitlines() if "another run" in note]
    assert "it has only its first weights in common with this one" in told


@pytest.mark.parametrize("how", ["overlap", "shared"])
def test_a_fork_from_the_first_weights_is_no_other_run(how: str) -> None:
    verdict = judged(same_first_weights(**{how: True}))
    assert verdict.status == 1
    assert "a branch" in texts(verdict, Severity.BROKEN)
    assert "another run" not in texts(verdict, Severity.NOTE)


def test_a_fork_from_merged_work_is_no_other_run_though_all_were_started_again() -> None:
    ledgers = run_of([{"a": 1, "b": 2, "c": 3}])
    base = dict(ledgers.lineages)
    for pair in ("ab", "bc"):
        ledgers.lineages.update(base)
        for name in pair:
            ledgers.restart(name)
        ledgers.now += 1000
        for _ in range(2):
            ledgers.round(dict.fromkeys(pair, 2), pair)
    verdict = judged(ledgers.text)
    assert verdict.status == 1
    assert "another run" not in texts(verdict, Severity.NOTE)


def test_a_process_that_went_over_to_another_model_is_of_the_same_run() -> None:
    assert "all came back from it" in texts(judged(second_run(restarts=False)), Severity.NOTE)


def test_rounds_before_a_late_joiner_are_no_gap_and_those_that_it_missed_are() -> None:
    ledgers = run_of([{"a": 1, "b": 2}] * 3)
    ledgers.round({"a": 1, "b": 2}, ("a", "b"))
    ledgers.round({"a": 1, "b": 2}, ("a", "b"))
    ledgers.whole("c", of="a")
    ledgers.round({"a": 1, "c": 2})
    assert judged(ledgers.text).status == 0
    alone = judged(ledgers.text[2:])
    assert alone.status == 3
    assert "no ledger says who was in versions 4 to 5" in texts(alone, Severity.INCOMPLETE)
    late = [("c.jsonl", dict(ledgers.text)["c.jsonl"][3:])]
    assert judged(late).status == 0


DAMAGE: list[tuple[Callable[[str], str], str]] = [
    (lambda line: line[:40], "it is no JSON"),
    (lambda line: "[]", "no record"),
    (lambda line: json.dumps({**json.loads(line), "tokens": "many"}), "'tokens' is 'many'"),
    (lambda line: json.dumps({**json.loads(line), "mine": 1}), "'mine' is 1"),
    (lambda line: json.dumps({**json.loads(line), "members": [3]}), "3 is no record"),
    (lambda line: json.dumps({**json.loads(line), "absent": [3]}), "'absent' is 3"),
    (lambda line: json.dumps({"time": 1.0}), "no field 'name'"),
    (lambda line: json.dumps({**json.loads(line), "tokens": 10**30}), "'tokens' is no number that"),
    (lambda line: json.dumps({**json.loads(line), "time": 10**400}), "'time' is no number that"),
    (lambda line: json.dumps({**json.loads(line), "time": math.nan}), "'time' is no number that"),
    (lambda line: json.dumps({**json.loads(line), "time": -math.inf}), "'time' is no number that"),
    (lambda line: "[" * 100_000, "it is no JSON"),
]


@pytest.mark.parametrize(("damage", "why"), DAMAGE, ids=[why for _, why in DAMAGE])
def test_a_damaged_line_is_told_and_the_others_count(
    damage: Callable[[str], str], why: str
) -> None:
    files = run_of([{"a": 1, "b": 2, "c": 3}] * 4).text
    files[1][1][1] = damage(files[1][1][1])
    story = story_of(files)
    assert len(story.lines) == 11
    verdict = verdict_of(story)
    assert verdict.status == 3
    assert why in texts(verdict, Severity.INCOMPLETE)
    assert "b.jsonl:2" in texts(verdict, Severity.INCOMPLETE)


def test_a_file_that_is_no_ledger_is_one_finding() -> None:
    files = run_of([{"a": 1, "b": 2, "c": 3}] * 4).text
    verdict = judged([*files, ("notes.txt", ["", *["dear diary"] * 40])])
    assert verdict.status == 3
    assert texts(verdict, Severity.INCOMPLETE).splitlines() == [
        "notes.txt is no ledger: 40 of 40 lines are none of a ledger; the first one, line 2: it is"
        " no JSON, as when a full disk cuts a line short"
    ]
    (finding,) = judged([("one", ["{}"])]).findings
    assert finding.text == (
        "one is no ledger: its only line is none of a ledger; line 1: it has no field 'time'"
    )


def test_a_ledger_with_many_damaged_lines_is_one_finding_and_its_others_count() -> None:
    files = run_of([{"a": 1, "b": 2, "c": 3}] * 4).text
    files[1][1][1:1] = ["["] * 4
    story = story_of(files)
    assert len(story.lines) == 12
    told = texts(verdict_of(story), Severity.INCOMPLETE)
    assert told.startswith("b.jsonl: 4 of 8 lines are none of a ledger; the first one, line 2: ")
    assert len(told.splitlines()) == 1
    del files[1][1][1]
    assert len(verdict_of(story_of(files)).findings) == 3


def test_a_fault_of_a_long_field_is_cut() -> None:
    files = run_of([{"a": 1, "b": 2, "c": 3}]).text
    files[0][1][0] = json.dumps({**json.loads(files[0][1][0]), "mine": "x" * 10_000})
    assert len(texts(judged(files), Severity.INCOMPLETE)) < 500


@few
@given(st.lists(st.text(max_size=20), max_size=5))
def test_any_text_is_read(lines: list[str]) -> None:
    story = story_of([("noise", lines)])
    assert verdict_of(story).status in (0, 3)


def test_fields_of_a_later_version_are_left_out() -> None:
    files = run_of([{"a": 1, "b": 2, "c": 3}]).text
    lines = [json.dumps({**json.loads(line), "novel": {}}) for line in files[0][1]]
    assert judged([("a", lines)]).status == 0


def test_the_account_of_each_learner() -> None:
    ledgers = Ledgers(NAMES)
    ledgers.round({"a": 10, "b": 30})
    ledgers.round({"a": 10, "b": 30, "c": 20})
    accounts = story_of(ledgers.text).accounts
    assert [accounts[n].tokens for n in NAMES] == [20, 60, 20]
    assert [accounts[n].rounds for n in NAMES] == [2, 2, 1]
    assert [accounts[n].absences for n in NAMES] == [0, 0, 1]
    assert [accounts[n].sealed for n in NAMES] == [2, 0, 0]
    assert [round(accounts[n].lag, 2) for n in NAMES] == [0.0, 0.25, 0.5]
    # Both others took two seals of 300 bytes, and their offers have 100.
    assert accounts["a"].sent == accounts["b"].received + accounts["c"].received == 1200
    assert accounts["a"].received == accounts["b"].sent + accounts["c"].sent == 400
