"""The sizes of offers: which offer is so large that an accident is more likely than training.

The size of an offer is the RMS of its delta as it was decoded. The usual size of an offer of n
steps is the upper quartile over the last merged offers of the fragment, each taken to n steps if it
has fewer:

    usual(n) = upper quartile of rⱼ max(1, n/nⱼ)

It is not the median, because learners differ: where one of two barely moves, the other's size must
be usual, too. No outsized offer is among those remembered, so none makes itself usual.

An offer is *outsized* if its size exceeds both `norm` · usual(n) and `norm` times the median of the
round's other offers, taken to n steps alike. So a higher learning rate of all learners is no
accident. Nor is what remains after `PATIENCE` rounds of which nothing was merged: then it is how
the learners train now. In both cases the history begins anew.

Where nothing trains, as in frozen layers, offers still bring rounding errors of float32, for a
while. No offer is compared with these: the first true steps would be a million times larger. So an
offer of rounding errors counts as one of zeros.

The history belongs to the anchor, as the velocity does. The sealer's measurements travel in the
seal, and all learners keep the same history, whoever seals next."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from mend_optim.codecs.packing import RAW, raw, view
from mend_optim.engine.effects import Outsize
from mend_optim.errors import PeerError, is_number, require, take_plain_numbers
from mend_optim.protocol.messages import SIZES, Offer, Packet, Seal, Sections

#: Offers that are remembered.
KEPT = 32
#: Fewer offers say nothing about the usual size.
FEWEST = 5
#: So many rounds in a row may bring nothing but outsized offers.
PATIENCE = 3
#: An offer of less than this share of the weights' RMS is one of rounding errors. Those of frozen
#: layers had 2⁻²⁵ of it. By a true step that is less than this, few weights move at all.
ROUNDED = 2.0**-22
#: An offer is compared with the weights if it is less than this share of the usual size.
FAINT = 2.0**-8
#: No offer may be larger, guard or not: an anchor stays finite whatever the first offers are.
HUGEST = 2.0**64
#: Larger numbers are told as this one: they travel as float32.
MOST_TOLD = 1e30
#: No offer is scaled down by less: float32 rounds a smaller factor too much.
LEAST_FACTOR = 2.0**-126
#: Larger counts of steps are not exact in float32.
MOST_STEPS = 2**24


@dataclass(frozen=True, kw_only=True)
class Guard:
    """When the offer of one learner is an accident: its weights have exploded, say. Rounds refuse
    an offer whose RMS, for its number of steps, exceeds `norm` times

    - the upper quartile of the fragment's last 32 merged offers, once there are 5, and
    - the median of the other offers of its round, if it has any.

    The author then gives up the work that the offer holds, counts it in `dropped_tokens`, and goes
    on from the anchor with fresh moments. If all learners take larger steps, nothing is refused.

    Args:
        norm: how many times the usual size is too much, at least 2.
        clip: whether an outsized offer is scaled down to the bound and merged, instead of refused.

    Raises:
        UsageError: an argument is out of bounds.

    Example:
        >>> Guard(norm=20)
        Guard(norm=20.0, clip=False)
    """

    norm: float = 8.0
    clip: bool = False

    def __post_init__(self) -> None:
        take_plain_numbers(self)
        good = is_number(self.norm) and 2 <= self.norm < math.inf
        require(good, "guard.norm", self.norm, "a finite number >= 2")
        require(isinstance(self.clip, bool), "guard.clip", self.clip, "a bool")
        object.__setattr__(self, "norm", float(self.norm))


class Size(NamedTuple):
    """The RMS of an offer's delta, and its inner steps."""

    rms: float
    steps: int

    def taken_to(self, steps: int) -> float:
        """The size that is expected of an offer of so many steps. Fewer steps may go as far, since
        many of them go to and fro."""
        return self.rms * max(1.0, steps / self.steps)


class Judged(NamedTuple):
    """One offer of a round.

    `rms` is at most `MOST_TOLD`. `times` says how many times the usual size it is: 0 if it is not
    outsized, below 0 if that size is the usual one from here on. `factor` is 0 if the offer is
    refused, and less than 1 if it is to be scaled down."""

    rms: float
    times: float = 0.0
    factor: float = 1.0


