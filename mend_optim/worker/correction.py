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
    #: Whether the inner optimizer's moments begin anew, because they are as wrong as the weights.
    resets: bool = False
    #: The same change with its tensors on the GPU that the parameters are on, once they are there.
    there: Correction | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class BufferCorrection(Correction):
    """The change to the buffers: `values` are their anchor, in flat bytes. They follow it as
    `move_buffers` says, from `base`, or become it if there is none."""

    base: Tensor | None = field(default=None, compare=False, repr=False)
    #: Whether `base` is what this learner offered, else what its buffers rested on.
    is_offer: bool = False


def stack(older: Correction | None, newer: Correction) -> Correction:
    """One correction that does what `older`, not yet applied, and then `newer` would do."""
    if older is None:
        return newer
    if isinstance(newer, BufferCorrection):
        assert isinstance(older, BufferCorrection)
        return _stacked_buffers(older, newer)
    moments = () if newer.resets else older.moments
    moments = (*moments, *newer.moments)
    resets = older.resets or newer.resets
    if newer.replace:
        return replace(newer, moments=moments, resets=resets)
    newer.values.add_(older.values)
    return Correction(newer.fragment, newer.values, older.replace, moments, resets)


def _stacked_buffers(older: BufferCorrection, newer: BufferCorrection) -> BufferCorrection:
    """The buffers have not followed the older anchor. So they are still near what they rested on
    before it, or near what was offered since."""
    replaces = newer.replace or older.replace
    if older.base is None or newer.base is None or newer.is_offer:
        base = None if older.base is None else newer.base
        return replace(newer, replace=replaces, base=base)
    return replace(newer, replace=replaces, base=older.base, is_offer=older.is_offer)


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
