"""The training thread's part of a round: it copies parameters out, adds corrections to them, and
waits where the user asked it to."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor
from torch.optim import Optimizer

from mend_optim.codecs.buffers import Buffers
from mend_optim.engine.effects import Export
from mend_optim.engine.ending import Ended
from mend_optim.engine.joining import Resumed
from mend_optim.engine.ledger import Event
from mend_optim.engine.rollback import EarlierAnchor
from mend_optim.model.copies import belong_to, copied, gather, narrow, scatter
from mend_optim.model.layout import BufferFragment, Fragment, Layout
from mend_optim.model.module_buffers import ModuleBuffers, gather_buffers, move_buffers
from mend_optim.model.moment_state import (
    FragmentState,
    clip_first_moment,
    correct,
    install,
    read,
)
from mend_optim.model.plain_mode import in_plain_mode
from mend_optim.model.ruined_state import reset_moments
from mend_optim.model.weights_watch import WeightsWatch
from mend_optim.runtime import new_weights
from mend_optim.runtime.interrupts import Uninterrupted
from mend_optim.runtime.learner import Learner
from mend_optim.settings import Settings
from mend_optim.worker.anchors import Anchors
from mend_optim.worker.checkpoint import (
    Checkpoint,
    Kept,
    anchor_tensors,
    anchored,
    is_of,
    kept_correction,
)
from mend_optim.worker.correction import BufferCorrection, Correction, Reading

log = logging.getLogger("mend_optim")
FRESH = "nothing is merged yet: this learner's own weights stand for the anchor"
JUMPED = (
    "weights were replaced after step {}, and the jump counts as progress: call reset_progress() "
    "after you load weights in mid-run, unless all learners load the same"
)
FOREIGN = (
    "%s: the checkpoint is of the learner %r, which alone may offer its work where offers are "
    "signed: the anchors are taken, and what none of them has is dropped"
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
        layout: which parameters belong to which fragment.
        parameters: the model's parameters, in the layout's order.
        inner: the inner optimizer, whose state holds the moments.
        settings: this learner's settings.
        module_buffers: the layout's buffers.
    """

    def __init__(
        self,
        learner: Learner,
        layout: Layout,
        parameters: Sequence[Tensor],
        inner: Optimizer,
        settings: Settings,
        *,
        module_buffers: ModuleBuffers | None = None,
    ) -> None:
        self._module_buffers = module_buffers or ModuleBuffers(())
        self._learner = learner
        self._layout = layout
        self._parameters = parameters
        self._inner = inner
        self._settings = settings
        self._patience_s = settings.policies.timing.round_timeout_s
        self._synchronous = settings.schedule.adopt_after == 0
        self._moments = {moment.name: moment for moment in settings.policies.moments}
        self._device = next((p.device for p in parameters if p.is_cuda), None)
        self._buffers = Buffers(pin=self._device is not None)
        # Per fragment, what its parameters' dtypes have rounded away; None where they are float32.
        rounds = any(map(narrow, parameters))
        self._rounding = [
            self._memory(f).zero_() if rounds and not isinstance(f, BufferFragment) else None
            for f in layout.fragments
        ]
        # The moments that the user named and that have not been reported as missing.
        periods = settings.policies.periods
        self._named = {moment.name for moment in periods.states} if periods else set[str]()
        # Whether the user was told that an anchor is not trained yet.
        self._told_fresh = False
        # Corrections whose copies to the GPU may not be done, each with the event that tells.
        self._in_flight: list[tuple[torch.cuda.Event, Correction]] = []
        self._watch = WeightsWatch(parameters)

    @in_plain_mode
    def begin(self, saved: Checkpoint | None) -> bool:
        """Before the first inner step, show the learner's weights, or where its checkpoint stood,
        and join.

        Returns whether the cluster's weights have replaced the learner's."""
        if saved and saved.fragments:
            replaced = self._learner.begin(*self._restore(saved))
        else:
            weights = [self._copy(p) for p in range(len(self._layout.fragments))]
            copied(self._device)()
            resumed = None
            if saved and saved.step:
                intact = belong_to(saved.weights, self._layout, self._parameters)
                resumed = Resumed(saved.totals, (), saved.head_start, intact, saved.period)
            anchors = _anchors(self._settings, self._layout, weights, self._buffers)
            replaced = self._learner.begin(anchors, resumed, ())
        self.run()
        return replaced

    def _no_anchors(self) -> Anchors:
        """Anchors into which others are to be loaded."""
        memory = list(map(self._memory, self._layout.fragments))
        return _anchors(self._settings, self._layout, memory, self._buffers)

    def _restore(self, saved: Checkpoint) -> tuple[Anchors, Resumed, list[Correction]]:
        intact = belong_to(saved.weights, self._layout, self._parameters)
        intact = intact and _may_offer(self._settings, saved)
        kept = saved.fragments if intact else tuple(map(anchored, saved.fragments))
        anchors = self._no_anchors()
        corrections = []
        for place, fragment in zip(self._layout.fragments, kept, strict=True):
            anchors.load(place.index, fragment.tensors)
            rounding = self._rounding[place.index]
            if rounding is not None and "rounding" in fragment.tensors:
                rounding.copy_(fragment.tensors["rounding"])
            if "correction" in fragment.tensors:
                corrections.append(kept_correction(place, fragment, self._memory(place)))
        standings = [fragment.standing for fragment in kept]
        resumed = Resumed(saved.totals, standings, saved.head_start, intact, saved.period)
        return anchors, resumed, corrections

    @in_plain_mode
    def keep(self) -> tuple[Kept, ...]:
        """Every fragment as a checkpoint keeps it. Waits for the worker's present job, never for
        the network."""
        return tuple(map(_with_rounding, self._learner.keep(), self._rounding))

    @in_plain_mode
    def run(self, check: Callable[[], None] = lambda: None) -> None:
        """Apply the corrections that are ready and copy the fragments that are due; under
        `adopt_after`, wait for an anchor that is due now.

        `check` is called before anything is copied, and may raise."""
        deadline = time.monotonic() + self._patience_s
        while True:
            with Uninterrupted():
                todo = self._learner.take()
                if todo.corrections:
                    with self._watch.moving():
                        for correction in todo.corrections:
                            self._apply(correction)
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
        if self._watch.replaced():
            self._learner.tell(Event("jumped", JUMPED.format(self._learner.step_count())))
        while self._synchronous and self._learner.steps_on():
            self.run(check)

    def after_step(self, check: Callable[[], None]) -> None:
        """An inner step was taken and counted."""
        self._watch.stepped()
        self.run(check)

    def settle(self, timeout_s: float, check: Callable[[], None]) -> bool:
        """Rest, copying what is due, until everything this learner trained is merged and nobody has
        a greater anchor. False if that takes too long."""
        learner = self._learner
        deadline = time.monotonic() + timeout_s
        learner.rest()
        while True:
            self.run(check)
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
        learner.rest(finishing=True)
        while True:
            self.run(check)
            ended = learner.end()
            left = deadline - time.monotonic()
            if ended or left <= 0 or learner.closed:
                break
            learner.wait_for_end(min(left, self._settings.policies.timing.beat_s))
        if ended and not ended.keeps_own:
            self._take_anchors(self._rounding)
        return ended

    @in_plain_mode
    def begin_anew(self, check: Callable[[], None]) -> None:
        """The user has put other weights in the place of this learner's: they are the start of the
        next offer. Waits for the worker's jobs, never for the network."""
        check()
        if not new_weights.await_copies(self._learner, len(self._layout.fragments)):
            return
        for lost in [rounding for rounding in self._rounding if rounding is not None]:
            lost.zero_()
        copies = [self._copy(fragment.index) for fragment in self._layout.fragments]
        copied(self._device)()
        for correction in new_weights.begin_anew(self._learner, copies):
            self._apply_moments(correction)
        self._watch.restarted()

    @in_plain_mode
    def roll_back(self, saved: Checkpoint, check: Callable[[], None]) -> bool:
        """Go back to a checkpoint's anchors, which replace the weights of all learners. Waits for
        the worker's jobs, never for the network. False if the learner was closed meanwhile, or has
        refused them."""
        check()
        taken = self._learner.roll_back(_earlier_anchors(self._no_anchors(), saved.fragments))
        self.run(check)
        return taken

    def _take_anchors(self, rounding: Sequence[Tensor | None]) -> None:
        """Write the anchors into the parameters, except first weights that nobody has trained."""
        fresh = self._learner.fresh_fragments()
        pairs = zip(self._layout.fragments, self._learner.anchors(), rounding, strict=True)
        for fragment, anchor, lost in pairs:
            if fragment.index in fresh:
                continue
            if isinstance(fragment, BufferFragment):
                move_buffers(fragment, self._present_buffers(), anchor, None)
            else:
                scatter(fragment, anchor, self._parameters, replace=True, rounding=lost)
        if fresh and not self._told_fresh:
            self._told_fresh = True
            log.warning("%s: %s", self._settings.name, FRESH)

    def extend(
        self, layout: Layout, parameters: Sequence[Tensor], at: tuple[int, int, float]
    ) -> None:
        """Take over a layout whose last fragment is an added group, trained from the totals
        (step, tokens, rate) `at`."""
        self._layout = layout
        self._parameters = parameters
        fragment = layout.fragments[-1]
        rounds = any(narrow(parameters[i]) for i in fragment.tensors)
        self._rounding.append(self._buffers.take(fragment.numel).zero_() if rounds else None)
        self._learner.extend(layout, self._copy(fragment.index), copied(self._device), at)

    @contextmanager
    def swapped(self, own: Sequence[Tensor]) -> Iterator[None]:
        """Put the anchors into the parameters, and `own` back afterwards, also on an exception. So
        it does with buffers."""
        own_buffers = [tensor.detach().clone() for tensor in self._present_buffers()]
        try:
            self._take_anchors([None] * len(self._rounding))
            yield
        finally:
            with Uninterrupted(), torch.no_grad():
                for parameter, value in zip(self._parameters, own, strict=True):
                    parameter.copy_(value)
                for tensor, value in zip(self._present_buffers(), own_buffers, strict=True):
                    tensor.copy_(value)

    def _present_buffers(self) -> list[Tensor]:
        """The layout's buffers. Raises `UsageError` if they are others than they were."""
        tensors = self._module_buffers.tensors()
        self._layout.check_buffers(tensors)
        return tensors

    def _memory(self, fragment: Fragment) -> Tensor:
        """Host memory for a flat copy of the fragment."""
        memory = self._buffers.take(fragment.numel)
        return memory.view(torch.uint8) if isinstance(fragment, BufferFragment) else memory

    def _copy(self, p: int) -> Tensor:
        fragment = self._layout.fragments[p]
        buffer = self._memory(fragment)
        if isinstance(fragment, BufferFragment):
            gather_buffers(fragment, self._present_buffers(), buffer, self._device)
        else:
            gather(fragment, self._parameters, buffer, self._rounding[p])
        return buffer

    def _offer(self, fragments_to_copy: Mapping[int, Sequence[str]], founding: bool) -> None:
        if founding:
            copies = tuple(map(self._copy, fragments_to_copy))
            moments = tuple(self._read(p, names) for p, names in fragments_to_copy.items())
            self._learner.submit_all(copies, moments, copied(self._device))
            return
        for p, names in fragments_to_copy.items():
            self._learner.submit(p, self._copy(p), self._read(p, names), copied(self._device))

    def _read(self, p: int, names: Sequence[str]) -> dict[str, Reading]:
        """The moments of these names, copied out of the inner optimizer's state."""
        readings: dict[str, Reading] = {}
        fragment_state = self._state(p)
        for name in names:
            out = self._buffers.take(fragment_state.fragment.numel)
            updates = read(self._moments[name], fragment_state, out)
            readings[name] = Reading(out, updates)
            if not any(updates):
                self._report_missing(p, name)
        return readings

    def _state(self, p: int) -> FragmentState:
        steps = self._learner.step_count()
        return FragmentState(self._layout.fragments[p], self._parameters, self._inner, steps)

    def _report_missing(self, p: int, name: str) -> None:
        """Report once, if the user gave the name, that no parameter of fragment `p` has this moment
        but other state: the name may be misspelt."""
        there = self._state(p).names()
        if there and name in self._named:
            self._named.discard(name)
            self._learner.tell(Event("unknown", MISSED.format(name=name, there=", ".join(there))))

    def _apply(self, correction: Correction) -> None:
        """Add a correction to parameters and moments (law 10), or let the buffers follow one."""
        fragment = self._layout.fragments[correction.fragment]
        if isinstance(fragment, BufferFragment):
            assert isinstance(correction, BufferCorrection)
            tensors = self._present_buffers()
            move_buffers(fragment, tensors, correction.values, correction.base)
        else:
            rounding = self._rounding[correction.fragment]
            scatter(fragment, correction.values, self._parameters, correction.replace, rounding)
            if correction.resets:
                reset_moments(self._state(correction.fragment))
            self._apply_moments(correction)
        if self._device is not None:
            _hold(self._in_flight, correction, self._device)

    def _apply_moments(self, correction: Correction) -> None:
        known = [m for m in correction.moments if m.moment in self._moments]
        if not known:
            return
        fragment_state = self._state(correction.fragment)
        for m in known:
            if not m.newcomer:
                correct(self._moments[m.moment], fragment_state, m.values, m.updates)
        clip_first_moment(fragment_state)
        values = {m.moment: m.values for m in known if m.newcomer}
        if values:
            updates = {m.moment: m.updates for m in known if m.newcomer}
            install(tuple(self._moments.values()), fragment_state, values, updates)


