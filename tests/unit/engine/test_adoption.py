from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mend_optim.engine.effects import Advance, Done, Inspect, Install, Prepare
from mend_optim.protocol.lineage import Claim, Entry, Lineage, PeerId
from mend_optim.protocol.messages import Call, Goodbye, Offer, Want
from mend_optim.protocol.transfer_fault import BROKEN
from tests.support.engines import (
    BASE,
    FOURTH,
    GENESIS,
    ME,
    OTHER,
    PEER,
    THIRD,
    DrivenEngine,
    among_peers,
    grown,
    offer_of,
    seal_of,
    state_of,
)


def with_heirs(engine: DrivenEngine) -> DrivenEngine:
    """The engine of a process that was saved: another one may go on from its checkpoint, and offer
    work in its name."""
    engine.engine.standings()
    return engine


def taking(engine: DrivenEngine, base: Lineage = BASE) -> DrivenEngine:
    """The engine after a seal of others' work."""
    engine.receive(seal_of(base))
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    assert engine.lineage == grown(base)
    return engine


# Seals


def test_a_seal_on_our_anchor_is_taken() -> None:
    engine = among_peers()
    engine.receive(seal_of(BASE))
    (advance,) = engine.jobs(Advance)
    assert (advance.lineage, advance.merged_own_offer, advance.replace, advance.sealed_here) == (
        grown(BASE),
        False,
        False,
        False,
    )


def test_a_seal_that_our_former_process_made_of_others_work_takes_nothing_of_ours() -> None:
    engine = among_peers()
    engine.receive(seal_of(BASE, sealer=PeerId(ME.name, 0)))
    (advance,) = engine.jobs(Advance)
    assert (advance.sealed_by_predecessor, advance.forget, advance.sealed_here) == (
        True,
        False,
        False,
    )


def test_a_seal_on_another_anchor_is_not_taken_but_the_anchor_pulled() -> None:
    engine = among_peers()
    engine.receive(seal_of(grown(BASE)))
    assert engine.jobs(Advance) == []
    assert engine.sent(Want) == [(PEER, Want(ME, 0, b""))]


def test_a_seal_whose_lineage_does_not_follow_from_its_members_is_refused() -> None:
    engine = among_peers()
    forged = grown(BASE).key._replace(tokens=10**9)
    engine.receive(seal_of(BASE, key=forged))
    assert engine.jobs(Advance) == []
    assert ["does not follow" in fault for fault in engine.faults()] == [True]


@pytest.mark.parametrize(
    "forged",
    [
        Entry(ME, 1, 41, 4),
        Entry(ME, 1, 40, 3),
        Entry(ME, 1, 0, 4),
        Entry(ME, 2, 40, 4),
    ],
)
def test_a_seal_with_an_offer_that_we_never_made_is_refused(forged: Entry) -> None:
    """Our only offer is #1, of 40 tokens and 4 steps."""
    engine = among_peers()
    assert engine.offer().entry == Entry(ME, 1, 40, 4)
    engine.receive(seal_of(BASE, forged))
    assert engine.jobs(Advance) == []
    assert ["never offered" in fault for fault in engine.faults()] == [True]


def test_work_in_whose_place_something_else_was_merged_counts_as_dropped() -> None:
    """A sealer merged another offer under the number of ours, and the others follow it. Their
    anchor says that it has our offer."""
    engine = among_peers()
    engine.offer()
    forged = Entry(ME, 1, 0, 4)
    engine.receive(seal_of(BASE, forged))
    engine.receive(state_of(grown(BASE, forged)))
    (install,) = engine.jobs(Install)
    assert (install.merged_own_offer, install.replace) == (False, True)
    engine.done(install)
    engine.engine.correction_applied(engine.now, 0, True)
    assert engine.fragment.dropped_tokens == 40


