"""The copies between parameters and flat host buffers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mend_optim.model import many_tensors
from mend_optim.model.copies import (
    SAMPLES,
    belong_to,
    flat,
    gather,
    narrow,
    scatter,
    sketch,
    sketches,
)
from mend_optim.model.layout import Layout
from tests import reference


def layout(*tensors: Tensor, fragments: int = 1) -> Layout:
    return Layout([f"w{i}" for i in range(len(tensors))], tensors, fragments)


def gathered(made: Layout, parameters: list[Tensor]) -> list[Tensor]:
    out = [torch.full((f.numel,), torch.nan) for f in made.fragments]
    for fragment, buffer in zip(made.fragments, out, strict=True):
        gather(fragment, parameters, buffer)
    return out


def scattered(made: Layout, values: list[Tensor], parameters: list[Tensor], replace: bool) -> None:
    for fragment, buffer in zip(made.fragments, values, strict=True):
        scatter(fragment, buffer, parameters, replace)


TENSORS = {
    "float32": lambda: torch.randn(3, 4),
    "bfloat16": lambda: torch.randn(3, 4).bfloat16(),
    "float16": lambda: torch.randn(5).half(),
    "float64": lambda: torch.randn(5).double(),
    "complex64": lambda: torch.randn(2, 3, dtype=torch.complex64),
    "complex128": lambda: torch.randn(3, dtype=torch.complex64).to(torch.complex128),
    "scalar": lambda: torch.randn(()),
    "empty": lambda: torch.empty(0, 3),
    "transposed": lambda: torch.randn(3, 4).t(),
    "strided": lambda: torch.randn(6, 4)[::2, 1:3],
    "requires grad": lambda: nn.Parameter(torch.randn(3)),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_gather_then_replace_is_identity(kind: str) -> None:
    parameters = [TENSORS[kind](), torch.randn(2)]
    before = [p.detach().clone() for p in parameters]
    made = layout(*parameters)
    values = gathered(made, parameters)
    with torch.no_grad():
        parameters[0].zero_()
    scattered(made, values, parameters, replace=True)
    assert all(
        torch.equal(p, b) and p.dtype == b.dtype for p, b in zip(parameters, before, strict=True)
    )


@pytest.mark.parametrize("kind", TENSORS)
def test_add_rounds_the_sum_once_to_the_parameters_dtype(kind: str) -> None:
    parameter = TENSORS[kind]()
    before, made = parameter.detach().clone(), layout(parameter)
    step = torch.randn(made.numel)
    scattered(made, [step], [parameter], replace=False)
    real = torch.view_as_real(before) if before.is_complex() else before
    exact = (real.double() + step.view(real.shape).double()).to(real.dtype)
    after = torch.view_as_real(parameter.detach()) if parameter.is_complex() else parameter.detach()
    assert torch.equal(after, exact)


def test_adding_nothing_leaves_float64_weights_as_they_are() -> None:
    parameter = torch.tensor([1 + 2**-40], dtype=torch.float64)
    scattered(layout(parameter), [torch.zeros(1)], [parameter], replace=False)
    assert parameter.item() == 1 + 2**-40


def test_scatter_writes_in_place_and_records_no_gradient() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    where = parameter.data_ptr()
    scattered(layout(parameter), [torch.ones(2)], [parameter], replace=False)
    assert parameter.data_ptr() == where
    assert parameter.is_leaf
    assert parameter.tolist() == [1, 1]


def test_tied_modules_stay_tied() -> None:
    embedding, head = nn.Embedding(3, 2), nn.Linear(2, 3, bias=False)
    head.weight = embedding.weight
    parameters: list[Tensor] = list(nn.Sequential(embedding, head).parameters())
    made = layout(*parameters)
    scattered(made, [torch.ones(made.numel)], parameters, replace=True)
    assert made.numel == 6
    assert head.weight is embedding.weight
    assert head.weight.tolist() == [[1, 1]] * 3


@given(st.integers(1, 4), st.integers(0, 2**32))
def test_fragments_cover_every_element_once(fragments: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    parameters: list[Tensor] = [torch.randn(n, generator=generator) for n in (3, 0, 7, 1, 2)]
    made = layout(*parameters, fragments=fragments)
    everything = torch.cat(gathered(made, parameters))
    assert sorted(everything.tolist()) == sorted(torch.cat(parameters).tolist())


def test_an_empty_tensor_keeps_its_shape_where_torch_makes_it_flat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unflatten(flat: Tensor, like: Any) -> list[Tensor]:
        parts = flat.split([tensor.numel() for tensor in like])
        return [p.view(t.shape) if t.numel() else p for p, t in zip(parts, like, strict=True)]

    monkeypatch.setattr(many_tensors, "_unflatten", unflatten)
    parameters: list[Tensor] = [torch.ones(2, 2), torch.empty(0, 3)]
    made = layout(*parameters)
    scattered(made, gathered(made, parameters), parameters, replace=False)
    assert parameters[0].tolist() == [[2, 2], [2, 2]]


# ── few calls ─────────────────────────────────────────────────────────────────────────────────────


class Calls(TorchFunctionMode):
    """Counts the calls of torch, without those that only look at a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.__name__ not in ("__get__", "numel")
        return func(*args, **kwargs or {})


