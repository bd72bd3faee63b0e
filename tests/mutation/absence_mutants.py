"""Mutants of the share that a learner offers after missed rounds, and of what becomes of the
rest."""

from __future__ import annotations

from tests.mutation.mutant_list import Mutant, of

LAW = 10
ROOM = "engine/absence"
TESTS = of("unit/engine/test_absence")
PROGRESS = of("unit/engine/test_progress", "missed or dropped or other_weights")
BOUNDARIES = of("unit/engine/test_boundaries", "share or as_they_are or full or scaled")
STANDING = of("unit/engine/test_standing")
WORKER = of("unit/worker/test_disagreement")
CHECKPOINT = of("unit/worker/test_checkpoint", "missed or progress_is_dropped")
READER = of("unit/worker/test_checkpoint_reader", "share or missed or back")
ADOPTION = of("unit/engine/test_late_adoption")


def mutant(
    name: str, old: str, new: str, room: str = ROOM, tests: tuple[str, ...] = TESTS
) -> Mutant:
    return Mutant(name, LAW, room, old, new, tests)


ABSENCE_MUTANTS = (
    mutant("the-round-of-an-offer-counts-as-missed", "else rounds - 1", "else rounds"),
    mutant("an-own-offer-counts-as-that-of-others", " - (own or 0))", ")"),
    mutant(
        "all-others-of-an-offers-round-count",
        "Absence(others, tokens * others // rounds)",
        "Absence(others, tokens)",
    ),
    mutant("a-shorter-branch-has-missed-rounds", "if others > 0 else", "if others else"),
    mutant("fewer-tokens-are-missed", "max(0, new.tokens - old", "(new.tokens - old"),
    mutant(
        "the-round-to-come-has-nothing-of-others",
        "per_round = self.tokens / self.rounds",
        "per_round = 0.0",
    ),
    mutant("rounds-of-one-time-count", "min(self.rounds + other.rounds,", "min(self.rounds,"),
    mutant("tokens-of-one-time-count", "min(self.tokens + other.tokens,", "min(other.tokens,"),
    mutant(
        "a-missed-round-is-forgotten",
        "self.absence += missed(self.lineage, lineage, own)",
        "self.absence = missed(self.lineage, lineage, own)",
        "engine/accounts",
        PROGRESS,
    ),
    mutant(
        "a-broken-copy-forgets-missed-rounds",
        "        self.absence += pending.absence\n",
        "",
        "engine/accounts",
        PROGRESS,
    ),
    mutant(
        "missed-rounds-count-for-two-offers",
        "        self.absence = PRESENT\n        return self.pending\n",
        "        return self.pending\n",
        "engine/accounts",
        PROGRESS,
    ),
    mutant(
        "replaced-weights-have-missed-rounds",
        "        if replaced:\n            self.absence = PRESENT\n        elif",
        "        if",
        "engine/accounts",
        PROGRESS,
    ),
    mutant(
        "the-merged-offer-misses-its-round",
        "pending.tokens if pending and merged_own_offer else None",
        "None",
        "engine/accounts",
        PROGRESS,
    ),
    mutant(
        "other-weights-hold-the-rest-of-a-share",
        "            pending.lost_the_rest()\n",
        "            pass\n",
        "engine/accounts",
        PROGRESS,
    ),
    mutant(
        "buffers-are-offered-by-a-share",
        "if state.is_buffers(p) or not pending",
        "if not pending",
        "engine/boundaries",
        BOUNDARIES,
    ),
    mutant(
        "merges-without-weights-have-shares",
        " or not state.policies.weighs_work:",
        ":",
        "engine/boundaries",
        BOUNDARIES,
    ),
    mutant(
        "the-worker-is-not-told-the-share",
        "                share=pending.share,\n",
        "",
        "engine/boundaries",
        BOUNDARIES,
    ),
    mutant(
        "a-chosen-share-holds-for-all-offers",
        "if self.share is not None and absence.rounds:",
        "if self.share is not None:",
        "engine/late_adoption",
        ADOPTION,
    ),
    mutant(
        "a-chosen-share-is-ignored",
        "if self.share is not None and absence.rounds:",
        "if False:",
        "engine/late_adoption",
        ADOPTION,
    ),
    mutant(
        "all-is-offered-whatever-the-share",
        "        progress.mul_(share)\n",
        "        pass\n",
        "worker/outer",
        WORKER,
    ),
    mutant(
        "the-rest-of-a-share-stays-for-good",
        "if part is None or share == 1:",
        "if True:",
        "worker/outer",
        WORKER,
    ),
    mutant(
        "the-rest-is-all-of-it",
        "times = 1 / share - 1",
        "times = 1 / share",
        "worker/outer",
        WORKER,
    ),
    mutant(
        "the-rest-replaces-the-disagreement",
        "return scaled * times if held is None else held.add_(scaled, alpha=times)",
        "return scaled * times",
        "worker/outer",
        WORKER,
    ),
    mutant(
        "a-checkpoint-forgets-missed-rounds",
        "    progress.absence = standing.absence\n",
        "",
        "engine/standing",
        of("unit/engine/test_standing", "keeps_the_same"),
    ),
    mutant(
        "a-copy-in-a-checkpoint-forgets-missed-rounds",
        "        absence += pending.absence\n",
        "",
        "engine/standing",
        STANDING,
    ),
    mutant(
        "other-weights-have-missed-rounds",
        "        absence=PRESENT,\n",
        "",
        "worker/checkpoint",
        CHECKPOINT,
    ),
    mutant(
        "missed-rounds-are-not-saved",
        "if absence.rounds else {}",
        "if False else {}",
        "worker/checkpoint",
        CHECKPOINT,
    ),
    mutant(
        "a-share-is-not-saved",
        "if pending.share < 1 else {}",
        "if False else {}",
        "worker/checkpoint",
        CHECKPOINT,
    ),
    mutant(
        "a-share-in-a-file-may-be-next-to-nothing",
        "if not LEAST_SHARE <= share <= 1:",
        "if not 0 < share <= 1:",
        "worker/checkpoint_reader",
        READER,
    ),
    mutant(
        "a-share-in-a-file-may-be-more-than-all",
        "if not LEAST_SHARE <= share <= 1:",
        "if not LEAST_SHARE <= share:",
        "worker/checkpoint_reader",
        READER,
    ),
    mutant(
        "missed-rounds-in-a-file-may-be-below-0",
        "all(0 <= count <= COUNTER_LIMIT for count in told)",
        "all(count <= COUNTER_LIMIT for count in told)",
        "worker/checkpoint_reader",
        READER,
    ),
    mutant(
        "the-ledger-knows-no-share",
        "        share=share,\n        offer_bytes",
        "        offer_bytes",
        "engine/ledger",
        of("unit/engine/test_ledger"),
    ),
    mutant(
        "a-record-knows-no-share",
        "sealed_record(seal, job.merged_own_offer, offer, share, dropped)",
        "sealed_record(seal, job.merged_own_offer, offer, 1.0, dropped)",
        "engine/outcomes",
        BOUNDARIES,
    ),
    mutant(
        "a-seal-drops-work-unsaid",
        "sealed_record(seal, job.merged_own_offer, offer, share, dropped)",
        "sealed_record(seal, job.merged_own_offer, offer, share)",
        "engine/outcomes",
        of("unit/engine/test_adoption", "dropped"),
    ),
    mutant(
        "dropped-work-is-told-with-every-anchor",
        "return self.told_tokens - told",
        "return self.told_tokens",
        "engine/accounts",
        of("unit/engine/test_adoption", "dropped"),
    ),
    mutant(
        "rounds-before-the-work-are-missed",
        "elif self.unmerged(totals).step > offered:",
        "else:",
        "engine/accounts",
        PROGRESS,
    ),
    mutant(
        "work-in-an-offer-is-beside-the-rounds",
        "offered = pending.steps if pending else 0\n        if replaced",
        "offered = 0\n        if replaced",
        "engine/accounts",
        PROGRESS,
    ),
    mutant(
        "an-offer-of-a-share-has-all-learning-rates",
        "rate=pending.rate * pending.share",
        "rate=pending.rate",
        "engine/accounts",
        BOUNDARIES,
    ),
    mutant("residuals-are-scaled", " or not pending.steps", "", "engine/boundaries", BOUNDARIES),
    mutant(
        "a-residual-in-the-weights-is-scaled",
        "            progress.add_(residual, alpha=1 - share)\n",
        "            pass\n",
        "worker/outer",
        WORKER,
    ),
    mutant(
        "a-residual-in-the-weights-is-a-rest",
        "scaled = part if residual is None else part - residual",
        "scaled = part",
        "worker/outer",
        WORKER,
    ),
    mutant(
        "a-replaced-weight-holds-a-rest",
        "self.disagreement, self.share = rest, 1.0",
        "self.disagreement = rest",
        "worker/fragment_anchor",
        WORKER,
    ),
    mutant(
        "a-restored-offer-has-all-of-its-delta",
        "self.share, self.residual_in_offer = job.share, ",
        "self.residual_in_offer = ",
        "worker/fragment_anchor",
        WORKER,
    ),
    mutant(
        "a-whole-anchor-records-no-share",
        "_way_to(old, lineage), mine=merged, share=share, dropped",
        "_way_to(old, lineage), mine=merged, dropped",
        "engine/outcomes",
        BOUNDARIES,
    ),
    mutant(
        "a-whole-anchor-without-our-offer-records-its-share",
        "share = fragment.offered_share if merged else 1.0",
        "share = fragment.offered_share",
        "engine/outcomes",
        BOUNDARIES,
    ),
    mutant(
        "a-seal-without-our-offer-records-its-share",
        "share = fragment.offered_share if job.merged_own_offer else 1.0",
        "share = fragment.offered_share",
        "engine/outcomes",
        BOUNDARIES,
    ),
    mutant("a-lie-leaves-nothing-of-an-offer", "return max(LEAST_SHARE, share)", "return share"),
    mutant(
        "missed-rounds-have-no-bound",
        "min(self.rounds + other.rounds, COUNTER_LIMIT)",
        "self.rounds + other.rounds",
    ),
    mutant(
        "an-offer-in-a-checkpoint-forgets-missed-rounds",
        "        **_told_absence(pending.absence),\n",
        "",
        "worker/checkpoint",
        CHECKPOINT,
    ),
)
