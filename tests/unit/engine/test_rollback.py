"""A rollback: one learner's user goes back to earlier anchors, and the others follow."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.engine.effects import Extend, Found, Install, Prepare, Retake
from mend_optim.engine.mode import Mode
from mend_optim.engine.rollback import EarlierAnchor
from mend_optim.errors import UsageError
from mend_optim.protocol.lineage import (
    MOST_ROLLBACKS,
    Entry,
    Key,
    Lineage,
    Rollback,
    model_key,
    rollbacks,
)
from mend_optim.protocol.messages import Beat, Call, Offer, Seal, Want
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
from tests.support.strategies import digests, lineages, names, peers

counts = st.integers(1, MOST_ROLLBACKS)


def earlier(lineage: Lineage) -> EarlierAnchor:
    return EarlierAnchor(lineage=lineage, content=b"content", sections={})


def ahead(engine: DrivenEngine) -> tuple[Lineage, Lineage]:
    """Two anchors that the learner takes one after the other: in the first is a peer's work, and in
    the second its own offer, too."""
    good = grown(BASE)
    engine.receive(state_of(good))
    engine.done(engine.jobs(Install)[0])
    engine.apply()
    offer = engine.offer()
    bad = grown(good, offer.entry)
    engine.receive(state_of(bad))
    engine.done(engine.jobs(Install)[0])
    engine.apply()
    assert engine.lineage == bad
    engine.events("round")
    return good, bad


def begun(engine: DrivenEngine, *lineages: Lineage) -> Install:
    """The learner's user goes back to these anchors."""
    engine.engine.rollbacks.begin([earlier(lineage) for lineage in lineages])
    (install,) = engine.jobs(Install)
    return install


# ── the order of models ───────────────────────────────────────────────────────────────────────────


@given(counts, names, digests)
def test_a_genesis_tells_the_rollback(number: int, by: str, part: bytes) -> None:
    rollback = Rollback(number, by)
    genesis = rollback.genesis(part)
    assert Rollback.told_by(genesis) == rollback
    assert rollbacks(genesis) == number
    assert genesis != rollback.genesis(part + b"x")


@given(st.binary(max_size=16))
def test_first_weights_tell_of_no_rollback(genesis: bytes) -> None:
    assert Rollback.told_by(genesis) is None
    assert rollbacks(genesis) == 0


@given(digests, st.binary(min_size=1, max_size=40))
def test_any_other_genesis_is_damaged(digest: bytes, told: bytes) -> None:
    number, name = int.from_bytes(told[:4], "big"), told[4:]
    try:
        is_name = bool(name.decode())
    except ValueError:
        is_name = False
    if number and is_name:
        assert Rollback.told_by(digest + told) == (number, name.decode())
    else:
        with pytest.raises(ValueError, match=r"codec|no rollback"):
            Rollback.told_by(digest + told)


@given(st.lists(lineages, max_size=4), st.lists(lineages, max_size=4), counts, digests)
def test_a_model_with_more_rollbacks_is_the_greater_one(
    earlier: list[Lineage], later: list[Lineage], number: int, part: bytes
) -> None:
    """However much has been trained in the other one, and whether or not somebody trains it."""
    genesis = Rollback(number, "a").genesis(part)
    before = GENESIS if number == 1 else Rollback(number - 1, "z").genesis(part)
    rolled = model_key((lineage.key for lineage in earlier), genesis, 0)
    assert rolled > model_key((lineage.key for lineage in later), before, 2)


@given(lineages, counts, names)
def test_the_anchor_has_the_same_work_and_another_identity(
    lineage: Lineage, number: int, by: str
) -> None:
    genesis = Rollback(number, by).genesis()
    again = lineage.rolled_back(genesis)
    assert (again.tokens, again.version, again.merged) == (
        lineage.tokens,
        lineage.version,
        lineage.merged,
    )
    assert again.genesis == genesis
    assert again.digest != lineage.digest


@given(lineages, peers, counts)
def test_a_seal_of_the_first_time_does_not_fit_the_anchor_again(
    lineage: Lineage, peer: object, number: int
) -> None:
    again = lineage.rolled_back(Rollback(number, "a").genesis())
    entry = Entry(peer, 99, 10, 1)  # type: ignore[arg-type]
    assert again.seal([entry], b"p").digest != lineage.seal([entry], b"p").digest


