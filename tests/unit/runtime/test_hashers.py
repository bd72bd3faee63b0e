"""The threads that help a worker to hash."""

from __future__ import annotations

import threading

from mend_optim.protocol.tree_digest import LEAF, tree_digest
from mend_optim.runtime.hashers import Hashers

CONTENT = bytes(2 * LEAF + 1)


def test_they_hash_on_threads_of_their_own() -> None:
    hashers = Hashers()
    seen = hashers.spread(lambda _: threading.current_thread().name.encode(), [memoryview(b"x")])
    assert seen[0].startswith(b"mend-hash")
    assert tree_digest(CONTENT, spread=hashers.spread) == tree_digest(CONTENT)
    hashers.end()


def test_after_their_end_the_caller_hashes_and_no_thread_is_left() -> None:
    hashers = Hashers()
    tree_digest(CONTENT, spread=hashers.spread)
    hashers.end()
    assert not [t for t in threading.enumerate() if t.name.startswith("mend-hash")]
    seen = hashers.spread(lambda _: threading.current_thread().name.encode(), [memoryview(b"x")])
    assert seen == [threading.current_thread().name.encode()]
    assert tree_digest(CONTENT, spread=hashers.spread) == tree_digest(CONTENT)
