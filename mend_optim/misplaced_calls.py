"""Calls of a script that come where they cannot be heeded."""

from __future__ import annotations

import torch

from mend_optim.errors import UsageError
from mend_optim.runtime.learner import Learner

SWAPPED = "{call}() must not be called inside global_weights(): leave the block first"
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


def refuse_misplaced(call: str, is_swapped: bool) -> None:
    """Raise `UsageError` while a CUDA graph is captured, and inside `global_weights()`."""
    faults = {SWAPPED: is_swapped, CAPTURED: is_capturing()}
    if text := next((text for text, holds in faults.items() if holds), ""):
        raise UsageError(text.format(call=call))


class StepAtWork:
    """A context in which the inner optimizer takes a step, and calls hooks and closures. Of methods
    that take a step, one may call another."""

    def __init__(self) -> None:
        self._depth = 0

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1

    def refuse(self, call: str) -> None:
        """Raise `UsageError` inside the context."""
        if self._depth:
            raise UsageError(WITHIN_STEP.format(call=call))


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured on this thread's stream."""
    is_used = bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
    return is_used and torch.cuda.is_current_stream_capturing()
