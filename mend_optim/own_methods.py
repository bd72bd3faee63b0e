"""Methods that only the inner optimizer has, as a script calls them at the wrapper.

Some of them take a step: SAM's `second_step()` puts the weights back and lets its base optimizer
step. Such a step counts as one that the script took itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from inspect import ismethod
from types import MethodType
from typing import Any

from torch.optim import Optimizer

from mend_optim.model.moment_state import has_trained
from mend_optim.training_run import Begun, TrainingRun


def heeded(run: TrainingRun, attribute: Any) -> Any:
    """An attribute of the inner optimizer: a method of its own is heeded while it is called."""
    is_own = ismethod(attribute) and attribute.__self__ is run.inner
    if not is_own or attribute.__name__.startswith("_"):
        return attribute
    return MethodType(_heeding(attribute.__func__, run), run.inner)


def _heeding(function: Callable[..., Any], run: TrainingRun) -> Callable[..., Any]:
    @wraps(function)
    def call(inner: Optimizer, *args: Any, **kwargs: Any) -> Any:
        heed = _Heed(run)
        result = heed.call(function, *args, **kwargs)
        if heed.begun is not None:
            with run.at_work:
                run.end_step(heed.begun)
        else:
            moved = run.versions() != heed.versions
            run.history.begins_untrained |= heed.was_fresh and moved
            run.passed(function.__name__, moved)
        return result

    return call


class _Heed:
    """One call of a method."""

    def __init__(self, run: TrainingRun) -> None:
        self._run = run
        #: The step that was taken in the call; None so far.
        self.begun: Begun | None = None
        #: Those of some weights, before the call.
        self.versions = run.versions()
        has_begun = run.learner is None or run.handover is not None
        #: Before the learner joins: whether nothing was trained before the call.
        self.was_fresh = not has_begun and not has_trained(run.inner, run.model.merged)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        inner = self._run.inner
        within = [each for each in vars(inner).values() if isinstance(each, Optimizer)]
        handles = [each.register_step_pre_hook(self._before) for each in (inner, *within)]
        try:
            with self._run.at_work if self._run.learner else nullcontext():
                return function(inner, *args, **kwargs)
        finally:
            for handle in handles:
                handle.remove()

    def _before(self, *_: Any) -> None:
        """The inner optimizer, or one inside it, is about to step: by now the weights are those
        that it moves, and no longer those that SAM has perturbed. All steps in one call are one."""
        if self.begun is None:
            self.begun = self._run.begin_step()
