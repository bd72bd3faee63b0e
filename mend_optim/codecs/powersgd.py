"""PowerSGD (arXiv 1905.13727): a matrix A (n × m) as P Q, of rank r, in small integers. P is n × r,
and Q, the paper's Qᵀ, r × m.

One power step from what is remembered: P is orth(A Q̂ᵀ) in integers, and Q = (Pᵀ P)⁻¹ Pᵀ A is
fitted to those, so that P Q is the projection of A onto P's columns: ‖A − P Q‖ ≤ ‖A‖, and where r ≥
rank A only rounding loses anything. The next step starts from this Q (warm start); the first from
random rows, which depend on the matrix's place and shape alone. Every learner factors its own A,
and the weighted mean of M learners' factors has rank M·r at most.

Q's rows are integers, too, each times a power of two of its own, none so far from the others that a
sum of products p q 2ᵉ would have more bits than a float has: it is exact, in whatever order, fused
or not, of operands in bfloat16 or not. So a library's matrix product gives the same bits on all
hardware."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mend_optim.codecs.packing import MOST, Piece, Scratch, Shape, as_floats, bf16, view
from mend_optim.errors import PeerError, is_number, require

BLOCK = 1 << 20  # bytes of a product: they stay in a cache
RANKS = 1024
# the smallest exponent: every product is a multiple of this power of two, and none is subnormal
LEAST = -126
REFUSED_EXPONENT = 127  # an exponent that `check` refuses


def as_matrix(shape: Shape) -> tuple[int, int]:
    """(first dimension, the rest): of a convolution's kernel, output channels × all else."""
    return shape[0], math.prod(shape[1:])


