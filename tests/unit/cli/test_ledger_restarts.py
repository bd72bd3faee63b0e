"""A learner that was started again: its ledger has tokens that its own account lacks."""

from __future__ import annotations

import pytest

from mend_optim.cli.ledger.story import story_of
from mend_optim.cli.ledger.verdict import verdict_of
from mend_optim.protocol.lineage import Lineage
from tests.support.ledgers import Ledgers, Source

TOKENS = {"a": 30, "b": 20}


def killed(after: int = 2, fragment: int = 0) -> tuple[Ledgers, Lineage]:
    """b saved a checkpoint after two rounds, and was killed so many rounds later. What it had saved
    is the second one."""
    ledgers = Ledgers("ab", fragment)
    for _ in range(2):
        ledgers.round(TOKENS)
    saved = ledgers.lineages["b"]
    for _ in range(after):
        ledgers.round(TOKENS)
    return ledgers, saved


def restart(ledgers: Ledgers, saved: Lineage | None, *, mine: bool = False) -> None:
    """b starts again, from the checkpoint if there is one, and takes the anchor of a."""
    ledgers.restart("b")
    if saved:
        current, ledgers.lineages["b"] = ledgers.lineages["a"], saved
        ledgers.whole("b", of="b", reason="restored")
        ledgers.lineages["a"] = current
    ledgers.whole("b", of="a", mine=mine)


def uncounted(files: list[Source]) -> dict[str, int]:
    return {name: account.uncounted for name, account in story_of(files).accounts.items()}


def test_what_a_killed_process_merged_after_its_checkpoint_is_told() -> None:
    ledgers, saved = killed()
    restart(ledgers, saved)
    ledgers.round(TOKENS)
    assert uncounted(ledgers.text) == {"a": 0, "b": 40}
    verdict = verdict_of(story_of(ledgers.text))
    assert verdict.status == 0
    (note,) = verdict.findings
    assert note.text == (
        "b: of its 100 tokens, earlier processes merged 40 that no checkpoint gave to the later"
        " ones. They are in the model, and status() and finish() don't count them"
    )


def test_an_offer_that_was_on_its_way_in_the_checkpoint_counts() -> None:
    ledgers, saved = killed()
    restart(ledgers, saved, mine=True)
    ledgers.round(TOKENS)
    assert uncounted(ledgers.text)["b"] == 20


def test_without_a_checkpoint_all_is_told_that_was_merged_before() -> None:
    ledgers, _ = killed()
    restart(ledgers, None)
    ledgers.round(TOKENS)
    assert uncounted(ledgers.text)["b"] == 80


@pytest.mark.parametrize("after", [0, 1])
def test_a_learner_that_starts_twice_from_one_checkpoint_has_lost_each_offer_once(
    after: int,
) -> None:
    ledgers, saved = killed()
    restart(ledgers, saved)
    for _ in range(after):
        ledgers.round(TOKENS)
    restart(ledgers, saved)
    assert uncounted(ledgers.text)["b"] == 40 + 20 * after


def test_a_process_that_meets_nobody_again_has_not_heard_of_what_was_merged() -> None:
    """The others have ended by then, so all that it writes is the line of its checkpoint."""
    ledgers, saved = killed()
    ledgers.restart("b")
    ledgers.lineages["b"] = saved
    ledgers.whole("b", of="b", reason="restored")
    assert uncounted(ledgers.text) == {"a": 0, "b": 40}


def test_a_process_that_goes_on_after_another_has_heard_of_all() -> None:
    """The one between has only the line of its checkpoint. The last one goes on from a later
    checkpoint of the first."""
    ledgers, saved = killed()
    later = ledgers.lineages["a"]
    ledgers.restart("b")
    ledgers.lineages["b"] = saved
    ledgers.whole("b", of="b", reason="restored")
    ledgers.lineages["b"] = later
    restart(ledgers, later)
    ledgers.round(TOKENS)
    assert uncounted(ledgers.text) == {"a": 0, "b": 0}


def test_a_checkpoint_after_the_last_round_loses_nothing() -> None:
    ledgers, saved = killed(after=0)
    restart(ledgers, saved)
    ledgers.round(TOKENS)
    assert uncounted(ledgers.text) == {"a": 0, "b": 0}
    assert verdict_of(story_of(ledgers.text)).findings == ()


def test_fragments_have_lost_the_same_work() -> None:
    files = []
    for fragment in range(2):
        ledgers, saved = killed(fragment=fragment)
        restart(ledgers, saved)
        files += ledgers.text
    assert uncounted(files)["b"] == 40
