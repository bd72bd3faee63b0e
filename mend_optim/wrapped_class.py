"""The classes of wrapped optimizers. A wrapped `AdamW` is an `AdamW`, too: libraries ask for that,
log the name of the class, and call methods that only it has."""

from __future__ import annotations

import copyreg
from collections.abc import Mapping
from functools import cache, wraps
from typing import Any

from torch.optim import Optimizer


class _Forwarded:
    """An attribute of the inner optimizer's class: read, written and deleted in the inner
    optimizer, whose methods therefore see their own object."""

    def __init__(self, inner: type, name: str) -> None:
        self._inner = inner
        self._name = name

    def __get__(self, wrapped: Any, owner: type) -> Any:
        return getattr(self._inner if wrapped is None else wrapped.inner, self._name)

    def __set__(self, wrapped: Any, value: Any) -> None:
        setattr(wrapped.inner, self._name, value)

    def __delete__(self, wrapped: Any) -> None:
        delattr(wrapped.inner, self._name)


def wrapped_class(wrapper: type, inner: type[Optimizer]) -> type:
    """The class of a `wrapper` around an `inner` optimizer: a subclass of both, with the name of
    the inner class.

    The wrapper's attributes come first; all others of the inner class are those of the inner
    optimizer. Classes that cannot have a common subclass leave the wrapper as it is."""
    if issubclass(wrapper, inner):
        return wrapper
    try:
        return _common_subclass(wrapper, inner)  # type: ignore[arg-type]
    except TypeError:
        return wrapper


@cache
def _common_subclass(wrapper: type, inner: type) -> type:
    classes = inner.__mro__[: inner.__mro__.index(Optimizer)]
    theirs = {name for cls in classes for name in vars(cls) if not name.startswith("__")}
    ours = {name for cls in wrapper.__mro__ for name in vars(cls) if cls not in inner.__mro__}
    attributes: dict[str, Any] = {name: _Forwarded(inner, name) for name in theirs - ours}
    attributes |= {"__module__": wrapper.__module__, "__doc__": wrapper.__doc__}
    attributes["_wrapper"] = wrapper
    return type(inner)(inner.__name__, (wrapper, inner), attributes)


def wrapper_of(cls: type) -> type:
    """The wrapper that a class of a wrapped optimizer was made of."""
    return getattr(cls, "_wrapper", cls)


def unwrapped(wrapper: type) -> object:
    """An instance of a wrapper that wraps nothing yet, for `pickle` and `copy`."""
    return object.__new__(wrapper)


class _Constructing(type):
    """The class of classes that `constructing_class` makes. `pickle` makes them again."""


def constructing_class(
    wrapper: type, inner: type[Optimizer], arguments: Mapping[str, Any]
) -> type[Any]:
    """A class with the arguments of the inner class, whose instances are wrapped with the other
    arguments."""
    base = wrapped_class(wrapper, inner)
    initialise: Any = wrapper.__init__  # type: ignore[misc]

    @wraps(inner.__init__)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        initialise(self, inner(*args, **kwargs), **arguments)

    kind = _constructing(type(base))
    made_of = (wrapper, inner, dict(arguments))
    attributes = {"__init__": construct, "_made_of": made_of, "__module__": base.__module__}
    made: type[Any] = kind(inner.__name__, (base,), attributes)
    return made


@cache
def _constructing(kind: type) -> type:
    """A class of classes that can be pickled, which agrees with the inner class's own."""
    made = type("_Constructing", (_Constructing, kind), {}) if kind is not type else _Constructing
    copyreg.pickle(made, _reduce)
    return made


def _reduce(cls: Any) -> Any:
    return constructing_class, cls._made_of
