from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.engine.declining import (
    FIRST_S,
    LAST_S,
    RATIO,
    STEPS_MORE,
    WEAK_ROUNDS,
    Declining,
    PeerLatencies,
    weak_s,
)
from mend_optim.engine.ledger import Event
from mend_optim.engine.policies import Policies
from mend_optim.engine.round import Phase
from mend_optim.engine.schedule import Schedule
from mend_optim.engine.state import EngineState
from mend_optim.engine.stragglers import Stragglers
from mend_optim.membership.broadcasts import FANOUT
from mend_optim.protocol.lineage import Lineage, PeerId
from mend_optim.protocol.messages import Beat
from tests import reference
from tests.support.engines import FOURTH, ME, PEER, THIRD, DrivenEngine, grown


def told(*latencies: int, step_s: float = 1.0) -> PeerLatencies:
    return PeerLatencies(latencies, step_s)


def weak(own: set[int], *told: PeerLatencies, sizes: Sequence[int] = (), period: int = 0) -> bool:
    return weak_s(own, told, sizes or (0,) * 9, period) is not None


def test_a_sealer_is_weak_if_most_others_say_that_its_rounds_take_much_longer() -> None:
    slow, usual = told(60, 10, 10), told(12, 10, 10)
    assert weak({0}, slow, slow, usual)
    assert not weak({0}, slow, usual)
    assert not weak({0}, slow, usual, usual)


def test_how_long_its_rounds_take_is_what_half_of_those_say() -> None:
    found = [told(60, 10, step_s=0.5), told(50, 10), told(1, 10), told(10**9, 1)]
    assert weak_s({0}, found, (0, 0)) == 50.0


def test_rounds_may_differ_somewhat() -> None:
    assert not weak({0}, *2 * [told(RATIO * 10 - 1, 10)])
    assert weak({0}, *2 * [told(RATIO * 10, 10)])


def test_short_rounds_differ_by_chance() -> None:
    assert not weak({0}, *2 * [told(RATIO * 1, 1)])
    assert not weak({0}, *2 * [told(STEPS_MORE, 1)])
    assert weak({0}, *2 * [told(1 + STEPS_MORE, 1)])


def test_rounds_within_a_fixed_period_hold_nobody_up() -> None:
    assert not weak({0}, *2 * [told(50, 1)], period=50)
    assert weak({0}, *2 * [told(50, 1)], period=49)


def test_the_rounds_of_a_large_fragment_may_take_longer() -> None:
    assert not weak({0}, *2 * [told(50, 10, 10)], sizes=(500, 100, 100))
    assert weak({0}, *2 * [told(50, 10, 10)], sizes=(100, 100, 100))
    assert weak({0}, *2 * [told(50, 10, 10)], sizes=(10, 100, 100))
    assert not weak({0}, *2 * [told(12, 10, 10)], sizes=(10, 100, 100))


def test_sizes_that_are_not_known_excuse_nothing() -> None:
    assert weak({0}, *2 * [told(100, 1, 1)], sizes=(100, 0, 0))


def test_nothing_is_weak_that_cannot_be_compared() -> None:
    assert not weak({0})
    assert not weak({0, 1}, *2 * [told(100, 100)])
    assert not weak(set(), *2 * [told(100, 1)])
    assert not weak({0}, *2 * [told(0, 10)])
    assert not weak({0}, *2 * [told(100, 0)])
    assert not weak({0}, *2 * [told(100, 1)], sizes=(5,))  # the other one is not ours


def test_two_learners_share_one_link() -> None:
    assert not weak({0}, told(100, 1))
    assert weak({0}, *2 * [told(100, 1)])


def test_a_learner_that_knows_nothing_votes_against_it() -> None:
    assert not weak({0}, told(100, 1), told(0, 0))
    assert weak({0}, told(100, 1), told(0, 0), told(100, 1))


