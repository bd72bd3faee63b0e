from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from mend_optim.errors import UsageError
from mend_optim.model.layout import Layout, overlaps_itself, partition
from tests.reference import smallest_load

sizes = st.lists(st.integers(0, 50), min_size=1, max_size=6)


def layout(*tensors: Tensor, fragments: int = 1) -> Layout:
    return Layout([f"w{i}" for i in range(len(tensors))], tensors, fragments)


@given(st.lists(st.integers(0, 10**9), max_size=30), st.integers(1, 8))
def test_partition_is_exact(sizes: list[int], fragments: int) -> None:
    bins = partition(sizes, fragments)
    assert len(bins) == fragments
    assert sorted(i for members in bins for i in members) == list(range(len(sizes)))
    assert all(list(members) == sorted(members) for members in bins)


@given(sizes, st.integers(1, 3))
@example([1, 1, 2], 2)
def test_the_largest_fragment_is_at_most_four_thirds_of_the_optimum(
    sizes: list[int], fragments: int
) -> None:
    largest = max(sum(sizes[i] for i in members) for members in partition(sizes, fragments))
    assert 3 * largest <= 4 * smallest_load(sizes, fragments)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.data())
def test_no_fragment_is_without_a_tensor_even_where_tensors_are_empty(
    sizes: list[int], data: st.DataObject
) -> None:
    bins = partition(sizes, data.draw(st.integers(1, len(sizes))))
    assert all(bins)


def test_ties_go_to_the_lower_index_and_the_lower_bin() -> None:
    assert partition([4, 4, 4, 4, 4], 2) == ((0, 2, 4), (1, 3))


def test_offsets_bound_each_tensor_in_parameter_order() -> None:
    (fragment,) = layout(
        torch.zeros(2, 3), torch.zeros(0), torch.zeros(4, dtype=torch.complex64)
    ).fragments
    assert fragment.tensors == (0, 1, 2)
    assert fragment.offsets == (0, 6, 6, 14)
    assert fragment.numel == 14


def test_one_tensor_listed_twice_is_refused() -> None:
    """Its progress would be merged, and every correction added, twice."""
    shared = torch.zeros(3)
    with pytest.raises(
        UsageError,
        match=r"w2 .* got that of parameter w0; .* tied parameters to the inner optimizer once",
    ):
        layout(shared, torch.zeros(3), shared.view(3, 1))


SHEET = torch.zeros(8, 6)


@pytest.mark.parametrize(
    "views",
    [
        [SHEET[:6], SHEET[2:]],
        [SHEET[4:6], SHEET],
        [SHEET[:, 1], SHEET],
        [SHEET[:4, 1], SHEET[0]],
        [SHEET[3:].t(), SHEET[:4]],
        [SHEET[7], SHEET[0], SHEET[1], SHEET[6:].t()],
        [SHEET[:1].view(torch.complex64), SHEET[0, 5:]],
    ],
    ids=range(7),
)
def test_parts_of_one_tensor_that_overlap_are_refused(views: list[Tensor]) -> None:
    """Others' work would be added twice to the memory that they share."""
    last = len(views) - 1
    with pytest.raises(UsageError, match=rf"w{last} must have memory .* part of that of paramet"):
        layout(*views)
    with pytest.raises(UsageError, match=r"w\d must have memory .* part of that of parameter w\d"):
        layout(*reversed(views))


