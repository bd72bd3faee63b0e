from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mend_optim.engine.absence import PRESENT, Absence
from mend_optim.engine.accounts import Totals
from mend_optim.engine.pending import Pending
from mend_optim.engine.progress import MISSES, Motion, Progress
from mend_optim.engine.schedule import Schedule
from mend_optim.engine.standing import resumed, standing_of
from mend_optim.protocol.lineage import FORGOTTEN, PROCESSES, Claim, Entry, Lineage, PeerId
from tests.support.depth import many

ME, OTHER = PeerId("me", 1), PeerId("other", 1)
BASE = Lineage.fresh(b"genesis")
FREE = Schedule(sync_every=4)
LOCKSTEP = Schedule(sync_every=4, adopt_after=2)


def moved(
    progress: Progress,
    lineage: Lineage,
    merged_own_offer: bool,
    totals: Totals,
    schedule: Schedule,
    replaced: bool = False,
) -> None:
    """The worker has moved the anchor."""
    if progress.is_still:
        progress.move()
    progress.moved(lineage, totals, schedule, merged_own_offer=merged_own_offer, replaced=replaced)


class Fragment:
    """A fragment of a learner, driven as the engine drives it."""

    def __init__(self, schedule: Schedule = FREE, me: PeerId = ME) -> None:
        self.schedule, self.totals = schedule, Totals()
        self.progress = Progress(me, 0, BASE, schedule.first_cycle_start(0))

    def step(self, count: int = 1, tokens: int = 10) -> None:
        self.totals = Totals(self.totals.step + count, self.totals.tokens + count * tokens)

    def wants(self) -> bool:
        return self.progress.wants_snapshot(self.totals, self.schedule)

    def offer(self) -> Pending:
        pending = self.progress.snapshot(
            self.totals, self.schedule.due(self.totals.step, self.progress.cycle_start)
        )
        self.progress.copied()
        return pending

    def sealed(self, mine: bool, replaced: bool = False) -> None:
        """The anchor moved by a seal of the pending offer, or of somebody else's; the correction is
        not taken yet."""
        progress, pending = self.progress, self.progress.pending
        entry = (
            Entry(pending.claim.author, pending.seq, pending.tokens, pending.steps)
            if mine and pending
            else Entry(OTHER, 1, 7, 1)
        )
        lineage = progress.lineage.seal([entry], b"payload")
        assert progress.includes_pending(lineage) is mine
        assert not progress.in_doubt(lineage)
        moved(progress, lineage, mine, self.totals, self.schedule, replaced)

    def correction_applied(self, replace: bool = False) -> int:
        return self.progress.correction_applied(replace, self.totals)


class Accounting(RuleBasedStateMachine):
    """Trained = merged + dropped + unmerged, in steps and in tokens, whatever happens in whatever
    order."""

    def __init__(self) -> None:
        super().__init__()
        self.fragment = Fragment()
        self.merged, self.dropped = Totals(), Totals()
        self.replacing = False
        self.offered: list[tuple[PeerId, int]] = []

    @property
    def progress(self) -> Progress:
        return self.fragment.progress

    def unmerged(self) -> Totals:
        return self.progress.unmerged(self.fragment.totals)

    @rule(tokens=st.integers(0, 100), count=st.integers(1, 5))
    def step(self, tokens: int, count: int) -> None:
        self.fragment.step(count, tokens)

    @rule()
    def call(self) -> None:
        self.progress.offer_requested = True

    @precondition(lambda self: self.fragment.wants())
    @rule()
    def offer(self) -> None:
        before = self.unmerged()
        pending = self.fragment.offer()
        assert (pending.steps, pending.tokens) == (before.step, before.tokens)
        self.offered.append((pending.claim.author, pending.seq))

    @precondition(lambda self: self.progress.pending)
    @rule()
    def merge(self) -> None:
        pending = self.progress.pending
        assert pending is not None
        self.fragment.sealed(mine=True)
        self.merged = Totals(self.merged.step + pending.steps, self.merged.tokens + pending.tokens)

    @rule(whole=st.booleans())
    def leave_out(self, whole: bool) -> None:
        self.fragment.sealed(mine=False, replaced=whole)
        self.replacing = self.replacing or whole
        assert not (whole and self.progress.pending)

    @precondition(lambda self: self.progress.correction_pending)
    @rule()
    def take(self) -> None:
        before = self.unmerged() if self.replacing else Totals()
        assert self.fragment.correction_applied(self.replacing) == before.tokens
        self.dropped = Totals(self.dropped.step + before.step, self.dropped.tokens + before.tokens)
        self.replacing = False

    @precondition(lambda self: not self.progress.correction_pending)
    @rule()
    def found(self) -> None:
        unmerged = self.unmerged()
        self.progress.founded(self.progress.lineage, self.fragment.totals)
        self.merged = Totals(self.merged.step + unmerged.step, self.merged.tokens + unmerged.tokens)

    @rule()
    def rename(self) -> None:
        me = self.progress.me
        self.progress.renamed(me.beyond(me.incarnation), self.fragment.totals)

    @invariant()
    def everything_is_accounted_for(self) -> None:
        unmerged, totals = self.unmerged(), self.fragment.totals
        assert self.merged.step + self.dropped.step + unmerged.step == totals.step
        assert self.merged.tokens + self.dropped.tokens + unmerged.tokens == totals.tokens
        assert self.progress.dropped_tokens == self.dropped.tokens

    @invariant()
    def the_pending_offer_is_part_of_what_is_unmerged(self) -> None:
        pending, unmerged = self.progress.pending, self.unmerged()
        assert pending is None or (
            1 <= pending.steps <= unmerged.step and 0 <= pending.tokens <= unmerged.tokens
        )

    @invariant()
    def sequence_numbers_are_never_used_twice(self) -> None:
        assert len(self.offered) == len(set(self.offered))

    @invariant()
    def nothing_is_copied_while_something_is_on_its_way(self) -> None:
        progress = self.progress
        assert not (
            self.fragment.wants()
            and (progress.pending or progress.correction_pending or not self.unmerged().step)
        )