@st.composite
def judged(draw: st.DrawFn) -> tuple[set[int], list[PeerLatencies]]:
    """Fragments of a sealer, and what learners tell of its rounds, many of which take longer."""
    own = draw(st.sets(st.integers(0, 2)))
    slow, usual = st.integers(0, 100) | st.integers(60, 100), st.integers(0, 15)
    rounds = st.tuples(*(slow if p in own else usual for p in range(3)))
    words = st.builds(PeerLatencies, rounds, st.sampled_from([0.0, 0.5, 2.0]))
    return own, draw(st.integers(0, 5).flatmap(lambda n: st.lists(words, min_size=n, max_size=n)))


SIZES = st.lists(st.integers(0, 100), min_size=3, max_size=3)


def test_it_judges_as_its_slow_twin_does() -> None:
    found: Counter[bool] = Counter()

    @given(judged(), SIZES, st.integers(0, 50))
    def check(
        given: tuple[set[int], list[PeerLatencies]], sizes: Sequence[int], period: int
    ) -> None:
        own, told = given
        expected = reference.weak_s(own, told, sizes, period, RATIO, STEPS_MORE)
        assert weak_s(own, told, sizes, period) == expected
        found[expected is not None] += 1

    check()
    assert found[True] >= 5


FRAGMENTS = 6
ROUND_S = 90
LONG_S = float(WEAK_ROUNDS * ROUND_S)


class Seals(DrivenEngine):
    """A learner that seals two of six fragments. Its two peers seal the others."""

    def __init__(self, **options: Any) -> None:
        #: The peers that decline.
        self.declining: list[PeerId] = []
        #: The peers that find all rounds alike.
        self.content: list[PeerId] = []
        #: Peers that nobody can dial.
        self.undialled: list[PeerId] = []
        #: Peers that do not train, and have no anchor but the first.
        self.idle: list[PeerId] = []
        #: The anchors that the peers show; empty: those that all began with.
        self.lineages: list[Lineage] = []
        super().__init__(fragments=FRAGMENTS, **options)
        self.hear(own=1)

    @property
    def own(self) -> set[int]:
        state = self.engine.state
        return {p for p in range(FRAGMENTS) if state.sealer(p) == ME}

    @property
    def declines(self) -> bool:
        return self.engine.state.roster.place.is_weak

    def hear(self, own: int, others: int = 10) -> None:
        """Its peers tell that rounds take so many steps of a second, and it sends a beat."""
        sealed, state = self.own, self.engine.state
        told = [own if p in sealed else others for p in range(FRAGMENTS)]
        for peer in (PEER, THIRD):
            finds = [others] * FRAGMENTS if peer in self.content else told
            self.beat(
                peer,
                *self.lineages,
                address=f"{peer.name}:1",
                latencies=finds,
                declines=peer in self.declining,
            )
        for peer in self.undialled:
            self.beat(peer, address="", latencies=told)
        for peer in self.idle:
            self.beat(peer, address="", latencies=told)
            known = state.roster.peers[peer.name]
            assert known.beat
            known.beat = replace(known.beat, training=False)
        self.now += state.policies.timing.beat_s
        self.engine.tick(self.now)

    def look_weak(self, seconds: float = LONG_S) -> None:
        """Its rounds take long for so many seconds."""
        began = self.now
        self.hear(own=ROUND_S)
        while not self.declines and self.now < began + seconds:
            self.now = min(began + seconds, self.now + 5.0)
            self.hear(own=ROUND_S)


def test_a_learner_with_a_weak_link_seals_nothing_and_says_so() -> None:
    engine = Seals()
    assert len(engine.own) == 2
    engine.look_weak()
    assert engine.declines
    assert not engine.own
    (event,) = engine.events("declines")
    assert event.facts == {"for_s": FIRST_S}
    assert engine.engine.beats.make().declines
    assert not engine.events("seals_again")


def lagging(engine: Seals) -> None:
    """Its peers do not have its last seal yet."""
    fragment = engine.engine.state.fragments[min(engine.own)]
    fragment.lineage = grown(fragment.lineage)


