"""How a worker hashes the bytes of offers, seals and anchors."""

from __future__ import annotations

from dataclasses import dataclass

from mend_optim.protocol.tree_digest import Spread


@dataclass
class Hashing:
    """Hashes on the worker's own thread, unless it is told of others."""

    #: Hashes the leaves of a tree, perhaps on several threads. Set before the first job.
    spread: Spread = map
