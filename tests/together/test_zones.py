"""Zones: offers go through a relay, and seals come back through it. Nothing else changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from mend_optim import Int8, MendOptimizer, MomentSchedule
from mend_optim.engine.adoption import Adopter
from mend_optim.engine.engine import Engine
from mend_optim.engine.sealer import Sealer
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Offer, Seal, moment_names
from mend_optim.worker.moment_means import LATEST
from tests.support.checkpoints import anchors
from tests.support.learners import (
    LOCKSTEP,
    TIMING,
    cluster,
    descent,
    drive,
    same,
    settle,
    until,
    wave,
    weights,
)

EAST_WEST = ("east", "east", "east", "west", "west", "west")
FLAT = ("",) * len(EAST_WEST)
STEPS = 12
#: A relay that is suspected relays nothing, and a busy machine must not make it a suspect.
SLOW_BEATS = replace(TIMING, beat_s=2.0)


class Traffic:
    """The seals that learners take, by receiver and sender; and by author, the offers that are
    passed on to a sealer, or reach it in a joint one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seals: Counter[tuple[str, str]] = Counter()
        self.passed: Counter[str] = Counter()
        self.joined: Counter[str] = Counter()
        self.joined_moments = 0
        take_seal, passed_on, on_offer = Adopter.take_seal, Engine.passed_on, Sealer.on_offer

        def taken(adopter: Adopter, now: float, seal: Seal) -> None:
            self.seals[adopter.state.me.name, seal.sender.name] += 1
            take_seal(adopter, now, seal)

        def passed(engine: Engine, now: float, offer: Offer, by: PeerId) -> None:
            self.passed[offer.peer.name] += 1
            passed_on(engine, now, offer, by)

        def offered(sealer: Sealer, now: float, offer: Offer) -> None:
            self.joined.update(other.peer.name for other in offer.others)
            self.joined_moments += len(moment_names(offer.sections)) * bool(offer.others)
            on_offer(sealer, now, offer)

        monkeypatch.setattr(Sealer, "on_offer", offered)
        monkeypatch.setattr(Adopter, "take_seal", taken)
        monkeypatch.setattr(Engine, "passed_on", passed)


def adam() -> Optimizer:
    return AdamW(weights(0.0, 0.0), lr=0.1)


def trained(
    zones: tuple[str, ...],
    inner: Callable[[], Optimizer] = lambda: descent(0.0, 0.0),
    **options: Any,
) -> list[Tensor]:
    """The anchor of learners in these zones after a few rounds in lockstep, and the last means of
    their moments."""
    each = [{"zone": zone} for zone in zones if zone]
    inners = (inner() for _ in zones)
    with cluster(*inners, each=each, timing=SLOW_BEATS, **LOCKSTEP, **options) as made:
        for optimizer in made:  # all know by now who is in which zone
            beats = optimizer._learner.engine.state.beats  # type: ignore[union-attr]
            until(optimizer, lambda b=beats: all(beat.zone or not each for beat in b()))
        drive(made, STEPS, wave)
        settle(made)
        common = held(made[0])
        assert all(same(held(optimizer), common) for optimizer in made)
        assert sum(optimizer.status().superseded_tokens for optimizer in made) == 0
        assert {optimizer.status().fragments[0].tokens for optimizer in made} == {6 * STEPS}
        return common


def held(optimizer: MendOptimizer) -> list[Tensor]:
    """The anchor, and the last means of moments."""
    (fragment,) = optimizer.state_dict()["mend"]["fragments"]
    means = sorted(name for name in fragment["tensors"] if name.startswith(LATEST))
    return [*anchors(optimizer), *(fragment["tensors"][name] for name in means)]


def test_moments_of_a_zone_are_averaged_as_without_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    """They come to the sealer in one packet, and all learners hold one mean, to the bit."""
    moments = MomentSchedule(first=1, second=2)
    flat = trained(FLAT, adam, moments=moments)
    traffic = Traffic(monkeypatch)
    zoned = trained(EAST_WEST, adam, moments=moments)
    assert len(zoned) == len(flat) == 4
    for one, other in zip(zoned, flat, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert traffic.joined_moments > 0


@pytest.mark.parametrize("codec", ["none", Int8(back="exact")])
def test_a_run_with_zones_is_the_run_without(codec: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, or up to the rounding of a mean of means where the relay joins the offers."""
    flat = trained(FLAT, codec=codec)
    traffic = Traffic(monkeypatch)
    zoned = trained(EAST_WEST, codec=codec)
    joins = codec == "none"
    for one, other in zip(zoned, flat, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5 * joins, atol=1e-5 * joins)
    names = "abcdef"
    zone = dict(zip(names, EAST_WEST, strict=True))
    far = {pair: n for pair, n in traffic.seals.items() if zone[pair[0]] != zone[pair[1]]}
    near = {pair: n for pair, n in traffic.seals.items() if zone[pair[0]] == zone[pair[1]]}
    assert sum(near.values()) > 2 * sum(far.values())
    assert len({to for to, _ in far}) == 1, "one relay takes the seals of the other zone"
    (relay,) = {to for to, _ in far}
    neighbours = {name for name in names if zone[name] == zone[relay]} - {relay}
    assert set(traffic.joined if joins else traffic.passed) == neighbours
