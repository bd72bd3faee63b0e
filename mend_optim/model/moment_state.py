"""Which state tensors of an inner optimizer are moments, how fast they decay, and how they are
read, corrected, and handed to a newcomer (DES-LOC, arXiv 2505.22549).

A moment forgets: s ← β s + what the gradient gives. Whatever the gradients are, that is linear in
s, so an average can be adopted late without error (law 10): read after t updates, adopted τ updates
later,

    s ← s + β^τ (1 − β^t) (mean − own)

Where the optimizer divides by 1 − β^t (Adam), learners that differ in t have ŝ = s / (1 − β^t) in
common, an estimate of the same thing, and that is what is averaged. Elsewhere the factor (1 − β^t)
is 1.

Only the training thread calls what takes an inner optimizer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, optim
from torch.optim import Optimizer

from mend_optim.engine.moment_schedule import Moment, Updates
from mend_optim.model.first_state import count, first_state
from mend_optim.model.known_moments import _KNOWN, _decay, _momentum
from mend_optim.model.layout import Fragment

# ── which, and when ───────────────────────────────────────────────────────────────────────────────


if hasattr(optim, "Muon"):  # since torch 2.9
    _KNOWN[optim.Muon] = _momentum


# ── reading and correcting ────────────────────────────────────────────────────────────────────────


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
    decays = {
        id(parameter): decay
        for decay, params in groups
        for parameter in params
        if decay is not None
    }
    states = [inner.state.get(parameters[index]) or {} for index in fragment.tensors]
    tensors = [
        _plain(state.get(moment.name), shape)
        for state, shape in zip(states, fragment.shapes, strict=True)
    ]
    there = [
        p
        for p, i in enumerate(fragment.tensors)
        if tensors[p] is not None and id(parameters[i]) in decays
    ]
    counts = zip(there, _counts([states[place] for place in there], steps), strict=True)
    found = (
        (p, tensors[p], decays[id(parameters[fragment.tensors[p]])], t) for p, t in counts if t > 0
    )
    return [
        _Found(place, tensor, decay, t) for place, tensor, decay, t in found if tensor is not None
    ]


def _plain(value: object, shape: tuple[int, ...]) -> Tensor | None:
    """A state tensor, complex ones as real, if it is one number for each of the parameter:
    quantized ones are not."""
    if type(value) not in (Tensor, torch.nn.Parameter):
        return None
    assert isinstance(value, Tensor)
    plain = value.detach()
    plain = torch.view_as_real(plain) if plain.is_complex() else plain
    floats = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    return (
        plain
        if tuple(plain.shape) == shape and plain.dtype in floats and plain.layout is torch.strided
        else None
    )


def _counts(states: Sequence[Mapping[str, Any]], steps: int) -> list[int]:
    """state["step"] of each, else `steps`. Counters on devices are fetched all at once: that waits
    for them."""
    counters: list[Any] = [state.get("step") for state in states]
    away = [
        i
        for i, counter in enumerate(counters)
        if isinstance(counter, Tensor) and not counter.is_cpu
    ]
    if away:
        one = counters[away[0]].device
        together = [
            counters[i].detach().reshape(()).to(one, torch.int64, non_blocking=True) for i in away
        ]
        for i, counted in zip(away, torch.stack(together).tolist(), strict=True):
            counters[i] = counted
    return [steps if counter is None else int(counter) for counter in counters]


@torch.no_grad()
def read(
    moment: Moment,
    fragment: Fragment,
    parameters: Sequence[Tensor],
    inner: Optimizer,
    steps: int,
    out: Tensor,
) -> Updates:
    """Copy the moment, s / (1 − β^t) if it is corrected, into `out` (float32, host); zeros where
    there is none.

    t is state["step"], or `steps`, the inner steps of this learner, where the optimizer counts
    none. From a GPU into pinned memory the copies are asynchronous, as those of `gather` are."""
    updates = [0] * len(fragment.tensors)
    for place, tensor, decay, t in _find(moment, fragment, parameters, inner, steps):
        updates[place] = t
        seen = _seen(moment, decay, t)
        flat_part = out[fragment.offsets[place] : fragment.offsets[place + 1]].view(tensor.shape)
        if tensor.is_cuda:  # on the device: on the host it would have to wait for the copy
            flat_part.copy_(tensor.float() / seen, non_blocking=True)
        else:
            flat_part.copy_(tensor)
            if seen != 1:
                flat_part.div_(seen)
    for place, t in enumerate(updates):
        if not t:
            out[fragment.offsets[place] : fragment.offsets[place + 1]].zero_()
    return tuple(updates)


def _seen(moment: Moment, decay: float, t: int) -> float:
    """1 − β^t, the weight of what an average from zero has seen; 1 where the optimizer does not
    divide by it."""
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
    """s ← s + β^τ (1 − β^t) values, with values = mean − own (float32, host) as read at t = `then`,
    τ updates ago.

    Rounded once to the state's dtype. A tensor without this state, then or now, stays as it is, and
    so does one that counts fewer updates than then: it is another one."""
    for place, tensor, decay, now in _find(moment, fragment, parameters, inner, steps):
        t = then[place]
        if not 0 < t <= now:
            continue
        factor = decay ** (now - t) * _seen(moment, decay, t)
        source = values[fragment.offsets[place] : fragment.offsets[place + 1]].view(tensor.shape)
        source = source.to(tensor.device, non_blocking=True)
        # Subtracting 0 − factor·values: adding +0 would make a −0 a +0. In the wider of both
        # dtypes.
        tensor.sub_(torch.rsub(source, 0, alpha=factor))
        if moment.nonnegative:
            tensor.clamp_(min=0)


# ── a mean gradient without its variance ──────────────────────────────────────────────────────────

# What Adam and its kin divide exp_avg by: the root of an average of squares, or a maximum.
_MEAN = Moment(name="exp_avg", order="first", decay="betas.0")
_DIVISORS = {
    name: Moment(name=name, order="second", decay="betas.1") for name in ("exp_avg_sq", "exp_inf")
}
SLACK = 2.0  # for rounding in narrow dtypes


@torch.no_grad()
def clip_first_moment(
    fragment: Fragment, parameters: Sequence[Tensor], inner: Optimizer, steps: int
) -> None:
    """|m| ≤ 2 κ √v: as far as Adam by itself gets (half of that, by Hölder's inequality).

    To be called after a round that brought first moments. It may have brought no second ones, and
    who has met no gradient, of the embedding of a rare word, has v = 0: the others' m over √v + ε
    is a step of thousands of learning rates. Averages of both keep the bound: |Σ wᵢ mᵢ| ≤ κ Σ wᵢ
    √vᵢ ≤ κ √(Σ wᵢ vᵢ)."""
    for name, divisor in _DIVISORS.items():
        of = {found.place: found for found in _find(divisor, fragment, parameters, inner, steps)}
        for place, m, beta1, t in _find(_MEAN, fragment, parameters, inner, steps) if of else ():
            kappa = (
                _farthest(beta1, of[place].decay, t, name == "exp_inf") if place in of else math.inf
            )
            if kappa < math.inf:
                v = of[place].tensor
                most = (v.abs() if name == "exp_inf" else v.sqrt()).mul_(SLACK * kappa)
                m.clamp_(min=-most, max=most)


@lru_cache(maxsize=64)
def _farthest(beta1: float, beta2: float, t: int, maximum: bool) -> float:
    """κ: the most that |m| / √v can be after t updates, v ← β₂ v + (1 − β₂) g²; or |m| / u, u ←
    max(β₂ u, |g|)."""
    if beta2 in (0, 1):
        return math.inf
    ratio = beta1 / beta2 if maximum else beta1**2 / beta2
    try:
        series = t if ratio == 1 else (1 - ratio**t) / (1 - ratio)
    except OverflowError:
        return math.inf
    return (1 - beta1) * (series if maximum else math.sqrt(series / (1 - beta2)))


# ── a newcomer ────────────────────────────────────────────────────────────────────────────────────


@torch.no_grad()
def install(
    moments: Sequence[Moment],
    fragment: Fragment,
    parameters: Sequence[Tensor],
    inner: Optimizer,
    values: Mapping[str, Tensor],
    updates: Mapping[str, Updates],
) -> None:
    """Take the others' moments: s = values (1 − β^T), or values, and state["step"] = T, where T > 0
    updates made them.

    State that the optimizer does not have yet is made. `values` are as read, flat float32, by the
    moments' names. All moments of a tensor are taken, or none: a mean gradient over a variance that
    is still 0 is worse than none."""
    groups = {id(p): group for group in inner.param_groups for p in group["params"]}
    for place, index in enumerate(fragment.tensors):
        parameter = parameters[index]
        counts = {
            moment.name: updates[moment.name][place] for moment in moments if moment.name in updates
        }
        group, state = groups.get(id(parameter)), inner.state.get(parameter) or {}
        if group is None or not any(counts.values()):
            continue
        if parameter.requires_grad and all(value is None for value in state.values()):
            state = first_state(inner, group, parameter)
        found = [
            (m, _plain(state.get(m.name), fragment.shapes[place]), _decay(m, group))
            for m in moments
        ]
        there = [
            (m, tensor, decay)
            for m, tensor, decay in found
            if tensor is not None and decay is not None
        ]
        needed = {moment.name for moment, _, _ in there} | (_DIVISORS.keys() & state.keys())
        if not there or not all(counts.get(name) for name in needed):
            continue
        updated = max(counts[name] for name in needed)
        for moment, tensor, decay in there:
            source = values[moment.name][
                fragment.offsets[place] : fragment.offsets[place + 1]
            ].view(tensor.shape)
            tensor.copy_(source * _seen(moment, decay, updated))
        count(state, group, updated)
        inner.state[parameter] = state
    clip_first_moment(
        fragment,
        parameters,
        inner,
        max((t for counted in updates.values() for t in counted), default=0),
    )
