from __future__ import annotations

from dataclasses import replace

import pytest

from mend_optim.engine.accounts import Totals
from mend_optim.engine.mode import Mode
from mend_optim.engine.pending import NEVER
from mend_optim.engine.period import AutoPeriod
from mend_optim.engine.policies import Policies
from mend_optim.engine.progress import Progress
from mend_optim.engine.quorum import Quorum
from mend_optim.engine.round import Round
from mend_optim.engine.schedule import Schedule
from mend_optim.engine.state import EngineState
from mend_optim.engine.stragglers import Stragglers
from mend_optim.membership.failslow import FailSlow
from mend_optim.protocol.lineage import Lineage, PeerId
from mend_optim.protocol.messages import Beat, Level
from mend_optim.status import peer_statuses

ME, PEER, THIRD = (PeerId(name, 1) for name in ("me", "peer", "third"))


def watching(sync_every: int = 10, **policy: float) -> Stragglers:
    failslow = FailSlow(**policy)  # type: ignore[arg-type]
    state = EngineState(
        ME, "me:1", (), Policies(schedule=Schedule(sync_every=sync_every), failslow=failslow)
    )
    state.genesis = b"genesis"
    return Stragglers(state)


def hear(watch: Stragglers, now: float, count: int, **levels: float) -> None:
    """A beat of each of these peers: so many times slower than it was."""
    for name, slower in levels.items():
        peer = PeerId(name, 1)
        watch.state.roster.meet(now, peer, f"{name}:1")
        paces = (("compute", Level(slower, 1.0, 0.01, count)),)
        watch.state.roster.hear(
            now, Beat(peer=peer, address="", count=count, genesis=b"genesis", paces=paces)
        )
    watch.review(now)


@pytest.mark.parametrize(("auto", "late_s"), [(None, 0.5 + 20.0), (AutoPeriod(), 0.5 + 8.0)])
def test_an_answer_is_late_after_a_fixed_period(auto: AutoPeriod | None, late_s: float) -> None:
    """A period that the run makes as long as its rounds take would excuse any wait."""
    watch = watching(sync_every=10)
    watch.state.policies = replace(watch.state.policies, auto=auto)
    watch.stepped(2.0, 10)
    round = Round(0)
    round.delays.quorum_took(0.5)
    round.delays.sync_took(0.5)
    assert watch.late_after_s(round) == late_s


def tell(watch: Stragglers, name: str, latency: int, step_s: float) -> None:
    """A peer says how many of its steps its rounds take, and how long one takes."""
    peer = PeerId(name, 1)
    beat = Beat(peer=peer, address="", count=1, latency=latency, seconds_per_step=step_s)
    watch.state.roster.meet(0.0, peer, f"{name}:1")
    watch.state.roster.hear(0.0, beat)


@pytest.mark.parametrize(
    ("told", "late_s"),
    [
        ([], NEVER),
        ([(0, 1.0)], NEVER),
        ([(5, 2.0)], 10.0 + 10.0),
        ([(5, 2.0), (0, 1.0)], NEVER),
        ([(5, 2.0), (1, 1.0), (0, 1.0)], 10.0 + 10.0),
        ([(5, 2.0), (2, 2.0), (4, 2.0)], 8.0 + 8.0),
    ],
)
def test_before_its_first_round_a_sealer_asks_how_long_those_of_most_others_take(
    told: list[tuple[int, float]], late_s: float
) -> None:
    watch = watching()
    watch.state.policies = replace(watch.state.policies, auto=AutoPeriod())
    for name, (latency, step_s) in zip("abc", told, strict=False):
        tell(watch, name, latency, step_s)
    round = Round(0)
    assert watch.late_after_s(round) == late_s
    round.delays.quorum_took(1.0)
    assert watch.late_after_s(round) == late_s
    round.delays.sync_took(1.0)
    assert watch.late_after_s(round) < 10.0