def test_a_renumbered_offer_is_ours_under_all_its_numbers() -> None:
    engine = among_peers()
    first = engine.offer()
    (author, seq, tokens, steps) = first.entry
    engine.fragment.pending.renumbered(seq + 1, 0)  # type: ignore[union-attr]
    engine.receive(seal_of(BASE, Entry(author, seq, tokens, steps)))
    (advance,) = engine.jobs(Advance)
    assert (advance.merged_own_offer, engine.faults()) == (True, [])


def test_after_a_seal_that_is_refused_the_anchor_is_wanted_whole() -> None:
    """Its sealer would answer with the same seal, again and again."""
    engine = among_peers()
    engine.offer()
    engine.receive(replace(seal_of(BASE), weights=(0.5,)))
    assert ["weights do not follow" in fault for fault in engine.faults()] == [True]
    engine.beat(PEER, grown(BASE))
    assert engine.sent(Want) == [(PEER, Want(ME, 0, b""))]
    engine.receive(state_of(grown(BASE)))
    (install,) = engine.jobs(Install)
    engine.done(install)
    engine.apply()
    engine.beat(PEER, grown(engine.lineage))
    assert engine.sent(Want) == [(PEER, Want(ME, 0, engine.lineage.digest))]


def test_a_refused_seal_that_was_wanted_is_no_answer() -> None:
    """Else the learner would wait for another one until the transfer may stand no longer."""
    engine = among_peers()
    engine.beat(PEER, grown(BASE))
    assert engine.sent(Want) == [(PEER, Want(ME, 0, BASE.digest))]
    engine.receive(seal_of(BASE))
    (advance,) = engine.jobs(Advance)
    engine.engine.finished(engine.now, advance, Done(fault="its member is not proven"))
    engine.beat(PEER, grown(BASE))
    assert engine.sent(Want) == [(PEER, Want(ME, 0, b""))]


def test_a_seal_counts_once_however_often_it_comes() -> None:
    engine = taking(among_peers())
    engine.receive(seal_of(BASE))
    assert (engine.jobs(Advance), engine.sent(Want), engine.lineage) == ([], [], grown(BASE))


def test_a_seal_that_merged_our_offer_leaves_only_what_came_after() -> None:
    engine = among_peers()
    offer = engine.offer()
    engine.receive(seal_of(BASE, offer.entry))
    (advance,) = engine.jobs(Advance)
    assert advance.merged_own_offer
    engine.step()
    engine.done(advance)
    assert engine.fragment.pending is None
    assert engine.fragment.unmerged(engine.engine.state.totals).tokens == 10


def test_an_anchor_with_work_of_ours_that_we_know_nothing_of_replaces_our_weights() -> None:
    """In doubt drop, never double: by a seal and by a whole anchor."""
    lost = Entry(ME, 7, 10, 1)
    engine = with_heirs(among_peers())
    engine.offer()
    engine.receive(seal_of(BASE, lost))
    (advance,) = engine.jobs(Advance)
    assert (advance.merged_own_offer, advance.replace) == (False, True)
    engine = among_peers()
    engine.offer()
    engine.receive(state_of(grown(BASE, lost)))
    (install,) = engine.jobs(Install)
    assert (install.merged_own_offer, install.replace) == (False, True)


def test_after_a_drop_the_next_offer_has_a_number_past_all_that_was_merged() -> None:
    """Else nobody would ever take it."""
    engine = with_heirs(among_peers())
    engine.step()
    engine.receive(seal_of(BASE, Entry(ME, 7, 10, 1)))
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    engine.engine.correction_applied(engine.now, 0, True)
    offer = engine.offer()
    assert (offer.seq, offer.tokens) == (8, 40)
    assert engine.lineage.admits(offer.claim)


@pytest.mark.parametrize(("stepped_on", "exactly"), [(0, True), (1, False)])
def test_synchronous_adoption_is_exact_if_nothing_was_trained_since(
    stepped_on: int, exactly: bool
) -> None:
    engine = among_peers(adopt_after=0)
    offer = engine.offer()
    engine.step(stepped_on)
    engine.receive(seal_of(BASE, offer.entry))
    (advance,) = engine.jobs(Advance)
    assert (advance.merged_own_offer, advance.replace) == (True, exactly)


