"""A seal of the learner that was the sealer until the roster changed."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from mend_optim.engine.effects import Advance
from mend_optim.engine.former_sealers import FormerSealers
from mend_optim.protocol.lineage import Lineage, PeerId
from mend_optim.protocol.messages import Want
from tests.support.engines import FOURTH, ME, PEER, THIRD, DrivenEngine, grown, seal_of
from tests.unit.engine.test_majority import experienced

PEERS = (PEER, THIRD, FOURTH)
NO_ZONES: dict[PeerId, str] = {}
A, B, ANCHOR = PeerId("a", 1), PeerId("b", 1), b"anchor"


def test_the_one_before_the_present_sealer_may_have_sealed_on_the_anchor_of_that_time() -> None:
    sealers = FormerSealers()
    sealers.look(0, A, b"earlier")
    sealers.look(0, None, b"earlier")
    sealers.look(0, A, ANCHOR)
    for anchor in (b"earlier", ANCHOR):
        assert not sealers.may_have_sealed(0, A, anchor)  # it is the present one
    sealers.look(0, B, ANCHOR)
    sealers.look(0, B, b"later")
    assert sealers.may_have_sealed(0, A, ANCHOR)
    for p, peer, anchor in ((0, A, b"earlier"), (0, A, b"later"), (0, B, ANCHOR), (1, A, ANCHOR)):
        assert not sealers.may_have_sealed(p, peer, anchor)


def replaced() -> tuple[DrivenEngine, PeerId]:
    """A learner among others, and the sealer that they had before a newcomer came."""
    engine = experienced(*PEERS)
    engine.tick(0.1)
    roster = engine.engine.state.roster
    former = roster.sealer(0)
    assert former
    for i in range(100):
        newcomer = PeerId(f"new-{i}", 1)
        engine.beat(newcomer, engine.lineage)
        if roster.sealer(0) == newcomer:
            engine.tick(0.1)
            engine.sent(Want)
            return engine, former
        roster.leave(newcomer)
    raise AssertionError("nobody takes its place")


def replaced_with_our_offer() -> tuple[DrivenEngine, PeerId]:
    """The same, where the former sealer had an offer of this learner. It is on its way to the
    present one."""
    engine, former = replaced()
    engine.offer()
    return engine, former


def show(engine: DrivenEngine, peer: PeerId, anchor: Lineage, seconds: int) -> list[Want]:
    """The questions to a peer that alone shows this anchor, for so long."""
    for _ in range(seconds):
        engine.tick(1.0)
        for other in engine.engine.state.roster.peers.values():
            engine.beat(other.id, anchor if other.id == peer else engine.lineage, step=3)
    return [want for to, want in engine.sent(Want) if to == peer]


@pytest.mark.parametrize("who", ["the former sealer", "another"])
@pytest.mark.parametrize("rounds", [1, 2])
def test_a_former_sealer_is_asked_for_its_last_seal(who: str, rounds: int) -> None:
    """Before, the fragment stood still until the learner was stuck."""
    engine, former = replaced()
    other = next(peer for peer in PEERS if peer != former)
    is_former, anchor = who == "the former sealer", grown(engine.lineage)
    if rounds == 2:
        anchor = grown(anchor)  # somebody else may have that whole
    wants = show(engine, former if is_former else other, anchor, seconds=8)
    is_asked = is_former and rounds == 1
    assert [want.have for want in wants] == [engine.lineage.digest] * is_asked


def all_show(
    engine: DrivenEngine, shown: Mapping[PeerId, Lineage], zones: Mapping[PeerId, str] = NO_ZONES
) -> list[PeerId]:
    """Every peer shows an anchor: that of the learner, unless another is given. Returns the peers
    that are asked meanwhile."""
    for peer in [known.id for known in engine.engine.state.roster.peers.values()]:
        anchor = shown.get(peer, engine.lineage)
        engine.beat(peer, anchor, step=3, zone=zones.get(peer, ""))
    return [to for to, _ in engine.sent(Want)]


def shown_by_others(engine: DrivenEngine, former: PeerId) -> dict[PeerId, Lineage]:
    """All but the former sealer show the next anchor."""
    others = set(engine.engine.state.roster.alive()) - {former}
    return dict.fromkeys(others, grown(engine.lineage))


def test_the_former_sealer_is_asked_before_others_that_show_its_anchor() -> None:
    """Only that one has the seal. The others would hand over the whole anchor."""
    engine, former = replaced_with_our_offer()
    anchor, others = grown(engine.lineage), shown_by_others(engine, former)
    assert all_show(engine, others) == []  # it may not have come to that one's beat
    assert all_show(engine, {**others, former: anchor}) == [former]


@pytest.mark.parametrize("offered", [True, False])
def test_the_former_sealer_is_asked_before_the_present_one_that_has_its_anchor(
    offered: bool,
) -> None:
    """The present one has a stream with this learner, and would be asked for seals of its own."""
    engine, former = replaced_with_our_offer() if offered else replaced()
    sealer = engine.engine.state.roster.sealer(0)
    assert sealer
    for peer in (former, sealer):
        engine.engine.linked(engine.now, peer, True)
    anchor = grown(engine.lineage)
    all_show(engine, {sealer: anchor})
    engine.engine.state.wants.clear()
    assert all_show(engine, {former: anchor, sealer: anchor}) == [former]


@pytest.mark.parametrize("why", ["a round more", "doubted", "gone"])
def test_others_are_asked_where_the_former_sealer_has_no_seal_to_give(why: str) -> None:
    engine, former = replaced_with_our_offer()
    state, anchor = engine.engine.state, grown(engine.lineage)
    shown = dict.fromkeys(state.roster.alive(), anchor)
    match why:
        case "a round more":
            shown = dict.fromkeys(shown, grown(anchor)) | {former: engine.lineage}
        case "doubted":
            state.claims.failed(engine.now, former, 1.0, 100.0)
        case "gone":
            state.roster.leave(former)
    (asked,) = all_show(engine, shown)
    assert asked != former


def test_a_former_sealer_that_had_no_offer_of_ours_is_not_waited_for() -> None:
    engine, former = replaced()
    shown = shown_by_others(engine, former)
    (asked,) = all_show(engine, shown)
    assert asked != former


def test_a_former_sealer_is_not_waited_for_where_the_present_one_has_left_our_offer_out() -> None:
    engine, _ = replaced_with_our_offer()
    sealer, pending = engine.engine.state.roster.sealer(0), engine.fragment.pending
    assert sealer
    engine.beat(sealer, grown(engine.lineage), step=3, held=((ME, pending.seq),))
    ((asked, _),) = engine.sent(Want)
    assert asked == sealer


def test_others_are_asked_once_the_former_sealer_had_its_time() -> None:
    engine, former = replaced_with_our_offer()
    shown = shown_by_others(engine, former)
    for _ in range(3):
        assert all_show(engine, shown) == []
        engine.tick(1.0)
    (asked,) = all_show(engine, shown)
    assert asked != former


def test_a_neighbour_is_asked_before_a_former_sealer_elsewhere() -> None:
    engine, former = replaced_with_our_offer()
    roster, anchor = engine.engine.state.roster, grown(engine.lineage)
    roster.zone = "here"
    near = {peer: "here" for peer in roster.alive() if peer != former}
    all_show(engine, {}, near)
    (asked,) = all_show(engine, dict.fromkeys(near, anchor), near)
    assert asked != former


def test_its_last_seal_is_taken_and_no_other() -> None:
    engine, former = replaced()
    engine.receive(seal_of(engine.lineage, sealer=former))
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    engine.receive(seal_of(engine.lineage, sealer=former))
    assert engine.jobs(Advance) == []
