"""Goals of measured numbers: "<= 1.5" or ">= 0.98"; an empty string where there is none."""

from __future__ import annotations

import operator
from collections.abc import Callable

RELATIONS: dict[str, Callable[[float, float], bool]] = {"<=": operator.le, ">=": operator.ge}


def met(value: float, goal: str) -> bool | None:
    """Whether the value reaches the goal; None without one."""
    if not goal:
        return None
    relation, bound = goal.split()
    return RELATIONS[relation](value, float(bound))
