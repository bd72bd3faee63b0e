"""The moments in an inner optimizer's state: read, corrected, and given to a newcomer (DES-LOC,
arXiv 2505.22549).

A moment forgets: s ← β s + a term of the gradient. Whatever the gradients are, that is linear in s,
so an average can be adopted late without error (law 10). Read after t updates and adopted τ updates
later,

    s ← s + β^τ (1 − β^t) (mean − own)

Where the optimizer divides by 1 − β^t (Adam), learners that differ in t still agree on what
ŝ = s / (1 − β^t) estimates, so ŝ is averaged. Elsewhere the factor (1 − β^t) is 1.

Only the training thread calls these functions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from mend_optim.engine.moment_schedule import Moment, Updates
from mend_optim.model.copies import own_part, real
from mend_optim.model.first_state import count, first_state, is_place, named_state, within
from mend_optim.model.known_moments import decay_of
from mend_optim.model.layout import Fragment, is_distributed
from mend_optim.model.many_tensors import are_plain, batches, brought, copy_each, shaped


@dataclass(frozen=True, slots=True)
class FragmentState:
    """One fragment, and the inner optimizer that keeps its state.

    `parameters` are those of the whole model. `steps` are this learner's inner steps: the number of
    updates where the optimizer does not count them itself."""

    fragment: Fragment
    parameters: Sequence[Tensor]
    inner: Optimizer
    steps: int

    def names(self) -> list[str]:
        """The names of all that the inner optimizer keeps for the fragment's parameters."""
        states = [named_state(self.inner, self.parameters[i]) for i in self.fragment.tensors]
        return sorted({str(key) for state in states for key in state})

    def has_stepped(self) -> bool:
        """Whether the inner optimizer has trained any of the fragment's parameters, as far as its
        state tells: some have state before the first step."""
        return has_trained(self.inner, [self.parameters[i] for i in self.fragment.tensors])


def has_trained(inner: Optimizer, parameters: Sequence[Tensor]) -> bool:
    """Whether the optimizer has trained any of these parameters, as far as its state tells, or that
    of a base optimizer that it is built around."""
    states = [each.state for each in within(inner)]
    return any(_tells_of_steps(s.get(each), each) for s in states for each in parameters)


def _tells_of_steps(state: Any, parameter: Tensor) -> bool:
    """Whether it counts steps and holds what they left. torch makes the state of a new optimizer by
    a step that changes nothing. Others copy the weights when they are made: such a place follows
    them (`ruined_state.py`)."""
    held = dict(state) if isinstance(state, Mapping) else {"": state}
    step = held.pop("step", None)
    if step is not None and not bool((torch.as_tensor(step) > 0).any()):
        return False
    others = list(_tensors_in(held))
    values = [t for name, t in others if not (is_place(name) and _is_copy(t, parameter))]
    return any(map(_holds_values, values)) if others else step is not None


