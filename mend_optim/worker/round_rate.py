"""The inner learning rates of a round, which the gain-normalised outer step needs:

    S = Σ wᵢ (sum of the inner learning rates of the steps in offer i)
    n = Σ wᵢ stepsᵢ
    m = μ^(n/H)

S is how far the inner optimizers went, so the merged delta on a straight path is a multiple of it.
S is 0 if the learning rates were, or if an offer brings a residual of earlier work, whose rates it
doesn't know: the outer step then takes the merged delta plainly (`velocity.py`).

The last bits of a power depend on the machine's C library. So the sealer computes S and m, and the
seal carries both as float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from mend_optim.codecs.packing import RAW, raw, view
from mend_optim.errors import PeerError
from mend_optim.protocol.messages import Offer, Packet

#: The largest S: its sums over many rounds stay finite in float32.
MOST = 2.0**64
#: The size of the section, in bytes.
RATE_NBYTES = 8


class RoundRate(NamedTuple):
    """S and m of a round."""

    rate: float
    decay: float


def round_rate(
    offers: Sequence[Offer], w: Sequence[float], momentum: float, period: int
) -> RoundRate:
    """S and m.

    Args:
        offers: the members' offers.
        w: their weights.
        momentum: μ.
        period: H.
    """
    members = list(zip(w, offers, strict=True))
    steps = sum(weight * offer.steps for weight, offer in members)
    rate = sum(weight * offer.rate for weight, offer in members)
    if any(offer.steps and any(offer.again) for offer in offers):
        rate = 0.0
    return RoundRate(min(rate, MOST), momentum ** (steps / period))


def rate_packet(found: RoundRate) -> Packet:
    """S and m on the wire: two float32."""
    return raw(torch.tensor(found, dtype=torch.float32))


def read_rate(packet: Packet) -> RoundRate:
    """S and m of a received packet. Raises `PeerError` unless they are within their bounds."""
    rate, decay = _numbers(packet, "Rate of the round", 2)
    if not 0 <= rate <= MOST:
        raise PeerError(f"Rate of the round is {rate}; it must be in [0, {MOST:g}]")
    if not 0 <= decay <= 1:
        raise PeerError(f"Decay of the velocity is {decay}; it must be in [0, 1]")
    return RoundRate(rate, decay)


def read_sum(packet: Packet) -> float:
    """A received sum of rates. Raises `PeerError` unless it is finite and at least 0."""
    (rate,) = _numbers(packet, "Rate of the velocity", 1)
    if not 0 <= rate < float("inf"):
        raise PeerError(f"Rate of the velocity is {rate}; it must be finite and >= 0")
    return rate


def _numbers(packet: Packet, what: str, count: int) -> list[float]:
    """The float32 numbers in a packet. Raises `PeerError` if there are not so many."""
    if (packet.codec, packet.numel, packet.nbytes) != (RAW, count, 4 * count):
        raise PeerError(f"{what} has {packet.nbytes} bytes; it must be {count} float32")
    return [float(number) for number in view(packet.data, torch.float32)]
