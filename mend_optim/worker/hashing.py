"""How a worker hashes the bytes of offers, seals and anchors."""

from __future__ import annotations

from dataclasses import dataclass

from mend_optim.protocol.tree_digest import Spread, short_digest


@dataclass
class Hashing:
    """Hashes on the worker's own thread, unless it is told of others."""

    #: Hashes the leaves of a tree, perhaps on several threads. Set before the first job.
    spread: Spread = map

    def short(self, *parts: memoryview) -> bytes:
        """The short digest of the parts, in order."""
        return short_digest(*parts, spread=self.spread)
