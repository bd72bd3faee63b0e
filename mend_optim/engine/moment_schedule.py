"""Which moments of an inner optimizer there are, and in which rounds they are averaged (DES-LOC,
arXiv 2505.22549)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from mend_optim.errors import is_number, require, take_plain_numbers

ORDERS = ("first", "second")


HALF_LIFE = "half_life"


Updates = tuple[int, ...]
"""For each tensor of a fragment, how many updates its moment has seen; 0: there is no such
state."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """One kind of state tensor, `optimizer.state[parameter][name]`, of an optimizer that is not
    known here.

    Args:
        name: the key in the optimizer's state of a parameter.
        order: the period of `MomentSchedule` that it follows, "first" or "second".
        decay: β, in [0, 1), or the place in a parameter group that has it, such as "betas.0".
        corrected: whether the optimizer divides it by 1 − β^t.
        nonnegative: whether it is an average of squares.
        exact: whether it always travels as float32, because small differences of it matter.

    Raises:
        UsageError: an argument is out of its bounds.

    Example:
        >>> Moment(name="exp_avg", order="first", decay="betas.0").corrected
        False
    """

    name: str
    order: str
    decay: float | str
    corrected: bool = False
    nonnegative: bool = False
    exact: bool = False

    def __post_init__(self) -> None:
        take_plain_numbers(self)
        require(
            isinstance(self.name, str) and self.name != "",
            "moment.name",
            self.name,
            "the name of a state tensor",
        )
        require(self.order in ORDERS, "moment.order", self.order, f"one of {list(ORDERS)}")
        by_path = isinstance(self.decay, str) and self.decay != ""
        require(
            by_path or (is_number(self.decay) and 0 <= float(self.decay) < 1),
            "moment.decay",
            self.decay,
            'in [0, 1), or where a parameter group has it, as "betas.0"',
        )


@dataclass(frozen=True, kw_only=True)
class MomentSchedule:
    """How often the inner optimizer's moments are averaged (DES-LOC, arXiv 2505.22549).

    Args:
        first: the period of first moments, in outer rounds: an int of at least 1, or "half_life",
            the rounds in which a moment forgets half. An automatic period counts as 20 steps there,
            because it is not known yet.
        second: the period of second moments, likewise.
        states: the moments of an optimizer that is not known here, with different names.

    Raises:
        UsageError: an argument is out of its bounds.

    Example:
        >>> schedule = MomentSchedule(first=3, second=6)
        >>> [version for version in range(1, 10) if schedule.due(version, "first")]
        [3, 6, 9]
    """

    first: int | str = 3
    second: int | str = 6
    states: tuple[Moment, ...] = ()

    def __post_init__(self) -> None:
        take_plain_numbers(self)
        for order in ORDERS:
            period = getattr(self, order)
            whole = type(period) is int and period >= 1
            require(
                whole or period == HALF_LIFE,
                f"moments.{order}",
                period,
                f'an int >= 1 or "{HALF_LIFE}"',
            )
        named = isinstance(self.states, tuple) and all(
            isinstance(state, Moment) for state in self.states
        )
        require(named, "moments.states", self.states, "a tuple of Moment(...)")
        names = [state.name for state in self.states]
        require(len(set(names)) == len(names), "moments.states", names, "different names")

    def resolve(self, decays: Mapping[str, float], sync_every: int) -> MomentSchedule:
        """With half lives as rounds of `sync_every` steps; `decays` are the largest of each order.
        Raises `UsageError`."""
        periods = {}
        for order in ORDERS:
            if getattr(self, order) == HALF_LIFE:
                decay = decays.get(order, 0.0)
                remedy = f"a decay of {decay} never forgets half"
                require(
                    decay < 1,
                    f"moments.{order}",
                    HALF_LIFE,
                    "an int >= 1 for this optimizer",
                    remedy,
                )
                periods[order] = max(1, round(half_life(decay) / sync_every))
        return replace(self, **periods)  # type: ignore[arg-type]

    @property
    def rounds(self) -> tuple[tuple[str, int], ...]:
        """The period of each order, once half lives are resolved."""
        return tuple((order, int(getattr(self, order))) for order in ORDERS)

    def due(self, version: int, order: str) -> bool:
        """Whether the round that makes this version brings the moments of that order."""
        return version % dict(self.rounds)[order] == 0


def half_life(decay: float) -> float:
    """ln ½ / ln β: the updates in which a moment forgets half."""
    return math.log(0.5) / math.log(decay) if decay > 0 else 0.0
