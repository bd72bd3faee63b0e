"""How offers become one delta. All tensors are float32, on the host, members in peer-name order.

Merges work in place and block by block. The mean touches each offer once and holds no temporary of
the model's size. A result depends on nothing but the offers, their weights and their order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from mend_optim.codecs.packing import MOST, PART, placed

MERGES = ("norm_preserving", "mean", "rda", "trimmed_mean", "median", "centered_clip")
#: The merges in which each member has a share. A median would ignore the residual that a single
#: learner flushes.
SHARED = ("norm_preserving", "mean", "rda")
#: The merges that are a weighted mean of the deltas, so members' packets can stand for it.
LINEAR = ("norm_preserving", "mean")
#: The share of the members that a trimmed mean drops at each end.
TRIM = 0.25
#: Elements of a block with few operands: it stays in a cache, and the calls take less time than the
#: numbers.
BLOCK = 1 << 18
#: Elements of a block with many operands. A float32 norm of so many elements is right to the
#: seventh digit.
FINE = 1 << 16


def blocks(numel: int, size: int = BLOCK) -> Iterator[slice]:
    """Consecutive slices that cover `range(numel)` exactly."""
    return (slice(start, min(start + size, numel)) for start in range(0, numel, size))


def weighted_mean(deltas: Sequence[Tensor], w: Sequence[float], out: Tensor) -> Tensor:
    """Δ̄ = Σ wᵢ Δᵢ, summed in the given order, in `out` (float32, as long as every Δᵢ).

    Every product and every sum is rounded once (no fused multiply-add), so the result is the same
    on all hardware."""
    scratch = torch.empty(min(2 * BLOCK, out.numel()), dtype=torch.float32)
    # A double block: only `out` and `scratch` have to stay in the cache.
    for block in blocks(out.numel(), 2 * BLOCK):
        for i, (delta, weight) in enumerate(zip(deltas, w, strict=True)):
            _add(delta[block], weight, out[block], scratch, first=i == 0)
    return out


def weighted_mean_by_parts(
    deltas: Iterable[Iterable[Tensor]],
    w: Sequence[float],
    out: Tensor,
    measure: Callable[[int, slice, Tensor], object] = lambda *_: None,
) -> Tensor:
    """The weighted mean, to the bit, of deltas that come in parts of at most `PART` elements. No
    delta is ever held whole. `measure` is called with every delta's number, the place of each part,
    and the part; then with their count, and each part of the mean."""
    scratch = torch.empty(min(PART, out.numel()), dtype=torch.float32)
    for i, (parts, weight) in enumerate(zip(deltas, w, strict=True)):
        for here, part in placed(parts):
            _add(part, weight, out[here], scratch, first=i == 0)
            measure(i, here, part)
            if i == len(w) - 1:
                measure(len(w), here, out[here])
    return out


def _add(delta: Tensor, weight: float, out: Tensor, scratch: Tensor, first: bool) -> None:
    """Add weight · delta to `out`, or write it there as the first term."""
    if first:
        torch.mul(delta, weight, out=out)
    else:
        out.add_(torch.mul(delta, weight, out=scratch[: out.numel()]))


def block_norm(block: Tensor) -> float:
    """‖x‖₂ of at most `FINE` elements. A float32 norm overflows long before the elements do: from
    about 10¹⁷ on."""
    norm = float(torch.linalg.vector_norm(block))
    if math.isinf(norm):
        norm = float(torch.linalg.vector_norm(block, dtype=torch.float64))
    return norm


def _norm(values: Tensor) -> float:
    """‖x‖₂, block by block: torch's float32 norm of a large tensor is off in the third digit."""
    norms = (block_norm(values[block]) for block in blocks(values.numel(), FINE))
    return math.sqrt(math.fsum(norm**2 for norm in norms))


def _distance(a: Tensor, b: Tensor) -> float:
    """‖a − b‖₂, block by block."""
    norms = (_norm(a[block] - b[block]) for block in blocks(a.numel(), FINE))
    return math.sqrt(math.fsum(norm**2 for norm in norms))


