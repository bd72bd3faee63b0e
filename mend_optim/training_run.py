"""The run behind a `MendOptimizer`: one model's training, its checkpoint and its learner."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mend_optim.engine.ledger import Event
from mend_optim.engine.seal_checks import LARGER_UNIT, MOST_TOKENS
from mend_optim.errors import UsageError, require
from mend_optim.finish import Finish, Settled, finished, settled
from mend_optim.given_state import learners_part
from mend_optim.handover import Handover
from mend_optim.misplaced_calls import (
    GlobalWeights,
    StepAtWork,
    refuse_called_back,
    refuse_misplaced,
)
from mend_optim.model.closure import has_closure, only_loss
from mend_optim.model.inner_rate import inner_rate
from mend_optim.model.layout import Layout, is_mergeable
from mend_optim.model.token_count import (
    TokenCount,
    any_gradient,
    is_phantom,
    stamp,
    uses_old,
    was_skipped,
)
from mend_optim.model.unseen_moves import UNSEEN, UnseenMoves, versions
from mend_optim.own_tensors import OwnTensors
from mend_optim.ranks.guard import refuse_late_ranks
from mend_optim.run_history import RunHistory
from mend_optim.runtime.interrupts import Uninterrupted
from mend_optim.runtime.learner import Learner
from mend_optim.runtime.one_joiner import OneJoiner
from mend_optim.settings import Settings
from mend_optim.sole_trainer import refuse_added, refuse_second
from mend_optim.status import Status
from mend_optim.worker.checkpoint import Checkpoint, is_past, to_state
from mend_optim.worker.checkpoint_reader import OtherModelError
from mend_optim.wrapped_parameters import Loaded, WrappedParameters

log = logging.getLogger("mend_optim")
IN_CHILD = (
    "saved in a forked process: without the anchors, and without the work that is not merged yet, "
    "which the parent will offer; save in the process that trains"
)
ALONE = (
    "rollback() must be called with peers, got none: load the model's and the optimizer's "
    "checkpoint with load_state_dict() instead"
)
REFUSED = (
    "the checkpoint's anchors were refused, and nothing has changed: the event 'fault' tells why"
)


class Begun(NamedTuple):
    """An inner step that has begun.

    `stale` says that the cluster's weights have just replaced those that the gradients belong to.
    `started` and `inner_at` are times: when the step began, and when the inner optimizer began its
    part. `since_s` are the seconds since the last step; None if this library took time
    meanwhile."""

    stale: bool
    started: float
    since_s: float | None
    inner_at: float


class TrainingRun:
    """One model's training: its steps and counts, the checkpoint that it goes on from, and its
    learner. Only the training thread calls it.

    It has all the state of a `MendOptimizer` that changes. Some libraries hand out objects of their
    own that share the optimizer's attributes, and write to those objects.

    Args:
        settings: the learner's settings. With peers, the learner starts at once, unless some
            parameter has no shape yet: then the first step starts it.
        model: the inner optimizer's tensors, and the buffers that are merged with them.
    """

    #: Whether this process has the learner's part of a checkpoint.
    keeps_learner = True
    #: Whether an exception has left the optimizer's `with` statement.
    is_broken_off = False
    #: Whether `close` was called, perhaps while another thread starts a learner.
    _is_closed = False

    def __init__(self, settings: Settings, model: WrappedParameters) -> None:
        self.inner = model.inner
        self.settings = settings
        self.model = model
        self.history = RunHistory(settings.name, model)
        #: Takes part in rounds; None without peers, and before it has started.
        self.learner: Learner | None = None
        #: Copies parameters out and adds corrections; None before the first step with peers.
        self.handover: Handover | None = None
        self._joiner = OneJoiner()
        self._joined_by: Handover | None = None
        # Whether the frozen parameters have been found to be finite since it joined.
        self._is_checked = False
        self._count = TokenCount()
        self.at_work = StepAtWork()
        self.unseen = UnseenMoves()
        self._port = 0  # of the last learner, if there was one
        self._seconds_in_mend = 0.0
        # When the last step returned; None if this library took time since.
        self._returned_at: float | None = None
        self._inside = GlobalWeights()
        # This learner's own weights, while the anchor is in their place.
        self._own_weights: list[Tensor] | None = None
        self._uncompiled: Callable[..., Any] | None = None
        # Whether the learner is to start at the first step.
        self._starts_late = settings.place is not None and not model.has_shapes
        if settings.place is not None:
            # There is nothing to compile in threads, clocks and copies, if you compile `step()`.
            # A bound method would be a circle, and the run not gone when its last user is.
            self._uncompiled = torch.compiler.disable(TrainingRun._step_with_peers)  # type: ignore[no-untyped-call]
            if not self._starts_late:
                _start_whole(self)

    # ── steps ─────────────────────────────────────────────────────────────────────────────────────

    def take_step(self, *args: Any, **kwargs: Any) -> Any:
        """`MendOptimizer.step`, with the arguments of the inner optimizer's."""
        if is_phantom(self.inner, *args, **kwargs):
            self.unseen.stepped()
            return self.inner.step()
        if self.learner is None and not self._starts_late:
            self.history.check()
            loss = self._count.during(self.inner.step, *args, **kwargs)
            if not was_skipped(self.inner):
                self._count_step()
            return loss
        assert self._uncompiled is not None
        return self._uncompiled(self, *args, **kwargs)

    def _step_with_peers(self, *args: Any, **kwargs: Any) -> Any:
        with self.at_work:
            begun = self.begin_step(has_closure(*args, **kwargs))
            step = partial(only_loss, self.inner) if begun.stale else self.inner.step
            loss = self._count.during(step, *args, **kwargs)
            self.end_step(begun)
        return loss

    def begin_step(self, computes: bool = False) -> Begun:
        """The inner optimizer is about to step, and `end_step` follows. `computes`: see
        `uses_old`."""
        started = time.perf_counter()
        since_s = None if self._returned_at is None else started - self._returned_at
        stale = False
        if self.learner or self._starts_late:
            self.refuse_misplaced("step")
            handover, replaced = self.join_to_train()
            if stale := replaced and uses_old(self.model.merged, computes):
                self.inner.zero_grad()
            handover.before_step(self.model.check)
        else:
            self.history.check()
        return Begun(stale, started, since_s, time.perf_counter())

    def end_step(self, begun: Begun) -> None:
        """The inner optimizer has stepped: the step is counted. With peers, copy what is due and
        add what is ready."""
        ended = time.perf_counter()
        self.unseen.stepped()
        if begun.stale and not any_gradient(self.model.merged):
            self._count.take(0)
        elif not was_skipped(self.inner):
            self._stepped(None if begun.since_s is None else begun.since_s + ended - begun.inner_at)
        self._returned_at = time.perf_counter()
        self._seconds_in_mend += self._returned_at - ended + begun.inner_at - begun.started

    def _stepped(self, seconds: float | None) -> None:
        """Count the inner step that was taken; `seconds` since the one before. With peers, copy
        what is due and add what is ready."""
        with Uninterrupted():  # the learner counts it, too, or neither does
            tokens, rate = self._count_step()
            if self.learner and self.handover and not self.learner.closed:
                self.learner.stepped(tokens, seconds, rate)
        if self.learner and self.learner.closed:
            self.learner.check()
        elif self.learner and self.handover:
            self.handover.after_step(self.model.check)

    def versions(self) -> tuple[int, ...]:
        """With peers, a value that changes when the weights do."""
        return versions(self.model.merged) if self.learner else ()

    def passed(self, method: str, moved: bool) -> None:
        """A method that only the inner optimizer has was called, and no step was taken in it.
        `moved`: whether the weights have changed in it."""
        if self.learner and self.unseen.moved(moved):
            self.learner.tell(Event("unseen", UNSEEN.format(method=method)))

    def _count_step(self) -> tuple[int, float]:
        """Count one inner step. Returns its tokens, and its inner learning rate, or 0 unless the
        outer optimizer needs that."""
        tokens = self._count.take(self.settings.tokens_per_step or 1)
        rate = inner_rate(self.inner.param_groups) if self.settings.outer.counts_rates else 0.0
        self.history.count(tokens, rate, bool(self.learner and self.learner.closed))
        return tokens, rate

    def count_tokens(self, n: int) -> None:
        """Add tokens to the coming step. Raises `UsageError`."""
        require(n <= MOST_TOKENS, "n", n, "at most 2**40", LARGER_UNIT)
        self._count.add(n, stamp(self.model.tensors()))

    def clear_gradients(self, *args: Any, **kwargs: Any) -> None:
        """`MendOptimizer.zero_grad`."""
        self._count.before_clearing(self.model.tensors)
        self.inner.zero_grad(*args, **kwargs)

    # ── the learner ───────────────────────────────────────────────────────────────────────────────

    def _start(self) -> None:
        """Lay out the parameters, and start the learner. Raises `UsageError`."""
        refuse_late_ranks(self.settings.group)
        self.model.lay_out()
        self._connect()

    def _connect(self) -> None:
        # A learner that was left half-made would hold its port as long as the process lives.
        with Uninterrupted():
            self.learner = self.settings.connect(self, _layout_of, self.history.saved, self._port)
            self._starts_late = False
            if self._is_closed and self.learner:
                self.learner.close()

    def ensure_joined(self) -> tuple[Learner, Handover, bool]:
        """Before the first inner step with peers, show this learner's weights and join.

        Returns the learner, its handover, and whether the cluster's weights have just replaced
        this learner's."""
        if self.learner and self.handover and self.handover is self._joined_by:
            return self.learner, self.handover, False
        with self._joiner.of(self.learner):
            learner, self._joined_by, replaced = self._join_once()
        return learner, self._joined_by, replaced

    def _join_once(self) -> tuple[Learner, Handover, bool]:
        if self.learner is None:
            self._start()
        assert self.learner is not None
        if self.handover:
            return self.learner, self.handover, False
        refuse_late_ranks(self.settings.group)
        self.model.check()
        self.handover = self._make_handover(self.learner)
        self._is_checked = False
        replaced = self.handover.begin(self.history.saved, self.history.begins_untrained)
        self.history.begun()
        return self.learner, self.handover, replaced

    def join_to_train(self) -> tuple[Handover, bool]:
        """Join, before the first inner step with peers. Returns the handover, and whether the
        cluster's weights have just replaced this learner's. Raises `UsageError`, and again at the
        next call, for parameters that could never be merged."""
        learner, handover, replaced = self.ensure_joined()
        if not (self._is_checked or learner.closed):
            self.model.check_frozen()  # by now the cluster may have replaced a newcomer's
            self._is_checked = True
        return handover, replaced

    def _make_handover(self, learner: Learner) -> Handover:
        return Handover(learner, _own_tensors(self), self.settings)

    @property
    def takes_part(self) -> bool:
        """Whether it has begun to train with peers, and has not been closed."""
        return self.handover is not None and not (self.learner is None or self.learner.closed)

    def join(self) -> None:
        """`MendOptimizer.join`."""
        self.refuse_misplaced("join")
        if self._starts_late or (self.learner and not self.learner.closed):
            self.join_to_train()

    def settle(self, timeout_s: float | None) -> Settled:
        """`MendOptimizer.synchronize`."""
        if self.learner is None and not self._starts_late:
            return Settled(merged=True)
        learner, handover = self._joined_for("synchronize")
        if timeout_s is None:
            timeout_s = self.settings.policies.timing.round_timeout_s
        in_time = handover.settle(timeout_s, self.model.check)
        if not in_time:
            learner.require_open()
        alone, unmet = learner.is_alone(), learner.network.unmet()
        return settled(self.status(), in_time, alone, unmet, timeout_s)

    def finish(self, timeout_s: float | None) -> Finish:
        """`MendOptimizer.finish`."""
        if self.learner is None and not self._starts_late:
            return Finish(agreed=True, tokens={self.settings.name: self.history.tokens})
        if self.history.end is not None:
            return self.history.end
        learner, handover = self._joined_for("finish")
        ended = handover.finish(math.inf if timeout_s is None else timeout_s, self.model.check)
        if not ended:
            learner.require_open()
        end = finished(self.status(), ended, learner.network.unmet(), timeout_s)
        if ended:
            learner.close()
            self.history.end = end
        return end

    def reset_progress(self) -> None:
        """`MendOptimizer.reset_progress`."""
        self.refuse_misplaced("reset_progress")
        if self.handover and self.takes_part:
            self.handover.begin_anew(self.model.check)

    def roll_back(self, state_dict: Mapping[str, Any]) -> None:
        """`MendOptimizer.rollback`."""
        if self.learner is None and not self._starts_late:
            raise UsageError(ALONE)
        if self.learner:
            self.learner.require_open()
        self.refuse_misplaced("rollback")
        saved = self.model.read_earlier(learners_part(state_dict))
        learner, handover = self._joined_for("rollback")
        if not handover.roll_back(saved, self.model.check):
            learner.require_open()
            raise UsageError(REFUSED)

    def _joined_for(self, call: str) -> tuple[Learner, Handover]:
        if self.learner:
            self.learner.require_open()
        self.refuse_misplaced(call)
        learner, handover, _ = self.ensure_joined()
        self._returned_at = None
        return learner, handover

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """`MendOptimizer.global_weights`."""
        self.refuse_misplaced("global_weights")
        self.at_work.refuse_beside("global_weights")
        handover = self.handover
        with self._inside:
            if handover is None or _has_no_anchors(self):
                yield
                return
            self._own_weights = [tensor.detach().clone() for tensor in self.model.merged]
            try:
                with handover.swapped(self._own_weights):
                    yield
            finally:
                self._own_weights = None

    def refuse_misplaced(self, call: str) -> None:
        """Raise `UsageError` inside `global_weights()`, where the anchor may be in the place of
        this learner's own weights, in `on_event`, beside training, and in a CUDA graph."""
        refuse_called_back(self.learner, call)
        refuse_misplaced(call, self._inside)

    def add_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters to the inner optimizer, as one more fragment. Raises `UsageError` for
        parameters that cannot be merged, if there are peers; then nothing has changed."""
        self.refuse_misplaced("add_param_group")
        model, groups = self.model, self.inner.param_groups
        self.inner.add_param_group(param_group)
        try:
            layout = model.build() if model.laid_out else model.layout_if_any()
            refuse_added(self)
        except UsageError:
            groups.pop()
            raise
        if not any(map(is_mergeable, groups[-1]["params"])):
            return
        if not self.handover:
            self.history.extend(layout)
        if model.laid_out and layout:
            model.lay_out(layout)
            if self.handover:
                self.handover.extend(layout, model.merged, self.history.totals)

    # ── the checkpoint ────────────────────────────────────────────────────────────────────────────

    def saved_state(self) -> dict[str, Any]:
        """The part of `MendOptimizer.state_dict()` that is under "mend"."""
        return to_state(_checkpoint(self), self.model.layout_if_any())

    def read(self, state: object) -> Loaded | None:
        """Read a `saved_state()`. None if it is another model's, and there are no peers or nothing
        was trained.

        Raises:
            UsageError: the state is damaged or, with peers, another model's that was trained.
        """
        self.refuse_misplaced("load_state_dict")
        try:
            return self.model.read(state, regroup=self.handover is None)
        except OtherModelError as error:
            if self.settings.place is not None and not error.is_blank:
                raise
            log.warning("%s: the checkpoint's learner is left out: %s", self.settings.name, error)
            return None

    def resume(self, loaded: Loaded) -> None:
        """Go on from a checkpoint at the next step: as a new incarnation, if this one has begun, or
        if that checkpoint knows a later one."""
        relaid = self.model.follow(loaded)
        self.history.go_on(loaded.saved)
        if self.learner and (self.handover or relaid or is_past(self.learner.me, loaded.saved)):
            former, self.learner, self.handover = self.learner, None, None
            # If it cannot start now, the next step tries again.
            self._starts_late, self._port = not former.closed, former.port
            former.close()
            if self._starts_late:
                self._connect()

    # ── where it stands ───────────────────────────────────────────────────────────────────────────

    def status(self) -> Status:
        """Where this learner stands."""
        # Another thread may ask, while this one starts a new learner in place of the old one.
        return self.history.status(self.settings.name, self.learner, self._seconds_in_mend)

    def close(self) -> None:
        """`MendOptimizer.close`."""
        self._is_closed = True
        self._starts_late = False
        if self.learner:
            self.learner.close()


def _has_no_anchors(run: TrainingRun) -> bool:
    """Whether own weights stand for the anchors."""
    return run.history.has_left_anchors or run.learner is None or run.learner.is_alone()


def leave(run: TrainingRun, *, broken_off: bool) -> None:
    """The end of a `with` block: finish, unless an exception breaks it off, and close."""
    run.is_broken_off = True
    try:
        if run.takes_part and not broken_off:
            run.finish(None)
        run.is_broken_off = broken_off
    finally:
        run.close()


def _checkpoint(run: TrainingRun) -> Checkpoint:
    """All that it takes to go on from here."""
    learner, handover = run.learner, run.handover  # another thread may replace them
    here = run.history.checkpoint(run._own_weights, begun=handover is not None)
    if learner is None or handover is None:
        return here
    return _among_peers(here, learner, handover)


def _among_peers(alone: Checkpoint, learner: Learner, handover: Handover) -> Checkpoint:
    """A checkpoint of what it takes to go on alone, with what it takes to go on among peers."""
    if learner.inherited:
        log.warning(IN_CHILD)
        return replace(alone, head_start=learner.head_start())
    return replace(
        alone,
        head_start=learner.head_start(),
        period=learner.period(),
        history=(*alone.history, str(learner.me)),
        fragments=handover.keep(),
    )


def _start_whole(run: TrainingRun) -> None:
    """Start the learner, or leave none: a notebook keeps the exception of a cell and, with it, the
    run, and the learner would hold its port."""
    try:
        run._start()
    except BaseException:
        if run.learner:
            run.learner.close()
        raise


def _own_tensors(run: TrainingRun) -> OwnTensors:
    refuse_second(run)
    model, moments = run.model, run.settings.policies.moments
    buffers = model.buffers
    return OwnTensors(model.layout(), model.merged, run.inner, moments, module_buffers=buffers)


def _layout_of(run: TrainingRun) -> Layout:
    return run.model.layout()
