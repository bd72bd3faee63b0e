from __future__ import annotations

from typing import Any

import pytest

from mend_optim import Adoption
from mend_optim.engine.absence import Absence
from mend_optim.engine.adoption import Adopter
from mend_optim.engine.boundaries import Boundaries
from mend_optim.engine.effects import Advance, Agree, Install
from mend_optim.engine.mode import Mode
from mend_optim.engine.policies import Policies
from mend_optim.engine.progress import Progress
from mend_optim.engine.schedule import Schedule
from mend_optim.engine.state import EngineState
from mend_optim.engine.stragglers import Stragglers
from mend_optim.engine.turns import Turns
from mend_optim.protocol.lineage import Lineage, PeerId
from mend_optim.protocol.messages import Goodbye
from tests.support.engines import (
    BASE,
    PEER,
    DrivenEngine,
    among_peers,
    grown,
    seal_of,
    state_of,
)


def test_a_copy_that_was_broken_off_is_wanted_again() -> None:
    """Ctrl-C between reserving and copying: a fragment that stayed reserved would never be offered
    again."""
    state = EngineState(PeerId("a", 1), "", [], Policies(schedule=Schedule(sync_every=2)))
    state.fragments = [Progress(PeerId("me", 1), 0, Lineage.fresh(b"genesis"), cycle_start=0)]
    state.mode = Mode.TRAINING
    training = Boundaries(state, Adopter(state), Stragglers(state), Turns(state))
    for _ in range(2):
        training.stepped(5, 1.0)
    assert training.fragments_to_copy() == [0]
    training.reserve(0)
    assert training.fragments_to_copy() == []
    training.release([0])
    assert training.fragments_to_copy() == [0]
    assert state.fragments[0].unmerged(state.totals).tokens == 10


def offered(adopt_after: int | None) -> DrivenEngine:
    """A learner that has just offered to a peer that runs the rounds."""
    engine = among_peers(adopt_after=adopt_after)
    engine.offer()
    return engine


def sealed(engine: DrivenEngine) -> DrivenEngine:
    pending = engine.fragment.pending
    assert pending is not None
    assert pending.offer is not None
    engine.receive(seal_of(BASE, pending.offer.entry))
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    return engine


@pytest.mark.parametrize("adopt_after", [None, 0, 2])
def test_in_lockstep_a_boundary_waits_for_an_anchor_that_moves(adopt_after: int | None) -> None:
    """Without an offer at that step, all others would wait for one in vain."""
    engine = among_peers(adopt_after=adopt_after)
    boundaries = engine.engine.boundaries
    ahead = grown(grown(engine.lineage))
    engine.beat(PEER, ahead)
    engine.receive(state_of(ahead))
    (job,) = engine.jobs(Install)
    engine.step(3)
    assert not boundaries.must_wait()
    engine.step()
    assert boundaries.fragments_to_copy() == []
    assert boundaries.must_wait() == (adopt_after is not None)
    engine.done(job)
    assert not boundaries.must_wait()
    engine.apply()
    assert boundaries.fragments_to_copy() == ([0] if adopt_after is not None else [])


def test_nobody_waits_for_an_anchor_unless_asked_to() -> None:
    engine = offered(None)
    for _ in range(10):
        assert not engine.engine.boundaries.must_wait()
        engine.step()


@pytest.mark.parametrize("overlap", [0, 1, 3])
def test_under_a_fixed_overlap_an_anchor_is_waited_for_at_its_step_until_it_comes(
    overlap: int,
) -> None:
    engine = offered(overlap)
    for _ in range(overlap):
        assert not engine.engine.boundaries.must_wait()
        engine.step()
    assert engine.engine.boundaries.must_wait()
    assert not sealed(engine).engine.boundaries.must_wait()


def test_once_training_steps_on_an_anchor_is_added_and_replaces_nothing() -> None:
    """After a rest or a restart nobody waits for the pending offer: the anchor may come between the
    call of `step()` and its end."""
    engine = offered(0)
    assert not engine.engine.boundaries.steps_on()
    pending = engine.fragment.pending
    assert pending is not None
    assert pending.offer is not None
    engine.receive(seal_of(BASE, pending.offer.entry))
    (advance,) = engine.jobs(Advance)
    assert (advance.merged_own_offer, advance.replace) == (True, False)


def test_training_steps_on_when_no_anchor_that_replaces_its_weights_is_moving() -> None:
    engine = offered(0)
    pending = engine.fragment.pending
    assert pending is not None
    assert pending.offer is not None
    engine.receive(seal_of(BASE, pending.offer.entry))
    (advance,) = engine.jobs(Advance)
    assert advance.replace
    assert engine.engine.boundaries.steps_on()
    engine.done(advance)
    assert not engine.engine.boundaries.steps_on()


