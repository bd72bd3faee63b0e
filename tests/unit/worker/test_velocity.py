from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mend_optim.codecs.packing import MOST, raw
from mend_optim.errors import PeerError
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import RATE, Offer, Packet
from mend_optim.worker.outer import DiLoCoNesterov, Nesterov, Outer
from mend_optim.worker.round_rate import RoundRate, rate_packet, read_rate
from mend_optim.worker.velocity import VELOCITY, VELOCITY_RATE, Velocity
from tests import reference
from tests.support.engines import BASE, GENESIS
from tests.support.strategies import vectors

gains = st.sampled_from([0.5, 1.0, 1.7])
momenta = st.floats(0.05, 0.99)
policies = st.builds(lambda g, m: Nesterov(gain=g, momentum=m), gains, momenta)
STEADY = Nesterov(gain=0.8, momentum=0.9)


@st.composite
def rounds(draw: st.DrawFn, count: int, least: float = 1e-6) -> list[tuple[int, float]]:
    """(steps, S) of each round: from warm-up to decay, over six orders of magnitude."""
    sizes = st.tuples(st.integers(1, 300), st.floats(least, 1.0))
    return draw(st.lists(sizes, min_size=count, max_size=count))


def rate_of(policy: Nesterov, steps: int, rate: float, period: int) -> RoundRate:
    """S and m as they come over the wire."""
    _, decay = reference.round_rate([(1.0, steps, rate)], policy.momentum, period)
    return read_rate(rate_packet(RoundRate(rate, decay)))


def moved(
    velocity: Velocity, anchor: Tensor, merged: Tensor, rate: RoundRate | None
) -> tuple[Tensor, Tensor]:
    """The new anchor and the correction of an unmerged learner."""
    new, correction = anchor.clone(), torch.full_like(anchor, torch.nan)
    velocity.move(rate, new, merged, own=None, correction=correction)
    return new, correction


# ── the outer step ────────────────────────────────────────────────────────────────────────────────


@given(policies, vectors(1, 3), rounds(12), st.integers(1, 300))
def test_on_a_straight_path_every_step_is_the_gain_times_the_delta(
    policy: Nesterov, drawn: list[Tensor], work: list[tuple[int, float]], period: int
) -> None:
    """The first one, too, and whatever the steps and the rates of a round, and the period."""
    (direction,) = drawn
    velocity = Velocity(policy, direction)
    for steps, rate in work:
        merged = rate * direction
        found = moved(velocity, torch.zeros(3), merged, rate_of(policy, steps, rate, period))
        for tensor in found:
            torch.testing.assert_close(tensor, -policy.gain * merged, rtol=1e-5, atol=1e-30)


@given(policies, vectors(9, 3), rounds(8, least=0.0), st.integers(1, 300))
def test_it_is_the_textbooks_loop(
    policy: Nesterov, drawn: list[Tensor], work: list[tuple[int, float]], period: int
) -> None:
    anchor, *deltas = drawn
    velocity = Velocity(policy, anchor)
    told = [rate_of(policy, steps, rate, period) for steps, rate in work]
    twin = reference.gain_normalised(
        policy.gain, anchor.tolist(), [d.tolist() for d in deltas], told
    )
    for merged, rate, expected in zip(deltas, told, twin, strict=True):
        anchor, _ = moved(velocity, anchor, merged, rate)
        assert anchor.tolist() == pytest.approx(expected, rel=1e-4, abs=0.05)


def test_three_rounds_by_hand() -> None:
    """μ = 0.5, H = 1: η is 2/3 of g, then g · 4 / (4 + 0.5 · 4.5), then …"""
    velocity, anchor = Velocity(Nesterov(momentum=0.5), torch.zeros(1)), torch.zeros(1)
    found = []
    for merged, rate in ((1.0, 1.0), (0.0, 4.0), (-1.0, 1.0)):
        anchor, _ = moved(velocity, anchor, torch.tensor([merged]), RoundRate(rate, 0.5))
        found.append(anchor.item())
    # b: 1, 0.5, -0.75; s: 1, 4.5, 3.25
    steps = [1 / 1.5 * 1.5, 4 / 6.25 * 0.25, 1 / 2.625 * -1.375]
    assert found == pytest.approx([-steps[0], -sum(steps[:2]), -sum(steps)])
    assert (velocity.b is not None and velocity.b.item(), velocity.s) == (-0.75, 3.25)


