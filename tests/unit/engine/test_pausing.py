"""A newcomer beside a lone learner that takes no step: the weights of that one are its model, and
come with its next step."""

from __future__ import annotations

import pytest

from mend_optim.engine.effects import Send
from mend_optim.engine.engine import Engine
from mend_optim.engine.joining import PAUSE
from mend_optim.engine.ledger import Event
from mend_optim.engine.policies import Policies
from mend_optim.engine.schedule import Schedule
from mend_optim.protocol.handshake import Life, Namesake
from mend_optim.protocol.lineage import Key, PeerId
from mend_optim.protocol.messages import Beat, Report, Rumor, Want
from mend_optim.protocol.timing import Timing

ME, PEER, THIRD = PeerId("me", 1), PeerId("peer", 1), PeerId("third", 1)
SEED = "peer:1"
TIMING = Timing(beat_s=1.0, join_timeout_s=30.0, round_timeout_s=60.0)
GENESIS, GREATER = b"genesis", b"zother"
#: The key that a lone learner shows for what it has trained.
TRAINED = Key(400, 1, b"trained")


class Newcomer:
    """A learner before its first step, and the beats that it hears once a second."""

    def __init__(self, *others: PeerId) -> None:
        policies = Policies(schedule=Schedule(sync_every=4), timing=TIMING)
        self.engine = Engine(ME, "me:1", (SEED,), policies, 0.0)
        self.engine.begin(0.0, GENESIS, (b"",))
        self.peers = (PEER, *others)
        self.steps, self.training, self.step_s = 100, True, 0.1
        self.now = 0.0
        self.me = ME
        self.models = dict.fromkeys((PEER, *others), (GREATER, TRAINED))
        self.said: list[str] = []
        self.asked: list[float] = []
        for peer in self.peers:
            self.engine.met(0.0, peer, f"{peer.name}:1", f"{peer.name}:1")
            self.engine.linked(0.0, peer, True)

    def run(self, until: float, *, beats: bool = True) -> None:
        while self.now < until:
            self.now += 1.0
            for peer in self.peers if beats else ():
                self.hear(peer)
            self.engine.tick(self.now)
            for effect in self.engine.drain(self.now):
                if isinstance(effect, Event):
                    self.said.append(effect.text)
                elif isinstance(effect, Send) and isinstance(effect.message, Want):
                    self.asked.append(self.now)

    def hear(self, peer: PeerId) -> None:
        genesis, key = self.models[peer]
        beat = Beat(
            peer=peer,
            address=f"{peer.name}:1",
            count=int(self.now),
            step=self.steps,
            seconds_per_step=self.step_s,
            training=self.training,
            genesis=genesis,
            reports=(Report(key),),
            roster=(Rumor(self.me, "me:1", int(self.now), reached=True),),
        )
        self.engine.receive(self.now, beat)

    @property
    def joined(self) -> bool:
        return self.engine.state.joined


def test_it_waits_and_says_once_for_what() -> None:
    newcomer = Newcomer()
    newcomer.run(PAUSE * TIMING.round_timeout_s - 2)
    assert not newcomer.joined
    waits = [text for text in newcomer.said if "which come with its next step" in text]
    assert waits == ["waiting up to 539 s for the weights of peer, which come with its next step"]


def test_it_does_not_wait_for_ever() -> None:
    newcomer = Newcomer()
    newcomer.run(PAUSE * TIMING.round_timeout_s + 1)
    assert newcomer.joined
    assert any("the weights of peer have not come in time" in text for text in newcomer.said)


def test_it_asks_again_as_soon_as_that_learner_goes_on() -> None:
    """By then the learner is doubted for minutes."""
    newcomer = Newcomer()
    newcomer.run(300.0)
    assert newcomer.engine.state.claims.doubts(PEER)
    newcomer.steps += 1
    newcomer.run(301.0)
    assert newcomer.asked[-1] == 301.0
    newcomer.run(350.0)
    assert not newcomer.joined