# The gain


def adopted(engine: DrivenEngine, late: int = 0) -> Advance:
    """The job that advances by a seal of the pending offer, which comes so many steps later."""
    pending = engine.fragment.pending
    assert pending is not None
    assert pending.offer is not None
    engine.step(late)
    engine.receive(seal_of(engine.lineage, pending.offer.entry))
    (advance,) = engine.jobs(Advance)
    assert advance.merged_own_offer
    return advance


@pytest.mark.parametrize(("late", "gain"), [(0, 1.0), (1, 1.0), (2, 0.5), (3, 0.5), (4, 0.3)])
def test_a_seal_with_our_offer_has_the_gain_of_the_steps_it_is_late(late: int, gain: float) -> None:
    engine = among_peers()
    engine.offer()
    assert adopted(engine, late).gain == gain


@pytest.mark.parametrize(
    ("adopt_after", "late", "gain"),
    [(0, 1, 1.0), (1, 0, 1.0), (2, 0, 0.5), (3, 0, 0.5), (4, 0, 0.3), (4, 3, 0.3), (2, 4, 0.3)],
)
def test_under_a_fixed_overlap_the_gain_is_that_of_the_step_of_adoption(
    adopt_after: int, late: int, gain: float
) -> None:
    """It doesn't depend on when the seal arrives before that step."""
    engine = among_peers(adopt_after=adopt_after)
    engine.offer()
    assert adopted(engine, late).gain == gain


def test_at_rest_the_gain_is_one_however_late_the_seal_is() -> None:
    engine = among_peers()
    engine.offer()
    engine.step(9)
    engine.engine.rest(engine.now)
    assert adopted(engine).gain == 1


def test_a_seal_without_our_offer_has_no_gain_however_long_ours_is_pending() -> None:
    engine = among_peers()
    engine.offer()
    engine.step(9)
    engine.receive(seal_of(BASE))
    (advance,) = engine.jobs(Advance)
    assert (advance.merged_own_offer, advance.gain) == (False, 1.0)


def test_a_seal_that_replaces_the_weights_has_no_gain() -> None:
    engine = among_peers(adopt_after=0)
    engine.offer()
    advance = adopted(engine)
    assert (advance.replace, advance.gain) == (True, 1.0)
    engine = with_heirs(among_peers())
    engine.offer()
    engine.step(9)
    engine.receive(seal_of(BASE, Entry(ME, 7, 10, 1)))
    (advance,) = engine.jobs(Advance)
    assert (advance.replace, advance.gain) == (True, 1.0)


# The disagreement


def disagreeing() -> DrivenEngine:
    """A learner that has adopted the anchor of its offer four steps late."""
    engine = among_peers()
    engine.offer()
    engine.done(adopted(engine, 4))
    engine.apply()
    assert engine.fragment.disagrees
    return engine


def test_a_seal_that_is_refused_leaves_no_disagreement() -> None:
    engine = among_peers()
    engine.offer()
    engine.done(adopted(engine, 4), fault="its bytes are damaged")
    assert not engine.fragment.disagrees


def test_a_disagreement_stays_over_seals_of_others_work() -> None:
    engine = disagreeing()
    engine.receive(seal_of(engine.lineage))
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    assert engine.fragment.disagrees


def test_the_next_seal_with_our_offer_in_time_ends_a_disagreement() -> None:
    engine = disagreeing()
    engine.reserve()
    engine.copied()
    engine.done(adopted(engine))
    assert not engine.fragment.disagrees


