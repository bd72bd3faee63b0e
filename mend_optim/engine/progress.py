"""The learner's side of a fragment: what was trained since the anchor, what was offered, what
awaits adoption.

A learner has at most one pending offer per fragment, and keeps it, same sequence number and same
bytes, until some anchor has merged it. Progress trained after its snapshot travels in the next
offer. So everything up to `settled` is settled, the pending offer holds exactly what follows, and
no seal met later can contain work that is also still to be offered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from mend_optim.engine.schedule import Schedule
from mend_optim.engine.superseded import SupersededAccount
from mend_optim.protocol.lineage import Claim, Lineage, PeerId
from mend_optim.protocol.messages import Offer, Seal, Sections, State

NEVER = float("inf")


class Motion(Enum):
    """What a fragment is busy with. A snapshot and a moving anchor exclude each other: Δ needs the
    anchor its weights rest on."""

    STILL = "still"
    SNAPSHOT = "snapshot"  # copied by the training thread, not yet Δ
    MOVING = "moving"  # the worker takes an outer step or installs an anchor


@dataclass(slots=True, kw_only=True)
class Pending:
    """An offer on its way to be merged: (step, tokens, steps) at its snapshot, and where it was
    sent. `follows`: see `Offer`; `earlier`: (seq, follows) of the same work on anchors of other
    branches; `seal_s`: how long its seal may be on its way, by how long the offer was; `flush`:
    made at rest, with what encodings before have lost; `again`: see `Offer`."""

    claim: Claim
    seq: int
    step: int
    tokens: int
    steps: int
    due: bool
    offer: Offer | None = None
    sent_to: PeerId | None = None
    sent_at: float = 0.0
    seal_s: float = 0.0
    delivered: bool = False
    resend_at: float = NEVER
    missed: bool = False
    flush: bool = False
    follows: int = 0
    again: tuple[int, int] = (0, 0)
    earlier: tuple[tuple[int, int], ...] = ()

    @property
    def numbers(self) -> dict[int, int]:
        """Every seq that it has had, and what it followed under it."""
        return {**dict(self.earlier), self.seq: self.follows}


@dataclass(slots=True)
class Totals:
    """Inner steps and tokens trained by this process: monotone counters."""

    step: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a checkpoint keeps of a fragment's progress. `claim` is whose work it is that no offer
    holds yet."""

    lineage: Lineage
    claim: Claim
    cycle_start: int
    settled: Totals
    dropped_tokens: int
    pending: Pending | None
    correction_pending: bool
    adopt_at: int | None
    averaged: Mapping[str, int] = field(default_factory=dict)
    last: Totals = field(default_factory=Totals)
    has_unsent_residual: bool = False


