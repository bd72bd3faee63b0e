"""The face of the inner optimizer that a `MendOptimizer` shows."""

from __future__ import annotations

from typing import Any, ClassVar

from torch.optim import SGD, Optimizer

from mend_optim.errors import UsageError
from mend_optim.own_methods import heeded
from mend_optim.training_run import TrainingRun


class InnerFace(Optimizer):
    """An optimizer whose groups, state and other attributes are those of its inner optimizer."""

    #: The arguments of the constructor, which cannot be changed afterwards.
    _arguments: ClassVar[frozenset[str]] = frozenset()
    #: All state that changes: other libraries make objects that share an optimizer's attributes.
    _run: TrainingRun

    @property
    def inner(self) -> Optimizer:
        """The inner optimizer."""
        return self._run.inner

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The inner optimizer's own groups: a scheduler may change them through either."""
        return self.inner.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.inner.param_groups = groups

    @property
    def state(self) -> Any:
        """The inner optimizer's own state."""
        return self.inner.state

    @state.setter
    def state(self, state: Any) -> None:
        self.inner.state = state

    @property
    def defaults(self) -> dict[str, Any]:
        """The inner optimizer's own defaults."""
        return self.inner.defaults

    @defaults.setter
    def defaults(self, defaults: dict[str, Any]) -> None:
        self.inner.defaults = defaults

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether a `GradScaler` may leave overflows to the inner `step`. Not to the first one of
        an SGD: if it skips that, its momentum begins as uninitialised memory."""
        inner = self.inner
        has_momentum = any(group.get("momentum") for group in inner.param_groups)
        begins = isinstance(inner, SGD) and has_momentum and not inner.state
        return getattr(inner, "_step_supports_amp_scaling", False) and not begins

    def __getattr__(self, name: str) -> Any:
        """Attributes of the inner optimizer, such as the hooks that were registered."""
        if name == "_run" or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return heeded(self._run, getattr(self.inner, name))

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the inner optimizer, unless it is one of this object or its class.
        Raises `UsageError` for arguments of the constructor, which are read once."""
        is_wrapped = "_run" in vars(self)
        if not is_wrapped or name in vars(self) or hasattr(type(self), name):
            # A subclass may set attributes of its own before it calls this class's constructor.
            super().__setattr__(name, value)
        elif name in self._arguments and not hasattr(self.inner, name):
            raise UsageError(
                f"{name} must be given to the constructor, got {name} = {value!r} afterwards; make "
                "a new MendOptimizer around the inner optimizer"
            )
        else:
            setattr(self.inner, name, value)

    def __delattr__(self, name: str) -> None:
        if name in vars(self) or hasattr(type(self), name):
            super().__delattr__(name)
        else:
            delattr(self.inner, name)
