"""The status of a learner: plain, frozen data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mend_optim.engine.accounts import Totals
from mend_optim.engine.ledger import RoundRecord
from mend_optim.engine.mode import Mode
from mend_optim.engine.state import EngineState
from mend_optim.membership.failslow import Verdict
from mend_optim.membership.peer import Peer
from mend_optim.protocol.lineage import PeerId, Rollback
from mend_optim.protocol.refusals import Refused
from mend_optim.protocol.sight import late_text

#: How a learner has ended: see `Status.ended`.
AGREED = "agreed"
LEFT = "left"
#: Peers that `str(status)` lists at most.
LISTED = 5
_ENDS = {
    AGREED: "has ended, and all have agreed on one model",
    LEFT: "has left, and has agreed on no model",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentStatus:
    """One fragment's anchor, in a `Status`.

    Attributes:
        index: p, from 0.
        tokens: merged into the anchor, by all learners.
        version: grows by 1 with every new anchor.
        digest: of the anchor's history, in hex; learners with equal digests hold equal anchors.
        unmerged_tokens: this learner's tokens that are not in the anchor yet.

    Example:
        >>> fragment = FragmentStatus(
        ...     index=0, tokens=640, version=2, digest="5eed", unmerged_tokens=16
        ... )
        >>> fragment.tokens + fragment.unmerged_tokens
        656
    """

    index: int
    tokens: int
    version: int
    digest: str
    unmerged_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStatus:
    """A peer on the roster, in a `Status`.

    Attributes:
        name: the peer's name.
        incarnation: new at every start of its process; a greater one is later.
        state: "alive", "suspected", or "ended": it has ended the run, and waits for nobody.
        address: "host:port" to dial, or "" if it cannot be dialled.
        step: the peer's inner steps, as of its last beat.
        tokens: the peer's tokens, as of its last beat.
        slow: how many times slower the peer is than it was, if rounds no longer wait for it;
            else 0.
        finishing: whether the peer has called `finish()`, and waits there until all others have.
        zone: the peer's `zone=`, as of its last beat; "" if it is in none.
        declines: whether the peer leaves its place as a sealer to others, because its link is weak:
            see [late learners](stragglers.md#late-learners).
        missed: of each fragment, how many of the last rounds in a row were sealed without the peer,
            although it was expected, as far as `Status.rounds` goes back. Its offers come late.

    Example:
        >>> peer = PeerStatus(
        ...     name="b", incarnation=1, state="alive", address="", step=9, tokens=9, slow=2.5
        ... )
        >>> f"{peer.name} is {peer.slow:g} times slower than it was"
        'b is 2.5 times slower than it was'
    """

    name: str
    incarnation: int
    state: str
    address: str
    step: int
    tokens: int
    slow: float = 0.0
    finishing: bool = False
    zone: str = ""
    declines: bool = False
    missed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """A learner at one moment; `MendOptimizer.status()` returns it. `print` it to read it.

    Each token that this learner has trained is in an anchor, or counts as unmerged, dropped or
    superseded.

    Attributes:
        name: the learner's name.
        address: "host:port" that it serves on, or "" without peers.
        step: the learner's own inner steps.
        tokens: the learner's own tokens.
        unmerged_tokens: own tokens that are in no anchor yet.
        dropped_tokens: own tokens whose work could not be kept.
        superseded_tokens: own tokens that were merged on a branch which the others left.
        joined: whether it has joined the others, or found that it is alone.
        ended: "" while it takes part. Once it has closed, "agreed" if `finish()` had ended it on
            one model with all others, and "left" if not.
        rounds_adopted: anchors adopted since the start.
        outsized_offers: offers, of any learner, that these rounds refused or scaled down because of
            their size: see `Guard`.
        held_residual: where this learner seals merged deltas that are [encoded once
            more](codecs.md#the-way-back), the length ‖·‖₂ of the part that its last seals lost and
            its next ones will bring, summed over the fragments. If its process dies, that much of
            everybody's work is lost.
        dropped_residual: the sum of the lengths of such parts that were given up, because this
            learner took a whole anchor, founded one, or went on from an older checkpoint, or from
            one whose unmerged work it dropped.
        fragments: the anchors; empty before the first step with peers.
        roster: the known peers, by name.
        rounds: records of the last adopted anchors, the newest last.
        bytes_sent: since the start.
        bytes_received: since the start.
        seconds_in_mend: time that the training thread has spent in this library, and not in the
            inner optimizer.
        position: `step`, plus the steps that the cluster had behind it when this learner took its
            weights. Your learning rate schedule and your data should be there.
        cluster_step: the position of the learner that is farthest on, of this one and those on the
            roster.
        cluster_tokens: tokens in the fullest anchor that this learner has heard of.
        sync_every: the present period of the run, in inner steps; 0 without peers.
        refused: what was refused of peers, by peer and reason, with how often; the peer is "" for
            those with which it has not agreed to train: a refused hello counts there, whoever sent
            it, and the event `refused` says why. At most about 130 kinds; the rest counts as
            "others".
        security: how its links are secured; "" without peers.
        rollbacks: how many rollbacks led to the present model; 0 if there was none.
        rolled_back_by: the name of the learner that rolled the run back last; "" if none has.
        latency: inner steps from a snapshot of this learner until its anchor was ready, the median
            of the last rounds; 0 if there were too few.
        reported: the numbers that the script told `report()` last.
        zone: the learner's own `zone=`; "" if it is in none.
        declines: whether this learner leaves its place as a sealer to others.

    Example:
        >>> import torch
        >>> from mend_optim import MendOptimizer
        >>> inner = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))])
        >>> status = MendOptimizer(inner, name="a").status()
        >>> status.name, status.step, status.joined
        ('a', 0, False)
        >>> print(status)
        a has no peers
          address   none: nobody can dial it
          trained   0 steps, 0 tokens: 0 unmerged, 0 dropped, 0 superseded
          position  0, the farthest learner's is 0
          anchor    none
          rounds    0 adopted
          peers     none
          traffic   0.0 MB sent, 0.0 MB received
          time      0.0 s in mend_optim
    """

    name: str
    address: str
    step: int
    tokens: int
    unmerged_tokens: int = 0
    dropped_tokens: int = 0
    superseded_tokens: int = 0
    joined: bool = False
    ended: str = ""
    rounds_adopted: int = 0
    outsized_offers: int = 0
    held_residual: float = 0.0
    dropped_residual: float = 0.0
    fragments: tuple[FragmentStatus, ...] = ()
    roster: tuple[PeerStatus, ...] = ()
    rounds: tuple[RoundRecord, ...] = ()
    bytes_sent: int = 0
    bytes_received: int = 0
    seconds_in_mend: float = 0.0
    position: int = 0
    cluster_step: int = 0
    cluster_tokens: int = 0
    sync_every: int = 0
    latency: int = 0
    refused: tuple[Refused, ...] = ()
    security: str = ""
    rollbacks: int = 0
    rolled_back_by: str = ""
    reported: Mapping[str, float] = field(default_factory=dict)
    zone: str = ""
    declines: bool = False

    def __str__(self) -> str:
        lines = {
            "address": self.address or "none: nobody can dial it",
            **({"zone": self.zone} if self.zone else {}),
            "trained": f"{self.step:,} steps, {self.tokens:,} tokens: "
            f"{self.unmerged_tokens:,} unmerged, {self.dropped_tokens:,} dropped, "
            f"{self.superseded_tokens:,} superseded",
            "position": _position_text(self),
            "anchor": _anchor_text(self.fragments),
            "rounds": _rounds_text(self),
            "peers": _peers_text(self.roster),
            **({"security": self.security} if self.security else {}),
            "traffic": f"{self.bytes_sent / 1e6:,.1f} MB sent, "
            f"{self.bytes_received / 1e6:,.1f} MB received",
            "time": f"{self.seconds_in_mend:,.1f} s in mend_optim",
        }
        if self.reported:
            lines["reported"] = ", ".join(f"{k} {v:.6g}" for k, v in self.reported.items())
        if self.rollbacks:
            lines["rollback"] = f"number {self.rollbacks}, by {self.rolled_back_by}"
        if self.refused:
            lines["refused"] = _refused_text(self.refused)
        return "\n".join(
            [
                f"{self.name} {_where_it_stands(self)}",
                *(f"  {name:9} {text}" for name, text in lines.items()),
            ]
        )


def _where_it_stands(status: Status) -> str:
    if not status.sync_every:
        return "has no peers"
    if status.ended == AGREED and status.unmerged_tokens:
        # Perhaps nobody else was left, or no quorum: that is no model of all with all work in it.
        return f"has ended, and {status.unmerged_tokens:,} of its tokens are in no anchor"
    if status.ended:
        return _ENDS[status.ended]
    if not status.joined:
        return "has not joined yet"
    return "has joined" if status.roster else "trains alone: nobody else is here"


def _position_text(status: Status) -> str:
    if status.ended:
        # The others leave one by one as they end, so the roster tells no more how far they came.
        return f"{status.position:,}"
    return f"{status.position:,}, the farthest learner's is {status.cluster_step:,}"


def _anchor_text(fragments: Sequence[FragmentStatus]) -> str:
    if not fragments:
        return "none"
    first = fragments[0]
    text = f"version {first.version:,}, {first.tokens:,} tokens, digest {first.digest[:8]}"
    others = len(fragments) - 1
    return f"{text}, and {others} more" if others else text


def _rounds_text(status: Status) -> str:
    text = f"{status.rounds_adopted:,} adopted"
    if status.sync_every:
        text += f", one is due every {_steps(status.sync_every)}"
    if status.latency:
        text += f", each takes {_steps(status.latency)}"
    if status.outsized_offers:
        text += f"; outsized offers: {status.outsized_offers:,}"
    last = next((record for record in reversed(status.rounds) if record.members), None)
    if last:
        text += f"; the last merged {', '.join(member.name for member in last.members)}"
    return f"{text}; it declines to seal" if status.declines else text


def _steps(count: int) -> str:
    return f"{count:,} step{'s' * (count != 1)}"


def _peers_text(roster: Sequence[PeerStatus]) -> str:
    texts = [f"{peer.name} {_peer_state(peer)}" for peer in roster[:LISTED]]
    more = len(roster) - LISTED
    return ", ".join([*texts, f"{more} more"] if more > 0 else texts) or "none"


def _refused_text(refused: Sequence[Refused]) -> str:
    count = sum(kind.times for kind in refused)
    first = max(refused, key=lambda kind: kind.times)
    return f"{count:,} messages and streams, most of {first.peer or 'strangers'}: {first.reason}"


def _peer_state(peer: PeerStatus) -> str:
    slow = f", {peer.slow:.1f} times slower" if peer.slow else ""
    late = f", {late_text(peer.missed)}" if late_text(peer.missed) else ""
    declines = ", declines to seal" if peer.declines else ""
    waits = ", waits in finish()" if peer.finishing else ""
    return f"{peer.state}{slow}{late}{declines}{waits}"


class Traffic(NamedTuple):
    """What went over a learner's network: see `Status`."""

    bytes_sent: int
    bytes_received: int
    refused: tuple[Refused, ...]
    security: str


