"""Numbers with units, as a user writes them: 1.3e9, 50mbit, 40ms."""

from __future__ import annotations

import math
import re

from mend_optim.errors import UsageError

_NUMBER = re.compile(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-z/]*)\s*", re.IGNORECASE)
COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
RATES = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "kb": 8e3, "mb": 8e6, "gb": 8e9}
TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "min": 60.0}


def count_given(argument: str, text: str) -> float:
    """A number of things: "1.3e9" or "1.3G"."""
    return _read(argument, text, COUNTS, "a number such as 1.3e9, 350M or 7G")


def rate_given(argument: str, text: str) -> float:
    """Bits per second: "50mbit" or "6MB/s"."""
    bare = text.lower().removesuffix("/s").removesuffix("ps")
    return _read(argument, text, RATES, "a rate such as 50mbit, 1gbit or 6MB/s", bare)


def seconds_given(argument: str, text: str) -> float:
    """Seconds: "40ms", "0.8s" or "0.8"."""
    return _read(argument, text, TIMES, "a time such as 40ms or 0.8s")


def _read(
    argument: str, text: str, units: dict[str, float], bound: str, bare: str | None = None
) -> float:
    match = _NUMBER.fullmatch(text if bare is None else bare)
    unit = units.get(match[2].lower()) if match else None
    try:
        number = float(match[1]) * unit if match and unit else math.nan
    except ValueError:
        number = math.nan
    if not 0 < number < 1e18:
        raise UsageError(f"{argument} must be {bound}, got {text!r}")
    return number
