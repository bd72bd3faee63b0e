"""The digest of many bytes, as a tree: the root is a hash of the hashes of leaves of fixed size.

    leaf = SHA-256(0, bytes)        root = SHA-256(1, size of a part, its leaves, next size, …)

So the leaves can be hashed in any order, and on several cores. The first byte keeps a leaf from
passing for a root, as in RFC 9162. The sizes keep two lists of parts apart whose bytes are the same
one after the other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from mend_optim.protocol.lineage import DIGEST_BYTES

#: Bytes of a leaf. The last leaf of a part may be shorter.
LEAF = 1 << 20
_SIZE_BYTES = 8


class Spread(Protocol):
    """Calls a function with each of the items, in any order and perhaps on several threads, and
    returns the results in the items' order: `map`, or an executor's."""

    def __call__(
        self, function: Callable[[memoryview], bytes], items: Iterable[memoryview], /
    ) -> Iterable[bytes]: ...


def short_digest(*parts: bytes | memoryview, spread: Spread = map) -> bytes:
    """Return the first `DIGEST_BYTES` bytes of `tree_digest`."""
    return tree_digest(*parts, spread=spread)[:DIGEST_BYTES]


def tree_digest(*parts: bytes | memoryview, spread: Spread = map) -> bytes:
    """Return the 256-bit digest of the parts, in order.

    Args:
        parts: Any contiguous buffers.
        spread: Hashes the leaves.
    """
    views = [memoryview(part).cast("B") if len(part) else memoryview(b"") for part in parts]
    leaves = [leaf for view in views for leaf in _leaves(view)]
    # To hand a single leaf to another thread gains nothing.
    hashes = iter(spread(_leaf_digest, leaves) if len(leaves) > 1 else map(_leaf_digest, leaves))
    return _root(views, hashes)


def _leaves(view: memoryview) -> Sequence[memoryview]:
    return [view[at : at + LEAF] for at in range(0, len(view), LEAF)]


def _leaf_digest(leaf: memoryview) -> bytes:
    state = hashlib.sha256(b"\0")
    state.update(leaf)
    return state.digest()


def _root(views: Iterable[memoryview], hashes: Iterator[bytes]) -> bytes:
    state = hashlib.sha256(b"\1")
    for view in views:
        state.update(len(view).to_bytes(_SIZE_BYTES, "big"))
        for _ in range(0, len(view), LEAF):
            state.update(next(hashes))
    return state.digest()
