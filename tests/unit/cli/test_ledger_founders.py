"""Anchors that a learner founded alone, of its own weights, in the middle of a run."""

from __future__ import annotations

from mend_optim.cli.ledger.chains import Link
from mend_optim.cli.ledger.story import story_of
from mend_optim.cli.ledger.verdict import Severity, verdict_of
from tests.support.ledgers import Files, Ledgers


def left_alone(*, restarts: bool = False) -> Ledgers:
    """b dies after three rounds. a trains on alone, or starts again from a checkpoint with a clock
    that is behind. When c comes, which takes its weights, they go on together."""
    ledgers = Ledgers("abc")
    for _ in range(3):
        ledgers.round({"a": 30, "b": 20}, ("a", "b"))
    if restarts:
        ledgers.processes["a"] = 0
        ledgers.whole("a", of="a", reason="restored")
        ledgers.processes["a"] = 2
    ledgers.found("a", 500)
    ledgers.whole("c", of="a")
    for _ in range(2):
        ledgers.round({"a": 30, "c": 20}, ("a", "c"))
    return ledgers


def test_a_run_goes_on_where_its_last_learner_founded_an_anchor() -> None:
    story = story_of(left_alone().text)
    assert verdict_of(story).findings == ()
    assert [each.version for each in story.rounds] == [1, 2, 3, 4, 5, 6]
    founded = story.rounds[3]
    assert (founded.reason, founded.members, founded.tokens) == ("founded", {"a": 500}, 500)
    assert {name: account.tokens for name, account in story.accounts.items()} == {
        "a": 5 * 30 + 500,
        "b": 3 * 20,
        "c": 2 * 20,
    }
    assert sum(account.tokens for account in story.accounts.values()) == story.tokens


def test_a_process_that_has_another_incarnation_founds_on_the_anchor_of_its_checkpoint() -> None:
    story = story_of(left_alone(restarts=True).text)
    assert verdict_of(story).findings == ()
    assert len(story.rounds) == 6


def test_a_learner_that_trained_alone_first_began_the_run() -> None:
    ledgers = Ledgers("ab")
    ledgers.found("a", 500)
    ledgers.whole("b", of="a")
    ledgers.round({"a": 30, "b": 20})
    story = story_of(ledgers.text)
    assert verdict_of(story).findings == ()
    assert story.accounts["a"].tokens == 530


def test_a_new_process_founds_on_nothing_of_its_predecessor() -> None:
    """It starts without a checkpoint, though the one before it had started from one."""
    ledgers = Ledgers("ab")
    for _ in range(3):
        ledgers.round({"a": 30, "b": 20})
    ledgers.restart("a")
    ledgers.whole("a", of="a", reason="restored")
    ledgers.restart("a")
    again = Ledgers("a", genesis=b"h" * 16)
    again.processes, again.now = ledgers.processes, ledgers.now + 1000
    again.found("a", 500)
    lines = [*dict(ledgers.text)["a.jsonl"], *dict(again.text)["a.jsonl"]]
    story = story_of([("a.jsonl", lines)])
    founded = next(a for a in story.chains[0].anchors.values() if a.founded)
    assert (founded.base, founded.link) == (None, Link.START)


def test_lines_that_its_founder_lost_are_missing() -> None:
    def lose(first: int, last: int) -> str:
        def change(files: Files) -> None:
            del files["a"][first - 1 : last]
            files["b"].clear()

        verdict = verdict_of(story_of(left_alone().forged(change)))
        assert verdict.status == 3
        return "\n".join(f.text for f in verdict.findings if f.severity is Severity.INCOMPLETE)

    assert "no ledger says who was in versions 3 to 4" in lose(3, 3)
    assert "no ledger says how version 4 came to be" in lose(1, 3)
