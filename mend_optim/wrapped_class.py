"""The classes of wrapped optimizers. A wrapped `AdamW` is an `AdamW`, too: libraries ask for that,
log the name of the class, and call methods that only it has."""

from __future__ import annotations

import copyreg
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, wraps
from typing import Any
from weakref import ref

from torch.optim import Optimizer

from mend_optim.errors import require
from mend_optim.own_methods import heeded

#: Methods whose arguments the wrapper hands on: they show the inner class's signature. Libraries
#: look there for `set_to_none` or `grad_scaler` before they pass it.
HANDED_ON = ("step", "zero_grad", "state_dict", "load_state_dict", "add_param_group")
#: Methods that take a hook, which is called with the optimizer as its first argument.
TAKES_HOOK = (
    "register_step_pre_hook",
    "register_step_post_hook",
    "register_state_dict_pre_hook",
    "register_state_dict_post_hook",
    "register_load_state_dict_pre_hook",
    "register_load_state_dict_post_hook",
)
#: How a class copies and ends its instances. These methods are for the inner optimizer alone: the
#: wrapper copies and closes itself.
OWN_LIFE: dict[str, Any] = {"__copy__": None, "__deepcopy__": None, "__del__": lambda _: None}


class _Forwarded:
    """An attribute of the inner optimizer's class: read, written and deleted in the inner
    optimizer, whose methods therefore see their own object."""

    def __init__(self, inner: type, name: str) -> None:
        self._inner = inner
        self._name = name

    def __get__(self, wrapped: Any, owner: type) -> Any:
        if wrapped is None:
            return getattr(self._inner, self._name)
        return heeded(wrapped._run, getattr(wrapped.inner, self._name))

    def __set__(self, wrapped: Any, value: Any) -> None:
        setattr(wrapped.inner, self._name, value)

    def __delete__(self, wrapped: Any) -> None:
        delattr(wrapped.inner, self._name)


class _Hook:
    """A hook that was registered at a wrapped optimizer: it is called with that one, where the
    inner optimizer would call it with itself."""

    def __init__(self, wrapped: Any, hook: Callable[..., Any]) -> None:
        # The hooks are in the inner optimizer. Without peers it outlives its wrapper.
        self._wrapped = ref(wrapped)
        self._hook = hook

    def __call__(self, inner: Any, *args: Any, **kwargs: Any) -> Any:
        wrapped = self._wrapped()
        return self._hook(inner if wrapped is None else wrapped, *args, **kwargs)


class _Unannounced:
    """A class that is made for a wrapper. The inner class does not hear that it has a subclass,
    because it may keep a register of its subclasses by name."""

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if "_wrapper" not in vars(cls):
            super().__init_subclass__(**kwargs)


def take_class(wrapped: Any, inner: type[Optimizer]) -> None:
    """Let a wrapped optimizer be of its `wrapped_class`, if Python can do that."""
    with suppress(TypeError):
        object.__setattr__(wrapped, "__class__", wrapped_class(type(wrapped), inner))


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
    attributes |= {name: _handed_on(wrapper, inner, name) for name in HANDED_ON}
    attributes |= {name: _taking_hook(inner, name) for name in TAKES_HOOK}
    attributes |= {name: OWN_LIFE[name] for name in OWN_LIFE if hasattr(inner, name)}
    attributes |= {"__module__": wrapper.__module__, "__doc__": wrapper.__doc__}
    attributes |= {"__init__": _initialize(wrapper, inner), "__dir__": _names}
    attributes["_wrapper"] = wrapper
    # Python can change a wrapper's class only to one whose first base is the wrapper's.
    return type(inner)(inner.__name__, (wrapper, _Unannounced, inner), attributes)


def _handed_on(wrapper: type, inner: type, name: str) -> Callable[..., Any]:
    """The wrapper's method, with the signature of the inner class's."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(wrapper, name)(self, *args, **kwargs)

    theirs = getattr(inner, name)
    method.__name__, method.__doc__ = name, theirs.__doc__
    with suppress(TypeError, ValueError):
        method.__signature__ = inspect.signature(theirs)  # type: ignore[attr-defined]
    return method


def _taking_hook(inner: type, name: str) -> Callable[..., Any]:
    """The inner optimizer's method, which takes a hook of the wrapper's."""

    @wraps(getattr(inner, name))
    def register(self: Any, hook: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return getattr(self.inner, name)(_Hook(self, hook), *args, **kwargs)

    return register


def _initialize(wrapper: type, inner: type) -> Callable[..., None]:
    """The constructor of a class of wrapped optimizers. Libraries make one more optimizer of the
    same class by `type(optimizer)(parameters, **optimizer.defaults)`: that one is wrapped without
    peers, because two learners have no address in common.

    A wrapped optimizer that a `__new__` returns is not initialized again."""
    construct: Any = wrapper.__init__  # type: ignore[misc]

    @wraps(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if "_run" in vars(self):
            return
        if any(isinstance(given, Optimizer) for given in (*args[:1], kwargs.get("inner"))):
            construct(self, *args, **kwargs)
        else:
            construct(self, inner(*args, **kwargs))

    return __init__


def _names(wrapped: Any) -> list[str]:
    """The names of a wrapped optimizer's attributes, with those of the inner one."""
    return sorted({*object.__dir__(wrapped), *dir(wrapped.inner)})


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
    arguments. Raises `UsageError` if it is given something else than a class of optimizers."""
    is_class = isinstance(inner, type) and issubclass(inner, Optimizer)
    kind = getattr(inner, "__name__", f"an instance of {type(inner).__name__}")
    remedy = "write MendOptimizer(…) around an optimizer"
    require(is_class, "inner", kind, "a class of optimizers", remedy)
    base = wrapped_class(wrapper, inner)
    initialise: Any = wrapper.__init__  # type: ignore[misc]

    @wraps(inner.__init__)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        initialise(self, inner(*args, **kwargs), **arguments)

    of_classes = _constructing(type(base))
    made_of = (wrapper, inner, dict(arguments))
    attributes = {"__init__": construct, "_made_of": made_of, "__module__": base.__module__}
    made: type[Any] = of_classes(inner.__name__, (base,), attributes)
    return made


@cache
def _constructing(kind: type) -> type:
    """A class of classes that can be pickled, which agrees with the inner class's own."""
    made = type("_Constructing", (_Constructing, kind), {}) if kind is not type else _Constructing
    copyreg.pickle(made, _reduce)
    return made


def _reduce(cls: Any) -> Any:
    return constructing_class, cls._made_of
