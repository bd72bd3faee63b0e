"""Blockwise symmetric quantisation: 8 or 4 bits an element, and one scale for every block of consecutive elements.

    s = bfloat16(max |x| / top), c = the level nearest to x / s, decoded: c s

"int8" has the levels 0, ±1, ±2 … ±127, "int4" those up to ±7. "float4" has 0, ±1, ±2, ±4 … ±64: it is E3M0, the
float of a sign, three bits of exponent and no mantissa, that Streaming DiLoCo sends (arXiv 2501.18512).

s is max |x| / top within 2⁻⁸ of it, above or below, so the greatest element of a block has the level `top`: nothing is
clipped, |x − c s| ≤ s / 2 for integers, and what was decoded is encoded to the same bytes. No scale is below 2⁻¹²⁶:
zeros are no special case, and no decoded value is subnormal (some hardware takes those for zero). A product c s has 15
significant bits at most: decoding is exact."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from .errors import PeerError, require
from .packet import MOST, Later, Piece, Shape, view

LEAST = 2.0**-126  # the smallest scale
CHUNK = 1 << 19  # elements that one pass after another goes over: they stay in a cache, and the calls take less long
SMALL = 1 << 14  # elements of a tensor up to which it is encoded together with others: alone, its time is that of calls


def is_block(block: object) -> bool:
    return type(block) is int and 16 <= block <= 65536 and block & (block - 1) == 0


def is_small(tensor: Tensor, block: int) -> bool:
    """Whether to encode it together with others, at the cost of less than a block of zeros."""
    return tensor.numel() <= SMALL and block <= max(256, tensor.numel())


def spans(n: int, block: int) -> Iterator[tuple[int, int]]:
    """0 … n in spans of so many whole blocks as a chunk has, and what is left: less than a block."""
    whole, step = n - n % block, max(block, CHUNK)
    for start in range(0, whole, step):
        yield start, min(start + step, whole)
    if whole < n:
        yield whole, n


@cache
def bits(scale: float) -> int:
    """Those of a bfloat16. As integers, positive numbers keep their order: negative ones are below, NaN above them."""
    return int(torch.tensor(scale).bfloat16().view(torch.int16))


@dataclass(frozen=True, slots=True)
class Room:
    """Memory for a chunk, used for one after another: it stays in a cache, and new memory costs as much as a pass.
    `levels` is float32; in `spare` there are 16 bits for each of them."""

    levels: Tensor
    spare: Tensor

    @staticmethod
    def of(n: int, block: int) -> Room:
        """For `n` elements, and one more: codes may come in pairs."""
        size = min(n + n % 2, max(block, CHUNK))
        return Room(torch.empty(size, dtype=torch.float32), torch.empty(size, dtype=torch.int16))


class BlockForm(ABC):
    """A scale (bfloat16) for each block, then a code for each element. `param` is the number of elements of a block."""

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
        # MOST / top is rounded down for every `top` here: the greatest level times the greatest scale is within MOST.
        if low < bits(LEAST) or high > bits(MOST / self.top):
            raise PeerError("scales that are not finite, too small or too great")
        self.check_codes(codes, math.prod(shape))

    def decode(self, data: memoryview, shape: Shape, param: int, out: Tensor) -> None:
        scales, codes = self._parts(data, shape, param)
        scale, room = scales.float()[:, None], Room.of(len(out), param)
        for start, stop in spans(len(out), param):
            levels = out[start:stop]
            self.read(codes[self.codes_nbytes(start) : self.codes_nbytes(stop)], levels, room.spare)
            levels.view(-1, min(param, stop - start)).mul_(scale[start // param : -(-stop // param)])

    def encode(self, values: Tensor, block: int, out: Tensor, room: Room | None = None) -> None:
        """The scales and the codes of flat values, which are finite and at most MOST, into `out` (uint8)."""
        n, room = len(values), room or Room.of(len(values), block)
        scales, codes = out[: 2 * -(-n // block)].view(torch.bfloat16), out[2 * -(-n // block) :]
        whole, at = n - n % block, self.codes_nbytes(n - n % block)
        if whole:
            self._encode(values[:whole].view(-1, block), scales[: whole // block], codes[:at], room)
        if whole < n:
            self._encode(values[whole:].unsqueeze(0), scales[whole // block :], codes[at:], room)

    def _encode(self, blocks: Tensor, scales: Tensor, codes: Tensor, room: Room) -> None:
        """Blocks of one length. There are few calls in the loop: they take as long as the passes."""
        length = blocks.shape[1]
        rows = max(1, CHUNK // length)
        most = torch.empty(min(rows, len(blocks)), dtype=torch.int32)
        coded = torch.split(codes, self.codes_nbytes(rows * length))
        for x, s, c in zip(torch.split(blocks, rows), torch.split(scales, rows), coded, strict=True):
            y, m = room.levels[: x.numel()].view(-1, length), most[: len(x)]
            torch.abs(x, out=y)
            torch.amax(y.view(torch.int32), 1, out=m)  # integers need no look out for NaN
            scale = m.view(torch.float32)
            s.copy_(scale.div_(self.top).clamp_(min=LEAST))
            scale.copy_(s)
            torch.mul(x, scale.reciprocal_().unsqueeze(1), out=y)
            self.write(y.view(-1), c, room.spare)

    def pieces(self, tensors: Sequence[Tensor], block: int) -> list[Piece]:
        """Small tensors are encoded as one, in which each begins with a block of its own; zeros fill up its last."""
        small = [tensor.reshape(-1) for tensor in tensors if is_small(tensor, block)]
        blocks = [-(-len(x) // block) for x in small]
        sizes = [count * block for count in blocks]
        together = torch.zeros(sum(sizes), dtype=torch.float32)
        for x, part in zip(small, together.split_with_sizes(sizes), strict=True):
            part[: len(x)] = x
        encoded = torch.empty(self.nbytes((len(together),), block), dtype=torch.uint8)
        self.encode(together, block, encoded)
        scales, codes = encoded.split_with_sizes([2 * sum(blocks), self.codes_nbytes(len(together))])
        nbytes = [self.codes_nbytes(size) for size in sizes]
        large = [tensor.numel() for tensor in tensors if not is_small(tensor, block)]
        room = Room.of(max(large), block) if large else None  # one for all
        cut = zip(scales.split_with_sizes([2 * n for n in blocks]), codes.split_with_sizes(nbytes), strict=True)
        return [
            self._small(tensor, block, *next(cut)) if is_small(tensor, block) else self._large(tensor, block, room)
            for tensor in tensors
        ]

    def _small(self, tensor: Tensor, block: int, scales: Tensor, codes: Tensor) -> Piece:
        return Piece(self, block, (scales, codes[: self.codes_nbytes(tensor.numel())]))

    def _large(self, tensor: Tensor, block: int, room: Room | None) -> Piece:
        """Encoded where it is to be: new memory for so much costs more than the codes."""
        nbytes = self.nbytes(tuple(tensor.shape), block)
        return Piece(self, block, (Later(nbytes, lambda out: self.encode(tensor.reshape(-1), block, out, room)),))

    def _parts(self, data: memoryview, shape: Shape, block: int) -> tuple[Tensor, Tensor]:
        blocks = -(-math.prod(shape) // block)
        return view(data, torch.bfloat16, 0, blocks), view(data, torch.uint8, 2 * blocks)

    @abstractmethod
    def codes_nbytes(self, n: int) -> int:
        """The size of so many codes."""

    @abstractmethod
    def check_codes(self, codes: Tensor, n: int) -> None:
        """Raise `PeerError` for a code that stands for nothing."""

    @abstractmethod
    def read(self, codes: Tensor, levels: Tensor, spare: Tensor) -> None:
        """Codes to levels. `spare` is memory for a number of 16 bits for each element."""

    @abstractmethod
    def write(self, y: Tensor, codes: Tensor, spare: Tensor) -> None:
        """The codes of the levels nearest to `y`, which is x / s and may be changed."""


class Int8Form(BlockForm):
    """A byte for each element: its level, in two's complement."""

    code = 2
    top = 127

    def codes_nbytes(self, n: int) -> int:
        return n

    def check_codes(self, codes: Tensor, n: int) -> None:
        if (codes.numpy() == 0x80).any():
            raise PeerError("a code of -128, expected -127 to 127")

    def read(self, codes: Tensor, levels: Tensor, spare: Tensor) -> None:
        levels.copy_(codes.view(torch.int8))

    def write(self, y: Tensor, codes: Tensor, spare: Tensor) -> None:
        codes.view(torch.int8).copy_(y.round_())