TestAccounting = Accounting.TestCase
TestAccounting.settings = settings(max_examples=many(60, 200), stateful_step_count=30)


# When to offer


def test_an_offer_is_wanted_at_the_boundary() -> None:
    fragment = Fragment()
    fragment.step(3)
    assert not fragment.wants()
    fragment.step()
    assert fragment.wants()


def test_a_called_learner_offers_after_one_step() -> None:
    fragment = Fragment()
    fragment.progress.offer_requested = True
    assert not fragment.wants()
    fragment.step()
    assert fragment.wants()
    assert fragment.offer().due is False
    assert fragment.progress.offer_requested is False


@pytest.mark.parametrize("motion", [Motion.SNAPSHOT, Motion.MOVING])
def test_nothing_is_copied_while_the_anchor_moves_or_is_read(motion: Motion) -> None:
    fragment = Fragment()
    fragment.step(4)
    begin = {
        Motion.SNAPSHOT: fragment.progress.copy_for_anchor,
        Motion.MOVING: fragment.progress.move,
    }
    begin[motion]()
    assert not fragment.wants()


def test_a_snapshot_holds_the_anchor_still() -> None:
    fragment = Fragment()
    fragment.step(4)
    fragment.progress.snapshot(fragment.totals, True)
    assert fragment.progress.motion is Motion.SNAPSHOT


# Marks


def test_after_a_merge_the_period_runs_from_the_snapshot() -> None:
    fragment = Fragment()
    fragment.step(4)
    fragment.offer()
    fragment.step(2)
    fragment.sealed(mine=True)
    fragment.correction_applied()
    assert fragment.progress.cycle_start == 4
    fragment.step(2)
    assert fragment.wants()


def test_who_was_left_out_starts_its_period_at_the_adoption() -> None:
    fragment = Fragment()
    fragment.step(3)
    fragment.sealed(mine=False)
    fragment.correction_applied()
    assert fragment.progress.cycle_start == 3


def test_rounds_that_call_nobody_keep_no_learner_from_its_boundary() -> None:
    """A peer that seals alone, again and again, would keep all others from offering."""
    fragment = Fragment()
    for _ in range(MISSES + 3):
        fragment.step(3)
        fragment.sealed(mine=False)
        fragment.correction_applied()
    assert fragment.progress.cycle_start == 3 * MISSES
    fragment.offer()
    assert fragment.progress.misses == 0


def test_who_had_not_trained_keeps_its_turn() -> None:
    fragment = Fragment(Schedule(sync_every=4, fragments=2))
    fragment.sealed(mine=False)
    fragment.correction_applied(replace=True)
    assert fragment.progress.cycle_start == -2


def test_an_offer_that_missed_its_round_waits_for_the_next_and_is_due_no_more() -> None:
    fragment = Fragment()
    fragment.step(4)
    pending = fragment.offer()
    fragment.sealed(mine=False)
    assert fragment.progress.pending is pending
    assert (pending.missed, pending.due, pending.tokens) == (True, False, 40)


def test_once_it_is_merged_the_learner_is_called_for_what_came_meanwhile() -> None:
    fragment = Fragment()
    fragment.step(4)
    fragment.offer()
    fragment.sealed(mine=False)
    fragment.step(2)
    fragment.sealed(mine=True)
    fragment.correction_applied()
    assert (fragment.progress.offer_requested, fragment.progress.cycle_start) == (True, 6)
    assert fragment.offer().tokens == 20


def test_rounds_that_are_missed_count_for_the_next_offer() -> None:
    """Also those that the offer before it missed on its way: the work was done meanwhile."""
    fragment = Fragment()
    fragment.step(4)
    fragment.sealed(mine=False)
    fragment.correction_applied()
    assert fragment.offer().absence == Absence(1, 7)
    fragment.step(2)
    fragment.sealed(mine=False)
    fragment.sealed(mine=False)
    fragment.sealed(mine=True)
    fragment.correction_applied()
    assert fragment.offer().absence == Absence(2, 14)
    fragment.step()
    fragment.sealed(mine=True)
    assert fragment.offer().absence == PRESENT


