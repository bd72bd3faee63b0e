"""Blockwise symmetric quantisation: 8 or 4 bits an element, and one scale for every block of
consecutive elements.

    s = bfloat16(max |x| / top), c = the level nearest to x / s, decoded: c s

"int8" has the levels 0, ±1, ±2 … ±127, "int4" those up to ±7. "float4" has 0, ±1, ±2, ±4 … ±64: it
is E3M0, the float of a sign, three bits of exponent and no mantissa, that Streaming DiLoCo sends
(arXiv 2501.18512).

s is max |x| / top within 2⁻⁸ of it, above or below, so the greatest element of a block has the
level `top`: nothing is clipped, |x − c s| ≤ s / 2 for integers, and what was decoded is encoded to
the same bytes. No scale is below 2⁻¹²⁶: zeros are no special case, and no decoded value is
subnormal (some hardware takes those for zero). A product c s has 15 significant bits at most:
decoding is exact."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mend_optim.codecs.packing import MOST, PART, Later, Piece, Scratch, Shape, view
from mend_optim.errors import PeerError, require

LEAST = 2.0**-126  # the smallest scale
# added to a small float, it leaves the nearest whole number, in the lowest bits of the sum
WHOLE = 1.5 * 2.0**23


def is_block(block: object) -> bool:
    return type(block) is int and 16 <= block <= 65536 and block & (block - 1) == 0


def half_of(n: int) -> int:
    """Rounded up."""
    return -(-n // 2)


def spans(n: int, block: int) -> Iterator[tuple[int, int]]:
    """0 … n in spans of so many whole blocks as a part has, and what is left: less than a block."""
    whole, step = n - n % block, max(block, PART)
    for start in range(0, whole, step):
        yield start, min(start + step, whole)
    if whole < n:
        yield whole, n


@cache
def bits(scale: float) -> int:
    """Those of a bfloat16. As integers, positive numbers keep their order: negative ones are below,
    NaN above them."""
    return int(torch.tensor(scale).bfloat16().view(torch.int16))


class Rows(NamedTuple):
    """Rows of some scratch memory, and what else is seen of the same memory: to say so anew takes
    as long as a pass."""

    levels: Tensor  # rows × length
    integers: Tensor  # the same memory as int32
    low: Tensor  # the first half of each of those
    high: Tensor
    pairs: Tensor  # rows × half a length, int32
    whole: Tensor  # `WHOLE` everywhere
    least: Tensor  # of each row
    most: Tensor  # of each row, as an integer
    scale: Tensor  # the same memory as float32
    column: Tensor  # the same, rows × 1

    @staticmethod
    def of(scratch: EncodeScratch, rows: int, length: int) -> Rows:
        levels = scratch.levels[: rows * length].view(rows, length)
        integers = levels.view(torch.int32)
        low, high = integers.split_with_sizes([length // 2] * 2, 1)
        pairs = scratch.pairs[: low.numel()].view(low.shape)
        whole = torch.full((length,), WHOLE, dtype=torch.float32).expand(rows, length)
        least, scale = torch.empty(2, rows, dtype=torch.float32)
        most, column = scale.view(torch.int32), scale.unsqueeze(1)
        return Rows(levels, integers, low, high, pairs, whole, least, most, scale, column)


class EncodeScratch:
    """Memory for a part, used for one after another: it stays in a cache, and new memory costs as
    much as a pass."""

    def __init__(self, n: int, block: int) -> None:
        """For `n` elements in blocks."""
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
            raise PeerError(f"blocks of {param} elements, expected a power of two from 16 to 65536")
        n = math.prod(shape)
        return 2 * -(-n // param) + self.codes_nbytes(n)

    def check(self, data: memoryview, shape: Shape, param: int) -> None:
        scales, codes = self._parts(data, shape, param)
        if scales.numel() == 0:
            return
        low, high = torch.aminmax(scales.view(torch.int16))
        # MOST / top is rounded down for every `top` here: the greatest level times the greatest
        # scale is within MOST.
        if low < bits(LEAST) or high > bits(MOST / self.top):
            raise PeerError("scales that are not finite, too small or too great")
        self.check_codes(codes, math.prod(shape) % param)

    def decoded(
        self, data: memoryview, shape: Shape, param: int, scratch: Scratch
    ) -> Iterator[Tensor]:
        scales, codes = self._parts(data, shape, param)
        scale = scales.float().unsqueeze(1)
        for start, stop in spans(math.prod(shape), param):
            values = scratch.take(stop - start)
            blocks = values.view(-1, min(param, stop - start))
            coded = codes[self.codes_nbytes(start) : self.codes_nbytes(stop)].view(len(blocks), -1)
            self.read(coded, scale[start // param : -(-stop // param)], blocks)
            yield values

    def encode(self, values: Tensor, block: int, out: Tensor, scratch: EncodeScratch) -> None:
        """The scales and the codes of flat values, which are finite and at most MOST, into `out`
        (uint8)."""
        n = len(values)
        blocks, rest = divmod(n, block)
        sizes = [2 * blocks, 2 * (rest > 0), self.codes_nbytes(n - rest), self.codes_nbytes(rest)]
        scales, last_scale, codes, last_codes = out.split_with_sizes(sizes)
        if blocks:
            whole = values[: n - rest] if rest else values
            self._encode(whole.view(blocks, block), scales, codes.view(blocks, -1), scratch)
        if rest:
            filled, coded = (
                self.filled(values[n - rest :], block),
                out.new_empty(self.codes_nbytes(block)),
            )
            self._encode(filled.unsqueeze(0), last_scale, coded.unsqueeze(0), scratch)
            last_codes.copy_(coded[: len(last_codes)])

    def _encode(
        self, blocks: Tensor, scales: Tensor, codes: Tensor, scratch: EncodeScratch
    ) -> None:
        """Whole blocks, a row each. There are few calls in the loop: they take as long as the
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
        parts = (
            zip(*(part.split_with_sizes(counts) for part in whole), strict=True)
            if len(counts) > 1
            else [whole]
        )
        for count, (s, c, x, integers) in zip(counts, parts, strict=True):
            y = scratch.rows(count, length)
            # As integers, positive floats keep their order, and need no look out for NaN; negative
            # ones are below.
            torch.amin(x, 1, out=y.least)
            torch.amax(integers, 1, out=y.most)
            torch.maximum(y.scale, y.least.neg_(), out=y.scale)
            s.copy_(y.scale.div_(self.top).clamp_(min=LEAST))
            y.scale.copy_(s).reciprocal_()
            self.write(x, y, c)

    def pieces(self, tensors: Sequence[Tensor], block: int) -> list[Piece]:
        # one for all
        scratch = EncodeScratch(max((tensor.numel() for tensor in tensors), default=0), block)
        return [Piece(self, block, (self._later(tensor, block, scratch),)) for tensor in tensors]

    def _later(self, tensor: Tensor, block: int, scratch: EncodeScratch) -> Later:
        """Encoded where it is to be: new memory for so much costs more than the codes."""
        nbytes = self.nbytes(tuple(tensor.shape), block)
        return Later(nbytes, lambda out: self.encode(tensor.reshape(-1), block, out, scratch))

    def _parts(self, data: memoryview, shape: Shape, block: int) -> tuple[Tensor, Tensor]:
        blocks = -(-math.prod(shape) // block)
        return view(data, torch.bfloat16, 0, blocks), view(data, torch.int8, 2 * blocks)

    @abstractmethod
    def codes_nbytes(self, n: int) -> int:
        """The size of so many codes: of whole blocks, and of what is left."""

    @abstractmethod
    def check_codes(self, codes: Tensor, rest: int) -> None:
        """Raise `PeerError` for a code that stands for nothing. `rest` is the length of the last
        block where that is not whole, or 0."""

    @abstractmethod
    def filled(self, x: Tensor, block: int) -> Tensor:
        """A whole block, the codes of which begin with those of `x`, which is shorter."""

    @abstractmethod
    def read(self, codes: Tensor, scale: Tensor, out: Tensor) -> None:
        """The codes' levels times `scale` (rows × 1) into `out` (rows × length)."""

    @abstractmethod
    def write(self, x: Tensor, y: Rows, codes: Tensor) -> None:
        """The codes of the levels nearest to x / s, a row for each block; `y.scale` is 1 / s and
        may be changed."""


class Int8Form(BlockForm):
    """A byte for each element: its level, in two's complement."""

    code = 2
    top = 127

    def codes_nbytes(self, n: int) -> int:
        return n

    def check_codes(self, codes: Tensor, rest: int) -> None:
        if (codes.numpy() == -128).any():
            raise PeerError("a code of -128, expected -127 to 127")

    def filled(self, x: Tensor, block: int) -> Tensor:
        return torch.cat([x, x.new_zeros(block - len(x))])

    def read(self, codes: Tensor, scale: Tensor, out: Tensor) -> None:
        out.copy_(codes).mul_(scale)

    def write(self, x: Tensor, y: Rows, codes: Tensor) -> None:
        torch.addcmul(y.whole, x, y.column, out=y.levels)
        codes.copy_(y.integers)  # the lowest byte of each


class NibbleForm(BlockForm):
    """A byte for two elements: one of the first half of a block, and the one as far into its second
    half. (The first half is the longer one of an odd number: its last element is alone.) The byte
    is p + 16 q, in two's complement, of the levels' places on their sides of zero, p and q from −7
    to 7."""

    def codes_nbytes(self, n: int) -> int:
        return half_of(n)

    def check_codes(self, codes: Tensor, rest: int) -> None:
        pairs = codes.numpy()
        if (pairs & 15 == 8).any() or pairs.min() < -119 or pairs.max() > 119:
            raise PeerError("a code of -8, expected -7 to 7")
        if rest % 2 and abs(int(pairs[-1])) > 7:
            raise PeerError("a code after the last element's")

    def filled(self, x: Tensor, block: int) -> Tensor:
        at, zeros = half_of(len(x)), x.new_zeros(block // 2)
        return torch.cat([x[:at], zeros[at:], x[at:], zeros[len(x) - at :]])

    @staticmethod
    def _side_by_side(first: Tensor, second: Tensor, scale: Tensor, out: Tensor) -> None:
        """Levels of blocks' halves. They are brought together as bytes: one half of a row of floats
        after the other takes longer."""
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
        # the lowest byte of each, whether it wraps or not
        codes.copy_(torch.add(y.low, y.high, alpha=16, out=y.pairs))


class Float4Form(NibbleForm):
    """The levels 0, ±1, ±2, ±4 … ±64."""

    code = 4
    top = 64

    def __init__(self) -> None:
        magnitudes = (0, *(1 << e for e in range(7)))
        signed = np.array([*magnitudes, 0, *(-m for m in magnitudes[:0:-1])])
        byte = np.arange(256)
        # Of a byte, both levels: the first one in the lower half of 16 bits.
        self._levels = (signed[byte & 15] & 255 | signed[byte + 8 >> 4 & 15] << 8).astype(np.int16)
        # Of two elements in halves, as 16 bits, the byte: the midpoint of two levels is a whole
        # number of halves.
        midpoints = [low + high for low, high in pairwise(magnitudes)]
        signed_bytes = np.arange(256, dtype=np.uint8).view(np.int8).tolist()
        places = np.array(
            [bisect_right(midpoints, abs(h)) * (1 if h > 0 else -1) for h in signed_bytes]
        )
        self._bytes = (places + 16 * places[:, None]).astype(np.int8).reshape(-1)

    def read(self, codes: Tensor, scale: Tensor, out: Tensor) -> None:
        # Indices cannot be out of bounds: "wrap" keeps numpy from making sure, with a copy.
        found = torch.from_numpy(np.take(self._levels, codes.numpy().view(np.uint8), mode="wrap"))
        self._side_by_side(found, found >> 8, scale, out)

    def write(self, x: Tensor, y: Rows, codes: Tensor) -> None:
        y.scale.mul_(2)
        torch.mul(x, y.column, out=y.levels)
        # 128 halves are the level 64, and no int8; all midpoints are below 127. As integers they
        # are towards zero.
        halves = y.pairs.view(-1).view(torch.int8)[: y.levels.numel()].view(y.levels.shape)
        halves.copy_(y.levels.clamp_(-127, 127))
        low, high = halves.split_with_sizes([codes.shape[1]] * 2, 1)
        number = y.levels.view(-1).view(torch.int16)[: codes.numel()].view(codes.shape)
        number.copy_(high).__ilshift__(8).add_(low.view(torch.uint8))
        np.take(self._bytes, number.numpy().view(np.uint16), out=codes.numpy(), mode="wrap")


INT8, INT4, FLOAT4 = Int8Form(), Int4Form(), Float4Form()


@dataclass(frozen=True, kw_only=True)
class Blockwise:
    """What the codecs below have in common. `back="same"`: the merged result is quantised once more
    by the sealer, with error feedback of its own; else all members' codes come back wherever that
    is smaller than float32. Raises `UsageError`."""

    block: int
    back: str = "exact"
    exact = False
    residual_in_weights = False
    form: ClassVar[BlockForm]

    @property
    def coalesce(self) -> int:
        return self.block

    def __post_init__(self) -> None:
        require(is_block(self.block), "block", self.block, "a power of two from 16 to 65536")
        require(self.back in ("exact", "same"), "back", self.back, "'exact' or 'same'")

    def pieces(
        self, tensors: Sequence[Tensor], memory: Tensor | None
    ) -> tuple[list[Piece], Tensor | None]:
        return self.form.pieces(tensors, self.block), None


@dataclass(frozen=True, kw_only=True)
class Int8(Blockwise):
    """1 + 2 / block bytes an element: 3.94 times smaller than float32.

    Args:
        block: elements that share one scale, a power of two from 16 to 65536.
        back: "exact" returns the codes of all members where that is smaller than float32. "same"
            quantises the merged result once more, with error feedback at the sealer.

    Raises:
        UsageError: an argument is out of bounds.

    Example:
        >>> Int8(block=64)
        Int8(block=64, back='exact')
    """

    block: int = 128
    form = INT8


@dataclass(frozen=True, kw_only=True)
class Int4(Blockwise):
    """1/2 + 2 / block bytes an element: 7.53 times smaller than float32.

    Args:
        block: elements that share one scale, a power of two from 16 to 65536.
        back: "exact" returns the codes of all members where that is smaller than float32. "same"
            quantises the merged result once more, with error feedback at the sealer.

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
        back: "exact" returns the codes of all members where that is smaller than float32. "same"
            quantises the merged result once more, with error feedback at the sealer.

    Raises:
        UsageError: an argument is out of bounds.

    Example:
        >>> Float4()
        Float4(block=64, back='exact')
    """

    block: int = 64
    form = FLOAT4