def test_it_declines_once_all_have_its_seals() -> None:
    """Its substitute would seal another one on the same anchor."""
    engine = Seals()
    lagging(engine)
    engine.look_weak(LONG_S + 20.0)
    roster = engine.engine.state.roster
    assert (engine.declines, roster.place.hands_over) == (False, True)
    engine.lineages = [each.lineage for each in engine.engine.state.fragments]
    engine.hear(own=ROUND_S)
    engine.hear(own=ROUND_S)
    assert (engine.declines, roster.place.hands_over) == (True, False)


def test_it_waits_for_no_learner_that_does_not_train() -> None:
    engine = Seals()
    engine.idle = [FOURTH]
    lagging(engine)
    engine.lineages = [each.lineage for each in engine.engine.state.fragments]
    engine.look_weak(LONG_S + 20.0)
    assert engine.declines


def test_it_declines_once_it_merges_nothing() -> None:
    engine = Seals()
    (first, _) = sorted(engine.own)
    round = engine.engine.state.rounds[first]
    round.phase = Phase.MERGING
    engine.look_weak(LONG_S + 20.0)
    assert not engine.declines
    round.phase = Phase.WAITING
    engine.look_weak(20.0)
    assert engine.declines


def test_it_waits_for_a_learner_that_does_not_take_its_seal_for_as_long_again() -> None:
    engine = Seals()
    lagging(engine)
    engine.look_weak(2 * LONG_S - 10.0)
    assert not engine.declines
    engine.look_weak(20.0)
    assert engine.declines


def test_if_its_rounds_are_quick_again_it_seals_on() -> None:
    engine = Seals()
    lagging(engine)
    engine.look_weak(LONG_S + 20.0)
    assert engine.engine.state.roster.place.hands_over
    engine.hear(own=10)
    engine.hear(own=10)
    assert not engine.engine.state.roster.place.hands_over
    assert not engine.declines


def test_seals_of_its_substitute_count_when_it_seals_again() -> None:
    engine = Seals()
    engine.look_weak()
    roster = engine.engine.state.roster
    substitutes = [roster.sealer(p) for p in range(FRAGMENTS)]
    while engine.declines:
        engine.now += 30.0
        engine.hear(own=10)
    for p, substitute in enumerate(substitutes):
        assert substitute
        assert roster.may_seal(p, substitute)


def test_a_learner_whose_rounds_take_as_long_as_others_seals() -> None:
    engine = Seals()
    for _ in range(3):
        engine.hear(own=12)
        engine.now += LONG_S
    assert not engine.declines
    assert len(engine.own) == 2


def test_the_word_of_half_of_the_others_is_not_enough() -> None:
    """However long they say so."""
    engine = Seals()
    engine.content = [THIRD]
    engine.look_weak(3 * LONG_S)
    assert not engine.declines
    engine.content = []
    engine.look_weak()
    assert engine.declines


def test_rounds_that_take_long_for_a_while_make_nobody_decline() -> None:
    """They may have waited for the offers of a weak link."""
    engine = Seals()
    for _ in range(3):
        engine.look_weak(LONG_S - 1)
        assert not engine.declines
        engine.hear(own=12)


def test_a_finding_about_other_fragments_counts_no_more() -> None:
    engine = Seals()
    engine.look_weak(LONG_S - 1)
    before = engine.own
    engine.beat(FOURTH, address="fourth:1")
    assert engine.own != before
    engine.hear(own=ROUND_S)
    engine.hear(own=ROUND_S)
    assert not engine.declines


@pytest.mark.parametrize("times", [1, 2, 8])
def test_it_tries_again_later_each_time(times: int) -> None:
    engine, lasted = Seals(), []
    for _ in range(times):
        engine.look_weak()
        assert engine.declines
        began = engine.now
        while engine.declines:
            engine.now += 30.0
            engine.hear(own=10)
        lasted.append(engine.now - began)
        assert len(engine.own) == 2
        (event,) = engine.events("seals_again")
        assert event.lifts == "declines"
    expected = [min(FIRST_S * 2**n, LAST_S) for n in range(times)]
    assert lasted == pytest.approx(expected, abs=31.0)