class NibbleForm(BlockForm):
    """Four bits for each element, the first of two in the lower ones: the level's place on its side of zero, −7 to 7,
    in two's complement."""

    def codes_nbytes(self, n: int) -> int:
        return -(-n // 2)

    def check_codes(self, codes: Tensor, n: int) -> None:
        pairs = codes.numpy()
        if (pairs & 0x0F == 0x08).any() or (pairs & 0xF0 == 0x80).any():
            raise PeerError("a code of -8, expected -7 to 7")
        if n % 2 and pairs[-1] > 0x0F:
            raise PeerError("a code after the last element's")

    @staticmethod
    def _pairs(y: Tensor, codes: Tensor, spare: Tensor) -> Tensor:
        """Two elements in one integer of 16 bits, each a whole number in two's complement: `y` towards zero."""
        pairs = spare[: len(codes)]
        pairs[-1:] = 0  # where their number is odd
        pairs.view(torch.int8)[: len(y)].copy_(y)
        return pairs


class Int4Form(NibbleForm):
    """The levels 0, ±1 … ±7."""

    code = 3
    top = 7

    def read(self, codes: Tensor, levels: Tensor, spare: Tensor) -> None:
        pairs, second = spare[: 2 * len(codes)].view(2, -1)
        pairs.copy_(codes)
        torch.bitwise_left_shift(pairs, 4, out=second)
        pairs.bitwise_or_(second).bitwise_and_(0x0F0F)
        # Of four bits, the sign: (n ^ 8) - 8.
        signed = pairs.bitwise_xor_(0x0808).view(torch.int8).sub_(8)
        levels.copy_(signed[: len(levels)])

    def write(self, y: Tensor, codes: Tensor, spare: Tensor) -> None:
        pairs = self._pairs(y.round_(), codes, spare).bitwise_and_(0x0F0F)
        second = torch.bitwise_right_shift(pairs, 4, out=spare[len(codes) : 2 * len(codes)])
        codes.copy_(second.bitwise_or_(pairs))


class Float4Form(NibbleForm):
    """The levels 0, ±1, ±2, ±4 … ±64."""

    code = 4
    top = 64

    def __init__(self) -> None:
        magnitudes = (0, *(1 << e for e in range(7)))
        # Of a byte, two floats as one integer of 64 bits.
        levels = np.array([*magnitudes, 0, *(-m for m in magnitudes[:0:-1])], dtype=np.float32)
        byte = np.arange(256)
        self._levels = np.stack([levels[byte & 15], levels[byte >> 4]], axis=1)
        # Of two elements in halves, as one integer, the byte: the midpoint of two levels is a whole number of halves.
        midpoints = [low + high for low, high in pairwise(magnitudes)]
        signed = np.arange(256, dtype=np.uint8).view(np.int8).tolist()
        places = [bisect_right(midpoints, abs(halves)) * (1 if halves > 0 else -1) for halves in signed]
        nibbles = np.array(places, dtype=np.int8).view(np.uint8) & 15
        self._bytes = (nibbles[:, None] << 4 | nibbles).reshape(-1)

    def read(self, codes: Tensor, levels: Tensor, spare: Tensor) -> None:
        # Indices cannot be out of bounds: "wrap" keeps numpy from making sure, with a copy.
        both, whole = self._levels.view(np.uint64).reshape(-1), len(levels) // 2
        np.take(both, codes[:whole].numpy(), out=levels[: 2 * whole].numpy().view(np.uint64), mode="wrap")
        if len(levels) % 2:
            levels[-1] = float(self._levels[int(codes[-1]), 0])

    def write(self, y: Tensor, codes: Tensor, spare: Tensor) -> None:
        # 128 halves are the level 64, and no int8; all midpoints are below 127.
        halves = self._pairs(y.mul_(2).clamp_(-127, 127), codes, spare)
        np.take(self._bytes, halves.numpy().view(np.uint16), out=codes.numpy(), mode="wrap")


INT8, INT4, FLOAT4 = Int8Form(), Int4Form(), Float4Form()


@dataclass(frozen=True, kw_only=True)
class Blockwise:
    """What the codecs below have in common. `back="same"`: the merged result is quantised once more by the sealer, with
    error feedback of its own; else all members' codes come back wherever that is smaller than float32. Raises
    `UsageError`."""

    block: int
    back: str = "exact"
    exact = False
    stays = False
    form: ClassVar[BlockForm]

    def __post_init__(self) -> None:
        require(is_block(self.block), "block", self.block, "a power of two from 16 to 65536")
        require(self.back in ("exact", "same"), "back", self.back, "'exact' or 'same'")

    def pieces(self, tensors: Sequence[Tensor], memory: Tensor | None) -> tuple[list[Piece], Tensor | None]:
        return self.form.pieces(tensors, self.block), None


@dataclass(frozen=True, kw_only=True)
class Int8(Blockwise):
    """1 + 2 / block bytes an element: 3.94 times smaller than float32."""

    block: int = 128
    form = INT8


@dataclass(frozen=True, kw_only=True)
class Int4(Blockwise):
    """1/2 + 2 / block bytes an element: 7.53 times smaller than float32."""

    block: int = 64
    form = INT4


@dataclass(frozen=True, kw_only=True)
class Float4(Blockwise):
    """1/2 + 2 / block bytes an element, as Int4: finer near zero, coarser far from it."""

    block: int = 64
    form = FLOAT4
