"""How often peers were refused, and why."""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

#: (peer, reason) pairs that are counted apart. Further ones count as `OTHERS`.
KINDS = 64
#: Characters of a reason that are kept.
LENGTH = 100
OTHERS = "others"

# Also a peer's incarnation, which is in hex: see `PeerId`.
_NUMBER = re.compile(r"(?<=#)[0-9a-f]+|\d+")
# A text that a peer chose stands in quotation marks.
_QUOTED = re.compile(r"(['\"]).*\1")


class Refused(NamedTuple):
    """What was refused of one peer for one reason, and how often, in `Status.refused`.

    Attributes:
        peer: The peer's name; "others" for all beyond the first 64 kinds.
        reason: Why, with "N" for each number and "…" for what the peer wrote itself.
        times: How often.

    Example:
        >>> Refused(peer="b", reason="offer refused: section … is missing", times=3).times
        3
    """

    peer: str
    reason: str
    times: int


class Refusals:
    """Counts refusals by peer and reason. Peers can make up any number of names and reasons, so
    there is an end to both, but never to the count."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, peer: str, reason: str) -> None:
        """Count one refusal."""
        key = (peer, _NUMBER.sub("N", _QUOTED.sub("…", reason))[:LENGTH])
        if key not in self._counts and len(self._counts) >= KINDS:
            key = (OTHERS, OTHERS)
        self._counts[key] += 1

    def counted(self) -> tuple[Refused, ...]:
        """Return what was refused, the most frequent first."""
        return tuple(Refused(*key, times) for key, times in self._counts.most_common())