def test_what_a_peer_said_that_may_be_gone_is_nothing_to_go_by() -> None:
    watch = watching()
    tell(watch, "a", 5, 2.0)
    watch.state.roster.link(0.0, PeerId("a", 1), False)
    assert watch.late_after_s(Round(0)) == NEVER


def test_what_a_step_takes_is_the_median_of_the_last_nine() -> None:
    """An evaluation of a minute between two steps is not what a step takes."""
    watch = watching()
    for seconds in (0.5, 0.5, 60.0, 0.6, 0.5):
        watch.stepped(seconds, 10)
    assert watch.state.step_s == 0.5
    for _ in range(9):
        watch.stepped(2.0, 10)
    assert watch.state.step_s == 2.0


def test_our_own_level_is_in_seconds_per_token() -> None:
    watch = watching()
    assert watch.levels() == ()
    for _ in range(40):
        watch.stepped(0.5, 10)
    ((cause, level),) = watch.levels()
    assert cause == "compute"
    assert level.now == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("step_s", "seconds", "matters"),
    [(0.5, 0.4, False), (0.5, 0.6, True), (0.005, 0.04, False), (0.005, 0.06, True)],
)
def test_a_link_matters_from_a_tenth_of_a_period_on(
    step_s: float, seconds: float, matters: bool
) -> None:
    """And from 50 ms on: less says more of the machine's load than of the link."""
    watch = watching(sync_every=10)
    for _ in range(9):
        watch.stepped(step_s, 10)
    for _ in range(5):
        watch.delivered(seconds, 1000)
    links = [level for cause, level in watch.levels() if cause == "link"]
    assert [level.now for level in links] == ([pytest.approx(seconds / 1000)] if matters else [])


def short(quorum: int | None, here: int, gone: int = 0) -> Stragglers:
    """One with so many live peers, and some that are suspected."""
    watch = watching()
    watch.state.policies = replace(watch.state.policies, quorum=Quorum(minimum=quorum))
    watch.state.mode = Mode.TRAINING
    for i in range(here + gone):
        peer = PeerId(f"p{i}", 1)
        watch.state.roster.hear(0.0, Beat(peer=peer, address=f"p{i}:1", count=1))
        watch.state.roster.peers[peer.name].silent = i >= here
    fragment = Progress(ME, 0, Lineage.fresh(b"genesis"), cycle_start=0)
    watch.state.fragments = [fragment]
    fragment.snapshot(Totals(4, 40), due=True)
    return watch


@pytest.mark.parametrize(
    ("quorum", "here", "gone", "text"),
    [
        (3, 1, 0, "quorum needs 3 learners, and 2 are here"),
        (None, 1, 2, "quorum needs 3 learners, and 2 are here"),
    ],
)
def test_a_quorum_that_is_not_there_for_long_is_told_once(
    quorum: int | None, here: int, gone: int, text: str
) -> None:
    watch = short(quorum, here, gone)
    patience = watch.state.policies.timing.round_timeout_s
    for now in (0.0, patience - 1):
        watch.review(now)
        assert watch.state.out == []
    for now in (patience, 2 * patience, 9 * patience):
        watch.review(now)
    (event,) = watch.state.out
    assert (event.kind, event.facts["here"]) == ("below_quorum", here + 1)
    assert text in event.text


def test_a_quorum_that_comes_and_goes_is_waited_for_anew() -> None:
    watch = short(3, 1, 1)
    patience = watch.state.policies.timing.round_timeout_s
    watch.review(0.0)
    watch.review(patience)
    watch.state.roster.peers["p1"].silent = False
    watch.review(patience + 1)
    watch.state.roster.peers["p1"].silent = True
    for now in (patience + 2, 2 * patience + 1):
        watch.review(now)
        assert len(watch.state.out) == 2
    watch.review(2 * patience + 2)
    below, enough, again = watch.state.out
    assert (enough.kind, enough.lifts) == ("quorum", "below_quorum")
    assert enough.text == "rounds go on: quorum needs 3 learners, and 3 are here"
    assert below.kind == again.kind == "below_quorum"


