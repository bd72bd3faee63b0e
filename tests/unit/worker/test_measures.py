"""The norms of a round's offers and of their mean, measured part by part."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mend_optim.worker.measures import Measures
from tests import reference
from tests.support.strategies import close, vectors

OFFSETS = [0, 2, 5]


def measured(vectors: list[Tensor], cut: int) -> Measures:
    """Two members and their mean, in two parts."""
    measures = Measures(2, OFFSETS)
    for i, vector in enumerate(vectors):
        for here in (slice(0, cut), slice(cut, 5)):
            measures.add(i, here, vector[here])
    return measures


@given(vectors(3, 5), st.integers(1, 4))
def test_members_and_their_mean_are_measured_apart(drawn: list[Tensor], cut: int) -> None:
    found = measured(drawn, cut)
    for lengths, vector in zip((*found.members, found.mean), drawn, strict=True):
        expected = [reference.norm(vector[a:b].tolist()) for a, b in ((0, 2), (2, 5))]
        assert close(torch.tensor(lengths.norms()), torch.tensor(expected))
    assert found.most == max(map(abs, drawn[2].tolist()))


@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_shows_wherever_it_is(at: int, value: float) -> None:
    mean = torch.ones(5)
    mean[at] = value
    assert not math.isfinite(measured([torch.ones(5), torch.ones(5), mean], 2).most)
