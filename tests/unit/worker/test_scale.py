"""The norm-preserving mean: the factor of each tensor, its bounds, and its way into the anchor."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mend_optim.codecs.packing import PACKED, RAW, raw
from mend_optim.codecs.registry import encode_packet, find_codec
from mend_optim.errors import PeerError
from mend_optim.protocol.messages import Packet
from mend_optim.worker.scale import (
    PLAIN,
    SLACK,
    Lengths,
    Scale,
    Scaled,
    bound,
    factors,
    kept_scale,
    read_scale,
    scale_packet,
    scale_tensors,
    unscaled,
)
from tests import reference
from tests.support.strategies import contributions, vectors

HALVES = [0.5, 0.5]


def lengths_of(values: Tensor, offsets: list[int]) -> list[float]:
    lengths = Lengths(offsets)
    lengths.add(slice(0, values.numel()), values)
    return lengths.norms()


def factors_of(
    deltas: list[Tensor], w: list[float], offsets: list[int], headway: float = 1.0
) -> list[float]:
    """The factors as the sealer computes them."""
    mean = torch.stack([weight * delta for weight, delta in zip(w, deltas, strict=True)]).sum(0)
    lengths = [lengths_of(delta, offsets) for delta in deltas]
    return factors(lengths, lengths_of(mean, offsets), w, headway)


# Lengths


@given(st.data())
def test_the_lengths_of_parts_are_the_norms_of_the_tensors(data: st.DataObject) -> None:
    """Parts of any size and in any order, over tensors of any size, even none."""
    sizes = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=5))
    offsets = [0, *itertools.accumulate(sizes)]
    numel = offsets[-1]
    (values,) = data.draw(vectors(1, numel))
    cuts = sorted({0, numel, *data.draw(st.lists(st.integers(0, numel), max_size=4))})
    lengths = Lengths(offsets)
    for start, stop in data.draw(st.permutations(list(itertools.pairwise(cuts)))):
        lengths.add(slice(start, stop), values[start:stop])
    expected = [reference.norm(values[a:b].tolist()) for a, b in itertools.pairwise(offsets)]
    assert lengths.norms() == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_the_length_of_large_numbers_is_finite() -> None:
    """Their squares are beyond float32."""
    assert lengths_of(torch.tensor([3.0, -4.0]) * 2.0**123, [0, 2]) == [5 * 2.0**123]
    assert lengths_of(torch.tensor([1.0, math.inf]), [0, 2]) == [math.inf]


def test_the_length_of_a_large_tensor_is_right_to_the_fifth_digit() -> None:
    """A float32 norm of all of it at once may be off in the third."""
    values = torch.full((1 << 22,), 0.1)
    (length,) = lengths_of(values, [0, values.numel()])
    assert length == pytest.approx(float(values[0]) * 2**11, rel=1e-5)


# Factors


@given(contributions())
def test_the_factor_is_the_twins(drawn: tuple[list[Tensor], list[float]]) -> None:
    deltas, w = drawn
    (found,) = factors_of(deltas, w, [0, deltas[0].numel()])
    mean = reference.weighted_mean([delta.tolist() for delta in deltas], w)
    largest = max(reference.norm(delta.tolist()) for delta in deltas)
    if reference.norm(mean) > 1e-3 * largest:  # else the mean is little but rounding
        assert found == pytest.approx(reference.factor([d.tolist() for d in deltas], w), rel=1e-3)


@given(contributions(), st.floats(0, 1))
def test_a_factor_is_from_one_to_its_bound(
    drawn: tuple[list[Tensor], list[float]], part: float
) -> None:
    """Times the headway, which leaves less room for it."""
    deltas, w = drawn
    headway = 1 + part * (bound(w) - 1)
    (found,) = factors_of(deltas, w, [0, deltas[0].numel()], headway)
    (without,) = factors_of(deltas, w, [0, deltas[0].numel()])
    assert 1 <= found <= bound(w) / headway
    assert found == pytest.approx(min(without, bound(w) / headway))
    assert bound(w) == pytest.approx(reference.greatest_factor(w))


@pytest.mark.parametrize("w", [HALVES, [0.25, 0.75], [0.2] * 5])
def test_members_that_agree_have_the_factor_one(w: list[float]) -> None:
    (found,) = factors_of([torch.tensor([3.0, 4.0])] * len(w), w, [0, 2])
    assert found == pytest.approx(1.0)


@pytest.mark.parametrize("members", [2, 3, 7])
def test_orthogonal_members_of_equal_length_get_their_length_back(members: int) -> None:
    deltas = list(5 * torch.eye(members))
    (found,) = factors_of(deltas, [1 / members] * members, [0, members])
    assert found == pytest.approx(math.sqrt(members))


def test_members_that_cancel_reach_the_bound_and_no_more() -> None:
    deltas = [torch.tensor([1.0, 1e-6]), torch.tensor([-1.0, 1e-6])]
    assert factors_of(deltas, HALVES, [0, 2]) == [bound(HALVES)]


def test_each_tensor_has_a_factor_of_its_own() -> None:
    deltas = [torch.tensor([1.0, 0.0, 2.0]), torch.tensor([0.0, 1.0, 2.0])]
    assert factors_of(deltas, HALVES, [0, 2, 3]) == pytest.approx([math.sqrt(2), 1.0])


@pytest.mark.parametrize("huge", [1e30, 3e38, 1e300])
def test_a_member_of_huge_norm_gets_no_more_than_the_bound(huge: float) -> None:
    assert factors([[1.0], [huge]], [1.0], HALVES) == [bound(HALVES)]


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_a_norm_that_is_not_finite_scales_nothing(norm: float) -> None:
    assert factors([[1.0, 1.0], [norm, 1.0]], [1.0, 0.9], HALVES) == [1.0, 1 / 0.9]
    assert factors([[1.0], [1.0]], [norm], HALVES) == [1.0]


def test_a_mean_of_zero_is_not_scaled() -> None:
    assert factors([[1.0], [1.0]], [0.0], HALVES) == [1.0]
    assert factors([[0.0], [0.0]], [0.0], HALVES) == [1.0]


# On the wire


@given(contributions(least=2))
def test_the_scale_comes_back_as_it_was_sent(drawn: tuple[list[Tensor], list[float]]) -> None:
    """Also at its bound, which float32 may round up."""
    _, w = drawn
    sent = Scale((1.0, math.sqrt(bound(w)), (1 + math.sqrt(bound(w))) / 2), math.sqrt(bound(w)))
    found = read_scale(scale_packet(sent), 3, bound(w))
    assert found.factors == pytest.approx(sent.factors, rel=1e-6)
    assert found.headway == pytest.approx(sent.headway, rel=1e-6)


@given(st.lists(st.floats(1, 9, width=32), min_size=1), st.floats(1, 9, width=32))
def test_a_checkpoint_keeps_a_scale(factors: list[float], headway: float) -> None:
    scale = Scale(tuple(factors), headway)
    tensors = scale_tensors(scale)
    assert kept_scale(tensors) == scale
    assert ("headway" in tensors) is (headway != 1), "as in older checkpoints"
    assert kept_scale(scale_tensors(PLAIN)) == PLAIN


def packet(*values: float, headway: float = 1.0) -> Packet:
    return scale_packet(Scale(values, headway))


OTHER_CODEC = Packet(PACKED, 3, raw(torch.ones(3)).data)

NUMBERS = "not 3 float32: one for each of 2 tensors, and the headway"
BOUNDS = r"it must be in \[1, 1.41421\]"
BAD_SCALES = {
    "too few": (packet(1.0), NUMBERS),
    "without headway": (raw(torch.ones(2)), NUMBERS),
    "too many": (packet(1.0, 1.0, 1.0), NUMBERS),
    "cut off": (Packet(RAW, 3, raw(torch.ones(3)).data[:10]), NUMBERS),
    "another codec": (OTHER_CODEC, NUMBERS),
    "not a number": (packet(1.0, math.nan), BOUNDS),
    "infinite": (packet(1.0, math.inf), BOUNDS),
    "below one": (packet(1.0, 0.999), r"is 0.999 to 1, times 1; it must be in \[1, 1.41421\]"),
    "negative": (packet(-1.0, 1.0), r"is -1 to 1, times 1; it must be in \[1, 1.41421\]"),
    "above the bound": (packet(1.0, bound(HALVES) * (1 + 4 * SLACK)), BOUNDS),
    "above the bound with its headway": (packet(1.0, 1.2, headway=1.2), BOUNDS),
    "a headway below one": (packet(1.0, 1.2, headway=0.999), BOUNDS),
    "a headway that is not a number": (packet(1.0, 1.2, headway=math.nan), BOUNDS),
    "an infinite headway": (packet(1.0, 1.2, headway=math.inf), BOUNDS),
}


@pytest.mark.parametrize("what", BAD_SCALES)
def test_a_bad_scale_is_refused(what: str) -> None:
    bad, fault = BAD_SCALES[what]
    good = packet(1.0, 1.25, headway=1.125)
    assert read_scale(good, 2, bound(HALVES)) == Scale((1.0, 1.25), 1.125)
    with pytest.raises(PeerError, match=fault):
        read_scale(bad, 2, bound(HALVES))


@pytest.mark.parametrize("w", [[], [0.0, 0.0], [1e-300, 0.0]])
def test_weights_of_nothing_scale_no_mean(w: list[float]) -> None:
    """The square of the third one's is 0."""
    with pytest.raises(PeerError, match="Scale of the mean needs a weight > 0"):
        bound(w)