def test_a_shortage_that_was_told_is_not_over_because_no_offer_waits() -> None:
    watch = short(3, 1, 1)
    patience = watch.state.policies.timing.round_timeout_s
    watch.review(0.0)
    watch.review(patience)
    pending, watch.state.fragments[0].pending = watch.state.fragments[0].pending, None
    watch.review(patience + 1)
    watch.state.fragments[0].pending = pending
    watch.review(3 * patience)
    assert [event.kind for event in watch.state.out] == ["below_quorum"]
    watch.state.roster.peers["p1"].silent = False
    watch.review(3 * patience + 1)
    assert [event.kind for event in watch.state.out] == ["below_quorum", "quorum"]


@pytest.mark.parametrize(("mode", "told"), [(Mode.TRAINING, ["slow"]), (Mode.SOLO, [])])
def test_a_learner_alone_is_not_told_that_it_is_slow(mode: Mode, told: list[str]) -> None:
    """No round could wait for it."""
    watch = watching()
    watch.state.mode = mode
    for seconds in (0.5, 5.0):
        for now in range(200):
            watch.stepped(seconds, 10)
            watch.review(float(now))
    assert [event.kind for event in watch.state.out] == told


@pytest.mark.parametrize("why", ["a quorum is there", "nothing is offered", "nobody is known"])
def test_nobody_is_told_of_a_quorum_where(why: str) -> None:
    watch = short(2 if why == "a quorum is there" else 3, 1)
    if why == "nobody is known":
        watch.state.mode = Mode.SOLO
    if why == "nothing is offered":
        watch.state.fragments[0].pending = None
    for now in (0.0, 1e6):
        watch.review(now)
    assert watch.state.out == []


def test_nobody_loses_work_while_this_learner_is_stopped() -> None:
    watch = watching(restart_s=20.0)
    watch.state.stops.look(0.0)
    for count in range(9, 40):
        hear(watch, float(count), count, peer=1.0, third=2.0, fourth=1.0)
        watch.state.stops.look(float(count))
    assert [event.kind for event in watch.state.out] == ["slow"]
    night = 40.0 + 8 * 3600
    hear(watch, night, 40, peer=1.0, third=2.0, fourth=1.0)
    assert [event.kind for event in watch.state.out] == ["slow"]


def test_events_say_who_why_since_when_and_what_it_costs() -> None:
    watch = watching(restart_s=20.0)
    for count in range(9, 60):
        hear(watch, float(count), count, peer=1.0, third=2.0, fourth=1.0)
    slow, costly = watch.state.out
    assert [slow.kind, costly.kind] == ["slow", "costly"]
    facts = costly.facts
    assert (facts["peer"], facts["incarnation"], facts["cause"]) == ("third", 1, "compute")
    assert facts["ratio"] == pytest.approx(2.0)
    assert facts["for_s"] == pytest.approx(40.0)  # a half of it is lost
    assert facts["lost_s"] == pytest.approx(20.0)
    assert facts["lost_per_hour_s"] == pytest.approx(1800.0)
    assert "third is 2.0 times slower than it was (compute)" in slow.text
    assert "cost 20 s of its work, and costs 1800 s more every hour" in costly.text
    assert set(watch.failing) == {THIRD}
    slow_ones = {peer.name: peer.slow for peer in peer_statuses(watch.state, watch.failing)}
    assert slow_ones == {"peer": 0.0, "third": pytest.approx(2.0), "fourth": 0.0}


def test_a_peer_of_another_model_is_nobodys_measure() -> None:
    """Its tokens are others."""
    watch = watching()
    watch.state.genesis = b"other"
    for count in range(9, 20):
        hear(watch, float(count), count, peer=1.0, third=2.0, fourth=1.0)
    assert watch.failing == {}
