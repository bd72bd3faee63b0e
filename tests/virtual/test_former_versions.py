"""Runs that are brought to new code one learner after the other, in virtual time: each process is
drawn to be one of the present code, or one of the first code with this version of the protocol,
which neither sends nor understands later fields of beats. A learner that comes back may be of the
other kind, and go on from a checkpoint of it. All laws hold, and all end together."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import fields, replace
from itertools import combinations

import pytest

from mend_optim.engine.effects import Send
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Message
from tests.support.depth import many
from tests.support.former import as_former
from tests.virtual.cluster import Cluster
from tests.virtual.process import Learner, Saved
from tests.virtual.storms import Storm, draw, policies
from tests.virtual.test_endings import Ends, Finishing

FIRST, EACH = 40_000, 50
#: From the last `finish()` to the end. Learners that are two links apart need some rounds.
SOON_S = 60.0


class Mixed(Learner):
    """A learner that may be of the first code."""

    def __init__(
        self, cluster: Cluster, id: PeerId, address: str, saved: Saved | None = None
    ) -> None:
        self.is_former = random.Random(f"{id} of {len(cluster.names)}").random() < 0.5
        cluster.seen["former" if self.is_former else "present"] += 1
        super().__init__(cluster, id, address, saved)

    def send(self, effect: Send) -> None:
        message = as_former(effect.message) if self.is_former else effect.message
        super().send(replace(effect, message=message))

    def receive(self, message: Message, passed_on_by: PeerId | None = None) -> None:
        super().receive(as_former(message) if self.is_former else message, passed_on_by)


class MixedCluster(Cluster):
    learner_type = Mixed

    def train_a_step(self) -> None:
        """Every learner trains once more. A former one takes a learner without work in any anchor
        for a sealer, and the present ones do not, until it trains."""
        before = {x.name: x.engine.state.totals.step for x in self.learners.values()}
        self.training = True
        self.until(
            lambda: all(
                x.engine.state.totals.step > before.get(x.name, 0) for x in self.learners.values()
            ),
            100,
        )
        self.training = False


class MixedStorm(Storm):
    cluster_type = MixedCluster


def drawn(seed: int) -> Storm:
    """Two of three of these storms have learners that do not reach all others: what these tell of
    one another has changed the most."""
    storm = draw(seed)
    facts = {field.name: getattr(storm, field.name) for field in fields(Storm)}
    rooms = storm.rooms or (storm.n > 2 and seed % 3 > 0)
    return MixedStorm(**{**facts, "rooms": rooms})


@pytest.mark.parametrize("batch", range(many(2, 40)))
def test_laws_hold_while_a_run_is_brought_to_new_code(batch: int) -> None:
    first, seen = FIRST + EACH * batch, Counter[str]()
    for seed in range(first, first + EACH):
        storm = drawn(seed)
        try:
            seen.update(storm.play().seen)
        except Exception as fault:
            raise AssertionError(f"seed {seed}: {storm}") from fault
    for what in ("former", "present", "restored", "seal relayed", "offer relayed"):
        assert seen[what] > 10, what


class MixedFinishing(Mixed, Finishing):
    """One that finishes, too."""


class MixedEnds(Ends):
    learner_type = MixedFinishing


@pytest.mark.parametrize("seed", range(many(4, 60)))
def test_all_end_together_on_all_work(seed: int) -> None:
    """In two rooms, with one or two learners that reach all."""
    r = random.Random(seed)
    n, fragments = r.randrange(3, 7), r.choice([1, 3])
    names = [f"learner-{i}" for i in range(n)]
    walls = [(names[a], names[b]) for a, b in combinations(range(n), 2) if {a % 3, b % 3} == {1, 2}]
    chosen = policies(sync_every=5 * fragments, fragments=fragments)
    cluster = MixedEnds(n, seed, chosen, loss=0.0, walls=walls)
    for name in names:
        cluster.at(r.uniform(0, 20), cluster.start, name)
        cluster.at(r.uniform(100, 130), cluster.finish, name)
    cluster.at(50.0, cluster.crash, names[-1])
    cluster.at(55.0, cluster.start, names[-1])
    cluster.run(130.0)
    assert cluster.until(lambda: cluster.all_ended(set(names)), SOON_S)
    ends = list(cluster.ends.values())
    assert all(end.anchors == ends[0].anchors for end in ends)
    assert sum(end.left_over for end in ends) == 0