class Progress:
    """One fragment of one learner. Tokens: trained = banked (merged or dropped) + unmerged."""

    def __init__(self, me: PeerId, fragment: int, lineage: Lineage, cycle_start: int) -> None:
        self.me, self.fragment, self.lineage, self.cycle_start = me, fragment, lineage, cycle_start
        self.settled = Totals()
        self.dropped_tokens = 0
        self.share = SupersededAccount()
        self.seq = 0
        # unmerged work that came with a checkpoint, in no offer yet
        self.inherited: Claim | None = None
        self.restored_from: Claim | None = None  # whose encodings lost what came with a checkpoint
        self.pending: Pending | None = None
        self.motion = Motion.STILL
        self.deferred_news: Seal | State | None = None
        self.correction_pending = False
        self.adopt_at: int | None = None
        self.offer_requested = False
        self.requested_by: PeerId | None = None
        self.behind_since: float | None = None
        # by order of moment: the last version that averaged ours
        self.averaged: dict[str, int] = {}
        # what our last merged work weighed by, unless rounds have gone on without us since
        self.last = Totals()
        self.has_unsent_residual = False  # whether what its encoding lost is in no offer yet

    def standing(self) -> Standing:
        """What to keep of it. A copy that is not Δ yet, and an anchor that is still moving, count
        as not begun."""
        claim, pending, has_unsent_residual = self.claim, self.pending, self.has_unsent_residual
        if pending and pending.offer is None and self.motion is Motion.SNAPSHOT:
            claim, has_unsent_residual, pending = (
                pending.claim,
                has_unsent_residual or pending.flush,
                None,
            )
        kept = pending
        if pending:
            kept = replace(
                pending,
                offer=None,
                sent_to=None,
                delivered=False,
                resend_at=NEVER,
                seal_s=0.0,
                earlier=(),
            )
        return Standing(
            lineage=self.lineage,
            claim=claim,
            cycle_start=self.cycle_start,
            settled=self.settled,
            dropped_tokens=self.dropped_tokens,
            pending=kept,
            correction_pending=self.correction_pending,
            adopt_at=self.adopt_at,
            averaged=dict(self.averaged),
            last=self.last,
            has_unsent_residual=has_unsent_residual,
        )

    @classmethod
    def resumed(cls, me: PeerId, fragment: int, standing: Standing, totals: Totals) -> Progress:
        """The progress of `me`, a new incarnation, which goes on where a checkpoint stood."""
        progress = cls(me, fragment, standing.lineage, standing.cycle_start)
        progress.settled, progress.dropped_tokens = standing.settled, standing.dropped_tokens
        progress.pending = replace(standing.pending) if standing.pending else None
        progress.correction_pending, progress.adopt_at = (
            standing.correction_pending,
            standing.adopt_at,
        )
        progress.averaged = dict(standing.averaged)
        progress.last, progress.has_unsent_residual = standing.last, standing.has_unsent_residual
        offered = standing.pending.steps if standing.pending else 0
        progress.restored_from = standing.claim
        if progress.unmerged(totals).step > offered:
            progress.inherited = standing.claim
        return progress

    def unmerged(self, totals: Totals) -> Totals:
        """Steps and tokens trained since the last settled snapshot."""
        return Totals(totals.step - self.settled.step, totals.tokens - self.settled.tokens)

    def wants_snapshot(self, totals: Totals, schedule: Schedule, flush: bool = False) -> bool:
        """Due or called, with something to offer, nothing pending, and weights that rest on the
        current anchor. `flush`: at rest, what was lost is something, too."""
        if self.pending or self.correction_pending or self.motion is not Motion.STILL:
            return False
        if not self.unmerged(totals).step:
            return flush and self.has_unsent_residual
        return self.offer_requested or schedule.due(totals.step, self.cycle_start)

    def snapshot(self, totals: Totals, due: bool, flush: bool = False) -> Pending:
        """The training thread copies the fragment now; everything unmerged goes into the next
        offer. Where that is just what encodings lost before a checkpoint, in the name of its
        author, whose own process may have offered it."""
        work = self.unmerged(totals)
        if not work.step:
            self.inherited = self.inherited or self.restored_from
        claim = self.claim
        if self.inherited:
            seq, self.inherited = self._past(claim), None
        else:
            seq = self.seq = self.seq + 1
        self.motion, self.offer_requested = Motion.SNAPSHOT, False
        # What a long offer's encoding lost must not weigh as little as the few steps that it goes
        # with.
        rest = flush and self.has_unsent_residual and self.weight > (work.tokens, work.step)
        self.has_unsent_residual = self.has_unsent_residual and not flush
        follows = self.lineage.last_merged(claim.author)
        self.pending = Pending(
            claim=claim,
            seq=seq,
            step=totals.step,
            tokens=work.tokens,
            steps=work.step,
            due=due,
            flush=flush,
            follows=follows,
            again=self.weight if rest else (0, 0),
        )
        return self.pending

    def offered(self, genesis: bytes, sections: Sections) -> None:
        """Δ is encoded: this is the pending offer from now on."""
        pending = self.pending
        assert pending is not None
        inherited = pending.claim if pending.claim.author != self.me else None
        steps = pending.steps or max(1, pending.again[1])
        pending.offer = Offer(
            peer=self.me,
            fragment=self.fragment,
            seq=pending.seq,
            tokens=pending.tokens,
            steps=steps,
            genesis=genesis,
            key=self.lineage.key,
            due=pending.due,
            sections=sections,
            inherited=inherited,
            follows=pending.follows,
            again=pending.again,
        )

    @property
    def weight(self) -> tuple[int, int]:
        """(tokens, steps) that an offer without any of its own weighs by."""
        return self.last.tokens, self.last.step

    def _rebase(self, pending: Pending) -> None:
        """Our anchor is of another branch: what the pending offer follows is not in it. The same
        work gets another number, so that every number stands for one history."""
        follows = self.lineage.last_merged(pending.claim.author)
        if follows == pending.follows:
            return
        if self.inherited and self.inherited.author == pending.claim.author:
            # one offer of both: under the new number, this one would pass for what came with it
            self.withdraw()
            return
        pending.earlier = (*pending.earlier, (pending.seq, pending.follows))
        if pending.claim.author == self.me:
            pending.seq = self.seq = self.seq + 1
        else:
            pending.seq = max(self.me.incarnation, pending.seq + 1)
        pending.follows, pending.sent_to, pending.delivered = follows, None, False
        if pending.offer:
            pending.offer = replace(
                pending.offer, seq=pending.seq, follows=follows, inherited=pending.claim
            )

    def _past(self, claim: Claim) -> int:
        """A number past every one that the author's own process can have used: what it offered
        after its checkpoint is the same work."""
        return max(self.me.incarnation, claim.settled + 1)

    @property
    def claim(self) -> Claim:
        """Whose work it is that no offer holds yet."""
        return self.inherited or Claim(self.me, self.seq)

    def includes_pending(self, lineage: Lineage) -> bool:
        """Whether `lineage` has merged the pending offer."""
        return (
            self.pending is not None
            and lineage.last_merged(self.pending.claim.author) in self.pending.numbers
        )

    def in_doubt(self, lineage: Lineage) -> bool:
        """Whether `lineage` merged work of ours in an offer we know nothing of: then drop, never
        double (law 5)."""
        if (
            self.pending
            and not lineage.admits(self.pending.claim)
            and not self.includes_pending(lineage)
        ):
            return True
        return not lineage.admits(self.claim)

    def source_moved_on(self, lineage: Lineage) -> bool:
        """Whether `lineage` has merged what the process of our checkpoint offered after it: with
        all that its encodings had lost until then."""
        return self.restored_from is not None and not lineage.admits(self.restored_from)

    @property
    def superseded_tokens(self) -> int:
        """Tokens of this process that an anchor had merged, but not the one we are on."""
        return self.share.superseded_tokens(self.lineage)

    def withdraw(self) -> None:
        """The pending offer did not come about: its work goes into the next one."""
        pending, self.pending = self.pending, None
        if pending:
            # What only encodings lost has its author's name when it is offered again; what is
            # trained till then, ours.
            if pending.claim.author != self.me and (pending.steps or self.inherited):
                self.inherited = pending.claim
            self.has_unsent_residual = self.has_unsent_residual or pending.flush

    def forget(self) -> None:
        """The weights have nothing of what our encodings lost any more: an anchor has it, or it is
        given up."""
        self.has_unsent_residual = False

    def _give_up(self) -> None:
        """The pending offer is sent no more: its work counts as dropped. An anchor that merges it
        yet has what it follows, too."""
        pending, self.pending = self.pending, None
        if pending:
            self.share.add(pending.claim.author, pending.numbers, 0)

    def moved(
        self,
        lineage: Lineage,
        merged_own_offer: bool,
        totals: Totals,
        schedule: Schedule,
        replaced: bool = False,
    ) -> None:
        """The anchor is now `lineage`; `merged_own_offer` says that the pending offer is in it,
        `replaced` that the weights become the anchor. The correction awaits the training thread."""
        if replaced and not merged_own_offer:
            self._give_up()
        went_on = lineage.tokens > self.lineage.tokens and not merged_own_offer
        self.motion, self.correction_pending, self.lineage, self.behind_since = (
            Motion.STILL,
            True,
            lineage,
            None,
        )
        # A branch that wins may have had fewer rounds.
        self.averaged = {
            order: min(version, lineage.version) for order, version in self.averaged.items()
        }
        pending = self.pending
        if went_on and not (self.has_unsent_residual or pending):
            self.last = Totals()  # of what the encodings in these rounds lost, we have no share
        ours = merged_own_offer and pending is not None and pending.claim.author == self.me
        # not by the checkpoint's own offer: its process may have made another
        if ours or self.source_moved_on(lineage):
            self.restored_from = None  # what our encodings lose from now on is ours
        if merged_own_offer and pending:
            self.share.add(pending.claim.author, pending.numbers, pending.tokens)
            self.settled = Totals(
                self.settled.step + pending.steps, self.settled.tokens + pending.tokens
            )
            self.last = self.last if any(pending.again) else Totals(pending.steps, pending.tokens)
            self.has_unsent_residual = not pending.flush
            self.pending = None
            self.cycle_start = totals.step if pending.missed else pending.step
            self.offer_requested = self.offer_requested or (
                pending.missed and not schedule.lockstep
            )
            self.adopt_at = (
                pending.step + schedule.adopt_after if schedule.adopt_after is not None else None
            )
        elif lineage.version:  # else these are but other first weights: no round was missed
            # In lockstep nobody is called: who is slower than the rounds would never come to a
            # boundary.
            self.cycle_start = (
                totals.step
                if self.unmerged(totals).step and not schedule.lockstep
                else self.cycle_start
            )
            if pending:
                pending.missed, pending.due = True, False
                self._rebase(pending)
                self.offer_requested = self.offer_requested or (
                    self.pending is None and not schedule.lockstep
                )
        if replaced:
            self.adopt_at = None  # there is nothing to go on with until then

    def correction_applied(self, replace: bool, totals: Totals) -> int:
        """The training thread applied the correction. Returns the tokens that a replacement
        dropped."""
        self.correction_pending, self.adopt_at = False, None
        if not replace:
            return 0
        dropped = self.unmerged(totals)
        self.settled, self.pending, self.inherited = Totals(totals.step, totals.tokens), None, None
        self.seq = max(self.seq, self.lineage.last_merged(self.me))
        self.cycle_start = totals.step if dropped.step else self.cycle_start
        self.dropped_tokens += dropped.tokens
        return dropped.tokens

    def transplant(self, genesis: bytes) -> None:
        """The other fragments are another model's now; this one nobody else has yet."""
        self.lineage = replace(self.lineage, genesis=genesis)
        if self.pending and self.pending.offer:
            self.pending.offer = replace(self.pending.offer, genesis=genesis)
            self.pending.sent_to = None

    def found(self, tokens: int, model: bytes) -> Lineage:
        """Alone, our weights become the anchor (`model` is their digest): its lineage has merged
        all that is ours."""
        self.seq += 1
        merged = {self.me: self.seq}
        if self.pending:
            merged[self.pending.claim.author] = max(
                self.pending.seq, merged.get(self.pending.claim.author, 0)
            )
        if self.inherited:
            merged[self.inherited.author] = self._past(self.inherited)
        return self.lineage.found(merged, tokens, model)

    def founded(self, lineage: Lineage, at: Totals) -> None:
        """Alone, the weights at `at` became the anchor: all of it is merged."""
        pending, follows, tokens = (
            self.pending,
            self.lineage.last_merged(self.me),
            at.tokens - self.settled.tokens,
        )
        if pending:  # another branch may have merged just that
            self.share.add(pending.claim.author, pending.numbers, pending.tokens)
            follows = pending.seq if pending.claim.author == self.me else follows
            tokens -= pending.tokens
        self.share.add(self.me, {self.seq: follows}, tokens)
        self.motion, self.lineage, self.pending, self.inherited = Motion.STILL, lineage, None, None
        self.settled, self.offer_requested, self.has_unsent_residual = (
            Totals(at.step, at.tokens),
            False,
            False,
        )