def _tensors_in(state: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of a state, however it nests them, and their names."""
    if isinstance(state, Tensor):
        yield name, state
    elif isinstance(state, Mapping):
        for key, each in state.items():
            yield from _tensors_in(each, str(key))
    elif isinstance(state, list | tuple):
        for each in state:
            yield from _tensors_in(each, name)


def _is_copy(tensor: Tensor, parameter: Tensor) -> bool:
    """Whether it is equal to the parameter. Tensors of other classes, dtypes or devices may not be
    able to tell: they are none."""
    try:
        return torch.equal(own_part(tensor), own_part(parameter))
    except (RuntimeError, TypeError):
        return False


def _holds_values(tensor: Tensor) -> bool:
    """Whether any element is not zero. Tensors of other classes, such as torchao's quantized state,
    may not be able to tell: these are there, and so is what has made them."""
    try:
        return bool(own_part(tensor).any())
    except (RuntimeError, TypeError):
        return True


# ── reading and correcting ────────────────────────────────────────────────────────────────────────


class _Found(NamedTuple):
    """One state tensor: its place in the fragment, itself (real), its decay and its updates."""

    place: int
    tensor: Tensor
    decay: float
    updates: int


def _find(moment: Moment, fragment_state: FragmentState) -> list[_Found]:
    """The fragment's state tensors of this moment, without those that have seen no update."""
    groups = [
        (decay_of(moment, group), group["params"]) for group in fragment_state.inner.param_groups
    ]
    decays = {id(parameter): decay for decay, params in groups for parameter in params}
    states: list[Mapping[str, Any]] = []
    found: list[tuple[int, Tensor, float]] = []
    for place, index in enumerate(fragment_state.fragment.tensors):
        parameter = fragment_state.parameters[index]
        state = named_state(fragment_state.inner, parameter)
        tensor = _plain(state.get(moment.name), fragment_state.fragment.shapes[place])
        decay = decays.get(id(parameter))
        if tensor is not None and decay is not None:
            states.append(state)
            found.append((place, tensor, decay))
    counts = _counts(states, fragment_state.steps)
    return [_Found(*each, t) for each, t in zip(found, counts, strict=True) if t > 0]


def _plain(value: object, shape: tuple[int, ...]) -> Tensor | None:
    """A state tensor, a complex one as real. None if it is not one plain number for each of the
    parameter: quantized state is not."""
    if not isinstance(value, Tensor):
        return None
    if type(value) not in (Tensor, torch.nn.Parameter) and not is_distributed(value):
        return None
    plain = real(value)
    floats = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    fits = tuple(plain.shape) == shape and plain.dtype in floats and plain.layout is torch.strided
    return plain if fits else None


def _counts(states: Sequence[Mapping[str, Any]], steps: int) -> list[int]:
    """state["step"] of each state, or else `steps`. Counters are fetched all at once, and waited
    for."""
    counters: list[Any] = [state.get("step") for state in states]
    held = [i for i, counter in enumerate(counters) if isinstance(counter, Tensor)]
    for i, fetched in zip(held, _fetched([own_part(counters[i]) for i in held]), strict=True):
        counters[i] = fetched
    return [steps if counter is None else int(counter) for counter in counters]


def _fetched(counters: Sequence[Tensor]) -> list[float]:
    """Counters that are tensors, as numbers."""
    kinds = {(counter.device, counter.dtype, counter.shape) for counter in counters}
    if len(kinds) == 1 and are_plain(counters):
        together = torch.stack(list(counters))
    elif counters:
        # To the host, copies would come without waiting, and `tolist` would not wait for them.
        away = (counter.device for counter in counters if not counter.is_cpu)
        device = next(away, counters[0].device)
        alike = [c.reshape(()).to(device, torch.int64, non_blocking=True) for c in counters]
        together = torch.stack(alike)
    return together.flatten().tolist() if counters else []


@torch.no_grad()
def read(moment: Moment, fragment_state: FragmentState, out: Tensor) -> Updates:
    """Copy a moment into a flat buffer: s / (1 − β^t) if the optimizer corrects it, else s. Tensors
    without the moment become zeros.

    Args:
        moment: which state to read.
        fragment_state: the fragment to read.
        out: receives the values; float32, the fragment's size, on the host or on a GPU.

    Returns:
        t for each tensor: state["step"], or `fragment_state.steps` if the optimizer does not count.
    """
    found = _find(moment, fragment_state)
    parts = _parts(out, fragment_state)
    updates = {each.place: each.updates for each in found}
    copy_each([parts[place] for place in updates], [each.tensor for each in found])
    weights = {each.place: _weight_seen(moment, each.decay, each.updates) for each in found}
    divided = [place for place, weight in weights.items() if weight != 1]
    if divided:
        torch._foreach_div_([parts[place] for place in divided], [weights[p] for p in divided])
    if absent := [part for place, part in enumerate(parts) if place not in updates]:
        torch._foreach_zero_(absent)
    return tuple(updates.get(place, 0) for place in range(len(parts)))


def _parts(flat: Tensor, fragment_state: FragmentState) -> list[Tensor]:
    """Views of a flat buffer, each in the shape of a tensor of the fragment."""
    parameters = fragment_state.parameters
    return shaped(flat, [real(parameters[i]) for i in fragment_state.fragment.tensors])


def _weight_seen(moment: Moment, decay: float, t: int) -> float:
    """1 − β^t, the weight of all terms in an average that starts at zero; 1 if the optimizer does
    not divide by it."""
    return 1 - decay**t if moment.corrected else 1.0


@torch.no_grad()
def correct(moment: Moment, fragment_state: FragmentState, values: Tensor, then: Updates) -> None:
    """s ← s + β^τ (1 − β^t) values, with τ the updates since t.

    The result is rounded once, to the state's dtype. A tensor without this moment, at t or now,
    stays as it is. So does one that counts fewer updates now: it is another tensor.

    Args:
        moment: which state to correct.
        fragment_state: the fragment to correct.
        values: mean − own; float32, the fragment's size, on the host or on a GPU. Their memory is
            used up.
        then: t for each tensor, as `read` returned it.
    """
    parts = _parts(values, fragment_state)
    due = [f for f in _find(moment, fragment_state) if 0 < then[f.place] <= f.updates]
    for batch in batches([each.tensor for each in due]):
        _correct(moment, due[batch], parts, then)


def _correct(
    moment: Moment, found: Sequence[_Found], values: Sequence[Tensor], then: Updates
) -> None:
    """Correct state tensors on one device by the values at their places."""
    targets = [each.tensor for each in found]
    sources = [brought(values[each.place], each.tensor.device) for each in found]
    factors = [
        each.decay ** (each.updates - then[each.place])
        * _weight_seen(moment, each.decay, then[each.place])
        for each in found
    ]
    # Subtract 0 − factor·values, in the wider of both dtypes: adding +0 would turn −0 into +0.
    torch._foreach_mul_(sources, [-factor for factor in factors])
    torch._foreach_add_(sources, 0.0)
    torch._foreach_sub_(targets, sources)
    if moment.nonnegative:
        torch._foreach_clamp_min_(targets, 0)


# ── a mean gradient without its variance ──────────────────────────────────────────────────────────

# Adam and its kin divide exp_avg by one of these: the root of an average of squares, or a maximum.
_MEAN = Moment(name="exp_avg", order="first", decay="betas.0")
_DIVISORS = {
    name: Moment(name=name, order="second", decay="betas.1") for name in ("exp_avg_sq", "exp_inf")
}
#: Leaves room for rounding in narrow dtypes.
SLACK = 2.0


@torch.no_grad()
def clip_first_moment(fragment_state: FragmentState) -> None:
    """Bound the first moment: |m| ≤ 2 κ √v, twice what Adam by itself reaches (Hölder's
    inequality).

    Call it after a round that averaged first moments, because the round may not have averaged
    second ones. A learner that has met no gradient of a rare word's embedding has v = 0 there, and
    the other learners' m over √v + ε would be a step of thousands of learning rates. Averages of
    both moments keep the bound: |Σ wᵢ mᵢ| ≤ κ Σ wᵢ √vᵢ ≤ κ √(Σ wᵢ vᵢ)."""
    for name, divisor in _DIVISORS.items():
        is_maximum = name == "exp_inf"
        divisors = {found.place: found for found in _find(divisor, fragment_state)}
        if not divisors:
            continue
        bound = [
            (m.tensor, divisors[m.place].tensor, kappa)
            for m in _find(_MEAN, fragment_state)
            if m.place in divisors
            if (kappa := _farthest(m.decay, divisors[m.place].decay, m.updates, is_maximum))
            < math.inf
        ]
        for batch in batches([m for m, _, _ in bound]):
            means, found, kappas = zip(*bound[batch], strict=True)
            most = torch._foreach_abs(found) if is_maximum else torch._foreach_sqrt(found)
            torch._foreach_mul_(most, [SLACK * kappa for kappa in kappas])
            torch._foreach_minimum_(means, most)
            torch._foreach_maximum_(means, torch._foreach_neg(most))


@lru_cache(maxsize=64)
def _farthest(beta1: float, beta2: float, t: int, is_maximum: bool) -> float:
    """κ, the largest value of |m| / √v after t updates with v ← β₂ v + (1 − β₂) g². For a maximum,
    of |m| / u with u ← max(β₂ u, |g|)."""
    if beta2 in (0, 1):
        return math.inf
    ratio = beta1 / beta2 if is_maximum else beta1**2 / beta2
    try:
        series = t if ratio == 1 else (1 - ratio**t) / (1 - ratio)
    except OverflowError:
        return math.inf
    return (1 - beta1) * (series if is_maximum else math.sqrt(series / (1 - beta2)))


# ── a newcomer ────────────────────────────────────────────────────────────────────────────────────


@torch.no_grad()
def install(
    moments: Sequence[Moment],
    fragment_state: FragmentState,
    values: Mapping[str, Tensor],
    updates: Mapping[str, Updates],
) -> None:
    """Take over the moments of other learners: s = values (1 − β^T), or s = values where the
    optimizer does not correct, and state["step"] = T, with T > 0 the updates that made them.

    State that the optimizer does not have yet is created. Of one tensor, all moments are taken or
    none: a mean gradient over a variance that is still 0 is worse than none.

    Args:
        moments: all moments of the inner optimizer.
        fragment_state: the fragment; its `steps` are not used.
        values: what `read` reads, by the moments' names; flat float32.
        updates: T for each tensor, by the moments' names.
    """
    groups = {id(p): group for group in fragment_state.inner.param_groups for p in group["params"]}
    for place, index in enumerate(fragment_state.fragment.tensors):
        parameter = fragment_state.parameters[index]
        group = groups.get(id(parameter))
        here = fragment_state.fragment.span(place)
        counts = {
            moment.name: updates[moment.name][place] for moment in moments if moment.name in updates
        }
        if group is None or not any(counts.values()):
            continue
        state = _state_of(parameter, group, fragment_state.inner)
        targets = _targets(moments, state, group, fragment_state.fragment.shapes[place])
        needed = {moment.name for moment, _, _ in targets} | (_DIVISORS.keys() & state.keys())
        if not targets or not all(counts.get(name) for name in needed):
            continue
        made_by = max(counts[name] for name in needed)
        for moment, tensor, decay in targets:
            source = values[moment.name][here].view(tensor.shape)
            tensor.copy_(source * _weight_seen(moment, decay, made_by))
        count(state, group, made_by)
        fragment_state.inner.state[parameter] = state
    most = max((t for counted in updates.values() for t in counted), default=0)
    clip_first_moment(replace(fragment_state, steps=most))


def _state_of(parameter: Tensor, group: Mapping[str, Any], inner: Optimizer) -> dict[str, Any]:
    """The state that the optimizer has for the parameter, or would create for it."""
    state = named_state(inner, parameter)
    if parameter.requires_grad and all(value is None for value in state.values()):
        made = first_state(inner, group, parameter)
        return made if isinstance(made, dict) else {}
    return state


def _targets(
    moments: Sequence[Moment],
    state: Mapping[str, Any],
    group: Mapping[str, Any],
    shape: tuple[int, ...],
) -> list[tuple[Moment, Tensor, float]]:
    """The moments that a parameter's state has, each with its tensor and its decay."""
    found = []
    for moment in moments:
        tensor = _plain(state.get(moment.name), shape)
        decay = decay_of(moment, group)
        if tensor is not None and decay is not None:
            found.append((moment, tensor, decay))
    return found
