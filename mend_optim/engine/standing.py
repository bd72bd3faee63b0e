"""A fragment's progress as a checkpoint keeps it, and the progress that goes on from there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mend_optim.engine.absence import PRESENT, Absence
from mend_optim.engine.accounts import Totals
from mend_optim.engine.pending import NEVER, Pending
from mend_optim.engine.progress import Motion, Progress
from mend_optim.engine.residual_share import Residual
from mend_optim.protocol.lineage import Claim, Lineage, PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One fragment at one moment, as plain data. The fields are those of `Progress`."""

    lineage: Lineage
    #: The claim on the work that no offer holds yet.
    claim: Claim
    cycle_start: int
    settled: Totals
    dropped_tokens: int
    #: Without the message, which is encoded again, and without where it was sent.
    pending: Pending | None
    correction_pending: bool
    adopt_at: int | None
    averaged: Mapping[str, int] = field(default_factory=dict)
    #: The share of the residual.
    last: Totals = field(default_factory=Totals)
    has_unsent_residual: bool = False
    disagrees: bool = False
    absence: Absence = PRESENT


def standing_of(progress: Progress) -> Standing:
    """A fragment's progress as a checkpoint keeps it. A copy that is not Δ yet, and an anchor that
    is still moving, count as not begun."""
    pending = progress.pending
    claim = progress.claim
    absence = progress.absence
    has_unsent_residual = progress.residual.unsent
    if pending and pending.offer is None and progress.motion is Motion.SNAPSHOT:
        claim = pending.claim
        absence += pending.absence
        has_unsent_residual = has_unsent_residual or pending.flush
        pending = None
    return Standing(
        lineage=progress.lineage,
        claim=claim,
        cycle_start=progress.cycle_start,
        settled=progress.settled,
        dropped_tokens=progress.dropped_tokens,
        pending=_unsent(pending) if pending else None,
        correction_pending=progress.correction_pending,
        adopt_at=progress.adopt_at,
        averaged=dict(progress.averaged),
        last=Totals(progress.residual.share[1], progress.residual.share[0]),
        has_unsent_residual=has_unsent_residual,
        disagrees=progress.disagrees,
        absence=absence,
    )


def _unsent(pending: Pending) -> Pending:
    return replace(
        pending,
        offer=None,
        sent_to=None,
        delivered=False,
        resend_at=NEVER,
        seal_s=0.0,
        earlier=(),
    )


def resumed(me: PeerId, fragment: int, standing: Standing, totals: Totals) -> Progress:
    """The progress of `me`, a new incarnation, which goes on where a checkpoint stood."""
    progress = Progress(me, fragment, standing.lineage, standing.cycle_start)
    # The one place but its own methods that writes it: nobody else has it yet.
    progress.settled = standing.settled
    progress.dropped_tokens = standing.dropped_tokens
    progress.pending = replace(standing.pending) if standing.pending else None
    progress.correction_pending = standing.correction_pending
    progress.adopt_at = standing.adopt_at
    progress.averaged = dict(standing.averaged)
    progress.disagrees = standing.disagrees
    progress.absence = standing.absence
    progress.residual = Residual(
        share=(standing.last.tokens, standing.last.step), unsent=standing.has_unsent_residual
    )
    progress.restored_from = standing.claim
    offered = standing.pending.steps if standing.pending else 0
    if progress.unmerged(totals).step > offered:
        progress.inherited = standing.claim
    return progress
