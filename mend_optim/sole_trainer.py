"""Two learners of one process don't train the same parameter.

Each would write weights that the other has copied, and offer the other's work as its own. So what
was learned would be merged twice."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Protocol
from weakref import WeakValueDictionary

from torch import Tensor
from torch.optim import Optimizer

from mend_optim.errors import UsageError
from mend_optim.model.layout import is_distributed
from mend_optim.settings import Settings
from mend_optim.wrapped_parameters import WrappedParameters


class Trainer(Protocol):
    """The part of a `TrainingRun` that this module needs."""

    inner: Optimizer
    model: WrappedParameters
    settings: Settings

    @property
    def takes_part(self) -> bool:
        """Whether it has begun to train with peers, and has not been closed."""


# By `id`, the runs that have begun to train with peers. Learners may begin on several threads, and
# the values of a dictionary, unlike those of a weak set, can be listed meanwhile.
_trainers: WeakValueDictionary[int, Trainer] = WeakValueDictionary()


def refuse_second(run: Trainer) -> None:
    """This run is about to train its parameters with peers. Raise `UsageError` if another run that
    takes part has the same inner optimizer or any of the same parameters."""
    if _clash(run):
        # The other run may be garbage. A notebook cell that runs again lets go of the earlier one.
        gc.collect()
    if clash := _clash(run):
        raise UsageError(clash)
    _trainers[id(run)] = run


def refuse_added(run: Trainer) -> None:
    """This run has been given more parameters. Raise `UsageError` if it trains them with peers, and
    so does another run."""
    if run.takes_part:
        refuse_second(run)


def _clash(run: Trainer) -> str:
    """The parameter that this run and another share, and the remedy; "" if they share none."""
    for other in _others(run):
        earlier = other.settings.name
        if other.inner is run.inner:
            return (
                "inner must be an optimizer that no other MendOptimizer trains with peers, got "
                f"{type(run.inner).__name__}; the learner {earlier!r} of this process trains it: "
                "call close() of its MendOptimizer, or mend_optim.close_all(), before you step "
                "with another"
            )
        if name := _common_parameter(run, other):
            return (
                f"parameter {name} must not be a parameter of another MendOptimizer with peers, "
                f"got one that the learner {earlier!r} of this process trains; what others "
                "learned would be added to it twice: give each parameter, frozen ones too, to one "
                "inner optimizer, or call close() of the other MendOptimizer first"
            )
    return ""


def _others(run: Trainer) -> Iterator[Trainer]:
    for reference in _trainers.valuerefs():
        other = reference()
        if other is not None and other is not run and other.takes_part:
            yield other


def _common_parameter(run: Trainer, other: Trainer) -> str:
    """The name of the first parameter of this run that the other run has, too; "" without one."""
    theirs = set(map(_memory, other.model.merged))
    for group in run.model.named_groups():
        for name, tensor in group:
            if _memory(tensor) in theirs:
                return name
    return ""


def _memory(tensor: Tensor) -> object:
    """Equal for two tensors that are one, or that start at the same memory."""
    if is_distributed(tensor) or not tensor.numel() or not tensor.data_ptr():
        return id(tensor)
    return tensor.device, tensor.data_ptr()
