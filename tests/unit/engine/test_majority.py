"""Which anchors a learner takes where learners disagree, and to whose it yields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mend_optim.engine.effects import Advance, Install
from mend_optim.engine.majority import GETS_ON, PAUSES
from mend_optim.engine.state import TRIAL
from mend_optim.protocol.lineage import Lineage, PeerId, Rollback
from mend_optim.protocol.messages import Want
from mend_optim.protocol.peer_limits import Limits
from mend_optim.protocol.timing import Timing
from tests.support.engines import (
    BASE,
    FOURTH,
    GENESIS,
    ME,
    OTHER,
    PEER,
    THIRD,
    DrivenEngine,
    grown,
    seal_of,
    state_of,
)

LIAR = FOURTH
PATIENCE_S = 31.0
STUCK_S = Timing().evict_after_s


def pass_awake(engine: DrivenEngine, seconds: float) -> None:
    """So much time passes, and the network loop looks at the clock meanwhile, and at nothing
    else."""
    until = engine.now + seconds
    while engine.now < until:
        engine.now = min(engine.now + 1.0, until)
        engine.engine.state.stops.look(engine.now)


def experienced(*peers: PeerId, seals: bool = False) -> DrivenEngine:
    """A learner that has adopted a few rounds of its peers, who all show its anchor."""
    engine = DrivenEngine(seals=seals)
    for peer in peers:
        engine.beat(peer)
    for _ in range(TRIAL):
        advance_all(engine, peers)
    engine.sent(Want)
    return engine


def advance_all(engine: DrivenEngine, peers: Sequence[PeerId]) -> None:
    """One more round, sealed by the learner's sealer; all peers show its anchor."""
    sealer = engine.engine.state.roster.sealer(0)
    assert sealer
    pass_awake(engine, 1.0)
    engine.receive(seal_of(engine.lineage, sealer=sealer))
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    engine.apply()
    for peer in peers:
        engine.beat(peer, engine.lineage, step=3, genesis=engine.lineage.genesis)


def claimed(lineage: Lineage, tokens: int = 10**9, version: int = 3) -> Lineage:
    """An anchor far beyond, of which nobody else knows."""
    return replace(lineage, tokens=tokens, version=lineage.version + version, digest=b"claimed")


def other_branch(lineage: Lineage, step: int) -> Lineage:
    """An anchor with fewer tokens that this learner never had; one more for each step."""
    return replace(lineage, tokens=lineage.tokens - 5 + step % 5, digest=b"other %d" % step)


# A claim of one peer


def test_the_claim_of_one_peer_among_three_is_held() -> None:
    engine = experienced(PEER, THIRD, LIAR)
    engine.beat(LIAR, claimed(engine.lineage), step=3)
    assert engine.sent(Want) == []
    engine.receive(state_of(claimed(engine.lineage), peer=LIAR))  # although nobody asked for it
    assert engine.jobs(Install) == []


def test_rounds_go_on_beside_a_held_claim() -> None:
    engine = experienced(PEER, THIRD, LIAR)
    engine.beat(LIAR, claimed(engine.lineage), step=3)
    advance_all(engine, (PEER, THIRD))
    assert engine.sent(Want) == []


def test_what_more_than_half_show_is_fetched() -> None:
    engine = experienced(PEER, THIRD, FOURTH)
    beyond = claimed(engine.lineage)
    engine.beat(PEER, beyond, step=3)
    assert engine.sent(Want) == []
    engine.beat(THIRD, beyond, step=3)
    assert engine.sent(Want) == [(THIRD, Want(ME, 0, b""))]


@pytest.mark.parametrize("ahead", [1, 2])
def test_what_is_believed_and_farther_than_a_round_is_fetched_whole(ahead: int) -> None:
    engine = experienced(PEER)
    own = engine.lineage
    beyond = grown(own) if ahead == 1 else grown(grown(own))
    engine.beat(PEER, beyond, step=3)
    assert [want.have for _, want in engine.sent(Want)] == [own.digest if ahead == 1 else b""]


def test_between_two_learners_the_greater_anchor_wins() -> None:
    engine = experienced(PEER)
    engine.beat(PEER, claimed(engine.lineage), step=3)
    assert [to for to, _ in engine.sent(Want)] == [PEER]


@pytest.mark.parametrize("how", ["suspected", "untrained", "of another model"])
def test_only_live_peers_that_have_trained_this_model_vote(how: str) -> None:
    engine = experienced(PEER, THIRD)
    if how == "suspected":
        engine.engine.linked(engine.now, THIRD, True)
        engine.engine.linked(engine.now, THIRD, False)
    elif how == "untrained":
        engine.beat(THIRD, engine.lineage, step=0)
    else:
        engine.beat(THIRD, BASE, step=3, genesis=OTHER)
    engine.beat(PEER, claimed(engine.lineage), step=3)
    assert [to for to, _ in engine.sent(Want)] == [PEER]
    assert not engine.engine.state.wants[0].seal_only


