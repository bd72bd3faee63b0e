"""Which buffers modules have, and copies between them and flat buffers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from mend_optim import UsageError
from mend_optim.model.layout import BufferFragment, Layout
from mend_optim.model.module_buffers import (
    ModuleBuffers,
    gather_buffers,
    move_buffers,
    read_modules,
)
from tests import reference

numbers = st.floats(-1e6, 1e6, width=32)
small = st.integers(0, 3)
WHOLE = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint64]
KINDS = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.complex64,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


def holder(**buffers: Tensor) -> nn.Module:
    module = nn.Module()
    for name, tensor in buffers.items():
        module.register_buffer(name, tensor)
    return module


def fragment_of(**buffers: Tensor) -> BufferFragment:
    layout = Layout(["w"], [torch.ones(1)], 1, buffers=list(buffers.items()))
    fragment = layout.fragments[1]
    assert isinstance(fragment, BufferFragment)
    return fragment


def flat(fragment: BufferFragment, *tensors: Tensor) -> Tensor:
    out = torch.full((fragment.nbytes,), 255, dtype=torch.uint8)
    gather_buffers(fragment, tensors, out)
    return out


def names(*modules: nn.Module) -> list[str]:
    return [name for name, _ in ModuleBuffers(modules).named()]


# ── which ones ────────────────────────────────────────────────────────────────────────────────────


def test_they_are_the_buffers_of_a_state_dict() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Sequential(nn.BatchNorm1d(2)))
    model.register_buffer("table", torch.ones(3), persistent=False)
    model.register_buffer("nothing", None)
    found = names(model)
    parameters = dict(model.named_parameters())
    assert found == [name for name in model.state_dict() if name not in parameters]
    assert len(found) == 6


def test_a_buffer_that_modules_share_is_counted_once() -> None:
    shared, other = torch.ones(3), torch.ones(3)
    first, second = holder(a=shared), holder(b=shared, c=shared.view(3), d=other)
    assert names(nn.ModuleList([first, second, first])) == ["0.a", "1.d"]
    assert names(first, second, first) == ["0.a", "1.d"]


def test_wrappers_leave_the_names_as_they_are() -> None:
    model = nn.BatchNorm1d(2)
    wrapped = nn.Module()
    wrapped.module = model  # as DistributedDataParallel does
    outer = nn.Module()
    outer._orig_mod = model  # as torch.compile does
    assert names(wrapped) == names(outer) == names(model)


def test_empty_buffers_are_each_their_own() -> None:
    assert names(holder(a=torch.empty(0), b=torch.empty(0))) == ["a", "b"]


@pytest.mark.parametrize(
    "given_", ["model", 3, torch.tensor(1.0), [torch.ones(2)], [nn.Linear(1, 1), None]]
)
def test_what_is_no_module_is_refused(given_: Any) -> None:
    with pytest.raises(UsageError, match=r"buffers must be None, a torch.nn.Module or several"):
        read_modules(given_)


def test_modules_come_alone_or_in_any_iterable() -> None:
    one, two = nn.Linear(1, 1), nn.Linear(1, 1)
    assert read_modules(None) == ()
    assert read_modules(one) == (one,)
    assert read_modules(module for module in (one, two)) == (one, two)
    listed = nn.ModuleList([one, two])
    assert read_modules(listed) == (listed,)


def test_from_when_they_are_fixed_another_tensor_of_the_same_name_counts() -> None:
    module = holder(a=torch.ones(2))
    buffers = ModuleBuffers([module])
    buffers.fix()
    module.register_buffer("later", torch.ones(1))
    module.a = torch.full((2,), 7.0)
    assert [name for name, _ in buffers.named()] == ["a"]
    assert buffers.tensors()[0] is module.a
    module.a = None
    with pytest.raises(UsageError, match=r"buffers: a must stay a tensor .* got NoneType"):
        buffers.tensors()


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda: torch.ones(1).expand(3), "one that shares"),
        (lambda: torch.ones(2).to_sparse(), "torch.sparse_coo"),
        (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8), "torch.quint8"),
        (lambda: torch.ones(2, device="meta"), "one without values yet"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # of torch: quantized tensors are to go
def test_a_buffer_that_cannot_be_written_is_refused(make: Callable[[], Tensor], fault: str) -> None:
    tensor = make()
    with pytest.raises(UsageError, match=rf"buffers: a must be a dense tensor .*got {fault}"):
        Layout(["w"], [torch.ones(1)], 1, buffers=[("a", tensor)])


@pytest.mark.parametrize("now", [torch.ones(3), torch.ones(2, dtype=torch.float64)])
def test_a_buffer_of_another_kind_than_before_is_named(now: Tensor) -> None:
    layout = Layout(["w"], [torch.ones(1)], 1, buffers=[("bn.mean", torch.ones(2))])
    layout.check_buffers([torch.zeros(2)])
    with pytest.raises(UsageError, match=r"buffers: bn.mean must keep its shape \[2\] and torch.f"):
        layout.check_buffers([now])


# ── the layout ────────────────────────────────────────────────────────────────────────────────────


def test_they_are_one_fragment_between_the_wrapped_and_the_added_parameters() -> None:
    tensors = [torch.ones(3), torch.ones(2), torch.ones(4)]
    layout = Layout(list("abc"), tensors, 2, (1,), buffers=[("m", torch.ones(2))])
    kinds = [type(fragment).__name__ for fragment in layout.fragments]
    assert kinds == ["Fragment", "Fragment", "BufferFragment", "Fragment"]
    assert [fragment.index for fragment in layout.fragments] == [0, 1, 2, 3]
    assert layout.fragments[3].tensors == (2,)
    assert [bool(group) for group in layout.groups()] == [False, False, False, True]
    assert layout.policy() == (("buffers", "1 tensors"),)
    assert ("buffer m", "[2] torch.float32") in layout.fingerprint()


def test_without_buffers_a_layout_is_as_ever() -> None:
    with_none = Layout(["a"], [torch.ones(3)], 1, buffers=[])
    assert with_none.fingerprint() == Layout(["a"], [torch.ones(3)], 1).fingerprint()
    assert with_none.policy() == ()
    assert len(with_none.fragments) == 1


# ── copies ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 5)])
def test_a_buffer_travels_bit_by_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    draws = torch.Generator().manual_seed(1)
    tensor = (torch.rand(shape, generator=draws) * 200).to(dtype)
    before, after = torch.ones(1, dtype=torch.bool), torch.full((1,), 2**62 + 1)
    tensors = {"before": before, "tensor": tensor, "after": after}
    fragment = fragment_of(**tensors)
    packed = flat(fragment, *tensors.values())
    there = [torch.zeros_like(t) for t in tensors.values()]
    move_buffers(fragment, there, packed, None)
    for found, expected in zip(there, tensors.values(), strict=True):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    clean = torch.zeros_like(packed)
    gather_buffers(fragment, there, clean)
    assert torch.equal(packed, clean)  # the padding, too


def test_a_buffer_need_not_be_contiguous() -> None:
    tensor = torch.arange(6.0).view(2, 3).t()
    fragment = fragment_of(a=tensor)
    there = torch.zeros(2, 3).t()
    move_buffers(fragment, [there], flat(fragment, tensor), None)
    assert torch.equal(there, tensor)


@given(st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=8))
def test_an_element_follows_as_its_slow_twin_does(rows: list[tuple[float, float, float]]) -> None:
    now, anchor, base = torch.tensor(rows, dtype=torch.float64).t().contiguous()
    fragment = fragment_of(a=now)
    move_buffers(fragment, [now], flat(fragment, anchor), flat(fragment, base))
    expected = [reference.followed(*row) for row in rows]
    unchanged = [row[0] for row in rows]
    moves = any(row[1] != row[2] for row in rows)
    assert now.tolist() == (expected if moves else unchanged)


@given(
    st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=8),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]),
)
def test_an_element_stays_between_its_value_and_the_anchor(
    rows: list[tuple[float, float, float]], dtype: torch.dtype
) -> None:
    """So a running variance stays at least 0, however late the anchor is."""
    here, anchor, base = (torch.tensor(rows) % 1000).to(dtype).t().contiguous()
    now = here.clone()
    fragment = fragment_of(a=now)
    move_buffers(fragment, [now], flat(fragment, anchor), flat(fragment, base))
    assert bool((now >= torch.minimum(here, anchor)).all())
    assert bool((now <= torch.maximum(here, anchor)).all())
    at_base = here == base
    if not torch.equal(anchor, base):
        assert torch.equal(now[at_base], anchor[at_base])


def test_what_nobody_changed_is_not_written() -> None:
    mask = torch.tensor([0.0, -math.inf, math.nan])
    count, fragment = torch.tensor(5), fragment_of(mask=mask, count=torch.tensor(5))
    packed = flat(fragment, mask, count)
    versions = mask._version, count._version
    move_buffers(fragment, [mask, count], packed, packed.clone())
    assert (mask._version, count._version) == versions


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8))
def test_a_buffer_that_stood_still_becomes_the_anchor_to_the_bit(
    rows: list[tuple[float, float]],
) -> None:
    """1e6 + (0.1 - 1e6) is not 0.1."""
    now, anchor = torch.tensor([(1e6, 0.1), *rows]).t().contiguous()
    fragment = fragment_of(a=now)
    move_buffers(fragment, [now], flat(fragment, anchor), flat(fragment, now))
    assert torch.equal(now, anchor)


def test_an_infinity_that_all_have_stays_and_moves_nothing() -> None:
    """The last one is of a learner that has seen its first value since."""
    now = torch.tensor([-math.inf, 3.0, 7.0])
    base = torch.tensor([-math.inf, 2.0, math.inf])
    anchor = torch.tensor([-math.inf, 1.0, math.inf])
    fragment = fragment_of(a=now)
    move_buffers(fragment, [now], flat(fragment, anchor), flat(fragment, base))
    assert now.tolist() == [-math.inf, 2.0, 7.0]


@given(
    st.lists(st.tuples(small, small, small), min_size=1, max_size=8),
    st.sampled_from([*WHOLE, torch.bool]),
)
def test_an_integer_follows_as_its_slow_twin_does(
    rows: list[tuple[int, int, int]], dtype: torch.dtype
) -> None:
    """Each element by itself: [5, 9] that was [5, 7] becomes [6, 9] beside an anchor of [6, 7]."""
    now, anchor, base = torch.tensor([(5, 6, 5), (9, 7, 7), *rows]).to(dtype).t().contiguous()
    here = now.tolist()
    fragment = fragment_of(a=now)
    move_buffers(fragment, [now], flat(fragment, anchor), flat(fragment, base))
    each = zip(here, anchor.tolist(), base.tolist(), strict=True)
    assert now.tolist() == [reference.replaced(*row) for row in each]


def test_the_integers_of_a_column_follow_in_place() -> None:
    matrix = torch.tensor([[5, 1], [9, 2]])
    now, fragment = matrix[:, 0], fragment_of(a=matrix[:, 0])
    anchor, base = torch.tensor([6, 7]), torch.tensor([5, 7])
    move_buffers(fragment, [now], flat(fragment, anchor), flat(fragment, base))
    assert matrix.tolist() == [[6, 1], [9, 2]]


@pytest.mark.parametrize(("base", "expected"), [(10, 13), (13, 13), (7, 7)])
def test_an_integer_is_replaced_unless_it_was_this_learner_that_gave_it(
    base: int, expected: int
) -> None:
    now, anchor = torch.tensor(15), torch.tensor(expected)
    fragment = fragment_of(a=now)
    move_buffers(fragment, [now], flat(fragment, anchor), flat(fragment, torch.tensor(base)))
    assert now.item() == (15 if base == expected else expected)