# ── on the learner that goes back ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("adopt_after", [None, 0, 2])
def test_it_takes_the_anchor_whole_and_counts_its_work_since(adopt_after: int | None) -> None:
    engine = among_peers(adopt_after=adopt_after)
    good, _ = ahead(engine)
    engine.step(2)
    install = begun(engine, good)
    (state,) = install.states
    assert (install.replace, install.resets, install.merged_own_offer) == (True, True, False)
    assert (state.lineage.tokens, state.lineage.merged) == (good.tokens, good.merged)
    engine.step()
    engine.done(install)
    assert engine.lineage == state.lineage
    assert engine.engine.rollbacks.count == 1
    (told,) = engine.events("rolled_back")
    assert told.facts == {
        "by": "me",
        "number": 1,
        "tokens": good.tokens,
        "dropped_tokens": 30,
        "superseded_tokens": 40,
    }
    (record,) = (e.facts["round"] for e in engine.events("round"))
    assert (record.reason, record.sealer, record.dropped_tokens, record.superseded_tokens) == (
        "rolled_back",
        "me",
        30,
        40,
    )
    assert record.superseded == ("me",)
    engine.engine.correction_applied(engine.now, 0, True)
    fragment = engine.fragment
    assert (fragment.dropped_tokens, fragment.superseded_tokens) == (30, 40)
    assert fragment.unmerged(engine.engine.state.totals).tokens == 0
    assert engine.engine.state.adopted_rounds == 2


def test_its_beats_show_the_model_and_nothing_else_is_fetched() -> None:
    engine = among_peers()
    good, bad = ahead(engine)
    engine.done(begun(engine, good))
    beat = engine.sent(Beat)[-1][1]
    assert rollbacks(beat.genesis) == 1
    assert beat.reports[0].key == engine.lineage.key
    engine.beat(PEER, bad)
    engine.beat(THIRD, bad)
    assert engine.sent(Want) == []


def test_nothing_of_the_former_model_fits() -> None:
    """Neither an offer that was not merged until then, nor the seal that followed the anchor the
    first time, nor the former anchor."""
    engine = DrivenEngine()
    engine.beat()
    good, bad = ahead(engine)
    late = replace(offer_of(PEER), key=bad.key)
    engine.receive(late)
    engine.done(begun(engine, good))
    assert engine.engine.state.rounds[0].inbox == {}
    now = engine.lineage
    engine.receive(late)
    engine.receive(seal_of(good))
    engine.receive(state_of(bad))
    assert engine.lineage == now
    assert engine.fragment.is_still
    assert engine.engine.state.rounds[0].inbox == {}


def test_its_next_offer_follows_its_last_one_in_the_anchor() -> None:
    engine = among_peers()
    good, _ = ahead(engine)
    engine.done(begun(engine, good))
    engine.engine.correction_applied(engine.now, 0, True)
    offer = engine.offer()
    assert (offer.seq, offer.follows, offer.tokens) == (2, 0, 40)
    assert offer.genesis == engine.lineage.genesis
    assert engine.lineage.admits(offer.claim)


def test_it_waits_until_every_fragment_stands_still() -> None:
    engine = among_peers(fragments=2)
    good = grown(BASE)
    for p in range(2):
        engine.receive(state_of(good, p))
    first, second = engine.jobs(Install)
    engine.done(first)
    number = engine.engine.rollbacks.begin([earlier(good), earlier(good)])
    assert engine.jobs(Install) == []
    assert not engine.engine.rollbacks.is_over(number)
    engine.done(second)
    (install,) = engine.jobs(Install)
    assert len(install.states) == 2
    assert not engine.engine.rollbacks.is_over(number)
    engine.done(install)
    assert engine.engine.rollbacks.is_over(number)
    assert engine.engine.rollbacks.count == number


def test_anchors_that_the_worker_refuses_change_nothing() -> None:
    engine = among_peers()
    good, bad = ahead(engine)
    number = engine.engine.rollbacks.begin([earlier(good)])
    engine.done(engine.jobs(Install)[0], fault="its values are not finite")
    assert engine.engine.rollbacks.is_over(number)
    assert engine.engine.rollbacks.count == 0
    assert engine.lineage == bad
    assert engine.events("rolled_back") == []
    assert ["not finite" in fault for fault in engine.faults()] == [True]


def test_it_may_begin_while_another_model_is_fetched_and_then_fetches_that_no_more() -> None:
    engine = among_peers()
    good, _ = ahead(engine)
    much = Lineage(tokens=10**6, version=9, digest=b"m", genesis=OTHER)
    engine.beat(THIRD, much, genesis=OTHER)
    assert engine.engine.state.mode is Mode.SWITCHING_TRAINING
    assert engine.engine.rollbacks.may_begin(1)
    engine.done(begun(engine, good))
    assert engine.engine.state.mode is Mode.TRAINING
    assert engine.engine.state.wants == {}
    engine.sent(Want)
    engine.beat(THIRD, much, genesis=OTHER)
    assert engine.sent(Want) == []


