"""The state of an inner optimizer whose weights were ruined. Its moments are those of the gradients
at such weights, so they would ruin the next weights, too.

Only the training thread calls this."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from mend_optim.model.moment_state import FragmentState


@torch.no_grad()
def reset_moments(fragment_state: FragmentState) -> None:
    """Set to 0 every floating-point state tensor of the fragment's parameters that has the
    parameter's shape, as moments do, or that is not finite. Counters stay: learning rate schedules
    and averages of moments go by them."""
    for index in fragment_state.fragment.tensors:
        parameter = fragment_state.parameters[index]
        state = fragment_state.inner.state.get(parameter) or {}
        moments = {name: value for name, value in state.items() if name != "step"}
        for tensor in _floats(moments):
            if tensor.shape == parameter.shape or not bool(torch.isfinite(tensor).all()):
                tensor.zero_()


def _floats(state: Any) -> Iterator[Tensor]:
    """The floating-point and complex tensors in a state, however it nests them."""
    if isinstance(state, Tensor):
        if state.is_floating_point() or state.is_complex():
            yield state
    elif isinstance(state, dict):
        for value in state.values():
            yield from _floats(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from _floats(value)
