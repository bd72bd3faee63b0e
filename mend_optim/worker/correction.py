"""What a new anchor means for the weights and moments of this learner."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from torch import Tensor

from mend_optim.engine.moment_schedule import Updates


@dataclass(frozen=True, slots=True)
class Correction:
    """What the training thread must do to the fragment's parameters: add `values`, or become them
    when `replace`; and to its moments."""

    fragment: int
    values: Tensor = field(compare=False, repr=False)
    replace: bool
    moments: tuple[MomentCorrection, ...] = field(default=(), compare=False, repr=False)


def stack(older: Correction | None, newer: Correction) -> Correction:
    """One correction that does what `older`, not yet applied, and then `newer` would have done."""
    if older is None:
        return newer
    moments = (*older.moments, *newer.moments)
    if newer.replace:
        return replace(newer, moments=moments)
    newer.values.add_(older.values)
    return Correction(newer.fragment, newer.values, older.replace, moments)


class Reading(NamedTuple):
    """One moment of a fragment as it was read: flat float32, and how many updates each tensor's had
    seen."""

    values: Tensor
    updates: Updates


class MomentCorrection(NamedTuple):
    """What the training thread must do to a moment: add `values`, aged since `updates`; or, as a
    newcomer, take them over."""

    moment: str
    values: Tensor
    updates: Updates
    newcomer: bool
