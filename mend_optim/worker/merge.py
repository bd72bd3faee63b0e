"""How offers become one delta: weights, and the merges. All float32, on the host, members in
peer-name order.

In-place and by blocks: a merge touches each offer once, holds no temporary of the model's size (the
mean), and its result depends on nothing but the offers, their weights and their order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from mend_optim.codecs.packing import PART, placed

MERGES = ("mean", "rda", "trimmed_mean", "median")
# the merges in which each member has a share: a median takes none of one learner's rest
SHARED = ("mean", "rda")
TRIM = 0.25
# elements: a block of some operands stays in a cache, and the calls take less long than the numbers
BLOCK = 1 << 18
# the same of many operands; a norm in float32 of so many elements is right to the seventh digit
FINE = 1 << 16


def blocks(numel: int, size: int = BLOCK) -> Iterator[slice]:
    """Consecutive slices that cover `range(numel)` exactly."""
    return (slice(start, min(start + size, numel)) for start in range(0, numel, size))


def weighted_mean(deltas: Sequence[Tensor], w: Sequence[float], out: Tensor) -> Tensor:
    """Δ̄ = Σ wᵢ Δᵢ, summed in the given order, into `out` (float32, numel as every Δᵢ). Every
    product and every sum is rounded once (no fused multiply-add), so that it is the same on all
    hardware."""
    scratch = torch.empty(min(2 * BLOCK, out.numel()), dtype=torch.float32)
    for block in blocks(out.numel(), 2 * BLOCK):  # only `out` and `scratch` stay
        for i, (delta, weight) in enumerate(zip(deltas, w, strict=True)):
            _add(delta[block], weight, out[block], scratch, first=i == 0)
    return out


def weighted_mean_by_parts(
    deltas: Iterable[Iterable[Tensor]], w: Sequence[float], out: Tensor
) -> Tensor:
    """The same, to the bit, of deltas that come in parts (of `PART` elements at most): none is ever
    whole."""
    scratch = torch.empty(min(PART, out.numel()), dtype=torch.float32)
    for i, (parts, weight) in enumerate(zip(deltas, w, strict=True)):
        for here, part in placed(parts):
            _add(part, weight, out[here], scratch, first=i == 0)
    return out


def _add(delta: Tensor, weight: float, out: Tensor, scratch: Tensor, first: bool) -> None:
    if first:
        torch.mul(delta, weight, out=out)
    else:
        out.add_(torch.mul(delta, weight, out=scratch[: out.numel()]))


def _norm(values: Tensor) -> float:
    """‖x‖₂, block by block: torch's float32 norm of a whole large tensor is off in the third
    digit."""
    norms = (
        float(torch.linalg.vector_norm(values[block])) for block in blocks(values.numel(), FINE)
    )
    return math.sqrt(math.fsum(norm**2 for norm in norms))


def radial_directional(
    deltas: Sequence[Tensor], w: Sequence[float], out: Tensor, offsets: Sequence[int]
) -> Tensor:
    """RDA per tensor: Δ̄ = R φ(Σ wᵢ φ(Δᵢ)), R = Σ wᵢ ‖Δᵢ‖, φ(x) = x/‖x‖, φ(0) = 0 (arXiv
    2604.21428).

    `offsets` bound the tensors in the flat buffers. Its norm does not shrink with the number of
    nearly orthogonal members. Where directions cancel to rounding, the plain mean stands in."""
    for start, stop in itertools.pairwise(offsets):
        parts = [delta[start:stop] for delta in deltas]
        norms = [_norm(part) for part in parts]
        unit = [weight / norm if norm > 0 else 0.0 for weight, norm in zip(w, norms, strict=True)]
        merged = weighted_mean(parts, unit, out[start:stop])
        length = _norm(merged)
        if length > 1e-6:
            merged.mul_(sum(weight * norm for weight, norm in zip(w, norms, strict=True)) / length)
        else:
            weighted_mean(parts, w, merged)
    return out


def _ordered(values: Sequence[Tensor]) -> list[Tensor]:
    """Per coordinate, the smallest, the next, … By comparing neighbours, as often as there are
    members (odd-even transposition): of few members, whole vectors are compared far faster than
    `sort` goes down columns."""
    rows = [value.clone() for value in values]
    low = torch.empty_like(rows[0])
    for turn in range(len(rows)):
        for i in range(turn % 2, len(rows) - 1, 2):
            torch.minimum(rows[i], rows[i + 1], out=low)
            torch.maximum(rows[i], rows[i + 1], out=rows[i + 1])
            rows[i], low = low, rows[i]
    return rows


def trimmed_mean(deltas: Sequence[Tensor], out: Tensor, trim: float = TRIM) -> Tensor:
    """Per coordinate: drop the ⌊trim·n⌋ smallest and largest values, average the rest, unweighted.
    Survives that many garbage members."""
    cut = int(trim * len(deltas))
    for block in blocks(out.numel(), FINE):
        ordered = _ordered([delta[block] for delta in deltas])
        torch.mean(torch.stack(ordered[cut : len(deltas) - cut]), dim=0, out=out[block])
    return out


def coordinate_median(deltas: Sequence[Tensor], out: Tensor) -> Tensor:
    """Per coordinate median, unweighted; the mean of the middle two when their number is even."""
    middle = (len(deltas) - 1) // 2
    for block in blocks(out.numel(), FINE):
        ordered = _ordered([delta[block] for delta in deltas])
        torch.mean(torch.stack(ordered[middle : len(deltas) - middle]), dim=0, out=out[block])
    return out


def merge(
    scheme: str, deltas: Sequence[Tensor], w: Sequence[float], out: Tensor, offsets: Sequence[int]
) -> Tensor:
    """Merge `deltas` (flat float32, in peer-name order) into `out` by the named scheme."""
    if scheme == "mean":
        return weighted_mean(deltas, w, out)
    if scheme == "rda":
        return radial_directional(deltas, w, out, offsets)
    if scheme == "trimmed_mean":
        return trimmed_mean(deltas, out)
    return coordinate_median(deltas, out)


def finite(values: Tensor) -> bool:
    """Whether every element is finite. One pass: a sum carries any NaN or infinity (and a sum that
    overflows is refused too)."""
    return bool(torch.isfinite(values.sum()))
