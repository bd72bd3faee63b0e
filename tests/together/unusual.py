"""Small problems for two learners, and their twins: the same optimizers without the wrapper, merged
by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from mend_optim import MendOptimizer
from tests.support.learners import parameters, same

Make = Callable[[Any], Optimizer]


class Complex(nn.Module):
    """A complex matrix. It maps real vectors to complex ones, which come out as pairs of reals."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.complex(torch.randn(4, 3), torch.randn(4, 3)))

    def forward(self, x: Tensor) -> Tensor:
        return torch.view_as_real(x.to(torch.complex64) @ self.weight).flatten(1)


class Mixed(nn.Module):
    """A bfloat16 layer below a float32 one."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.wide = nn.Linear(4, 6, dtype=torch.bfloat16), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.wide(torch.tanh(self.narrow(x.bfloat16()).float()))


class Tied(nn.Module):
    """One matrix used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.last = nn.Linear(4, 6)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Frozen(nn.Module):
    """A frozen layer below one that trains and one that has a gradient at every second step."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.rare = nn.Linear(4, 5), nn.Linear(5, 6), nn.Linear(5, 6)
        self.first.requires_grad_(False)
        self.uses = 0

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        self.uses += torch.is_grad_enabled()
        return self.last(hidden) + (self.rare(hidden) if self.uses % 2 else 0.0)


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 6))


def matrices() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5, bias=False), nn.Tanh(), nn.Linear(5, 6, bias=False))


def table() -> nn.Module:
    return nn.Embedding(10, 6, sparse=True)


@dataclass
class Problem:
    """One learner's model, its own data, and its bare optimizer. `calls` counts the computations of
    the gradient."""

    model: nn.Module
    inner: Optimizer
    x: Tensor
    y: Tensor
    closure: bool = False
    calls: int = 0

    def loss(self) -> Tensor:
        return F.mse_loss(self.model(self.x), self.y)

    def backward(self) -> Tensor:
        self.calls += 1
        self.inner.zero_grad()
        loss = self.loss()
        loss.backward()
        return loss

    def step(self, optimizer: Optimizer) -> None:
        """One step of the optimizer: the bare one or its wrapper."""
        if self.closure:
            optimizer.step(self.backward)  # type: ignore[arg-type]
        else:
            self.backward()
            optimizer.step()


def problem(
    learner: int, model: Callable[[], nn.Module], make: Make, closure: bool = False
) -> Problem:
    """Learner i's problem. All learners have the same first weights and the same truth; each has
    its own inputs."""
    draws = torch.Generator().manual_seed(7)
    truth, rows = torch.randn(4, 6, generator=draws), torch.randn(10, 6, generator=draws)
    torch.manual_seed(3)
    made = model()
    draws.manual_seed(20 + learner)
    # the learners share some rows; each has others of its own
    if isinstance(made, nn.Embedding):
        index = torch.randint(3 * learner, 3 * learner + 6, (12,), generator=draws)
        x, y = index, rows[index]
    else:
        x = torch.randn(12, 4, generator=draws)
        y = torch.tanh(x @ truth)
    if isinstance(made, Frozen):
        made.uses = learner  # so the learners use it at different steps
    inner = make(made.parameters())
    getattr(inner, "train", lambda: None)()  # schedule-free optimizers need this call
    return Problem(made, inner, x, y, closure)


def joint_loss(problems: Sequence[Problem], weights: Sequence[Tensor]) -> float:
    """The loss of these weights on the data of all learners."""
    model = problems[0].model
    before = [p.detach().clone() for p in model.parameters()]
    with torch.no_grad():
        for parameter, weight in zip(model.parameters(), weights, strict=True):
            parameter.copy_(weight)
        found = [F.mse_loss(model(p.x), p.y).item() for p in problems]
        for parameter, value in zip(model.parameters(), before, strict=True):
            parameter.copy_(value)
    return sum(found) / len(found)


def copies(optimizer: Optimizer) -> list[Tensor]:
    return [p.clone() for p in parameters(optimizer)]


def anchor(optimizer: MendOptimizer) -> list[Tensor]:
    with optimizer.global_weights():
        return copies(optimizer)


def mean(learners: Sequence[Sequence[Tensor]], tokens: Sequence[int]) -> list[Tensor]:
    """Σ tokensᵢ θᵢ / Σ tokens, in double precision, in the parameters' dtype."""

    def one(values: Sequence[Tensor]) -> Tensor:
        wide = torch.complex128 if values[0].is_complex() else torch.float64
        total = sum(n * v.to(wide) for n, v in zip(tokens, values, strict=True))
        return (total / sum(tokens)).to(values[0].dtype)  # type: ignore[union-attr]

    return [one(values) for values in zip(*learners, strict=True)]


def leaves(tree: Any) -> list[Any]:
    """The values in nested dicts, lists and tuples, in order."""
    if isinstance(tree, dict):
        return [leaf for key in tree for leaf in leaves(tree[key])]
    if isinstance(tree, list | tuple):
        return [leaf for value in tree for leaf in leaves(value)]
    return [tree]


def alike(these: Any, those: Any) -> bool:
    """Whether two such nests hold the same values, tensors to the bit."""
    left, right = leaves(these), leaves(those)

    def equal(a: Any, b: Any) -> bool:
        return same([a], [b]) if isinstance(a, Tensor) and isinstance(b, Tensor) else bool(a == b)

    return len(left) == len(right) and all(map(equal, left, right))
