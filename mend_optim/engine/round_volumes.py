"""How many bytes the rounds of each fragment bring, for a limit on a learner's traffic.

A round that averages moments has two or three times the bytes of the others, so no single one says
how many they have on average. Nor does one fragment say it of the others: the largest tensor may be
most of its model."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from statistics import fmean

from mend_optim.engine.ledger import RoundRecord
from mend_optim.protocol.lineage import PeerId

#: Rounds of a fragment that are remembered: the cycle of the moments by default, twice.
REMEMBERED = 12


class RoundVolumes:
    """The bytes of the last rounds that merged an offer of this learner."""

    def __init__(self) -> None:
        self._last: defaultdict[int, deque[int]] = defaultdict(lambda: deque(maxlen=REMEMBERED))

    def add(self, record: RoundRecord) -> None:
        """An anchor was adopted."""
        if record.mine and record.members:
            self._last[record.fragment].append(record.offer_bytes + record.merged_bytes)

    def of_busiest(self, sealers: Mapping[int, PeerId | None], members: int, unknown: int) -> float:
        """Return the bytes that the busiest learner sends and receives while each fragment is
        merged once. The sealer of a fragment has those of all other members.

        Args:
            sealers: of each fragment that counts.
            members: of a round.
            unknown: the bytes of a round of which nothing is known.
        """
        usual = {p: fmean(self._last[p]) if self._last[p] else float(unknown) for p in sealers}
        more: defaultdict[PeerId | None, float] = defaultdict(float)
        for p, sealer in sealers.items():
            more[sealer] += usual[p] * max(0, members - 2)
        return sum(usual.values()) + max(more.values(), default=0.0)