def status_alone(name: str, step: int, tokens: int, position: int) -> Status:
    """The status of a learner without peers."""
    return Status(
        name=name,
        address="",
        step=step,
        tokens=tokens,
        position=position,
        cluster_step=position,
        cluster_tokens=tokens,
    )


def fragment_statuses(state: EngineState, totals: Totals) -> tuple[FragmentStatus, ...]:
    """The anchors of a learner that has trained so much, by fragment."""
    return tuple(
        FragmentStatus(
            index=f.fragment,
            tokens=f.lineage.tokens,
            version=f.lineage.version,
            digest=f.lineage.digest.hex(),
            unmerged_tokens=f.unmerged(totals).tokens,
        )
        for f in state.fragments
    )


def peer_statuses(state: EngineState, failing: Mapping[PeerId, Verdict]) -> tuple[PeerStatus, ...]:
    """The peers on a learner's roster, by name."""
    return tuple(
        PeerStatus(
            name=peer.id.name,
            incarnation=peer.id.incarnation,
            state=_state(state, peer),
            address=peer.address,
            step=peer.beat.step if peer.beat else 0,
            tokens=peer.beat.tokens if peer.beat else 0,
            slow=failing[peer.id].ratio if peer.id in failing else 0.0,
            finishing=not _has_ended(state, peer) and peer.word is not None and peer.word.finishes,
            zone=peer.beat.zone if peer.beat else "",
            declines=peer.is_weak,
            missed=missed_rounds(state, peer.id.name),
        )
        for peer in sorted(state.roster.peers.values(), key=lambda peer: peer.id)
    )