def test_the_rounds_of_a_newcomer_are_not_compared() -> None:
    """It may see some fragments' rounds only, while it takes its anchors."""
    engine = Seals()
    newcomers = [PeerId(f"newcomer-{i}", 1) for i in range(2)]
    for newcomer in newcomers:
        engine.beat(newcomer, latencies=[0] * FRAGMENTS, address="")
    engine.look_weak()
    assert not engine.declines


def test_a_learner_that_tries_again_is_judged_anew() -> None:
    engine = Seals()
    engine.look_weak()
    while engine.declines:
        engine.now += 20.0
        engine.hear(own=10)
    engine.look_weak(LONG_S - 1)
    assert not engine.declines


def test_at_rest_no_round_takes_longer() -> None:
    """Latencies are in steps: what was told last is told on."""
    engine = Seals()
    engine.engine.rest(engine.now, finishing=False)
    engine.look_weak()
    assert not engine.declines


def test_all_hear_at_once_that_a_learner_declines() -> None:
    """In a big roster the other beats go to some in turn. All should choose other sealers at one
    time."""
    engine = Seals()
    engine.undialled = [PeerId(f"p{i:02}", 1) for i in range(2 * FANOUT)]
    engine.look_weak()
    assert engine.declines
    told = {to for to, beat in engine.sent(Beat) if beat.declines}
    assert told == {PEER, THIRD, *engine.undialled}
    engine.hear(own=10)
    assert len({to for to, beat in engine.sent(Beat)}) < len(told)


def test_a_process_that_was_stopped_has_not_looked_weak_meanwhile() -> None:
    engine = Seals()
    engine.hear(own=ROUND_S)
    engine.now += LONG_S
    engine.hear(own=ROUND_S)
    assert not engine.declines


def test_no_more_than_half_decline() -> None:
    """Of those that can be dialled."""
    engine = Seals()
    engine.declining = [PEER]
    engine.look_weak()
    assert not engine.declines
    engine.undialled = [FOURTH]
    engine.look_weak()
    assert not engine.declines
    engine.declining = []
    engine.look_weak()
    assert engine.declines


@pytest.mark.parametrize(("me", "seals_again"), [(PeerId("z", 1), True), (PeerId("a", 1), False)])
def test_of_two_that_declined_at_one_time_the_last_by_name_seals_again(
    me: PeerId, seals_again: bool
) -> None:
    """There are three, and one is not the half of them."""
    state = EngineState(me, f"{me.name}:1", (), Policies(schedule=Schedule()))
    for peer in (PEER, THIRD):
        state.roster.meet(0.0, peer, f"{peer.name}:1")
        beat = Beat(
            peer=peer, address=f"{peer.name}:1", count=1, training=True, declines=peer == PEER
        )
        state.roster.hear(0.0, beat)
    declining = Declining(state, Stragglers(state))
    state.roster.place.lacks_model = False
    declining._until, state.roster.place.is_weak, declining._declined = 1e9, True, True
    assert declining.review(1.0) is seals_again
    assert state.roster.place.is_weak is not seals_again
    assert [e.kind for e in state.out if isinstance(e, Event)] == ["seals_again"] * seals_again


@pytest.mark.parametrize("options", [{"adopt_after": 2}, {"failslow": None}])
def test_where_rounds_wait_for_everybody_nobody_declines(options: dict[str, Any]) -> None:
    engine = Seals(**options)
    engine.look_weak()
    assert not engine.declines


def test_after_a_good_while_it_is_as_at_first() -> None:
    engine = Seals()
    for expected in (FIRST_S, 2 * FIRST_S):
        engine.look_weak()
        (event,) = engine.events("declines")
        assert event.facts == {"for_s": expected}
        while engine.declines:
            engine.now += 30.0
            engine.hear(own=10)
    engine.now += 2 * FIRST_S
    engine.hear(own=10)
    engine.look_weak()
    (event,) = engine.events("declines")
    assert event.facts == {"for_s": FIRST_S}
