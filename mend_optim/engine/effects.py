"""The effects of the engine and the results of its jobs, as plain data.

The engine returns effects: messages to send, jobs for the worker, events for the user. The worker
reports each job back as `Done`. A new job needs a class here, a case in `Anchors.perform` and a
case in `Outcomes.take`; mypy names both places, because both end with `unreachable`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mend_optim.engine.ledger import Event
from mend_optim.protocol.lineage import Key, Lineage, PeerId
from mend_optim.protocol.messages import Message, Offer, Seal, Sections, State

Snapshot = Any
"""Memory of the training thread, for the worker. The engine hands it on and never looks inside."""


class Outsize(NamedTuple):
    """An offer that is too large to be training: see `worker/offer_sizes.py`."""

    #: The RMS of its delta.
    rms: float
    #: How many times the usual size that is.
    times: float


class SealResidual(NamedTuple):
    """The residual of the merged deltas of one fragment that a learner has sealed, as lengths ‖·‖₂.
    See `worker/seal_payload.py`."""

    #: Of the part that goes with its next seal of the fragment.
    held: float = 0.0
    #: The sum of those that were given up.
    dropped: float = 0.0


# ── jobs ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Turn a copy of a fragment's parameters into Δ, and encode it as an offer."""

    fragment: int
    #: The number of the pending offer, by which the engine knows the result again.
    seq: int
    #: The copy. The training thread gives it away.
    tensor: Snapshot = field(compare=False, repr=False)
    #: The moments that were read beside it, by name.
    moments: Mapping[str, Snapshot] = field(default_factory=dict, compare=False, repr=False)
    #: Whether the offer brings the residuals of earlier encodings, too: see `residual_share`.
    flush: bool = False
    #: The share of Δ that is offered: see `Absence`.
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Reoffer:
    """Encode the Δ that came with a checkpoint again. It is the same offer `seq`, with the same
    bytes where the same bytes come out."""

    fragment: int
    seq: int
    flush: bool = False
    #: The share of Δ that it has.
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Extend:
    """Make the parameters of an added group, as they are, the anchor of one more fragment."""

    #: The layout of all fragments, the new one included.
    layout: Snapshot = field(compare=False, repr=False)
    #: A copy of the group's parameters.
    tensor: Snapshot = field(compare=False, repr=False)
    #: The totals that had been trained: (step, tokens, rate).
    at: tuple[int, int, float]
    #: For every fragment that is an added group, a digest of what is in it: see `Report`.
    groups: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Inspect:
    """Check the bytes of a received offer: size, codec, finite values."""

    offer: Offer


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Make one offer of those of a zone: see `worker/joint.py`."""

    fragment: int
    #: The sealer that is to get it.
    sealer: PeerId
    #: The members' offers, our own first.
    offers: tuple[Offer, ...]
    #: Their weights, in the same order. Invariant: they sum to 1.
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Merge offers into one delta, average their moments, and take the digest of it all."""

    fragment: int
    #: The anchor's lineage that the round began on.
    base: Lineage
    #: The members' offers, in peer-name order.
    offers: tuple[Offer, ...]
    #: Their weights, in the same order. Invariant: they sum to 1.
    weights: tuple[float, ...]
    #: ρ, by how much the anchor moves further than the members have on average (`headway.py`).
    headway: float = 1.0
    #: The moments that are due.
    moments: tuple[str, ...] = ()
    #: H, the inner steps of a round in full.
    period: int = 1
    #: Whether the merged delta must come back without a further loss, because no later round may
    #: take that loss along.
    flush: bool = False
    #: By index among the offers, the empty ones whose senders' own offers were refused before.
    outsized: Mapping[int, Outsize] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """Take the outer step of a seal."""

    seal: Seal
    #: The new anchor's.
    lineage: Lineage
    #: That of the anchor that the seal is on, which its proofs are checked against.
    base: Lineage | None = None
    #: Whether this learner's pending offer is in the seal.
    merged_own_offer: bool
    #: Whether the weights become the anchor, but for the residual that stays in them. That is so
    #: if nothing was trained since the snapshot and training waits, or if the work trained since
    #: has to be dropped.
    replace: bool = False
    #: How much of its disagreement with the mean the learner gives up: see `Adoption`. Invariant:
    #: 1 unless the seal has merged this learner's offer and adds a correction to its weights.
    gain: float = 1.0
    #: Whether this process made the merged bytes.
    sealed_here: bool = False
    #: Whether the residual of this learner's encodings is dropped: see `Install`.
    forget: bool = False
    #: Whether a former process of this learner made the merged bytes. They include what its earlier
    #: seals had lost.
    sealed_by_predecessor: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """Take whole anchors."""

    states: tuple[State, ...]
    #: The digest that each of them must have; empty if any will do: see `engine/attestations.py`.
    contents: tuple[bytes, ...] = ()
    #: Whether this learner's pending offer is in them.
    merged_own_offer: bool
    #: Whether the weights become the anchors, and all local progress is dropped.
    replace: bool
    #: Whether the residual of this learner's encodings is dropped. It came with a checkpoint whose
    #: process went on: the anchor has that residual, or it was given up.
    forget: bool = False
    #: As in `Advance`; 1 unless these anchors are of the round that merged the pending offer.
    gain: float = 1.0
    #: The moments whose mean, in these anchors, is of the round that merged the pending offer.
    due: tuple[str, ...] = ()
    #: Whether the inner optimizer's moments begin anew, but for those that the anchors bring:
    #: after a rollback they are as wrong as the weights.
    resets: bool = False