def test_rounds_without_work_beside_them_are_not_missed() -> None:
    """The learner has not begun yet, has all its work in an offer, or rests: the work that it does
    later is on the anchor that they made."""
    fragment = Fragment()
    fragment.sealed(mine=False)
    fragment.correction_applied()
    fragment.step(4)
    assert fragment.offer().absence == PRESENT
    fragment.sealed(mine=False)
    fragment.sealed(mine=True)
    fragment.correction_applied()
    fragment.sealed(mine=False)
    fragment.correction_applied()
    assert fragment.progress.absence == PRESENT
    fragment.step()
    fragment.sealed(mine=False)
    assert fragment.progress.absence == Absence(1, 7)


def test_rounds_on_the_way_to_a_whole_anchor_are_missed_but_for_the_one_that_merged_the_offer() -> (
    None
):
    fragment = Fragment()
    fragment.step(4)
    pending = fragment.offer()
    fragment.step()
    own = Entry(ME, pending.seq, pending.tokens, pending.steps)
    lineage = BASE.seal([Entry(OTHER, 1, 6, 1)], b"payload")
    lineage = lineage.seal([own, Entry(OTHER, 2, 4, 1)], b"payload")
    moved(fragment.progress, lineage, True, fragment.totals, fragment.schedule)
    assert fragment.progress.absence == Absence(1, 5)


def test_a_copy_that_did_not_come_about_leaves_the_missed_rounds_to_the_next() -> None:
    fragment = Fragment()
    fragment.step(4)
    fragment.sealed(mine=False)
    fragment.correction_applied()
    fragment.progress.snapshot(fragment.totals, due=True)
    assert fragment.progress.absence == PRESENT
    fragment.progress.released()
    assert fragment.progress.absence == Absence(1, 7)


def test_a_learner_that_has_dropped_its_work_has_missed_nothing() -> None:
    fragment = Fragment()
    fragment.step(4)
    fragment.sealed(mine=False)
    fragment.correction_applied()
    fragment.sealed(mine=False, replaced=True)
    assert fragment.progress.absence == PRESENT
    fragment.sealed(mine=False)
    fragment.correction_applied(replace=True)
    assert fragment.progress.absence == PRESENT
    fragment.sealed(mine=False)
    fragment.progress.begin_anew(fragment.totals)
    assert fragment.progress.absence == PRESENT
    fragment.sealed(mine=False)
    fragment.progress.became_anchor(BASE, fragment.totals)
    assert fragment.progress.absence == PRESENT


def test_other_weights_hold_nothing_of_an_offer_but_what_it_offers() -> None:
    fragment = Fragment()
    fragment.step(4)
    fragment.offer().scaled_to(0.25)
    assert fragment.progress.offered_share == 0.25
    fragment.progress.begin_anew(fragment.totals)
    assert fragment.progress.offered_share == 1
    fragment.sealed(mine=True)
    assert (fragment.progress.pending, fragment.progress.offered_share) == (None, 1)


def test_a_call_that_came_while_the_offer_travelled_is_not_forgotten() -> None:
    fragment = Fragment()
    fragment.step(4)
    fragment.offer()
    fragment.progress.offer_requested = True
    fragment.sealed(mine=True)
    assert fragment.progress.offer_requested is True


def test_replacement_starts_a_new_period_and_counts_what_it_dropped() -> None:
    fragment = Fragment()
    fragment.step(3)
    fragment.offer()
    fragment.sealed(mine=False, replaced=True)
    fragment.step(2)
    assert fragment.correction_applied(replace=True) == 50
    assert (
        fragment.progress.cycle_start,
        fragment.progress.dropped_tokens,
        fragment.progress.pending,
    ) == (5, 50, None)


def test_what_a_given_up_offer_follows_is_known() -> None:
    """It has a number for each branch; a third may merge it yet, and what that lacks is
    superseded."""
    fragment, pending = second_offer()
    progress, pending.offer = fragment.progress, None
    moved(progress, by(OTHER, 1, 2, 3), False, fragment.totals, FREE)
    moved(progress, by(OTHER, 1, 2, 3, 4), False, fragment.totals, FREE, replaced=True)
    assert (progress.pending, fragment.correction_applied(replace=True)) == (None, 40)
    branches = [by(ME, 1), by(ME, 1, 2), by(ME, 3), by(OTHER, 1)]
    assert [progress.share.superseded_tokens(lineage) for lineage in branches] == [0, 0, 40, 40]


def test_a_founder_starts_with_nothing_unmerged() -> None:
    fragment = Fragment()
    fragment.step(3)
    at = fragment.totals
    fragment.step(2)
    fragment.progress.founded(BASE, at)
    assert fragment.progress.unmerged(fragment.totals) == Totals(2, 20)


# Lockstep


def test_in_lockstep_the_anchor_is_adopted_exactly_the_overlap_after_the_snapshot() -> None:
    fragment = Fragment(LOCKSTEP)
    fragment.step(4)
    fragment.offer()
    fragment.step()
    fragment.sealed(mine=True)
    assert fragment.progress.adopt_at == 6
    fragment.correction_applied()
    assert fragment.progress.adopt_at is None


