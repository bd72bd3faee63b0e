"""The outer optimizer's memory of one fragment: the velocity b and, for `Nesterov`, the decayed sum
s of the inner learning rates in it. Both belong to the anchor: they move with every seal, and
travel with a whole anchor. Without momentum there is neither.

    b ← m b + Δ̄
    s ← m s + S
    Θ ← Θ - η (Δ̄ + m b),    η = g S / (S + m s)

b is what s is the rate of. So on a straight path, where Δ̄ = S d, it is b = s d, and every step is
exactly g Δ̄. A round with S = 0 has no place in that average: Θ ← Θ - g Δ̄, and b and s stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mend_optim.codecs.packing import MOST
from mend_optim.codecs.registry import check_packet, decode_packet
from mend_optim.errors import PeerError, unreachable
from mend_optim.protocol.messages import RATE, Offer, Sections, section
from mend_optim.worker.outer import (
    DiLoCoNesterov,
    Nesterov,
    Outer,
    Parts,
    Step,
    largest,
    outer_step,
)
from mend_optim.worker.round_rate import RoundRate, rate_packet, read_rate, read_sum, round_rate

#: The names of b and s, in whole anchors and in checkpoints.
VELOCITY, VELOCITY_RATE = "velocity", "velocity_rate"


class Velocity:
    """b and s of one fragment.

    Args:
        outer: the outer optimizer.
        like: a tensor of the fragment's size.
    """

    def __init__(self, outer: Outer, like: Tensor) -> None:
        self.outer = outer
        #: b; None without momentum.
        self.b = torch.zeros_like(like) if outer.momentum else None
        #: s; 0 unless the outer optimizer counts rates. Invariant: a float32, so that it travels
        #: as it is.
        self.s = 0.0
        #: No element of the anchor is greater in magnitude; None: not known.
        self._anchor_reach: float | None = None

    # ── a round ───────────────────────────────────────────────────────────────────────────────────

    def rates(self, offers: Sequence[Offer], weights: Sequence[float], period: int) -> Sections:
        """The section that a seal of these offers carries for the outer step."""
        if not self.outer.counts_rates:
            return {}
        found = round_rate(offers, weights, self.outer.momentum, period)
        return {RATE: rate_packet(found)}

    def round_rate(self, sections: Sections) -> RoundRate | None:
        """S and m of a received seal; None if they are not needed.

        Raises:
            PeerError: they are missing, damaged, or out of their bounds.
        """
        return read_rate(section(sections, RATE)) if self.outer.counts_rates else None

    def move(
        self,
        rate: RoundRate | None,
        anchor: Tensor,
        merged: Parts,
        *,
        own: Tensor | None,
        correction: Tensor,
        reach: float | None = None,
    ) -> None:
        """Take the outer step of a round, whose `reach` may have been found before. The other
        arguments are those of `outer_step`."""
        step, b, self.s = self._step(rate)
        outer_step(step, anchor, b, merged, own=own, correction=correction)
        self._anchor_reach = reach

    def reach(self, rate: RoundRate | None, anchor: Tensor, length: float) -> float:
        """How far from 0 an element of the anchor may be after the step by a merged delta, none of
        whose elements is greater than `length`. Raises `PeerError` if that, or an element of b, may
        exceed `MOST`."""
        step, b, _ = self._step(rate)
        velocity = 0.0 if b is None else step.momentum * largest(b) + length
        further = step.lr * (length + step.momentum * velocity)
        # A bound that grew from round to round is enough, as long as it is far from `MOST`.
        if self._anchor_reach is None or not self._anchor_reach + further <= MOST:
            self._anchor_reach = largest(anchor)
        reach = self._anchor_reach + further
        # A NaN is no less than anything.
        if not (reach <= MOST and velocity <= MOST):
            raise PeerError("the anchor that the merged delta leads to would not be finite")
        return reach

    def _step(self, rate: RoundRate | None) -> tuple[Step, Tensor | None, float]:
        """The factors of the next step, the velocity if it takes part, and s after it."""
        outer = self.outer
        match outer:
            case DiLoCoNesterov():
                return Step(outer.lr, outer.momentum), self.b, self.s
            case Nesterov():
                if rate is None or rate.rate == 0:
                    return Step(outer.gain, 0.0), None, self.s
                s = _float32(rate.decay * self.s + rate.rate)
                lr = outer.gain * rate.rate / (rate.rate + rate.decay * s)
                return Step(lr, rate.decay), self.b, s
            case _:
                unreachable(outer)

    # ── whole anchors and checkpoints ─────────────────────────────────────────────────────────────

    def held(self) -> dict[str, Tensor]:
        """The tensors of a whole anchor, by name."""
        if self.b is None:
            return {}
        if not self.outer.counts_rates:
            return {VELOCITY: self.b}
        return {VELOCITY: self.b, VELOCITY_RATE: torch.tensor([self.s], dtype=torch.float32)}

    def check(self, sections: Sections, shapes: Sequence[tuple[int, ...]]) -> None:
        """Raise `PeerError` unless a received anchor has all of it."""
        if self.b is not None:
            check_packet(section(sections, VELOCITY), shapes)
        if self.outer.counts_rates:
            read_sum(section(sections, VELOCITY_RATE))

    def install(self, sections: Sections, shapes: Sequence[tuple[int, ...]]) -> None:
        """Take it from an anchor that was checked."""
        self._anchor_reach = None
        if self.b is not None:
            self.b.copy_(decode_packet(sections[VELOCITY], shapes))
        if self.outer.counts_rates:
            self.s = read_sum(sections[VELOCITY_RATE])

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take it from a checkpoint. One that was saved with another outer optimizer may lack b, or
        s: without s, nothing says how far b went, and both begin anew."""
        self.reset()
        if self.b is None or VELOCITY not in tensors:
            return
        if self.outer.counts_rates:
            if VELOCITY_RATE not in tensors:
                return
            self.s = float(tensors[VELOCITY_RATE])
        self.b.copy_(tensors[VELOCITY])

    def reset(self) -> None:
        """Begin anew."""
        self.s = 0.0
        self._anchor_reach = None
        if self.b is not None:
            self.b.zero_()


def _float32(number: float) -> float:
    return float(torch.tensor(number, dtype=torch.float32))
