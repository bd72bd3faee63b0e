"""The outer optimizer, and the arithmetic of adoption. All tensors are flat float32 on the host and
updated in place.

    b ← m b + Δ̄
    Θ ← Θ - η (Δ̄ + m b)

That is Nesterov momentum as torch writes it. The policy decides on η and m of each step
(`velocity.py`).

Progress Δ = Θ - θ does not change when an unmerged learner moves to another anchor of its genesis,
because its weights move by the same step as the anchor. Both forms of late adoption are therefore
one formula, and need no snapshot:

    θ ← θ + C,    C = (Θ_new - Θ_old) + [my offer was merged] Δ

With the offer merged, that is θ + (Θ_new - θ_t), where θ_t = Θ_old - Δ is the snapshot. Otherwise
it is θ + (Θ_new - Θ_old). If the loss of an encoded Δ stays in the weights (`feedback.py`), Δ here
is only the part that was merged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from mend_optim.errors import is_number, require, take_plain_numbers
from mend_optim.worker.merge import blocks


@dataclass(frozen=True, kw_only=True)
class Nesterov:
    """The outer optimizer: Nesterov momentum with a known gain. The default is plain averaging,
    Θ ← Θ - Δ̄.

        b ← m b + Δ̄,    s ← m s + S,    Θ ← Θ - η (Δ̄ + m b)
        η = g S / (S + m s),    m = μ^(n/H)

    S is the sum of the inner learning rates of a round's steps and n the number of these steps,
    both means over the members by their weights; H is `sync_every`. While rounds move the same way,
    Δ̄ in proportion to S, every outer step is exactly g Δ̄: the first one too, whatever the momentum,
    the length of a round, and the schedule of the learning rate. Momentum then acts on directions
    alone. An inner optimizer without learning rates counts every step as 1. A round whose learning
    rates are all 0 takes the step g Δ̄.

    Without momentum nothing more is computed, kept or sent than for plain averaging.

    Args:
        gain: g, in (0, 10].
        momentum: μ, over a period of `sync_every` steps, in [0, 1).

    Raises:
        UsageError: an argument is out of bounds.

    Example:
        >>> Nesterov(momentum=0.5)
        Nesterov(gain=1.0, momentum=0.5)
    """

    gain: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        _check_factors(self, "gain")

    @property
    def counts_rates(self) -> bool:
        """Whether its steps depend on the inner learning rates."""
        return self.momentum > 0


@dataclass(frozen=True, kw_only=True)
class DiLoCoNesterov:
    """The outer optimizer of DiLoCo (arXiv 2311.08105): SGD with Nesterov momentum as torch writes
    it.

        b ← μ b + Δ̄,    Θ ← Θ - η (Δ̄ + μ b)

    Under a constant Δ̄ the first step has gain η(1+μ), and the steady state has gain η/(1-μ): from
    1.33 to 7 for the literature's factors, which are the default. In short runs that was worse than
    training alone. `Nesterov` has the same gain in every round.

    Args:
        lr: the outer learning rate η, in (0, 10].
        momentum: μ, in [0, 1).

    Raises:
        UsageError: an argument is out of bounds.

    Example:
        >>> DiLoCoNesterov()
        DiLoCoNesterov(lr=0.7, momentum=0.9)
    """

    lr: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        _check_factors(self, "lr")

    @property
    def counts_rates(self) -> bool:
        """Whether its steps depend on the inner learning rates."""
        return False


Outer = Nesterov | DiLoCoNesterov


def _check_factors(outer: Outer, size: str) -> None:
    """Check the factor named `size`, and the momentum. Raises `UsageError`."""
    take_plain_numbers(outer)
    factor, momentum = getattr(outer, size), outer.momentum
    require(is_number(factor) and 0 < factor <= 10, f"outer.{size}", factor, "in (0, 10]")
    is_share = is_number(momentum) and 0 <= momentum < 1
    require(is_share, "outer.momentum", momentum, "in [0, 1)")
    # Learners compare the repr: 1 must read 1.0.
    object.__setattr__(outer, size, float(factor))
    object.__setattr__(outer, "momentum", float(momentum))


class Step(NamedTuple):
    """The factors of one outer step: η, and the momentum of this step."""

    lr: float
    momentum: float


def delta(anchor: Tensor, snapshot: Tensor) -> Tensor:
    """Δ = Θ - θ_t, written over the snapshot θ_t."""
    return torch.sub(anchor, snapshot, out=snapshot)


class Parts(Protocol):
    """A flat float32 vector that is read block by block; a block is valid until the next."""

    def __getitem__(self, here: slice, /) -> Tensor: ...


def outer_step(
    step: Step,
    anchor: Tensor,
    velocity: Tensor | None,
    merged: Parts,
    *,
    own: Tensor | None,
    correction: Tensor,
) -> None:
    """Move the anchor and the velocity by the merged delta, and write this learner's correction C.

    Scale and add are separate operations: a fused one would round differently on machines that have
    it, and anchors must agree to the bit.

    Args:
        step: η and m.
        anchor: Θ, updated.
        velocity: b, updated; None for a step without momentum.
        merged: Δ̄.
        own: the learner's own Δ if its offer was merged, or else None.
        correction: receives C.
    """
    for block in blocks(anchor.numel()):
        theta, change, update = anchor[block], correction[block], merged[block]
        change.copy_(theta)
        if velocity is not None:
            momentum = velocity[block].mul_(step.momentum).add_(update)
            update = update + momentum * step.momentum
        theta.sub_(update if step.lr == 1 else update * step.lr)
        torch.sub(theta, change, out=change)
        if own is not None:
            change.add_(own[block])


def largest(values: Tensor) -> float:
    """max |x|; NaN if any element is."""
    if not values.numel():
        return 0.0
    # The maximum norm of torch says the same, and takes five times as long.
    least, greatest = values.aminmax()
    return max(abs(float(least)), abs(float(greatest)))


def offered(progress: Tensor, held: Tensor | None, residual: Tensor | None, share: float) -> Tensor:
    """What is offered of a learner's progress, in place: nothing of its disagreement `held`, all of
    the residual that earlier encodings have left in it, and this share of everything else."""
    if held is not None:
        progress.sub_(held)
    if share < 1:
        progress.mul_(share)
        if residual is not None:
            progress.add_(residual, alpha=1 - share)
    return progress


def with_rest(
    held: Tensor | None, part: Tensor | None, residual: Tensor | None, share: float
) -> Tensor | None:
    """The disagreement `held`, in place, and the rest of a delta of which only this part was
    offered: see `offered`."""
    if part is None or share == 1:
        return held
    scaled = part if residual is None else part - residual
    times = 1 / share - 1
    return scaled * times if held is None else held.add_(scaled, alpha=times)


def disagreement(own: Tensor, mean_step: Tensor, gain: float) -> Tensor:
    """R = (1 − α) (D + M), over `mean_step`: what a learner keeps of its disagreement with its
    round.

    Args:
        own: D, the progress that was merged and the former disagreement.
        mean_step: M, the step of the anchor by the mean without f; −ρ Δ̄ for plain averaging.
        gain: α, in (0, 1).
    """
    return mean_step.add_(own).mul_(1 - gain)


def correction_between(old: Tensor, new: Tensor, own: Tensor | None, out: Tensor) -> Tensor:
    """C = (Θ_new - Θ_old) + [merged] Δ in `out`, for a learner that took a whole anchor instead of
    a seal. `own` is Δ if the learner's offer was merged."""
    torch.sub(new, old, out=out)
    return out.add_(own) if own is not None else out