@given(gains, vectors(2, 4))
def test_without_momentum_it_is_plain_averaging_to_the_bit(
    gain: float, drawn: list[Tensor]
) -> None:
    anchor, merged = drawn
    velocity = Velocity(Nesterov(gain=gain), anchor)
    found, _ = moved(velocity, anchor, merged, None)
    assert torch.equal(found, anchor - (merged if gain == 1 else merged * gain))
    assert (velocity.b, velocity.held(), velocity.rates([], [], 1)) == (None, {}, {})


@given(policies, vectors(3, 3))
def test_a_round_without_rates_is_averaged_and_leaves_no_trace(
    policy: Nesterov, drawn: list[Tensor]
) -> None:
    anchor, first, merged = drawn
    velocity = Velocity(policy, anchor)
    moved(velocity, anchor, first, RoundRate(0.5, 0.25))
    before = {name: tensor.clone() for name, tensor in velocity.held().items()}
    found, _ = moved(velocity, anchor, merged, RoundRate(0.0, 0.25))
    assert torch.equal(found, anchor - (merged if policy.gain == 1 else merged * policy.gain))
    assert all(torch.equal(tensor, before[name]) for name, tensor in velocity.held().items())


def test_a_warm_up_from_zero_stalls_nothing() -> None:
    """A first round at the learning rate 0, then rates that grow from one millionth."""
    velocity, direction = Velocity(Nesterov(momentum=0.9), torch.zeros(1)), torch.ones(1)
    for rate in (0.0, 1e-6, 2e-6, 4e-6):
        found, _ = moved(velocity, torch.zeros(1), rate * direction, RoundRate(rate, 0.9))
        assert found.item() == pytest.approx(-rate)


def test_steady_rounds_turn_as_nesterov_does() -> None:
    """A delta across the path counts 1 - m² of a round at once, in the long run, and 1 in all."""
    m, velocity, anchor = 0.5, Velocity(Nesterov(momentum=0.5), torch.zeros(1)), torch.zeros(1)
    found = []
    for i in range(90):
        before = anchor
        anchor, _ = moved(velocity, anchor, torch.tensor([float(i == 60)]), RoundRate(0.1, m))
        found.append((before - anchor).item())
    assert found[60] == pytest.approx(1 - m**2)
    assert sum(found) == pytest.approx(1.0)


# ── the section of a seal ─────────────────────────────────────────────────────────────────────────


def test_a_seal_says_what_its_offers_did() -> None:
    offers = [
        Offer(
            peer=PeerId(name, 1),
            fragment=0,
            seq=1,
            tokens=1,
            steps=steps,
            rate=rate,
            genesis=GENESIS,
            key=BASE.key,
            due=True,
        )
        for name, steps, rate in (("a", 4, 1.0), ("b", 12, 3.0))
    ]
    velocity = Velocity(Nesterov(momentum=0.25), torch.zeros(1))
    sections = velocity.rates(offers, [0.5, 0.5], 16)
    assert set(sections) == {RATE}
    assert velocity.round_rate(sections) == (2.0, 0.5)


@pytest.mark.parametrize("policy", [Nesterov(), Nesterov(gain=2.0), DiLoCoNesterov()])
def test_other_policies_send_and_need_nothing(policy: Outer) -> None:
    velocity = Velocity(policy, torch.zeros(1))
    assert velocity.rates([], [], 1) == {}
    assert velocity.round_rate({}) is None
    assert VELOCITY_RATE not in velocity.held()


def test_a_seal_without_rates_is_refused() -> None:
    with pytest.raises(PeerError, match="section 'rate' is missing"):
        Velocity(STEADY, torch.zeros(1)).round_rate({})


# ── whole anchors and checkpoints ─────────────────────────────────────────────────────────────────