def test_a_learner_with_little_to_lose_takes_any_ones_word() -> None:
    engine = DrivenEngine(seals=False)
    for peer in (PEER, THIRD):
        engine.beat(peer)
    engine.beat(PEER, claimed(engine.lineage), step=3)
    assert [to for to, _ in engine.sent(Want)] == [PEER]


def test_but_not_where_most_show_another_greater_anchor() -> None:
    engine = DrivenEngine(seals=False)
    for peer in (PEER, THIRD, LIAR):
        engine.beat(peer)
    theirs = grown(engine.lineage)
    engine.beat(PEER, theirs, step=3)
    engine.beat(THIRD, theirs, step=3)
    engine.sent(Want)
    engine.engine.state.wants.clear()
    engine.beat(LIAR, claimed(engine.lineage), step=3)
    assert engine.sent(Want) == []


def test_after_a_rollback_any_ones_word_is_taken_for_a_few_anchors() -> None:
    """Its learner gets on alone while the others take the model one after the other. So each shows
    another anchor."""
    engine = experienced(PEER, THIRD)
    genesis = Rollback(1, PEER.name).genesis(GENESIS, b"", b"")
    take_shown(engine, engine.lineage.rolled_back(genesis))
    for _ in range(TRIAL):
        engine.beat(THIRD, engine.lineage, step=3, genesis=genesis)
        take_shown(engine, grown(engine.lineage))
    engine.beat(THIRD, engine.lineage, step=3, genesis=genesis)
    engine.beat(PEER, claimed(engine.lineage), step=3, genesis=genesis)
    assert engine.sent(Want) == []


def take_shown(engine: DrivenEngine, lineage: Lineage) -> None:
    """A peer shows a greater anchor; the learner fetches it whole, and takes it."""
    pass_awake(engine, 1.0)
    engine.beat(PEER, lineage, step=3, genesis=lineage.genesis)
    ((to, _),) = engine.sent(Want)
    assert to == PEER
    engine.receive(state_of(lineage))
    (job,) = engine.jobs(Install)
    engine.done(job)
    engine.apply()
    assert engine.lineage == lineage


def test_a_claim_is_fetched_if_no_round_has_gone_on_for_long() -> None:
    engine = experienced(PEER, THIRD, LIAR)

    def beats() -> None:
        for peer in (PEER, THIRD):
            engine.beat(peer, engine.lineage, step=3)
        engine.beat(LIAR, claimed(engine.lineage), step=3)

    beats()
    pass_awake(engine, PATIENCE_S - 2)
    beats()
    assert engine.sent(Want) == []
    pass_awake(engine, 2)
    beats()
    assert [to for to, _ in engine.sent(Want)] == [LIAR]


def test_a_stop_makes_no_claim_older() -> None:
    """A liar's word is not taken because its victim slept."""
    engine = experienced(PEER, THIRD, LIAR)
    engine.beat(LIAR, claimed(engine.lineage), step=3)
    engine.now += 10 * PATIENCE_S
    engine.engine.tick(engine.now)
    for peer in (PEER, THIRD):
        engine.beat(peer, engine.lineage, step=3)
    engine.beat(LIAR, claimed(engine.lineage), step=3)
    assert engine.sent(Want) == []


@pytest.mark.parametrize(("pause", "counts"), [(25.0, 25.0), (STUCK_S, STUCK_S), (1000.0, STUCK_S)])
def test_where_rounds_take_long_a_claim_is_held_for_longer(pause: float, counts: float) -> None:
    """But no disturbance, perhaps of a liar, makes a learner wait for many times as long."""
    peers = (PEER, THIRD, LIAR)
    engine = experienced(*peers)
    pass_awake(engine, pause - 1)
    advance_all(engine, peers)
    engine.beat(LIAR, claimed(engine.lineage), step=3)
    pass_awake(engine, PAUSES * counts - 1)
    engine.beat(LIAR, claimed(engine.lineage), step=3)
    assert engine.sent(Want) == []
    pass_awake(engine, 1)
    engine.beat(LIAR, claimed(engine.lineage), step=3)
    assert [to for to, _ in engine.sent(Want)] == [LIAR]


