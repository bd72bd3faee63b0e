"""How far a round moves the anchor, where its members differ in speed.

A slow learner brings few steps to a round, and a fast one many. Their mean stands for fewer steps
than the fast learner has taken, so by the mean alone the fast one would get on more slowly than by
itself. FedNova (arXiv 2007.07481) divides each delta by its member's steps. Here the deltas stay as
they are, so that packets of members can stand for them, and the anchor moves by ρ times the mean:

    ρ = N / Σ wᵢ nᵢ,    1 ≤ ρ ≤ min(1.75, 1/√Σ wᵢ²)

nᵢ are the steps of a member and wᵢ its weight. N are the most steps of a member that was in the
last round, too: one that was not brings those of several rounds. Members of equal speed have ρ = 1.
Along steep directions all members arrive at one place, however many steps they take, and ρ leads
beyond it: by 0.75 of the way at most, so the anchor settles there after a few rounds. The second
bound is that of the norm-preserving mean. With equal batches ρ is below it by itself. So whatever
steps a member claims, it makes no step longer than it could without ρ."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from mend_optim.protocol.lineage import Entry, PeerId

#: The greatest ρ.
MOST_HEADWAY = 1.75
#: Members of equal speed may have so much, by rounding.
NOISE = 1e-9


def headway(members: Sequence[Entry], w: Sequence[float], regulars: Collection[PeerId]) -> float:
    """ρ of a round.

    Args:
        members: the work of each member.
        w: their weights.
        regulars: the members of the round before, as far as they are known.

    Example:
        >>> fast, slow = Entry(PeerId("a", 1), 1, 160, 20), Entry(PeerId("b", 1), 1, 40, 5)
        >>> round(headway([fast, slow], [0.8, 0.2], ()), 4)
        1.1765
    """
    mean = math.fsum(weight * entry.steps for entry, weight in zip(members, w, strict=True))
    squares = math.fsum(weight**2 for weight in w)
    if not mean or not squares:
        return 1.0
    counted = [entry.steps for entry in members if entry.peer in regulars and entry.steps]
    most = max(counted or [entry.steps for entry in members])
    found = min(most / mean, MOST_HEADWAY, 1 / math.sqrt(squares))
    return found if found > 1 + NOISE else 1.0