class SizeHistory:
    """The sizes of the last merged offers of one fragment."""

    def __init__(self) -> None:
        #: Oldest first. Invariant: every size is greater than 0.
        self.sizes: deque[Size] = deque(maxlen=KEPT)
        #: Rounds since the last one that merged an offer that was not outsized.
        self.refusals = 0

    # ── the sealer judges ─────────────────────────────────────────────────────────────────────────

    def usual(self, steps: int) -> float | None:
        """The usual size of an offer of so many steps; None if it is not known yet."""
        if len(self.sizes) < FEWEST:
            return None
        ordered = sorted(size.taken_to(steps) for size in self.sizes)
        return ordered[3 * len(ordered) // 4]

    def without_rounding(
        self, sizes: Sequence[Size | None], weights: Callable[[], float]
    ) -> list[Size | None]:
        """The sizes of a round, with those of rounding errors as 0. `weights` measures the RMS of
        the anchor."""
        if not any(size and self._is_faint(size) for size in sizes):
            return list(sizes)
        least = ROUNDED * weights()
        return [size and (Size(0.0, size.steps) if size.rms < least else size) for size in sizes]

    def _is_faint(self, size: Size) -> bool:
        usual = self.usual(size.steps)
        return usual is None or size.rms < FAINT * usual

    def judge(self, guard: Guard | None, sizes: Sequence[Size | None]) -> list[Judged]:
        """Judge the offers of a round. None: an offer that is not judged, as it brings the residual
        of earlier work, or nothing."""
        return [
            Judged(0.0) if size is None else self._judge(guard, size, _others(sizes, i))
            for i, size in enumerate(sizes)
        ]

    def _judge(self, guard: Guard | None, size: Size, others: Sequence[Size]) -> Judged:
        usual = self.usual(size.steps)
        told = min(size.rms, MOST_TOLD)
        times = min(size.rms / usual, MOST_TOLD) if usual else 0.0
        if size.rms > HUGEST and not (guard and guard.clip and usual):
            return Judged(told, times or told, 0.0)
        if guard is None or usual is None or times <= guard.norm:
            return Judged(told)
        expected = median(other.taken_to(size.steps) for other in others) if others else 0.0
        are_alike = size.rms <= min(guard.norm * expected, HUGEST)
        if are_alike or (self.refusals >= PATIENCE and size.rms <= HUGEST):
            return Judged(told, -times)
        factor = guard.norm * usual / size.rms if guard.clip else 0.0
        return Judged(told, times, factor if factor >= LEAST_FACTOR else 0.0)

    # ── everybody remembers ───────────────────────────────────────────────────────────────────────

    def merged(self, seal: Seal) -> None:
        """A round was merged, whose sizes were checked."""
        rows = read_sizes(seal)
        merged = [
            Size(min(row.rms, HUGEST), min(entry.steps, MOST_STEPS))
            for entry, row in zip(seal.members, rows, strict=False)
            if entry.steps and row.rms > 0 and row.times <= 0
        ]
        if any(row.times < 0 for row in rows):
            self.sizes.clear()
        self.sizes.extend(merged)
        if merged:
            self.refusals = 0
        elif any(row.times > 0 for row in rows):
            self.refusals = min(self.refusals + 1, PATIENCE)

    def reset(self) -> None:
        """Begin anew."""
        self.sizes.clear()
        self.refusals = 0

    # ── whole anchors and checkpoints ─────────────────────────────────────────────────────────────

    def save(self) -> Tensor | None:
        """The history as one tensor: the count of refusals, then every size and its steps. None if
        there is none."""
        if not self.sizes and not self.refusals:
            return None
        flat = [float(number) for size in self.sizes for number in size]
        return torch.tensor([float(self.refusals), *flat], dtype=torch.float32)

    def load(self, saved: Tensor | None) -> None:
        """Take what `save` returned; None: there is none. Raises `PeerError`."""
        refusals, sizes = _read_history([0.0] if saved is None else saved.tolist())
        self.reset()
        self.refusals = refusals
        self.sizes.extend(sizes)

    def export(self) -> Sections:
        """The section of a whole anchor."""
        saved = self.save()
        return {} if saved is None else {SIZES: raw(saved)}

    def install(self, sections: Sections) -> None:
        """Take the history of a whole anchor. Raises `PeerError`."""
        self.load(view(sections[SIZES].data, torch.float32) if SIZES in sections else None)


def check_history(sections: Sections) -> None:
    """Raise `PeerError` if the history of a whole anchor is damaged."""
    if SIZES in sections:
        packet = sections[SIZES]
        fits = packet.codec == RAW and packet.nbytes == 4 * packet.numel <= 4 * (1 + 2 * KEPT)
        if not fits:
            raise PeerError(f"Sizes of offers have {packet.nbytes} bytes in {packet.codec!r}")
        SizeHistory().install(sections)


def _read_history(numbers: Sequence[float]) -> tuple[int, list[Size]]:
    """The count of refusals, and the sizes. Raises `PeerError`."""
    refusals, *flat = numbers or [-1.0]
    pairs = list(zip(flat[::2], flat[1::2], strict=False))
    whole = len(flat) == 2 * len(pairs) <= 2 * KEPT and 0 <= refusals <= PATIENCE
    sound = all(0 < rms <= HUGEST and 1 <= steps <= MOST_STEPS for rms, steps in pairs)
    if not whole or not sound:
        raise PeerError("Sizes of earlier offers are damaged")
    return int(refusals), [Size(rms, int(steps)) for rms, steps in pairs]


def _others(sizes: Sequence[Size | None], i: int) -> list[Size]:
    """The sizes of a round without that of offer `i`. An offer of zeros says nothing."""
    return [size for k, size in enumerate(sizes) if k != i and size and size.rms > 0]


def refused_in(judged: Sequence[Judged]) -> dict[int, Outsize]:
    """By index, the offers that are refused."""
    return {
        i: Outsize(found.rms, found.times) for i, found in enumerate(judged) if not found.factor
    }


# ── the offers and the seal of a round ────────────────────────────────────────────────────────────


def sizes_of(offers: Sequence[Offer], rms: Mapping[int, float]) -> list[Size | None]:
    """The sizes of these offers, given those that were measured by the offer's index."""
    return [
        Size(rms[i], offer.steps) if _is_judged(offer) else None for i, offer in enumerate(offers)
    ]


def _is_judged(offer: Offer) -> bool:
    return offer.steps > 0 and offer.tokens > 0 and not any(offer.again)


def sizes_nbytes(members: int) -> int:
    """The largest section, in bytes: that of a seal of so many members, or that of an anchor."""
    return 4 * max(2 * members, 1 + 2 * KEPT)


def sizes_packet(judged: Sequence[Judged], outsized: Mapping[int, Outsize]) -> Packet:
    """The section of a seal: RMS and times of each member.

    Args:
        judged: the members of the round.
        outsized: by index, the members that take part with nothing because their offers were
            refused before.
    """
    rows = [outsized.get(i, Outsize(found.rms, found.times)) for i, found in enumerate(judged)]
    return raw(torch.tensor([number for row in rows for number in row], dtype=torch.float32))


def read_sizes(seal: Seal) -> list[Outsize]:
    """RMS and times of each member of a seal; empty if it does not tell. Raises `PeerError`."""
    packet = seal.sections.get(SIZES)
    if packet is None:
        return []
    count = 2 * len(seal.members)
    if (packet.codec, packet.numel, packet.nbytes) != (RAW, count, 4 * count):
        raise PeerError(f"Sizes of {len(seal.members)} offers have {packet.nbytes} bytes")
    numbers = view(packet.data, torch.float32).tolist()
    rows = [Outsize(*pair) for pair in zip(numbers[::2], numbers[1::2], strict=True)]
    for row in rows:
        if not (0 <= row.rms <= 2 * MOST_TOLD and abs(row.times) <= 2 * MOST_TOLD):
            raise PeerError(f"Size of an offer is {row.rms}, {row.times} times the usual one")
    return rows


def outsized_in(seal: Seal) -> dict[int, Outsize]:
    """By index, the members of a checked seal whose offers were refused or scaled down."""
    return {i: row for i, row in enumerate(read_sizes(seal)) if row.times > 0}
