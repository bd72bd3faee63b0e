"""The norm-preserving mean: how much longer a merged delta is made than the plain mean.

The mean of deltas in different directions is shorter than the deltas are: of M orthogonal ones,
√M times. Training then stands still where learners disagree. So each tensor of the mean is scaled
back to the mean length of the members' deltas:

    f = clamp(Σ wᵢ ‖Δᵢ‖ / ‖Σ wᵢ Δᵢ‖, 1, 1/(ρ √Σ wᵢ²)),        Θ ← Θ − ρ f Σ wᵢ Δᵢ

Members that agree, and a single member, have f = 1. ρ is the round's headway: 1 for members of
equal speed (`engine/headway.py`). The bound of ρ f is the f of orthogonal members of equal length:
no member can make a step longer than that, whatever it offers. A norm is a sum whose last bits
depend on the hardware. So the sealer computes f, and the seal carries it, and ρ."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mend_optim.codecs.packing import MOST, RAW, raw, view
from mend_optim.errors import PeerError
from mend_optim.protocol.messages import SCALE, Packet, Sections
from mend_optim.worker.merge import FINE, block_norm, blocks

#: Relative slack of the upper bound, because f travels as float32.
SLACK = 1e-6
#: The name of ρ in a checkpoint.
HEADWAY = "headway"
#: Relative error of a norm: where f exceeds 1 by less, members agree.
NOISE = 1e-5


class Scale(NamedTuple):
    """By what the mean of a round is multiplied: ρ f."""

    #: f of every tensor; empty: all are 1.
    factors: tuple[float, ...] = ()
    headway: float = 1.0

    @property
    def most(self) -> float:
        """The greatest ρ f."""
        return self.headway * max(self.factors, default=1.0)

    def products(self) -> list[float]:
        """ρ f of every tensor."""
        return [self.headway * f for f in self.factors]


#: The scale of a plain mean.
PLAIN = Scale()


class Lengths:
    """The norms of a flat vector's tensors, from its parts in any order.

    Args:
        offsets: the bounds of the tensors in the flat vector.
    """

    def __init__(self, offsets: Sequence[int]) -> None:
        self.offsets = offsets
        self.squares = [0.0] * (len(offsets) - 1)

    def add(self, here: slice, part: Tensor) -> None:
        """Count the elements `here` of the vector, whose values are `part`."""
        tensor = bisect_right(self.offsets, here.start) - 1
        start = here.start
        while start < here.stop:
            stop = min(self.offsets[tensor + 1], here.stop)
            values = part[start - here.start : stop - here.start]
            # A float32 norm of a larger block would be wrong in its third digit.
            for block in blocks(values.numel(), FINE):
                self.squares[tensor] += block_norm(values[block]) ** 2
            start, tensor = stop, tensor + 1

    def norms(self) -> list[float]:
        """‖x‖₂ of every tensor."""
        return [math.sqrt(square) for square in self.squares]


def rms_of(norms: Sequence[float], numel: int) -> float:
    """The root mean square of the elements of a vector whose tensors have these norms."""
    return math.sqrt(math.fsum(norm**2 for norm in norms) / max(1, numel))


def factors(
    members: Sequence[Sequence[float]],
    mean: Sequence[float],
    w: Sequence[float],
    headway: float = 1.0,
) -> list[float]:
    """f of every tensor; 1 where the mean is zero, or a norm is not finite.

    Args:
        members: ‖Δᵢ‖ of every tensor, for each member.
        mean: ‖Σ wᵢ Δᵢ‖ of every tensor.
        w: the members' weights; they sum to 1.
        headway: ρ, at most `bound(w)`.
    """
    most = bound(w) / headway
    found = []
    for k, length in enumerate(mean):
        f = sum(weight * norms[k] for weight, norms in zip(w, members, strict=True)) / (length or 1)
        known = bool(length) and math.isfinite(f) and f > 1 + NOISE
        found.append(min(f, most) if known else 1.0)
    return found


def bound(w: Sequence[float]) -> float:
    """1/√Σ wᵢ²: the greatest ρ f of members with these weights. Raises `PeerError` if that is not
    finite."""
    squares = sum(weight**2 for weight in w)
    if not squares:
        raise PeerError(
            f"Scale of the mean needs a weight > 0; the greatest is {max(w, default=0)}"
        )
    return 1 / math.sqrt(squares)


def scale_nbytes(tensors: int) -> int:
    """The size of the section, in bytes."""
    return 4 * (tensors + 1)


def scale_tensors(scale: Scale) -> dict[str, Tensor]:
    """A scale in a checkpoint, by the tensors' names."""
    if scale == PLAIN:
        return {}
    found = {"scale": torch.tensor(scale.factors, dtype=torch.float32)}
    if scale.headway != 1:
        found[HEADWAY] = torch.tensor([scale.headway], dtype=torch.float32)
    return found


