"""PowerSGD (arXiv 1905.13727): a matrix A (n × m) as P Q, of rank r, in small integers. P is n × r,
and Q, which is the paper's Qᵀ, is r × m.

One power step starts from the remembered Q̂. P is orth(A Q̂ᵀ) in integers. Q = (Pᵀ P)⁻¹ Pᵀ A is
fitted to those integers, so that P Q is the projection of A onto P's columns: ‖A − P Q‖ ≤ ‖A‖, and
where r ≥ rank A only rounding loses anything. The next step starts from this Q (warm start). The
first step starts from random rows, which depend on the matrix's place and shape alone. Every
learner factors its own A, and the weighted mean of M learners' factors has rank M·r at most.

Q's rows are integers too, each times a power of two of its own. No power is so far from the others
that a sum of products p q 2ᵉ would have more bits than a float has. Such a sum is exact in any
order, fused or not, with operands in bfloat16 or not. So a library's matrix product gives the same
bits on all hardware."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mend_optim.codecs.packing import BACK, MOST, Piece, Scratch, Shape, as_floats, bf16, view
from mend_optim.errors import PeerError, is_number, require, take_plain_numbers

#: Bytes of a product computed at a time: they stay in a cache.
BLOCK = 1 << 20
#: The highest rank.
RANKS = 1024
#: The smallest exponent. Every product is a multiple of this power of two, and none is subnormal.
LEAST_EXPONENT = -126
#: An exponent that `check` refuses.
REFUSED_EXPONENT = 127


def as_matrix(shape: Shape) -> tuple[int, int]:
    """(first dimension, the rest). A convolution's kernel becomes output channels × all else."""
    return shape[0], math.prod(shape[1:])


