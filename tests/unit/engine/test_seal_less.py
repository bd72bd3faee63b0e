"""A sealer that is asked for a seal on the learner's anchor, and has none: its branch is another
one. It hands over its whole anchor, which is taken as soon as it is believed."""

from __future__ import annotations

from mend_optim.engine.effects import Install
from mend_optim.engine.majority import PAUSES
from mend_optim.protocol.lineage import Lineage, PeerId
from mend_optim.protocol.messages import Want
from mend_optim.protocol.timing import Timing
from tests.support.engines import FOURTH, PEER, THIRD, DrivenEngine, grown, state_of
from tests.unit.engine.test_majority import advance_all, claimed, experienced, pass_awake

TIMING = Timing()
ROUND_S = TIMING.round_timeout_s
PEERS = (PEER, THIRD, FOURTH)
#: For as long the learner's anchor stands still before it takes anybody's.
PATIENCE_S = PAUSES * PAUSES * TIMING.evict_after_s


def of_rare_rounds() -> tuple[DrivenEngine, PeerId]:
    """A learner whose rounds take long, and its sealer."""
    engine = experienced(*PEERS)
    for pause_s in (TIMING.evict_after_s, PAUSES * TIMING.evict_after_s):
        pass_awake(engine, pause_s - 1.0)
        advance_all(engine, PEERS)
    sealer = engine.engine.state.roster.sealer(0)
    assert sealer
    return engine, sealer


def asked(
    engine: DrivenEngine, sealer: PeerId, shown: Lineage, *, seconds: float, answers: bool
) -> list[tuple[float, bool]]:
    """Time passes in which the sealer shows an anchor, and hands it over if it `answers`. Returns
    when it was asked for anything, and whether for its whole anchor."""
    since, wants = engine.now, []
    while engine.now < since + seconds:
        for peer in PEERS:
            engine.beat(peer, shown if peer == sealer else engine.lineage, step=3)
        for to, want in engine.sent(Want):
            assert to == sealer
            wants.append((engine.now - since, want.have == b""))
            if answers:
                engine.receive(state_of(shown, peer=sealer))
        engine.tick(1.0)
    return wants


def doubted_while(engine: DrivenEngine, shown: Lineage, seconds: float) -> list[PeerId]:
    """All peers show an anchor for so long. Returns those that are doubted then."""
    for _ in range(int(seconds)):
        for peer in PEERS:
            engine.beat(peer, shown, step=3)
        engine.tick(1.0)
    return [peer for peer in PEERS if engine.engine.state.claims.doubts(peer)]


def test_it_is_asked_for_seals_ever_less_often_and_for_all_as_soon_as_it_is_believed() -> None:
    engine, sealer = of_rare_rounds()
    shown = claimed(engine.lineage)
    wants = asked(engine, sealer, shown, seconds=PATIENCE_S + 5.0, answers=True)
    second = ROUND_S + TIMING.beat_s
    third, fourth = second + 2 * ROUND_S, second + 5 * ROUND_S
    for_seals = [(at, False) for at in (0.0, second, third, fourth)]
    assert wants == [*for_seals, (PATIENCE_S, True)]
    (install,) = engine.jobs(Install)
    engine.done(install)
    engine.apply()
    assert engine.lineage == shown
    # It has handed over an anchor that was of use: it is asked for seals again.
    wants = asked(engine, sealer, grown(grown(shown)), seconds=1.0, answers=False)
    assert wants == [(0.0, False)]


def test_an_anchor_that_was_held_is_taken_as_soon_as_it_is_believed() -> None:
    engine, sealer = of_rare_rounds()
    shown = claimed(engine.lineage)
    asked(engine, sealer, shown, seconds=2.0, answers=True)
    assert engine.jobs(Install) == []
    for peer in PEERS:
        engine.beat(peer, shown, step=3)
    (install,) = engine.jobs(Install)
    assert install.states[0].lineage == shown


def test_one_that_does_not_answer_is_doubted_although_it_is_believed() -> None:
    engine, sealer = of_rare_rounds()
    shown = claimed(engine.lineage)
    wants = asked(engine, sealer, shown, seconds=PATIENCE_S + 5.0, answers=False)
    assert len(wants) == 4
    assert not any(whole for _, whole in wants)


def test_a_peer_that_hands_over_something_else_than_what_is_believed_is_doubted() -> None:
    """It could keep others out by an anchor of its choice, again and again."""
    engine, _ = of_rare_rounds()
    shown = grown(engine.lineage)
    for peer in PEERS:
        engine.beat(peer, shown, step=3)
    ((to, _),) = engine.sent(Want)
    engine.receive(state_of(claimed(shown), peer=to))
    assert engine.jobs(Install) == []
    assert to not in doubted_while(engine, shown, ROUND_S - 1.0)
    assert doubted_while(engine, shown, 1.0) == [to]


def test_what_it_did_not_hand_over_as_a_seal_counts_where_its_anchor_is_believed() -> None:
    """Else it could hold up a learner for twice as long."""
    engine, sealer = of_rare_rounds()
    shown = claimed(engine.lineage)
    wants = asked(engine, sealer, shown, seconds=2 * ROUND_S + 2 * TIMING.beat_s, answers=True)
    assert len(wants) == 2
    engine.engine.adoption.pulling.doubt(engine.now, sealer, engine.now - ROUND_S)
    claims, now = engine.engine.state.claims, engine.now
    assert claims.failed(now, sealer, ROUND_S, TIMING.beat_s) - now == 2 * ROUND_S  # the third
