"""PowerSGD (arXiv 1905.13727): a matrix A (n × m) as P̂ Qᵀ, of rank r.

One power step from what is remembered: P̂ = orth(A Q̂), Q = Aᵀ P̂, so that P̂ Qᵀ = P̂ P̂ᵀ A is the projection of A onto the
columns of P̂: ‖A − P̂ Qᵀ‖ ≤ ‖A‖, and nothing is lost where r ≥ rank A. The next step starts from this Q (warm start);
the first from random columns, which depend on the matrix's place and shape alone. Every learner factors its own A,
and the weighted mean of M learners' factors has rank M·r at most."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .errors import PeerError, is_number, require
from .packet import MOST, Piece, Shape, bf16, bounded, view

BLOCK = 1 << 17  # elements: a block of every operand stays in the second-level cache
BATCHED = 1 << 16  # elements of a matrix up to which equal shapes are factored together: above, a copy costs more


def as_matrix(shape: Shape) -> tuple[int, int]:
    """(first dimension, the rest): of a convolution's kernel, output channels × all else."""
    return shape[0], math.prod(shape[1:])


def multiply(p: Tensor, q: Tensor, out: Tensor) -> None:
    """p qᵀ into `out` (n × m), by blocks of rows: Σ over columns in order, every product and every sum rounded once. A
    matrix product of a library would be faster, and differ between machines."""
    n, m = out.shape
    rows = max(1, BLOCK // max(1, m))
    columns = q.t().contiguous()
    room = torch.empty(min(rows, n), m)
    for start in range(0, n, rows):
        block, left = out[start : start + rows], p[start : start + rows]
        torch.mul(left[:, :1], columns[0], out=block)
        for k in range(1, len(columns)):
            block.add_(torch.mul(left[:, k : k + 1], columns[k], out=room[: len(block)]))


class LowRankForm:
    """P (n × r), then Q (m × r), both float32, row by row. `param` is r, at least 1 and at most min(n, m)."""

    code = 6

    def nbytes(self, shape: Shape, param: int) -> int:
        n, m = as_matrix(shape) if len(shape) > 1 else (0, 0)
        if not 1 <= param <= min(n, m):
            raise PeerError(f"rank {param} of a tensor of shape {list(shape)}")
        return 4 * param * (n + m)

    def check(self, data: memoryview, shape: Shape, param: int) -> None:
        p, q = self._factors(data, shape, param)
        if not (bounded(p) and bounded(q)):
            raise PeerError("factors that are not finite")
        if float(p.abs().max()) * float(q.abs().max()) * param > MOST:
            raise PeerError("factors too great to be multiplied")

    def decode(self, data: memoryview, shape: Shape, param: int, out: Tensor) -> None:
        p, q = self._factors(data, shape, param)
        multiply(p, q, out.view(len(p), len(q)))

    def _factors(self, data: memoryview, shape: Shape, r: int) -> tuple[Tensor, Tensor]:
        n, m = as_matrix(shape)
        values = view(data, torch.float32)
        return values[: n * r].view(n, r), values[n * r :].view(m, r)


LOW_RANK = LowRankForm()


@dataclass(frozen=True, kw_only=True)
class PowerSGD:
    """Matrices, and kernels as (first dimension × rest), in factors of `rank`; what would not be `min_ratio` times
    smaller than float32 by that, and vectors, in bfloat16.

    Wire: 4 r (n + m) bytes instead of 4 n m. `back="same"`: the merged result is factored once more by the sealer, with
    error feedback of its own; else all members' factors come back wherever that is smaller than float32. `seed` is of
    the first columns. Raises `UsageError`."""

    rank: int = 4
    min_ratio: float = 2.0
    back: str = "exact"
    seed: int = 0
    exact = False

    def __post_init__(self) -> None:
        whole = type(self.rank) is int and 1 <= self.rank <= 1024
        require(whole, "rank", self.rank, "an int from 1 to 1024")
        enough = is_number(self.min_ratio) and self.min_ratio >= 1
        require(enough, "min_ratio", self.min_ratio, "a number of at least 1")
        require(self.back in ("exact", "same"), "back", self.back, "'exact' or 'same'")
        require(type(self.seed) is int, "seed", self.seed, "an int")
        object.__setattr__(self, "min_ratio", float(self.min_ratio))  # learners compare the text of all this

    def rank_of(self, shape: Shape) -> int:
        """The rank that a tensor of this shape is factored with; 0: it is not."""
        n, m = as_matrix(shape) if len(shape) > 1 else (0, 0)
        r = min(self.rank, n, m)
        return r if r and self.min_ratio * r * (n + m) <= n * m else 0

    def pieces(self, tensors: Sequence[Tensor], memory: Tensor | None) -> tuple[list[Piece], Tensor | None]:
        found: dict[int, Piece] = {}
        right: dict[int, Tensor] = {}
        starts = self._starts(tensors, memory)
        for batch in self._batches(tensors):
            matrices = _stacked([tensors[i].view(as_matrix(tuple(tensors[i].shape))) for i in batch])
            p, q = factor(matrices, torch.stack([starts[i] for i in batch]))
            for i, left, right[i] in zip(batch, p, q.contiguous(), strict=True):
                found[i] = Piece(LOW_RANK, left.shape[1], (left.contiguous(), right[i]))
        pieces = [found[i] if i in found else bf16(tensor) for i, tensor in enumerate(tensors)]
        return pieces, torch.cat([right[i].reshape(-1) for i in sorted(right)]) if right else None

    def _batches(self, tensors: Sequence[Tensor]) -> Iterator[list[int]]:
        """Indices of the matrices that are factored together."""
        alike: defaultdict[tuple[tuple[int, int], int], list[int]] = defaultdict(list)
        for i, tensor in enumerate(tensors):
            if self.rank_of(tuple(tensor.shape)):
                alone = i if tensor.numel() > BATCHED else -1
                alike[as_matrix(tuple(tensor.shape)), alone].append(i)
        yield from alike.values()

    def _starts(self, tensors: Sequence[Tensor], memory: Tensor | None) -> dict[int, Tensor]:
        """Q̂ (m × r) of every matrix: what is remembered; random where that is nothing, or of another rank."""
        sides = {i: (math.prod(t.shape[1:]), self.rank_of(tuple(t.shape))) for i, t in enumerate(tensors)}
        fits = memory is not None and memory.numel() == sum(m * r for m, r in sides.values())
        starts, at = {}, 0
        for i, (m, r) in ((i, sides) for i, sides in sides.items() if sides[1]):
            kept = memory[at : at + m * r].view(m, r) if memory is not None and fits else torch.zeros(m, r)
            dead = ~kept.any(dim=0)
            starts[i] = torch.where(dead, _random(self.seed, i, m, r), kept) if dead.any() else kept
            at += m * r
        return starts


def factor(a: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """(P̂, Q) of a batch of matrices (b × n × m), from `start` (b × m × r): one power step.

    The columns of `start` are brought to length 1 first, so that nothing under- or overflows; Householder's QR gives
    orthonormal columns whatever the rank, of zeros too."""
    p = torch.linalg.qr(a @ torch.nn.functional.normalize(start, dim=1, eps=1e-38)).Q
    return p, a.transpose(1, 2) @ p


def _stacked(matrices: Sequence[Tensor]) -> Tensor:
    return matrices[0].unsqueeze(0) if len(matrices) == 1 else torch.stack(list(matrices))


def _random(seed: int, index: int, m: int, r: int) -> Tensor:
    name = hashlib.sha256(f"{seed} {index} {m} {r}".encode()).digest()
    return torch.randn(m, r, generator=torch.Generator().manual_seed(int.from_bytes(name[:7], "little")))
