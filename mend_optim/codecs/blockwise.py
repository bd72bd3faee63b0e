"""Blockwise symmetric quantisation: 8 or 4 bits an element, and one scale for every block of
consecutive elements.

    s = bfloat16(max |x| / top), c = the level nearest to x / s, decoded: c s

"int8" has the levels 0, ±1, ±2 … ±127. "int4" has those up to ±7. "float4" has 0, ±1, ±2, ±4 … ±64:
it is E3M0, the float with a sign, three bits of exponent and no mantissa that Streaming DiLoCo
sends (arXiv 2501.18512).

s is within 2⁻⁸ of max |x| / top, above or below, so the greatest element of a block has the level
`top`. Nothing is clipped, |x − c s| ≤ s / 2 for integers, and decoded values are encoded to the
same bytes again. No scale is below 2⁻¹²⁶: zeros are no special case, and no decoded value is
subnormal (some hardware takes those for zero). A product c s has at most 15 significant bits, so
decoding is exact."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mend_optim.codecs.packing import BACK, MOST, PART, Later, Piece, Scratch, Shape, view
from mend_optim.errors import PeerError, require, take_plain_numbers

#: The smallest scale.
LEAST_SCALE = 2.0**-126
#: Added to a small float, this leaves the nearest whole number in the lowest bits of the sum.
WHOLE = 1.5 * 2.0**23


def is_block(block: object) -> bool:
    """Whether this is a possible number of elements in a block."""
    return type(block) is int and 16 <= block <= 65536 and block & (block - 1) == 0


def half_of(n: int) -> int:
    """n / 2, rounded up."""
    return -(-n // 2)


def spans(n: int, block: int) -> Iterator[tuple[int, int]]:
    """0 … n in spans of as many blocks as fit a part. The last block may be shorter."""
    step = max(block, PART)
    for start in range(0, n, step):
        yield start, min(start + step, n)


@cache
def bits(scale: float) -> int:
    """The bits of a bfloat16, as an integer. Positive numbers keep their order as integers. The
    negative ones are below them, and NaN is above."""
    return int(torch.tensor(scale, dtype=torch.float32).bfloat16().view(torch.int16))


class Rows(NamedTuple):
    """Rows of scratch memory, and all views of that memory: to make the views again takes as long
    as a pass."""

    levels: Tensor  # rows × length
    integers: Tensor  # the memory of `levels` as int32
    low: Tensor  # the first half of each row of `integers`
    high: Tensor  # the second half
    pairs: Tensor  # rows × half a length, int32
    whole: Tensor  # `WHOLE` everywhere
    least: Tensor  # the minimum of each row
    most: Tensor  # the maximum of each row, as an integer
    scale: Tensor  # the memory of `most` as float32
    column: Tensor  # the memory of `most` as float32, rows × 1

    @staticmethod
    def of(scratch: EncodeScratch, rows: int, length: int) -> Rows:
        levels = scratch.levels[: rows * length].view(rows, length)
        integers = levels.view(torch.int32)
        low, high = integers.split_with_sizes([length // 2] * 2, 1)
        pairs = scratch.pairs[: low.numel()].view(low.shape)
        whole = torch.full((length,), WHOLE, dtype=torch.float32).expand(rows, length)
        least, scale = torch.empty(2, rows, dtype=torch.float32)
        return Rows(
            levels=levels,
            integers=integers,
            low=low,
            high=high,
            pairs=pairs,
            whole=whole,
            least=least,
            most=scale.view(torch.int32),
            scale=scale,
            column=scale.unsqueeze(1),
        )


class EncodeScratch:
    """Memory for one part of `n` elements in blocks, used for one part after another: it stays in a
    cache, and new memory costs as much as a pass."""

    def __init__(self, n: int, block: int) -> None:
        size = min(-(-n // block) * block, max(block, PART))
        self.levels = torch.empty(size, dtype=torch.float32)
        self.pairs = torch.empty(size // 2, dtype=torch.int32)
        self._rows: dict[tuple[int, int], Rows] = {}

    def rows(self, count: int, length: int) -> Rows:
        found = self._rows.get((count, length))
        if found is None:
            found = self._rows[count, length] = Rows.of(self, count, length)
        return found


class BlockForm(ABC):
    """A scale (bfloat16) for each block, then a code for each element. `param` is the number of
    elements of a block."""

    code: int
    top: int

    def nbytes(self, shape: Shape, param: int) -> int:
        if not is_block(param):
            raise PeerError(
                f"Block size is {param} elements; it must be a power of two from 16 to 65536"
            )
        n = math.prod(shape)
        return 2 * -(-n // param) + self.codes_nbytes(n)

    def check(self, data: memoryview, shape: Shape, param: int) -> None:
        scales, codes = self._parts(data, shape, param)
        if scales.numel() == 0:
            return
        low, high = torch.aminmax(scales.view(torch.int16))
        # MOST / top is rounded down for every `top` here, so the greatest level times the greatest
        # scale is within MOST.
        if low < bits(LEAST_SCALE) or high > bits(MOST / self.top):
            raise PeerError("Scales are not finite, too small or too large")
        self.check_codes(codes, math.prod(shape) % param)

    def decoded(
        self, data: memoryview, shape: Shape, param: int, scratch: Scratch
    ) -> Iterator[Tensor]:
        scales, codes = self._parts(data, shape, param)
        scale = scales.float().unsqueeze(1)
        for start, stop in spans(math.prod(shape), param):
            values = scratch.take(stop - start)
            whole = stop - stop % param
            for first, last in ((start, whole), (whole, stop)):
                if first < last:
                    blocks = values[first - start : last - start].view(-1, min(param, last - first))
                    coded = codes[self.codes_nbytes(first) : self.codes_nbytes(last)]
                    here = scale[first // param : -(-last // param)]
                    self.read(coded.view(len(blocks), -1), here, blocks)
            yield values

    def encode(self, values: Tensor, block: int, out: Tensor, scratch: EncodeScratch) -> None:
        """Write the scales and the codes of flat values, which are finite and at most MOST, into
        `out` (uint8)."""
        n = len(values)
        blocks, rest = divmod(n, block)
        sizes = [2 * blocks, 2 * (rest > 0), self.codes_nbytes(n - rest), self.codes_nbytes(rest)]
        scales, last_scale, codes, last_codes = out.split_with_sizes(sizes)
        if blocks:
            whole = values[: n - rest] if rest else values
            self._encode(whole.view(blocks, block), scales, codes.view(blocks, -1), scratch)
        if rest:
            filled = self.filled(values[n - rest :], block)
            coded = out.new_empty(self.codes_nbytes(block))
            self._encode(filled.unsqueeze(0), last_scale, coded.unsqueeze(0), scratch)
            last_codes.copy_(coded[: len(last_codes)])

    def _encode(
        self, blocks: Tensor, scales: Tensor, codes: Tensor, scratch: EncodeScratch
    ) -> None:
        """Encode whole blocks, a row each. The loop has few calls, because they take as long as the
        passes."""
        number, length = blocks.shape
        rows = max(1, PART // length)
        counts = [min(rows, number - start) for start in range(0, number, rows)]
        whole = (
            scales.view(torch.bfloat16),
            codes.view(torch.int8),
            blocks,
            blocks.view(torch.int32),
        )
        parts: Iterable[tuple[Tensor, ...]] = [whole]
        if len(counts) > 1:
            parts = zip(*(tensor.split_with_sizes(counts) for tensor in whole), strict=True)
        for count, (s, c, x, integers) in zip(counts, parts, strict=True):
            y = scratch.rows(count, length)
            # Positive floats keep their order as integers, without a check for NaN. Negative ones
            # are below.
            torch.amin(x, 1, out=y.least)
            torch.amax(integers, 1, out=y.most)
            torch.maximum(y.scale, y.least.neg_(), out=y.scale)
            s.copy_(y.scale.div_(self.top).clamp_(min=LEAST_SCALE))
            y.scale.copy_(s).reciprocal_()
            self.write(x, y, c)

    def pieces(self, tensors: Sequence[Tensor], block: int) -> list[Piece]:
        # All tensors share one scratch.
        scratch = EncodeScratch(max((tensor.numel() for tensor in tensors), default=0), block)
        return [Piece(self, block, (self._later(tensor, block, scratch),)) for tensor in tensors]

    def _later(self, tensor: Tensor, block: int, scratch: EncodeScratch) -> Later:
        """The tensor's codes, written straight into the packet: new memory for them costs more than
        the codes."""
        nbytes = self.nbytes(tuple(tensor.shape), block)
        return Later(nbytes, lambda out: self.encode(tensor.reshape(-1), block, out, scratch))

    def _parts(self, data: memoryview, shape: Shape, block: int) -> tuple[Tensor, Tensor]:
        blocks = -(-math.prod(shape) // block)
        return view(data, torch.bfloat16, 0, blocks), view(data, torch.int8, 2 * blocks)

    @abstractmethod
    def codes_nbytes(self, n: int) -> int:
        """The size of `n` codes in bytes: of whole blocks, and of a shorter last one."""

    @abstractmethod
    def check_codes(self, codes: Tensor, rest: int) -> None:
        """Raise `PeerError` for a code without a level. `rest` is the length of the last block if
        that is not whole, or else 0."""

    @abstractmethod
    def filled(self, x: Tensor, block: int) -> Tensor:
        """A whole block whose codes begin with the codes of `x`, which is shorter."""

    @abstractmethod
    def read(self, codes: Tensor, scale: Tensor, out: Tensor) -> None:
        """Write the codes' levels times `scale` (rows × 1) into `out` (rows × length)."""

    @abstractmethod
    def write(self, x: Tensor, y: Rows, codes: Tensor) -> None:
        """Write the codes of the levels nearest to x / s, a row for each block. `y.scale` is 1 / s
        and may be changed."""


