"""The sight of a learner that its watchers get."""

from __future__ import annotations

from collections.abc import Mapping

from mend_optim.engine.engine import Engine
from mend_optim.engine.ledger import RoundRecord
from mend_optim.protocol.sight import ROUNDS_SHOWN, SeenPeer, SeenRound, Sight
from mend_optim.status import Traffic, learner_status


def sight_of(
    engine: Engine, now: float, traffic: Traffic, codec: str, reported: Mapping[str, float]
) -> Sight:
    """Where a learner stands. Call it with the mutex held."""
    state = engine.state
    quiet_s = now - state.adopted_at if state.adopted_rounds else 0.0
    status = learner_status(
        state,
        engine.stragglers.failing,
        step=state.totals.step,
        tokens=state.totals.tokens,
        position=state.position,
        seconds_in_mend=0.0,
        traffic=traffic,
    )
    return Sight(
        peer=state.me,
        address=status.address,
        joined=status.joined,
        step=status.step,
        tokens=status.tokens,
        position=status.position,
        cluster_step=status.cluster_step,
        cluster_tokens=status.cluster_tokens,
        seconds_per_step=state.step_s,
        sync_every=status.sync_every,
        latency=status.latency,
        rounds=status.rounds_adopted,
        quiet_s=max(0.0, quiet_s),
        unmerged_tokens=status.unmerged_tokens,
        dropped_tokens=status.dropped_tokens,
        superseded_tokens=max(0, status.superseded_tokens),
        bytes_sent=traffic.bytes_sent,
        bytes_received=traffic.bytes_received,
        codec=codec,
        roster=tuple(
            SeenPeer(
                name=peer.name,
                incarnation=peer.incarnation,
                address=peer.address,
                state=peer.state,
                step=peer.step,
                tokens=peer.tokens,
                slow=peer.slow,
                finishing=peer.finishing,
                zone=peer.zone,
                declines=peer.declines,
                missed=peer.missed,
            )
            for peer in status.roster
        ),
        last=tuple(_round(each) for each in status.rounds if each.members)[-ROUNDS_SHOWN:],
        reported=tuple(reported.items()),
        zone=status.zone,
    )


def _round(record: RoundRecord) -> SeenRound:
    return SeenRound(
        fragment=record.fragment,
        version=record.version,
        tokens=record.tokens,
        reason=record.reason,
        sealer=record.sealer,
        members=tuple(member.name for member in record.members),
        absent=record.absent,
    )