@pytest.mark.parametrize("when", ["before the pause", "after it"])
def test_a_rest_does_not_count_as_a_pause_between_rounds(when: str) -> None:
    """There are no rounds while learners evaluate, however long it takes."""
    peers = (PEER, THIRD, LIAR)
    engine = experienced(*peers)
    if when == "before the pause":
        engine.engine.rest(engine.now)
        engine.beat(PEER, engine.lineage, step=3)
        engine.step()
        assert not engine.engine.state.resting
    pass_awake(engine, 100.0)
    if when == "after it":
        for peer in peers:
            engine.beat(peer, engine.lineage, step=3)
        engine.engine.rest(engine.now)
    advance_all(engine, peers)
    engine.step()
    engine.beat(LIAR, claimed(engine.lineage), step=3)
    pass_awake(engine, PATIENCE_S - 2)
    engine.beat(LIAR, claimed(engine.lineage), step=3)
    assert engine.sent(Want) == []
    pass_awake(engine, 2)
    engine.beat(LIAR, claimed(engine.lineage), step=3)
    assert [to for to, _ in engine.sent(Want)] == [LIAR]


@pytest.mark.parametrize("who", ["all finish", "one trains", "this learner only synchronizes"])
def test_where_all_are_at_their_end_the_pace_of_the_run_does_not_count(who: str) -> None:
    """Nobody begins a round any more, however rare they were. So nothing tells of a branch but the
    claim."""
    peers = (PEER, THIRD, LIAR)
    engine = experienced(*peers)
    pass_awake(engine, 24.0)
    advance_all(engine, peers)
    engine.step()
    engine.engine.rest(engine.now, finishing=who != "this learner only synchronizes")

    def beats() -> None:
        for peer in (PEER, THIRD):
            trains = who == "one trains" and peer == PEER
            engine.beat(peer, engine.lineage, step=3, rests=not trains)
        engine.beat(LIAR, claimed(engine.lineage), step=3, rests=True)

    beats()
    engine.sent(Want)
    pass_awake(engine, STUCK_S - 1)
    beats()
    assert engine.sent(Want) == []
    pass_awake(engine, 1)
    beats()
    asked = [to for to, _ in engine.sent(Want)]
    assert asked == ([LIAR] if who == "all finish" else [])


def test_an_anchor_that_was_asked_for_may_be_a_greater_one_by_now() -> None:
    engine = experienced(PEER)
    engine.beat(PEER, claimed(engine.lineage), step=3)
    engine.receive(state_of(claimed(engine.lineage, tokens=10**9 + 7)))
    (install,) = engine.jobs(Install)
    assert install.states[0].lineage.tokens == 10**9 + 7


def answered_beyond() -> tuple[DrivenEngine, PeerId, Lineage]:
    """A learner, the peer that it has asked for an anchor, and the greater one that came."""
    engine = experienced(PEER, THIRD, FOURTH)
    shown = grown(engine.lineage)
    for peer in (PEER, THIRD):
        engine.beat(peer, shown, step=3)
    ((asked, _),) = engine.sent(Want)
    engine.receive(state_of(grown(shown), peer=asked))
    assert engine.jobs(Install) == []
    return engine, asked, grown(shown)


def test_an_anchor_beyond_what_most_show_is_held_until_they_show_it() -> None:
    """A peer that is asked for an anchor could otherwise answer with any greater one."""
    engine, _, beyond = answered_beyond()
    for peer in (PEER, THIRD):
        engine.beat(peer, beyond, step=3)
    (install,) = engine.jobs(Install)
    assert install.states[0].lineage == beyond


def test_a_kept_anchor_that_most_show_is_taken_while_its_peer_shows_a_greater_one() -> None:
    engine, asked, beyond = answered_beyond()
    engine.beat(asked, grown(beyond), step=3)
    engine.beat(PEER if asked == THIRD else THIRD, beyond, step=3)
    (install,) = engine.jobs(Install)
    assert install.states[0].lineage == beyond


def test_a_kept_anchor_is_taken_if_its_peer_is_asked_for_nothing() -> None:
    """It is doubted, so its greater one would not be asked for; and the kept one would be lost."""
    engine, asked, beyond = answered_beyond()
    engine.engine.state.claims.failed(engine.now, asked, 0.0, 100.0)
    for peer in (asked, *{PEER, THIRD} - {asked}, FOURTH):
        engine.beat(peer, grown(beyond), step=3)
    (install,) = engine.jobs(Install)
    assert install.states[0].lineage == beyond


# Another model


def test_the_model_of_one_peer_is_held_where_others_train_ours() -> None:
    engine = experienced(PEER, THIRD, LIAR)
    engine.beat(LIAR, claimed(engine.lineage), step=3, genesis=OTHER)
    assert engine.sent(Want) == []
    engine.beat(THIRD, claimed(engine.lineage), step=3, genesis=OTHER)
    assert [to for to, _ in engine.sent(Want)] == [THIRD]


