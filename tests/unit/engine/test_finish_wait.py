"""What a learner that finishes says of those it waits for."""

from __future__ import annotations

from mend_optim.engine.effects import Effect
from mend_optim.engine.finish_wait import EVERY_S, NAMED
from mend_optim.engine.ledger import Event
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Beat, Goodbye, Report, Rumor
from mend_optim.protocol.timing import Timing
from tests.support.engines import BASE, GENESIS, PEER, THIRD, DrivenEngine

TIMING = Timing()
PATIENCE_S = TIMING.evict_after_s


class Waiting:
    """A learner that has called `finish()` beside peers that its test plays."""

    def __init__(self) -> None:
        self.driven = DrivenEngine()
        self.engine = self.driven.engine
        self.count = 0
        self.hear(PEER, step=1)
        self.engine.rest(self.driven.now, finishing=True)

    def hear(
        self,
        peer: PeerId,
        step: int = 1,
        *,
        finishes: bool = False,
        ready: bytes = b"",
        step_s: float = 1.0,
        roster: tuple[Rumor, ...] = (),
    ) -> None:
        self.count += 1
        now = self.driven.now
        self.engine.met(now, peer, "")
        reports = (Report(BASE.key),)
        beat = Beat(
            peer=peer,
            address="",
            count=self.count,
            step=step,
            training=True,
            genesis=GENESIS,
            reports=reports,
            finishes=finishes,
            ready=ready,
            seconds_per_step=step_s,
            roster=roster,
        )
        self.engine.receive(now, beat)

    def run(self, seconds: float, *peers: PeerId, steps: bool = False, step_s: float = 1.0) -> None:
        """Time passes in beats, and these peers send some that train on, or stand still."""
        for _ in range(int(seconds)):
            self.driven.now += 1.0
            for peer in peers:
                self.hear(peer, step=self.count if steps else 7, step_s=step_s)
            self.engine.tick(self.driven.now)

    def said(self, *kinds: str) -> list[Event]:
        effects: list[Effect] = self.engine.drain(self.driven.now)
        return [e for e in effects if isinstance(e, Event) and e.kind in kinds]


def test_it_names_those_it_waits_for_and_not_too_often() -> None:
    wait = Waiting()
    assert not wait.said("finishing")
    wait.run(TIMING.beat_s + 1, PEER, steps=True)
    (event,) = wait.said("finishing")
    assert event.text.startswith("finish() waits for peer (has not called finish(), at step ")
    assert set(event.facts["causes"]) == {"peer"}
    wait.run(EVERY_S - 2, PEER, steps=True)
    assert not wait.said("finishing")
    wait.run(3, PEER, steps=True)
    assert len(wait.said("finishing")) == 1


def test_each_cause_has_its_words() -> None:
    wait = Waiting()
    unheard = Rumor(PeerId("unheard", 1), "", 1)
    wait.hear(PEER, 9, roster=(unheard,))
    wait.hear(THIRD, finishes=True, ready=b"another")
    assert wait.engine.finish_wait.causes() == {
        "peer": "has not called finish(), at step 9",
        "third": "merges what is left",
        "unheard": "has not called finish()",
    }
    wait.engine.met(wait.driven.now, PeerId("met", 1), "")
    assert wait.engine.finish_wait.causes()["met"] == "not heard yet"


def test_a_peer_that_is_as_ready_is_not_waited_for() -> None:
    wait = Waiting()
    wait.hear(PEER, finishes=True)
    ready = wait.engine.state.ready
    assert ready
    assert wait.engine.finish_wait.causes() == {"peer": "merges what is left"}
    wait.hear(PEER, finishes=True, ready=ready)
    assert wait.engine.finish_wait.causes() == {}
    wait.run(2 * EVERY_S)
    assert not wait.said("finishing", "held_up")


def test_many_are_counted_and_not_named() -> None:
    wait = Waiting()
    crowd = [PeerId(f"learner-{i}", 1) for i in range(NAMED + 3)]
    wait.run(2, PEER, *crowd, steps=True)
    (event,) = wait.said("finishing")
    assert event.text.endswith(" and 4 more")
    assert event.text.count("has not called") == NAMED
    assert len(event.facts["causes"]) == NAMED + 4


def test_a_peer_that_stands_still_is_a_warning_once_and_has_an_all_clear() -> None:
    wait = Waiting()
    wait.run(PATIENCE_S, PEER)
    assert not wait.said("held_up")
    wait.run(2 * EVERY_S, PEER)
    (event,) = wait.said("held_up")
    assert event.text.startswith("finish() is held up: peer took no step for 30 s")
    assert event.facts["peers"] == ["peer"]
    wait.run(1, PEER, steps=True)
    assert [event.lifts for event in wait.said("finishing") if event.lifts] == ["held_up"]
    wait.run(PATIENCE_S + 2, PEER)
    assert len(wait.said("held_up")) == 1


def test_while_this_learner_itself_was_stopped_nobody_stood_still() -> None:
    """It could hear of no step. A laptop that wakes up must not blame the others."""
    wait = Waiting()
    wait.run(3, PEER)
    for _ in range(2):
        wait.driven.now += 2 * PATIENCE_S
        wait.run(4, PEER)
    wait.run(PATIENCE_S - 12, PEER)
    assert not wait.said("held_up")
    wait.run(4, PEER)
    assert len(wait.said("held_up")) == 1


def test_slow_steps_are_no_standstill() -> None:
    wait = Waiting()
    wait.run(2 * PATIENCE_S, PEER, step_s=PATIENCE_S)
    assert not wait.said("held_up")
    wait.run(4 * PATIENCE_S, PEER, step_s=PATIENCE_S)
    assert len(wait.said("held_up")) == 1


def test_a_peer_that_finishes_or_leaves_holds_nobody_up() -> None:
    for leaves in (True, False):
        wait = Waiting()
        wait.run(PATIENCE_S - 1, PEER)
        if leaves:
            wait.engine.receive(wait.driven.now, Goodbye(PEER))
        else:
            wait.hear(PEER, 7, finishes=True)
        wait.run(PATIENCE_S - 2)
        assert not wait.said("held_up")


def test_only_a_learner_that_finishes_says_it_and_each_wait_begins_anew() -> None:
    wait = Waiting()
    wait.run(3, PEER)
    wait.said()
    wait.driven.step()
    wait.run(PATIENCE_S + EVERY_S, PEER)
    assert not wait.said("finishing", "held_up")
    wait.engine.rest(wait.driven.now, finishing=True)
    wait.run(PATIENCE_S - 1, PEER)
    assert not wait.said("held_up")
    wait.run(3, PEER)
    assert wait.said("held_up")
