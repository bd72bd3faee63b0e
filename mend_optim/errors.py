"""Who is to blame: the local user, the other side, or nobody (a closed learner).

MendError
├── UsageError   the local user's mistake; raised at construction or in `step()`, never crosses the wire
├── PeerError    the other side's fault; recorded and refused, never raised into training
└── ClosedError  the optimizer was closed and is asked for something that needs its peers
"""

from __future__ import annotations

from numbers import Real
from typing import NoReturn


class MendError(Exception):
    """Base class of every error of this library."""


class UsageError(MendError, ValueError):
    """The local user's mistake: names the argument, its value, the bound and the remedy."""


class PeerError(MendError):
    """The other side broke the protocol: what it sent is refused, named and survived."""


class ClosedError(MendError, RuntimeError):
    """The optimizer was closed: it still steps, but takes part in no round any more."""


def is_number(value: object) -> bool:
    """Whether `value` can be compared with a bound; True and False are not meant as numbers."""
    return isinstance(value, Real) and not isinstance(value, bool)


def require(holds: bool, argument: str, value: object, bound: str, remedy: str = "") -> None:
    """Raise `UsageError("argument must be bound, got value; remedy")` unless `holds`."""
    if not holds:
        raise UsageError(
            f"{argument} must be {bound}, got {value!r}" + (f"; {remedy}" if remedy else "")
        )


def unreachable(value: NoReturn) -> NoReturn:
    """The last case of a `match` over a closed union: mypy proves that nothing is left for it."""
    raise AssertionError(f"no case for {value!r}")