def test_in_lockstep_a_missed_learner_waits_for_its_own_boundary() -> None:
    fragment = Fragment(LOCKSTEP)
    fragment.step(4)
    fragment.offer()
    fragment.sealed(mine=False)
    fragment.step()
    fragment.sealed(mine=True)
    assert fragment.progress.offer_requested is False


# In doubt


def merged(seq: int) -> Lineage:
    return BASE.seal([Entry(ME, seq, 10, 1)], b"payload")


def test_a_lineage_that_merged_the_pending_offer_is_no_doubt() -> None:
    fragment = Fragment()
    fragment.step(4)
    fragment.offer()
    assert fragment.progress.includes_pending(merged(1))
    assert not fragment.progress.in_doubt(merged(1))


def test_a_lineage_that_merged_what_we_know_nothing_of_is_in_doubt() -> None:
    fragment = Fragment()
    assert fragment.progress.in_doubt(merged(1))
    fragment.step(4)
    fragment.offer()
    assert fragment.progress.in_doubt(merged(2))
    assert not fragment.progress.includes_pending(merged(2))


def test_another_incarnations_offers_are_not_ours() -> None:
    assert not Fragment(me=PeerId("me", 2)).progress.in_doubt(merged(1))


# Work that came with a checkpoint


HEIR = PeerId("me", 10**18)


def again(fragment: Fragment) -> Fragment:
    """Another process that goes on from a checkpoint of this one."""
    heir = Fragment(me=HEIR)
    heir.totals = Totals(fragment.totals.step, fragment.totals.tokens)
    heir.progress = resumed(HEIR, 0, standing_of(fragment.progress), heir.totals)
    return heir


def offered(fragment: Fragment) -> None:
    """Its Δ is made: from here on a checkpoint keeps the offer."""
    assert fragment.progress.pending
    fragment.progress.pending.offer = object()  # type: ignore[assignment]


def first_offer() -> tuple[Fragment, Pending]:
    """A learner whose first offer, of four steps, is on its way, and that has trained one more."""
    old = Fragment()
    old.step(4)
    sent = old.offer()
    offered(old)
    old.step(1)
    return old, sent


def by(author: PeerId, *seqs: int) -> Lineage:
    lineage = BASE
    for seq in seqs:
        lineage = lineage.seal([Entry(author, seq, 10, 1)], b"payload")
    return lineage


def test_unmerged_work_stays_its_authors_and_gets_a_number_that_the_author_cannot_have_used() -> (
    None
):
    old = Fragment()
    old.step(3)
    heir = again(old)
    assert heir.progress.claim == Claim(ME, 0)
    heir.step(2)
    pending = heir.offer()
    assert (pending.claim, pending.steps, pending.tokens) == (Claim(ME, 0), 5, 50)
    assert pending.seq >= HEIR.incarnation
    assert heir.progress.claim == Claim(HEIR, 0)
    heir.progress.withdraw()
    assert heir.progress.claim == Claim(ME, 0)


def test_under_another_incarnation_its_work_stays_that_of_the_former_one() -> None:
    """As it would after a restart from a checkpoint of that moment."""
    one, sent = first_offer()
    heir = again(one)
    sent.offer = None
    one.progress.renamed(HEIR, one.totals)
    assert one.progress.pending is sent
    for fragment in (one, heir):
        progress = fragment.progress
        assert progress.pending is not None
        assert (progress.pending.claim, progress.pending.seq) == (Claim(ME, 0), 1)
        assert progress.claim == Claim(ME, 1)
        assert not progress.in_doubt(by(ME, 1))
        assert progress.in_doubt(by(ME, 1, 2))


def test_under_another_incarnation_with_nothing_unmerged_it_begins_anew() -> None:
    one = Fragment()
    one.progress.renamed(HEIR, one.totals)
    one.step(4)
    assert one.offer().claim == Claim(HEIR, 0)


def test_a_checkpoint_with_nothing_unmerged_leaves_nothing_to_inherit() -> None:
    heir = again(Fragment())
    heir.step(4)
    assert heir.offer().claim == Claim(HEIR, 0)


def test_a_pending_offer_stays_as_it_was_and_what_followed_is_inherited_too() -> None:
    old, sent = first_offer()
    heir = again(old)
    pending = heir.progress.pending
    assert pending is not None
    assert (pending.claim, pending.seq, pending.steps) == (sent.claim, sent.seq, 4)
    assert pending.offer is None
    assert heir.progress.claim == Claim(ME, 1)
    assert heir.progress.unmerged(heir.totals) == Totals(5, 50)


def second_offer() -> tuple[Fragment, Pending]:
    """A learner whose first offer is merged and whose second one follows it."""
    old = Fragment()
    old.step(4)
    old.offer()
    old.sealed(mine=True)
    old.correction_applied()
    old.step(4)
    pending = old.offer()
    offered(old)
    assert (pending.seq, pending.follows) == (2, 1)
    return old, pending


