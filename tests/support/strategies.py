"""What Hypothesis draws from: peers, entries, lineages, deltas; and how close results come."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from mend_optim.protocol.lineage import Entry, Lineage, PeerId

names = st.text("abcdefgh", min_size=1, max_size=3)
peers = st.builds(PeerId, names, st.integers(1, 5))
digests = st.binary(min_size=16, max_size=16)
values = st.floats(-1000, 1000, width=32, allow_subnormal=False)


def entries(least: int = 1, most: int = 6) -> st.SearchStrategy[list[Entry]]:
    """Members of one seal: each peer once, each with work."""
    work = st.builds(Entry, peers, st.integers(1, 50), st.integers(1, 10**9), st.integers(1, 10**4))
    return st.lists(work, min_size=least, max_size=most, unique_by=lambda entry: entry.peer)


lineages = st.builds(
    Lineage,
    tokens=st.integers(0, 10**9),
    version=st.integers(0, 1000),
    digest=digests,
    genesis=digests,
    merged=st.dictionaries(peers, st.integers(1, 60), max_size=4),
)


@st.composite
def vectors(draw: st.DrawFn, count: int, numel: int) -> list[Tensor]:
    """`count` flat float32 tensors of `numel` elements."""
    column = st.lists(values, min_size=numel, max_size=numel)
    return [torch.tensor(draw(column), dtype=torch.float32) for _ in range(count)]


def close(a: Tensor, b: Tensor) -> bool:
    """Whether results of drawn values agree: those are up to 1000, with a few roundings each."""
    return torch.allclose(a, b, rtol=1e-5, atol=5e-3)


@st.composite
def contributions(
    draw: st.DrawFn, least: int = 1, most: int = 6
) -> tuple[list[Tensor], list[float]]:
    """Deltas and weights of a merge: weights ≥ 0 that sum to 1."""
    deltas = draw(vectors(draw(st.integers(least, most)), draw(st.integers(1, 9))))
    raw = draw(
        st.lists(st.integers(0, 1000), min_size=len(deltas), max_size=len(deltas)).filter(any)
    )
    return deltas, [w / sum(raw) for w in raw]
