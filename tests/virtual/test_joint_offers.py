"""Joint offers in virtual time: moments in them; and one that waits for its round, while a learner
in it offers anew."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mend_optim import MomentSchedule
from mend_optim.engine.sealer import Sealer
from mend_optim.engine.state import EngineState
from mend_optim.membership.go_betweens import GoBetweens
from mend_optim.membership.sealers import sealer_of
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import JOINT_DELTAS, Offer, moment_names
from tests.support.depth import many
from tests.virtual.cluster import Cluster
from tests.virtual.process import Learner
from tests.virtual.storms import MOMENTS, policies

#: The network is cut for longer than a joint offer takes to come, and a learner to offer anew.
CUT_S = 60.0


@pytest.fixture(autouse=True)
def _no_go_betweens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the offers of the learner that is cut off would come another way."""
    monkeypatch.setattr(GoBetweens, "choose", lambda *_, **__: None)


def waiting_for_one(seed: int) -> tuple[Cluster, Learner]:
    """Two zones of three, and a joint offer of one of them at the sealer in the other. The round
    waits for a neighbour of the sealer that cannot reach it. Returns the sealer, too."""
    # A relay waits for its neighbours for a part of these.
    chosen = policies(quorum=6, grace_s=10, sync_every=10)
    cluster = Cluster(6, seed, chosen, loss=0.0, duplicates=0.0, delay_s=0.1, zones=2)
    cluster.speed = dict.fromkeys(cluster.names, 1.0)
    name = sealer_of(0, cluster.names)
    cluster.clipping = ""
    cluster.start_all()
    assert cluster.until(lambda: min(map(version, cluster.learners.values())) > 0, 120)
    near = [n for n in cluster.names if cluster.zones[n] == cluster.zones[name] and n != name]
    cluster.cut([(near[0], name)], CUT_S)
    sealer, away = cluster.learners[name], cluster.learners[near[0]].me

    def waits() -> bool:
        inbox = sealer.engine.state.rounds[0].inbox
        return bool(parts(sealer)) and away not in inbox

    assert cluster.until(waits, CUT_S / 2)
    return cluster, sealer


def version(learner: Learner) -> int:
    fragments = learner.engine.state.fragments
    return fragments[0].lineage.version if fragments else 0


def parts(sealer: Learner) -> dict[PeerId, int]:
    """The number of each offer that came in the joint one of its relay."""
    inbox = sealer.engine.state.rounds[0].inbox.values()
    return {offer.peer: offer.seq for offer in inbox if offer.carrier}


class Seen:
    """The joint offers that reach sealers: those with moments, and all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.joint = self.with_moments = 0
        on_offer = Sealer.on_offer

        def offered(sealer: Sealer, now: float, offer: Offer) -> None:
            self.joint += bool(offer.others)
            self.with_moments += bool(offer.others) and bool(moment_names(offer.sections))
            on_offer(sealer, now, offer)

        monkeypatch.setattr(Sealer, "on_offer", offered)


@pytest.mark.parametrize("former", [False, True], ids=["", "sealers of a former version"])
@pytest.mark.parametrize("seed", range(many(3, 40)))
def test_moments_of_a_zone_correct_exactly_those_whose_are_in_the_mean(
    seed: int, former: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However they come to the sealer, and whatever is lost: every learner checks each mean (see
    `moments.py`), and no reading counts twice."""
    if former:
        takes = EngineState.takes_joint
        monkeypatch.setattr(
            EngineState, "takes_joint", lambda state, p: min(takes(state, p), JOINT_DELTAS)
        )
    seen = Seen(monkeypatch)
    # A relay waits for its neighbours for a part of these.
    chosen = replace(
        policies(grace_s=10, sync_every=10),
        moments=MOMENTS,
        periods=MomentSchedule(first=2, second=4),
    )
    cluster = Cluster(6, seed, chosen, delay_s=0.1, zones=2)
    cluster.speed = dict.fromkeys(cluster.names, 1.0)
    cluster.clipping = ""
    cluster.start_all()
    cluster.run(120)
    cluster.cut([("learner-0", "learner-1"), ("learner-2", "learner-4")], 20)
    cluster.run(120)
    assert seen.joint > 5
    assert (seen.with_moments > 5) == (not former)
    sizes = [n for each in cluster.learners.values() for n in each.units.moments[0].corrected]
    assert len(sizes) > 50
    assert max(sizes) == len(cluster.names)
    assert cluster.settle()


@pytest.mark.parametrize("seed", range(many(4, 40)))
def test_a_later_offer_of_a_neighbour_leaves_the_joint_one_to_its_round(seed: int) -> None:
    """Before, the offers of the whole zone were out with it, and came again one by one."""
    cluster, sealer = waiting_for_one(seed)
    held, base = parts(sealer), version(sealer)
    author = cluster.learners[min(held).name]
    # As if its weights were not finite: it gives up what it has, and begins from the anchor.
    author.engine.outcomes.healing._give_up("its weights are not finite")
    author.pump()

    def offers_anew() -> bool:
        pending = author.engine.state.fragments[0].pending
        return pending is not None and pending.delivered

    assert cluster.until(offers_anew, CUT_S / 4)
    cluster.run(CUT_S / 8)
    assert (parts(sealer), version(sealer)) == (held, base)
    assert cluster.until(lambda: version(sealer) > base, 2 * CUT_S)
    record = next(r for _, _, r in cluster.ledger if r.version == base + 1)
    merged = {(m.name, m.seq) for m in record.members}
    assert {(peer.name, seq) for peer, seq in held.items()} <= merged
    # All laws have been checked after every event; and what it offered anew comes to be merged.
    assert cluster.settle()
