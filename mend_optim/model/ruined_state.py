"""The state of an inner optimizer whose weights were ruined. Its moments are those of the gradients
at such weights, so they would ruin the next weights, too.

Only the training thread calls this."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import LBFGS, Optimizer

from mend_optim.model.copies import own_part
from mend_optim.model.first_state import (
    PLACES,
    count,
    first_state,
    is_empty,
    is_place,
    named_state,
    within,
)
from mend_optim.model.layout import is_distributed
from mend_optim.model.moment_state import FragmentState

# For optimizers whose first state cannot be had: words in the names of moments.
_MOMENT_WORDS = ("avg", "moment", "grad", "variance", "exp_inf", "acc_delta")
# What Adagrad's sums begin with. In torch 2.4, it makes its state with itself, and in no step.
_FIRST_SUM = "initial_accumulator_value"
# Where a parameter group has counters, sums and maxima, and what they begin with: the updates, as
# most count them, and as schedule-free and Prodigy do; schedule-free's weights of its averages of
# places, and its learning rates; Prodigy's products.
_AVERAGING = "weight_sum"
_BEGINNINGS = {"step": 0, "k": 0, _AVERAGING: 0.0, "lr_max": -1.0, "d_numerator": 0.0}


@torch.no_grad()
def reset_state(fragment_state: FragmentState, moments: Collection[str] = ()) -> None:
    """Give the fragment's parameters the state of an optimizer that begins with them as they are.

    Moments are 0, and so is the number of their updates: with the old number, Adam would take m = 0
    and v = 0 for averages over as many steps, and its next steps would be up to 25 times too long.
    State that is a place in parameter space becomes the parameter. Tensors keep their memory, which
    a compiled step may hold. So it is with the state of a base optimizer that the inner one is
    built around.

    Args:
        fragment_state: the fragment; its `steps` are not used.
        moments: the names of its moments, beside those that their names tell.
    """
    mine = {id(fragment_state.parameters[i]) for i in fragment_state.fragment.tensors}
    optimizers = within(fragment_state.inner)
    # They may share one list of groups. What is an option of one is no counter of another.
    defaults = ChainMap(*(getattr(each, "defaults", {}) for each in optimizers))
    # Where they share their state, it begins as that of the outermost one, which steps the others.
    for inner in {id(each.state): each for each in reversed(optimizers)}.values():
        for group in inner.param_groups:
            found = [parameter for parameter in group["params"] if id(parameter) in mine]
            if found:
                _restart(group, defaults)
                if _AVERAGING in group:
                    _let_averages_begin(inner, [p for p in group["params"] if id(p) not in mine])
            for parameter in found:
                _renew(inner, group, parameter, moments)


def _renew(
    inner: Optimizer, group: dict[str, Any], parameter: Tensor, moments: Collection[str]
) -> None:
    """Give one parameter the state of an optimizer that begins with it."""
    state: Any = inner.state.get(parameter)
    if is_empty(state):
        return
    if isinstance(inner, LBFGS):
        # Its first step begins with no state, and no other step can make the first one.
        state.clear()
        return
    fresh = first_state(inner, group, parameter)
    inner.state[parameter] = _Renewal(parameter, moments, group).renew(state, fresh)
    count(named_state(inner, parameter), group, 0)


def _restart(group: dict[str, Any], defaults: Mapping[str, Any]) -> None:
    """Begin the group's counters, sums and maxima anew. An option of such a name has another
    default, and stays."""
    for name, beginning in _BEGINNINGS.items():
        value = group.get(name)
        if defaults.get(name, beginning) != beginning:
            continue
        if isinstance(value, Tensor):
            value.fill_(beginning)
        elif isinstance(value, int | float):
            group[name] = type(value)(beginning)


def _let_averages_begin(inner: Optimizer, others: Sequence[Tensor]) -> None:
    """Keep the weights of other fragments where they are. The group averages places over its steps,
    and a new average begins at the place: their next step would throw away all that they averaged
    out so far."""
    for parameter in others:
        state = named_state(inner, parameter)
        for place in [state[name] for name in PLACES if name in state]:
            if isinstance(place, Tensor) and place.shape == parameter.shape:
                place.copy_(parameter)


class _Renewal:
    """Writes the first state of a parameter into the state that there is.

    Args:
        parameter: the owner of the state.
        moments: the names of moments, beside those that their names tell.
        group: the parameter's group.
    """

    def __init__(
        self, parameter: Tensor, moments: Collection[str], group: Mapping[str, Any]
    ) -> None:
        self.parameter = parameter
        self.moments = moments
        self.group = group

    def renew(self, held: Any, fresh: Any, name: str = "") -> Any:
        """Return the successor of `held`: itself with the values of `fresh`, however a state nests
        them, or the number in `fresh`."""
        if isinstance(held, Tensor):
            self._renew_tensor(held, fresh, name)
        elif isinstance(held, dict):
            found = fresh if isinstance(fresh, dict) else {}
            for key in held:
                held[key] = self.renew(held[key], found.get(key), str(key))
        elif isinstance(held, list | tuple):
            is_alike = isinstance(fresh, list | tuple) and len(fresh) == len(held)
            values = fresh if is_alike else [None] * len(held)
            for each, value in zip(held, values, strict=True):
                self.renew(each, value, name)
        elif isinstance(held, int | float) and type(fresh) is type(held):
            return fresh
        return held

    def _renew_tensor(self, held: Tensor, fresh: Any, name: str) -> None:
        if isinstance(fresh, Tensor) and fresh.shape == held.shape:
            held.copy_(fresh)
            if _is_plain_float(held):
                # With ε = 0, some divide the zero gradient by 0.
                own = own_part(held)
                own.masked_fill_(own.isnan(), 0)
        elif held.is_floating_point() or held.is_complex():
            self._clear(held, name)

    def _clear(self, held: Tensor, name: str) -> None:
        """Without a first state: a moment begins at 0, and what may be a place stays where it is,
        or begins at the parameter if it is not finite. A moment that looks like a place decays from
        there; a place at 0 would draw the weights to 0."""
        is_alike = held.shape == self.parameter.shape
        is_moment = name in self.moments or any(word in name for word in _MOMENT_WORDS)
        is_ruined = is_place(name) or not bool(torch.isfinite(own_part(held)).all())
        if is_alike and name == "sum" and _FIRST_SUM in self.group:
            first = self.group[_FIRST_SUM]
            held.fill_(complex(first, first) if held.is_complex() else first)
        elif is_alike and is_moment:
            held.zero_()
        elif is_ruined and is_alike:
            held.copy_(self.parameter)
        elif is_ruined:
            held.zero_()


def _is_plain_float(tensor: Tensor) -> bool:
    is_plain = type(tensor) in (Tensor, Parameter) or is_distributed(tensor)
    return is_plain and (tensor.is_floating_point() or tensor.is_complex())
