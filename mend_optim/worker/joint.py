"""Joint offers: the relay of a zone merges the offers of its neighbours with its own. So one packet
crosses to a sealer in another zone, instead of one for each learner.

    Δ_J = Σ rᵢ Δᵢ        rᵢ = wᵢ / Σ_J w, by the weights that the run gives to these members

A linear merge gives Δ_J the weight Σ_J w, and so has the sum that it would have of the members one
by one, up to rounding. The guard and the norm-preserving mean need each member's length, too. So a
joint offer tells ‖Δᵢ‖ of every tensor, in the order of its members. That is the relay's word. But a
mean is no longer than the longest of its members, so a relay cannot hide a large delta in it.

Moments are averaged over the members that have them, each counts once, and not all may have sent
one. So a joint offer has one mean of each moment, and tells for each tensor of how many members it
is (`moment_means.py`)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from mend_optim.codecs.buffers import Buffers
from mend_optim.codecs.packing import RAW, placed, raw, view
from mend_optim.codecs.registry import decoded
from mend_optim.errors import PeerError
from mend_optim.model.layout import Fragment
from mend_optim.protocol.messages import (
    COUNTS,
    NORMS,
    Offer,
    Packet,
    Sections,
    moment_names,
    section,
)
from mend_optim.protocol.peer_limits import OTHERS_LIMIT
from mend_optim.worker import merge
from mend_optim.worker.measures import Measures

#: Relative slack of a length, which travels as float32, and of a mean that is rounded.
ROUNDING = 1e-3

#: ‖Δᵢ‖ of every tensor of one member.
Norms = list[float]
#: For each tensor, how many members have a moment of it.
Counts = tuple[int, ...]


class Held:
    """The packets among the members of a round, and the members that each of them holds."""

    def __init__(self, offers: Sequence[Offer]) -> None:
        index = {offer.peer: i for i, offer in enumerate(offers) if offer.steps}
        #: By the index of the offer that has it, the indices of its members: that offer, and the
        #: others of a joint one, in their order.
        self.packets = {
            i: [i, *(index[other.peer] for other in offers[i].others)]
            for i, offer in enumerate(offers)
            if offer.steps and offer.carrier is None
        }
        #: Whether any is of several members.
        self.joint = any(len(members) > 1 for members in self.packets.values())

    def shares(self, weights: Sequence[float]) -> list[float]:
        """By index of an offer, the weight of its packet: that of all its members."""
        shares = list(weights)
        for i, members in self.packets.items():
            shares[i] = math.fsum(weights[member] for member in members)
        return shares


def combined(
    offers: Sequence[Offer], weights: Sequence[float], fragment: Fragment, buffers: Buffers
) -> Sections:
    """The sections of the joint offer of these offers.

    Args:
        offers: the members, the relay's own first.
        weights: one for each; they sum to 1.
        fragment: the fragment.
        buffers: memory for the mean.

    Raises:
        PeerError: the mean is not finite, or an offer has no delta.
    """
    packets = [section(offer.sections, "delta") for offer in offers]
    found = Measures(len(packets), fragment.offsets)
    mean = merge.weighted_mean_by_parts(
        (decoded(packet, fragment.shapes) for packet in packets),
        weights,
        buffers.take(fragment.numel),
        found.add,
    )
    if not math.isfinite(found.most):
        raise PeerError("Joint delta is not finite")
    return {"delta": raw(mean), NORMS: _numbers([each.norms() for each in found.members])}


def norms_nbytes(tensors: int, learners: int) -> int:
    """The largest section of norms, in bytes, in a run of so many learners."""
    return 4 * tensors * min(learners, 1 + OTHERS_LIMIT)


def counts_nbytes(tensors: int, moments: int) -> int:
    """The largest section of counts, in bytes."""
    return 4 * tensors * moments


def counts_packet(counts: Sequence[Counts]) -> Packet:
    """The section of counts of moments, which are in the order of their names."""
    return _numbers(counts)


def _numbers(rows: Sequence[Sequence[float]]) -> Packet:
    return raw(torch.tensor(rows, dtype=torch.float32).flatten())


def read_norms(offer: Offer, tensors: int) -> list[Norms]:
    """The lengths of its members' deltas that a joint offer tells, in their order.

    Raises:
        PeerError: there is not one finite length for each tensor of each member.
    """
    members = 1 + len(offer.others)
    values = _read(offer, NORMS, members * tensors)
    if not all(math.isfinite(value) and value >= 0 for value in values):
        raise PeerError("Norms of a joint offer are not all finite and >= 0")
    return [values[i * tensors : (i + 1) * tensors] for i in range(members)]


def read_counts(offer: Offer, tensors: int) -> dict[str, Counts]:
    """By the name of each moment in a joint offer, how many of its members have each tensor's.

    Raises:
        PeerError: there is not one whole number of members for each tensor of each moment.
    """
    names, members = sorted(moment_names(offer.sections)), 1 + len(offer.others)
    if not names:
        return {}
    values = _read(offer, COUNTS, len(names) * tensors)
    if not all(value.is_integer() and 0 <= value <= members for value in values):
        raise PeerError(f"Counts of a joint offer are not all whole numbers from 0 to {members}")
    counts = tuple(map(int, values))
    return {name: counts[i * tensors : (i + 1) * tensors] for i, name in enumerate(names)}


def _read(offer: Offer, name: str, numel: int) -> list[float]:
    """The numbers in a section of a joint offer. Raises `PeerError`."""
    packet = section(offer.sections, name)
    if packet.codec != RAW or packet.nbytes != 4 * numel:
        raise PeerError(f"{name.capitalize()} of a joint offer are not {numel} float32")
    numbers: list[float] = view(packet.data, torch.float32).tolist()
    return numbers


def check_joint(offer: Offer, fragment: Fragment) -> None:
    """Raise `PeerError` if the delta of a joint offer is longer than the longest of its members."""
    told = read_norms(offer, len(fragment.shapes))
    found = Measures(0, fragment.offsets)
    for here, part in placed(decoded(offer.sections["delta"], fragment.shapes)):
        found.add(0, here, part)
    for k, length in enumerate(found.mean.norms()):
        longest = max(norms[k] for norms in told)
        if not length <= longest * (1 + ROUNDING):
            raise PeerError(
                f"Joint delta of tensor {k} has norm {length:.6g};"
                f" the longest of its members has {longest:.6g}"
            )