@dataclass(frozen=True, slots=True)
class Agree:
    """At rest, give up what is left of the learner's disagreement: its weights become the anchor,
    but for work that is still to be offered."""

    fragment: int


@dataclass(frozen=True, slots=True)
class Retake:
    """Give up all local progress in a fragment: its weights become the anchor, as it is. The inner
    optimizer's moments of these parameters begin anew."""

    fragment: int
    #: The fault of the weights, or another reason to give up their progress.
    reason: str


@dataclass(frozen=True, slots=True)
class Found:
    """Make this learner's own weights the anchors, because it is alone, and keep its moments for
    newcomers. Both are copies, by fragment, in order."""

    tensors: tuple[Snapshot, ...] = field(compare=False, repr=False)
    moments: tuple[Mapping[str, Snapshot], ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Export:
    """Copy the anchor of a fragment out, for a peer that lacks it. `lineage` goes with the
    answer."""

    fragment: int
    lineage: Lineage


@dataclass(frozen=True, slots=True)
class Attest:
    """Take the digest of what is in the anchor of a fragment, which has this key."""

    fragment: int
    key: Key


Job = (
    Prepare
    | Reoffer
    | Extend
    | Inspect
    | Join
    | Merge
    | Advance
    | Install
    | Agree
    | Retake
    | Found
    | Export
    | Attest
)


@dataclass(frozen=True, slots=True)
class Done:
    """The outcome of a job."""

    #: The packets that the worker made, ready to be sent.
    sections: Sections = field(default_factory=dict, compare=False, repr=False)
    #: The digest of the bytes that were made or taken. Of an offer: its `content`, if it is signed.
    digest: bytes = b""
    #: Why the job was refused; empty if it was not.
    fault: str = ""
    #: Of whole anchors that were refused: the index of the one that is to blame.
    refused: int = 0
    #: Why the result lacks some moments; empty if it lacks none.
    warning: str = ""
    #: Of a merge: by index, the offers that are refused. If there are any, nothing was merged. Of a
    #: seal: by index, the members whose offers were refused, or scaled down.
    outsized: Mapping[int, Outsize] = field(default_factory=dict)
    #: By fragment, as of this job; only those that may have changed.
    seal_residuals: Mapping[int, SealResidual] = field(default_factory=dict)


# ── effects ───────────────────────────────────────────────────────────────────────────────────────

EXCHANGE, PULL, PASS_ON = "exchange", "pull", "pass on"


@dataclass(frozen=True, slots=True)
class Send:
    """A message for a peer."""

    to: PeerId
    message: Message
    #: The open stream that it answers on (EXCHANGE or PULL), or PASS_ON for an offer of another
    #: learner. Empty if the message opens a stream of its own.
    reply: str = ""


@dataclass(frozen=True, slots=True)
class Work:
    """A job for the worker. Jobs are performed in the order in which they are emitted, and each is
    reported with `Engine.finished`."""

    job: Job


Effect = Send | Work | Event