def test_it_waits_while_its_weights_are_copied_to_found_an_anchor() -> None:
    engine = DrivenEngine()
    engine.step(2)
    engine.beat(PEER, Lineage.fresh(OTHER), step=0, genesis=OTHER)
    assert engine.engine.state.mode is Mode.FOUNDING
    assert engine.engine.rollbacks.may_begin(1)
    engine.engine.boundaries.reserve_all()
    assert not engine.engine.rollbacks.may_begin(1)
    engine.engine.boundaries.found((None,))
    (found,) = engine.jobs(Found)
    engine.done(found)
    assert engine.engine.rollbacks.may_begin(1)


def test_it_waits_until_an_added_group_has_its_anchor() -> None:
    engine = among_peers()
    assert not engine.engine.rollbacks.may_begin(2)
    engine.engine.state.work(Extend(None, None, (0, 0, 0.0), (b"", b"added")))
    (extend,) = engine.jobs(Extend)
    engine.done(extend)
    assert engine.engine.rollbacks.may_begin(2)
    assert not engine.engine.rollbacks.may_begin(1)


def test_one_that_is_to_found_an_anchor_goes_back_instead() -> None:
    engine = DrivenEngine()
    engine.step(2)
    engine.beat(PEER, Lineage.fresh(OTHER), step=0, genesis=OTHER)
    assert engine.engine.state.mode is Mode.FOUNDING
    engine.done(begun(engine, grown(BASE)))
    assert engine.engine.state.mode is Mode.TRAINING
    assert engine.engine.boundaries.fragments_to_copy() == []


def test_it_may_not_begin_before_it_has_joined_or_after_it_has_left() -> None:
    engine = among_peers()
    engine.engine.leave(engine.now)
    assert not engine.engine.rollbacks.may_begin(1)


def test_its_number_is_beyond_all_that_it_knows_of() -> None:
    engine = among_peers()
    third = Rollback(3, "third").genesis()
    engine.beat(THIRD, Lineage.fresh(third), genesis=third)
    fifth = grown(BASE).rolled_back(Rollback(5, "me").genesis())
    assert engine.engine.rollbacks.begin([earlier(BASE)]) == 4
    assert among_peers().engine.rollbacks.begin([earlier(fifth)]) == 6


def test_there_is_a_last_rollback() -> None:
    engine = among_peers()
    last = grown(BASE).rolled_back(Rollback(MOST_ROLLBACKS, "me").genesis())
    with pytest.raises(UsageError, match="number of rollbacks of one run must be at most"):
        engine.engine.rollbacks.begin([earlier(last)])
    assert engine.engine.state.mode is Mode.TRAINING


def test_a_rollback_is_refused_while_a_peer_has_groups_that_this_learner_has_not() -> None:
    """That group would go on from the model that is given up, beside anchors of another time."""
    engine = among_peers()
    good, _ = ahead(engine)
    engine.beat(PEER, BASE, grown(BASE), grown(BASE))
    engine.beat(THIRD, BASE, grown(BASE))
    with pytest.raises(UsageError, match=r"^rollback\(\) .* of the run, and peer has 2 more than"):
        engine.engine.rollbacks.begin([earlier(good)])
    assert engine.engine.rollbacks.count == 0
    assert not engine.jobs(Install)


@pytest.mark.parametrize("genesis", [OTHER, GENESIS])
def test_a_peer_of_another_model_or_of_the_past_keeps_nobody_from_a_rollback(
    genesis: bytes,
) -> None:
    engine = among_peers()
    good, _ = ahead(engine)
    engine.beat(THIRD, Lineage.fresh(genesis), Lineage.fresh(genesis), genesis=genesis)
    if genesis == GENESIS:
        engine.engine.linked(engine.now, THIRD, False)
    assert begun(engine, good).resets


# ── on the others ─────────────────────────────────────────────────────────────────────────────────


def rolled(lineage: Lineage, number: int = 1) -> Lineage:
    return lineage.rolled_back(Rollback(number, "peer").genesis(lineage.digest))


def test_a_peer_with_less_in_its_anchor_is_followed_after_a_rollback() -> None:
    engine = among_peers()
    good, _ = ahead(engine)
    again = rolled(good)
    engine.step(3)
    engine.beat(PEER, again, genesis=again.genesis)
    assert [want.have for _, want in engine.sent(Want)] == [b""]
    engine.receive(state_of(again))
    (install,) = engine.jobs(Install)
    assert (install.replace, install.resets) == (True, True)
    engine.done(install)
    (told,) = engine.events("rolled_back")
    assert told.facts["by"] == "peer"
    assert told.facts["dropped_tokens"] + told.facts["superseded_tokens"] == 70


