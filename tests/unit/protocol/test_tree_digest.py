"""The digest of many bytes as a tree, against a slow twin."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.protocol import tree_digest as module
from mend_optim.protocol.lineage import DIGEST_BYTES
from mend_optim.protocol.tree_digest import LEAF, short_digest, tree_digest
from tests.reference import naive_tree_digest

SMALL_LEAF = 4
parts_of_bytes = st.lists(st.binary(max_size=4 * SMALL_LEAF), max_size=4)


@pytest.fixture(scope="module", autouse=True)
def small_leaves() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LEAF", SMALL_LEAF)
        yield


def backwards(
    function: Callable[[memoryview], bytes], items: Iterable[memoryview], /
) -> list[bytes]:
    """Hash the last leaf first."""
    return [function(item) for item in reversed(list(items))][::-1]


@given(parts_of_bytes)
def test_it_is_that_of_the_twin_whoever_hashes_the_leaves(parts: list[bytes]) -> None:
    expected = naive_tree_digest(parts, SMALL_LEAF)
    assert tree_digest(*parts) == expected
    assert tree_digest(*map(memoryview, parts), spread=backwards) == expected
    assert short_digest(*parts) == expected[:DIGEST_BYTES]


@given(parts_of_bytes, parts_of_bytes)
def test_different_parts_have_different_digests(one: list[bytes], other: list[bytes]) -> None:
    assert (tree_digest(*one) == tree_digest(*other)) == (one == other)


@given(st.binary(min_size=1, max_size=64), st.data())
def test_any_changed_bit_shows(content: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, 8 * len(content) - 1))
    changed = bytearray(content)
    changed[at // 8] ^= 1 << at % 8
    assert tree_digest(content) != tree_digest(bytes(changed))


def test_the_leaves_of_a_tree_are_not_its_bytes() -> None:
    content = bytes(range(2 * SMALL_LEAF))
    leaves = [module._leaf_digest(memoryview(content)[at : at + 4]) for at in (0, 4)]
    assert tree_digest(b"".join(leaves)) != tree_digest(content)


def test_several_threads_hash_as_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAF", LEAF)
    content = random.Random(0).randbytes(3 * LEAF + 1)
    with ThreadPoolExecutor(2) as pool:
        assert tree_digest(content, spread=pool.map) == tree_digest(content)
    assert tree_digest(content) == naive_tree_digest([content], LEAF)