@pytest.mark.parametrize("overlap", [None, 1])
def test_training_that_never_replaces_weights_steps_on_at_once(overlap: int | None) -> None:
    engine = offered(overlap)
    assert not engine.engine.boundaries.steps_on()
    pending = engine.fragment.pending
    assert pending is not None
    assert not pending.missed


def test_an_anchor_that_does_not_come_is_waited_for_once() -> None:
    engine = offered(0)
    assert engine.engine.boundaries.must_wait()
    engine.engine.boundaries.waited_out()
    for _ in range(10):
        assert not engine.engine.boundaries.must_wait()
        engine.step()


def test_under_a_fixed_overlap_an_anchor_that_comes_early_is_held_back() -> None:
    engine = sealed(offered(2))
    for _ in range(2):
        assert engine.engine.boundaries.holds_back(0)
        engine.step()
    assert not engine.engine.boundaries.holds_back(0)


def test_in_lockstep_a_rest_leaves_no_offer_before_the_next_boundary() -> None:
    """It begins while all work is in an offer. Where that is merged by then, and where a checkpoint
    of the rest is restored, nothing is offered after the next step, either."""
    engine = offered(1)
    engine.engine.rest(engine.now)
    sealed(engine)
    engine.engine.correction_applied(engine.now, 0, False)
    for _ in range(3):
        engine.step()
        assert engine.engine.boundaries.fragments_to_copy() == []
    engine.step()
    assert engine.engine.boundaries.fragments_to_copy() == [0]


def missed(engine: DrivenEngine, rounds: int = 3) -> DrivenEngine:
    """The learner has trained, its peer has sealed so many rounds without it, and it is called."""
    engine.step()
    for _ in range(rounds):
        engine.receive(seal_of(engine.lineage))
        (advance,) = engine.jobs(Advance)
        engine.done(advance)
        engine.apply()
    engine.events("round")
    engine.fragment.request_offer()
    return engine


@pytest.mark.parametrize(
    ("options", "share"),
    [
        ({}, 20 / 50),
        ({"weighs_work": False}, 1),
        ({"adoption": Adoption(share=0.75)}, 0.75),
    ],
)
def test_a_learner_that_has_missed_rounds_offers_a_share_and_records_it(
    options: dict[str, Any], share: float
) -> None:
    """10 tokens of its own, and 10 of its peer in each of three rounds."""
    engine = missed(among_peers(**options))
    engine.reserve()
    assert engine.copied().share == pytest.approx(share)
    pending = engine.fragment.pending
    assert pending is not None
    assert pending.offer is not None
    assert pending.offer.tokens == 10
    engine.receive(seal_of(engine.lineage, pending.offer.entry))
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    assert shares_recorded(engine) == [pytest.approx(share)]


def shares_recorded(engine: DrivenEngine) -> list[float]:
    return [e.facts["round"].share for e in engine.events("round")]


def test_a_seal_without_our_offer_is_recorded_without_a_share() -> None:
    engine = missed(among_peers())
    engine.reserve()
    assert engine.copied().share < 1
    engine.receive(seal_of(engine.lineage))
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    assert shares_recorded(engine) == [1.0]


@pytest.mark.parametrize("merged", [False, True])
def test_a_whole_anchor_records_the_share_of_an_offer_that_it_has(merged: bool) -> None:
    engine = missed(among_peers())
    engine.reserve()
    share = engine.copied().share
    pending = engine.fragment.pending
    assert pending is not None
    assert pending.offer is not None
    engine.receive(state_of(grown(engine.lineage, *([pending.offer.entry] if merged else []))))
    (install,) = engine.jobs(Install)
    assert install.merged_own_offer is merged
    engine.done(install)
    assert shares_recorded(engine) == [share if merged else 1.0]


def test_residuals_alone_are_offered_in_full() -> None:
    """They belong to work that was offered before."""
    engine = missed(among_peers(residual_in_weights=True))
    engine.reserve()
    engine.fragment.pending.steps = 0  # type: ignore[union-attr]
    assert engine.copied().share == 1


def test_the_learning_rates_of_an_offer_are_scaled_as_its_delta_is() -> None:
    engine = among_peers()
    engine.fragment.absence = Absence(3, 120)
    engine.engine.state.totals.rate = 0.5
    offer = engine.offer(4)
    assert (offer.rate, offer.tokens) == (pytest.approx(0.5 * 80 / 200), 40)