@pytest.mark.parametrize(
    "views",
    [
        [SHEET[:4], SHEET[4:]],
        [SHEET[4:], SHEET[:4].t()],
        [SHEET[:, 0], SHEET[:, 1], SHEET[:, 3:]],
        [SHEET[::2], SHEET[1::2]],
        [SHEET[:0], SHEET, SHEET[8:]],
    ],
    ids=range(5),
)
def test_parts_of_one_tensor_that_share_no_element_are_taken(views: list[Tensor]) -> None:
    assert layout(*views).numel == sum(view.numel() for view in views)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (torch.ones(2, dtype=torch.complex64).conj(), r"a conjugate view; .* resolve_conj\(\)"),
        (torch.ones(2, dtype=torch.complex64).conj().imag, r"a negative view; .* resolve_neg\(\)"),
    ],
    ids=["conj", "neg"],
)
def test_a_view_whose_values_are_not_those_in_memory_is_refused(tensor: Tensor, words: str) -> None:
    with pytest.raises(UsageError, match=f"w0 must be .* got {words} of it"):
        layout(tensor)
    with pytest.raises(UsageError, match=f"buffers: b must be .* got {words} of it"):
        Layout(["w"], [torch.ones(1)], 1, buffers=[("b", tensor)])


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.ones(1).expand(3), True),
        (torch.ones(2, 100)[:, :1].expand(2, 3), True),
        (torch.ones(8).unfold(0, 4, 1), True),
        (torch.ones(8).unfold(0, 4, 4), False),
        (torch.ones(8).unfold(0, 2, 4), False),
        (torch.ones(1, 1).expand(1, 1), False),
        (torch.ones(2, 3).t(), False),
        (torch.ones(0, 3), False),
        (torch.ones(()), False),
        (torch.eye(2).to_sparse(), False),
    ],
    ids=range(10),
)
def test_a_view_may_overlap_itself(tensor: Tensor, expected: bool) -> None:
    assert overlaps_itself(tensor) is expected


def test_the_fingerprint_lists_count_then_names_shapes_and_dtypes() -> None:
    made = Layout(["a", "b"], [torch.zeros(2, 3), torch.zeros(1, dtype=torch.bfloat16)], 1)
    assert made.fingerprint() == (
        ("number of parameters", "2"),
        ("parameter a", "[2, 3] torch.float32"),
        ("parameter b", "[1] torch.bfloat16"),
    )


def test_the_fingerprint_does_not_depend_on_values_or_fragments() -> None:
    a, b = torch.zeros(2), torch.ones(2)
    assert layout(a, b, fragments=1).fingerprint() == layout(b, a, fragments=2).fingerprint()


def test_what_cannot_be_merged_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"w0 must be a dense tensor of floating point .* got torch\.int64"
    ):
        layout(torch.zeros(2, dtype=torch.int64))
    with pytest.raises(UsageError, match=r"inner must be .* at least one parameter"):
        layout()
    with pytest.raises(
        UsageError,
        match=r"fragments must be at most .* \(1\), got 2; a fragment holds whole tensors",
    ):
        layout(torch.zeros(2), fragments=2)


def test_check_accepts_the_same_parameters_with_other_values() -> None:
    layout(torch.zeros(2), torch.zeros(3)).check([torch.ones(2), torch.ones(3)])


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ([torch.zeros(2)], "keep its 2 parameters .* got 1; add parameters with add_param_group"),
        ([torch.zeros(2), torch.zeros(4)], r"w1 .*\[3\].*\[4\]"),
    ],
)
def test_check_names_what_changed(now: list[Tensor], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        layout(torch.zeros(2), torch.zeros(3)).check(now)


def test_a_span_is_where_a_tensor_lies() -> None:
    (fragment,) = layout(torch.zeros(2), torch.zeros(0), torch.zeros(3)).fragments
    assert [fragment.span(i) for i in range(3)] == [slice(0, 2), slice(2, 2), slice(2, 5)]


def test_only_added_groups_have_a_digest_and_it_tells_them_apart() -> None:
    tensors = [torch.zeros(2), torch.zeros(3), torch.zeros(3)]
    first, second, third = Layout(["a", "b", "c"], tensors, 1, added=(1, 1)).groups()
    assert first == b""
    assert len({second, third}) == 2
    assert Layout(["x", "b", "c"], tensors, 1, added=(1, 1)).groups() == (b"", second, third)


def test_check_names_a_parameter_that_is_another_object() -> None:
    before = [torch.zeros(2), torch.zeros(3)]
    made = layout(*before)
    made.check(before, before)
    with pytest.raises(UsageError, match="parameter w1 must keep its tensor"):
        made.check([before[0], before[1].clone()], before)
