"""The ledger: records of rounds and events, as plain data."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from mend_optim.protocol.lineage import Lineage, PeerId
from mend_optim.protocol.messages import PROOFS, Offer, Seal, nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord:
    """One member of a round: how much work its offer carried, and its weight in the merge.

    Attributes:
        name: the learner's name.
        incarnation: new at every start of its process.
        seq: the number of its offer.
        tokens: that the offer carried.
        steps: inner steps that the offer carried.
        weight: of the offer in the merge, from 0 to 1; the members' weights sum to 1.

    Example:
        >>> member = MemberRecord(name="b", incarnation=7, seq=2, tokens=64, steps=8, weight=0.5)
        >>> member.tokens // member.steps
        8
    """

    name: str
    incarnation: int
    seq: int
    tokens: int
    steps: int
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """One adopted anchor: a line of the ledger.

    Attributes:
        fragment: p, from 0.
        version: of the new anchor.
        tokens: in the new anchor, of all learners.
        digest: of the new anchor's history, in hex.
        reason: why the round was sealed: "all_present", "slow_left_out" or "grace_expired"; or how
            else the anchor came: "pulled", "founded" or "restored". "reset" and "healed": it is the
            same anchor; you called `reset_progress()`, or the event "healed" says why.
            "rolled_back": it is an earlier anchor, and the work since is given up. "yielded": it is
            a lesser anchor, because most learners go on from that one. "mended": it has the same
            key, but most learners have it, and this learner had something else.
        sealer: name of the learner that sealed the round, or rolled the run back.
        members: the learners whose offers were merged.
        absent: names of learners that were expected and are not members.
        mine: whether this learner's offer was merged.
        superseded: names of learners whose merged work is not in the anchor, after a partition.
        superseded_tokens: this learner's own part of that; below 0 if the work came back.
        dropped_tokens: local progress that could not be kept.
        share: the fraction of this learner's delta that its merged offer contained. It is less than
            1 after missed rounds: see `Adoption`.
        offer_bytes: encoded size of this learner's offer, if it was merged.
        merged_bytes: encoded size of what the sealer sends back. A sealer sends itself neither.
        period: the run's `sync_every` from this round on; 0 if the round does not tell.
        proofs: if learners sign their offers, what the members signed, in base64.
            [Security](security.md#proof-of-the-members) says how to check it.

    Example:
        >>> record = RoundRecord(
        ...     fragment=0, version=3, tokens=960, digest="5eed", reason="all_present", mine=True
        ... )
        >>> record.version, record.reason
        (3, 'all_present')
    """

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
    share: float = 1.0
    offer_bytes: int = 0
    merged_bytes: int = 0
    period: int = 0
    proofs: str = field(default="", repr=False)

    def json(self, by: PeerId, time: float) -> str:
        """One line of the ledger: of learner `by`, at `time` by its wall clock (Unix seconds)."""
        stamp = {"time": round(time, 3), "name": by.name, "incarnation": by.incarnation}
        return json.dumps({**stamp, **asdict(self)}, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Event:
    """Something that you may want to know about. `on_event` gets each one; the log has its text.

    waiting             causes (by address, why this learner waits for the one there); for_s: at
                        most so much longer. The first step has to wait.
    joined, alone       missing (addresses); step and tokens of the cluster: where to go on
    restored            step, tokens, unmerged_tokens; intact: whether the weights are those of
                        the checkpoint
    met, left, evicted  peer, incarnation; met also has address
    reset               dropped_tokens: of work that no offer held when you called
                        `reset_progress()`
    outsized            peer, incarnation, fragment, times: a learner's offer was so many times the
                        usual size; refused: whether it was, or was scaled down
    healed              fragment, reason, dropped_tokens: this learner's weights in the fragment
                        are the anchor now. They were ruined, or the run was rolled back, and the
                        model from then on lacks this added group
    rolled_back         by (a learner), number; tokens in the anchor; dropped_tokens and
                        superseded_tokens of this learner: that learner's user has taken the run
                        back to an earlier anchor
    yielded             peer, incarnation: most learners go on without this learner's anchor, which
                        is given up for theirs
    switched            peer, incarnation: whose model, another one, this learner has taken over, or
                        whose branch of the same one; tokens in it; dropped_tokens and
                        superseded_tokens of this learner
    forked              peer, incarnation, fragment: a learner has something else in an anchor
                        than this learner has under the same key
    outvoted            peer, incarnation, fragment: a peer had handed this learner another anchor
                        than most learners have. It asks `peer` for theirs
    replaced            none: as this learner joined, others' weights took the place of its own,
                        which were trained before it was wrapped
    jumped              none: the weights were replaced between two steps
    unseen              none: the inner optimizer trains, and no step is seen
    undialled           address, peers (names): nobody dials this learner there, although it
                        reaches these. It seals no round
    dialled             address: somebody does, after all
    suspected, returned the same: a peer may be gone, and it is back after all
    late_beats          n and peers: so many of the peers were suspected lately and came back;
                        own_s: from one beat of this learner to the next. Beats come later than
                        `timing.beat_s` allows
    stuck               peer, incarnation, for_s, cause, refusal: a peer lives, and for so long each
                        transfer of a fragment's offers to it, or anchors from it, has failed. The
                        cause of the last failure is "broken", "ended", "damaged", "untrusted" or
                        "unanswered"; the peer's words, if it has ended the transfer itself, or
                        empty
    unstuck             peer, incarnation: they get through. If the peer leaves, or is evicted,
                        this does not come
    together            peers (names): this learner is no longer alone
    refused             address, reason
    renewed             address, before, after: this learner's incarnation was behind that of an
                        earlier process of its name, which the learner at the address knows
    round               round (a `RoundRecord`)
    slow, recovered     peer, incarnation; cause ("compute" or "link"); ratio: times slower than
                        before; for_s: since the verdict; lost_s: of its work; lost_per_hour_s.
                        Rounds no longer wait for the peer, or wait for it again.
    costly              the same: the lost work would have paid for replacing the peer
    declines            for_s: others seal this learner's fragments for so long. Rounds that it
                        seals take much longer, most learners find
    seals_again         none: that time is over
    idle                for_s: this learner's training thread has not stepped for so long. Rounds go
                        on without its work until it does.
    finishing           causes (by name, why `finish()` still waits for that learner). Not more
                        often than every 30 s
    held_up             peers (names), for_s: `finish()` waits for learners whose training threads
                        have not stepped for so long
    below_quorum        here and needed (learners): offers have waited for
                        `timing.round_timeout_s`
    quorum              here and needed: there are enough learners again
    uneven              peer, incarnation; theirs and own: tokens per step. A peer counts tokens in
                        another way than this learner.
    parted              peers (names), for_s: they have trained another model for so long; greater:
                        whether that is the greater one
    agreed              none: no peer trains another model any more
    unknown             none: moments are not averaged, because it is not known which they are, or
                        none has the name that you gave
    period              sync_every, before; latency: of rounds until now. The run has chosen
                        another period.
    late                latency, sync_every: rounds take so long that averaging gains little
    unclosed            none: some work is never merged, and another codec or merge would merge it
    unfinished          unmerged_tokens: so many tokens of this learner are in no anchor. The script
                        or the optimizer has ended without `finish()`, or `finish()` has ended the
                        run without them.
    fault               none: a peer's message was refused, or something could not be done

    Attributes:
        kind: a word of the first column.
        text: the event in words.
        facts: the facts of the second column, by name.
        lifts: the kind of the earlier event that this one ends; empty if there is none. The log
            has both at the same level.

    Example:
        >>> event = Event("met", "b met", {"peer": "b", "incarnation": 7, "address": "b:29600"})
        >>> event.facts["address"]
        'b:29600'
    """

    kind: str
    text: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    lifts: str = ""


def sealed_record(
    seal: Seal,
    mine: bool,
    offer: Offer | None = None,
    share: float = 1.0,
    dropped_tokens: int = 0,
) -> RoundRecord:
    """The record of an anchor that a seal made of the one before. `offer` is this learner's own in
    the seal, with this share of its delta; its packet was not sent back. `dropped_tokens` are of
    work that gives way to the anchor."""
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
    proofs = seal.sections[PROOFS].data if PROOFS in seal.sections else b""
    tokens, version, digest = seal.key
    return RoundRecord(
        fragment=seal.fragment,
        version=version,
        tokens=tokens,
        digest=digest.hex(),
        reason=seal.reason,
        period=seal.period,
        sealer=seal.sealer.name,
        members=members,
        absent=seal.absent,
        mine=mine,
        dropped_tokens=dropped_tokens,
        share=share,
        offer_bytes=nbytes(offer.sections) if offer else 0,
        merged_bytes=back,
        proofs=b64encode(proofs).decode(),
    )


def whole_anchor_record(
    fragment: int,
    old: Lineage,
    new: Lineage,
    reason: str,
    *,
    mine: bool = False,
    share: float = 1.0,
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
        share=share,
        superseded=tuple(sorted(lost)),
        dropped_tokens=dropped_tokens,
    )


def given_up(record: RoundRecord) -> int:
    """The tokens of this learner's work that are given up on the way to an anchor."""
    return record.dropped_tokens + record.superseded_tokens


def describe(peer: PeerId, kind: str, text: str, *, lifts: str = "", **facts: Any) -> Event:
    """An event about a peer, whose name the text follows."""
    known = {"peer": peer.name, "incarnation": peer.incarnation, **facts}
    return Event(kind, f"{peer.name} {text}", known, lifts)
