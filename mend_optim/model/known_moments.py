"""Which state tensors of the optimizers known here are moments, and how fast they decay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, optim
from torch.optim import Optimizer

from mend_optim.engine.moment_schedule import Moment, MomentSchedule
from mend_optim.errors import require

_Find = Callable[[Optimizer], tuple[Moment, ...]]


def _adam(inner: Optimizer) -> tuple[Moment, ...]:
    return (
        Moment(name="exp_avg", order="first", decay="betas.0", corrected=True),
        Moment(
            name="exp_avg_sq", order="second", decay="betas.1", corrected=True, nonnegative=True
        ),
    )


def _adamax(inner: Optimizer) -> tuple[Moment, ...]:
    """Only the first moment: exp_inf is a maximum."""
    return _adam(inner)[:1]


def _momentum(inner: Optimizer) -> tuple[Moment, ...]:
    if not any(group["momentum"] > 0 for group in inner.param_groups):
        return ()
    return (Moment(name="momentum_buffer", order="first", decay="momentum"),)


def _rmsprop(inner: Optimizer) -> tuple[Moment, ...]:
    """Centered RMSprop divides by the root of square_avg − grad_avg². Both must come from the same
    round, unrounded, or that difference is negative."""
    centered = any(group["centered"] for group in inner.param_groups)
    average = Moment(name="grad_avg", order="second", decay="alpha", exact=True)
    square = Moment(
        name="square_avg", order="second", decay="alpha", nonnegative=True, exact=centered
    )
    return (*_momentum(inner), *((average,) if centered else ()), square)


def _lion(inner: Optimizer) -> tuple[Moment, ...]:
    return (Moment(name="exp_avg", order="first", decay="betas.1"),)


# The maximum that AMSGrad keeps is not an average, so it stays local. SparseAdam is missing: rows
# without a gradient keep their moments as they are, without decay.
_KNOWN: dict[type, _Find] = {
    optim.Adam: _adam,
    optim.AdamW: _adam,
    optim.NAdam: _adam,
    optim.RAdam: _adam,
    optim.Adamax: _adamax,
    optim.SGD: _momentum,
    optim.RMSprop: _rmsprop,
}
if hasattr(optim, "Muon"):  # since torch 2.9
    _KNOWN[optim.Muon] = _momentum

# Many packages have a Lion; torch has none.
_NAMED: dict[str, _Find] = {"Lion": _lion}


def known_moments(inner: Optimizer, schedule: MomentSchedule) -> tuple[Moment, ...]:
    """The moments of this optimizer: those that the schedule names, or else those known for its
    class or a base class. An optimizer that is not known has none.

    Raises `UsageError` for a decay that no parameter group has."""
    for state in schedule.states:
        found = any(decay_of(state, group) is not None for group in inner.param_groups)
        bound = f"where a parameter group of {type(inner).__name__} has a number in [0, 1]"
        require(found, f"moments.states: decay of {state.name!r}", state.decay, bound)
    if schedule.states:
        return schedule.states
    find = _finder(inner)
    return find(inner) if find else ()


def is_unknown_optimizer(inner: Optimizer, schedule: MomentSchedule) -> bool:
    """Whether neither the schedule nor the table here says what the optimizer's moments are."""
    return not schedule.states and _finder(inner) is None


def _finder(inner: Optimizer) -> _Find | None:
    kinds = (_KNOWN.get(kind) or _NAMED.get(kind.__name__) for kind in type(inner).__mro__)
    return next((find for find in kinds if find), None)


def decays(moments: Sequence[Moment], inner: Optimizer) -> dict[str, float]:
    """The largest decay of each order."""
    largest: dict[str, float] = {}
    for moment in moments:
        for group in inner.param_groups:
            decay = decay_of(moment, group)
            if decay is not None:
                largest[moment.order] = max(decay, largest.get(moment.order, 0.0))
    return largest


def decay_of(moment: Moment, group: Mapping[str, Any]) -> float | None:
    """The present β of the moment in a parameter group. None if the group has no such number, or
    one with which an average makes no sense."""
    if not isinstance(moment.decay, str):
        return float(moment.decay)
    value: Any = group
    try:
        for key in moment.decay.split("."):
            value = value[int(key)] if key.isdigit() else value[key]
        decay = float(value.detach() if isinstance(value, Tensor) else value)
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError):
        return None
    # With β = 1, a corrected moment would be divided by 1 − β^t = 0.
    return decay if 0 <= decay < 1 or (decay == 1 and not moment.corrected) else None