def test_buffers_are_offered_as_they_are() -> None:
    engine = among_peers(buffers=True)
    for fragment in engine.engine.state.fragments:
        fragment.absence = Absence(3, 30)
    engine.step(4)
    engine.reserve()
    assert [engine.copied(p).share < 1 for p in (0, 1)] == [True, False]


def test_otherwise_an_anchor_is_taken_when_it_is_there() -> None:
    assert not sealed(offered(None)).engine.boundaries.holds_back(0)


def test_anchors_are_founded_from_what_was_trained_and_from_nothing_else() -> None:
    """The lesser model that has shown up takes ours; without a step there is nothing that it has
    not."""
    engine = DrivenEngine()
    engine.beat(PEER, genesis=b"a", step=0)
    engine.engine.state.mode = Mode.FOUNDING
    assert engine.engine.boundaries.fragments_to_copy() == []
    assert engine.engine.state.mode is Mode.SOLO
    engine.step()
    engine.beat(PEER, genesis=b"a", step=0)
    assert engine.engine.state.mode is Mode.FOUNDING
    assert engine.engine.boundaries.fragments_to_copy() == [0]


# ── a disagreement at rest ────────────────────────────────────────────────────────────────────────


def disagreeing() -> DrivenEngine:
    """A learner with nothing to merge, and a disagreement with the round that merged its offer."""
    engine = sealed(offered(3))
    assert engine.fragment.disagrees
    return engine


def rests(engine: DrivenEngine) -> DrivenEngine:
    """Its peer has answered since."""
    engine.engine.rest(engine.now)
    engine.beat(PEER, engine.lineage, pong=engine.engine.state.question.number)
    return engine


def test_a_disagreement_is_given_up_at_rest_once_the_last_correction_is_applied() -> None:
    engine = rests(disagreeing())
    assert engine.jobs(Agree) == []
    engine.apply()
    assert engine.jobs(Agree) == [Agree(0)]


def test_a_disagreement_is_given_up_once() -> None:
    engine = disagreeing()
    engine.apply()
    (agree,) = rests(engine).jobs(Agree)
    engine.tick(1.0)
    assert engine.jobs(Agree) == []
    engine.done(agree)
    engine.apply()
    rests(engine).tick(1.0)
    assert (engine.jobs(Agree), engine.fragment.disagrees) == ([], False)


def test_a_learner_is_not_settled_before_it_has_given_up_its_disagreement() -> None:
    engine, settled = disagreeing(), []
    boundaries = engine.engine.boundaries
    engine.apply()
    (agree,) = rests(engine).jobs(Agree)
    settled.append(boundaries.settled())
    engine.done(agree)
    settled.append(boundaries.settled())
    engine.apply()
    settled.append(boundaries.settled())
    assert settled == [False, False, True]


def test_no_disagreement_is_given_up_while_training() -> None:
    engine = disagreeing()
    engine.apply()
    engine.step()
    engine.tick(1.0)
    assert (engine.jobs(Agree), engine.fragment.disagrees) == ([], True)


def test_work_that_is_unmerged_at_rest_takes_the_disagreement_along() -> None:
    engine = disagreeing()
    engine.step(3)
    engine.apply()
    rests(engine).reserve()
    engine.copied()
    pending = engine.fragment.pending
    assert pending is not None
    assert pending.offer is not None
    engine.receive(seal_of(engine.lineage, pending.offer.entry))
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    engine.apply()
    assert (advance.gain, engine.fragment.disagrees, engine.jobs(Agree)) == (1.0, False, [])
    assert rests(engine).engine.boundaries.settled()


def test_a_learner_that_is_alone_has_nobody_to_agree_with() -> None:
    engine = disagreeing()
    engine.apply()
    engine.receive(Goodbye(PEER))
    engine.tick(1.0)
    assert engine.engine.state.alone
    engine.engine.rest(engine.now)
    engine.tick(1.0)
    assert (engine.jobs(Agree), engine.fragment.disagrees) == ([], True)


def test_a_disagreement_is_given_up_at_rest_once_no_other_model_is_on_its_way() -> None:
    """Nothing else happens after the other model's peer is gone."""
    engine = disagreeing()
    engine.apply()
    theirs = Lineage(tokens=10**6, version=5, digest=b"zother", genesis=b"zother")
    engine.beat(PeerId("other", 1), theirs, genesis=b"zother")
    assert engine.engine.state.mode.switching
    assert rests(engine).jobs(Agree) == []
    engine.receive(Goodbye(PeerId("other", 1)))
    engine.beat(PEER, engine.lineage)
    engine.tick(0.1)
    assert not engine.engine.state.mode.switching
    engine.tick(0.1)
    assert engine.jobs(Agree) == [Agree(0)]