def _with_rounding(fragment: Kept, rounding: Tensor | None) -> Kept:
    """A fragment as a checkpoint keeps it, with what its parameters' dtypes have rounded away."""
    if rounding is None:
        return fragment
    return replace(fragment, tensors={**fragment.tensors, "rounding": rounding.clone()})


def _may_offer(settings: Settings, saved: Checkpoint) -> bool:
    """Whether a learner may offer the unmerged work of a checkpoint. Where offers are signed, only
    the learner that trained it may."""
    foreign = [kept for kept in saved.fragments if not is_of(settings.name, kept)]
    if not settings.policies.signed or not foreign:
        return True
    log.warning(FOREIGN, settings.name, foreign[0].standing.claim.author.name)
    return False


def _anchors(
    settings: Settings, layout: Layout, weights: list[Tensor], buffers: Buffers
) -> Anchors:
    return Anchors(
        layout,
        weights,
        codec=settings.codec,
        outer=settings.outer,
        scheme=settings.merge,
        buffers=buffers,
        moments=settings.policies.moments,
        guard=settings.guard,
    )


def _earlier_anchors(anchors: Anchors, saved: Sequence[Kept]) -> list[EarlierAnchor]:
    """The anchors of a checkpoint, as a peer would send them. They are loaded into `anchors`."""
    earlier = []
    for p, kept in enumerate(saved):
        anchors.load(p, anchor_tensors(kept))
        lineage = kept.standing.lineage
        done, _ = anchors.perform(Export(p, lineage))
        earlier.append(EarlierAnchor(lineage=lineage, content=done.digest, sections=done.sections))
    return earlier


def _hold(
    in_flight: list[tuple[torch.cuda.Event, Correction]],
    correction: Correction,
    device: torch.device,
) -> None:
    """Hold the correction: its buffer returns to its pool when nothing refers to it. That must not
    be before the asynchronous copy to the GPU is done."""
    in_flight[:] = [entry for entry in in_flight if not _is_done(entry[0])]
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    in_flight.append((event, correction))


def _is_done(event: torch.cuda.Event) -> bool:
    return bool(event.query())  # type: ignore[no-untyped-call]
