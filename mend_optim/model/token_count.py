"""The tokens of the coming step, and the evidence of the gradients about that step.

The user counts tokens before a step. The tokens are dropped together with the gradients they belong
to."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class TokenCount:
    """The calls of `count_tokens` since the last step.

    A step that never comes (a GradScaler met an overflow) must not leave its tokens to the next
    one. Such a step shows when gradients are cleared that no step has used. Then only tokens that
    were counted for the next step stay. Some users count before they clear: their count came after
    an earlier clearing, and no gradient has changed since.

    `stamp` is any value that changes whenever gradients change, until they are cleared. New
    gradients may have the stamp of old ones."""

    def __init__(self) -> None:
        self._counts: list[tuple[int, Hashable]] = []
        self._clears = 0
        #: Whether tokens were counted before the gradients were cleared for them.
        self._early = False
        #: Whether a step has used the present gradients.
        self._used = False
        #: How many of the counts belong to the step that is being taken.
        self._kept = 0

    @property
    def is_counted(self) -> bool:
        """Whether any call counted tokens for the coming step, be it 0."""
        return bool(self._counts)

    def add(self, n: int, stamp: Hashable) -> None:
        """Count `n` tokens for the coming step."""
        self._counts.append((n, (self._clears, stamp)))

    def during(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Take a step. Its closure may clear gradients that it has computed for this very step: the
        tokens that were counted before stay. Tokens that a closure counts each time count once."""
        self._kept = len(self._counts)
        try:
            return step(*args, **kwargs)
        finally:
            self._kept = 0

    def take(self, default: int) -> int:
        """The tokens of the step just taken; `default` if none were counted."""
        counted = sum(n for n, _ in self._counts)
        self._counts = []
        self._early = False
        self._used = True
        return counted or default

    def before_clearing(self, tensors: Callable[[], Sequence[Tensor]]) -> None:
        """The gradients of these tensors are about to be cleared. They are looked at only where it
        matters that there are any."""
        if self._counts and not self._used:
            found = tensors()
            self.cleared(any_gradient(found), stamp(found))
        else:
            self.cleared(False, None)

    def cleared(self, unused: bool, stamp: Hashable) -> None:
        """Gradients are cleared. `unused`: there were some, and no step has used them."""
        if unused and not self._used:
            here: Hashable = (self._clears, stamp)
            later = self._counts[self._kept :]
            early = [(n, at) for n, at in later if self._early and at == here]
            self._counts[self._kept :] = early
        self._clears += 1
        self._early = bool(self._counts)
        self._used = False


def any_gradient(parameters: Sequence[Tensor]) -> bool:
    """Whether any parameter has a gradient that is not zero."""
    return any(p.grad is not None and bool(p.grad.any()) for p in parameters)


def uses_old(parameters: Sequence[Tensor], computes: bool) -> bool:
    """Whether a step may use gradients from before it. `computes`: its closure computes some; with
    none from before, those are all."""
    return not computes or any_gradient(parameters)


def only_makes_state(parameters: Sequence[Tensor]) -> bool:
    """Whether a step with these gradients would only create an optimizer's first state: every
    parameter that is trained has a gradient, and all are zero.

    Without gradients it would create none. Scripts whose optimizers step inside the backward pass
    have used up and cleared the gradients by then: the weights have moved."""
    has_all = all(p.grad is not None for p in parameters if p.requires_grad)
    return has_all and not any_gradient(parameters)


def stamp(parameters: Sequence[Tensor]) -> tuple[tuple[int, int], ...]:
    """A value that changes when gradients are computed, accumulated, scaled or cleared. The first
    four gradients stand for all.

    After clearing, new gradients may lie where the old ones lay, and have their stamp. Those that
    were made in inference mode have no versions."""
    gradients = (p.grad for p in parameters if p.grad is not None)
    return tuple(
        (id(grad), 0 if grad.is_inference() else grad._version) for grad in islice(gradients, 4)
    )


def is_phantom(inner: Optimizer, *args: Any, **kwargs: Any) -> bool:
    """Whether the coming step, with these arguments, can only create the inner optimizer's first
    state.

    torch.distributed.checkpoint takes such a step, with `lr=0` and gradients of zero, with every
    optimizer that has no state yet."""
    # The compiler cannot follow a look at all gradients, and a phantom is not compiled.
    if args or kwargs or torch.compiler.is_compiling():
        return False
    rates = [group.get("lr") for group in inner.param_groups]
    if inner.state or any(rate is None or bool(rate != 0) for rate in rates):
        return False
    return only_makes_state([p for group in inner.param_groups for p in group["params"]])


def was_skipped(inner: Optimizer) -> bool:
    """Whether the inner step has found an overflow and changed nothing. A `GradScaler` leaves that
    to fused optimizers, and tells them by this attribute."""
    found = getattr(inner, "found_inf", None)
    return isinstance(found, Tensor) and bool(found.any())