@pytest.mark.parametrize(
    ("merged", "rounds", "gain", "disagrees"),
    [(False, 1, 1.0, True), (False, 2, 1.0, True), (True, 1, 0.3, True), (True, 2, 1.0, False)],
)
def test_a_whole_anchor_of_the_next_round_has_the_gain_of_its_seal(
    merged: bool, rounds: int, gain: float, disagrees: bool
) -> None:
    """The step to an anchor farther on is of several rounds, of none of which the mean is known:
    the whole correction ends the disagreement."""
    engine = disagreeing()
    engine.reserve()
    engine.copied()
    engine.step(4)
    pending = engine.fragment.pending
    assert pending is not None
    assert pending.offer is not None
    lineage = grown(engine.lineage, *([pending.offer.entry] if merged else []))
    for _ in range(rounds - 1):
        lineage = grown(lineage)
    engine.receive(state_of(lineage))
    (install,) = engine.jobs(Install)
    assert (install.merged_own_offer, install.gain) == (merged, gain)
    engine.done(install)
    assert engine.fragment.disagrees is disagrees


@pytest.mark.parametrize("whole", [False, True])
def test_weights_that_are_replaced_hold_no_disagreement(whole: bool) -> None:
    engine = with_heirs(disagreeing())
    lost = Entry(ME, 99, 10, 1)
    lineage = engine.lineage
    engine.receive(state_of(grown(lineage, lost)) if whole else seal_of(lineage, lost))
    (job,) = engine.jobs(Install if whole else Advance)
    assert job.replace
    engine.done(job)
    assert not engine.fragment.disagrees


# The residual in the weights


def owing(**schedule: int | None) -> DrivenEngine:
    """A learner with a residual of its merged offer in its weights, to be closed at rest."""
    engine = among_peers(residual_in_weights=True, **schedule)
    offer = engine.offer()
    engine.receive(seal_of(BASE, offer.entry))
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    engine.engine.correction_applied(engine.now, 0, advance.replace)
    assert engine.fragment.residual.unsent
    return engine


def rests(engine: DrivenEngine, replaced: bool = True) -> list[int]:
    """The fragments that it wants to offer at rest, once the correction is applied."""
    engine.engine.correction_applied(engine.now, 0, replaced)
    engine.engine.rest(engine.now)
    return engine.engine.boundaries.fragments_to_copy()


def test_what_stayed_in_weights_that_became_the_anchor_with_our_offer_is_owed() -> None:
    engine = owing(adopt_after=0)
    assert rests(engine, False) == [0]


def test_what_stayed_in_weights_that_a_seal_in_doubt_replaced_is_not_owed() -> None:
    engine = with_heirs(owing())
    engine.receive(seal_of(engine.lineage, Entry(ME, 7, 10, 1)))
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    assert (advance.merged_own_offer, advance.replace, rests(engine)) == (False, True, [])


def test_what_stayed_in_weights_that_a_whole_anchor_replaced_is_not_owed() -> None:
    engine = owing()
    engine.receive(state_of(grown(engine.lineage, Entry(ME, 7, 10, 1))))
    (install,) = engine.jobs(Install)
    engine.done(install)
    assert (install.replace, rests(engine)) == (True, [])


def test_what_stayed_in_weights_that_moved_with_others_work_is_owed() -> None:
    engine = taking(owing(), grown(BASE, Entry(ME, 1, 40, 4)))
    assert rests(engine, False) == [0]


@pytest.mark.parametrize("whole", [False, True])
def test_what_the_process_of_our_checkpoint_has_offered_since_is_not_owed(whole: bool) -> None:
    engine, former = owing(), PeerId(ME.name, 0)
    engine.fragment.restored_from = Claim(former, 3)
    later = Entry(former, 4, 10, 1)
    engine.receive(
        state_of(grown(engine.lineage, later)) if whole else seal_of(engine.lineage, later)
    )
    (job,) = engine.jobs(Install if whole else Advance)
    engine.done(job)
    assert (job.forget, job.replace, rests(engine, False)) == (True, False, [])


# A copy that is being made, and an anchor that moves


def copying() -> DrivenEngine:
    engine = among_peers()
    engine.step(4)
    engine.reserve()
    return engine