def multiply(p: Tensor, q: Tensor, scratch: Scratch) -> Iterator[Tensor]:
    """P Q by blocks of rows, flat. A product written straight to its place, or whole into other
    memory, takes twice as long."""
    n, m = len(p), q.shape[1]
    rows = max(1, BLOCK // max(1, m * p.itemsize))
    product = scratch.aside(min(rows, n) * m, p.dtype).view(-1, m)
    for block in torch.split(p, rows):
        yield torch.mm(block, q, out=product[: len(block)]).view(-1)


class FactorForm:
    """Exponents (int16) of Q's rows, then P (n × r) column by column, then Q (r × m) row by row.
    The factors are integers of a sign and `bits` bits, multiplied in floats of `digits` bits.
    `param` is r, from 1 to min(n, m, `RANKS`)."""

    def __init__(self, code: int, dtype: torch.dtype, product: torch.dtype, digits: int) -> None:
        self.code = code
        self.dtype = dtype
        self.product = product
        self.digits = digits
        self.bits = 8 * dtype.itemsize - 1
        self.top = 2**self.bits - 1

    def reach(self, r: int) -> int:
        """The largest difference of two exponents, so that r 2ᵇⁱᵗˢ 2ᵇⁱᵗˢ 2ʳᵉᵃᶜʰ ≤ 2ᵈⁱᵍⁱᵗˢ."""
        return self.digits - 2 * self.bits - (r - 1).bit_length()

    def nbytes(self, shape: Shape, param: int) -> int:
        n, m = as_matrix(shape) if len(shape) > 1 else (0, 0)
        most = min(n, m, RANKS)
        if not 1 <= param <= most:
            raise PeerError(
                f"Rank {param} is impossible for a tensor of shape {list(shape)}; "
                f"the limit is {most}"
            )
        return 2 * param + self.dtype.itemsize * param * (n + m)

    def check(self, data: memoryview, shape: Shape, param: int) -> None:
        low, high = (int(e) for e in torch.aminmax(view(data, torch.int16, 0, param)))
        too_great = param * 2.0 ** (2 * self.bits + min(high, REFUSED_EXPONENT)) > MOST
        if low < LEAST_EXPONENT or high > low + self.reach(param) or too_great:
            raise PeerError(
                f"Factors are scaled by 2^{low} to 2^{high}: too small, too large or too far apart"
            )

    def decoded(
        self, data: memoryview, shape: Shape, param: int, scratch: Scratch
    ) -> Iterator[Tensor]:
        n, m = as_matrix(shape)
        exponents = view(data, torch.int16, 0, param)
        factors = view(data, self.dtype, 2 * param).to(self.product)
        p = factors[: n * param].view(param, n)
        q = factors[n * param :].view(param, m)
        for product in multiply(p.t(), q.mul_(self._powers(exponents)), scratch):
            yield from as_floats(product, scratch)

    def rounded(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """The integers c and exponents e (b × r) with c 2ᵉ nearest to Q's rows (b × r × m), where
        the greatest c still fits: |c 2ᵉ − q| ≤ 2ᵉ / 2, and never more than |q|."""
        most = q.abs().amax(2)
        # The factor leaves room for values that are rounded up.
        exponents = torch.frexp(most * (1 + 2.0**-self.bits))[1] - self.bits
        exponents.masked_fill_(most == 0, LEAST_EXPONENT)
        least = exponents.amax(1, keepdim=True) - self.reach(q.shape[1])
        exponents = torch.maximum(exponents, least).clamp_(min=LEAST_EXPONENT)
        exponents.masked_fill_(~most.isfinite(), REFUSED_EXPONENT)
        whole = (q / self._powers(exponents)).round_().nan_to_num_(0.0).clamp_(-self.top, self.top)
        return whole.to(self.dtype), exponents.to(torch.int16)

    def _powers(self, exponents: Tensor) -> Tensor:
        """2ᵉ for each row. `torch.exp2` may be off by an ulp."""
        return torch.from_numpy(np.ldexp(1.0, exponents.numpy())).to(self.product).unsqueeze(-1)


FACTORS = {
    8: FactorForm(7, torch.int8, torch.float32, 24),
    16: FactorForm(8, torch.int16, torch.float64, 53),
}


@dataclass(frozen=True, kw_only=True)
class PowerSGD:
    """Matrices, and kernels as (first dimension × rest), as two factors of small integers. Vectors
    travel as bfloat16.

    The residual of an encoding stays in the learner's weights, which train on with it. Until
    `synchronize()` merges the residuals too, only `global_weights()` are common to all learners. A
    matrix takes r (n + m) bits / 8 + 2 r bytes on the wire, instead of 4 n m.

    Args:
        rank: r, the rank of the factors, from 1 to 1024.
        bits: the size of an integer in the factors, 8 or 16.
        min_ratio: how many times fewer numbers the factors must have than the matrix, at least 1.
            Otherwise the matrix travels as bfloat16.
        back: how a merged delta comes back. "auto" returns the factors of all members where they
            are no larger than the merged delta encoded once more; else it encodes that once more,
            with error feedback at the sealer. "same" always does, "exact" never does.
        seed: seeds the random rows of the first power step.

    Raises:
        UsageError: an argument is out of bounds.

    Example:
        >>> PowerSGD(rank=4).bits
        8
    """

    rank: int = 16
    bits: int = 8
    min_ratio: float = 2.0
    back: str = "auto"
    seed: int = 0
    exact = False
    residual_in_weights = True
    coalesce = 0

    def __post_init__(self) -> None:
        take_plain_numbers(self)
        possible = type(self.rank) is int and 1 <= self.rank <= RANKS
        require(possible, "rank", self.rank, f"an int from 1 to {RANKS}")
        require(type(self.bits) is int and self.bits in FACTORS, "bits", self.bits, "8 or 16")
        enough = is_number(self.min_ratio) and self.min_ratio >= 1
        require(enough, "min_ratio", self.min_ratio, "a number of at least 1")
        require(self.back in BACK, "back", self.back, f"one of {BACK}")
        require(type(self.seed) is int, "seed", self.seed, "an int")
        # Learners compare the codec's repr: 2 must read 2.0.
        object.__setattr__(self, "min_ratio", float(self.min_ratio))

    def rank_of(self, shape: Shape) -> int:
        """The rank with which a tensor of this shape is factored; 0 if it is not factored."""
        n, m = as_matrix(shape) if len(shape) > 1 else (0, 0)
        r = min(self.rank, n, m)
        return r if r and self.min_ratio * r * (n + m) <= n * m else 0

    def pieces(
        self, tensors: Sequence[Tensor], memory: Tensor | None
    ) -> tuple[list[Piece], Tensor | None]:
        found: dict[int, Piece] = {}
        right: dict[int, Tensor] = {}
        form = FACTORS[self.bits]
        known = self._known(tensors, memory)
        for batch in self._batches(tensors):
            matrices = [tensors[i].view(as_matrix(tuple(tensors[i].shape))) for i in batch]
            p, q = factor(matrices, self._start(batch, [known[i] for i in batch]), form.top)
            whole, exponents = form.rounded(q)
            columns = p.transpose(1, 2).to(form.dtype)
            for i, parts, rows in zip(
                batch, zip(exponents, columns, whole, strict=True), q, strict=True
            ):
                right[i] = rows
                found[i] = Piece(form, len(rows), parts)
        pieces = [found[i] if i in found else bf16(tensor) for i, tensor in enumerate(tensors)]
        if not right:
            return pieces, None
        return pieces, torch.cat([right[i].reshape(-1) for i in sorted(right)])

    def _batches(self, tensors: Sequence[Tensor]) -> Iterable[list[int]]:
        """The indices of the matrices to factor, grouped by shape."""
        alike: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for i, tensor in enumerate(tensors):
            if self.rank_of(tuple(tensor.shape)):
                alike[as_matrix(tuple(tensor.shape))].append(i)
        return alike.values()

    def _known(self, tensors: Sequence[Tensor], memory: Tensor | None) -> dict[int, Tensor]:
        """Q̂ (r × m) of every matrix, as remembered. Zeros if nothing is remembered, or if the
        memory is of another rank."""
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
        """The remembered Q̂ of a batch, b × r × m. Rows of zeros become random rows."""
        start = torch.stack(list(known))
        alive = start.any(2)
        for i, rows, row_alive in zip(batch, start, alive, strict=True):
            if not row_alive.all():
                drawn = _random(self.seed, i, *rows.shape)
                rows.copy_(torch.where(row_alive.unsqueeze(1), rows, drawn))
        return start


def factor(matrices: Sequence[Tensor], start: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """One power step on b matrices A of one shape, from `start` (b × r × m).

    Returns (P, Q), b × n × r and b × r × m. P holds whole numbers, and the greatest of each column
    is `top` or −`top`. P Q is the projection of A onto P's columns.

    The rows of `start` are first brought to length 1, so that nothing under- or overflows.
    Householder's QR gives orthonormal columns whatever the rank, even of zeros, and rounding leaves
    them nearly orthonormal."""
    q = start / torch.linalg.vector_norm(start, dim=2, keepdim=True).clamp_(min=1e-38)
    n, m = matrices[0].shape
    b, r, _ = q.shape
    p = q.new_empty(b, r, n).transpose(1, 2)
    units = q.new_empty(b, r, 1)
    square = q.new_empty(b, r, r)
    # Long rows are multiplied faster into columns, short rows into rows.
    product = q.new_empty(r, n).t() if m > n else q.new_empty(n, r)
    # One matrix at a time: it is still in a cache when it is needed again.
    for a, right, whole, unit, gram in zip(
        matrices, q, p, units.transpose(1, 2), square, strict=True
    ):
        near = torch.linalg.qr(torch.mm(a, right.t(), out=product)).Q
        torch.amax(near.abs(), 0, keepdim=True, out=unit).div_(top)
        torch.mul(torch.div(near, unit, out=whole).round_(), unit, out=near)
        torch.mm(near.t(), a, out=right)
        torch.mm(near.t(), near, out=gram)
    # This makes the matrix invertible, whatever was rounded.
    square.diagonal(dim1=1, dim2=2).add_(1e-6)
    return p, torch.linalg.inv_ex(square).inverse @ q * units


def _random(seed: int, index: int, r: int, m: int) -> Tensor:
    """Normal values (r × m) that depend on the arguments alone."""
    name = hashlib.sha256(f"{seed} {index} {m} {r}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(name[:7], "little"))
    return torch.randn(r, m, generator=generator, dtype=torch.float32)
