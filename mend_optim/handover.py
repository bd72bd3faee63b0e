"""The training thread's part of a round: it copies parameters out, adds corrections to them, and
waits where the user asked it to."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from torch import Tensor

from mend_optim.engine.effects import Export
from mend_optim.engine.ending import Ended
from mend_optim.engine.joining import Resumed
from mend_optim.engine.ledger import Event
from mend_optim.engine.rollback import EarlierAnchor
from mend_optim.environment import note_joined
from mend_optim.finish import why_unmerged
from mend_optim.model.layout import Layout
from mend_optim.model.plain_mode import in_plain_mode
from mend_optim.own_tensors import ModelTensors
from mend_optim.runtime import new_weights
from mend_optim.runtime.interrupts import Uninterrupted
from mend_optim.runtime.learner import Learner
from mend_optim.runtime.long_wait import finishing, merging
from mend_optim.settings import Settings
from mend_optim.worker.anchors import Anchors
from mend_optim.worker.checkpoint import (
    Checkpoint,
    Kept,
    anchor_tensors,
    anchored,
    is_of,
    kept_correction,
    seal_residual,
)
from mend_optim.worker.correction import Correction, Reading

log = logging.getLogger("mend_optim")
FRESH = "nothing is merged yet: this learner's own weights stand for the anchor"
FRESH_PART = (
    "nothing of the fragments {} is merged yet: this learner's own weights stand for their anchors"
)
JUMPED = (
    "weights were replaced after step {}, and the jump counts as progress: call reset_progress() "
    "after you load weights in mid-run, unless all learners load the same"
)
REPLACED = (
    "weights were replaced after step {}, and finish() puts the merged model in their place: load "
    "weights after finish(), on every learner"
)
LEFT_OUT = "ends, and {} of its tokens are in no anchor: {}"
GIVEN_UP = (
    "others' weights took the place of this learner's, whose optimizer has state of earlier "
    "training: load trained weights on all learners before they start"
)
MISSED = (
    "moments.states: no parameter has a state {name!r} of its own shape, and none is averaged; "
    "there is: {there}"
)


class Handover:
    """Carries tensors between the training thread and the learner: parameters, buffers of modules
    and moments out, corrections back. Only the training thread calls it.

    Args:
        learner: the engine, worker and network side of this learner.
        tensors: the model's parameters, moments and buffers.
        settings: this learner's settings.
    """

    def __init__(self, learner: Learner, tensors: ModelTensors, settings: Settings) -> None:
        self._learner = learner
        self._tensors = tensors
        self._settings = settings
        self._patience_s = settings.policies.timing.round_timeout_s
        self._synchronous = settings.schedule.adopt_after == 0
        # The moments that the user named and that have not been reported as missing.
        periods = settings.policies.periods
        self._named = {moment.name for moment in periods.states} if periods else set[str]()
        # Whether the user was told that an anchor is not trained yet.
        self._told_fresh = False
        # Whether weights were replaced after the last step, before the end.
        self._replaced = False

    @property
    def _layout(self) -> Layout:
        return self._tensors.layout

    @in_plain_mode
    def begin(self, saved: Checkpoint | None, untrained: bool = False) -> bool:
        """Before the first inner step, show the learner's weights, or where its checkpoint stood,
        and join. `untrained`: the inner optimizer's state tells of no training.

        Returns whether the cluster's weights have replaced the learner's."""
        is_known = saved is not None and saved.step > 0
        was_trained = not (is_known or untrained) and self._tensors.have_stepped()
        if saved and saved.fragments:
            replaced = self._learner.begin(*self._restore(saved))
        else:
            weights = self._copies()
            resumed = None
            if saved and saved.step:
                intact = self._tensors.belong_to(saved.weights)
                resumed = Resumed(saved.totals, (), saved.head_start, intact, saved.period)
            anchors = self._anchors(weights)
            anchors.were_trained = was_trained
            replaced = self._learner.begin(anchors, resumed, ())
        note_joined()
        if replaced and was_trained:
            self._learner.tell(Event("replaced", GIVEN_UP))
        elif replaced and not is_known:
            new_weights.renew_state(self._learner)
        self.run()
        return replaced

    def _no_anchors(self) -> Anchors:
        """Anchors into which others are to be loaded."""
        return self._anchors(list(map(self._tensors.memory, self._layout.fragments)))

    def _anchors(self, weights: list[Tensor]) -> Anchors:
        settings = self._settings
        anchors = Anchors(
            self._layout,
            weights,
            codec=settings.codec,
            outer=settings.outer,
            scheme=settings.merge,
            buffers=self._tensors.pool,
            moments=settings.policies.moments,
            guard=settings.guard,
        )
        anchors.bring = _bringing_to(self._tensors)
        return anchors

    def _restore(self, saved: Checkpoint) -> tuple[Anchors, Resumed, list[Correction]]:
        author = _other_author(saved, self._settings)
        intact = not author and self._tensors.belong_to(saved.weights)
        kept = saved.fragments if intact else tuple(map(anchored, saved.fragments))
        anchors = self._no_anchors()
        corrections = []
        pairs = zip(saved.fragments, kept, strict=True)
        for place, (former, fragment) in zip(self._layout.fragments, pairs, strict=True):
            given_up = None if intact else seal_residual(former)
            anchors.load(place.index, fragment.tensors, given_up)
            if "rounding" in fragment.tensors:
                with self._tensors.watch.moving():
                    self._tensors.load_rounded_off(place.index, fragment.tensors["rounding"])
            if "correction" in fragment.tensors:
                memory = self._tensors.memory(place)
                corrections.append(kept_correction(place, fragment, memory))
        standings = [fragment.standing for fragment in kept]
        resumed = Resumed(saved.totals, standings, saved.head_start, intact, saved.period, author)
        return anchors, resumed, corrections

    @in_plain_mode
    def keep(self) -> tuple[Kept, ...]:
        """Every fragment as a checkpoint keeps it. Waits for the worker's present job, never for
        the network."""
        kept = self._learner.keep()
        lost = [self._tensors.rounded_off(p) for p in range(len(kept))]
        return tuple(map(_with_rounding, kept, lost))

    @in_plain_mode
    def run(self, check: Callable[[], None] = lambda: None) -> None:
        """Apply the corrections that are ready and copy the fragments that are due; under
        `adopt_after`, wait for an anchor that is due now.

        `check` is called before anything is applied or copied, and may raise."""
        deadline = time.monotonic() + self._patience_s
        while True:
            with Uninterrupted():
                todo = self._learner.take(check)
                if todo.corrections:
                    with self._tensors.watch.moving():
                        for correction in todo.corrections:
                            self._tensors.apply(correction, self._learner.step_count())
                if todo.fragments_to_copy:
                    try:
                        check()
                        self._offer(todo.fragments_to_copy, todo.founding)
                    except BaseException:
                        # A fragment that stayed reserved would never be offered again.
                        self._learner.release(todo.fragments_to_copy)
                        raise
            if not todo.wait and not (todo.fragments_to_copy and self._synchronous):
                return
            if not self._learner.wait_for_correction(deadline - time.monotonic()):
                self._learner.give_up()
                return

    def before_step(self, check: Callable[[], None]) -> None:
        """Tell the user if the weights were replaced since the last step.

        Under `adopt_after=0`, apply an anchor that came while nobody waited for it, after a rest or
        a restart: it may replace the weights, and would drop the coming step."""
        if self._tensors.watch.replaced():
            self._learner.tell(Event("jumped", JUMPED.format(self._learner.step_count())))
        while self._synchronous and self._learner.steps_on():
            self.run(check)

    def after_step(self, check: Callable[[], None]) -> None:
        """An inner step was taken and counted."""
        self._replaced = False
        self._tensors.watch.stepped()
        self.run(check)

    def settle(self, timeout_s: float, check: Callable[[], None]) -> bool:
        """Rest, copying what is due, until everything this learner trained is merged and nobody has
        a greater anchor. False if that takes too long."""
        learner = self._learner
        deadline = time.monotonic() + timeout_s
        learner.rest()
        with learner.network.long_wait("synchronize() still waits", merging) as long_wait:
            while True:
                self.run(check)
                long_wait.tell()
                left = deadline - time.monotonic()
                if learner.is_settled():
                    return True
                if left <= 0 or learner.closed:
                    return False
                learner.wait_for_news(min(left, self._settings.policies.timing.beat_s))

    def finish(self, timeout_s: float, check: Callable[[], None]) -> Ended | None:
        """Rest until all live learners have finished, then put the anchors into the parameters, but
        not in place of work that nobody is left to merge. None if that takes too long."""
        learner = self._learner
        deadline = time.monotonic() + timeout_s
        self._replaced |= self._tensors.watch.replaced_at_end()
        learner.rest(finishing=True)
        with learner.network.wait_bar("finish() waits", finishing) as bar:
            while True:
                self.run(check)
                bar.draw()
                ended = learner.end()
                left = deadline - time.monotonic()
                if ended or left <= 0 or learner.closed:
                    break
                learner.wait_for_end(min(left, self._settings.policies.timing.beat_s))
        if ended and not ended.keeps_own:
            # All that agree hold the first weights, too, if nobody has trained them.
            has_put = self._take_anchors(for_good=True, fresh=ended.agreed and not ended.alone)
            if has_put and self._replaced:
                learner.tell(Event("jumped", REPLACED.format(learner.step_count())))
        if ended and not ended.alone:
            self._tell_unmerged(ended)
        return ended

    def _tell_unmerged(self, ended: Ended) -> None:
        """Tell of work that the common end leaves out. A `with` block has nobody who would look at
        what `finish()` returns."""
        if tokens := ended.unmerged_tokens:
            text = LEFT_OUT.format(tokens, why_unmerged(ended))
            self._learner.tell(Event("unfinished", text, {"unmerged_tokens": tokens}))

    @in_plain_mode
    def begin_anew(self, check: Callable[[], None]) -> None:
        """The user has put other weights in the place of this learner's: they are the start of the
        next offer. Waits for the worker's jobs, never for the network."""
        check()
        if not new_weights.await_copies(self._learner, len(self._layout.fragments)):
            return
        self._tensors.forget_rounded_off()
        for correction in new_weights.begin_anew(self._learner, self._copies()):
            self._tensors.apply_moments(correction, self._learner.step_count())
        self._tensors.watch.restarted()

    @in_plain_mode
    def roll_back(self, saved: Checkpoint, check: Callable[[], None]) -> bool:
        """Go back to a checkpoint's anchors, which replace the weights of all learners. Waits for
        the worker's jobs, never for the network. False if the learner was closed meanwhile, or has
        refused them."""
        check()
        taken = self._learner.roll_back(_earlier_anchors(self._no_anchors(), saved.fragments))
        self.run(check)
        return taken

    def _take_anchors(self, *, for_good: bool, fresh: bool = False) -> bool:
        """Write the anchors into the parameters, except first weights that nobody has trained,
        unless `fresh`. Returns whether there were any."""
        left_out = set() if fresh else self._learner.fresh_fragments()
        pairs = zip(self._layout.fragments, self._learner.anchors(), strict=True)
        for fragment, anchor in pairs:
            if fragment.index not in left_out:
                self._tensors.put(fragment.index, anchor, for_good=for_good)
        is_all = len(left_out) == len(self._layout.fragments)
        if left_out and not self._told_fresh:
            self._told_fresh = True
            text = FRESH if is_all else FRESH_PART.format(sorted(left_out))
            log.warning("%s: %s", self._settings.name, text)
        return not is_all

    def extend(
        self, layout: Layout, parameters: Sequence[Tensor], at: tuple[int, int, float]
    ) -> None:
        """Take over a layout whose last fragment is an added group, trained from the totals
        (step, tokens, rate) `at`."""
        self._tensors.extend(layout, parameters)
        copy = self._tensors.copy(layout.fragments[-1].index)
        self._learner.extend(layout, copy, self._tensors.ready(), at)

    @contextmanager
    def swapped(self, own: Sequence[Tensor]) -> Iterator[None]:
        """Put the anchors into the parameters, and `own` back afterwards, also on an exception. So
        it does with buffers."""
        with self._tensors.keeping(own):
            self.show_anchors()
            yield

    def show_anchors(self) -> None:
        """Put the anchors into the parameters for a while. The caller puts its own back."""
        self._take_anchors(for_good=False)

    def _copies(self) -> list[Tensor]:
        """Copies of all fragments, which are complete."""
        copies = [self._tensors.copy(p) for p in range(len(self._layout.fragments))]
        self._tensors.ready()()
        return copies

    def _offer(self, fragments_to_copy: Mapping[int, Sequence[str]], founding: bool) -> None:
        tensors = self._tensors
        if founding:
            copies = tuple(map(tensors.copy, fragments_to_copy))
            moments = tuple(self._read(p, names) for p, names in fragments_to_copy.items())
            self._learner.submit_all(copies, moments, tensors.ready())
            return
        for p, names in fragments_to_copy.items():
            self._learner.submit(p, tensors.copy(p), self._read(p, names), tensors.ready())

    def _read(self, p: int, names: Sequence[str]) -> dict[str, Reading]:
        """The moments of these names, copied out of the inner optimizer's state."""
        if not names:
            return {}
        readings = self._tensors.read(p, names, self._learner.step_count())
        for name, reading in readings.items():
            if not any(reading.updates):
                self.report_missing(p, name)
        return readings

    def report_missing(self, p: int, name: str) -> None:
        """Report once, if the user gave the name, that no parameter of fragment `p` has this moment
        but other state: the name may be misspelt."""
        there = self._tensors.state_names(p, self._learner.step_count())
        if there and name in self._named:
            self._named.discard(name)
            self._learner.tell(Event("unknown", MISSED.format(name=name, there=", ".join(there))))


