"""The changes that the training thread makes to weights and moments after a new anchor."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from torch import Tensor

from mend_optim.engine.moment_schedule import Updates


@dataclass(frozen=True, slots=True)
class Correction:
    """The change to one fragment: add `values` to its parameters, or replace them by `values`, and
    correct its moments."""

    fragment: int
    values: Tensor = field(compare=False, repr=False)
    replace: bool
    moments: tuple[MomentCorrection, ...] = field(default=(), compare=False, repr=False)


def stack(older: Correction | None, newer: Correction) -> Correction:
    """One correction that does what `older`, not yet applied, and then `newer` would do."""
    if older is None:
        return newer
    moments = (*older.moments, *newer.moments)
    if newer.replace:
        return replace(newer, moments=moments)
    newer.values.add_(older.values)
    return Correction(newer.fragment, newer.values, older.replace, moments)


class Reading(NamedTuple):
    """One moment of a fragment as it was read: flat float32 values, and the number of updates that
    each tensor's had seen."""

    values: Tensor
    updates: Updates


class MomentCorrection(NamedTuple):
    """The change to one moment: add `values`, decayed since `updates`, or take them over as a
    newcomer."""

    moment: str
    values: Tensor
    updates: Updates
    newcomer: bool
