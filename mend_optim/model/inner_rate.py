"""The learning rate of an inner step, by which `Nesterov` weighs a round's progress."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from torch import Tensor

from mend_optim.errors import is_number


def inner_rate(groups: Sequence[Mapping[str, Any]]) -> float:
    """The mean of "lr" over the parameter groups that have one. Where no group has one, every step
    counts as 1. To read a tensor, the training thread waits for its device."""
    rates = [rate for group in groups if (rate := _rate(group.get("lr"))) is not None]
    return fmean(rates) if rates else 1.0


def _rate(lr: object) -> float | None:
    """A group's learning rate; None if it is not a finite number of at least 0."""
    if isinstance(lr, Tensor):
        lr = lr.item() if lr.numel() == 1 else None
    if is_number(lr) and math.isfinite(lr) and lr >= 0:  # type: ignore[arg-type, operator]
        return float(lr)  # type: ignore[arg-type]
    return None
