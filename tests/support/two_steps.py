"""Optimizers that train in methods of their own, besides `step()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer


def gradient(optimizer: Optimizer, target: float) -> None:
    """Give the optimizer's parameter the gradient of the way from `target`."""
    (parameter,) = optimizer.param_groups[0]["params"]
    parameter.grad = parameter.detach() - target


class SAM(Optimizer):
    """Sharpness-aware minimization (arXiv 2010.01412) in two calls, as scripts use it: to the worst
    weights near by, and back, where the base optimizer steps on the gradient of there."""

    def __init__(self, params: Any, base: type[Optimizer] = SGD, rho: float = 0.5, **kwargs: Any):
        super().__init__(params, {"rho": rho, **kwargs})
        self.base = base(self.param_groups, **kwargs)
        self.param_groups = self.base.param_groups

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def first_step(self) -> None:
        for p in self._parameters():
            self.state[p]["old"] = p.detach().clone()
            p.add_(self.param_groups[0]["rho"] * p.grad.sign())  # type: ignore[union-attr]

    @torch.no_grad()
    def second_step(self) -> None:
        for p in self._parameters():
            p.copy_(self.state[p]["old"])
        self.base.step()

    def step(self, closure: Any = None) -> Any:
        self.first_step()
        with torch.enable_grad():
            loss = closure()
        self.second_step()
        return loss


class Minimizer(SGD):
    """Has a method that takes its own step."""

    def minimize(self, loss: Callable[[], Tensor]) -> Tensor:
        """Descend on a loss."""
        self.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        self.step()
        return value

    def fail(self) -> None:
        raise ArithmeticError("its own fault")


class Mover(SGD):
    """Has methods that move the weights and take no step."""

    @torch.no_grad()
    def move(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(1.0)

    def look(self) -> int:
        return len(self.param_groups)