def multiply(p: Tensor, q: Tensor, scratch: Scratch) -> Iterator[Tensor]:
    """P Q by blocks of rows, flat: a product that is written where it is to be, or is whole in
    other memory, takes twice as long."""
    (n, m), rows = (len(p), q.shape[1]), max(1, BLOCK // max(1, q.shape[1] * p.itemsize))
    product = scratch.aside(min(rows, n) * m, p.dtype).view(-1, m)
    for block in torch.split(p, rows):
        yield torch.mm(block, q, out=product[: len(block)]).view(-1)


class FactorForm:
    """Exponents (int16) of Q's rows, P (n × r) column by column, Q (r × m) row by row: integers of
    a sign and `bits` bits, multiplied in floats of `digits` bits. `param` is r, at least 1 and at
    most min(n, m)."""

    def __init__(self, code: int, dtype: torch.dtype, product: torch.dtype, digits: int) -> None:
        self.code, self.dtype, self.product, self.digits = code, dtype, product, digits
        self.bits = 8 * dtype.itemsize - 1
        self.top = 2**self.bits - 1

    def reach(self, r: int) -> int:
        """From the smallest exponent to the greatest, at most: r 2ᵇⁱᵗˢ 2ᵇⁱᵗˢ 2ʳᵉᵃᶜʰ ≤ 2ᵈⁱᵍⁱᵗˢ."""
        return self.digits - 2 * self.bits - (r - 1).bit_length()

    def nbytes(self, shape: Shape, param: int) -> int:
        n, m = as_matrix(shape) if len(shape) > 1 else (0, 0)
        if not 1 <= param <= min(n, m, RANKS):
            raise PeerError(f"rank {param} of a tensor of shape {list(shape)}")
        return 2 * param + self.dtype.itemsize * param * (n + m)

    def check(self, data: memoryview, shape: Shape, param: int) -> None:
        low, high = (int(e) for e in torch.aminmax(view(data, torch.int16, 0, param)))
        too_great = param * 2.0 ** (2 * self.bits + min(high, REFUSED_EXPONENT)) > MOST
        if low < LEAST or high > low + self.reach(param) or too_great:
            raise PeerError(
                f"factors times 2^{low} to 2^{high}: too small, too great or too far apart"
            )

    def decoded(
        self, data: memoryview, shape: Shape, param: int, scratch: Scratch
    ) -> Iterator[Tensor]:
        n, m = as_matrix(shape)
        exponents, factors = (
            view(data, torch.int16, 0, param),
            view(data, self.dtype, 2 * param).to(self.product),
        )
        p, q = factors[: n * param].view(param, n), factors[n * param :].view(param, m)
        for product in multiply(p.t(), q.mul_(self._powers(exponents)), scratch):
            yield from as_floats(product, scratch)

    def rounded(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """The nearest integers times powers of two to Q's rows (b × r × m), such that the greatest
        still fit: |c 2ᵉ − q| ≤ 2ᵉ / 2, and never more than |q|. They, and the exponents (b × r)."""
        most = q.abs().amax(2)
        # what is rounded up fits, too
        exponents = torch.frexp(most * (1 + 2.0**-self.bits))[1] - self.bits
        exponents.masked_fill_(most == 0, LEAST)
        least = exponents.amax(1, keepdim=True) - self.reach(q.shape[1])
        exponents = torch.maximum(exponents, least).clamp_(min=LEAST)
        exponents.masked_fill_(~most.isfinite(), REFUSED_EXPONENT)
        whole = (q / self._powers(exponents)).round_().nan_to_num_(0.0).clamp_(-self.top, self.top)
        return whole.to(self.dtype), exponents.to(torch.int16)

    def _powers(self, exponents: Tensor) -> Tensor:
        """2ᵉ, of each row. `torch.exp2` may be an ulp off."""
        return torch.from_numpy(np.ldexp(1.0, exponents.numpy())).to(self.product).unsqueeze(-1)


FACTORS = {
    8: FactorForm(7, torch.int8, torch.float32, 24),
    16: FactorForm(8, torch.int16, torch.float64, 53),
}


@dataclass(frozen=True, kw_only=True)
class PowerSGD:
    """Matrices, and kernels as (first dimension × rest), as two factors of small integers. Vectors
    travel as bfloat16.

    What the codec loses stays in the learner's weights, which train on with it. Until
    `synchronize()` merges that too, only `global_weights()` are common to all learners. On the
    wire: r (n + m) bits / 8 + 2 r bytes, instead of 4 n m.

    Args:
        rank: r, the rank of the factors, from 1 to 1024.
        bits: the size of an integer in the factors, 8 or 16.
        min_ratio: a matrix that factors would not make at least so many times fewer numbers travels
            as bfloat16; at least 1.
        back: "exact" returns the factors of all members where that is smaller than float32. "same"
            factors the merged result once more, with error feedback at the sealer.
        seed: of the random first rows.

    Raises:
        UsageError: an argument is out of bounds.

    Example:
        >>> PowerSGD(rank=4).bits
        8
    """

    rank: int = 16
    bits: int = 8
    min_ratio: float = 2.0
    back: str = "exact"
    seed: int = 0
    exact = False
    residual_in_weights = True
    coalesce = 0

    def __post_init__(self) -> None:
        whole = type(self.rank) is int and 1 <= self.rank <= RANKS
        require(whole, "rank", self.rank, f"an int from 1 to {RANKS}")
        require(type(self.bits) is int and self.bits in FACTORS, "bits", self.bits, "8 or 16")
        enough = is_number(self.min_ratio) and self.min_ratio >= 1
        require(enough, "min_ratio", self.min_ratio, "a number of at least 1")
        require(self.back in ("exact", "same"), "back", self.back, "'exact' or 'same'")
        require(type(self.seed) is int, "seed", self.seed, "an int")
        # learners compare the text of all this
        object.__setattr__(self, "min_ratio", float(self.min_ratio))

    def rank_of(self, shape: Shape) -> int:
        """The rank that a tensor of this shape is factored with; 0: it is not."""
        n, m = as_matrix(shape) if len(shape) > 1 else (0, 0)
        r = min(self.rank, n, m)
        return r if r and self.min_ratio * r * (n + m) <= n * m else 0

    def pieces(
        self, tensors: Sequence[Tensor], memory: Tensor | None
    ) -> tuple[list[Piece], Tensor | None]:
        found: dict[int, Piece] = {}
        right: dict[int, Tensor] = {}
        form, known = FACTORS[self.bits], self._known(tensors, memory)
        for batch in self._batches(tensors):
            matrices = [tensors[i].view(as_matrix(tuple(tensors[i].shape))) for i in batch]
            p, q = factor(matrices, self._start(batch, [known[i] for i in batch]), form.top)
            whole, exponents = form.rounded(q)
            for i, *parts, right[i] in zip(
                batch, exponents, p.transpose(1, 2).to(form.dtype), whole, q, strict=True
            ):
                found[i] = Piece(form, len(right[i]), tuple(parts))
        pieces = [found[i] if i in found else bf16(tensor) for i, tensor in enumerate(tensors)]
        return pieces, torch.cat([right[i].reshape(-1) for i in sorted(right)]) if right else None

    def _batches(self, tensors: Sequence[Tensor]) -> Iterable[list[int]]:
        """Indices of the matrices of each shape."""
        alike: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for i, tensor in enumerate(tensors):
            if self.rank_of(tuple(tensor.shape)):
                alike[as_matrix(tuple(tensor.shape))].append(i)
        return alike.values()

    def _known(self, tensors: Sequence[Tensor], memory: Tensor | None) -> dict[int, Tensor]:
        """Q̂ (r × m) of every matrix: what is remembered; zeros where that is nothing, or of
        another rank."""
        sides = {
            i: (r, math.prod(t.shape[1:]))
            for i, t in enumerate(tensors)
            if (r := self.rank_of(tuple(t.shape)))
        }
        sizes = [r * m for r, m in sides.values()]
        if memory is None or memory.numel() != sum(sizes):
            memory = torch.zeros(sum(sizes), dtype=torch.float32)
        parts = memory.split_with_sizes(sizes)
        return {i: part.view(side) for (i, side), part in zip(sides.items(), parts, strict=True)}

    def _start(self, batch: Sequence[int], known: Sequence[Tensor]) -> Tensor:
        """What is known of a batch, b × r × m; random rows for zeros."""
        start = torch.stack(list(known))
        alive = start.any(2)
        for i, of_it, row_is in zip(batch, start, alive, strict=True):
            if not row_is.all():
                of_it.copy_(
                    torch.where(row_is.unsqueeze(1), of_it, _random(self.seed, i, *of_it.shape))
                )
        return start


def factor(matrices: Sequence[Tensor], start: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """(P, Q), b × n × r and b × r × m, of b matrices of one shape, from `start` (b × r × m): one
    power step. P is of whole numbers, the greatest of each column is `top` or −`top`; P Q is the
    projection of A onto its columns.

    The rows of `start` are brought to length 1 first, so that nothing under- or overflows;
    Householder's QR gives orthonormal columns whatever the rank, of zeros too, and rounding leaves
    them nearly so."""
    q = start / torch.linalg.vector_norm(start, dim=2, keepdim=True).clamp_(min=1e-38)
    (n, m), (b, r, _) = matrices[0].shape, q.shape
    p, units, square = (
        q.new_empty(b, r, n).transpose(1, 2),
        q.new_empty(b, r, 1),
        q.new_empty(b, r, r),
    )
    # Long rows are multiplied faster into columns, short ones into rows.
    product = q.new_empty(r, n).t() if m > n else q.new_empty(n, r)
    # One matrix after the other: it is still in a cache when it is needed again.
    for a, right, whole, unit, of_it in zip(
        matrices, q, p, units.transpose(1, 2), square, strict=True
    ):
        near = torch.linalg.qr(torch.mm(a, right.t(), out=product)).Q
        torch.amax(near.abs(), 0, keepdim=True, out=unit).div_(top)
        torch.mul(torch.div(near, unit, out=whole).round_(), unit, out=near)
        torch.mm(near.t(), a, out=right)
        torch.mm(near.t(), near, out=of_it)
    square.diagonal(dim1=1, dim2=2).add_(1e-6)  # has an inverse, whatever was rounded
    return p, torch.linalg.inv_ex(square).inverse @ q * units


def _random(seed: int, index: int, r: int, m: int) -> Tensor:
    name = hashlib.sha256(f"{seed} {index} {m} {r}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(name[:7], "little"))
    return torch.randn(r, m, generator=generator, dtype=torch.float32)
