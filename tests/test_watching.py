from __future__ import annotations

import pytest

from mend_optim.books import Books, Policies
from mend_optim.failslow import FailSlow, Level
from mend_optim.lineage import PeerId
from mend_optim.protocol import Beat
from mend_optim.schedule import Schedule
from mend_optim.watching import Watching

ME, PEER, THIRD = (PeerId(name, 1) for name in ("me", "peer", "third"))


def watching(sync_every: int = 10, **policy: float) -> Watching:
    failslow = FailSlow(**policy)  # type: ignore[arg-type]
    books = Books(ME, "me:1", (), Policies(schedule=Schedule(sync_every=sync_every), failslow=failslow))
    books.genesis = b"genesis"
    return Watching(books)


def hear(watch: Watching, now: float, count: int, **levels: float) -> None:
    """A beat of each of these peers: so many times slower than it was."""
    for name, slower in levels.items():
        peer = PeerId(name, 1)
        watch.books.roster.meet(now, peer, f"{name}:1")
        paces = (("compute", Level(slower, 1.0, 0.01, count)),)
        watch.books.roster.hear(now, Beat(peer, "", count, genesis=b"genesis", paces=paces))
    watch.review(now)


def test_what_a_step_takes_is_the_median_of_the_last_nine() -> None:
    """An evaluation of a minute between two steps is not what a step takes."""
    watch = watching()
    for seconds in (0.5, 0.5, 60.0, 0.6, 0.5):
        watch.stepped(seconds, 10)
    assert watch.books.step_s == 0.5
    for _ in range(9):
        watch.stepped(2.0, 10)
    assert watch.books.step_s == 2.0


def test_our_own_level_is_in_seconds_per_token() -> None:
    watch = watching()
    assert watch.levels() == ()
    for _ in range(40):
        watch.stepped(0.5, 10)
    ((cause, level),) = watch.levels()
    assert cause == "compute"
    assert level.now == pytest.approx(0.05)


@pytest.mark.parametrize(("seconds", "matters"), [(0.4, False), (0.6, True)])
def test_a_link_matters_from_a_tenth_of_a_period_on(seconds: float, matters: bool) -> None:
    watch = watching(sync_every=10)
    for _ in range(9):
        watch.stepped(0.5, 10)
    for _ in range(5):
        watch.delivered(seconds, 1000)
    links = [level for cause, level in watch.levels() if cause == "link"]
    assert [level.now for level in links] == ([pytest.approx(seconds / 1000)] if matters else [])


def test_events_say_who_why_since_when_and_what_it_costs() -> None:
    watch = watching(restart_s=20.0)
    for count in range(9, 60):
        hear(watch, float(count), count, peer=1.0, third=2.0, fourth=1.0)
    slow, costly = watch.books.out
    assert [slow.kind, costly.kind] == ["slow", "costly"]
    facts = costly.facts
    assert (facts["peer"], facts["incarnation"], facts["cause"]) == ("third", 1, "compute")
    assert facts["ratio"] == pytest.approx(2.0)
    assert facts["for_s"] == pytest.approx(40.0)  # a half of it is lost
    assert facts["lost_s"] == pytest.approx(20.0)
    assert facts["lost_per_hour_s"] == pytest.approx(1800.0)
    assert "third is 2.0 times slower than it was (compute)" in slow.text
    assert "cost 20 s of its work, 1800 s more with every hour" in costly.text
    assert set(watch.failing) == {THIRD}


def test_a_peer_of_another_model_is_nobodys_measure() -> None:
    """Its tokens are others."""
    watch = watching()
    watch.books.genesis = b"other"
    for count in range(9, 20):
        hear(watch, float(count), count, peer=1.0, third=2.0, fourth=1.0)
    assert watch.failing == {}