def test_no_seal_moves_the_anchor_while_a_copy_is_made() -> None:
    engine = copying()
    engine.receive(seal_of(BASE))
    assert engine.jobs(Advance) == []
    engine.copied()
    assert len(engine.jobs(Advance)) == 1


def test_no_whole_anchor_is_taken_while_a_copy_is_made() -> None:
    engine = copying()
    engine.receive(state_of(grown(BASE)))
    assert engine.jobs(Install) == []
    engine.copied()
    assert len(engine.jobs(Install)) == 1


def test_no_other_model_is_taken_while_a_copy_is_made() -> None:
    engine = copying()
    theirs = Lineage(tokens=10**6, version=5, digest=OTHER, genesis=OTHER)
    engine.beat(PEER, theirs, genesis=OTHER)
    engine.receive(state_of(theirs))
    assert engine.jobs(Install) == []
    engine.copied()
    assert len(engine.jobs(Install)) == 1


def test_no_anchor_moves_twice_at_once() -> None:
    engine = among_peers()
    engine.receive(seal_of(BASE))
    engine.receive(state_of(grown(grown(BASE))))
    (advance,) = engine.jobs(Advance)
    assert engine.jobs(Install) == []
    engine.done(advance)
    assert len(engine.jobs(Install)) == 1


def test_of_what_comes_meanwhile_the_greatest_is_kept() -> None:
    greater = grown(grown(BASE))
    engine = copying()
    engine.receive(state_of(greater))
    engine.receive(seal_of(BASE))
    engine.copied()
    (install,) = engine.jobs(Install)
    assert install.states[0].lineage == greater


# Whole anchors


def test_a_greater_anchor_that_is_shown_is_pulled_and_taken() -> None:
    engine = among_peers()
    engine.beat(PEER, grown(BASE))
    assert engine.sent(Want) == [(PEER, Want(ME, 0, BASE.digest))]
    engine.receive(state_of(grown(BASE)))
    (install,) = engine.jobs(Install)
    assert (install.merged_own_offer, install.replace) == (False, False)


def test_no_lesser_or_equal_anchor_is_pulled_or_taken() -> None:
    engine = taking(taking(among_peers()), grown(BASE))
    for lineage in (BASE, grown(BASE), engine.lineage):
        engine.beat(PEER, lineage)
        engine.receive(state_of(lineage))
        assert (engine.sent(Want), engine.jobs(Install)) == ([], [])


def test_an_anchor_of_another_model_is_not_taken_for_one_of_ours() -> None:
    engine = among_peers()
    engine.receive(state_of(Lineage(tokens=10**6, version=5, digest=OTHER, genesis=OTHER)))
    assert engine.jobs(Install) == []


def test_another_model_is_taken_whole_and_no_progress_with_it() -> None:
    engine = among_peers(fragments=2)
    engine.step()
    theirs = Lineage(tokens=10**6, version=5, digest=OTHER, genesis=OTHER)
    engine.beat(PEER, theirs, theirs, genesis=OTHER)
    assert [want.fragment for _, want in engine.sent(Want)] == [0]
    engine.receive(state_of(theirs, 0))
    assert [want.fragment for _, want in engine.sent(Want)] == [1]
    assert engine.jobs(Install) == []
    engine.receive(state_of(theirs, 1))
    (install,) = engine.jobs(Install)
    assert [s.fragment for s in install.states] == [0, 1]
    assert (install.merged_own_offer, install.replace) == (False, True)


