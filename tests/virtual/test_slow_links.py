"""A learner whose link brings one seal in less time than a round takes, and a whole anchor in far
more, gets on with the others: whole clusters in virtual time."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from statistics import median

import pytest

from mend_optim.engine import seal_by_seal, seal_chain
from mend_optim.engine.effects import Send
from mend_optim.protocol.messages import Offer, Seal, State
from tests.virtual.cluster import Cluster
from tests.virtual.process import Learner
from tests.virtual.storms import policies

SLOW = "learner-2"
#: A whole anchor is as large as so many seals. It is 8 with `codec="int4"`.
RATIO = 8
TICK_S = 0.2


@dataclass
class Transfer:
    """A bulky message on the slow link. `left_s`: for how long it would be if it were alone."""

    left_s: float
    message: Offer | Seal | State
    sender: Learner
    effect: Send


class SlowLink(Cluster):
    """Learners of equal speed, with rounds every five seconds. One of them has a link that takes
    `seal_s` for a seal or an offer. All that goes one way at a time has an even share of it."""

    def __init__(self, seal_s: float, fragments: int, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (seal_by_seal, seal_chain):
            monkeypatch.setattr(module, "cost", lambda seal: 1 / RATIO)
        plan = policies(grace_s=8.0, fragments=fragments)
        super().__init__(4, 1, plan, loss=0.0, duplicates=0.0, delay_s=0.05, work_s=0.05)
        self.speed = dict.fromkeys(self.names, 1.0)
        self.seal_s = seal_s
        self.up: list[Transfer] = []
        self.down: list[Transfer] = []
        self.oracle.counts = False  # of what is on the link, it knows nothing
        self.at(TICK_S, self.transfer)

    def send(self, sender: Learner, effect: Send) -> None:
        message = effect.message
        is_bulky = isinstance(message, Offer | Seal | State) and getattr(message, "steps", 1)
        if not is_bulky or SLOW not in (sender.name, effect.to.name):
            super().send(sender, effect)
            return
        self.seen[f"{type(message).__name__} to {effect.to.name}"] += 1
        way = self.up if sender.name == SLOW else self.down
        seals = RATIO if isinstance(message, State) else 1
        way.append(Transfer(self.seal_s * seals, message, sender, effect))

    def transfer(self) -> None:
        """A moment passes on the slow link."""
        for way in (self.up, self.down):
            for it in way:
                it.left_s -= TICK_S / len(way)
        for it in chain(list(self.up), list(self.down)):
            if it.left_s > 0 and not self.processes[it.effect.to].frozen:
                receiver = self.processes[it.effect.to]
                receiver.engine.heard(self.now, it.sender.me, it.message.fragment)
                receiver.pump()
        arrived = [it for it in chain(self.up, self.down) if it.left_s <= 0]
        self.up, self.down = ([it for it in way if it.left_s > 0] for way in (self.up, self.down))
        for it in arrived:
            super().send(it.sender, it.effect)
        self.at(TICK_S, self.transfer)

    def lag(self) -> float:
        """The rounds that the slow learner is behind, in the mean over fragments."""
        own, others = (self.learners[name].engine.state.fragments for name in (SLOW, self.names[0]))
        pairs = zip(own, others, strict=True)
        return sum(b.lineage.version - a.lineage.version for a, b in pairs) / len(own)

    def watch(self, seconds: int) -> tuple[float, float]:
        """Play for so long. Returns the median of the lag, and of all rounds the share that have
        work of the slow learner."""
        before, lags = len(self.ledger), []
        for _ in range(seconds):
            self.run(1)
            lags.append(self.lag())
        rounds = {r.digest: r.members for _, _, r in self.ledger[before:] if r.members}
        merged = [any(m.name == SLOW and m.tokens for m in each) for each in rounds.values()]
        return median(lags), sum(merged) / len(merged)


@pytest.mark.parametrize(("seal_s", "fragments", "least"), [(2.0, 1, 0.9), (0.75, 4, 0.6)])
def test_a_newcomer_catches_up_and_stays(
    seal_s: float, fragments: int, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole anchors alone left it six to eight rounds behind for ever, with a seventh to a tenth of
    the rounds."""
    cluster = SlowLink(seal_s, fragments, monkeypatch)
    for name in cluster.names:
        if name != SLOW:
            cluster.start(name)
    cluster.run(30)
    cluster.start(SLOW)
    newcomer = cluster.learners[SLOW].engine.state
    assert cluster.until(lambda: newcomer.joined, limit=100)
    cluster.run(120)
    assert cluster.seen[f"State to {SLOW}"] >= fragments
    lag, share = cluster.watch(100)
    assert lag <= 0.5
    assert share >= least


def test_a_learner_that_was_suspended_catches_up(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = SlowLink(2.0, 1, monkeypatch)
    cluster.start_all()
    cluster.run(60)
    cluster.freeze(SLOW, 25, breaks=True)
    cluster.run(26)
    assert cluster.lag() >= 4
    cluster.run(60)
    lag, share = cluster.watch(60)
    assert lag <= 0.5
    assert share >= 0.9