def _bringing_to(tensors: ModelTensors) -> Callable[[Correction], Correction]:
    """Brings corrections to where these tensors are. The worker does not keep them alive: a model
    whose user has dropped it is freed, and its learner leaves."""
    found = weakref.ref(tensors)

    def bring(correction: Correction) -> Correction:
        there = found()
        return there.bring(correction) if there else correction

    return bring


def _with_rounding(fragment: Kept, rounding: Tensor | None) -> Kept:
    """A fragment as a checkpoint keeps it, with what its parameters' dtypes have rounded away."""
    if rounding is None:
        return fragment
    return replace(fragment, tensors={**fragment.tensors, "rounding": rounding})


def _other_author(saved: Checkpoint, settings: Settings) -> str:
    """The learner that alone may offer the unmerged work of a checkpoint, if that is another one.
    Where offers are signed, only the learner that trained it may."""
    foreign = [kept for kept in saved.fragments if not is_of(settings.name, kept)]
    if not settings.policies.signed or not foreign:
        return ""
    return foreign[0].standing.claim.author.name


def _earlier_anchors(anchors: Anchors, saved: Sequence[Kept]) -> list[EarlierAnchor]:
    """The anchors of a checkpoint, as a peer would send them. They are loaded into `anchors`."""
    earlier = []
    for p, kept in enumerate(saved):
        anchors.load(p, anchor_tensors(kept))
        lineage = kept.standing.lineage
        done, _ = anchors.perform(Export(p, lineage))
        earlier.append(EarlierAnchor(lineage=lineage, content=done.digest, sections=done.sections))
    return earlier