def test_a_model_that_does_not_come_is_waited_for_no_longer_than_its_peer_takes() -> None:
    """A learner of our model shows a greater anchor meanwhile. That is asked for as soon as the
    peer of the other model is gone."""
    engine = among_peers(fragments=2)
    engine.step()
    theirs = Lineage(tokens=10**6, version=5, digest=OTHER, genesis=OTHER)
    engine.beat(PEER, theirs, theirs, genesis=OTHER)
    engine.sent(Want)
    engine.receive(state_of(theirs, 1))
    greater = grown(BASE)
    engine.tick(engine.engine.state.policies.timing.suspect_after_s - 1)
    engine.beat(THIRD, greater, greater)
    assert engine.engine.state.switch is not None
    assert engine.sent(Want) == []
    engine.tick(2.0)
    assert engine.engine.state.switch is None
    engine.beat(THIRD, greater, greater)
    assert (THIRD, 1) in [(to, want.fragment) for to, want in engine.sent(Want)]
    engine.receive(state_of(greater, 1, THIRD))
    (install,) = engine.jobs(Install)
    assert install.states[0].lineage == greater


@pytest.mark.parametrize("doubt", [False, True])
def test_an_offer_whose_work_is_about_to_be_replaced_is_sent_no_more(doubt: bool) -> None:
    """By another model, or by a seal in doubt: a sealer that merged it now would merge work that
    counts as dropped."""
    engine = with_heirs(among_peers())
    engine.offer()
    assert len(engine.sent(Offer)) == 1
    theirs = Lineage(tokens=10**6, version=5, digest=OTHER, genesis=OTHER)
    if not doubt:
        engine.beat(PEER, theirs, genesis=OTHER)
    engine.receive(seal_of(BASE, Entry(ME, 7, 10, 1)) if doubt else state_of(theirs))
    (job,) = engine.jobs(Advance if doubt else Install)
    engine.done(job)
    engine.tick(100.0)
    assert (job.replace, engine.fragment.pending, engine.sent(Offer)) == (True, None, [])
    assert engine.engine.state.records[-1].dropped_tokens == 40
    engine.engine.correction_applied(engine.now, 0, True)
    assert engine.fragment.dropped_tokens == 40


@pytest.mark.parametrize("steps", [0, 2])
def test_work_that_is_dropped_is_told_once_however_many_anchors_come_before_the_next_step(
    steps: int,
) -> None:
    """As while a learner evaluates. A step that is under way when the anchors come is told with the
    next one."""
    engine = with_heirs(among_peers())
    engine.offer()
    engine.receive(seal_of(BASE, Entry(ME, 7, 10, 1)))
    engine.done(*engine.jobs(Advance))
    engine.step(steps)
    for _ in range(2):
        engine.receive(seal_of(engine.lineage))
        (job,) = engine.jobs(Advance)
        assert job.replace
        engine.done(job)
    told = [record.dropped_tokens for record in list(engine.engine.state.records)[-3:]]
    assert told == [40, 10 * steps, 0]
    engine.engine.correction_applied(engine.now, 0, True)
    assert engine.fragment.dropped_tokens == 40 + 10 * steps


def test_other_weights_drop_nothing_more_of_work_that_was_told_as_dropped() -> None:
    engine = with_heirs(among_peers())
    engine.offer()
    engine.receive(seal_of(BASE, Entry(ME, 7, 10, 1)))
    engine.done(*engine.jobs(Advance))
    engine.engine.begin_anew(engine.now)
    told = [(record.reason, record.dropped_tokens) for record in engine.engine.state.records]
    assert told[-2:] == [("all_present", 40), ("reset", 0)]
    assert engine.fragment.dropped_tokens == 40


def test_of_our_work_another_model_keeps_what_it_has_merged() -> None:
    """It was renumbered there, or founded on what our anchor had: only what came after the offer is
    dropped."""
    engine = among_peers(adopt_after=1)
    offer = engine.offer()
    engine.step(2)
    theirs = grown(Lineage(tokens=10**6, version=5, digest=OTHER, genesis=OTHER), offer.entry)
    engine.beat(PEER, theirs, genesis=OTHER)
    engine.receive(state_of(theirs))
    (install,) = engine.jobs(Install)
    engine.done(install)
    assert engine.fragment.adopt_at is None  # no step is taken on what is to be replaced
    record = engine.engine.state.records[-1]
    assert (record.mine, record.dropped_tokens) == (True, 20)
    engine.engine.correction_applied(engine.now, 0, True)
    assert (engine.fragment.settled.step, engine.fragment.dropped_tokens) == (6, 20)
    taking(engine, theirs)
    assert engine.fragment.superseded_tokens == 0