def test_a_pending_offer_still_follows_what_it_followed() -> None:
    old, _ = second_offer()
    for heir in (again(old), again(again(old))):
        pending = heir.progress.pending
        assert pending is not None
        assert (pending.seq, pending.follows) == (2, 1)


def test_on_another_branch_an_inherited_offer_gets_a_number_that_the_author_cannot_have_used() -> (
    None
):
    old, sent = second_offer()
    heir = again(old)
    moved(heir.progress, by(OTHER, 1, 2, 3), False, heir.totals, FREE)
    pending = heir.progress.pending
    assert pending is not None
    assert (pending.claim, pending.follows) == (sent.claim, 0)
    assert pending.seq >= HEIR.incarnation
    assert pending.earlier == ((2, 1),)
    assert heir.progress.seq == 0


def on_another_branch(schedule: Schedule = FREE) -> Fragment:
    """An heir of an offer on its way, and of work of the same author beside it, whose branch was
    superseded."""
    old, _ = second_offer()
    old.step(3)
    heir = again(old)
    heir.schedule = schedule
    moved(heir.progress, by(OTHER, 1, 2, 3), False, heir.totals, schedule)
    heir.correction_applied()
    return heir


def test_on_another_branch_an_inherited_offer_and_what_came_with_it_are_one_offer_at_once() -> None:
    """Under a number of its own, past all that the author used, the first would pass for the
    second, too."""
    heir = on_another_branch()
    assert (heir.progress.pending, heir.progress.claim) == (None, Claim(ME, 1))
    assert heir.wants()
    pending = heir.offer()
    assert (pending.claim, pending.follows, pending.steps, pending.tokens) == (
        Claim(ME, 1),
        0,
        7,
        70,
    )
    assert pending.seq >= HEIR.incarnation
    both = heir.progress.lineage.seal([Entry(ME, pending.seq, 70, 7)], b"payload")
    assert heir.progress.includes_pending(both)
    moved(heir.progress, both, True, heir.totals, FREE)
    heir.correction_applied()
    assert heir.progress.unmerged(heir.totals) == Totals()
    assert heir.progress.superseded_tokens == 0
    heir.step(4)
    assert heir.offer().claim == Claim(HEIR, 0)


def test_what_is_withdrawn_on_another_branch_is_in_doubt_where_the_first_offer_is_merged() -> None:
    heir = on_another_branch()
    assert heir.progress.in_doubt(by(ME, 1, 2))
    heir.offer()
    assert heir.progress.in_doubt(by(ME, 1, 2))


def test_in_lockstep_what_is_withdrawn_waits_for_the_boundary() -> None:
    heir = on_another_branch(LOCKSTEP)
    assert (heir.progress.pending, heir.progress.offer_requested) == (None, False)
    assert heir.wants()  # the boundary at which the first offer was made has passed
    heir.progress.cycle_start = heir.totals.step
    assert not heir.wants()


def test_on_another_branch_work_of_two_authors_stays_in_two_offers() -> None:
    """Work that a second process left beside an offer of the first does not belong to the first: it
    may be in an offer of its own author that follows nothing of the first."""
    old, sent = second_offer()
    middle = again(old)
    assert middle.progress.pending is not None
    middle.step(3)
    heir = Fragment(me=PeerId("me", 2 * 10**18))
    heir.totals = Totals(middle.totals.step, middle.totals.tokens)
    heir.progress = resumed(heir.progress.me, 0, standing_of(middle.progress), heir.totals)
    moved(heir.progress, by(OTHER, 1, 2, 3), False, heir.totals, FREE)
    pending = heir.progress.pending
    assert pending is not None
    assert (pending.claim, pending.tokens, heir.progress.claim) == (sent.claim, 40, Claim(HEIR, 0))


def test_a_copy_that_is_no_offer_yet_goes_into_the_next() -> None:
    old = Fragment()
    old.step(4)
    old.progress.snapshot(old.totals, True)
    heir = again(old)
    assert heir.progress.pending is None
    assert heir.progress.claim == Claim(ME, 0)


def test_a_checkpoint_of_a_checkpoint_still_names_the_first_author() -> None:
    old = Fragment()
    old.step(3)
    assert again(again(old)).progress.claim == Claim(ME, 0)


def test_heirs_are_in_doubt_once_anything_of_the_author_is_merged_that_they_do_not_know() -> None:
    old = Fragment()
    old.step(3)
    heir = again(old)
    assert not heir.progress.in_doubt(BASE)
    assert not heir.progress.in_doubt(by(OTHER, 1, 2))
    assert heir.progress.in_doubt(by(ME, 1))
    heir.offer()
    assert heir.progress.in_doubt(by(ME, 1))
    assert heir.progress.in_doubt(by(PeerId("me", 1), 10**17))


