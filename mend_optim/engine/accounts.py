"""The accounts of one fragment of one learner: which of its work is in the anchor, in the pending
offer, in neither, or dropped.

A learner has at most one pending offer for each fragment. It keeps that offer, under the same
number and with the same bytes, until some anchor has merged it. Work that is trained after the
snapshot travels in the next offer. So everything up to `settled` is settled, the pending offer
holds exactly the work that follows, and no later seal can contain work that is still to be offered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mend_optim.engine.absence import PRESENT, missed
from mend_optim.engine.pending import Pending
from mend_optim.engine.residual_share import Residual
from mend_optim.engine.superseded import SupersededAccount
from mend_optim.protocol.lineage import Claim, Entry, Lineage, PeerId
from mend_optim.protocol.messages import Offer, Sections


@dataclass(slots=True)
class Totals:
    """Inner steps and tokens that this process has trained: counters that only grow."""

    step: int = 0
    tokens: int = 0
    #: The sum of the inner learning rates of these steps; 0 unless the outer optimizer needs it.
    rate: float = 0.0

    def copy(self) -> Totals:
        return Totals(self.step, self.tokens, self.rate)


class Accounts:
    """In tokens, at any time: trained = settled (merged or dropped) + unmerged. Only its own
    methods write its fields."""

    def __init__(self, me: PeerId, fragment: int, lineage: Lineage) -> None:
        self.me = me
        self.fragment = fragment
        #: The anchor that the weights rest on, or will once the correction is applied.
        self.lineage = lineage
        #: Counters up to which all work is in some anchor, or dropped. Invariant: <= trained.
        self.settled = Totals()
        #: Tokens of this process that could not be kept. Only grows.
        self.dropped_tokens = 0
        #: Tokens of unmerged work that a record has told of as dropped: they are dropped when the
        #: training thread takes the anchor. Invariant: at most those that are unmerged.
        self.told_tokens = 0
        #: Which of this learner's merged offers the present anchor has.
        self.share = SupersededAccount()
        #: The number of this process's newest offer. Only grows.
        self.seq = 0
        #: Unmerged work that came with a checkpoint and is in no offer yet.
        self.inherited: Claim | None = None
        #: The process whose encodings left the residual that came with a checkpoint.
        self.restored_from: Claim | None = None
        #: The offer on its way. Invariant: it holds the work that follows `settled`, or a residual.
        self.pending: Pending | None = None
        #: The rounds that were missed beside work that no offer holds yet.
        self.absence = PRESENT
        #: The residual of this learner's encodings in its weights, and the share it weighs by.
        self.residual = Residual()

    # ── unmerged work ─────────────────────────────────────────────────────────────────────────────

    def unmerged(self, totals: Totals) -> Totals:
        """Steps and tokens trained since the last settled snapshot."""
        settled = self.settled
        steps = totals.step - settled.step
        # A difference of rounded sums must not be a rate of no steps, or a negative one.
        rate = max(0.0, totals.rate - settled.rate) if steps else 0.0
        return Totals(steps, totals.tokens - settled.tokens, rate)

    @property
    def offered_share(self) -> float:
        """The share of its delta that the pending offer has."""
        return self.pending.share if self.pending else 1.0

    @property
    def claim(self) -> Claim:
        """The claim on the work that no offer holds yet."""
        return self.inherited or Claim(self.me, self.seq)

    def make_pending(self, totals: Totals, due: bool, flush: bool) -> Pending:
        """Everything unmerged goes into an offer.

        Where that is nothing but a residual that came with a checkpoint, the offer has its author's
        name, because the author's own process may have offered the same."""
        work = self.unmerged(totals)
        if not work.step:
            self.inherited = self.inherited or self.restored_from
        claim = self.claim
        seq = self._next_number(claim)
        self.pending = Pending(
            claim=claim,
            seq=seq,
            step=totals.step,
            tokens=work.tokens,
            steps=work.step,
            rate=work.rate,
            absence=self.absence,
            due=due,
            flush=flush,
            follows=self.lineage.last_merged(claim.author),
            again=self.residual.claim((work.tokens, work.step), flush),
        )
        self.absence = PRESENT
        return self.pending

    def _next_number(self, claim: Claim) -> int:
        """A number for an offer of this work, which is inherited no more."""
        if self.inherited:
            self.inherited = None
            return self._past(claim)
        self.seq += 1
        return self.seq

    def _past(self, claim: Claim) -> int:
        """A number past every one that the author's own process can have used, because offers that
        it made after its checkpoint hold the same work."""
        return max(self.me.incarnation, claim.settled + 1)

    def offered(self, genesis: bytes, sections: Sections, content: bytes = b"") -> None:
        """The worker has encoded Δ: this is the pending offer from now on. `content`: see
        `Offer`."""
        pending = self.pending
        assert pending is not None
        mine = pending.claim.author == self.me
        pending.encoded(
            Offer(
                peer=self.me,
                fragment=self.fragment,
                seq=pending.seq,
                tokens=pending.tokens,
                steps=pending.work[1],
                rate=pending.rate * pending.share,
                genesis=genesis,
                key=self.lineage.key,
                due=pending.due,
                sections=sections,
                content=content,
                inherited=None if mine else pending.claim,
                follows=pending.follows,
                again=pending.again,
            )
        )

    def withdraw(self) -> None:
        """The pending offer did not come about: its work goes into the next one."""
        pending, self.pending = self.pending, None
        if pending is None:
            return
        # A residual keeps its author's name when it is offered again. Work that is trained until
        # then does not need that name.
        if pending.claim.author != self.me and (pending.steps or self.inherited):
            self.inherited = pending.claim
        self.absence += pending.absence
        self.residual.withdrawn(pending.flush)

    def renamed(self, me: PeerId, totals: Totals) -> None:
        """This process has another incarnation from here on. As after a restart from a checkpoint,
        its unmerged work stays that of the former one, in whose name it may have been offered."""
        offered = self.pending.steps if self.pending else 0
        if self.unmerged(totals).step > offered:
            self.inherited = self.claim
        self.me = me
        self.seq = 0
        if self.pending:
            self.pending.renamed(me)

    # ── comparison with an anchor ─────────────────────────────────────────────────────────────────

    def forged_in(self, members: Iterable[Entry], may_have_heirs: bool) -> bool:
        """Whether one of these entries passes for an offer of this learner and is none. Then no
        anchor that has the number of the pending offer counts as one that has that offer.

        Args:
            members: the members of a seal.
            may_have_heirs: whether there is a checkpoint of this process. A process that goes on
                from it may offer work in this one's name, under numbers of its own.
        """
        pending, forged = self.pending, False
        for entry in members:
            if pending and entry.peer == pending.claim.author and entry.seq in pending.numbers:
                if (entry.tokens, entry.steps) != pending.work:
                    pending.forged = forged = True
            elif entry.peer == self.me and entry.seq > self.seq and not may_have_heirs:
                forged = True
        return forged

    def includes_pending(self, lineage: Lineage) -> bool:
        """Whether `lineage` has merged the pending offer."""
        pending = self.pending
        if pending is None or pending.forged:
            return False
        return lineage.last_merged(pending.claim.author) in pending.numbers

    def in_doubt(self, lineage: Lineage) -> bool:
        """Whether `lineage` merged work of this learner in an offer that it knows nothing of: then
        it drops its unmerged work rather than have it merged twice (law 5)."""
        pending = self.pending
        if pending and not lineage.admits(pending.claim) and not self.includes_pending(lineage):
            return True
        return not lineage.admits(self.claim)

    def source_moved_on(self, lineage: Lineage) -> bool:
        """Whether `lineage` has merged an offer that the process of our checkpoint made after the
        checkpoint, and so every residual that its encodings had left until then."""
        return self.restored_from is not None and not lineage.admits(self.restored_from)

    @property
    def superseded_tokens(self) -> int:
        """Tokens of this process that some anchor had merged, and the present one has not."""
        return self.share.superseded_tokens(self.lineage)

    # ── moving to a new anchor ────────────────────────────────────────────────────────────────────

    def follow(
        self, lineage: Lineage, totals: Totals, *, merged_own_offer: bool, replaced: bool
    ) -> Pending | None:
        """The anchor is now `lineage`. Returns the pending offer if the anchor has it.

        Args:
            lineage: the new anchor's.
            totals: steps and tokens trained by now.
            merged_own_offer: the pending offer is in it.
            replaced: the weights become the anchor, and the work trained since is dropped.
        """
        if replaced and not merged_own_offer:
            self._give_up_pending(lineage)
        if lineage.tokens > self.lineage.tokens and not merged_own_offer:
            self.residual.missed_round(self.pending is not None)
        if self.source_moved_on(lineage):
            self.restored_from = None
        self._note_absence(lineage, totals, merged_own_offer, replaced)
        self.lineage = lineage
        return self._settle() if merged_own_offer else None

    def _note_absence(
        self, lineage: Lineage, totals: Totals, merged_own_offer: bool, replaced: bool
    ) -> None:
        pending = self.pending
        offered = pending.steps if pending else 0
        if replaced:
            self.absence = PRESENT
        elif self.unmerged(totals).step > offered:
            own = pending.tokens if pending and merged_own_offer else None
            self.absence += missed(self.lineage, lineage, own)

    def _settle(self) -> Pending | None:
        """The pending offer is merged."""
        pending, self.pending = self.pending, None
        if pending is None:
            return None
        if pending.claim.author == self.me:
            # An offer in the checkpoint's name proves nothing: its process may have made another.
            self.restored_from = None
        self.share.add(pending.claim.author, pending.numbers, pending.tokens, self.lineage)
        settled = self.settled
        self.settled = Totals(
            settled.step + pending.steps,
            settled.tokens + pending.tokens,
            settled.rate + pending.rate,
        )
        self.residual.merged((pending.tokens, pending.steps), pending.again, pending.flush)
        return pending

    def rebase(self, pending: Pending) -> None:
        """If the anchor is of another branch, it lacks the offer that the pending one follows. Then
        the same work gets another number, so that every number stands for one history."""
        author = pending.claim.author
        follows = self.lineage.last_merged(author)
        if follows == pending.follows:
            return
        if self.inherited and self.inherited.author == author:
            # Both go into one offer: under the new number, this one would pass for what came along.
            self.withdraw()
            return
        if author == self.me:
            self.seq += 1
            pending.renumbered(self.seq, follows)
        else:
            pending.renumbered(max(self.me.incarnation, pending.seq + 1), follows)

    def _give_up_pending(self, lineage: Lineage) -> None:
        """The pending offer is sent no more, and its work counts as dropped. An anchor that merges
        it all the same also has the offer that it follows. `lineage` is the anchor's from now
        on."""
        pending, self.pending = self.pending, None
        if pending:
            self.share.add(pending.claim.author, pending.numbers, 0, lineage)

    def tell_dropped(self, totals: Totals) -> int:
        """An anchor is about to replace the weights, and a record tells of it. Returns the tokens
        that are dropped with them, except those that an earlier record has told of: before the
        training thread takes one anchor, others may come."""
        told, self.told_tokens = self.told_tokens, self.unmerged(totals).tokens
        return self.told_tokens - told

    def drop(self, totals: Totals) -> Totals:
        """All that is unmerged is dropped. Returns how much that is."""
        dropped = self.unmerged(totals)
        self.settled = totals.copy()
        self.told_tokens = 0
        self.pending = None
        self.inherited = None
        self.absence = PRESENT
        # Not of `last_merged`: no number follows that of a process that is forgotten.
        self.seq = max(self.seq, self.lineage.merged.get(self.me, 0))
        self.dropped_tokens += dropped.tokens
        return dropped

    def begin_anew(self, totals: Totals) -> Totals:
        """The user has put other weights in the place of this learner's. The pending offer stays,
        and everything else that is unmerged is dropped. Returns how much that is."""
        pending, unmerged = self.pending, self.unmerged(totals)
        kept = Totals(pending.steps, pending.tokens, pending.rate) if pending else Totals()
        self.settled = Totals(
            totals.step - kept.step, totals.tokens - kept.tokens, totals.rate - kept.rate
        )
        if pending:
            pending.lost_the_rest()
        self.inherited = None
        self.told_tokens = 0
        self.absence = PRESENT
        self.residual.forget()
        dropped = Totals(unmerged.step - kept.step, unmerged.tokens - kept.tokens)
        self.dropped_tokens += dropped.tokens
        return dropped

    # ── first weights, other models ───────────────────────────────────────────────────────────────

    def started_elsewhere(self, lineage: Lineage, totals: Totals, dropped_tokens: int) -> None:
        """Before the first step: all that was trained without peers is in the weights, so that
        they are the anchor; or it is dropped, because these are other weights."""
        self.lineage = lineage
        self.dropped_tokens = dropped_tokens
        self.settled = totals.copy()

    def transplant(self, genesis: bytes, *, keeps_offer: bool) -> None:
        """The other fragments are another model's now; this one nobody else has yet. Without
        `keeps_offer`, the pending offer stays one of the former model, and nobody takes it."""
        self.lineage = replace(self.lineage, genesis=genesis)
        if self.pending and keeps_offer:
            self.pending.transplanted(genesis)

    def found(self, tokens: int, model: bytes) -> Lineage:
        """The lineage of an anchor that this learner founds from its weights, alone: it has merged
        all of the learner's work. `model` is the digest of the weights."""
        self.seq += 1
        merged = {self.me: self.seq}
        if self.pending:
            author = self.pending.claim.author
            merged[author] = max(self.pending.seq, merged.get(author, 0))
        if self.inherited:
            merged[self.inherited.author] = self._past(self.inherited)
        return self.lineage.found(merged, tokens, model)

    def founded(self, lineage: Lineage, at: Totals) -> None:
        """Alone, the weights at `at` became the anchor: all of it is merged."""
        follows = self.lineage.last_merged(self.me)
        tokens = at.tokens - self.settled.tokens
        pending = self.pending
        if pending:  # another branch may have merged just that
            self.share.add(pending.claim.author, pending.numbers, pending.tokens, lineage)
            follows = pending.seq if pending.claim.author == self.me else follows
            tokens -= pending.tokens
        self.share.add(self.me, {self.seq: follows}, tokens, lineage)
        self.lineage = lineage
        self.pending = None
        self.inherited = None
        self.settled = at.copy()
        self.absence = PRESENT
        self.residual.forget()