def missed_rounds(state: EngineState, name: str) -> tuple[int, ...]:
    """By fragment, in how many of the last rounds in a row a peer was expected and absent."""
    missed = [0] * len(state.fragments)
    ended = set[int]()
    for record in reversed(state.records):
        # An anchor that came whole tells of no members, and those of an added group come later.
        if record.members and record.fragment < len(missed) and record.fragment not in ended:
            if name in record.absent:
                missed[record.fragment] += 1
            else:
                ended.add(record.fragment)
    return tuple(missed)


def _end_of(state: EngineState) -> str:
    if state.mode is not Mode.CLOSED:
        return ""
    return AGREED if state.agreed else LEFT


def _state(state: EngineState, peer: Peer) -> str:
    if _has_ended(state, peer):
        return "ended"
    return "suspected" if peer.suspected else "alive"


def _has_ended(state: EngineState, peer: Peer) -> bool:
    """Whether a peer has ended the run. A learner ends with all that are on its roster."""
    return bool(state.ended or (peer.beat and peer.beat.ended))


def position_of(state: EngineState, step: int, head_start: int) -> int:
    """The position of a learner of so many steps; `head_start` counts until it has begun. The
    engine counts no step before that, and none after the learner has left."""
    if not state.fragments:
        return head_start + step
    return state.head_start + step if state.mode is Mode.CLOSED else state.position


