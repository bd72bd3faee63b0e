"""One fragment's moments on their way (DES-LOC, arXiv 2505.22549): what this learner read of its
own, what a round averaged, and what a newcomer is to begin with.

A member's moments travel as further sections of its offer, the mean as further sections of the
seal. The mean is over the members that sent theirs, and only they are corrected by it, each by the
difference to what it sent: so the mean over the learners is the same after as before."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from mend_optim.codecs.buffers import Buffers
from mend_optim.engine.moment_schedule import Moment
from mend_optim.errors import PeerError
from mend_optim.model.layout import Fragment
from mend_optim.protocol.messages import MOMENT_PREFIX, Offer, Packet, Sections, moment_names
from mend_optim.worker.correction import MomentCorrection, Reading
from mend_optim.worker.moment_packet import average, check_moment, decode_moment, encode_moment

# how a checkpoint names what is here
OWN, LATEST, MEAN, NEWCOMER = "own ", "latest ", "mean ", "newcomer "


class MomentMeans:
    """One thread at a time. `exact`: moments travel as float32, else rounded to bfloat16."""

    def __init__(
        self, moments: Sequence[Moment], exact: bool, fragment: Fragment, buffers: Buffers
    ) -> None:
        self.moments = {moment.name: moment for moment in moments}
        self.exact, self.fragment, self.buffers = exact, fragment, buffers
        self.own: dict[str, Reading] = {}  # in the pending offer
        self.latest: dict[str, Packet] = {}  # what rounds averaged last

    def offer(self, readings: Mapping[str, Reading]) -> tuple[dict[str, Packet], str]:
        """Sections for an offer; what they say is kept until the offer is merged. And what is left
        out, for it is not finite: that is no reason to keep the rest back."""
        sections, wrong = dict[str, Packet](), []
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
        """The same sections for an offer that came with a checkpoint."""
        return {
            MOMENT_PREFIX + name: self._encode(name, reading) for name, reading in self.own.items()
        }

    def check(self, sections: Sections) -> None:
        """Raise `PeerError` unless the moments that we know are as they must be."""
        for name in self._known(sections):
            check_moment(self.moments[name], sections[MOMENT_PREFIX + name], self.fragment.shapes)

    def average(self, offers: Sequence[Offer], due: Collection[str]) -> dict[str, Packet]:
        """Sections for a seal: the mean of each moment that is due, of those that sent it; nothing
        to average, no section."""
        sections = {}
        for name in sorted(set(due) & set(self.moments)):
            packets = [
                o.sections[MOMENT_PREFIX + name]
                for o in offers
                if o.steps and MOMENT_PREFIX + name in o.sections
            ]
            if packets:
                moment, mean = self.moments[name], self._scratch()
                updates = average(moment, packets, self.fragment.shapes, mean)
                sections[MOMENT_PREFIX + name] = self._encode(name, Reading(mean, updates))
        return sections

    def merged(self, sections: Sections, merged_own_offer: bool) -> tuple[MomentCorrection, ...]:
        """A seal with these sections was taken; `merged_own_offer`: our offer is in it, with what
        we sent."""
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
        values, (own, updates) = self._scratch(), self.own[name]
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
        """A whole anchor came with these sections; a newcomer takes them for its own.
        `merged_own_offer`: our offer is in it; and in the means of the moments that are `due`,
        which correct ours as the seal would have."""
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
        """Alone, this learner's own are everybody's."""
        sections, _ = self.offer(readings)
        self.own, self.latest = (
            {},
            {name.removeprefix(MOMENT_PREFIX): packet for name, packet in sections.items()},
        )

    def export(self) -> dict[str, Packet]:
        """Sections for a newcomer."""
        return {MOMENT_PREFIX + name: packet for name, packet in sorted(self.latest.items())}

    def drop(self) -> None:
        """The pending offer is given up."""
        self.own = {}

    def _keep(self, sections: Sections) -> None:
        for name in self._known(sections):
            packet = sections[MOMENT_PREFIX + name]
            scratch = self.buffers.take_bytes(packet.nbytes)  # else the whole message would stay
            scratch[:] = packet.data.cast("B")
            self.latest[name] = Packet(packet.codec, packet.numel, scratch)

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
        return Reading(
            values,
            decode_moment(self.moments[name], self.latest[name], self.fragment.shapes, values),
        )

    def _scratch(self) -> Tensor:
        return self.buffers.take(self.fragment.numel)

    # ── checkpoints ───────────────────────────────────────────────────────────────────────────────

    def save(self) -> dict[str, Tensor]:
        """All that there is, as flat float32 tensors: values, then updates."""
        own = {OWN + name: flat(reading) for name, reading in self.own.items()}
        return own | {LATEST + name: flat(self._decode(name)) for name in self.latest}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse; what belongs to moments that are none any more is left out."""
        for name in self.moments:
            if OWN + name in tensors:
                self.own[name] = self._reading(tensors[OWN + name])
            if LATEST + name in tensors:
                self.latest[name] = self._encode(name, self._reading(tensors[LATEST + name]))

    def _reading(self, tensor: Tensor) -> Reading:
        return unflat(tensor, self.fragment.numel)


def flat(reading: Reading) -> Tensor:
    """As one tensor. Updates above 2²⁴ are rounded, which no decay can tell."""
    return torch.cat((reading.values, torch.tensor(reading.updates, dtype=torch.float32)))


def unflat(tensor: Tensor, numel: int) -> Reading:
    """The inverse, with copies."""
    return Reading(tensor[:numel].clone(), tuple(map(int, tensor[numel:].tolist())))