def travelled(policy: Outer = STEADY) -> Velocity:
    velocity = Velocity(policy, torch.zeros(2))
    for rate in (0.1, 0.3, 0.7):
        moved(velocity, torch.zeros(2), torch.tensor([rate, 0.3]), RoundRate(rate, 0.9))
    return velocity


def sections_of(velocity: Velocity) -> dict[str, Packet]:
    return {name: raw(tensor) for name, tensor in velocity.held().items()}


def same(a: Velocity, b: Velocity) -> bool:
    assert a.b is not None
    assert b.b is not None
    return torch.equal(a.b, b.b) and a.s == b.s


def test_a_newcomer_gets_all_of_it() -> None:
    source, joiner = travelled(), Velocity(STEADY, torch.zeros(2))
    joiner.check(sections_of(source), [(2,)])
    joiner.install(sections_of(source), [(2,)])
    assert same(source, joiner)
    assert source.s > 0


@pytest.mark.parametrize("name", [VELOCITY, VELOCITY_RATE])
def test_an_anchor_that_lacks_it_is_refused(name: str) -> None:
    sections = sections_of(travelled())
    del sections[name]
    with pytest.raises(PeerError, match=f"section '{name}' is missing"):
        Velocity(STEADY, torch.zeros(2)).check(sections, [(2,)])


@pytest.mark.parametrize("policy", [STEADY, DiLoCoNesterov()])
def test_a_checkpoint_brings_it_back(policy: Any) -> None:
    saved, found = travelled(policy), Velocity(policy, torch.zeros(2))
    found.load(saved.held())
    assert same(saved, found)


def test_a_velocity_of_unknown_rate_begins_anew() -> None:
    """As in a checkpoint of `DiLoCoNesterov`."""
    found = travelled()
    found.load(travelled(DiLoCoNesterov()).held())
    assert same(found, Velocity(STEADY, torch.zeros(2)))


def test_diloco_goes_on_from_any_velocity() -> None:
    saved, found = travelled(), Velocity(DiLoCoNesterov(), torch.zeros(2))
    found.load(saved.held())
    assert saved.b is not None
    assert found.b is not None
    assert torch.equal(found.b, saved.b)
    assert found.s == 0


def test_without_momentum_nothing_is_loaded() -> None:
    found = Velocity(Nesterov(), torch.zeros(2))
    found.load(travelled().held())
    assert found.held() == {}


def test_both_are_reset_together() -> None:
    found = travelled()
    found.reset()
    assert same(found, Velocity(STEADY, torch.zeros(2)))


# ── how far an anchor may be ──────────────────────────────────────────────────────────────────────


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=6))
def test_no_anchor_is_farther_than_its_reach(steps: list[float]) -> None:
    velocity, anchor = Velocity(Nesterov(), torch.zeros(2)), torch.tensor([1.0, -2.0])
    for step in steps:
        merged = torch.tensor([step, step / 2])
        reach = velocity.reach(None, anchor, float(merged.abs().max()))
        velocity.move(
            None, anchor, merged, own=None, correction=torch.empty_like(anchor), reach=reach
        )
        assert float(anchor.abs().max()) <= reach * (1 + 1e-6)


def test_a_bound_that_has_grown_too_far_is_measured_anew() -> None:
    """Large steps to and fro lead nowhere."""
    velocity, anchor = Velocity(Nesterov(), torch.zeros(1)), torch.zeros(1)
    for turn in range(6):
        merged = torch.full((1,), MOST / 2 if turn % 2 else -MOST / 2)
        reach = velocity.reach(None, anchor, MOST / 2)
        velocity.move(
            None, anchor, merged, own=None, correction=torch.empty_like(anchor), reach=reach
        )
    assert anchor.item() == 0


def test_a_bound_grows_with_every_step() -> None:
    velocity, anchor = Velocity(Nesterov(), torch.zeros(1)), torch.zeros(1)
    for _ in range(2):
        merged = torch.full((1,), -MOST / 2)
        reach = velocity.reach(None, anchor, MOST / 2)
        velocity.move(
            None, anchor, merged, own=None, correction=torch.empty_like(anchor), reach=reach
        )
    with pytest.raises(PeerError, match="would not be finite"):
        velocity.reach(None, anchor, MOST / 2)