def test_the_inherited_offer_in_an_anchor_is_no_doubt_but_a_later_one_of_its_author_is() -> None:
    old, sent = first_offer()
    heir = again(old)
    assert heir.progress.includes_pending(by(ME, sent.seq))
    assert not heir.progress.in_doubt(by(ME, sent.seq))
    moved(heir.progress, by(ME, sent.seq), True, heir.totals, FREE)
    assert heir.progress.unmerged(heir.totals) == Totals(1, 10)
    assert heir.progress.claim == Claim(ME, 1)
    assert not heir.progress.in_doubt(heir.progress.lineage)
    assert heir.progress.in_doubt(by(ME, sent.seq, sent.seq + 1))


def test_what_is_dropped_is_nobodys_any_more() -> None:
    old = Fragment()
    old.step(3)
    heir = again(old)
    moved(heir.progress, by(ME, 1), False, heir.totals, FREE)
    assert heir.correction_applied(replace=True) == 30
    assert heir.progress.claim == Claim(HEIR, 0)
    heir.step(4)
    pending = heir.offer()
    assert (pending.claim, pending.tokens) == (Claim(HEIR, 0), 40)
    assert not heir.progress.in_doubt(by(ME, 1, 2, 3))


def test_a_founder_claims_all_that_it_inherited() -> None:
    """Nobody that has the same checkpoint may add it again."""
    old, sent = first_offer()
    heir = again(old)
    lineage = heir.progress.found(50, b"model")
    assert not lineage.admits(Claim(ME, 0))
    assert not lineage.admits(Claim(ME, sent.seq))
    assert lineage.tokens == BASE.tokens + 50
    twin = again(old)
    assert twin.progress.in_doubt(lineage)


# Residuals of encodings


def at_rest(fragment: Fragment) -> bool:
    return fragment.progress.wants_snapshot(fragment.totals, fragment.schedule, flush=True)


def closing(fragment: Fragment) -> Pending:
    pending = fragment.progress.snapshot(fragment.totals, due=True, flush=True)
    fragment.progress.copied()
    return pending


def test_what_a_merged_offer_lost_is_owed_until_a_closing_offer_is_merged() -> None:
    fragment = Fragment()
    assert not at_rest(fragment)  # nothing was ever lost
    fragment.step(4)
    fragment.offer()
    assert not at_rest(fragment)
    fragment.sealed(mine=True)
    assert not at_rest(fragment)  # what was merged is not in the weights yet
    fragment.correction_applied()
    assert (at_rest(fragment), fragment.wants()) == (True, False)
    pending = closing(fragment)
    assert (pending.steps, pending.tokens, pending.seq) == (0, 0, 2)
    assert not at_rest(fragment)
    fragment.sealed(mine=True)
    fragment.correction_applied()
    assert not at_rest(fragment)
    assert fragment.progress.unmerged(fragment.totals) == Totals()


def test_a_closing_offer_of_nothing_new_says_what_its_work_weighed() -> None:
    fragment = Fragment()
    fragment.step(4)
    fragment.offer()
    fragment.progress.offered(b"g", {})
    assert fragment.progress.pending is not None
    offer = fragment.progress.pending.offer
    assert offer is not None
    assert (offer.tokens, offer.steps, offer.again) == (40, 4, (0, 0))
    fragment.sealed(mine=True)
    fragment.correction_applied()
    closing(fragment)
    fragment.progress.offered(b"g", {})
    offer = fragment.progress.pending.offer
    assert offer is not None
    assert (offer.tokens, offer.steps, offer.again) == (0, 4, (40, 4))


def test_a_closing_offer_with_work_of_its_own_is_one_offer() -> None:
    fragment = Fragment()
    fragment.step(4)
    pending = closing(fragment)
    assert (pending.steps, pending.tokens) == (4, 40)
    fragment.sealed(mine=True)
    fragment.correction_applied()
    assert not at_rest(fragment)
    assert fragment.progress.residual.share == (40, 4)


def owing(steps: int) -> Fragment:
    """Of whose merged offer of so many steps something stayed in the weights."""
    fragment = Fragment()
    fragment.step(steps)
    fragment.offer()
    fragment.sealed(mine=True)
    fragment.correction_applied()
    return fragment


@pytest.mark.parametrize(("steps", "again"), [(1, (40, 4)), (4, (0, 0)), (9, (0, 0))])
def test_what_a_long_offers_encoding_lost_weighs_as_much_beside_fewer_steps(
    steps: int, again: tuple[int, int]
) -> None:
    fragment = owing(4)
    fragment.step(steps)
    pending = closing(fragment)
    fragment.progress.offered(b"g", {})
    assert pending.offer is not None
    assert (pending.offer.tokens, pending.offer.steps, pending.offer.again) == (
        10 * steps,
        steps,
        again,
    )
    fragment.sealed(mine=True)
    assert fragment.progress.residual.share == (max(40, 10 * steps), max(4, steps))


def test_a_few_steps_with_nothing_to_close_weigh_what_they_are() -> None:
    fragment = owing(4)
    closing(fragment)
    fragment.sealed(mine=True)
    fragment.correction_applied()
    fragment.step()
    assert closing(fragment).again == (0, 0)
    fragment.sealed(mine=True)
    assert fragment.progress.residual.share == (10, 1)


