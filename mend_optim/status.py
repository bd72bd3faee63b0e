"""What a learner shows of itself: plain, frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mend_optim.engine.ledger import RoundRecord
from mend_optim.engine.state import EngineState
from mend_optim.membership.failslow import Verdict
from mend_optim.protocol.lineage import PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentStatus:
    """One fragment's anchor: `tokens` merged into it by all learners, `version`, `digest` (hex);
    and this learner's tokens not in it yet."""

    index: int
    tokens: int
    version: int
    digest: str
    unmerged_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStatus:
    """A peer on the roster; `state` is "alive" or "suspected"; `step` and `tokens` as of its last
    beat; `slow`: how many times slower than it was, where rounds do not wait for it any more, else
    0."""

    name: str
    incarnation: int
    state: str
    address: str
    step: int
    tokens: int
    slow: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """A learner at one moment. `rounds` are its last adopted anchors, newest last; bytes count
    since the start, in both directions; `seconds_in_mend` is the time the training thread has spent
    in this library, not in the inner optimizer.

    Of the tokens trained, `unmerged_tokens` are in no anchor yet, `dropped_tokens` could not be
    kept, and `superseded_tokens` were merged on a branch that others did not end on; the rest is in
    the anchors.

    `step` counts this learner's own inner steps; `position` also those that the others had behind
    them when it took their weights: where its schedule and its data should be. `cluster_step` is
    the position of the learner farthest on, `cluster_tokens` what the fullest anchor heard of
    holds."""

    name: str
    address: str
    step: int
    tokens: int
    unmerged_tokens: int = 0
    dropped_tokens: int = 0
    superseded_tokens: int = 0
    joined: bool = False
    rounds_adopted: int = 0
    fragments: tuple[FragmentStatus, ...] = ()
    roster: tuple[PeerStatus, ...] = ()
    rounds: tuple[RoundRecord, ...] = ()
    bytes_sent: int = 0
    bytes_received: int = 0
    seconds_in_mend: float = 0.0
    position: int = 0
    cluster_step: int = 0
    cluster_tokens: int = 0


def fragment_statuses(state: EngineState) -> tuple[FragmentStatus, ...]:
    return tuple(
        FragmentStatus(
            index=f.fragment,
            tokens=f.lineage.tokens,
            version=f.lineage.version,
            digest=f.lineage.digest.hex(),
            unmerged_tokens=f.unmerged(state.totals).tokens,
        )
        for f in state.fragments
    )


def peer_statuses(state: EngineState, failing: Mapping[PeerId, Verdict]) -> tuple[PeerStatus, ...]:
    return tuple(
        PeerStatus(
            name=peer.id.name,
            incarnation=peer.id.incarnation,
            state="suspected" if peer.suspected else "alive",
            address=peer.address,
            step=peer.beat.step if peer.beat else 0,
            tokens=peer.beat.tokens if peer.beat else 0,
            slow=failing[peer.id].ratio if peer.id in failing else 0.0,
        )
        for peer in sorted(state.roster.peers.values(), key=lambda peer: peer.id)
    )


def learner_status(
    state: EngineState,
    failing: Mapping[PeerId, Verdict],
    *,
    step: int,
    tokens: int,
    position: int,
    seconds_in_mend: float,
    bytes_sent: int,
    bytes_received: int,
) -> Status:
    """The status of a learner with peers, some of which may be `failing`."""
    fragments = fragment_statuses(state)
    return Status(
        name=state.me.name,
        address=state.roster.address,
        step=step,
        tokens=tokens,
        unmerged_tokens=max((f.unmerged_tokens for f in fragments), default=0),
        dropped_tokens=max((f.dropped_tokens for f in state.fragments), default=0),
        superseded_tokens=max((f.superseded_tokens for f in state.fragments), default=0),
        joined=state.joined,
        rounds_adopted=state.adopted_rounds,
        fragments=fragments,
        roster=peer_statuses(state, failing),
        rounds=tuple(state.records),
        bytes_sent=bytes_sent,
        bytes_received=bytes_received,
        seconds_in_mend=seconds_in_mend,
        position=position,
        cluster_step=max(state.cluster_step(), position),
        cluster_tokens=state.cluster_tokens(),
    )
