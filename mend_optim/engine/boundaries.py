"""The engine's side of the training thread: it counts steps, selects fragments to copy, holds back
corrections, and tells the thread when to wait."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from mend_optim.engine.accounts import Totals
from mend_optim.engine.adoption import Adopter
from mend_optim.engine.effects import Agree, Found, Prepare, Snapshot
from mend_optim.engine.ledger import whole_anchor_record
from mend_optim.engine.mode import Change, Mode
from mend_optim.engine.pending import Pending
from mend_optim.engine.progress import Motion, Progress
from mend_optim.engine.state import EngineState
from mend_optim.engine.stragglers import Stragglers
from mend_optim.engine.turns import Turns

Readings = Mapping[str, Snapshot]


class Boundaries:
    """Called by the training thread, in `step()`, with the mutex held."""

    def __init__(
        self, state: EngineState, adoption: Adopter, stragglers: Stragglers, turns: Turns
    ) -> None:
        self.state = state
        self.adoption = adoption
        self.stragglers = stragglers
        self.turns = turns
        #: The totals at the moment when the copies that found anchors were begun.
        self.founded_at = Totals()

    def stepped(self, tokens: int, seconds: float | None, rate: float = 0.0) -> None:
        """One inner step on `tokens` tokens was taken.

        Args:
            tokens: at least 0.
            seconds: since the step before, without what this library took of that; None for the
                first step, and after a rest.
            rate: the step's inner learning rate; 0 unless the outer optimizer needs it.
        """
        if seconds is not None:
            self.stragglers.stepped(seconds, tokens)
        if self.state.resting and self.state.schedule.lockstep:
            for fragment in self.state.fragments:
                fragment.withdraw_request()
        self.state.resting = False
        self.state.totals.step += 1
        self.state.totals.tokens += tokens
        self.state.totals.rate += rate

    # ── copies ────────────────────────────────────────────────────────────────────────────────────

    def fragments_to_copy(self) -> list[int]:
        """Fragments whose parameters the training thread should copy now. Then it calls `snapshot`
        for each; or, to found anchors, `found` for all."""
        state = self.state
        match state.mode:
            case Mode.FOUNDING:
                return self._all_to_copy()
            case Mode.TRAINING:
                early = self.turns.early()
                return [f.fragment for f in state.fragments if self._wants_snapshot(f, early)]
            case _:
                return []

    def _wants_snapshot(self, fragment: Progress, early: Collection[int]) -> bool:
        state, p = self.state, fragment.fragment
        return fragment.wants_snapshot(
            state.totals, state.schedule, flush=state.flushes(p), early=p in early
        )

    def wanted_in(self, steps: int) -> int | None:
        """A fragment that is to be copied once so many more steps were taken, if its anchor stands
        still until then: the one whose cycle began first. None if there is none."""
        state = self.state
        if state.mode is not Mode.TRAINING:
            return None
        then = state.totals.copy()
        then.step += steps
        wanted = [f for f in state.fragments if f.wants_snapshot(then, state.schedule)]
        first = min(wanted, key=lambda f: (f.cycle_start, f.fragment), default=None)
        return None if first is None else first.fragment

    def hold(self, p: int, until: float) -> None:
        """The ranks of this learner will copy fragment `p` at the end of a later step. Its anchor
        stands still until `reserve_held`, but no longer than to that time."""
        self.state.fragments[p].hold(until)

    def reserve_held(self, p: int) -> bool:
        """The copy of fragment `p` was made at the end of the last step. False if its anchor may
        have moved since it was held, or there is nobody to offer to."""
        if not self.state.fragments[p].is_held or self.state.mode is not Mode.TRAINING:
            return False
        self.reserve(p)
        return True

    def due_in(self, steps: int) -> bool:
        """Whether a fragment will reach its boundary in so many steps, if nothing else happens."""
        state = self.state
        if state.mode is not Mode.TRAINING:
            return False
        at = state.totals.step + steps
        return any(
            fragment.pending is None and state.schedule.due(at, fragment.cycle_start)
            for fragment in state.fragments
        )

    def _all_to_copy(self) -> list[int]:
        """All fragments, once they stand still; none if nothing has been trained by now."""
        state = self.state
        if not any(f.unmerged(state.totals).step for f in state.fragments):
            state.change(Change.NOTHING_TO_FOUND)
            return []
        still = all(f.is_still and not f.correction_pending for f in state.fragments)
        return list(range(len(state.fragments))) if still else []

    @property
    def founding(self) -> bool:
        """Whether the copies are to found anchors, all at once."""
        return self.state.mode is Mode.FOUNDING

    def moments(self, p: int) -> tuple[str, ...]:
        """Which moments go with the copy of fragment `p`."""
        state, fragment = self.state, self.state.fragments[p]
        if self.founding and not state.is_buffers(p):
            return tuple(moment.name for moment in state.policies.moments)
        return state.moments_owed(fragment)

    def reserve(self, p: int) -> None:
        """The training thread begins to copy fragment `p`: its anchor stands still until
        `snapshot`."""
        state, fragment = self.state, self.state.fragments[p]
        is_due = state.schedule.due(state.totals.step, fragment.cycle_start)
        fragment.snapshot(state.totals, state.resting or is_due, state.flushes(p))

    def snapshot(self, p: int, tensor: Snapshot, moments: Readings = MappingProxyType({})) -> None:
        """The copy of fragment `p` that was reserved is ready to become an offer."""
        pending = self.state.fragments[p].pending
        assert pending is not None
        pending.scaled_to(self._share(p, pending))
        self.state.work(
            Prepare(
                fragment=p,
                seq=pending.seq,
                tensor=tensor,
                moments=moments,
                flush=pending.flush,
                share=pending.share,
            )
        )

    def _share(self, p: int, pending: Pending) -> float:
        """The share of its delta that an offer has. Buffers are offered as they are, and residuals
        of earlier encodings in full."""
        state = self.state
        if state.is_buffers(p) or not pending.steps or not state.policies.weighs_work:
            return 1.0
        return state.policies.adoption.share_of(pending.absence, pending.tokens)

    def reserve_all(self) -> None:
        """The training thread begins to copy all fragments, to found anchors."""
        self.state.change(Change.COPY_BEGUN)
        self.founded_at = self.state.totals.copy()
        for fragment in self.state.fragments:
            fragment.copy_for_anchor()

    def found(self, tensors: tuple[Snapshot, ...], moments: tuple[Readings, ...] = ()) -> None:
        """The copies of all fragments are ready to become the anchors."""
        self.state.work(Found(tensors, moments))

    def release(self, fragments: Iterable[int]) -> None:
        """The copies that were reserved did not come about (Ctrl-C, say): they are wanted again."""
        for fragment in (self.state.fragments[p] for p in fragments):
            if fragment.motion is Motion.SNAPSHOT:
                fragment.released()
        if self.state.mode is Mode.COPYING:
            self.state.change(Change.COPY_FAILED)

    # ── corrections ───────────────────────────────────────────────────────────────────────────────

    def holds_back(self, p: int) -> bool:
        """Under `adopt_after`: whether a correction of `p` that is ready must wait for its step."""
        adopt_at = self.state.fragments[p].adopt_at
        if self.state.resting or adopt_at is None:
            return False
        return self.state.totals.step < adopt_at

    def must_wait(self) -> bool:
        """Under `adopt_after`: whether the training thread is at a step whose anchor has not come
        yet, or at a boundary while the anchor moves: without an offer at this step, the other
        learners would wait for one in vain."""
        state = self.state
        if not state.schedule.lockstep or state.alone or state.resting:
            return False
        return bool(self.turns.awaited()) or any(map(self._is_kept_from_copying, state.fragments))

    def _is_kept_from_copying(self, fragment: Progress) -> bool:
        state = self.state
        is_due = state.schedule.due(state.totals.step, fragment.cycle_start)
        has_work = fragment.pending is None and fragment.unmerged(state.totals).step
        return bool(is_due and has_work) and fragment.is_moving

    def waited_out(self) -> None:
        """Under `adopt_after`: the anchor did not come in time. Training goes on, and the anchor is
        adopted whenever it comes."""
        for fragment in self.state.fragments:
            if fragment.pending:
                fragment.pending.missed = True

    def steps_on(self) -> bool:
        """Under `adopt_after=0`, an inner step is about to be taken: training waits for no anchor
        any more. From here on anchors are added, and drop nothing. Returns whether an anchor that
        was to replace the weights may still be on its way through the worker."""
        if self.state.schedule.adopt_after != 0:
            return False
        self.waited_out()
        return any(fragment.is_moving for fragment in self.state.fragments)

    # ── other weights ─────────────────────────────────────────────────────────────────────────────

    def begin_anew(self) -> list[bool]:
        """The user has put other weights in the place of this learner's, and training goes on from
        them. No fragment is being copied. Returns for each of them whether an offer of it is on its
        way, which stays."""
        state = self.state
        state.resting = False
        for fragment in state.fragments:
            told = fragment.told_tokens
            dropped = fragment.begin_anew(state.totals)
            record = whole_anchor_record(
                fragment.fragment,
                fragment.lineage,
                fragment.lineage,
                "reset",
                dropped_tokens=dropped.tokens - told,
            )
            state.record(record)
        return [fragment.pending is not None for fragment in state.fragments]

    # ── rest ──────────────────────────────────────────────────────────────────────────────────────

    def agree(self, p: int) -> None:
        """At rest, give up the disagreement of fragment `p` once all its work is merged. Work that
        is still to be merged takes it along, because the gain at rest is 1."""
        state, fragment = self.state, self.state.fragments[p]
        at_rest = state.resting and state.mode is Mode.TRAINING and fragment.disagrees
        if not at_rest or not fragment.is_still or fragment.correction_pending:
            return
        if not state.has_unsent_work(fragment):
            fragment.agree()
            state.work(Agree(p))

    def settled(self, without: Collection[int] = ()) -> bool:
        """Whether nothing of ours is unmerged, and no live peer that answered since we came to rest
        has a greater anchor. `without`: fragments whose work may stay unmerged."""
        state = self.state
        if state.alone:
            # The others left, or nobody was ever expected. Else we still wait for those expected.
            return state.adopted_rounds > 0 or state.seeds.expects_nobody
        if state.switch or not state.question.is_answered:
            return False
        shared = [f for f in state.fragments if f.fragment not in without]
        shared = [f for f in shared if self.turns.is_shared(f)]
        if any(state.has_unsent_work(f) or f.correction_pending or f.disagrees for f in shared):
            return False
        if any(self.adoption.repairs.is_mending(f.fragment) for f in shared):
            return False
        return not any(self.adoption.pulling.behind(fragment) for fragment in state.fragments)
