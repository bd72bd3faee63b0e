"""What happened: records of rounds and events, as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from mend_optim.protocol.lineage import Lineage, PeerId
from mend_optim.protocol.messages import Offer, Seal, nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord:
    """One member of a round: how much work its offer carried, and its weight in the merge."""

    name: str
    incarnation: int
    seq: int
    tokens: int
    steps: int
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """One adopted anchor. `reason`: "all_present", "slow_left_out", "grace_expired", or how else it
    came: "pulled", "founded", "restored".

    `tokens` and `digest` (hex) are the new lineage's; `mine` says whether it merged this learner's
    offer; `superseded` names peers whose merged work is not in it (after a partition),
    `superseded_tokens` is how much of this learner's own that is (below zero if it came back);
    `dropped_tokens` is local progress that could not be kept. `offer_bytes` is the size of this
    learner's offer in it, encoded, and `merged_bytes` that of what came back; a sealer sends itself
    neither."""

    fragment: int
    version: int
    tokens: int
    digest: str
    reason: str
    sealer: str = ""
    members: tuple[MemberRecord, ...] = ()
    absent: tuple[str, ...] = ()
    mine: bool = False
    superseded: tuple[str, ...] = ()
    superseded_tokens: int = 0
    dropped_tokens: int = 0
    offer_bytes: int = 0
    merged_bytes: int = 0

    def json(self, by: PeerId, time: float) -> str:
        """One line of the ledger: of learner `by`, at `time` by its wall clock (Unix seconds)."""
        stamp = {"time": round(time, 3), "name": by.name, "incarnation": by.incarnation}
        return json.dumps({**stamp, **asdict(self)}, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Event:
    """Something the user may want to know: what kind, in words, and the facts.

    joined, alone      missing (addresses), step and tokens (of the cluster: where to go on)
    restored           step, tokens, unmerged_tokens, intact (whether the weights are those of the checkpoint)
    met, left, evicted peer, incarnation; met: address
    refused            address, reason
    round              round (a `RoundRecord`)
    slow, recovered    peer, incarnation, cause ("compute" or "link"), ratio (times slower than before, while it was),
                       for_s (since the verdict), lost_s (of its work), lost_per_hour_s: rounds do not wait for it any
                       more, or wait for it again
    costly             the same: what it lost would have paid for replacing it
    below_quorum       here, needed (learners): offers wait, for `timing.round_timeout_s` by now
    unknown            none: moments are not averaged, for nobody knows which they are, or there are none of that name
    unclosed           none: some of what is learned is never merged, for want of another codec or merge
    fault              none: something of a peer's was refused, or could not be done
    """

    kind: str
    text: str
    facts: Mapping[str, Any] = field(default_factory=dict)


def sealed_record(seal: Seal, mine: bool, offer: Offer | None = None) -> RoundRecord:
    """The record of an anchor that a seal made of the one before. `offer` is this learner's own in
    the seal; its packet was not sent back."""
    own = offer.sections.get("delta") if offer else None
    back = sum(packet.nbytes for packet in seal.sections.values() if packet is not own)
    members = tuple(
        MemberRecord(
            name=m.peer.name,
            incarnation=m.peer.incarnation,
            seq=m.seq,
            tokens=m.tokens,
            steps=m.steps,
            weight=weight,
        )
        for m, weight in zip(seal.members, seal.weights, strict=True)
    )
    tokens, version, digest = seal.key
    return RoundRecord(
        fragment=seal.fragment,
        version=version,
        tokens=tokens,
        digest=digest.hex(),
        reason=seal.reason,
        sealer=seal.sealer.name,
        members=members,
        absent=seal.absent,
        mine=mine,
        offer_bytes=nbytes(offer.sections) if offer else 0,
        merged_bytes=back,
    )


def whole_anchor_record(
    fragment: int,
    old: Lineage,
    new: Lineage,
    reason: str,
    *,
    mine: bool = False,
    dropped_tokens: int = 0,
) -> RoundRecord:
    """The record of an anchor that came whole. It names the learners with merged work that the old
    lineage has and the new one lacks."""
    lost = {peer.name for peer, seq in old.merged.items() if new.last_merged(peer) < seq}
    return RoundRecord(
        fragment=fragment,
        version=new.version,
        tokens=new.tokens,
        digest=new.digest.hex(),
        reason=reason,
        mine=mine,
        superseded=tuple(sorted(lost)),
        dropped_tokens=dropped_tokens,
    )


def describe(peer: PeerId, what: str, **facts: Any) -> Event:
    """An event about a peer."""
    return Event(
        what, f"{peer.name} {what}", {"peer": peer.name, "incarnation": peer.incarnation, **facts}
    )