def test_a_model_of_another_cluster_is_no_rollback() -> None:
    engine = among_peers()
    much = Lineage(tokens=10**6, version=9, digest=b"m", genesis=OTHER)
    engine.beat(PEER, much, genesis=OTHER)
    engine.receive(state_of(much))
    (install,) = engine.jobs(Install)
    assert (install.replace, install.resets) == (True, False)
    engine.done(install)
    assert engine.events("rolled_back") == []
    (record,) = (e.facts["round"] for e in engine.events("round"))
    assert (record.reason, record.sealer) == ("pulled", "")


def test_the_anchors_of_a_rollback_are_taken_in_one_piece() -> None:
    """If the learner that shows them dies in between, nothing has changed."""
    engine = among_peers(fragments=2)
    again = rolled(grown(BASE))
    engine.beat(PEER, again, again, genesis=again.genesis)
    engine.receive(state_of(again, 0))
    assert engine.jobs(Install) == []
    engine.engine.undelivered(engine.now, PEER, Want(ME, 1, b""), BROKEN)
    assert engine.engine.state.mode is Mode.TRAINING
    assert engine.lineage == BASE


def test_a_later_rollback_is_taken_after_an_earlier_one_and_not_the_reverse() -> None:
    engine = among_peers()
    first, second = rolled(grown(grown(BASE))), rolled(grown(BASE), 2)
    for genesis in (second, first):
        engine.beat(PEER, genesis, genesis=genesis.genesis)
        engine.receive(state_of(genesis))
        for install in engine.jobs(Install):
            engine.done(install)
            engine.engine.correction_applied(engine.now, 0, True)
    assert engine.lineage == second


def test_a_key_says_nothing_of_rollbacks() -> None:
    """Within one model the order is as ever, so a seal after the rollback is greater."""
    again = rolled(grown(BASE))
    assert grown(again).key > again.key
    assert isinstance(again.key, Key)
    assert isinstance(seal_of(again), Seal)


# A group that the model after the rollback has not


def with_a_group() -> DrivenEngine:
    """Fragment 1 is a group that was added here alone."""
    engine = DrivenEngine(seals=False, fragments=2)
    engine.beat(PEER, BASE)
    return engine


def copy_group(engine: DrivenEngine) -> None:
    """The training thread begins to copy the group for an offer."""
    engine.receive(Call(FOURTH, 1))
    engine.step()
    engine.reserve()


def copied_group(engine: DrivenEngine) -> None:
    """The offer is there."""
    engine.engine.boundaries.snapshot(1, torch.zeros(0))
    (prepare,) = engine.jobs(Prepare)
    engine.done(prepare)


def fetched(engine: DrivenEngine) -> Install:
    """A peer without the group shows the model, and hands it over."""
    again = rolled(grown(BASE))
    engine.beat(PEER, again, genesis=again.genesis)
    engine.receive(state_of(again))
    (install,) = engine.jobs(Install)
    return install


def test_what_was_trained_of_a_group_is_given_up_after_a_rollback_of_others() -> None:
    """Its anchor stays: nobody else has one. An offer of the former model fits nowhere."""
    engine = with_a_group()
    copy_group(engine)
    copied_group(engine)
    group, install = engine.engine.state.fragments[1], fetched(engine)
    engine.done(install)
    (retake,) = engine.jobs(Retake)
    assert (retake.fragment, retake.reason) == (1, "peer has rolled the run back")
    engine.sent(Offer)
    engine.beat(PEER, engine.lineage, group.lineage, genesis=engine.lineage.genesis)
    engine.tick(1.0)
    assert {offer.genesis for _, offer in engine.sent(Offer)} <= {GENESIS}
    engine.step()
    engine.done(retake)
    engine.engine.correction_applied(engine.now, 1, True)
    assert (group.pending, group.dropped_tokens) == (None, 20)
    assert group.unmerged(engine.engine.state.totals).tokens == 0
    assert (group.lineage.genesis, group.lineage.key) == (engine.lineage.genesis, BASE.key)


def test_a_copy_of_a_group_from_before_a_rollback_of_others_is_not_offered() -> None:
    engine = with_a_group()
    install = fetched(engine)
    copy_group(engine)
    engine.done(install)
    assert engine.jobs(Retake) == []
    copied_group(engine)
    (retake,) = engine.jobs(Retake)
    engine.done(retake)
    assert not any(offer.tokens for _, offer in engine.sent(Offer))


def test_the_group_of_a_learner_that_takes_another_clusters_model_keeps_its_progress() -> None:
    engine = with_a_group()
    engine.step()
    much = Lineage(tokens=10**6, version=9, digest=b"m", genesis=OTHER)
    engine.beat(THIRD, much, genesis=OTHER)
    engine.receive(state_of(much, peer=THIRD))
    (install,) = engine.jobs(Install)
    engine.done(install)
    assert engine.jobs(Retake) == []
