"""What the engine wants done, and what became of it: effects and job results, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mend_optim.engine.ledger import Event
from mend_optim.protocol.lineage import Lineage, PeerId
from mend_optim.protocol.messages import Message, Offer, Seal, Sections, State

Snapshot = Any
"""Memory of the training thread, for the worker: the engine hands it on and never looks inside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Turn the snapshot of `fragment` into Δ and encode it as offer `seq`, with the moments that
    were read beside it. `tensor` is handed over by the training thread. `flush`: see
    `Pending`."""

    fragment: int
    seq: int
    tensor: Snapshot = field(compare=False, repr=False)
    moments: Mapping[str, Snapshot] = field(default_factory=dict, compare=False, repr=False)
    flush: bool = False


@dataclass(frozen=True, slots=True)
class Reoffer:
    """Encode the Δ that came with a checkpoint again: the same offer, `seq`, with the same bytes if
    that can be."""

    fragment: int
    seq: int
    flush: bool = False


@dataclass(frozen=True, slots=True)
class Extend:
    """A group was added: its parameters, as they are, become the anchor of one more fragment. `at`:
    (step, tokens); `groups`: a digest of every fragment that is an added group, see `Report`."""

    layout: Snapshot = field(compare=False, repr=False)
    tensor: Snapshot = field(compare=False, repr=False)
    at: tuple[int, int]
    groups: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Inspect:
    """Check a received offer's bytes: size, codec, finite values."""

    offer: Offer


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Merge `offers` (in peer-name order, weights alike) on `base`: one merged delta, the mean of
    the `moments` that are due, and the digest of it all. `flush`: nobody brings more than what
    encodings have lost, or the sealer is at rest: nothing is to be lost on the way back."""

    fragment: int
    base: Lineage
    offers: tuple[Offer, ...]
    weights: tuple[float, ...]
    moments: tuple[str, ...] = ()
    flush: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """Take the outer step of `seal`; `merged_own_offer` says whether this learner's pending offer
    is in it; `replace`, that the weights become the anchor, but for what stays in them: nothing was
    trained since and training waits, or what was has to be dropped; `sealed_here`, that we made the
    merged bytes ourselves; `forget`: see `Install`; `sealed_by_predecessor`: a former process of
    ours made them, with what its seals before had lost."""

    seal: Seal
    lineage: Lineage
    merged_own_offer: bool
    replace: bool = False
    sealed_here: bool = False
    forget: bool = False
    sealed_by_predecessor: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """Take whole anchors. `replace`: the weights become the anchor and all local progress is
    dropped. `forget`: what our encodings have lost is in there, or given up, too: it came with a
    checkpoint whose process went on. `due`: the moments whose mean, in there, is of the round that
    merged our pending offer."""

    states: tuple[State, ...]
    merged_own_offer: bool
    replace: bool
    forget: bool = False
    due: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """Alone, take this learner's own weights (snapshots of all fragments, in order) as the anchors,
    and its moments for newcomers."""

    tensors: tuple[Snapshot, ...] = field(compare=False, repr=False)
    moments: tuple[Mapping[str, Snapshot], ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Export:
    """Copy out the anchor of `fragment` for a peer that lacks it. `lineage` is the engine's, for
    the answer."""

    fragment: int
    lineage: Lineage


Job = Prepare | Reoffer | Extend | Inspect | Merge | Advance | Install | Found | Export


@dataclass(frozen=True, slots=True)
class Done:
    """A job's outcome: what it made, or why it was refused. `digest` is of the bytes that were made
    or taken; `warning` says what is missing in it."""

    sections: Sections = field(default_factory=dict, compare=False, repr=False)
    digest: bytes = b""
    fault: str = ""
    warning: str = ""


EXCHANGE, PULL, PASS_ON = "exchange", "pull", "pass on"


@dataclass(frozen=True, slots=True)
class Send:
    """A message for a peer. `reply` names the open stream it answers on ("exchange" or "pull"),
    empty if it opens its own; "pass on" for an offer of somebody else."""

    to: PeerId
    message: Message
    reply: str = ""


@dataclass(frozen=True, slots=True)
class Work:
    """A job for the worker, to be performed in the order of emission and reported with
    `finished`."""

    job: Job


Effect = Send | Work | Event