def test_a_learner_that_goes_on_and_hands_nothing_over_is_waited_for_no_longer() -> None:
    newcomer = Newcomer()
    newcomer.run(300.0)
    for at in range(301, 370):
        newcomer.steps += 1
        newcomer.run(float(at))
    assert newcomer.joined


@pytest.mark.parametrize("step_s", [1, 3, 5, 10, 20])
def test_slow_steps_are_no_pauses(step_s: int) -> None:
    """Its weights never come, although it steps."""
    newcomer = Newcomer()
    newcomer.step_s = float(step_s)
    while not newcomer.joined:
        newcomer.steps += 1
        newcomer.run(newcomer.now + step_s)
    assert newcomer.now <= 2 * TIMING.round_timeout_s


@pytest.mark.parametrize("pauses", [1, 2])
def test_steps_before_it_was_asked_do_not_count(pauses: int) -> None:
    """It steps while it does not know of the newcomer yet, or not again, and pauses then."""
    newcomer = Newcomer()
    for pause in range(pauses):
        newcomer.run(100.0 * pause + 1)
        newcomer.steps += 1
        newcomer.run(100.0 * pause + 3)
        newcomer.steps += 1
    newcomer.run(PAUSE * TIMING.round_timeout_s - 2)
    assert not newcomer.joined
    newcomer.run(PAUSE * TIMING.round_timeout_s + 1)
    assert newcomer.joined


def test_with_another_incarnation_it_waits_as_long_as_at_first() -> None:
    newcomer = Newcomer()
    newcomer.run(100.0)
    newcomer.engine.outranked(newcomer.now, SEED, Namesake(PeerId("me", 2), Life.GONE))
    assert newcomer.engine.state.me.incarnation > 2
    newcomer.me = newcomer.engine.state.me
    newcomer.run(100 + PAUSE * TIMING.round_timeout_s - 2)
    assert not newcomer.joined


def test_it_does_not_say_that_the_weights_of_one_that_is_gone_will_come() -> None:
    """The weights of another one are on their way, and may take long."""
    newcomer = Newcomer(THIRD)
    newcomer.models[THIRD] = b"zzother", Key(800, 2, b"more")
    newcomer.run(100.0)
    assert newcomer.engine.joining.waiting.pausing == {PEER, THIRD}
    assert {wanted.peer for wanted in newcomer.engine.state.wants.values()} == {THIRD}
    newcomer.peers = (THIRD,)
    for _ in range(200):
        newcomer.engine.heard(newcomer.now, THIRD, 0)
        newcomer.run(newcomer.now + 1)
    assert newcomer.engine.state.wants
    assert newcomer.engine.joining.waiting.pausing == {THIRD}


@pytest.mark.parametrize("doing", ["steps", "has not joined", "has company", "is gone"])
def test_it_waits_for_no_other_learner_as_long(doing: str) -> None:
    """One that takes steps could have handed its weights over. One that has not joined, or is not
    alone, needs no step for it."""
    newcomer = Newcomer(*[THIRD] * (doing == "has company"))
    newcomer.training = doing != "has not joined"
    for at in range(1, 180):
        newcomer.steps += doing == "steps"
        newcomer.run(float(at), beats=doing != "is gone" or at < 70)
    assert newcomer.joined
    asked = doing == "is gone"
    assert any("which come with its next step" in text for text in newcomer.said) == asked


def test_a_stop_of_its_own_takes_nothing_from_the_wait() -> None:
    newcomer = Newcomer()
    newcomer.run(100.0)
    newcomer.now = 3700.0
    newcomer.run(3700.0 + PAUSE * TIMING.round_timeout_s - 110)
    assert not newcomer.joined
    newcomer.run(3700.0 + PAUSE * TIMING.round_timeout_s - 90)
    assert newcomer.joined
