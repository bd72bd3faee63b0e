"""How large the offers of a round are, and their mean: measured while they are merged, part by
part, as long as a part is in a cache."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from mend_optim.worker.outer import largest
from mend_optim.worker.scale import Lengths


class Measures:
    """The norms of the members and of the mean.

    Args:
        members: how many there are.
        offsets: the bounds of the tensors in the flat vectors.
    """

    def __init__(self, members: int, offsets: Sequence[int]) -> None:
        self.members = [Lengths(offsets) for _ in range(members)]
        self.mean = Lengths(offsets)
        self._largest: list[float] = []

    def add(self, i: int, here: slice, part: Tensor) -> None:
        """Count the elements `here` of member `i`; the mean comes after the last member."""
        if i < len(self.members):
            self.members[i].add(here, part)
        else:
            self.mean.add(here, part)
            self._largest.append(largest(part))

    @property
    def most(self) -> float:
        """The greatest magnitude in the mean; NaN if an element is."""
        if any(map(math.isnan, self._largest)):
            return math.nan
        return max(self._largest, default=0.0)
