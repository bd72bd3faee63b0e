"""Which state tensors of an inner optimizer are moments, how fast they decay, and how they are read, corrected, and
handed to a newcomer (DES-LOC, arXiv 2505.22549).

A moment forgets: s ← β s + what the gradient gives. Whatever the gradients are, that is linear in s, so an average can
be adopted late without error (law 10): read after t updates, adopted τ updates later,

    s ← s + β^τ (1 − β^t) (mean − own)

Where the optimizer divides by 1 − β^t (Adam), learners that differ in t have ŝ = s / (1 − β^t) in common, an estimate
of the same thing, and that is what is averaged. Elsewhere the factor (1 − β^t) is 1.

Only the training thread calls what takes an inner optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, optim
from torch.optim import Optimizer

from mend_optim.errors import is_number, require
from mend_optim.model.first_state import count, first_state
from mend_optim.model.layout import Fragment

ORDERS = ("first", "second")
HALF_LIFE = "half_life"

Updates = tuple[int, ...]
"""For each tensor of a fragment, how many updates its moment has seen; 0: there is no such state."""


# ── which, and when ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class Moment:
    """One kind of state tensor: `optimizer.state[parameter][name]`. Raises `UsageError`."""

    name: str
    order: str  # "first" or "second": the period it goes by
    decay: float | str  # β, or where a parameter group has it: "betas.0", "momentum"
    corrected: bool = False  # the optimizer divides it by 1 − β^t
    nonnegative: bool = False  # an average of squares
    exact: bool = False  # travels as float32 always: small differences of it matter

    def __post_init__(self) -> None:
        require(isinstance(self.name, str) and self.name != "", "moment.name", self.name, "the name of a state tensor")
        require(self.order in ORDERS, "moment.order", self.order, f"one of {list(ORDERS)}")
        by_path = isinstance(self.decay, str) and self.decay != ""
        require(
            by_path or (is_number(self.decay) and 0 <= float(self.decay) < 1),
            "moment.decay",
            self.decay,
            'in [0, 1), or where a parameter group has it, as "betas.0"',
        )


@dataclass(frozen=True, kw_only=True)
class MomentSchedule:
    """Periods in outer rounds: an int, or "half_life", the rounds in which a moment forgets half. `states` are the
    moments of an optimizer that is not known here. Raises `UsageError`."""

    first: int | str = 3
    second: int | str = 6
    states: tuple[Moment, ...] = ()

    def __post_init__(self) -> None:
        for order in ORDERS:
            period = getattr(self, order)
            whole = type(period) is int and period >= 1
            require(whole or period == HALF_LIFE, f"moments.{order}", period, f'an int >= 1 or "{HALF_LIFE}"')
        named = isinstance(self.states, tuple) and all(isinstance(state, Moment) for state in self.states)
        require(named, "moments.states", self.states, "a tuple of Moment(...)")
        names = [state.name for state in self.states]
        require(len(set(names)) == len(names), "moments.states", names, "different names")

    def resolve(self, decays: Mapping[str, float], sync_every: int) -> MomentSchedule:
        """With half lives as rounds of `sync_every` steps; `decays` are the largest of each order. Raises
        `UsageError`."""
        periods = {}
        for order in ORDERS:
            if getattr(self, order) == HALF_LIFE:
                decay = decays.get(order, 0.0)
                remedy = f"a decay of {decay} never forgets half"
                require(decay < 1, f"moments.{order}", HALF_LIFE, "an int >= 1 for this optimizer", remedy)
                periods[order] = max(1, round(half_life(decay) / sync_every))
        return replace(self, **periods)  # type: ignore[arg-type]

    @property
    def rounds(self) -> tuple[tuple[str, int], ...]:
        """The period of each order, once half lives are resolved."""
        return tuple((order, int(getattr(self, order))) for order in ORDERS)

    def due(self, version: int, order: str) -> bool:
        """Whether the round that makes this version brings the moments of that order."""
        return version % dict(self.rounds)[order] == 0


def half_life(decay: float) -> float:
    """ln ½ / ln β: the updates in which a moment forgets half."""
    return math.log(0.5) / math.log(decay) if decay > 0 else 0.0


def _adam(inner: Optimizer) -> tuple[Moment, ...]:
    return (
        Moment(name="exp_avg", order="first", decay="betas.0", corrected=True),
        Moment(name="exp_avg_sq", order="second", decay="betas.1", corrected=True, nonnegative=True),
    )


def _adamax(inner: Optimizer) -> tuple[Moment, ...]:
    return _adam(inner)[:1]  # exp_inf is a maximum


def _momentum(inner: Optimizer) -> tuple[Moment, ...]:
    if not any(group["momentum"] > 0 for group in inner.param_groups):
        return ()
    return (Moment(name="momentum_buffer", order="first", decay="momentum"),)


def _rmsprop(inner: Optimizer) -> tuple[Moment, ...]:
    """Centered, it divides by the root of square_avg − grad_avg²: both must come from the same round, unrounded, or
    that is negative."""
    centered = any(group["centered"] for group in inner.param_groups)
    average = Moment(name="grad_avg", order="second", decay="alpha", exact=True)
    square = Moment(name="square_avg", order="second", decay="alpha", nonnegative=True, exact=centered)
    return (*_momentum(inner), *((average,) if centered else ()), square)


def _lion(inner: Optimizer) -> tuple[Moment, ...]:
    return (Moment(name="exp_avg", order="first", decay="betas.1"),)


# The maximum that AMSGrad keeps is no average: it stays local. SparseAdam is not here: rows without a gradient keep
# their moments as they are, and do not decay.
_KNOWN: dict[type, Callable[[Optimizer], tuple[Moment, ...]]] = {
    optim.Adam: _adam, optim.AdamW: _adam, optim.NAdam: _adam, optim.RAdam: _adam, optim.Adamax: _adamax,
    optim.SGD: _momentum, optim.RMSprop: _rmsprop,
}  # fmt: skip
if hasattr(optim, "Muon"):  # since torch 2.9
    _KNOWN[optim.Muon] = _momentum
_NAMED = {"Lion": _lion}  # in many packages, in none of torch


def known(inner: Optimizer, schedule: MomentSchedule) -> tuple[Moment, ...]:
    """The moments of this optimizer: those that the schedule names, else by its class and the classes it is derived
    from; none of one that is not known. Raises `UsageError`."""
    for state in schedule.states:
        found = any(_decay(state, group) is not None for group in inner.param_groups)
        bound = f"where a parameter group of {type(inner).__name__} has a number in [0, 1]"
        require(found, f"moments.states: decay of {state.name!r}", state.decay, bound)
    if schedule.states:
        return schedule.states
    of = _of(inner)
    return of(inner) if of else ()


def strange(inner: Optimizer, schedule: MomentSchedule) -> bool:
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


# ── reading and correcting ───────────────────────────────────────────────────────────────────────────────────────────


class _Found(NamedTuple):
    """One state tensor of a fragment: its place there, itself (real), its decay and its updates."""

    place: int
    tensor: Tensor
    decay: float
    updates: int


def _find(
    moment: Moment, fragment: Fragment, parameters: Sequence[Tensor], inner: Optimizer, steps: int
) -> list[_Found]:
    groups = [(_decay(moment, group), group["params"]) for group in inner.param_groups]
    decays = {id(parameter): decay for decay, params in groups for parameter in params if decay is not None}
    states = [inner.state.get(parameters[index]) or {} for index in fragment.tensors]
    tensors = [_plain(state.get(moment.name), shape) for state, shape in zip(states, fragment.shapes, strict=True)]
    there = [p for p, i in enumerate(fragment.tensors) if tensors[p] is not None and id(parameters[i]) in decays]
    counts = zip(there, _counts([states[place] for place in there], steps), strict=True)
    found = ((p, tensors[p], decays[id(parameters[fragment.tensors[p]])], t) for p, t in counts if t > 0)
    return [_Found(place, tensor, decay, t) for place, tensor, decay, t in found if tensor is not None]


def _plain(value: object, shape: tuple[int, ...]) -> Tensor | None:
    """A state tensor, complex ones as real, if it is one number for each of the parameter: quantized ones are not."""
    if type(value) not in (Tensor, torch.nn.Parameter):
        return None
    assert isinstance(value, Tensor)
    plain = value.detach()
    plain = torch.view_as_real(plain) if plain.is_complex() else plain
    floats = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    return plain if tuple(plain.shape) == shape and plain.dtype in floats and plain.layout is torch.strided else None


def _counts(states: Sequence[Mapping[str, Any]], steps: int) -> list[int]:
    """state["step"] of each, else `steps`. Counters on devices are fetched all at once: that waits for them."""
    counters: list[Any] = [state.get("step") for state in states]
    away = [i for i, counter in enumerate(counters) if isinstance(counter, Tensor) and not counter.is_cpu]
    if away:
        one = counters[away[0]].device
        together = [counters[i].detach().reshape(()).to(one, torch.int64, non_blocking=True) for i in away]
        for i, counted in zip(away, torch.stack(together).tolist(), strict=True):
            counters[i] = counted
    return [steps if counter is None else int(counter) for counter in counters]


@torch.no_grad()
def read(
    moment: Moment, fragment: Fragment, parameters: Sequence[Tensor], inner: Optimizer, steps: int, out: Tensor
) -> Updates:
    """Copy the moment, s / (1 − β^t) if it is corrected, into `out` (float32, host); zeros where there is none.

    t is state["step"], or `steps`, the inner steps of this learner, where the optimizer counts none. From a GPU into
    pinned memory the copies are asynchronous, as those of `gather` are."""
    updates = [0] * len(fragment.tensors)
    for place, tensor, decay, t in _find(moment, fragment, parameters, inner, steps):
        updates[place] = t
        seen = _seen(moment, decay, t)
        room = out[fragment.offsets[place] : fragment.offsets[place + 1]].view(tensor.shape)
        if tensor.is_cuda:  # on the device: on the host it would have to wait for the copy
            room.copy_(tensor.float() / seen, non_blocking=True)
        else:
            room.copy_(tensor)
            if seen != 1:
                room.div_(seen)
    for place, t in enumerate(updates):
        if not t:
            out[fragment.offsets[place] : fragment.offsets[place + 1]].zero_()
    return tuple(updates)


def _seen(moment: Moment, decay: float, t: int) -> float:
    """1 − β^t, the weight of what an average from zero has seen; 1 where the optimizer does not divide by it."""
    return 1 - decay**t if moment.corrected else 1.0


@torch.no_grad()
def correct(
    moment: Moment,
    fragment: Fragment,
    parameters: Sequence[Tensor],
    inner: Optimizer,
    steps: int,
    values: Tensor,
    then: Updates,
) -> None:
    """s ← s + β^τ (1 − β^t) values, with values = mean − own (float32, host) as read at t = `then`, τ updates ago.

    Rounded once to the state's dtype. A tensor without this state, then or now, stays as it is, and so does one that
    counts fewer updates than then: it is another one."""
    for place, tensor, decay, now in _find(moment, fragment, parameters, inner, steps):
        t = then[place]
        if not 0 < t <= now:
            continue
        factor = decay ** (now - t) * _seen(moment, decay, t)
        source = values[fragment.offsets[place] : fragment.offsets[place + 1]].view(tensor.shape)
        source = source.to(tensor.device, non_blocking=True)
        # Subtracting 0 − factor·values: adding +0 would make a −0 a +0. In the wider of both dtypes.
        tensor.sub_(torch.rsub(source, 0, alpha=factor))
        if moment.nonnegative:
            tensor.clamp_(min=0)


# ── a mean gradient without its variance ─────────────────────────────────────────────────────────────────────────────

# What Adam and its kin divide exp_avg by: the root of an average of squares, or a maximum.
_MEAN = Moment(name="exp_avg", order="first", decay="betas.0")
_DIVISORS = {name: Moment(name=name, order="second", decay="betas.1") for name in ("exp_avg_sq", "exp_inf")}
SLACK = 2.0  # for rounding in narrow dtypes


@torch.no_grad()
def restrain(fragment: Fragment, parameters: Sequence[Tensor], inner: Optimizer, steps: int) -> None:
    """|m| ≤ 2 κ √v: as far as Adam by itself gets (half of that, by Hölder's inequality).

    To be called after a round that brought first moments. It may have brought no second ones, and who has met no
    gradient, of the embedding of a rare word, has v = 0: the others' m over √v + ε is a step of thousands of learning
    rates. Averages of both keep the bound: |Σ wᵢ mᵢ| ≤ κ Σ wᵢ √vᵢ ≤ κ √(Σ wᵢ vᵢ)."""
    for name, divisor in _DIVISORS.items():
        of = {found.place: found for found in _find(divisor, fragment, parameters, inner, steps)}
        for place, m, beta1, t in _find(_MEAN, fragment, parameters, inner, steps) if of else ():
            kappa = _farthest(beta1, of[place].decay, t, name == "exp_inf") if place in of else math.inf
            if kappa < math.inf:
                v = of[place].tensor
                most = (v.abs() if name == "exp_inf" else v.sqrt()).mul_(SLACK * kappa)
                m.clamp_(min=-most, max=most)


@lru_cache(maxsize=64)
def _farthest(beta1: float, beta2: float, t: int, maximum: bool) -> float:
    """κ: the most that |m| / √v can be after t updates, v ← β₂ v + (1 − β₂) g²; or |m| / u, u ← max(β₂ u, |g|)."""
    if beta2 in (0, 1):
        return math.inf
    ratio = beta1 / beta2 if maximum else beta1**2 / beta2
    try:
        series = t if ratio == 1 else (1 - ratio**t) / (1 - ratio)
    except OverflowError:
        return math.inf
    return (1 - beta1) * (series if maximum else math.sqrt(series / (1 - beta2)))


# ── a newcomer ───────────────────────────────────────────────────────────────────────────────────────────────────────


@torch.no_grad()
def install(
    moments: Sequence[Moment],
    fragment: Fragment,
    parameters: Sequence[Tensor],
    inner: Optimizer,
    values: Mapping[str, Tensor],
    updates: Mapping[str, Updates],
) -> None:
    """Take the others' moments: s = values (1 − β^T), or values, and state["step"] = T, where T > 0 updates made them.

    State that the optimizer does not have yet is made. `values` are as read, flat float32, by the moments' names. All
    moments of a tensor are taken, or none: a mean gradient over a variance that is still 0 is worse than none."""
    groups = {id(p): group for group in inner.param_groups for p in group["params"]}
    for place, index in enumerate(fragment.tensors):
        parameter = parameters[index]
        counts = {moment.name: updates[moment.name][place] for moment in moments if moment.name in updates}
        group, state = groups.get(id(parameter)), inner.state.get(parameter) or {}
        if group is None or not any(counts.values()):
            continue
        if parameter.requires_grad and all(value is None for value in state.values()):
            state = first_state(inner, group, parameter)
        found = [(m, _plain(state.get(m.name), fragment.shapes[place]), _decay(m, group)) for m in moments]
        there = [(m, tensor, decay) for m, tensor, decay in found if tensor is not None and decay is not None]
        needed = {moment.name for moment, _, _ in there} | (_DIVISORS.keys() & state.keys())
        if not there or not all(counts.get(name) for name in needed):
            continue
        updated = max(counts[name] for name in needed)
        for moment, tensor, decay in there:
            source = values[moment.name][fragment.offsets[place] : fragment.offsets[place + 1]].view(tensor.shape)
            tensor.copy_(source * _seen(moment, decay, updated))
        count(state, group, updated)
        inner.state[parameter] = state
    restrain(fragment, parameters, inner, max((t for counted in updates.values() for t in counted), default=0))
