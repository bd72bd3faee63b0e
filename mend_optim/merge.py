"""How offers become one delta: weights, and the merges. All float32, on the host, members in peer-name order.

In-place and by blocks: a merge touches each offer once, holds no temporary of the model's size (the mean), and its
result depends on nothing but the offers, their weights and their order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from .lineage import Entry

WEIGHTINGS = ("tokens", "throughput", "uniform")
MERGES = ("mean", "rda", "trimmed_mean", "median")
TRIM = 0.25
BLOCK = 1 << 16  # elements: a block of every operand stays in the second-level cache
CHUNK = 1 << 19  # elements of a sum: two of them stay in a cache, and the calls take less long


def blocks(numel: int, size: int = BLOCK) -> Iterator[slice]:
    """Consecutive slices that cover `range(numel)` exactly."""
    return (slice(start, min(start + size, numel)) for start in range(0, numel, size))


def weights(scheme: str, members: Sequence[Entry]) -> list[float]:
    """wᵢ ≥ 0 with Σ wᵢ = 1. "tokens": wᵢ ∝ tokensᵢ; "throughput": wᵢ ∝ tokensᵢ²/stepsᵢ (Decoupled DiLoCo, arXiv
    2604.21428); "uniform": wᵢ = 1/n. A member without steps brings no delta and weighs 0; if no step had tokens, all
    that stepped weigh the same."""
    stepped = [1.0 if m.steps else 0.0 for m in members]
    if scheme == "tokens":
        raw = [m.tokens * s for m, s in zip(members, stepped, strict=True)]
    elif scheme == "throughput":
        raw = [m.tokens * m.tokens / m.steps if m.steps else 0.0 for m in members]
    else:
        raw = stepped
    raw = raw if sum(raw) > 0 else stepped
    total = sum(raw) or 1.0
    return [w / total for w in raw]


def weighted_mean(deltas: Iterable[Tensor], w: Sequence[float], out: Tensor) -> Tensor:
    """Δ̄ = Σ wᵢ Δᵢ, summed in the given order, into `out` (float32, numel as every Δᵢ). Every product and every sum is
    rounded once (no fused multiply-add), so that it is the same on all hardware. Of an iterator, one delta is held at a
    time; of a sequence, `out` goes through the memory only once."""
    passes = [deltas] if isinstance(deltas, Sequence) else ([delta] for delta in deltas)
    room = torch.empty(min(CHUNK, out.numel()), dtype=torch.float32)
    for i, some in enumerate(passes):
        for chunk in blocks(out.numel(), CHUNK):
            here = out[chunk]
            for j, (delta, weight) in enumerate(zip(some, w[i : i + len(some)], strict=True)):
                if i or j:
                    here.add_(torch.mul(delta[chunk], weight, out=room[: here.numel()]))
                else:
                    torch.mul(delta[chunk], weight, out=here)
    return out


def _norm(values: Tensor) -> float:
    """‖x‖₂, block by block: torch's float32 norm of a whole large tensor is off in the third digit."""
    return math.sqrt(math.fsum(float(torch.linalg.vector_norm(values[block])) ** 2 for block in blocks(values.numel())))


def radial_directional(deltas: Sequence[Tensor], w: Sequence[float], out: Tensor, offsets: Sequence[int]) -> Tensor:
    """RDA per tensor: Δ̄ = R φ(Σ wᵢ φ(Δᵢ)), R = Σ wᵢ ‖Δᵢ‖, φ(x) = x/‖x‖, φ(0) = 0 (arXiv 2604.21428).

    `offsets` bound the tensors in the flat buffers. Its norm does not shrink with the number of nearly orthogonal
    members. Where directions cancel to rounding, the plain mean stands in."""
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


def trimmed_mean(deltas: Sequence[Tensor], out: Tensor, trim: float = TRIM) -> Tensor:
    """Per coordinate: drop the ⌊trim·n⌋ smallest and largest values, average the rest, unweighted. Survives that many
    garbage members."""
    cut = int(trim * len(deltas))
    for block in blocks(out.numel()):
        ordered = torch.stack([delta[block] for delta in deltas]).sort(dim=0).values
        torch.mean(ordered[cut : len(deltas) - cut], dim=0, out=out[block])
    return out


def median(deltas: Sequence[Tensor], out: Tensor) -> Tensor:
    """Per coordinate median, unweighted; the mean of the middle two when their number is even."""
    middle = (len(deltas) - 1) // 2
    for block in blocks(out.numel()):
        ordered = torch.stack([delta[block] for delta in deltas]).sort(dim=0).values
        torch.mean(ordered[middle : len(deltas) - middle], dim=0, out=out[block])
    return out


def merge(scheme: str, deltas: Iterable[Tensor], w: Sequence[float], out: Tensor, offsets: Sequence[int]) -> Tensor:
    """Merge `deltas` (flat float32, in peer-name order) into `out` by the named scheme."""
    if scheme == "mean":
        return weighted_mean(deltas, w, out)
    deltas = list(deltas)
    if scheme == "rda":
        return radial_directional(deltas, w, out, offsets)
    if scheme == "trimmed_mean":
        return trimmed_mean(deltas, out)
    return median(deltas, out)


def finite(values: Tensor) -> bool:
    """Whether every element is finite. One pass: a sum carries any NaN or infinity (and a sum that overflows is refused
    too)."""
    return bool(torch.isfinite(values.sum()))
