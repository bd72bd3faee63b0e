from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mend_optim.codecs.packing import MOST
from mend_optim.engine.policies import weights
from mend_optim.protocol.lineage import Entry, PeerId
from mend_optim.worker import merge
from tests import reference
from tests.support.strategies import contributions, vectors

EPS = 2.0**-23


def merged(
    scheme: str, deltas: list[Tensor], w: list[float], offsets: list[int] | None = None
) -> Tensor:
    out = torch.full_like(deltas[0], torch.nan)
    return merge.merge(scheme, deltas, w, out, offsets or [0, out.numel()])


def span(deltas: list[Tensor]) -> float:
    """The greatest magnitude, to which float32 tolerances are relative."""
    return max(float(delta.abs().max()) for delta in deltas)


def randn(members: int, numel: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(numel, generator=generator) for _ in range(members)]


# Weighted mean


def test_ten_at_300_tokens_with_zero_at_100_is_seven_and_a_half() -> None:
    a, b = (Entry(PeerId(name, 1), 1, tokens, 1) for name, tokens in (("a", 300), ("b", 100)))
    w = weights("tokens", [a, b])
    assert merged("mean", [torch.tensor([10.0]), torch.tensor([0.0])], w).item() == 7.5


@given(contributions())
def test_the_mean_is_the_textbooks(drawn: tuple[list[Tensor], list[float]]) -> None:
    deltas, w = drawn
    expected = reference.weighted_mean([delta.tolist() for delta in deltas], w)
    assert merged("mean", deltas, w).tolist() == pytest.approx(
        expected, abs=len(deltas) * EPS * span(deltas)
    )


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.sampled_from([1, 1000, merge.FINE + 7]))
def test_every_product_and_every_sum_of_a_mean_is_rounded(seed: int, n: int, numel: int) -> None:
    """Fused operations would give other bits on other hardware."""
    drawn = torch.randn(n, numel, generator=torch.Generator().manual_seed(seed))
    w = [float(np.float32((i + 1) / 7)) for i in range(n)]
    total = drawn[0].numpy() * np.float32(w[0])
    for delta, weight in zip(drawn[1:].numpy(), w[1:], strict=True):
        total = total + delta * np.float32(weight)
    assert torch.equal(
        merge.weighted_mean(list(drawn), w, torch.empty(numel)), torch.from_numpy(total)
    )


@given(contributions())
def test_the_mean_stays_inside_the_contributions_range(
    drawn: tuple[list[Tensor], list[float]],
) -> None:
    deltas, w = drawn
    mean, stacked = merged("mean", deltas, w), torch.stack(deltas)
    slack = len(deltas) * EPS * span(deltas)
    assert (mean >= stacked.amin(0) - slack).all()
    assert (mean <= stacked.amax(0) + slack).all()


@given(vectors(3, 4))
def test_a_member_of_weight_zero_changes_no_bit(deltas: list[Tensor]) -> None:
    assert torch.equal(
        merged("mean", deltas, [0.25, 0, 0.75]), merged("mean", deltas[::2], [0.25, 0.75])
    )


@pytest.mark.parametrize("scheme", ["mean", "trimmed_mean", "median"])
@given(deltas=vectors(1, 5))
def test_a_single_member_is_taken_to_the_bit(scheme: str, deltas: list[Tensor]) -> None:
    assert torch.equal(merged(scheme, deltas, [1.0]), deltas[0])


@pytest.mark.parametrize("scheme", merge.MERGES)
@given(deltas=vectors(1, 5), members=st.integers(1, 7))
def test_equal_contributions_are_their_own_merge(
    scheme: str, deltas: list[Tensor], members: int
) -> None:
    result = merged(scheme, deltas * members, [1 / members] * members)
    assert result.tolist() == pytest.approx(deltas[0].tolist(), abs=10 * EPS * span(deltas))


