"""The figures that a learner's status gives, for every tracker: their names, units and meanings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mend_optim.engine.ledger import RoundRecord
from mend_optim.status import PeerStatus, Status

#: The values of a figure, by its labels' values.
Values = Mapping[tuple[str, ...], float]
#: The beginning of the names of all figures, in trackers that have no labels.
PREFIX = "mend"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure.

    Attributes:
        name: with its unit at the end.
        text: its meaning.
        read: reads its values from a status.
        labels: the names of its labels.
        counts: whether it only grows while a process lives.
    """

    name: str
    text: str
    read: Callable[[Status], Values]
    labels: tuple[str, ...] = ()
    counts: bool = False


def _one(value: float) -> Values:
    return {(): value}


def _last_round(status: Status) -> RoundRecord | None:
    """The last round that merged something."""
    return next((record for record in reversed(status.rounds) if record.members), None)


def _members(status: Status) -> Values:
    record = _last_round(status)
    return _one(len(record.members) if record else 0)


def _absent(status: Status) -> Values:
    record = _last_round(status)
    return _one(len(record.absent) if record else 0)


def _peer_counts(status: Status) -> Values:
    states = Counter(peer.state for peer in status.roster)
    return {(state,): states[state] for state in ("alive", "suspected", "ended")}


def _by_peer(read: Callable[[PeerStatus], float]) -> Callable[[Status], Values]:
    """Reads a figure of each peer. Of two processes with one name, the later one counts."""

    def values(status: Status) -> Values:
        roster = sorted(status.roster, key=lambda peer: peer.incarnation)
        return {(peer.name,): read(peer) for peer in roster}

    return values


def _refused(status: Status) -> Values:
    times: Counter[tuple[str, ...]] = Counter()
    for kind in status.refused:
        times[kind.peer, kind.reason] += kind.times
    return times


