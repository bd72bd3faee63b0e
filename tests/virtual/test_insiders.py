"""The protocol beside one learner that lies, in virtual time: for the honest the laws hold, and
they keep merging. `make test-deep` plays many more."""

from __future__ import annotations

import pytest

from mend_optim.errors import PeerError
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Call, Want
from mend_optim.protocol.peer_limits import COUNTER_LIMIT
from tests.virtual import playing
from tests.virtual.insider import LIES, WAYS, in_grammar
from tests.virtual.insiders import (
    Infiltrated,
    draw,
    draw_apart,
    draw_joint,
    seen_in,
)
from tests.virtual.joint_lies import FORGED, HONEST
from tests.virtual.playing import check, failure
from tests.virtual.storms import Fault

INSIDERS, BATCHES = 40, 2  # pytest may play each batch in another process


@pytest.mark.parametrize("batch", range(BATCHES))
def test_the_honest_keep_the_laws_and_merge_beside_one_that_lies(batch: int) -> None:
    each = INSIDERS // BATCHES
    seen, failed = seen_in(range(batch * each, (batch + 1) * each))
    assert not failed, failed[0]
    lies = (f"lie: {kind}" for kind in LIES if kind != "ways")
    for what in ("rounds beside", "rounds after", "blamed", "pulled", *lies):
        assert seen[what] > 0, f"no {what} in {each} storms: they are too mild to prove anything"


def test_no_lie_of_a_go_between_breaks_a_law_for_the_honest() -> None:
    """It is on the shortest way between most of them, and says so of many others, too."""
    seen, failed = playing.seen_in(range(16), draw_apart)
    assert not failed, failed[0]
    for what in ("lie: ways", "lie: silence", "seal relayed", "offer relayed", "rounds after"):
        assert seen[what] > 0, f"no {what} in 16 storms"


JOINT = (1, 5, 7, 8, 9, 11, 17, 28)  # seeds; all kinds of these lies are in their storms


def test_no_lie_in_a_joint_offer_breaks_a_law_for_the_honest() -> None:
    seen, failed = playing.seen_in(JOINT, draw_joint)
    assert not failed, failed[0]
    for kind in ("merged", "withheld", *HONEST, *FORGED):
        assert seen[f"joint lie: {kind}"] > 0, f"no joint lie: {kind}"


def test_a_joint_offer_of_a_neighbour_keeps_nobody_out_for_ever() -> None:
    """A relay that does not seal held it, and could do nothing with it."""
    assert check(BETWEEN_NEIGHBOURS).seen["joint lie: wrong"]


#: Of four learners in two zones, one sends joint offers to a neighbour that does not seal.
BETWEEN_NEIGHBOURS = Infiltrated(
    710047,
    4,
    3,
    ("joint", "names", "size"),
    lies_per_s=0.5,
    adopt_after=2,
    loss=0.0,
    zones=2,
    says_goodbye=True,
)
RESIDUALS = Infiltrated(20, 4, 2, ("offer",), loss=0.0)
WITHOUT_MEASURE = Infiltrated(20, 3, 1, ("huge", "offer", "seal"), loss=0.0)
#: Its hellos leave honest learners with rosters by which they choose different sealers.
IN_TWO_ROSTERS = Infiltrated(
    9277,
    4,
    3,
    ("hello",),
    lies_per_s=1.0,
    fragments=2,
    adopt_after=0,
    stays=True,
    loss=0.1,
    says_goodbye=True,
    faults=(
        Fault(12.3254282124416, "freeze", ("learner-1", 1.7933249675960865, True)),
        Fault(17.270619459799445, "reset_progress", ("learner-2",)),
    ),
)


def test_a_claim_to_residuals_ends_no_round() -> None:
    """Offers with a claim to residuals, where encodings leave none, once made every seal one that
    all refuse."""
    assert check(RESIDUALS).seen["rounds beside"]


def test_one_that_counts_without_measure_ends_no_round_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its tokens once made an anchor that had no room for anybody's. Here all take its word, as
    they take that of a sealer."""
    monkeypatch.setattr("mend_optim.engine.majority.Majority.believes", lambda *_: True)
    assert check(WITHOUT_MEASURE).seen["rounds after"]
    monkeypatch.setattr("mend_optim.engine.seal_checks.MOST_TOKENS", COUNTER_LIMIT)
    assert "no rounds when it has gone" in failure(WITHOUT_MEASURE)


def test_one_that_parts_the_rosters_of_others_keeps_none_of_them_from_merging(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By its roster, each of two honest ones took the other for the sealer, and waited."""
    assert check(IN_TWO_ROSTERS).seen["rounds beside"]
    monkeypatch.setattr("mend_optim.engine.standoffs.Standoffs._patience_s", lambda *_: 1e9)
    assert "no rounds beside the insider" in failure(IN_TWO_ROSTERS)


def test_what_is_printed_of_an_insider_plays_it_again() -> None:
    storm = draw(3)
    again = eval(repr(storm), {"Infiltrated": Infiltrated, "Fault": Fault})
    assert repr(again) == repr(storm)
    assert again.play().seen == again.play().seen


def test_an_insider_says_nothing_that_the_wire_refuses() -> None:
    me = PeerId("insider", 1)
    assert in_grammar(Want(me, 1, b"digest")) == Want(me, 1, b"digest")
    with pytest.raises(PeerError):
        in_grammar(Call(PeerId("in\nsider", 1), 0))


def test_every_kind_of_lie_is_drawn() -> None:
    drawn = {lie for seed in range(60) for lie in draw(seed).lies}
    assert drawn == {*LIES, *WAYS} - {"ways"}
