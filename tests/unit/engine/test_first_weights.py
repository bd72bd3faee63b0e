"""Which first weights a newcomer fetches, when many learners start together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.engine.effects import Install, Send, Work
from mend_optim.engine.engine import Engine
from mend_optim.engine.policies import Policies
from mend_optim.engine.schedule import Schedule
from mend_optim.protocol.lineage import Key, Lineage, PeerId
from mend_optim.protocol.messages import Beat, Report, State, Want
from mend_optim.protocol.timing import Timing
from mend_optim.protocol.transfer_fault import BROKEN

TIMING = Timing(beat_s=1.0, join_timeout_s=20.0)
OWN = 100


def genesis_of(rank: int) -> bytes:
    """First weights in order: those of a greater rank win."""
    return b"genesis %03d" % rank


class Newcomer:
    """A learner that has begun, and was told of so many peers."""

    def __init__(self, peers: int, now: float = 0.0) -> None:
        self.now, self.count = now, 0
        self.addresses = tuple(f"peer-{i}:1" for i in range(peers))
        policies = Policies(schedule=Schedule(sync_every=16), timing=TIMING)
        self.engine = Engine(PeerId("me", 1), "me:1", self.addresses, policies, self.now)
        self.engine.begin(self.now, genesis_of(OWN), (b"",))
        self.effects: list[object] = []

    def hear(
        self,
        i: int,
        rank: int,
        *,
        training: bool = False,
        tokens: int = 0,
        beside: tuple[Report, ...] = (),
    ) -> None:
        """A beat of peer i, whose first weights have this rank. `beside`: the reports of fragments
        that this learner does not have."""
        self.count += 1
        peer, address = PeerId(f"peer-{i}", 1), f"peer-{i}:1"
        self.engine.met(self.now, peer, address, address)
        lineage = Lineage(
            tokens=tokens,
            version=int(tokens > 0),
            digest=genesis_of(rank),
            genesis=genesis_of(rank),
        )
        beat = Beat(
            peer=peer,
            address=address,
            count=self.count,
            step=0,
            tokens=0,
            seconds_per_step=0.0,
            training=training,
            genesis=genesis_of(rank),
            reports=(Report(lineage.key), *beside),
        )
        self.engine.receive(self.now, beat)

    def asked(self) -> list[str]:
        """The peers that were asked for their weights since the last look."""
        self.effects += self.engine.drain(self.now)
        asked = [
            e.to.name for e in self.effects if isinstance(e, Send) and isinstance(e.message, Want)
        ]
        self.effects = [e for e in self.effects if isinstance(e, Work)]
        return asked

    def receive(self, i: int, rank: int) -> None:
        """The weights of peer i arrive, and are installed."""
        lineage = Lineage.fresh(genesis_of(rank))
        self.engine.receive(
            self.now, State(peer=PeerId(f"peer-{i}", 1), fragment=0, lineage=lineage, content=b"")
        )
        self.effects += self.engine.drain(self.now)
        (install,) = [
            e.job for e in self.effects if isinstance(e, Work) and isinstance(e.job, Install)
        ]
        assert install.states[0].lineage == lineage


@given(st.permutations(range(8)), st.integers(0, 7))
def test_the_greatest_of_all_is_fetched_and_no_other(order: Sequence[int], lesser: int) -> None:
    """`lesser` of the peers have lesser weights than this learner."""
    newcomer = Newcomer(8)
    for heard, i in enumerate(order, start=1):
        newcomer.hear(i, OWN + 1 + i - lesser)
        assert bool(newcomer.asked()) == (heard == 8 and order[-1] == 7)
    for i in order:
        newcomer.hear(i, OWN + 1 + i - lesser)
    assert newcomer.asked() == ([] if order[-1] == 7 else ["peer-7"])
    newcomer.receive(7, OWN + 8 - lesser)


def test_fragments_that_this_learner_does_not_have_make_no_weights_greater() -> None:
    newcomer = Newcomer(2)
    newcomer.hear(0, OWN + 1, beside=(Report(Key(0, 9, b"nine")),))
    newcomer.hear(1, OWN + 2)
    assert newcomer.asked() == ["peer-1"]


def test_two_learners_do_not_wait() -> None:
    newcomer = Newcomer(1)
    newcomer.hear(0, OWN + 1)
    assert newcomer.asked() == ["peer-0"]


def test_where_all_are_lesser_nothing_is_fetched() -> None:
    newcomer = Newcomer(2)
    newcomer.hear(0, OWN - 1)
    newcomer.hear(1, OWN - 2)
    assert newcomer.asked() == []
    assert newcomer.engine.state.genesis == genesis_of(OWN)


def test_a_peer_that_does_not_come_is_waited_for_during_a_beat() -> None:
    newcomer = Newcomer(3)
    newcomer.hear(0, OWN + 1)
    newcomer.now = 0.6
    newcomer.hear(1, OWN + 2)  # another one came: a beat from here
    newcomer.now = 1.5
    newcomer.hear(1, OWN + 2)
    assert newcomer.asked() == []
    newcomer.now = 1.6
    newcomer.hear(0, OWN + 1)  # not the greatest
    assert newcomer.asked() == []
    newcomer.hear(1, OWN + 2)
    assert newcomer.asked() == ["peer-1"]


def test_a_peer_that_is_here_and_has_not_begun_is_waited_for() -> None:
    newcomer = Newcomer(2)
    newcomer.engine.met(0.0, PeerId("peer-1", 1), "peer-1:1", "peer-1:1")
    newcomer.hear(0, OWN + 1)
    assert newcomer.asked() == []
    newcomer.hear(1, OWN - 1)
    newcomer.hear(0, OWN + 1)
    assert newcomer.asked() == ["peer-0"]


def test_newcomers_without_end_do_not_keep_it_waiting() -> None:
    newcomer = Newcomer(40)
    asked = []
    for i in range(30):
        newcomer.now = 0.9 * i
        newcomer.hear(i, OWN + 1 + i)
        asked += [(newcomer.now, name) for name in newcomer.asked()]
    ((at, name),) = asked
    assert at - 0.9 < TIMING.join_timeout_s / 2 <= at
    assert name == f"peer-{round(at / 0.9)}"


@pytest.mark.parametrize("left_s", [1.7, 0.1])
def test_a_newcomer_that_is_about_to_join_does_not_wait(left_s: float) -> None:
    """It would join with its own weights before the next beat shows greater ones again."""
    newcomer = Newcomer(3)
    newcomer.now = TIMING.join_timeout_s - left_s
    newcomer.hear(0, OWN + 1)
    assert newcomer.asked() == ["peer-0"]
    newcomer.now = TIMING.join_timeout_s
    newcomer.engine.tick(newcomer.now)
    assert not newcomer.engine.state.joined


def test_a_newcomer_that_joins_later_waits() -> None:
    newcomer = Newcomer(3, now=50.0)
    newcomer.now += TIMING.join_timeout_s - 2.1
    newcomer.hear(0, OWN + 1)
    assert newcomer.asked() == []
    newcomer.now += TIMING.beat_s
    newcomer.hear(0, OWN + 1)
    assert newcomer.asked() == ["peer-0"]


@pytest.mark.parametrize("facts", [{"training": True}, {"tokens": 5}], ids=str)
def test_a_model_that_is_trained_is_fetched_at_once(facts: dict[str, int]) -> None:
    newcomer = Newcomer(3)
    newcomer.hear(0, OWN + 1, **facts)  # type: ignore[arg-type]
    assert newcomer.asked() == ["peer-0"]


def test_a_peer_whose_weights_do_not_come_is_passed_over() -> None:
    newcomer = Newcomer(2)
    newcomer.hear(0, OWN + 1)
    newcomer.hear(1, OWN + 2)
    assert newcomer.asked() == ["peer-1"]
    newcomer.engine.undelivered(
        newcomer.now, PeerId("peer-1", 1), Want(PeerId("me", 1), 0, b""), BROKEN
    )
    newcomer.hear(0, OWN + 1)
    assert newcomer.asked() == ["peer-0"]


def test_a_peer_that_is_suspected_is_passed_over() -> None:
    newcomer = Newcomer(2)
    newcomer.hear(1, OWN + 2)
    while newcomer.now <= TIMING.suspect_after_s:
        newcomer.now += TIMING.beat_s
        newcomer.engine.tick(newcomer.now)
    newcomer.asked()
    newcomer.hear(0, OWN + 1)
    newcomer.now += 1.0
    newcomer.hear(0, OWN + 1)
    assert newcomer.asked() == ["peer-0"]
