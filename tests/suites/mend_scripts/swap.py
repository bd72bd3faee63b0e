"""The line that is swapped."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from mend_optim import MendOptimizer


class Swap:
    """Wraps the optimizer of a script, or leaves it as it is.

    Args:
        arguments: of `MendOptimizer`; None leaves optimizers bare.
    """

    def __init__(self, arguments: dict[str, Any] | None) -> None:
        self._arguments = arguments

    def __call__(self, inner: Optimizer) -> Optimizer:
        """For scripts that construct the optimizer."""
        return inner if self._arguments is None else MendOptimizer(inner, **self._arguments)

    def of(self, kind: type[Optimizer]) -> type[Optimizer]:
        """For scripts that hand a class to their library."""
        return kind if self._arguments is None else MendOptimizer.of(kind, **self._arguments)