def others_sealed(fragment: Fragment, tokens: int) -> None:
    progress = fragment.progress
    entry = Entry(OTHER, progress.lineage.last_merged(OTHER) + 1, tokens, 1)
    moved(progress, progress.lineage.seal([entry], b"payload"), False, fragment.totals, FREE)
    fragment.correction_applied()


def test_who_has_closed_has_a_share_in_what_others_close_but_not_in_what_they_do_without_it() -> (
    None
):
    """Learners that close one after another share each rest in a mean over all. A learner that
    trains on alone has all of it."""
    fragment = owing(4)
    closing(fragment)
    others_sealed(fragment, 10)  # one of ours waits
    fragment.sealed(mine=True)
    fragment.correction_applied()
    others_sealed(fragment, 0)
    assert fragment.progress.residual.share == (40, 4)
    others_sealed(fragment, 10)
    assert fragment.progress.residual.share == (0, 0)
    fragment.step(4)
    fragment.offer()
    fragment.sealed(mine=True)
    fragment.correction_applied()
    assert fragment.progress.residual.share == (40, 4)


def test_who_owes_has_a_share_whatever_others_do() -> None:
    fragment = owing(4)
    others_sealed(fragment, 10)
    assert fragment.progress.residual.share == (40, 4)
    assert closing(fragment).again == (40, 4)


def test_a_closing_copy_that_did_not_come_about_is_owed_still() -> None:
    fragment = Fragment()
    fragment.step(4)
    fragment.offer()
    fragment.sealed(mine=True)
    fragment.correction_applied()
    fragment.progress.snapshot(fragment.totals, due=True, flush=True)
    assert standing_of(fragment.progress).has_unsent_residual
    heir = again(fragment)
    assert at_rest(heir)
    assert heir.progress.residual.share == (40, 4)
    fragment.progress.copied()
    fragment.progress.withdraw()
    assert at_rest(fragment)


def test_a_closing_offer_in_a_checkpoint_is_one_in_who_goes_on_from_it() -> None:
    fragment = Fragment()
    fragment.step(4)
    fragment.offer()
    fragment.sealed(mine=True)
    fragment.correction_applied()
    pending = closing(fragment)
    offered(fragment)
    heir = again(fragment)
    assert not at_rest(heir)
    assert heir.progress.pending is not None
    assert heir.progress.pending.flush
    moved(heir.progress, by(ME, 1, pending.seq), True, heir.totals, FREE)
    heir.correction_applied()
    assert not at_rest(heir)


def heir_that_owes() -> Fragment:
    """It goes on from a checkpoint with nothing unmerged, but for what an encoding had lost."""
    old = Fragment()
    old.step(4)
    old.offer()
    old.sealed(mine=True)
    old.correction_applied()
    heir = again(old)
    assert at_rest(heir)
    return heir


def test_what_encodings_lost_before_a_checkpoint_is_offered_in_its_authors_name() -> None:
    """Whose closing offer may still be waiting somewhere."""
    heir = heir_that_owes()
    pending = closing(heir)
    assert (pending.claim, pending.follows, pending.steps) == (Claim(ME, 1), 1, 0)
    assert pending.seq >= HEIR.incarnation
    assert heir.progress.in_doubt(by(ME, 1, 2))
    moved(heir.progress, by(ME, 1, 2), False, heir.totals, FREE)
    assert heir.correction_applied(replace=True) == 0
    assert not at_rest(heir)
    assert not heir.progress.in_doubt(by(ME, 1, 2))


def test_what_is_trained_after_a_checkpoint_is_the_heirs_whatever_became_of_a_closing_offer() -> (
    None
):
    heir = heir_that_owes()
    closing(heir)
    heir.progress.withdraw()
    assert heir.progress.claim == Claim(HEIR, 0)
    assert at_rest(heir)
    heir.step(4)
    assert closing(heir).claim == Claim(HEIR, 0)


def test_a_closing_offer_that_is_merged_is_the_last_in_its_authors_name() -> None:
    heir = heir_that_owes()
    pending = closing(heir)
    moved(
        heir.progress,
        heir.progress.lineage.seal([Entry(ME, pending.seq, 0, 4)], b"payload"),
        True,
        heir.totals,
        FREE,
    )
    heir.correction_applied()
    heir.step(4)
    heir.offer()
    heir.sealed(mine=False)
    heir.correction_applied()
    moved(
        heir.progress,
        heir.progress.lineage.seal([Entry(HEIR, 1, 40, 4)], b"payload"),
        True,
        heir.totals,
        FREE,
    )
    heir.correction_applied()
    assert closing(heir).claim == Claim(HEIR, 1)


def test_lost_values_of_another_author_go_into_one_closing_offer_with_what_came_beside() -> None:
    old = Fragment()
    old.step(4)
    old.offer()
    old.sealed(mine=True)
    old.correction_applied()
    closing(old)
    offered(old)
    old.step(3)
    heir = again(old)
    heir.progress.withdraw()
    assert heir.progress.claim == Claim(ME, 1)