def test_a_learner_whose_model_nobody_else_trains_takes_the_greater_one() -> None:
    engine = DrivenEngine(seals=False)
    engine.step(9)
    engine.beat(PEER, claimed(BASE), step=3, genesis=OTHER)
    assert [to for to, _ in engine.sent(Want)] == [PEER]


def test_a_rollback_is_a_users_decision() -> None:
    engine = experienced(PEER, THIRD, LIAR)
    genesis = Rollback(1, LIAR.name).genesis(GENESIS)
    engine.beat(LIAR, engine.lineage.rolled_back(genesis), step=3, genesis=genesis)
    assert [to for to, _ in engine.sent(Want)] == [LIAR]


# Seals


def test_a_seal_of_a_peer_that_is_not_the_sealer_is_not_taken() -> None:
    engine = experienced(PEER, THIRD)
    sealer = engine.engine.state.roster.sealer(0)
    (other,) = {PEER, THIRD} - {sealer}
    engine.receive(seal_of(engine.lineage, sealer=other))
    assert engine.jobs(Advance) == []
    assert sealer
    engine.receive(seal_of(engine.lineage, sealer=sealer))
    assert len(engine.jobs(Advance)) == 1


def test_a_seal_that_was_asked_for_is_taken() -> None:
    engine = experienced(PEER, THIRD)
    sealer = engine.engine.state.roster.sealer(0)
    (other,) = {PEER, THIRD} - {sealer}
    seal = seal_of(engine.lineage, sealer=other)
    for peer in (PEER, THIRD):
        engine.beat(peer, grown(engine.lineage), step=3)
    asked = engine.sent(Want)[0][0]
    engine.receive(replace(seal, sealer=asked))
    assert len(engine.jobs(Advance)) == 1


def test_of_the_sealer_a_learner_takes_one_seal_after_the_other() -> None:
    """The sealer is two rounds ahead of all others, and its first seal got lost."""
    engine = experienced(PEER, THIRD)
    sealer = engine.engine.state.roster.sealer(0)
    assert sealer
    first = seal_of(engine.lineage, sealer=sealer)
    second = seal_of(grown(engine.lineage), sealer=sealer)
    engine.receive(second)
    assert engine.sent(Want) == [(sealer, Want(ME, 0, engine.lineage.digest))]
    assert engine.engine.state.wants[0].seal_only
    for seal in (first, second):
        engine.receive(seal)
        (advance,) = engine.jobs(Advance)
        engine.done(advance)
        engine.apply()
    assert engine.lineage.key == second.key


def test_nobody_else_is_asked_for_seals_that_were_missed() -> None:
    engine = experienced(PEER, THIRD, LIAR)
    sealer = engine.engine.state.roster.sealer(0)
    (other, _) = {PEER, THIRD, LIAR} - {sealer}
    engine.receive(seal_of(grown(engine.lineage), sealer=other))
    assert engine.sent(Want) == []


# Yielding


def pass_time(
    engine: DrivenEngine,
    shown: Mapping[PeerId, Lineage],
    genesis: bytes = GENESIS,
    seconds: float = PATIENCE_S,
) -> None:
    """Time passes, in which peers show these anchors in every beat."""
    for _ in range(int(seconds / 2) + 1):
        for peer, lineage in shown.items():
            engine.beat(peer, lineage, step=3, genesis=genesis)
        engine.tick(2.0)


def get_on(engine: DrivenEngine, peers: Sequence[PeerId], genesis: bytes = GENESIS) -> None:
    """Peers show anchors of a lesser branch, one after the other, for long enough."""
    for step in range(GETS_ON + 1):
        lesser = other_branch(engine.lineage, step)
        pass_time(engine, dict.fromkeys(peers, lesser), genesis, PATIENCE_S / GETS_ON)


def test_a_learner_yields_to_most_learners_that_get_on_without_its_anchor() -> None:
    engine = experienced(PEER, THIRD)
    before = engine.lineage
    get_on(engine, (PEER, THIRD))
    ((to, want),) = engine.sent(Want)
    assert want == Want(ME, 0, b"")
    assert len(engine.events("yielded")) > 0
    lesser = other_branch(before, GETS_ON)
    engine.receive(state_of(lesser, peer=to))
    (install,) = engine.jobs(Install)
    engine.done(install)
    assert engine.lineage == lesser
    (record,) = [r for r in engine.engine.state.records if r.reason == "yielded"]
    assert record.tokens == lesser.tokens < before.tokens