def kept_scale(tensors: Mapping[str, Tensor]) -> Scale:
    """The inverse of `scale_tensors`."""
    if "scale" not in tensors:
        return PLAIN
    headway = float(tensors[HEADWAY]) if HEADWAY in tensors else 1.0
    return Scale(tuple(tensors["scale"].tolist()), headway)


def scale_packet(scale: Scale) -> Packet:
    """A scale on the wire: f of each tensor and ρ, in float32."""
    return raw(torch.tensor([*scale.factors, scale.headway], dtype=torch.float32))


def read_scale(packet: Packet, tensors: int, most: float) -> Scale:
    """The scale of a received packet. Raises `PeerError` unless it has ρ and one f for each tensor,
    none is below 1, and no ρ f is above `most`."""
    numel = tensors + 1
    if packet.codec != RAW or packet.numel != numel or packet.nbytes != scale_nbytes(tensors):
        raise PeerError(
            f"Scale of the mean is not {numel} float32: one for each of {tensors} tensors, and "
            "the headway"
        )
    *found, headway = view(packet.data, torch.float32).tolist()
    scale = Scale(tuple(found), headway)
    if not (all(f >= 1 for f in (*found, headway)) and scale.most <= most * (1 + SLACK)):
        raise PeerError(
            f"Scale of the mean is {min(found):.6g} to {max(found):.6g}, times {headway:.6g}; it "
            f"must be in [1, {most:.6g}]"
        )
    return scale


def scale_in(sections: Sections, tensors: int) -> Scale:
    """The scale of the round that made a whole anchor. Raises `PeerError`."""
    return read_scale(sections[SCALE], tensors, MOST) if SCALE in sections else PLAIN


class Scaled:
    """ρ f Δ̄, made block by block where it is read. Every product is rounded once, so learners on
    different hardware get the same bits.

    Args:
        mean: Δ̄; not changed.
        scale: of the round.
        offsets: the bounds of the tensors.
    """

    def __init__(self, mean: Tensor, scale: Scale, offsets: Sequence[int]) -> None:
        self._mean = mean
        self._found = scale.products()
        self._offsets = offsets
        self._block = torch.empty(0, dtype=torch.float32)

    def __getitem__(self, here: slice) -> Tensor:
        """The elements `here`, in memory that the next block will use again."""
        size = here.stop - here.start
        if self._block.numel() < size:
            self._block = torch.empty(size, dtype=torch.float32)
        block = self._block[:size]
        tensor = bisect_right(self._offsets, here.start) - 1
        start = here.start
        while start < here.stop:
            stop = min(self._offsets[tensor + 1], here.stop)
            out = block[start - here.start : stop - here.start]
            torch.mul(self._mean[start:stop], self._found[tensor], out=out)
            start, tensor = stop, tensor + 1
        return block


def unscaled(step: Tensor, found: Sequence[float], offsets: Sequence[int], out: Tensor) -> Tensor:
    """A step by the scaled mean as one by ρ times the mean, in `out`. No factors: they are 1."""
    out.copy_(step)
    for (start, stop), f in zip(itertools.pairwise(offsets), found, strict=False):
        if f != 1:
            out[start:stop].div_(f)
    return out
