"""The largest values and their positions: top-k within chunks (SparseLoCo, arXiv 2508.15706), or
every non-zero value.

Of every 4096 consecutive elements, the k = ⌈density · 4096⌉ of greatest magnitude travel, exactly.
The learner keeps the others. So ‖x − decoded‖² ≤ (1 − density) ‖x‖². At density 1 nothing is lost,
to the bit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from mend_optim.codecs.packing import (
    BACK,
    Array,
    Piece,
    Scratch,
    Shape,
    dense,
    padded,
    require_bounded,
    view,
)
from mend_optim.errors import PeerError, is_number, require, take_plain_numbers

#: Elements among which the largest are chosen.
CHUNK = 4096
#: Chunks processed at once: all that is computed from them stays in the second-level cache.
ROWS = 32
#: Elements processed at once: indices of the whole tensor, eight bytes each, would take twice its
#: memory.
SPAN = ROWS * CHUNK
#: Elements that are looked at before all of a tensor is searched for zeros.
SAMPLES = 1 << 14
#: A listed position is a multiple of this number, plus a byte.
LOW = 256


def bitmap_nbytes(numel: int) -> int:
    """The size of a bitmap of `numel` positions, in bytes."""
    return -(-numel // 8)


def list_nbytes(numel: int, count: int) -> int:
    """The size of a list of `count` positions below `numel`, in bytes."""
    return count + -(-(count + -(-numel // LOW)) // 8)


def has_bitmap(numel: int, count: int) -> bool:
    """Whether the positions travel as a bitmap."""
    return bitmap_nbytes(numel) <= list_nbytes(numel, count)


class SparseForm:
    """Values (float32), then their positions, which increase. `param` is K, the number of values of
    a tensor of N elements.

    The positions are a bitmap of N bits if that is not larger than a list. A list is in the
    Elias–Fano code: p mod 256 of every position p, a byte each; then K + ⌈N / 256⌉ bits, in which
    bit i + ⌊p / 256⌋ is set for the i-th position (from 0). At density 1/64 that is 9.25 bits a
    position, where 7.4 is the minimum. Bits count from the lowest of a byte. Bits after the end
    are 0. Where K = 0 there are no bytes, not even a bitmap."""

    code = 5

    def nbytes(self, shape: Shape, param: int) -> int:
        numel = math.prod(shape)
        if param > numel:
            raise PeerError(f"Tensor has {param} values but only {numel} elements")
        if not param:
            return 0
        return 4 * param + min(bitmap_nbytes(numel), list_nbytes(numel, param))

    def check(self, data: memoryview, shape: Shape, param: int) -> None:
        if param:
            _positions(data, math.prod(shape), param)
            require_bounded(view(data, torch.float32, 0, param))

    def decoded(
        self, data: memoryview, shape: Shape, param: int, scratch: Scratch
    ) -> Iterator[Tensor]:
        numel = math.prod(shape)
        places = _positions(data, numel, param) if param else np.empty(0, dtype=np.intp)
        values = view(data, torch.float32, 0, param).numpy()
        at = 0
        for start in range(0, numel, SPAN):
            some = scratch.take(min(SPAN, numel - start)).zero_()
            here = _among(places, start, start + SPAN)
            some.numpy()[here] = values[at : at + len(here)]
            at += len(here)
            yield some


SPARSE = SparseForm()


def _positions(data: memoryview, numel: int, count: int) -> Array:
    """Where the values belong: a mask if they travel as a bitmap, or else indices. Takes less
    memory than the tensor. Raises `PeerError` unless they are `count` different elements of the
    tensor, in order."""
    raw = np.frombuffer(data, dtype=np.uint8, offset=4 * count)
    if has_bitmap(numel, count):
        mask = np.unpackbits(raw, bitorder="little").view(np.bool_)
        marked = np.count_nonzero(mask)
        if marked != count or mask[numel:].any():
            raise PeerError(f"Bitmap has {marked} positions; {count} below {numel} are needed")
        return mask[:numel]
    ones = np.flatnonzero(np.unpackbits(raw[count:], bitorder="little"))
    if len(ones) != count:
        raise PeerError(f"Position list has {len(ones)} entries; {count} are needed")
    places = (ones - np.arange(count)) * LOW + raw[:count]
    if places[-1] >= numel or not (places[1:] > places[:-1]).all():
        raise PeerError(f"Positions do not increase, or do not stay below {numel}")
    return places


def _among(positions: Array, start: int, stop: int) -> Array:
    """The positions from `start` up to `stop`, as indices relative to `start`."""
    if positions.dtype == np.bool_:
        return np.flatnonzero(positions[start:stop])
    low, high = np.searchsorted(positions, (start, stop))
    return positions[low:high] - start


def _piece(values: Array, mask: Array) -> Piece:
    """The values where the mask is set."""
    numel = len(values)
    count = int(np.count_nonzero(mask))
    if not count:
        return Piece(SPARSE, 0, ())
    if has_bitmap(numel, count):
        starts = range(0, numel, SPAN)
        kept = np.concatenate(
            [values[at : at + SPAN][_among(mask, at, at + SPAN)] for at in starts]
        )
        return Piece(SPARSE, count, (kept, np.packbits(mask, bitorder="little")))
    places = np.flatnonzero(mask)
    upper = np.zeros(count + -(-numel // LOW), dtype=np.bool_)
    upper[places // LOW + np.arange(count)] = True
    lower = (places % LOW).astype(np.uint8)
    return Piece(SPARSE, count, (values[places], lower, np.packbits(upper, bitorder="little")))


def _may_have_zeros(bits: Array) -> bool:
    """Whether a look at a few elements leaves room for so many zeros that a bitmap pays."""
    stride = len(bits) // SAMPLES | 1
    some = bits[::stride]
    zeros = len(some) - int(np.count_nonzero(some))
    # A bitmap pays from one zero in 32 elements on.
    return zeros * 64 >= len(some)


def lossless(tensor: Tensor) -> Piece:
    """Every value whose bits are not all zero (those of a negative zero are not), or the whole
    tensor if that is smaller, or seems to be."""
    values = tensor.reshape(-1).numpy()
    bits = values.view(np.int32)
    if not _may_have_zeros(bits):
        return dense(tensor)
    nbytes = SPARSE.nbytes(tuple(tensor.shape), int(np.count_nonzero(bits)))
    return _piece(values, bits != 0) if padded(nbytes) < tensor.nbytes else dense(tensor)


def largest(magnitudes: Array, k: int, out: Array) -> None:
    """Set the mask `out` at the k greatest of every row, at the first of those that are equal, and
    never at a zero."""
    # To partition plain integers is several times as fast as any search that returns indices.
    least = np.partition(magnitudes, -k, axis=1)[:, -k, None]
    np.greater_equal(magnitudes, np.maximum(least, 1), out=out)
    if least.all() and np.count_nonzero(out) == k * len(out):
        return
    excess = np.count_nonzero(out, axis=1) - k
    for row in np.flatnonzero(excess > 0):
        equal = np.flatnonzero(magnitudes[row] == least[row])
        out[row, equal[-excess[row] :]] = False


def top(values: Array, density: float) -> Array:
    """A mask of the ⌈density · chunk⌉ largest of every chunk, the last of which may be short."""
    # The bits without the sign are ordered like the magnitudes, whatever the processor does with
    # tiny numbers.
    bits = values.view(np.int32)
    mask = np.empty(len(values), dtype=np.bool_)
    whole = len(values) // CHUNK * CHUNK
    starts = [*range(0, whole, ROWS * CHUNK), *range(whole, len(values), CHUNK)]
    for start, stop in pairwise([*starts, len(values)]):
        length = min(CHUNK, stop - start)
        magnitudes = (bits[start:stop] & 0x7FFFFFFF).reshape(-1, length)
        largest(magnitudes, math.ceil(density * length), mask[start:stop].reshape(-1, length))
    return mask


def top_count(numel: int, density: float) -> int:
    """The largest number of values that `top` marks. Where there are zeros it may mark fewer."""
    return numel // CHUNK * math.ceil(density * CHUNK) + math.ceil(density * (numel % CHUNK))


@dataclass(frozen=True, kw_only=True)
class Sparse:
    """The largest values of every tensor, chunk by chunk. A tensor that gets no smaller travels as
    float32.

    On the wire: 5.2 bytes a value at density 1/64, instead of 4 for every element.

    Args:
        density: the share of the values that travel, in (0, 1]. 1.0 sends every value that is not
            zero, and so loses nothing.
        back: how a merged delta comes back. "exact" returns the values of all members. "same"
            returns the largest values of the merged result, with error feedback at the sealer.
            "auto" does that where it is smaller.

    Raises:
        UsageError: an argument is out of bounds.

    Example:
        >>> Sparse(density=1 / 32)
        Sparse(density=0.03125, back='exact')
    """

    density: float = 1 / 64
    back: str = "exact"
    residual_in_weights = False
    coalesce = 0

    def __post_init__(self) -> None:
        take_plain_numbers(self)
        within = is_number(self.density) and 0 < self.density <= 1
        require(within, "density", self.density, "a number in (0, 1]")
        require(self.back in BACK, "back", self.back, f"one of {BACK}")
        # Learners compare the codec's repr: 1 must read 1.0.
        object.__setattr__(self, "density", float(self.density))

    @property
    def exact(self) -> bool:
        return self.density == 1

    def pieces(
        self, tensors: Sequence[Tensor], memory: Tensor | None
    ) -> tuple[list[Piece], Tensor | None]:
        return [self._piece(tensor) for tensor in tensors], None

    def _piece(self, tensor: Tensor) -> Piece:
        most = SPARSE.nbytes(tuple(tensor.shape), top_count(tensor.numel(), self.density))
        if self.exact or padded(most) >= tensor.nbytes:
            return lossless(tensor)
        values = tensor.reshape(-1).numpy()
        return _piece(values, top(values, self.density))