def test_a_founder_owes_nothing() -> None:
    fragment = Fragment()
    fragment.step(4)
    fragment.offer()
    fragment.sealed(mine=True)
    fragment.correction_applied()
    lineage = fragment.progress.found(0, b"model")
    fragment.progress.founded(lineage, fragment.totals)
    assert not at_rest(fragment)


def test_a_process_that_was_forgotten_goes_on_with_numbers_of_its_own() -> None:
    """It is refused as the namesake of younger ones; but its numbers must fit into messages."""
    younger = {PeerId("a", i): 1 for i in range(2, 2 + PROCESSES)}
    lineage = Lineage(tokens=10, version=1, digest=b"d", genesis=b"g", merged=younger)
    me = PeerId("a", 1)
    progress = Progress(me, 0, lineage, 0)
    progress.drop(Totals(4, 40))
    assert lineage.last_merged(me) == FORGOTTEN
    assert progress.make_pending(Totals(8, 80), due=True, flush=False).seq == 1


# The rest of a checkpoint, besides progress


def test_an_heir_is_outlived_once_an_anchor_has_what_its_checkpoints_process_offered_later() -> (
    None
):
    old, me, fresh = PeerId("a", 1), PeerId("a", 2), Lineage.fresh(b"g")
    saved = Progress(old, 0, fresh, 0)
    saved.seq = 3
    heir, schedule = resumed(me, 0, standing_of(saved), Totals()), Schedule(sync_every=4)
    before, later = (
        Lineage(tokens=10, version=1, digest=b"d", genesis=b"g", merged={old: seq, me: 9})
        for seq in (3, 4)
    )
    assert not saved.source_moved_on(later)
    assert (heir.source_moved_on(before), heir.source_moved_on(later)) == (False, True)
    moved(heir, later, False, Totals(), schedule)
    assert not heir.source_moved_on(later)
    heir = resumed(me, 0, standing_of(saved), Totals())
    heir.snapshot(Totals(4, 40), due=True)
    heir.copied()
    moved(
        heir,
        Lineage(tokens=10, version=1, digest=b"d", genesis=b"g", merged={old: 3, me: heir.seq}),
        True,
        Totals(4, 40),
        schedule,
    )
    assert not heir.source_moved_on(later)


def test_an_heir_whose_checkpoint_held_an_offer_is_outlived_by_the_one_after_it() -> None:
    """That one took along what the encoding of the first had lost, whichever process saw the first
    merged."""
    old = Fragment()
    old.step(4)
    sent = old.offer()
    offered(old)
    heir = again(old)
    first, second = by(ME, sent.seq), by(ME, sent.seq, sent.seq + 1)
    assert heir.progress.includes_pending(first)
    moved(heir.progress, first, True, heir.totals, FREE)
    assert heir.progress.source_moved_on(second)
    moved(heir.progress, second, False, heir.totals, FREE)
    assert not heir.progress.source_moved_on(second)


# The disagreement


def after_round(
    gain: float | None, disagrees: bool, mine: bool = True, replaced: bool = False
) -> Progress:
    """A fragment, with a disagreement or without, after the next anchor."""
    fragment = Fragment()
    fragment.step(4)
    fragment.offer()
    progress = fragment.progress
    progress.disagrees = disagrees
    entry = Entry(ME, 1, 40, 4) if mine else Entry(OTHER, 1, 7, 1)
    lineage = progress.lineage.seal([entry], b"payload")
    progress.move()
    progress.moved(
        lineage, fragment.totals, FREE, merged_own_offer=mine, replaced=replaced, gain=gain
    )
    return progress


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize(("gain", "after"), [(1.0, False), (0.5, True), (0.3, True)])
def test_a_seal_with_our_offer_sets_the_disagreement_by_its_gain(
    gain: float, after: bool, before: bool
) -> None:
    assert after_round(gain, before).disagrees is after


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("mine", [False, True])
def test_an_anchor_without_a_gain_leaves_the_disagreement_as_it_is(
    mine: bool, before: bool
) -> None:
    assert after_round(None, before, mine).disagrees is before


@pytest.mark.parametrize("mine", [False, True])
def test_weights_that_become_the_anchor_have_no_disagreement(mine: bool) -> None:
    assert not after_round(1.0 if mine else None, True, mine, replaced=True).disagrees


def test_the_anchor_moves_no_more_than_once_while_a_disagreement_is_given_up() -> None:
    progress = after_round(0.5, False)
    progress.correction_applied(False, Totals(4, 40))
    progress.agree()
    assert (progress.is_moving, progress.disagrees) == (True, True)
    with pytest.raises(KeyError):
        progress.move()
    progress.agreed()
    assert (progress.is_still, progress.disagrees, progress.correction_pending) == (
        True,
        False,
        True,
    )


def test_work_is_kept_while_a_disagreement_is_given_up() -> None:
    progress, totals = after_round(0.5, False), Totals(6, 60)
    progress.correction_applied(False, totals)
    progress.agree()
    progress.agreed()
    assert progress.correction_applied(False, totals) == 0
    assert progress.unmerged(totals) == Totals(2, 20)
