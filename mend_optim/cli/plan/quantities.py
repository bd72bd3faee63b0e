"""Numbers with units, as a user writes them: 1.3e9, 50mbit, 40ms."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from mend_optim.errors import require

_NUMBER = re.compile(r"\s*(-?[0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-z/]*)\s*", re.IGNORECASE)
_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
_BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
_BYTES = {"kb": 8e3, "mb": 8e6, "gb": 8e9, "tb": 8e12}
# A bare number could be milliseconds, as `ping` shows them, or seconds.
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """The numbers that an argument takes. Bounds are far beyond all that anybody plans: they show a
    slip.

    Attributes:
        units: the factor of each unit, by its name in lower case.
        least, most: the bounds.
        bound: the bounds and examples, in words.
        remedy: advice on the value to give.
        per_s: whether the unit may say "/s" or "ps", too.
    """

    units: Mapping[str, float]
    least: float
    most: float
    bound: str
    remedy: str
    per_s: bool = False

    def read(self, argument: str, text: str) -> float:
        """The number that a text such as "350M" gives to an argument.

        Raises:
            UsageError: it is none, has no such unit, or is out of bounds.
        """
        match = _NUMBER.fullmatch(_bare(text) if self.per_s else text)
        unit = self.units.get(match[2].lower()) if match else None
        try:
            number = float(match[1]) * unit if match and unit else math.nan
        except ValueError:
            number = math.nan
        require(self.least <= number <= self.most, argument, text, self.bound, self.remedy)
        return number


def _bare(text: str) -> str:
    """A rate without its "/s" or "ps". As networks count, a small b is a bit and a capital B a
    byte: "50Mb/s" and "50Mbps" are "50mbit", and "6MB/s" and "6MBps" are bytes."""
    told = text.strip().removesuffix("/s")
    if told.lower().endswith("ps"):
        told = told[:-2]
    return f"{told[:-1]}bit" if told.endswith("b") else told


PARAMETERS = Quantity(
    units=_COUNTS,
    least=1,
    most=1e15,
    bound="a number from 1 to 1e15, such as 1.3e9, 350M or 7G",
    remedy="give the parameters of the model",
)
RATE = Quantity(
    units={**_BITS, **_BYTES},
    least=1e3,
    most=1e15,
    bound="a rate from 1kbit to 1000tbit, such as 50mbit, 1gbit or 6MB/s",
    remedy="give the rate of the slower direction",
    per_s=True,
)
ROUND_TRIP = Quantity(
    units=_TIMES,
    least=0,
    most=600,
    bound="a time with its unit, from 0s to 10min, such as 40ms or 0.8s",
    remedy="give the time that ping shows",
)
STEP = Quantity(
    units=_TIMES,
    least=10 * _TIMES["us"],  # which is less than 1e-5, by rounding
    most=86_400,
    bound="a time with its unit, from 10us to 24h, such as 250ms or 0.8s",
    remedy="give the time of an inner step, as your script shows it",
)
