"""The largest values and where they are: top-k within chunks (SparseLoCo, arXiv 2508.15706), or
every non-zero value.

Of every 4096 consecutive elements, the k = ⌈density · 4096⌉ of greatest magnitude travel, exactly;
the rest stay with the learner that has them. So ‖x − decoded‖² ≤ (1 − density) ‖x‖². At density 1
nothing is lost, to the bit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from mend_optim.codecs.packing import (
    Array,
    Piece,
    Scratch,
    Shape,
    dense,
    padded,
    require_bounded,
    view,
)
from mend_optim.errors import PeerError, is_number, require

CHUNK = 4096  # elements among which the largest are chosen
ROWS = 32  # chunks at once: all that is computed of them stays in the second-level cache
# elements looked at at once: all indices, of eight bytes each, would be twice the tensor
SPAN = ROWS * CHUNK
LOW = 256  # a listed position is a multiple of this and a byte


def bitmap_nbytes(numel: int) -> int:
    return -(-numel // 8)


def list_nbytes(numel: int, count: int) -> int:
    return count + -(-(count + -(-numel // LOW)) // 8)


def has_bitmap(numel: int, count: int) -> bool:
    return bitmap_nbytes(numel) <= list_nbytes(numel, count)


class SparseForm:
    """Values (float32), then their positions, which increase. `param` is their number K, of N
    elements.

    The positions are a bitmap of N bits where that is not larger than a list. A list is Elias's and
    Fano's: p mod 256 of every position, a byte each; then K + ⌈N / 256⌉ bits, where bit i + ⌊p /
    256⌋ is set for the i-th position (from 0). That is 9.25 bits a position at density 1/64, where
    7.4 would be the least. Bits count from the lowest of a byte; those after the end are 0. Of
    nothing there is nothing, not even a bitmap."""

    code = 5

    def nbytes(self, shape: Shape, param: int) -> int:
        numel = math.prod(shape)
        if param > numel:
            raise PeerError(f"{param} values of a tensor of {numel} elements")
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
        numel, at = math.prod(shape), 0
        places = _positions(data, numel, param) if param else np.empty(0, dtype=np.intp)
        values = view(data, torch.float32, 0, param).numpy()
        for start in range(0, numel, SPAN):
            some = scratch.take(min(SPAN, numel - start)).zero_()
            here = _among(places, start, start + SPAN)
            some.numpy()[here] = values[at : at + len(here)]
            at += len(here)
            yield some


SPARSE = SparseForm()


def _positions(data: memoryview, numel: int, count: int) -> Array:
    """Where the values belong: a mask if there is a bitmap, else indices. Raises `PeerError` unless
    they are `count` different elements of the tensor, in order. Takes less memory than the
    tensor."""
    raw = np.frombuffer(data, dtype=np.uint8, offset=4 * count)
    if has_bitmap(numel, count):
        mask = np.unpackbits(raw, bitorder="little").view(np.bool_)
        if np.count_nonzero(mask) != count or mask[numel:].any():
            raise PeerError(
                f"a bitmap of {np.count_nonzero(mask)} positions, expected {count} below {numel}"
            )
        return mask[:numel]
    ones = np.flatnonzero(np.unpackbits(raw[count:], bitorder="little"))
    if len(ones) != count:
        raise PeerError(f"a list of {len(ones)} positions, expected {count}")
    places = (ones - np.arange(count)) * LOW + raw[:count]
    if places[-1] >= numel or not (places[1:] > places[:-1]).all():
        raise PeerError(f"positions that do not increase to one below {numel}")
    return places


def _among(positions: Array, start: int, stop: int) -> Array:
    """Those of them that are among these elements, as indices from `start`."""
    if positions.dtype == np.bool_:
        return np.flatnonzero(positions[start:stop])
    low, high = np.searchsorted(positions, (start, stop))
    return positions[low:high] - start


def _piece(values: Array, mask: Array) -> Piece:
    """The values where the mask is set."""
    numel, count = len(values), int(np.count_nonzero(mask))
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


def lossless(tensor: Tensor) -> Piece:
    """Every value whose bits are not all zero (a negative zero's are not), or the tensor as it is
    if that is smaller."""
    values = tensor.reshape(-1).numpy()
    bits = values.view(np.int32)
    nbytes = SPARSE.nbytes(tuple(tensor.shape), int(np.count_nonzero(bits)))
    return _piece(values, bits != 0) if padded(nbytes) < tensor.nbytes else dense(tensor)


def largest(magnitudes: Array, k: int, out: Array) -> None:
    """Set the mask `out` at the k greatest of every row, the first of those that are equal, but at
    no zeros."""
    # Partitioning plain integers is several times as fast as any search that returns indices.
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
    # The bits without the sign are in the order of the magnitudes, whatever the processor does with
    # tiny numbers.
    bits, mask = values.view(np.int32), np.empty(len(values), dtype=np.bool_)
    whole = len(values) // CHUNK * CHUNK
    starts = [*range(0, whole, ROWS * CHUNK), *range(whole, len(values), CHUNK)]
    for start, stop in pairwise([*starts, len(values)]):
        length = min(CHUNK, stop - start)
        magnitudes = (bits[start:stop] & 0x7FFFFFFF).reshape(-1, length)
        largest(magnitudes, math.ceil(density * length), mask[start:stop].reshape(-1, length))
    return mask


def top_count(numel: int, density: float) -> int:
    """How many those are, at most: of what has zeros there may be fewer."""
    return numel // CHUNK * math.ceil(density * CHUNK) + math.ceil(density * (numel % CHUNK))


@dataclass(frozen=True, kw_only=True)
class Sparse:
    """The largest values of every tensor, chunk by chunk. A tensor that gets no smaller travels as
    float32.

    On the wire: 5.2 bytes a value at density 1/64, instead of 4 for every element.

    Args:
        density: the share of the values that travel, in (0, 1]. 1.0 sends every value that is not
            zero, and so loses nothing.
        back: "exact" returns the values of all members. "same" returns the largest values of the
            merged result, with error feedback at the sealer.

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
        within = is_number(self.density) and 0 < self.density <= 1
        require(within, "density", self.density, "a number in (0, 1]")
        require(self.back in ("exact", "same"), "back", self.back, "'exact' or 'same'")
        # learners compare the text of all this
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