@pytest.mark.parametrize("scheme", ["mean", "trimmed_mean", "median"])
@pytest.mark.parametrize("size", [1, 7, 8, 31, 64, 999])
def test_the_block_size_changes_no_bit(
    scheme: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltas, w = randn(5, 1003), [0.1, 0.2, 0.3, 0.15, 0.25]
    whole = merged(scheme, deltas, w)
    blocks = merge.blocks
    monkeypatch.setattr(merge, "blocks", lambda numel, _=0: blocks(numel, size))
    assert torch.equal(merged(scheme, deltas, w), whole)


def in_parts(delta: Tensor, sizes: list[int]) -> Iterator[Tensor]:
    """Of these sizes, over and over, in memory that is used again."""
    room = torch.empty(max(sizes))
    rest, turn = delta, itertools.cycle(sizes)
    while len(rest):
        size = min(next(turn), len(rest))
        yield room[:size].copy_(rest[:size])
        room.fill_(math.nan)
        rest = rest[size:]


@given(deltas=vectors(1, 5), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_a_mean_of_deltas_in_parts_is_that_of_whole_ones(
    deltas: list[Tensor], sizes: list[int]
) -> None:
    w = [(i + 1) / 10 for i in range(len(deltas))]
    parts = (in_parts(delta, sizes[i % len(sizes) :] + sizes) for i, delta in enumerate(deltas))
    found = merge.weighted_mean_by_parts(parts, w, torch.full_like(deltas[0], math.nan))
    assert torch.equal(found, merge.weighted_mean(deltas, w, torch.full_like(deltas[0], math.nan)))


@pytest.mark.parametrize("count", [1, 3])
def test_every_delta_of_a_mean_has_a_weight_and_every_weight_a_delta(count: int) -> None:
    with pytest.raises(ValueError, match=r"shorter|longer"):
        merge.weighted_mean([torch.ones(4)] * count, [0.5, 0.5], torch.empty(4))
    with pytest.raises(ValueError, match=r"shorter|longer"):
        merge.weighted_mean_by_parts([[torch.ones(4)]] * count, [0.5, 0.5], torch.empty(4))


@given(st.integers(0, 300), st.integers(1, 70))
def test_blocks_cover_every_element_once(numel: int, size: int) -> None:
    covered = [i for block in merge.blocks(numel, size) for i in range(numel)[block]]
    assert covered == list(range(numel))


@pytest.mark.parametrize("scheme", merge.MERGES)
def test_merging_leaves_the_offers_as_they_were(scheme: str) -> None:
    deltas = randn(4, 50)
    before = [delta.clone() for delta in deltas]
    merged(scheme, deltas, [0.25] * 4, [0, 20, 50])
    assert all(torch.equal(a, b) for a, b in zip(deltas, before, strict=True))


@pytest.mark.parametrize("scheme", merge.MERGES)
def test_a_fragment_of_empty_tensors_merges_to_nothing(scheme: str) -> None:
    assert merged(scheme, [torch.empty(0)] * 2, [0.5, 0.5], [0, 0, 0]).numel() == 0


@pytest.mark.parametrize("scheme", merge.MERGES)
@given(st.data(), st.integers(1, 9), st.integers(1, 4))
def test_a_merge_is_finite_whatever_packets_hold(
    scheme: str, data: st.DataObject, members: int, numel: int
) -> None:
    """So the guard comes to judge even the largest offer."""
    column = st.lists(st.sampled_from([MOST, -MOST, 2.0**60, 1.0, 0.0]), min_size=numel)
    deltas = [torch.tensor(data.draw(column)[:numel]) for _ in range(members)]
    assert merged(scheme, deltas, [1 / members] * members).isfinite().all()


# Radial-directional average


@given(st.integers(1, 6), st.integers(0, 2**32), st.sampled_from([1.0, 2.0**30, 2.0**70]))
def test_rda_is_the_textbooks(members: int, seed: int, size: float) -> None:
    """Also where a square is beyond float32."""
    deltas, w = [size * delta for delta in randn(members, 40, seed)], [1 / members] * members
    expected = reference.radial_directional([delta.tolist() for delta in deltas], w)
    assert merged("rda", deltas, w).tolist() == pytest.approx(expected, abs=1e-5 * span(deltas))


def test_rda_is_as_long_as_its_members_are_on_average() -> None:
    deltas, w = randn(4, 1000), [0.1, 0.2, 0.3, 0.4]
    deltas[0] *= 100
    radius = sum(
        weight * float(delta.double().norm()) for weight, delta in zip(w, deltas, strict=True)
    )
    assert float(merged("rda", deltas, w).double().norm()) == pytest.approx(radius, rel=1e-5)
    assert float(merged("mean", deltas, w).double().norm()) < 0.99 * radius


def test_rda_measures_large_tensors_as_well_as_small_ones() -> None:
    """Four million squares summed in float32 lose the third digit, and with it the balance between
    members."""
    deltas = [torch.full((4_000_000,), 0.1), torch.zeros(4_000_000)]
    deltas[1][0] = 300
    directions = [delta.double() / delta.double().norm() for delta in deltas]
    mean = (directions[0] + directions[1]) / 2
    expected = mean * ((200 + 300) / 2 / mean.norm())
    result = merged("rda", deltas, [0.5, 0.5])
    assert result[:2].tolist() == pytest.approx(expected[:2].tolist(), rel=1e-4)


@given(st.integers(0, 2**32), st.floats(1e-3, 1e3))
def test_rda_is_homogeneous_of_degree_one(seed: int, scale: float) -> None:
    deltas, w = randn(3, 20, seed), [0.2, 0.3, 0.5]
    scaled = merged("rda", [scale * delta for delta in deltas], w)
    assert torch.allclose(scaled, scale * merged("rda", deltas, w), rtol=1e-4, atol=1e-5 * scale)


def test_directions_that_cancel_fall_back_to_the_mean() -> None:
    assert merged(
        "rda", [torch.tensor([1.0, 0]), torch.tensor([-2.0, 0])], [0.5, 0.5]
    ).tolist() == [-0.5, 0]


@given(st.integers(0, 2**32))
def test_what_rounding_leaves_of_directions_that_cancel_is_no_direction(seed: int) -> None:
    (delta,) = randn(1, 40, seed)
    assert torch.allclose(merged("rda", [delta, -3 * delta], [0.5, 0.5]), -delta, atol=1e-5)


def test_a_zero_delta_has_no_direction_and_no_length() -> None:
    assert merged(
        "rda", [torch.zeros(2), torch.tensor([3.0, 4.0])], [0.5, 0.5]
    ).tolist() == pytest.approx([1.5, 2])
    assert merged("rda", [torch.zeros(2), torch.zeros(2)], [0.5, 0.5]).tolist() == [0, 0]


def test_where_rda_might_not_be_finite_it_is_the_mean() -> None:
    """It would have all of the first delta's length in one element."""
    deltas = [torch.full((100,), MOST), torch.zeros(100)]
    deltas[1][0] = 1.0
    assert torch.equal(merged("rda", deltas, [0.5, 0.5]), merged("mean", deltas, [0.5, 0.5]))


def test_rda_averages_each_tensor_on_its_own() -> None:
    deltas, w = randn(3, 30), [0.2, 0.3, 0.5]
    whole = merged("rda", deltas, w, [0, 10, 10, 30])
    parts = [merged("rda", [delta[a:b] for delta in deltas], w) for a, b in ((0, 10), (10, 30))]
    assert torch.equal(whole, torch.cat(parts))


# Trimmed mean, median


@given(contributions(most=9))
def test_trimmed_mean_is_the_textbooks(drawn: tuple[list[Tensor], list[float]]) -> None:
    deltas, w = drawn
    expected = reference.trimmed_mean([delta.tolist() for delta in deltas], cut=len(deltas) // 4)
    assert merged("trimmed_mean", deltas, w).tolist() == pytest.approx(
        expected, abs=10 * EPS * span(deltas)
    )


def test_a_mean_of_values_whose_sum_is_beyond_float32_is_right() -> None:
    """Nothing else in the block changes by a bit."""
    deltas = randn(9, 50)
    before = merged("trimmed_mean", deltas, [1 / 9] * 9)
    for delta in deltas:
        delta[7] = MOST
    found = merged("trimmed_mean", deltas, [1 / 9] * 9)
    assert found[7] == MOST
    others = torch.arange(50) != 7
    assert torch.equal(found[others], before[others])


@given(contributions(most=9))
def test_median_is_numpys(drawn: tuple[list[Tensor], list[float]]) -> None:
    deltas, w = drawn
    expected = np.median(np.stack([delta.double().numpy() for delta in deltas]), axis=0)
    assert merged("median", deltas, w).tolist() == pytest.approx(
        expected.tolist(), abs=2 * EPS * span(deltas)
    )


@given(contributions(most=9))
def test_centered_clip_is_the_textbooks(drawn: tuple[list[Tensor], list[float]]) -> None:
    deltas, w = drawn
    expected = reference.centered_clip([delta.tolist() for delta in deltas])
    assert merged("centered_clip", deltas, w).tolist() == pytest.approx(
        expected, abs=30 * EPS * span(deltas)
    )


def test_two_members_are_not_clipped() -> None:
    deltas = randn(2, 50)
    assert torch.allclose(merged("centered_clip", deltas, [0.9, 0.1]), sum(deltas) / 2, atol=1e-6)


def test_members_that_are_alike_have_nearly_their_mean() -> None:
    """Unlike the median, clipping keeps most of what each member knows: its error is the mean's."""
    deltas = randn(9, 2000)
    exact = torch.stack(deltas).mean(0)
    clipped, median = (merged(s, deltas, [1 / 9] * 9) for s in ("centered_clip", "median"))
    assert float((clipped - exact).norm()) < 0.2 * float((median - exact).norm())


def test_centered_clip_clips_each_tensor_on_its_own() -> None:
    deltas, w = randn(3, 30), [0.2, 0.3, 0.5]
    deltas[0][:10] *= 100
    whole = merged("centered_clip", deltas, w, [0, 10, 10, 30])
    parts = [
        merged("centered_clip", [delta[a:b] for delta in deltas], w) for a, b in ((0, 10), (10, 30))
    ]
    assert torch.equal(whole, torch.cat(parts))


GARBAGE = st.floats(-(2.0**126), 2.0**126, width=32)


@given(st.data(), st.integers(2, 5), st.integers(1, 4))
def test_fewer_than_half_cannot_take_centered_clip_away(
    data: st.DataObject, honest: int, numel: int
) -> None:
    """Liars that all send what they like, the greatest numbers that a packet may hold included."""
    deltas = data.draw(vectors(honest, numel))
    liars = data.draw(st.integers(1, honest - 1))
    lies = data.draw(
        st.lists(st.lists(GARBAGE, min_size=numel, max_size=numel), min_size=liars, max_size=liars)
    )
    everybody = [*deltas, *(torch.tensor(lie, dtype=torch.float32) for lie in lies)]
    result = merged("centered_clip", everybody, [1.0] * len(everybody)).double()
    stacked = torch.stack(deltas).double()
    diameter = float((stacked.amax(0) - stacked.amin(0)).norm())
    slack = 1e-5 * span(deltas) + 1e-30
    assert float((result - stacked[0]).norm()) <= 2 * diameter + slack


@pytest.mark.parametrize(("scheme", "honest"), [("trimmed_mean", 3), ("median", 2), ("median", 4)])
@given(data=st.data(), garbage=st.sampled_from([1e30, -1e30, 1e9]))
def test_one_garbage_member_cannot_leave_the_honest_range(
    scheme: str, honest: int, data: st.DataObject, garbage: float
) -> None:
    deltas = data.draw(vectors(honest, 3))
    where = data.draw(st.integers(0, honest))
    all_of_them = [*deltas[:where], torch.full((3,), garbage), *deltas[where:]]
    result, stacked = (
        merged(scheme, all_of_them, [1 / len(all_of_them)] * len(all_of_them)),
        torch.stack(deltas),
    )
    slack = 4 * EPS * span(deltas)
    assert (result >= stacked.amin(0) - slack).all()
    assert (result <= stacked.amax(0) + slack).all()


@pytest.mark.parametrize("scheme", ["trimmed_mean", "median"])
@given(data=st.data())
def test_robust_merges_ignore_order(scheme: str, data: st.DataObject) -> None:
    deltas = data.draw(vectors(5, 3))
    shuffled = data.draw(st.permutations(deltas))
    assert torch.equal(merged(scheme, shuffled, [0.2] * 5), merged(scheme, deltas, [0.2] * 5))


# Finite


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", [0, 1, 1003, merge.FINE, 99_998, 99_999])
def test_one_element_that_is_not_finite_is_found_anywhere(where: int, value: float) -> None:
    values = torch.ones(100_000)
    assert merge.finite(values)
    values[where] = value
    assert not merge.finite(values)


def test_infinities_that_cancel_are_found() -> None:
    assert not merge.finite(torch.tensor([math.inf, 1, -math.inf]))


def test_large_numbers_are_finite_although_their_sum_is_not() -> None:
    values = torch.full((100,), 1e37)
    assert merge.finite(values)
    assert not merge.finite(torch.cat([values, torch.tensor([math.nan])]))


def test_nothing_is_finite() -> None:
    assert merge.finite(torch.empty(0))
