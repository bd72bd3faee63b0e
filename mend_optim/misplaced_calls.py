"""Calls of a script that come where they cannot be heeded."""

from __future__ import annotations

import torch

from mend_optim.errors import UsageError
from mend_optim.runtime.learner import Learner
from mend_optim.runtime.this_thread import this_thread

SWAPPED = "{call}() must not be called inside global_weights(): leave the block first"
BESIDE = (
    "{call}() must not be called while another thread is inside global_weights(), which puts the "
    "merged model in the place of the weights that are trained: evaluate in the training loop, or "
    "a copy of the model beside it"
)
BESIDE_STEP = (
    "{call}() must not be called while another thread is inside step(), which trains the same "
    "parameters: call {call}() in the training loop, and let another thread evaluate a copy of the "
    "model"
)
CALLED_BACK = (
    "{call}() must not be called in on_event, which runs on a background thread beside training: "
    "take note there, and call {call}() in the training loop"
)
CAPTURED = (
    "{call}() must not be captured in a CUDA graph, whose replays would not be counted: capture "
    "the forward and the backward pass alone, and call {call}() after each replay"
)
WITHIN_STEP = (
    "{call}() must not be called inside step(), as by a hook or a closure, if there are peers: the "
    "step would be left out of the counts; call {call}() between two steps"
)


def refuse_called_back(learner: Learner | None, call: str) -> None:
    """Raise `UsageError` in `on_event`, beside training."""
    if learner is not None and learner.is_calling_back():
        raise UsageError(CALLED_BACK.format(call=call))


class GlobalWeights:
    """The context of `global_weights()`, in which the anchor may be in the place of a learner's own
    weights."""

    def __init__(self) -> None:
        #: The thread that is inside; 0 if none is.
        self.thread = 0

    def __enter__(self) -> None:
        self.thread = this_thread()

    def __exit__(self, *_: object) -> None:
        self.thread = 0


def refuse_misplaced(call: str, inside: GlobalWeights) -> None:
    """Raise `UsageError` while a CUDA graph is captured, and while a thread is inside."""
    faults = {
        SWAPPED: inside.thread == this_thread(),
        BESIDE: inside.thread not in (0, this_thread()),
        CAPTURED: is_capturing(),
    }
    if text := next((text for text, holds in faults.items() if holds), ""):
        raise UsageError(text.format(call=call))


class StepAtWork:
    """A context in which a step is taken, and hooks and closures are called. Of methods that take a
    step, one may call another."""

    def __init__(self) -> None:
        self._depth = 0
        self._thread = 0

    def __enter__(self) -> None:
        self._depth += 1
        self._thread = this_thread()

    def __exit__(self, *_: object) -> None:
        self._depth -= 1

    def refuse(self, call: str, learner: Learner | None) -> None:
        """Raise `UsageError` inside the context, and in `on_event` beside it."""
        if self._depth:
            refuse_called_back(learner, call)
            raise UsageError(WITHIN_STEP.format(call=call))

    def refuse_beside(self, call: str) -> None:
        """Raise `UsageError` while another thread is inside the context."""
        if self._depth and self._thread != this_thread():
            raise UsageError(BESIDE_STEP.format(call=call))


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured on this thread's stream."""
    is_used = bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
    return is_used and torch.cuda.is_current_stream_capturing()