def test_a_model_is_fetched_of_a_peer_that_has_all_our_fragments_if_there_is_one() -> None:
    """Else a group that a rollback took back would go on from where it was here."""
    engine = DrivenEngine(seals=False, fragments=2)
    model = Lineage(tokens=10**9, version=9, digest=b"d", genesis=OTHER)
    engine.beat(PEER, model, model, genesis=OTHER)
    assert {to for to, _ in engine.sent(Want)} == {PEER}
    engine.engine.undelivered(engine.now, PEER, Want(ME, 0, b""), BROKEN)
    engine.beat(THIRD, model, genesis=OTHER)
    assert engine.sent(Want) == []
    engine.engine.receive(engine.now, Goodbye(PEER))
    engine.beat(THIRD, model, genesis=OTHER)
    assert engine.sent(Want) == [(THIRD, Want(ME, 0, b""))]


def test_another_model_that_is_less_trained_is_never_taken() -> None:
    """Whatever its genesis: fresh weights do not overwrite trained ones."""
    for genesis in (b"a" + GENESIS, OTHER):
        engine = taking(among_peers())
        engine.beat(PEER, Lineage.fresh(genesis), genesis=genesis)
        assert engine.sent(Want) == []
        assert engine.engine.state.switch is None


@pytest.mark.parametrize("steps", [0, 1])
def test_first_weights_that_arrive_after_our_first_step_are_not_taken(steps: int) -> None:
    """They were to be had when they were asked for: nobody had taken a step."""
    theirs = Lineage.fresh(b"z" + GENESIS)
    engine = DrivenEngine()
    engine.beat(THIRD, Lineage.fresh(GENESIS), step=0)
    engine.beat(PEER, theirs, genesis=theirs.genesis, step=0)
    assert engine.engine.state.switch is not None
    engine.step(steps)
    engine.receive(state_of(theirs))
    assert len(engine.jobs(Install)) == 1 - steps
    assert engine.engine.state.switch is None


# A group that only we have, when the model is another one


THEIRS = Lineage(tokens=10**6, version=5, digest=OTHER, genesis=OTHER)


def with_a_group(*beats: Lineage, seals: bool = False) -> DrivenEngine:
    """Fragment 1 is a group that was added: of the others only those have it that show it."""
    engine = DrivenEngine(seals=seals, fragments=2)
    engine.beat(PEER, *beats)
    return engine


def switched(engine: DrivenEngine) -> DrivenEngine:
    """A third learner, without the group, had a greater model."""
    engine.beat(THIRD, THEIRS, genesis=OTHER)
    engine.receive(state_of(THEIRS, peer=THIRD))
    (install,) = engine.jobs(Install)
    assert [s.fragment for s in install.states] == [0]
    engine.done(install)
    engine.engine.correction_applied(engine.now, 0, True)
    return engine


def offer_group(engine: DrivenEngine) -> Offer:
    engine.receive(Call(FOURTH, 1))
    engine.step()
    assert engine.engine.boundaries.fragments_to_copy() == [1]
    engine.reserve()
    engine.engine.boundaries.snapshot(1, torch.zeros(0))
    (prepare,) = engine.jobs(Prepare)
    engine.done(prepare)
    pending = engine.engine.state.fragments[1].pending
    assert pending is not None
    assert pending.offer is not None
    return pending.offer


def test_what_was_offered_of_a_group_is_offered_under_the_model_that_was_taken_over() -> None:
    """Once somebody else has added it, too."""
    engine = with_a_group(BASE)
    offer = offer_group(engine)
    assert engine.sent(Offer) == []
    switched(engine)
    own = engine.engine.state.fragments[1]
    assert (own.lineage.genesis, own.lineage.key) == (OTHER, BASE.key)
    engine.beat(THIRD, THEIRS, own.lineage, genesis=OTHER)
    engine.tick(0.1)
    ((to, again),) = engine.sent(Offer)
    assert to == THIRD
    assert again == replace(offer, genesis=OTHER)
    assert again.sections is offer.sections
    assert (again.tokens, own.unmerged(engine.engine.state.totals).tokens, own.dropped_tokens) == (
        10,
        10,
        0,
    )