def test_it_does_not_yield_to_half_of_them() -> None:
    engine = experienced(PEER, THIRD, FOURTH)
    for step in range(GETS_ON + 1):
        lesser = other_branch(engine.lineage, step)
        pass_time(engine, {FOURTH: engine.lineage, PEER: lesser, THIRD: lesser})
    assert engine.sent(Want) == []


def test_it_does_not_yield_to_learners_that_are_only_behind() -> None:
    engine = experienced(PEER, THIRD)
    early = [engine.lineage]
    for _ in range(2 * GETS_ON):
        advance_all(engine, ())
        early.append(engine.lineage)
    for behind in early[:-1]:
        pass_time(engine, dict.fromkeys((PEER, THIRD), behind))
    assert engine.sent(Want) == []


def test_it_does_not_yield_before_they_have_gone_on_for_long() -> None:
    engine = experienced(PEER, THIRD)
    for step in range(3 * GETS_ON):
        lesser = other_branch(engine.lineage, step)
        pass_time(engine, dict.fromkeys((PEER, THIRD), lesser), seconds=1)
    assert engine.events("yielded") == []


def test_a_learner_that_was_on_its_anchor_meanwhile_gets_on_without_it_anew() -> None:
    engine = experienced(PEER, THIRD)
    branch = [other_branch(engine.lineage, step) for step in range(3 * GETS_ON)]
    for lesser in branch[: GETS_ON + 1]:
        pass_time(engine, {PEER: lesser, THIRD: lesser}, seconds=4)
    pass_time(engine, {PEER: engine.lineage, THIRD: branch[GETS_ON]})
    for lesser in branch[GETS_ON + 1 :]:
        pass_time(engine, {PEER: lesser, THIRD: lesser}, seconds=1)
    assert engine.events("yielded") == []
    get_on(engine, (PEER, THIRD))
    assert engine.events("yielded")


def test_it_does_not_yield_to_learners_that_stand_still() -> None:
    engine = experienced(PEER, THIRD)
    pass_time(engine, dict.fromkeys((PEER, THIRD), other_branch(engine.lineage, 1)), seconds=200)
    assert engine.sent(Want) == []


def test_it_yields_to_another_model_that_more_learners_train() -> None:
    engine = experienced(PEER, THIRD)
    get_on(engine, (PEER, THIRD), genesis=b"another")
    assert {want.have for _, want in engine.sent(Want)} == {b""}
    assert engine.engine.state.switch
    assert engine.engine.state.switch.gives_way


# Two branches


def sees_a_majority(own: int, other: int) -> bool:
    """Whether a learner of the lesser branch of `own` learners takes the greater one's anchor."""
    return moves(own, other, is_greater=False)


def yields(own: int, other: int) -> bool:
    return moves(own, other, is_greater=True)


def moves(own: int, other: int, *, is_greater: bool) -> bool:
    near = [PeerId(f"near {i}", 1) for i in range(own - 1)]
    far = [PeerId(f"far {i}", 1) for i in range(other)]
    engine = experienced(*near, *far)
    if not is_greater:
        for peer in far:
            engine.beat(peer, claimed(engine.lineage), step=3)
        majority = engine.engine.adoption.majority
        return majority.believes(engine.fragment, claimed(engine.lineage).key, far[0])
    for step in range(GETS_ON + 1):
        lesser = other_branch(engine.lineage, step)
        shown = {**dict.fromkeys(near, engine.lineage), **dict.fromkeys(far, lesser)}
        pass_time(engine, shown)
    return bool(engine.sent(Want))


@given(st.integers(1, 6), st.integers(1, 6))
@example(2, 2)
@example(1, 2)
@example(2, 1)
def test_of_two_branches_that_get_on_exactly_one_gives_way(lesser: int, greater: int) -> None:
    """n = a + b: the lesser side moves if 2b > n − 1, the greater one if 2a > n."""
    assert sees_a_majority(lesser, greater) == (2 * greater > lesser + greater - 1)
    assert yields(greater, lesser) == (2 * lesser > lesser + greater)
    assert sees_a_majority(lesser, greater) != yields(greater, lesser)


def test_any_ones_word_is_enough_if_the_user_says_so() -> None:
    engine = experienced(PEER, THIRD, LIAR)
    state = engine.engine.state
    state.policies = replace(state.policies, limits=Limits(majority=False))
    engine.beat(LIAR, claimed(engine.lineage), step=3)
    assert [to for to, _ in engine.sent(Want)] == [LIAR]
    get_on(engine, (PEER, THIRD))
    assert engine.events("yielded") == []
