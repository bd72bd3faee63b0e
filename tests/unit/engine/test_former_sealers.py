"""A seal of the learner that was the sealer until the roster changed."""

from __future__ import annotations

import pytest

from mend_optim.engine.effects import Advance
from mend_optim.engine.former_sealers import FormerSealers
from mend_optim.protocol.lineage import Lineage, PeerId
from mend_optim.protocol.messages import Want
from tests.support.engines import FOURTH, PEER, THIRD, DrivenEngine, grown, seal_of
from tests.unit.engine.test_majority import experienced

PEERS = (PEER, THIRD, FOURTH)
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


def test_its_last_seal_is_taken_and_no_other() -> None:
    engine, former = replaced()
    engine.receive(seal_of(engine.lineage, sealer=former))
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    engine.receive(seal_of(engine.lineage, sealer=former))
    assert engine.jobs(Advance) == []