def test_who_had_the_offer_of_a_group_gets_it_again_under_the_new_model() -> None:
    engine = with_a_group(BASE, BASE)
    offer = offer_group(engine)
    ((to, _),) = engine.sent(Offer)
    engine.engine.delivered(engine.now, to, offer)
    switched(engine)
    engine.tick(0.1)
    assert engine.sent(Offer) == [(PEER, replace(offer, genesis=OTHER))]


def test_offers_of_a_group_that_others_made_under_the_former_model_are_held_no_more() -> None:
    engine = with_a_group(BASE, BASE, seals=True)
    engine.receive(replace(offer_of(PEER, due=False), fragment=1))
    (inspect,) = engine.jobs(Inspect)
    engine.done(inspect)
    round = engine.engine.state.rounds[1]
    assert round.held() == ((PEER, 1),)
    switched(engine)
    assert round.held() == ()


def test_a_late_anchor_of_another_fragment_does_not_make_a_model_whole() -> None:
    """A peer had a group, and told of it. The model as others have it now, without the group, is of
    one fragment. A late answer of the first peer is not that fragment."""
    engine = with_a_group(BASE)
    engine.beat(THIRD, THEIRS, genesis=OTHER)
    engine.receive(state_of(Lineage.fresh(OTHER), fragment=1, peer=FOURTH))
    assert engine.jobs(Install) == []
    engine.receive(state_of(THEIRS, peer=THIRD))
    (install,) = engine.jobs(Install)
    assert [s.fragment for s in install.states] == [0]


# Anything else


@pytest.mark.parametrize("fragment", [-1, 1, 10**6])
def test_a_message_of_a_fragment_that_is_not_here_is_ignored(fragment: int) -> None:
    engine = among_peers()
    for message in (
        Call(PEER, fragment),
        Want(PEER, fragment, b""),
        state_of(grown(BASE), fragment),
    ):
        engine.receive(message)
    assert (engine.jobs(Install), engine.fragment.offer_requested) == ([], False)


# Peers that were asked and do not answer


def test_who_was_asked_and_then_fell_silent_is_not_waited_for() -> None:
    """Somebody else has the anchor, too."""
    engine = among_peers()
    newest = grown(BASE)
    engine.beat(PEER, newest)
    ((asked, _),) = engine.sent(Want)
    assert asked == PEER
    engine.tick(1.0)
    engine.beat(THIRD, newest)
    assert engine.sent(Want) == []
    engine.tick(2.5)  # three beats of the first are missing by now
    engine.beat(THIRD, newest)
    ((asked, want),) = engine.sent(Want)
    assert (asked, want.have) == (THIRD, BASE.digest)


def test_a_learner_names_itself_if_an_anchor_lacks_its_earlier_work() -> None:
    """The anchor has its last offer, which was merged elsewhere. So by the numbers of offers
    nothing is missing."""
    engine = among_peers()
    mine = Entry(ME, 1, 40, 4)
    engine.fragment.share.add(ME, {1: 0}, 40, engine.fragment.lineage)
    engine.fragment.share.add(ME, {2: 0}, 5, engine.fragment.lineage)
    engine.fragment.lineage = grown(engine.lineage, mine)
    theirs = grown(grown(BASE), mine._replace(seq=2))
    engine.beat(PEER, theirs)
    engine.receive(state_of(theirs))
    (install,) = engine.jobs(Install)
    engine.done(install)
    record = engine.engine.state.records[-1]
    assert (record.superseded, record.superseded_tokens) == (("me",), 40 - 5)
