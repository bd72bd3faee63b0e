"""The content of a checkpoint, before it is plain data."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mend_optim.codecs.packing import as_bytes
from mend_optim.engine.absence import PRESENT, Absence
from mend_optim.engine.accounts import Totals
from mend_optim.engine.pending import Pending
from mend_optim.engine.standing import Standing
from mend_optim.model.layout import Layout
from mend_optim.protocol.lineage import Claim, Lineage, PeerId, content_digest
from mend_optim.protocol.messages import SIZES
from mend_optim.worker.checkpoint import (
    FACTORS,
    NUMBERS,
    Checkpoint,
    Kept,
    anchored,
    is_of,
    is_past,
    keep,
    kept_correction,
    newest,
    state_digest,
    to_state,
    with_group,
)
from mend_optim.worker.correction import Correction, MomentCorrection
from tests.support.checkpoints import assert_alike

CLAIM = Claim(PeerId("a", 1), 0)
LAYOUT = Layout(["w"], [torch.zeros(2)], 1)
(FRAGMENT,) = LAYOUT.fragments
PENDING = Pending(claim=CLAIM, seq=1, step=2, tokens=3, steps=2, due=True)
STANDING = Standing(
    lineage=Lineage.fresh(b"g" * 16),
    claim=CLAIM,
    cycle_start=0,
    settled=Totals(),
    dropped_tokens=0,
    pending=PENDING,
    correction_pending=False,
    adopt_at=5,
    has_unsent_residual=True,
    disagrees=True,
)


def test_the_newest_process_of_a_name_is_found_wherever_the_checkpoint_has_it() -> None:
    merged = {PeerId("a", 7): 3, PeerId("b", 90): 1}
    lineage = replace(STANDING.lineage, merged=merged)
    claimed = replace(STANDING, claim=Claim(PeerId("a", 8), 0))
    offered = replace(STANDING, pending=replace(PENDING, claim=Claim(PeerId("a", 9), 0)))
    for standing, expected in ((STANDING, 1), (claimed, 8), (offered, 9)):
        assert newest("a", Checkpoint(fragments=(Kept(standing, {}),))) == expected
    assert newest("a", Checkpoint(fragments=(Kept(replace(STANDING, lineage=lineage), {}),))) == 7
    history = ("a#b", "a#a", "b#ff", "nonsense", "a#nonsense", "a#")
    checkpoint = Checkpoint(history=history, fragments=(Kept(offered, {}),))
    assert newest("a", checkpoint) == 11
    assert newest("c", checkpoint) == 0
    assert newest("a", Checkpoint()) == 0
    assert is_past(PeerId("a", 11), checkpoint)
    assert not is_past(PeerId("a", 12), checkpoint)


def tensors() -> dict[str, Tensor]:
    names = ("anchor", "velocity", "delta", "residual", "lost", "disagreement")
    names = (*names, "own exp_avg", "latest exp_avg")
    return {name: torch.full((2,), float(i)) for i, name in enumerate(names)}


def test_without_a_pending_offer_nothing_of_it_is_kept() -> None:
    assert_alike(keep(STANDING, tensors(), None).tensors, tensors())
    kept = keep(replace(STANDING, pending=None), tensors(), None)
    assert set(tensors()) - set(kept.tensors) == {"delta", "lost", "own exp_avg"}


@pytest.mark.parametrize("becomes", [False, True])
def test_a_correction_is_kept_as_a_copy_and_comes_back(becomes: bool) -> None:
    moments = (
        MomentCorrection("exp_avg", torch.ones(2), (3,), newcomer=False),
        MomentCorrection("exp_avg_sq", torch.zeros(2), (4,), newcomer=True),
    )
    correction = Correction(0, torch.tensor([1.0, 2.0]), becomes, moments)
    kept = keep(STANDING, tensors(), correction)
    correction.values.zero_()
    back = kept_correction(FRAGMENT, kept, torch.empty(2))
    assert (back.fragment, back.replace, back.values.tolist()) == (0, becomes, [1.0, 2.0])
    found = {m.moment: (m.values.tolist(), m.updates, m.newcomer) for m in back.moments}
    assert found == {"exp_avg": ([1.0, 1.0], (3,), False), "exp_avg_sq": ([0.0, 0.0], (4,), True)}


def test_other_weights_become_the_anchor_and_progress_is_dropped() -> None:
    of_the_anchor = {name: torch.ones(1) for name in (*NUMBERS, FACTORS, SIZES)}
    kept = Kept(replace(STANDING, absence=Absence(2, 30)), {**tensors(), **of_the_anchor})
    found = anchored(kept)
    assert found.replace
    names = {"anchor", "velocity", "latest exp_avg", *of_the_anchor}
    assert set(found.tensors) == {*names, "correction"}
    assert all(found.tensors[name] is kept.tensors[name] for name in names)
    assert torch.equal(found.tensors["correction"], found.tensors["anchor"])
    assert found.standing == replace(
        STANDING,
        pending=None,
        correction_pending=True,
        adopt_at=None,
        has_unsent_residual=False,
        disagrees=False,
        absence=PRESENT,
    )


def test_an_added_group_is_a_fragment_of_the_same_genesis_without_work() -> None:
    saved = Checkpoint(step=4, tokens=9, weights="ab", fragments=(Kept(STANDING, tensors()),))
    anchor = torch.tensor([1.0, 2.0, 3.0])
    found = with_group(saved, anchor, "cd")
    assert found.weights == "ab cd"
    assert found.fragments[0] is saved.fragments[0]
    standing = found.fragments[1].standing
    assert standing.lineage.genesis == STANDING.lineage.genesis
    assert standing.lineage.digest == content_digest(as_bytes(anchor))
    assert (standing.lineage.tokens, standing.cycle_start) == (0, 4)
    assert standing.settled == Totals(4, 9)
    assert standing.pending is None
    assert found.fragments[1].tensors == {"anchor": anchor}


def state() -> dict[str, object]:
    return to_state(Checkpoint(step=4, tokens=9, fragments=(Kept(STANDING, tensors()),)), LAYOUT)


def test_the_digest_covers_everything_but_itself() -> None:
    assert state()["content"] == state_digest(state())
    assert state_digest({**state(), "content": "other"}) == state_digest(state())
    assert state_digest({**state(), "step": 5}) != state_digest(state())
    changed = tensors()
    changed["residual"][1] += 1
    other = Checkpoint(step=4, tokens=9, fragments=(Kept(STANDING, changed),))
    assert state_digest(to_state(other, LAYOUT)) != state_digest(state())


def test_the_keys_of_format_1_stay_as_they_are() -> None:
    (fragment,) = state()["fragments"]  # type: ignore[misc]
    assert list(state()) == [
        "format",
        "model",
        "step",
        "tokens",
        "head_start",
        "weights",
        "history",
        "fragments",
        "content",
    ]
    assert list(fragment) == [
        "lineage",
        "claim",
        "mark",
        "banked",
        "dropped_tokens",
        "pending",
        "untaken",
        "adopt_at",
        "averaged",
        "last",
        "owes",
        "disagrees",
        "replace",
        "tensors",
    ]
    assert list(fragment["pending"]) == [
        "claim",
        "seq",
        "step",
        "tokens",
        "steps",
        "follows",
        "due",
        "missed",
        "closing",
        "again",
    ]


def test_rates_are_kept_where_they_are_counted() -> None:
    standing = replace(STANDING, settled=Totals(0, 0, 0.25), pending=replace(PENDING, rate=0.5))
    counted = Checkpoint(step=4, tokens=9, rate=0.75, fragments=(Kept(standing, tensors()),))
    found = to_state(counted, LAYOUT)
    (fragment,) = found["fragments"]
    assert (found["rate"], fragment["banked_rate"]) == (0.75, 0.25)
    assert fragment["pending"]["rate"] == 0.5


def test_a_checkpoint_without_a_disagreement_says_nothing_of_it() -> None:
    """It is the same to the bit as one of a version that has no disagreements."""
    kept = Kept(replace(STANDING, disagrees=False), tensors())
    (fragment,) = to_state(Checkpoint(step=4, tokens=9, fragments=(kept,)), LAYOUT)["fragments"]
    assert "disagrees" not in fragment


def test_missed_rounds_and_shares_are_kept_where_there_are_any() -> None:
    """Else a checkpoint is the same to the bit as one of a version that has none."""
    pending = replace(PENDING, share=0.25, absence=Absence(1, 7))
    missed = replace(STANDING, absence=Absence(2, 30), pending=pending)
    entries = [
        to_state(Checkpoint(step=4, tokens=9, fragments=(Kept(standing, tensors()),)), LAYOUT)
        for standing in (missed, STANDING)
    ]
    (told,), (untold,) = (entry["fragments"] for entry in entries)
    assert (told["missed_rounds"], told["pending"]["missed_rounds"]) == ([2, 30], [1, 7])
    assert told["pending"]["share"] == 0.25
    assert "missed_rounds" not in {*untold, *untold["pending"]}
    assert "share" not in untold["pending"]


def test_what_is_no_plain_data_has_no_digest() -> None:
    with pytest.raises(TypeError, match="object is neither a plain container nor a tensor"):
        state_digest({"step": object()})


def test_work_is_of_the_learner_that_every_claim_names() -> None:
    own, other = Claim(PeerId("a", 3), 1), Claim(PeerId("b", 1), 1)
    pending = replace(PENDING, claim=own)
    for claim, offered, names in (
        (own, None, "a"),
        (other, None, "b"),
        (own, pending, "a"),
        (other, pending, ""),
        (own, replace(pending, claim=other), ""),
    ):
        kept = Kept(replace(STANDING, claim=claim, pending=offered), {})
        assert [name for name in "ab" if is_of(name, kept)] == list(names)
