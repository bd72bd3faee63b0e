"""Numbers that a script reports, such as its loss: their checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mend_optim.errors import require
from mend_optim.protocol.sight import REPORTED_LIMIT, REPORTED_NAME

Report = Mapping[str, float]


def read_report(numbers: Mapping[str, Any]) -> dict[str, float]:
    """Check names and numbers. Raises `UsageError`."""
    require(bool(numbers), "report()", "nothing", "at least one number, such as loss=0.12")
    read = {}
    for name, value in numbers.items():
        bound = f"a printable name of at most {REPORTED_NAME} characters"
        require(name.isprintable() and 0 < len(name) <= REPORTED_NAME, "name", name, bound)
        try:
            # A loss that has a gradient: torch warns of its number otherwise.
            read[name] = float(value.detach() if isinstance(value, Tensor) else value)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            require(False, name, value, "a number, or a tensor of one element")
    return read


def merged_report(former: Report, newer: Report) -> Report:
    """The newest value under each name. Raises `UsageError` if there are too many names."""
    merged = {**former, **newer}
    bound = f"at most {REPORTED_LIMIT} names in all"
    require(len(merged) <= REPORTED_LIMIT, "report()", len(merged), bound, "report fewer")
    return merged