def test_an_encoded_scale_is_refused() -> None:
    encoded, _ = encode_packet(find_codec("int8"), torch.ones(4097), ((4097,),))
    with pytest.raises(PeerError, match="not 4097 float32: one for each of 4096 tensors"):
        read_scale(encoded, 4096, bound(HALVES))


# Scaling


@given(
    vectors(1, 9),
    st.lists(st.floats(1, 2, width=32), min_size=4, max_size=4),
    st.floats(1, 2, width=32),
    st.data(),
)
def test_each_tensor_is_scaled_by_its_own_factor_in_blocks_of_any_size(
    drawn: list[Tensor], factors: list[float], headway: float, data: st.DataObject
) -> None:
    mean, before, offsets = drawn[0], drawn[0].clone(), [0, 2, 2, 8, 9]
    step = Scaled(mean, Scale(tuple(factors), headway), offsets)
    cuts = sorted(data.draw(st.sets(st.integers(1, 8))))
    blocks = [slice(a, b) for a, b in itertools.pairwise([0, *cuts, 9])]
    found = torch.cat([step[here].clone() for here in blocks])
    for (start, stop), factor in zip(itertools.pairwise(offsets), factors, strict=True):
        assert torch.equal(found[start:stop], before[start:stop] * (factor * headway))
    assert torch.equal(mean, before)
    whole = unscaled(found, factors, offsets, torch.empty(9))
    assert torch.allclose(whole, headway * before)