def radial_directional(
    deltas: Sequence[Tensor], w: Sequence[float], out: Tensor, offsets: Sequence[int]
) -> Tensor:
    """RDA, tensor by tensor: Δ̄ = R φ(Σ wᵢ φ(Δᵢ)), R = Σ wᵢ ‖Δᵢ‖, φ(x) = x/‖x‖, φ(0) = 0 (arXiv
    2604.21428).

    The norm of the result does not shrink with the number of nearly orthogonal members. Where
    directions cancel up to rounding, the result is the plain mean. So it is where R is so large
    that the result might not be finite. `offsets` bound the tensors in the flat buffers."""
    for start, stop in itertools.pairwise(offsets):
        parts = [delta[start:stop] for delta in deltas]
        norms = [_norm(part) for part in parts]
        unit = [weight / norm if norm > 0 else 0.0 for weight, norm in zip(w, norms, strict=True)]
        merged = weighted_mean(parts, unit, out[start:stop])
        length = _norm(merged)
        radius = sum(weight * norm for weight, norm in zip(w, norms, strict=True))
        if length > 1e-6 and radius / length <= MOST:
            merged.mul_(radius / length)
        else:
            weighted_mean(parts, w, merged)
    return out


def _ordered(values: Sequence[Tensor]) -> list[Tensor]:
    """The values sorted coordinate by coordinate: the smallest first. Odd-even transposition
    compares neighbours as often as there are members: with few members, to compare whole vectors is
    far faster than `sort` along columns."""
    rows = [value.clone() for value in values]
    low = torch.empty_like(rows[0])
    for turn in range(len(rows)):
        for i in range(turn % 2, len(rows) - 1, 2):
            torch.minimum(rows[i], rows[i + 1], out=low)
            torch.maximum(rows[i], rows[i + 1], out=rows[i + 1])
            rows[i], low = low, rows[i]
    return rows


def trimmed_mean(deltas: Sequence[Tensor], out: Tensor, trim: float = TRIM) -> Tensor:
    """Per coordinate, the unweighted mean without the ⌊trim·n⌋ smallest and largest values. It
    survives that many garbage members."""
    cut = int(trim * len(deltas))
    for block in blocks(out.numel(), FINE):
        ordered = _ordered([delta[block] for delta in deltas])
        kept = torch.stack(ordered[cut : len(deltas) - cut])
        mean = torch.mean(kept, dim=0, out=out[block])
        # The sum of large numbers may overflow.
        if not finite(mean):
            exact = torch.mean(kept, dim=0, dtype=torch.float64)
            mean.copy_(torch.where(mean.isfinite(), mean, exact))
    return out


def coordinate_median(deltas: Sequence[Tensor], out: Tensor) -> Tensor:
    """Per coordinate, the unweighted median; of an even number, the mean of the middle two."""
    middle = (len(deltas) - 1) // 2
    for block in blocks(out.numel(), FINE):
        ordered = _ordered([delta[block] for delta in deltas])
        torch.mean(torch.stack(ordered[middle : len(deltas) - middle]), dim=0, out=out[block])
    return out


def centered_clip(deltas: Sequence[Tensor], out: Tensor, offsets: Sequence[int]) -> Tensor:
    """Per tensor, the unweighted mean of the members, each clipped to a ball around their
    coordinate median m:

        Δ̄ = m + (1/n) Σ (Δᵢ − m) min(1, ρ/‖Δᵢ − m‖),        ρ = the lower median of ‖Δᵢ − m‖

    Centred clipping (arXiv 2012.10333) with a centre that needs no memory of earlier rounds, so any
    learner can seal the next one. Fewer than half of the members, whatever they send, cannot move
    the result further from m than an honest member is. Two members have their mean."""
    members = len(deltas)
    for start, stop in itertools.pairwise(offsets):
        parts = [delta[start:stop] for delta in deltas]
        centre = coordinate_median(parts, torch.empty(stop - start, dtype=torch.float32))
        distances = [_distance(part, centre) for part in parts]
        radius = sorted(distances)[(members - 1) // 2]
        shares = [min(1.0, radius / d) / members if d else 1.0 / members for d in distances]
        rest = 1.0 - math.fsum(shares)
        weighted_mean([*parts, centre], [*shares, rest], out[start:stop])
    return out


def merge(
    scheme: str, deltas: Sequence[Tensor], w: Sequence[float], out: Tensor, offsets: Sequence[int]
) -> Tensor:
    """Merge `deltas` (flat float32, in peer-name order) into `out` by the named scheme.

    "norm_preserving" is the mean here: the seal's outer step scales it (`scale.py`)."""
    match scheme:
        case "mean" | "norm_preserving":
            return weighted_mean(deltas, w, out)
        case "rda":
            return radial_directional(deltas, w, out, offsets)
        case "trimmed_mean":
            return trimmed_mean(deltas, out)
        case "centered_clip":
            return centered_clip(deltas, out, offsets)
        case _:
            return coordinate_median(deltas, out)


def finite(values: Tensor) -> bool:
    """Whether every element is finite. Any NaN or infinity shows in the sum, in one pass. A sum of
    large numbers may overflow, so a second pass looks at each of them."""
    return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())