def learner_status(
    state: EngineState,
    failing: Mapping[PeerId, Verdict],
    *,
    step: int,
    tokens: int,
    position: int,
    seconds_in_mend: float,
    traffic: Traffic,
) -> Status:
    """The status of a learner with peers, some of which may be `failing`."""
    # The engine of a learner that has left counts no steps, and the learner may go on alone.
    has_left = state.mode is Mode.CLOSED
    fragments = fragment_statuses(state, Totals(step, tokens) if has_left else state.totals)
    rollback = Rollback.told_by(state.genesis)
    return Status(
        name=state.me.name,
        address=state.roster.address,
        step=step,
        tokens=tokens,
        unmerged_tokens=max((f.unmerged_tokens for f in fragments), default=0),
        dropped_tokens=max((f.dropped_tokens for f in state.fragments), default=0),
        superseded_tokens=max((f.superseded_tokens for f in state.fragments), default=0),
        joined=state.joined,
        ended=_end_of(state),
        rounds_adopted=state.adopted_rounds,
        outsized_offers=state.outsized,
        held_residual=sum(told.held for told in state.seal_residuals.values()),
        dropped_residual=sum(told.dropped for told in state.seal_residuals.values()),
        fragments=fragments,
        roster=peer_statuses(state, failing),
        rounds=tuple(state.records),
        bytes_sent=traffic.bytes_sent,
        bytes_received=traffic.bytes_received,
        seconds_in_mend=seconds_in_mend,
        position=position,
        cluster_step=max(state.cluster_step(), position),
        cluster_tokens=state.cluster_tokens(),
        sync_every=state.schedule.sync_every,
        latency=state.latency.median,
        refused=(*traffic.refused, *state.refusals.counted()),
        security=traffic.security,
        rollbacks=rollback.number if rollback else 0,
        rolled_back_by=rollback.by if rollback else "",
        zone=state.roster.zone,
        declines=state.roster.place.is_weak,
    )
