"""The errors of this library, by whose fault they are.

MendError
├── UsageError   the local user's mistake: raised at construction or in `step()`, never sent
├── PeerError    the other side's fault: recorded and refused, never raised into training
└── ClosedError  the optimizer was closed and is asked for something that needs its peers
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields
from numbers import Integral, Real
from operator import index
from typing import Any, NoReturn


class MendError(Exception):
    """Base class of every error of this library.

    Raised by itself, once, from `step()` when a background thread has failed, with the reason as
    its cause. Training then goes on alone.

    Example:
        >>> issubclass(UsageError, MendError)
        True
    """


class UsageError(MendError, ValueError):
    """The local user's mistake. It names the argument, its bound, its value and the remedy.

    Example:
        >>> from mend_optim import Nesterov
        >>> Nesterov(gain=0)
        Traceback (most recent call last):
            ...
        mend_optim.errors.UsageError: outer.gain must be in (0, 10], got 0
    """


class PeerError(MendError):
    """The other side broke the protocol. Its message is refused and reported in an event of kind
    "fault"; the error is never raised into your training loop.

    Example:
        >>> issubclass(PeerError, UsageError)
        False
    """


class ClosedError(MendError, RuntimeError):
    """The optimizer was closed. It still steps, but it no longer takes part in rounds.

    Example:
        >>> from torch.nn import Parameter
        >>> from torch.optim import SGD
        >>> from mend_optim import MendOptimizer
        >>> import torch
        >>> optimizer = MendOptimizer(SGD([Parameter(torch.ones(2))]), listen="127.0.0.1:0")
        >>> optimizer.close()
        >>> try:
        ...     optimizer.synchronize()
        ... except ClosedError as error:
        ...     print(error)
        this optimizer was closed; it still steps, but it has no peers to wait for
    """


def is_number(value: object) -> bool:
    """Whether `value` is a number that can be compared with a bound, and that a float can hold;
    True and False are not."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def plain_number(value: Any) -> Any:
    """A number of numpy's or torch's as Python's own int or float; anything else as it is.

    Learners compare the text of their settings, and `numpy.int64(8)` must read 8 there."""
    # a truth value of torch, or of a numpy before 2, would pass for 0 or 1
    if isinstance(value, bool) or str(getattr(value, "dtype", "")) in ("torch.bool", "bool"):
        return value
    # a tensor on the meta device raises `RuntimeError`
    with suppress(TypeError, OverflowError, RuntimeError):
        is_fraction = isinstance(value, Real) and not isinstance(value, Integral)
        return float(value) if is_fraction else index(value)
    return value


def take_plain_numbers(record: Any) -> None:
    """Make the numbers of a frozen dataclass plain, before they are checked."""
    for field in fields(record):
        object.__setattr__(record, field.name, plain_number(getattr(record, field.name)))


def items_of(value: Any) -> list[Any] | None:
    """The items of an iterable; None if `value` is none. An array or a tensor without dimensions
    has the type of an iterable and is none."""
    try:
        items = iter(value)
    except TypeError:
        return None
    return list(items)


def require(holds: bool, argument: str, value: object, bound: str, remedy: str = "") -> None:
    """Raise `UsageError("argument must be bound, got value; remedy")` unless `holds`."""
    if not holds:
        raise UsageError(
            f"{argument} must be {bound}, got {value!r}" + (f"; {remedy}" if remedy else "")
        )


def require_instance(argument: str, value: object) -> None:
    """Raise `UsageError` if a class was passed in place of an instance of it."""
    if isinstance(value, type):
        require(False, argument, value, "an instance", f"write {argument}={value.__name__}()")


def unreachable(value: NoReturn) -> NoReturn:
    """Stands in the last case of a `match` over a closed union: mypy proves that no value gets
    there."""
    raise AssertionError(f"no case for {value!r}")


def whole_number(argument: str, value: object) -> int:
    """An argument that counts something, as an int.

    Raises:
        UsageError: the value is no whole number of at least 0.
    """
    number = plain_number(value)
    require(type(number) is int and number >= 0, argument, value, "an int >= 0")
    return int(number)
