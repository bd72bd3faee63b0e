"""Which state tensors of the optimizers that are known here are moments, and how fast they
decay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, optim
from torch.optim import Optimizer

from mend_optim.engine.moment_schedule import Moment, MomentSchedule
from mend_optim.errors import require


def _adam(inner: Optimizer) -> tuple[Moment, ...]:
    return (
        Moment(name="exp_avg", order="first", decay="betas.0", corrected=True),
        Moment(
            name="exp_avg_sq", order="second", decay="betas.1", corrected=True, nonnegative=True
        ),
    )


def _adamax(inner: Optimizer) -> tuple[Moment, ...]:
    return _adam(inner)[:1]  # exp_inf is a maximum


def _momentum(inner: Optimizer) -> tuple[Moment, ...]:
    if not any(group["momentum"] > 0 for group in inner.param_groups):
        return ()
    return (Moment(name="momentum_buffer", order="first", decay="momentum"),)


def _rmsprop(inner: Optimizer) -> tuple[Moment, ...]:
    """Centered, it divides by the root of square_avg − grad_avg²: both must come from the same
    round, unrounded, or that is negative."""
    centered = any(group["centered"] for group in inner.param_groups)
    average = Moment(name="grad_avg", order="second", decay="alpha", exact=True)
    square = Moment(
        name="square_avg", order="second", decay="alpha", nonnegative=True, exact=centered
    )
    return (*_momentum(inner), *((average,) if centered else ()), square)


def _lion(inner: Optimizer) -> tuple[Moment, ...]:
    return (Moment(name="exp_avg", order="first", decay="betas.1"),)


# The maximum that AMSGrad keeps is no average: it stays local. SparseAdam is not here: rows without
# a gradient keep their moments as they are, and do not decay.
_KNOWN: dict[type, Callable[[Optimizer], tuple[Moment, ...]]] = {
    optim.Adam: _adam,
    optim.AdamW: _adam,
    optim.NAdam: _adam,
    optim.RAdam: _adam,
    optim.Adamax: _adamax,
    optim.SGD: _momentum,
    optim.RMSprop: _rmsprop,
}


_NAMED = {"Lion": _lion}  # in many packages, in none of torch


def known_moments(inner: Optimizer, schedule: MomentSchedule) -> tuple[Moment, ...]:
    """The moments of this optimizer: those that the schedule names, else by its class and the
    classes it is derived from; none of one that is not known. Raises `UsageError`."""
    for state in schedule.states:
        found = any(_decay(state, group) is not None for group in inner.param_groups)
        bound = f"where a parameter group of {type(inner).__name__} has a number in [0, 1]"
        require(found, f"moments.states: decay of {state.name!r}", state.decay, bound)
    if schedule.states:
        return schedule.states
    of = _of(inner)
    return of(inner) if of else ()


def is_unknown_optimizer(inner: Optimizer, schedule: MomentSchedule) -> bool:
    """Whether nobody knows what its moments are."""
    return not schedule.states and _of(inner) is None


def _of(inner: Optimizer) -> Callable[[Optimizer], tuple[Moment, ...]] | None:
    kinds = (_KNOWN.get(kind) or _NAMED.get(kind.__name__) for kind in type(inner).__mro__)
    return next((of for of in kinds if of), None)


def decays(moments: Sequence[Moment], inner: Optimizer) -> dict[str, float]:
    """The largest decay of each order."""
    largest: dict[str, float] = {}
    for moment in moments:
        for group in inner.param_groups:
            decay = _decay(moment, group)
            if decay is not None:
                largest[moment.order] = max(decay, largest.get(moment.order, 0.0))
    return largest


def _decay(moment: Moment, group: Mapping[str, Any]) -> float | None:
    """The group's β of today; None where it has none, or none that forgets."""
    if not isinstance(moment.decay, str):
        return float(moment.decay)
    value: Any = group
    try:
        for key in moment.decay.split("."):
            value = value[int(key)] if key.isdigit() else value[key]
        decay = float(value.detach() if isinstance(value, Tensor) else value)
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError):
        return None
    return decay if 0 <= decay < 1 or (decay == 1 and not moment.corrected) else None
