"""A sealer is stopped in its round for longer than the others wait for it, and goes on."""

from __future__ import annotations

import random

import pytest

from mend_optim.engine.effects import Send
from mend_optim.engine.round import Phase
from mend_optim.protocol.messages import Seal, State
from tests.support.depth import many
from tests.virtual.cluster import Cluster
from tests.virtual.process import Learner
from tests.virtual.storms import TIMING, policies


def sealer_in(cluster: Cluster, phase: Phase) -> Learner:
    """The first learner that is in this phase of a round."""

    def found() -> list[Learner]:
        return [x for x in cluster.learners.values() if x.engine.state.rounds[0].phase is phase]

    while not found():
        cluster.run(0.02)
    return found()[0]


@pytest.mark.parametrize("n", [3, 5])
@pytest.mark.parametrize("phase", [Phase.CALLING, Phase.MERGING])
@pytest.mark.parametrize("evictions", [0.9, 1.5, 5.0])
def test_a_sealer_that_goes_on_supersedes_nothing(phase: Phase, evictions: float, n: int) -> None:
    """The others have merged the offers that it holds, with another sealer. A seal of these offers
    would have the work of this learner alone, and soon be superseded."""
    stop_s = evictions * TIMING.evict_after_s
    for seed in range(many(4, 30)):
        cluster = Cluster(n, seed, policies(), loss=0.0, duplicates=0.0, delay_s=0.05)
        cluster.speed = dict.fromkeys(cluster.names, 1.0)
        cluster.start_all()
        cluster.run(30.0)
        cluster.freeze(sealer_in(cluster, phase).name, stop_s, breaks=seed % 2 == 0)
        cluster.run(stop_s + 20.0)
        assert not [record for _, _, record in cluster.ledger if record.superseded]
        assert cluster.settle()
        assert not cluster.oracle.missing()


class Streams(Cluster):
    """A message needs a link all the way. Anchors are larger than all others, and take longer."""

    def send(self, sender: Learner, effect: Send) -> None:
        if not self._are_linked(sender, effect):
            self.at(0.0, self.fail, sender, effect)
        elif isinstance(effect.message, Seal | State):
            self.at(0.4, super().send, sender, effect)
        else:
            super().send(sender, effect)

    def arrive(self, sender: Learner, effect: Send) -> None:
        if self._are_linked(sender, effect):
            super().arrive(sender, effect)
        else:
            self.fail(sender, effect)

    def _are_linked(self, sender: Learner, effect: Send) -> bool:
        return frozenset((sender.me, effect.to)) in self.links


@pytest.mark.parametrize("phase", [Phase.CALLING, Phase.MERGING])
@pytest.mark.parametrize("evictions", [1.0, 1.5])
def test_a_sealer_whose_links_break_as_it_goes_on_supersedes_nothing(
    phase: Phase, evictions: float
) -> None:
    """The others have evicted it, and hang up when they hear of it. It may know by then that they
    have a greater anchor, and have none of it."""
    stop_s = evictions * TIMING.evict_after_s
    for seed in range(many(10, 40)):
        cluster = Streams(3, seed, policies(), loss=0.0, duplicates=0.0, delay_s=0.05)
        cluster.speed = dict.fromkeys(cluster.names, 1.0)
        cluster.start_all()
        cluster.run(30.0)
        sealer = sealer_in(cluster, phase)
        cluster.freeze(sealer.name, stop_s, breaks=False)
        breaks_s = stop_s + random.Random(f"{seed} {evictions}").uniform(0, 0.8)
        cluster.at(breaks_s, cluster.unlink, lambda link, me=sealer.me: me in link)
        cluster.run(stop_s + 25.0)
        assert not [record for _, _, record in cluster.ledger if record.superseded]
        assert cluster.settle()
        assert not cluster.oracle.missing()
