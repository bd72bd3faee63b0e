"""The outer optimizer, and the arithmetic of adoption. All tensors are flat float32 on the host and
updated in place.

    b ← μ b + Δ̄
    Θ ← Θ - η (Δ̄ + μ b)

That is DiLoCo (arXiv 2311.08105), with Nesterov momentum as torch writes it.

Progress Δ = Θ - θ does not change when an unmerged learner moves to another anchor of its genesis,
because its weights move by the same step as the anchor. Both forms of late adoption are therefore
one formula, and need no snapshot:

    θ ← θ + C,    C = (Θ_new - Θ_old) + [my offer was merged] Δ

With the offer merged, that is θ + (Θ_new - θ_t), where θ_t = Θ_old - Δ is the snapshot. Otherwise
it is θ + (Θ_new - Θ_old). If the loss of an encoded Δ stays in the weights (`feedback.py`), Δ here
is only the part that was merged."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mend_optim.errors import is_number, require
from mend_optim.worker.merge import blocks


@dataclass(frozen=True, kw_only=True)
class Nesterov:
    """The outer optimizer: SGD with Nesterov momentum. The default is plain averaging, Θ ← Θ - Δ̄.

    Under a constant Δ̄ the first step has gain η(1+μ), and the steady state has gain η/(1-μ). The
    literature chooses lr=0.7 and momentum=0.9 for long runs. In short runs that was worse than
    training alone.

    Args:
        lr: the outer learning rate η, in (0, 10].
        momentum: μ, in [0, 1).

    Raises:
        UsageError: an argument is out of bounds.

    Example:
        >>> Nesterov(lr=0.7, momentum=0.9)
        Nesterov(lr=0.7, momentum=0.9)
    """

    lr: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        require(is_number(self.lr) and 0 < self.lr <= 10, "outer.lr", self.lr, "in (0, 10]")
        require(
            is_number(self.momentum) and 0 <= self.momentum < 1,
            "outer.momentum",
            self.momentum,
            "in [0, 1)",
        )
        # Learners compare the repr: 1 must read 1.0.
        for name in ("lr", "momentum"):
            object.__setattr__(self, name, float(getattr(self, name)))


def delta(anchor: Tensor, snapshot: Tensor) -> Tensor:
    """Δ = Θ - θ_t, written over the snapshot θ_t."""
    return torch.sub(anchor, snapshot, out=snapshot)


def outer_step(
    outer: Nesterov,
    anchor: Tensor,
    velocity: Tensor | None,
    merged: Tensor,
    *,
    own: Tensor | None,
    correction: Tensor,
) -> None:
    """Move the anchor and the velocity by the merged delta, and write this learner's correction C.

    Scale and add are separate operations: a fused one would round differently on machines that have
    it, and anchors must agree to the bit.

    Args:
        outer: η and μ.
        anchor: Θ, updated.
        velocity: b, updated; None without momentum.
        merged: Δ̄.
        own: the learner's own Δ if its offer was merged, or else None.
        correction: receives C.
    """
    for block in blocks(anchor.numel()):
        theta, change, update = anchor[block], correction[block], merged[block]
        change.copy_(theta)
        if velocity is not None:
            momentum = velocity[block].mul_(outer.momentum).add_(update)
            update = update + momentum * outer.momentum
        theta.sub_(update if outer.lr == 1 else update * outer.lr)
        torch.sub(theta, change, out=change)
        if own is not None:
            change.add_(own[block])


def disagreement(own: Tensor, mean: Tensor, gain: float) -> Tensor:
    """R = (1 − α) (D − Δ̄): what a learner keeps of its disagreement with the mean of its round.
    Changes `own` to D − R, which is what leaves its weights beside the step of the anchor.

    Args:
        own: D, the progress that was merged and the former disagreement.
        mean: Δ̄.
        gain: α, in (0, 1).
    """
    kept = torch.sub(own, mean).mul_(1 - gain)
    own.sub_(kept)
    return kept


def correction_between(old: Tensor, new: Tensor, own: Tensor | None, out: Tensor) -> Tensor:
    """C = (Θ_new - Θ_old) + [merged] Δ in `out`, for a learner that took a whole anchor instead of
    a seal. `own` is Δ if the learner's offer was merged."""
    torch.sub(new, old, out=out)
    return out.add_(own) if own is not None else out
