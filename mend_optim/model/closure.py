"""The closure that a step may be given, which computes the loss and the gradients anew."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer


def has_closure(closure: Any = None, *_: Any, **__: Any) -> bool:
    """Whether a step with these arguments has a closure."""
    return callable(closure)


def only_loss(inner: Optimizer, closure: Any = None, *_: Any, **__: Any) -> Any:
    """The result of a step that trains nothing, because the cluster's weights have just replaced
    those of its gradients. Scripts want the loss, and Lightning that its closure is called.

    Not even a step with a closure is taken: SAM also needs the gradients from before it. For a
    scheduler that was made on the inner optimizer it is a step all the same: else torch would warn
    that the two were called in the wrong order."""
    inner._opt_called = True  # type: ignore[attr-defined]
    if not callable(closure):
        return None
    with torch.enable_grad():
        loss = closure()
    inner.zero_grad()
    return loss