def calls(tensors: int, dtype: torch.dtype, rounding: bool) -> int:
    """The calls of one copy and one correction of so many tensors."""
    parameters: list[Tensor] = [nn.Parameter(torch.ones(3, 2, dtype=dtype)) for _ in range(tensors)]
    (fragment,) = layout(*parameters).fragments
    out = torch.zeros(fragment.numel)
    lost = torch.zeros(fragment.numel) if rounding else None
    with Calls() as mode:
        gather(fragment, parameters, out, lost)
        scatter(fragment, out, parameters, replace=False, rounding=lost)
        scatter(fragment, out, parameters, replace=True, rounding=lost)
    return mode.count


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("rounding", [False, True])
def test_as_many_calls_copy_and_correct_few_tensors_and_many(
    dtype: torch.dtype, rounding: bool
) -> None:
    """A Python thread of the user's may hold up every call."""
    assert calls(40, dtype, rounding) == calls(3, dtype, rounding)


class Odd(Tensor):
    """A tensor of a class that knows no calls for many tensors."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert "foreach" not in func.__name__
        assert "unflatten" not in func.__name__
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_of_other_classes_are_copied_by_their_own_calls(dtype: torch.dtype) -> None:
    odd = torch.zeros(2, 3, dtype=dtype).as_subclass(Odd)
    parameters = [odd, torch.zeros(4, dtype=dtype)]
    (fragment,) = layout(*parameters).fragments
    values, lost = torch.arange(10.0), torch.zeros(10)
    out = torch.empty(10)
    scatter(fragment, values, parameters, replace=True, rounding=lost)
    scatter(fragment, values, parameters, replace=False, rounding=lost)
    gather(fragment, parameters, out, lost)
    assert out.tolist() == [2 * x for x in values.tolist()]


# ── rounding ──────────────────────────────────────────────────────────────────────────────────────


def test_narrow_dtypes_are_those_that_hold_less_than_float32() -> None:
    found = {dtype: narrow(torch.empty(0, dtype=dtype)) for dtype in DTYPES}
    assert [dtype for dtype in DTYPES if found[dtype]] == [torch.bfloat16, torch.float16]


DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.complex64)


def test_what_a_narrow_dtype_loses_is_kept_and_gathered_again() -> None:
    """The fragment stands for its parameters plus the rounding, and nothing is lost."""
    parameters = [torch.ones(4, dtype=torch.bfloat16), torch.ones(3)]
    (fragment,) = layout(*parameters).fragments
    rounding = torch.zeros(fragment.numel)
    expected = torch.ones(fragment.numel)
    for _ in range(5):
        step = torch.full((fragment.numel,), 2.0**-12)
        scatter(fragment, step, parameters, replace=False, rounding=rounding)
        expected += step
        out = torch.empty(fragment.numel)
        gather(fragment, parameters, out, rounding)
        assert torch.equal(out, expected)
    assert parameters[0].tolist() == [1.0] * 4
    assert rounding.tolist() == [5 * 2.0**-12] * 4 + [0.0] * 3


#: The tensors that hold no more than float32 does.
SINGLE = sorted({*TENSORS} - {"float64", "complex128"})
NARROWED = {torch.bfloat16: reference.bfloat16, torch.float16: reference.float16}


@given(
    st.lists(
        st.sampled_from(sorted({*TENSORS} - {"float64", "complex128"})), min_size=1, max_size=6
    ),
    st.integers(0, 2**32),
    st.booleans(),
    st.booleans(),
    st.integers(1, 16),
)
def test_each_number_moves_as_its_twin_does(
    kinds: list[str], seed: int, replace: bool, rounds: bool, batch: int
) -> None:
    torch.manual_seed(seed)
    parameters = [TENSORS[kind]() for kind in kinds]
    for fragment in layout(*parameters).fragments:
        step, lost = torch.randn(2, fragment.numel)
        before = numbers(parameters)
        keeps = [rounds and t.dtype in NARROWED for t in parameters for _ in numbers([t])]
        told = [x if keep else None for x, keep in zip(lost.tolist(), keeps, strict=True)]
        dtypes = [t.dtype for t in parameters for _ in numbers([t])]
        twins = [
            reference.moved(*each, replace, NARROWED.get(dtype, reference.float32))
            for *each, dtype in zip(before, step.tolist(), told, dtypes, strict=True)
        ]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("mend_optim.model.many_tensors.BATCH", batch)
            scatter(fragment, step, parameters, replace, lost if rounds else None)
        assert numbers(parameters) == [now for now, _ in twins]
        kept = [
            x if left is None else left for x, (_, left) in zip(lost.tolist(), twins, strict=True)
        ]
        assert lost.tolist() == kept
        out = torch.empty(fragment.numel)
        gather(fragment, parameters, out, lost if rounds else None)
        assert out.tolist() == [reference.float32(now + (left or 0.0)) for now, left in twins]


def numbers(tensors: list[Tensor]) -> list[float]:
    """All numbers of these tensors, in order."""
    real = [torch.view_as_real(t) if t.is_complex() else t for t in map(Tensor.detach, tensors)]
    return [x for tensor in real for x in tensor.reshape(-1).tolist()]


def test_a_replacement_keeps_the_rounding_of_the_new_values_alone() -> None:
    parameters = [torch.zeros(2, dtype=torch.bfloat16)]
    (fragment,) = layout(*parameters).fragments
    rounding = torch.full((2,), 7.0)
    values = torch.tensor([1 + 2.0**-12, 3.0])
    scatter(fragment, values, parameters, replace=True, rounding=rounding)
    assert parameters[0].tolist() == [1.0, 3.0]
    assert rounding.tolist() == [2.0**-12, 0.0]


# ── whole copies ──────────────────────────────────────────────────────────────────────────────────


def test_flat_is_a_copy() -> None:
    parameter = torch.arange(4.0).view(2, 2)
    (fragment,) = layout(parameter).fragments
    found = flat(fragment, [parameter])
    parameter.zero_()
    assert found.tolist() == [0, 1, 2, 3]
    assert found.dtype == torch.float32


# ── sketches ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", TENSORS)
def test_a_sketch_depends_on_values_and_not_on_the_object(kind: str) -> None:
    parameter = TENSORS[kind]().detach()
    assert sketch([parameter]) == sketch([parameter.clone()])
    if parameter.numel():
        assert sketch([parameter]) != sketch([parameter + 1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_same_weights_in_another_dtype_have_the_same_sketch(dtype: torch.dtype) -> None:
    weights = torch.randn(9).bfloat16().float()
    assert sketch([weights.to(dtype)]) == sketch([weights])
    layout = Layout(["0"], [weights], 1)
    assert belong_to(sketches(layout, [weights]), layout, [weights.to(dtype)])
    assert not belong_to(sketches(layout, [weights]), layout, [weights.to(dtype) + 1])


def test_sketches_of_older_checkpoints_are_those_of_the_dtype_that_the_weights_had() -> None:
    weights = torch.randn(9).double()
    layout = Layout(["0"], [weights], 1)
    older = sketches(layout, [weights], in_float32=False)
    assert older != sketches(layout, [weights])
    assert belong_to(older, layout, [weights])
    assert not belong_to(older, layout, [weights + 1])


def test_every_tensor_and_its_place_count_in_a_sketch() -> None:
    a, b = torch.zeros(3), torch.ones(3)
    assert len({sketch([a, b]), sketch([b, a]), sketch([a]), sketch([b])}) == 4


def test_a_sketch_covers_a_few_elements_of_a_large_tensor() -> None:
    large = torch.zeros(100 * SAMPLES)
    before = sketch([large])
    large[1] = 1
    assert sketch([large]) == before
    large[100] = 1
    assert sketch([large]) != before


def test_wrapped_parameters_and_each_added_group_have_a_sketch_of_their_own() -> None:
    parameters = [torch.full((2,), float(i)) for i in range(5)]
    made = Layout([str(i) for i in range(5)], parameters, 1, added=(1, 2))
    expected = [sketch(parameters[:2]), sketch(parameters[2:3]), sketch(parameters[3:])]
    assert sketches(made, parameters).split() == expected