FIGURES = (
    Figure(
        name="steps",
        text="Inner steps that this learner has taken.",
        read=lambda status: _one(status.step),
        counts=True,
    ),
    Figure(
        name="tokens",
        text="Tokens that this learner has trained.",
        read=lambda status: _one(status.tokens),
        counts=True,
    ),
    Figure(
        name="unmerged_tokens",
        text="Own tokens that are in no anchor yet.",
        read=lambda status: _one(status.unmerged_tokens),
    ),
    Figure(
        name="dropped_tokens",
        text="Own tokens whose work could not be kept.",
        read=lambda status: _one(status.dropped_tokens),
        counts=True,
    ),
    # Work of a branch that was left may come back.
    Figure(
        name="superseded_tokens",
        text="Own tokens that were merged on a branch which the others left.",
        read=lambda status: _one(status.superseded_tokens),
    ),
    Figure(
        name="position_steps",
        text="Where this learner's learning rate schedule and data should be.",
        read=lambda status: _one(status.position),
    ),
    Figure(
        name="cluster_position_steps",
        text="The position of the learner that is farthest on.",
        read=lambda status: _one(status.cluster_step),
    ),
    Figure(
        name="cluster_tokens",
        text="Tokens in the fullest anchor that this learner has heard of.",
        read=lambda status: _one(status.cluster_tokens),
    ),
    Figure(
        name="joined",
        text="1 once this learner has joined the others, or found that it is alone.",
        read=lambda status: _one(status.joined),
    ),
    Figure(
        name="rounds_adopted",
        text="Anchors that this learner has adopted.",
        read=lambda status: _one(status.rounds_adopted),
        counts=True,
    ),
    Figure(
        name="last_round_members",
        text="Learners whose work the last round merged.",
        read=_members,
    ),
    Figure(
        name="last_round_absent",
        text="Learners that the last round expected, and that missed it.",
        read=_absent,
    ),
    Figure(
        name="sync_every_steps",
        text="The present period of the run.",
        read=lambda status: _one(status.sync_every),
    ),
    Figure(
        name="latency_steps",
        text="Inner steps from a snapshot until its anchor is ready.",
        read=lambda status: _one(status.latency),
    ),
    Figure(
        name="outsized_offers",
        text="Offers that were refused or scaled down because of their size.",
        read=lambda status: _one(status.outsized_offers),
        counts=True,
    ),
    Figure(
        name="held_residual",
        text="Length of the part of merged deltas that this learner's next seals will bring.",
        read=lambda status: _one(status.held_residual),
    ),
    Figure(
        name="dropped_residual",
        text="Sum of the lengths of such parts that were given up.",
        read=lambda status: _one(status.dropped_residual),
        counts=True,
    ),
    Figure(
        name="rollbacks",
        text="Rollbacks that led to the present model.",
        read=lambda status: _one(status.rollbacks),
    ),
    Figure(
        name="sent_bytes",
        text="Bytes sent to peers.",
        read=lambda status: _one(status.bytes_sent),
        counts=True,
    ),
    Figure(
        name="received_bytes",
        text="Bytes received from peers.",
        read=lambda status: _one(status.bytes_received),
        counts=True,
    ),
    Figure(
        name="overhead_seconds",
        text="Time that the training thread has spent in mend_optim.",
        read=lambda status: _one(status.seconds_in_mend),
        counts=True,
    ),
    Figure(
        name="peers",
        text="Peers on the roster, by their state.",
        read=_peer_counts,
        labels=("state",),
    ),
    Figure(
        name="peer_up",
        text="1 if the peer is alive, 0 if it is suspected to be gone or has ended.",
        read=_by_peer(lambda peer: peer.state == "alive"),
        labels=("peer",),
    ),
    Figure(
        name="peer_steps",
        text="Inner steps of the peer, as of its last beat.",
        read=_by_peer(lambda peer: peer.step),
        labels=("peer",),
        counts=True,
    ),
    Figure(
        name="peer_tokens",
        text="Tokens that the peer has trained, as of its last beat.",
        read=_by_peer(lambda peer: peer.tokens),
        labels=("peer",),
        counts=True,
    ),
    Figure(
        name="peer_slowdown_ratio",
        text="How many times slower the peer is than it was, if rounds no longer wait for it; "
        "else 0.",
        read=_by_peer(lambda peer: peer.slow),
        labels=("peer",),
    ),
    Figure(
        name="peer_missed_rounds",
        text="How many of the last rounds of a fragment in a row lack the peer, at most.",
        read=_by_peer(lambda peer: max(peer.missed, default=0)),
        labels=("peer",),
    ),
    Figure(
        name="peer_declines",
        text="1 if the peer leaves its place as a sealer to others, else 0.",
        read=_by_peer(lambda peer: peer.declines),
        labels=("peer",),
    ),
    Figure(
        name="declines",
        text="1 if this learner leaves its place as a sealer to others, else 0.",
        read=lambda status: {(): status.declines},
    ),
    Figure(
        name="anchor_version",
        text="Version of the fragment's anchor.",
        read=lambda status: {(str(part.index),): part.version for part in status.fragments},
        labels=("fragment",),
    ),
    Figure(
        name="anchor_tokens",
        text="Tokens in the fragment's anchor, of all learners.",
        read=lambda status: {(str(part.index),): part.tokens for part in status.fragments},
        labels=("fragment",),
    ),
    Figure(
        name="refused",
        text="Messages and streams of peers that were refused, by reason.",
        read=_refused,
        labels=("peer", "reason"),
        counts=True,
    ),
    Figure(
        name="reported",
        text="The numbers that the script has reported last.",
        read=lambda status: {(name,): value for name, value in status.reported.items()},
        labels=("name",),
    ),
)


def scalars(status: Status) -> dict[str, float]:
    """The figures without labels, by name, for a tracker that knows only names and numbers."""
    plain = (figure for figure in FIGURES if not figure.labels)
    return {f"{PREFIX}/{figure.name}": float(figure.read(status)[()]) for figure in plain}