class Int8Form(BlockForm):
    """A byte for each element: its level, in two's complement."""

    code = 2
    top = 127

    def codes_nbytes(self, n: int) -> int:
        return n

    def check_codes(self, codes: Tensor, rest: int) -> None:
        if (codes.numpy() == -128).any():
            raise PeerError("Code is -128; codes range from -127 to 127")

    def filled(self, x: Tensor, block: int) -> Tensor:
        return torch.cat([x, x.new_zeros(block - len(x))])

    def read(self, codes: Tensor, scale: Tensor, out: Tensor) -> None:
        out.copy_(codes).mul_(scale)

    def write(self, x: Tensor, y: Rows, codes: Tensor) -> None:
        torch.addcmul(y.whole, x, y.column, out=y.levels)
        # The conversion keeps the lowest byte of each.
        codes.copy_(y.integers)


class NibbleForm(BlockForm):
    """A byte for two elements: one from the first half of a block, and the one as far into the
    second half. Of an odd number of elements the first half is the longer one, and its last element
    is alone in its byte. The byte is p + 16 q in two's complement, where p and q, from −7 to 7, are
    the levels' places on their side of zero."""

    def codes_nbytes(self, n: int) -> int:
        return half_of(n)

    def check_codes(self, codes: Tensor, rest: int) -> None:
        pairs = codes.numpy()
        if (pairs & 15 == 8).any() or pairs.min() < -119 or pairs.max() > 119:
            raise PeerError("Code is -8; codes range from -7 to 7")
        if rest % 2 and abs(int(pairs[-1])) > 7:
            raise PeerError("Last byte holds a code after the last element's")

    def filled(self, x: Tensor, block: int) -> Tensor:
        at = half_of(len(x))
        zeros = x.new_zeros(block // 2)
        return torch.cat([x[:at], zeros[at:], x[at:], zeros[len(x) - at :]])

    @staticmethod
    def _side_by_side(first: Tensor, second: Tensor, scale: Tensor, out: Tensor) -> None:
        """Write the levels of blocks' halves times `scale` into `out`. The halves are joined as
        bytes: to write a row of floats one half after the other takes longer."""
        rows, half = first.shape
        levels = torch.empty(rows, 2 * half, dtype=torch.int8)
        levels[:, :half] = first
        levels[:, half:] = second
        out.copy_(levels[:, : out.shape[1]]).mul_(scale)


class Int4Form(NibbleForm):
    """The levels 0, ±1 … ±7."""

    code = 3
    top = 7

    def read(self, codes: Tensor, scale: Tensor, out: Tensor) -> None:
        second = codes.add(8).__irshift__(4)
        self._side_by_side(codes.sub(second, alpha=16), second, scale, out)

    def write(self, x: Tensor, y: Rows, codes: Tensor) -> None:
        torch.addcmul(y.whole, x, y.column, out=y.levels)
        # The conversion keeps the lowest byte of each, whether it wraps or not.
        codes.copy_(torch.add(y.low, y.high, alpha=16, out=y.pairs))


class Float4Form(NibbleForm):
    """The levels 0, ±1, ±2, ±4 … ±64."""

    code = 4
    top = 64

    def __init__(self) -> None:
        magnitudes = (0, *(1 << e for e in range(7)))
        signed = np.array([*magnitudes, 0, *(-m for m in magnitudes[:0:-1])])
        byte = np.arange(256)
        # Both levels of a byte: the first one in the lower half of 16 bits.
        self._levels = (signed[byte & 15] & 255 | signed[byte + 8 >> 4 & 15] << 8).astype(np.int16)
        # The byte for two elements in units of 1/2, as 16 bits: the midpoint of two levels is a
        # whole number of these units.
        midpoints = [low + high for low, high in pairwise(magnitudes)]
        signed_bytes = np.arange(256, dtype=np.uint8).view(np.int8).tolist()
        places = np.array(
            [bisect_right(midpoints, abs(h)) * (1 if h > 0 else -1) for h in signed_bytes]
        )
        self._bytes = (places + 16 * places[:, None]).astype(np.int8).reshape(-1)

    def read(self, codes: Tensor, scale: Tensor, out: Tensor) -> None:
        # No index is out of bounds. "wrap" keeps numpy from checking that with a copy.
        found = torch.from_numpy(np.take(self._levels, codes.numpy().view(np.uint8), mode="wrap"))
        self._side_by_side(found, found >> 8, scale, out)

    def write(self, x: Tensor, y: Rows, codes: Tensor) -> None:
        y.scale.mul_(2)
        torch.mul(x, y.column, out=y.levels)
        # Level 64 is 128 units of 1/2, which is no int8; all midpoints are below 127. Conversion to
        # integers rounds towards zero.
        halves = y.pairs.view(-1).view(torch.int8)[: y.levels.numel()].view(y.levels.shape)
        halves.copy_(y.levels.clamp_(-127, 127))
        low, high = halves.split_with_sizes([codes.shape[1]] * 2, 1)
        number = y.levels.view(-1).view(torch.int16)[: codes.numel()].view(codes.shape)
        number.copy_(high).__ilshift__(8).add_(low.view(torch.uint8))
        np.take(self._bytes, number.numpy().view(np.uint16), out=codes.numpy(), mode="wrap")


INT8, INT4, FLOAT4 = Int8Form(), Int4Form(), Float4Form()


@dataclass(frozen=True, kw_only=True)
class Blockwise:
    """The base class of the blockwise codecs.

    Args:
        block: the number of elements that share a scale, a power of two from 16 to 65536.
        back: how a merged delta comes back. "auto" returns the codes of all members where they are
            no larger than the merged delta encoded once more; else it encodes that once more,
            with error feedback at the sealer. "same" always does, "exact" never does.

    Raises:
        UsageError: an argument is out of bounds.
    """

    block: int
    back: str = "auto"
    exact = False
    residual_in_weights = False
    form: ClassVar[BlockForm]

    @property
    def coalesce(self) -> int:
        return self.block

    def __post_init__(self) -> None:
        take_plain_numbers(self)
        require(is_block(self.block), "block", self.block, "a power of two from 16 to 65536")
        require(self.back in BACK, "back", self.back, f"one of {BACK}")

    def pieces(
        self, tensors: Sequence[Tensor], memory: Tensor | None
    ) -> tuple[list[Piece], Tensor | None]:
        return self.form.pieces(tensors, self.block), None


@dataclass(frozen=True, kw_only=True)
class Int8(Blockwise):
    """1 + 2 / block bytes an element: 3.94 times smaller than float32.

    Args:
        block: elements that share one scale, a power of two from 16 to 65536.
        back: how a merged delta comes back. "auto" returns the codes of all members where they are
            no larger than the merged delta encoded once more; else it encodes that once more,
            with error feedback at the sealer. "same" always does, "exact" never does.

    Raises:
        UsageError: an argument is out of bounds.

    Example:
        >>> Int8(block=64)
        Int8(block=64, back='auto')
    """

    block: int = 128
    form = INT8


@dataclass(frozen=True, kw_only=True)
class Int4(Blockwise):
    """1/2 + 2 / block bytes an element: 7.53 times smaller than float32.

    Args:
        block: elements that share one scale, a power of two from 16 to 65536.
        back: how a merged delta comes back. "auto" returns the codes of all members where they are
            no larger than the merged delta encoded once more; else it encodes that once more,
            with error feedback at the sealer. "same" always does, "exact" never does.

    Raises:
        UsageError: an argument is out of bounds.

    Example:
        >>> Int4(back="same")
        Int4(block=64, back='same')
    """

    block: int = 64
    form = INT4


@dataclass(frozen=True, kw_only=True)
class Float4(Blockwise):
    """1/2 + 2 / block bytes an element, like Int4, but finer near zero and coarser far from it.

    Args:
        block: elements that share one scale, a power of two from 16 to 65536.
        back: how a merged delta comes back. "auto" returns the codes of all members where they are
            no larger than the merged delta encoded once more; else it encodes that once more,
            with error feedback at the sealer. "same" always does, "exact" never does.

    Raises:
        UsageError: an argument is out of bounds.

    Example:
        >>> Float4()
        Float4(block=64, back='auto')
    """

    block: int = 64
    form = FLOAT4
