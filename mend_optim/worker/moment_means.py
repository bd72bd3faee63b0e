"""One fragment's moments in rounds (DES-LOC, arXiv 2505.22549): the readings from this learner's
inner optimizer, the means of rounds, and the moments that a newcomer starts with.

A member's moments travel as further sections of its offer, and the mean as further sections of the
seal. The mean is over the members that sent theirs. It corrects only those members, each by the
difference to the moments that it sent. So the mean over the learners is the same after as before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from mend_optim.codecs.buffers import Buffers
from mend_optim.engine.moment_schedule import Moment
from mend_optim.errors import PeerError
from mend_optim.model.layout import Fragment
from mend_optim.protocol.messages import (
    COUNTS,
    MOMENT_PREFIX,
    Offer,
    Packet,
    Sections,
    moment_names,
)
from mend_optim.worker.correction import MomentCorrection, Reading
from mend_optim.worker.joint import Counts, counts_packet, read_counts
from mend_optim.worker.moment_packet import (
    average,
    check_moment,
    decode_moment,
    encode_moment,
    tensors_held,
)

# How a checkpoint names the tensors here, followed by the moment's name. Old checkpoints have these
# names, so they must not change.
OWN, LATEST, MEAN, NEWCOMER = "own ", "latest ", "mean ", "newcomer "


class _Mean(NamedTuple):
    """The mean of one moment, and for each tensor, how many members have it."""

    packet: Packet
    members: Counts


class MomentMeans:
    """The moments of one fragment, used by one thread at a time. With `exact` they travel as
    float32, otherwise as bfloat16."""

    def __init__(
        self, moments: Sequence[Moment], exact: bool, fragment: Fragment, buffers: Buffers
    ) -> None:
        self.moments = {moment.name: moment for moment in moments}
        self.exact = exact
        self.fragment = fragment
        self.buffers = buffers
        #: The readings in the pending offer, by the moments' names.
        self.own: dict[str, Reading] = {}
        #: The last mean of each moment.
        self.latest: dict[str, Packet] = {}

    def offer(self, readings: Mapping[str, Reading]) -> tuple[dict[str, Packet], str]:
        """Sections for an offer. Their readings are kept until the offer is merged. Also returns a
        text about moments that are left out because they are not finite; the rest is offered
        without them."""
        sections: dict[str, Packet] = {}
        wrong: list[str] = []
        for name, reading in readings.items():
            try:
                sections[MOMENT_PREFIX + name] = self._encode(name, reading)
            except PeerError as fault:
                wrong.append(str(fault))
        self.own = {
            name: reading for name, reading in readings.items() if MOMENT_PREFIX + name in sections
        }
        return sections, "; ".join(wrong)

    def again(self) -> dict[str, Packet]:
        """The same sections once more, for an offer that came with a checkpoint."""
        return {
            MOMENT_PREFIX + name: self._encode(name, reading) for name, reading in self.own.items()
        }

    def check(self, sections: Sections) -> None:
        """Raise `PeerError` if a known moment in these sections is bad."""
        for name in self._known(sections):
            check_moment(self.moments[name], sections[MOMENT_PREFIX + name], self.fragment.shapes)

    def average(self, offers: Sequence[Offer], due: Collection[str]) -> dict[str, Packet]:
        """Sections for a seal: the mean of each moment that is due, over the members that sent it.
        A moment that no member sent has no section."""
        return {
            MOMENT_PREFIX + name: mean.packet for name, mean in self._means(offers, due).items()
        }

    def joined(self, offers: Sequence[Offer]) -> dict[str, Packet]:
        """Sections for a joint offer of these: the mean of each moment, over the members that sent
        it, and for each tensor of how many members it is. A round averages them as it would average
        the members' own, one by one. None if no member sent a moment."""
        means = self._means(offers, self.moments)
        if not means:
            return {}
        sections = {MOMENT_PREFIX + name: mean.packet for name, mean in means.items()}
        return {**sections, COUNTS: counts_packet([mean.members for mean in means.values()])}

    def check_joint(self, offer: Offer) -> None:
        """Raise `PeerError` if the counts of a joint offer are not those of its checked moments."""
        counts = read_counts(offer, len(self.fragment.shapes))
        for name in self._known(offer.sections):
            packet = offer.sections[MOMENT_PREFIX + name]
            held = tensors_held(self.moments[name], packet, self.fragment.shapes)
            if [count > 0 for count in counts[name]] != held:
                raise PeerError(f"{name}: Counts of a joint offer are not those of its tensors")

    def _means(self, offers: Sequence[Offer], names: Collection[str]) -> dict[str, _Mean]:
        """The means of these moments, by name, in the order of the names."""
        found = {name: self._mean(offers, name) for name in sorted(set(names) & set(self.moments))}
        return {name: mean for name, mean in found.items() if mean is not None}

    def _mean(self, offers: Sequence[Offer], name: str) -> _Mean | None:
        """The mean of a moment over the members that sent it; None if none did."""
        key, shapes = MOMENT_PREFIX + name, self.fragment.shapes
        have = [offer for offer in offers if offer.steps and key in offer.sections]
        if not have:
            return None
        held = [
            read_counts(offer, len(shapes))[name] if offer.others else (1,) * len(shapes)
            for offer in have
        ]
        values = self._scratch()
        packets = [offer.sections[key] for offer in have]
        updates, members = average(self.moments[name], packets, shapes, values, held)
        return _Mean(self._encode(name, Reading(values, updates)), members)

    def merged(self, sections: Sections, merged_own_offer: bool) -> tuple[MomentCorrection, ...]:
        """Take a seal's moments. `merged_own_offer` says whether this learner's offer is in it,
        with the moments that it sent."""
        found = [
            self._corrected(sections, name)
            for name in self._known(sections)
            if merged_own_offer and name in self.own
        ]
        self._keep(sections)
        if merged_own_offer:
            self.own = {}
        return tuple(found)

    def _corrected(self, sections: Sections, name: str) -> MomentCorrection:
        """The difference from what this learner sent to the mean."""
        values = self._scratch()
        own, updates = self.own[name]
        decode_moment(
            self.moments[name], sections[MOMENT_PREFIX + name], self.fragment.shapes, values
        )
        return MomentCorrection(name, values.sub_(own), updates, newcomer=False)

    def anchor_installed(
        self,
        sections: Sections,
        newcomer: bool,
        merged_own_offer: bool = False,
        due: Collection[str] = (),
    ) -> tuple[MomentCorrection, ...]:
        """Take the moments that came with a whole anchor.

        Args:
            sections: the anchor's sections.
            newcomer: whether this learner takes them over as its own.
            merged_own_offer: whether the anchor has merged this learner's offer.
            due: the moments whose mean has this learner's offer in it, and so corrects its own as
                the seal would have.
        """
        sent = set(due) & set(self.own) if merged_own_offer else set()
        found = [self._corrected(sections, name) for name in self._known(sections) if name in sent]
        if newcomer:
            self.latest = {}
        if newcomer or merged_own_offer:
            self.own = {}
        self._keep(sections)
        if not newcomer:
            return tuple(found)
        return tuple(
            MomentCorrection(name, *self._decode(name), newcomer=True)
            for name in sorted(self.latest)
        )

    def founded(self, readings: Mapping[str, Reading]) -> None:
        """Take this learner's own moments as the mean: it is alone."""
        sections, _ = self.offer(readings)
        self.own = {}
        self.latest = {
            name.removeprefix(MOMENT_PREFIX): packet for name, packet in sections.items()
        }

    def export(self) -> dict[str, Packet]:
        """Sections for a newcomer."""
        return {MOMENT_PREFIX + name: packet for name, packet in sorted(self.latest.items())}

    def drop(self) -> None:
        """The pending offer is given up."""
        self.own = {}

    def _keep(self, sections: Sections) -> None:
        """Remember the means in these sections."""
        for name in self._known(sections):
            packet = sections[MOMENT_PREFIX + name]
            # A copy: the packet itself would keep the whole message alive.
            data = self.buffers.take_bytes(packet.nbytes)
            data[:] = packet.data.cast("B")
            self.latest[name] = Packet(packet.codec, packet.numel, data)

    def _known(self, sections: Sections) -> list[str]:
        return sorted(moment_names(sections) & set(self.moments))

    def _encode(self, name: str, reading: Reading) -> Packet:
        return encode_moment(
            self.moments[name],
            *reading,
            self.fragment.shapes,
            exact=self.exact,
            allocate=self.buffers.take_bytes,
        )

    def _decode(self, name: str) -> Reading:
        values = self._scratch()
        packet = self.latest[name]
        updates = decode_moment(self.moments[name], packet, self.fragment.shapes, values)
        return Reading(values, updates)

    def _scratch(self) -> Tensor:
        return self.buffers.take(self.fragment.numel)

    # ── checkpoints ───────────────────────────────────────────────────────────────────────────────

    def save(self) -> dict[str, Tensor]:
        """All moments, by the names they have in a checkpoint, each as `flat` returns it."""
        own = {OWN + name: flat(reading) for name, reading in self.own.items()}
        return own | {LATEST + name: flat(self._decode(name)) for name in self.latest}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take copies of what `save` returned. Names that are no moments any more are ignored, and
        so are means that no round can have made: a newcomer does without."""
        for name in self.moments:
            if OWN + name in tensors:
                self.own[name] = self._reading(tensors[OWN + name])
            if LATEST + name in tensors:
                with suppress(PeerError):
                    self.latest[name] = self._encode(name, self._reading(tensors[LATEST + name]))

    def _reading(self, tensor: Tensor) -> Reading:
        return unflat(tensor, self.fragment.numel)


def flat(reading: Reading) -> Tensor:
    """A reading as one float32 tensor: values, then updates. Updates above 2²⁴ are rounded, which
    changes no decay."""
    return torch.cat((reading.values, torch.tensor(reading.updates, dtype=torch.float32)))


def unflat(tensor: Tensor, numel: int) -> Reading:
    """The reading of `numel` values that `flat` made one tensor; copied."""
    return Reading(tensor[:numel].clone(), tuple(map(int, tensor[numel:].tolist())))
