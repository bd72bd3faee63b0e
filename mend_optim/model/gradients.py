"""What the gradients tell: whether there are any, whether they have changed, whether a step is one
at all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from torch import Tensor
from torch.optim import Optimizer


def any_gradient(parameters: Sequence[Tensor]) -> bool:
    return any(p.grad is not None and bool(p.grad.any()) for p in parameters)


def stamp(parameters: Sequence[Tensor]) -> tuple[tuple[int, int], ...]:
    """Changes when gradients are computed, accumulated, scaled or cleared; a few tell for all.
    After clearing, new ones may lie where the old ones lay and have their stamp."""
    gradients = (p.grad for p in parameters if p.grad is not None)
    return tuple((id(grad), grad._version) for grad in islice(gradients, 4))


def is_phantom(inner: Optimizer) -> bool:
    """Whether the coming step can do nothing but make the inner optimizer's first state:
    torch.distributed.checkpoint takes such a step, with `lr=0`, of every optimizer that has
    none."""
    groups = inner.param_groups
    if inner.state or any(group.get("lr") is None or bool(group["lr"] != 0) for group in groups):
        return False
    return not any_gradient([p for group in groups for p in group["params"]])
