"""A learner that hears of hundreds of others which do not exist, in virtual time: it merges as ever
with the one that it reaches."""

from __future__ import annotations

from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Beat, Rumor
from mend_optim.protocol.peer_limits import Limits
from tests.virtual.cluster import Cluster
from tests.virtual.storms import policies

LIAR = PeerId("liar", 1)
PLACES = Limits().learners
BEGIN, END = 20, 80


def tell(cluster: Cluster, name: str) -> None:
    """The liar tells a learner of as many peers as a roster has places for, and that they live."""
    count = 1 + int(cluster.now)
    roster = tuple(Rumor(PeerId(f"phantom-{n}", 1), f"phantom-{n}:1", count) for n in range(PLACES))
    cluster.learners[name].receive(Beat(peer=LIAR, address="", count=count, roster=roster))


def played(*, lies: bool) -> Cluster:
    """Two learners, of which one may hear of phantoms, once a beat; all laws are checked
    meanwhile."""
    cluster = Cluster(2, 1, policies(), loss=0.0, duplicates=0.0, delay_s=0.05, work_s=0.05)
    cluster.speed = dict.fromkeys(cluster.names, 0.2)
    cluster.start_all()
    for second in range(BEGIN, END) if lies else ():
        cluster.at(second, tell, cluster, "learner-0")
    cluster.run(END)
    return cluster


def test_phantoms_do_not_part_two_learners() -> None:
    """Before, a learner's beats went to the phantoms in turn. Each of the two found the other one
    silent, suspected it, evicted it, and sealed for itself meanwhile: a quarter of the rounds was
    lost."""
    peace, lies = played(lies=False), played(lies=True)
    for name, learner in lies.learners.items():
        other = next(peer for peer in lies.learners.values() if peer is not learner)
        assert len(learner.engine.state.roster.peers) == PLACES - 1
        known = learner.engine.state.roster.find(other.me)
        assert known is not None, name
        assert known.met_at < BEGIN, name
    rounds, usual = (len(cluster.ledger) for cluster in (lies, peace))
    assert rounds > 0.9 * usual
