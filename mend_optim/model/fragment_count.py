"""How many fragments a model is divided into.

Rounds of different fragments overlap: while one fragment's offers are on their way up, another's
anchor is on its way down, and each fragment may have a sealer of its own. So more fragments use the
links better, until the time that a round takes by itself, whatever its size, weighs more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mend_optim.errors import plain_number, require

#: Bytes of float32 that take as long as a round takes by itself. A link of 1 Gbit/s sends them in 8
#: milliseconds.
ROUND_NBYTES = 1 << 20
#: The most fragments that a model is divided into by itself. Every beat tells of each of them.
MOST = 32


@dataclass(frozen=True, kw_only=True)
class FragmentCount:
    """P, as the user tells it or by the size of the model.

    With P fragments, the last bytes of a model of B bytes wait for about B/P bytes and for P
    rounds' own time. The sum is least at P = √(B / `ROUND_NBYTES`).

    Attributes:
        told: P, as the user tells it; at least 1. None: as a checkpoint has it, or else by the size
            of the model.
        kept: that of the checkpoint from which a learner goes on, if nobody told P.
        most: the bound of a P that nobody told; at least 1.
    """

    told: int | None = None
    kept: int | None = None
    most: int = MOST

    def of(self, sizes: Sequence[int]) -> int:
        """P for tensors of so many elements. A P by their size is at most their number."""
        known = self.told if self.told is not None else self.kept
        if known is not None:
            return known
        rounds = 4 * sum(sizes) / ROUND_NBYTES
        # P(P + 1) is where P and P + 1 fragments are equally good.
        best = math.ceil((math.sqrt(1 + 4 * rounds) - 1) / 2)
        return max(1, min(best, self.most, len(sizes)))

    def within(self, period: int | None) -> FragmentCount:
        """The same, where a fixed period has a step for each fragment; None: it is not fixed."""
        return self if period is None else replace(self, most=min(self.most, period))


def read_fragments(fragments: int | str) -> FragmentCount:
    """The argument `fragments` of `MendOptimizer`. Raises `UsageError`."""
    fragments = plain_number(fragments)
    if fragments == "auto":
        return FragmentCount()
    number = type(fragments) is int and fragments >= 1
    require(number, "fragments", fragments, "an int >= 1 or 'auto'")
    return FragmentCount(told=fragments)  # type: ignore[arg-type]
