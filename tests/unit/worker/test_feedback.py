"""Error feedback of every codec: nothing is lost for good, whatever rounds are lost."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mend_optim.codecs.buffers import Buffers
from mend_optim.codecs.powersgd import PowerSGD
from mend_optim.codecs.registry import CODECS, Codec, codec_name, decode_packet
from mend_optim.errors import PeerError
from mend_optim.protocol.messages import Packet
from mend_optim.worker.feedback import Feedback
from tests.support.depth import many

SHAPES = [(24, 20), (30,), (), (8, 3, 2, 2), (0,), (200,)]
NUMEL = 24 * 20 + 30 + 1 + 96 + 200
LOSSY = [*(codec for codec in CODECS.values() if not codec.exact), PowerSGD(rank=1, min_ratio=1)]
each = pytest.mark.parametrize("codec", LOSSY, ids=lambda codec: type(codec).__name__)
SEEDS = st.integers(0, 2**32 - 1)
FATES = st.lists(st.booleans(), min_size=1, max_size=12)


def drawn(generator: torch.Generator) -> Tensor:
    return torch.randn(NUMEL, generator=generator) * torch.rand(NUMEL, generator=generator) ** 4


def read(packet: Packet) -> Tensor:
    return decode_packet(packet, SHAPES).clone()


def left(feedback: Feedback) -> Tensor:
    return torch.zeros(NUMEL) if feedback.residual is None else feedback.residual


@each
@settings(max_examples=many(10, 25))  # of each of 7 codecs
@given(SEEDS, FATES)
def test_merged_decodes_and_the_residual_are_all_that_was_there(
    codec: Codec, seed: int, fates: list[bool]
) -> None:
    generator, feedback = torch.Generator().manual_seed(seed), Feedback(codec, SHAPES, Buffers())
    merged = total = torch.zeros(NUMEL)
    for fate in fates:
        values = drawn(generator)
        packet = feedback.encode(values)
        if fate:
            feedback.commit()
            merged, total = merged + read(packet), total + values
    assert torch.allclose(merged + left(feedback), total, rtol=1e-5, atol=1e-5)


@each
@settings(max_examples=many(10, 25))  # of each of 7 codecs
@given(SEEDS, FATES, st.data())
def test_a_closing_packet_leaves_next_to_nothing_and_what_comes_after_it_is_as_ever(
    codec: Codec, seed: int, fates: list[bool], data: st.DataObject
) -> None:
    """Beside the weights also where the rest stays in them; and the codec remembers what it did."""
    generator, feedback = (
        torch.Generator().manual_seed(seed),
        Feedback(codec, SHAPES, Buffers(), codec.residual_in_weights),
    )
    merged = total = held = torch.zeros(NUMEL)
    for fate in fates:
        values, memory = drawn(generator), feedback.memory
        closing = data.draw(st.booleans())
        packet = feedback.encode(values + held, closing)
        if fate:
            feedback.commit()
            merged, total = merged + read(packet), total + values
            held = (
                torch.zeros(NUMEL)
                if feedback.weights_residual is None
                else feedback.weights_residual
            )
            if closing:
                assert feedback.weights_residual is None
                assert feedback.memory is memory
                assert float(left(feedback).norm()) <= 0.02 * float(total.norm() + held.norm())
    assert torch.allclose(merged + left(feedback) + held, total, rtol=1e-5, atol=1e-4)


@each
@settings(max_examples=many(10, 25))  # of each of 7 codecs
@given(SEEDS)
def test_a_round_that_is_lost_leaves_no_trace(codec: Codec, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    first, lost, again = (drawn(generator) for _ in range(3))
    with_loss, without = Feedback(codec, SHAPES, Buffers()), Feedback(codec, SHAPES, Buffers())
    for feedback in (with_loss, without):
        feedback.encode(first)
        feedback.commit()
    with_loss.encode(lost)
    assert bytes(with_loss.encode(again).data) == bytes(without.encode(again).data)
    for feedback in (with_loss, without):
        feedback.commit()
    assert torch.equal(left(with_loss), left(without))
    assert (with_loss.memory is None) == (without.memory is None)
    assert with_loss.memory is None or torch.equal(with_loss.memory, without.memory)


@each
def test_the_residual_stays_bounded(codec: Codec) -> None:
    """Hundreds of rounds, three in ten of them lost: the content of a lost round is offered again,
    as progress is."""
    rounds = many(300, 600)
    generator, feedback = torch.Generator().manual_seed(7), Feedback(codec, SHAPES, Buffers())
    fates = torch.rand(rounds, generator=generator) < 0.7
    waiting, sizes = torch.zeros(NUMEL), []
    for fate in fates.tolist():
        waiting = waiting + drawn(generator) * 0.1
        feedback.encode(waiting)
        if fate:
            feedback.commit()
            waiting = torch.zeros(NUMEL)
        sizes.append(float(left(feedback).norm()))
    early, late = max(sizes[rounds // 6 : rounds * 5 // 12]), max(sizes[rounds * 3 // 4 :])
    assert 0 < late <= 1.5 * early


@each
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2.0**127])
def test_what_is_not_finite_is_refused_and_changes_nothing(codec: Codec, value: float) -> None:
    feedback = Feedback(codec, SHAPES, Buffers())
    feedback.encode(drawn(torch.Generator().manual_seed(1)))
    feedback.commit()
    before = left(feedback).clone()
    bad = torch.zeros(NUMEL)
    bad[17] = value
    with pytest.raises(PeerError, match="not finite"):
        feedback.encode(bad)
    assert torch.equal(left(feedback), before)


@each
def test_values_are_left_as_they_were(codec: Codec) -> None:
    feedback, values = Feedback(codec, SHAPES, Buffers()), drawn(torch.Generator().manual_seed(1))
    before = values.clone()
    packet = feedback.encode(values)
    sent = bytes(packet.data)
    feedback.commit()
    feedback.encode(values)
    assert torch.equal(values, before)
    assert bytes(packet.data) == sent


@each
@settings(max_examples=many(10, 20))
@given(SEEDS)
def test_what_goes_on_from_a_copy_sends_the_same_bytes(codec: Codec, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    feedback, copy = Feedback(codec, SHAPES, Buffers()), Feedback(codec, SHAPES, Buffers())
    feedback.encode(drawn(generator))
    feedback.commit()
    pending, later = drawn(generator), drawn(generator)
    offered = bytes(feedback.encode(pending).data)
    copy.restore(feedback.held())
    assert bytes(copy.encode(pending).data) == offered
    for one in (feedback, copy):
        one.commit()
    assert bytes(copy.encode(later).data) == bytes(feedback.encode(later).data)


def test_an_exact_codec_keeps_nothing() -> None:
    for codec in CODECS.values():
        if codec.exact:
            feedback = Feedback(codec, SHAPES, Buffers())
            feedback.encode(torch.ones(NUMEL))
            feedback.commit()
            assert not feedback.held()


@each
def test_dropped_work_takes_what_was_lost_of_it_along(codec: Codec) -> None:
    feedback = Feedback(codec, SHAPES, Buffers())
    feedback.encode(drawn(torch.Generator().manual_seed(1)))
    feedback.commit()
    feedback.drop()
    assert not feedback.held()


@settings(max_examples=15)
@given(SEEDS, st.sampled_from([0.0, 1e-30, 1e-3, 1.0, 1e20]))
@each
def test_no_packet_is_larger_than_float32(codec: Codec, seed: int, scale: float) -> None:
    values = drawn(torch.Generator().manual_seed(seed)) * scale
    packet = Feedback(codec, SHAPES, Buffers()).encode(values)
    assert packet.nbytes <= 4 * NUMEL
    lost = (read(packet) - values).double().norm()
    assert lost <= values.double().norm() * (1 + 1e-5)


@pytest.mark.parametrize("now", [*LOSSY, CODECS["none"]], ids=codec_name)
@pytest.mark.parametrize("then", [*LOSSY, CODECS["none"]], ids=codec_name)
def test_an_offer_of_before_a_checkpoint_loses_the_same_in_whatever_bytes(
    then: Codec, now: Codec
) -> None:
    generator = torch.Generator().manual_seed(5)
    before = Feedback(then, SHAPES, Buffers())
    before.encode(drawn(generator))
    before.commit()
    values = drawn(generator)
    sent = read(before.encode(values))
    after = Feedback(now, SHAPES, Buffers())
    after.restore(before.held())
    again = after.encode_again(values)
    torch.testing.assert_close(read(again), sent, rtol=1e-5, atol=1e-6)
    after.commit()
    before.commit()
    assert torch.equal(left(after), left(before))


@pytest.mark.parametrize("value", [8e37, -8e37])
def test_what_is_not_finite_once_it_is_encoded_is_refused_too(value: float) -> None:
    feedback = Feedback(PowerSGD(rank=1, min_ratio=1), SHAPES, Buffers())
    with pytest.raises(PeerError, match="Factors"):
        feedback.encode(torch.full((NUMEL,), value))
    assert not feedback.held()


# ── a residual in the weights ─────────────────────────────────────────────────────────────────────


SIZE = 16  # bfloat16 is smaller than float32 from here on
LOST = 2.0**-12  # of the first value; nothing of the others


def values(first: float, others: float = 1.0) -> Tensor:
    return torch.tensor([first] + [others] * (SIZE - 1))


def with_residual(in_weights: bool) -> Feedback:
    """A feedback whose last packet lost something, and was merged."""
    feedback = Feedback(CODECS["bf16"], [(SIZE,)], Buffers(), residual_in_weights=in_weights)
    feedback.encode(values(1 + LOST))
    feedback.commit()
    return feedback


def test_a_merge_takes_all_but_the_residual_that_stays_in_the_weights() -> None:
    beside, inside = with_residual(False), with_residual(True)
    assert torch.equal(beside.merged_part(values(1.0)), values(1.0))
    assert torch.equal(inside.merged_part(values(1.0)), values(1.0 - LOST))


def test_weights_on_an_anchor_keep_only_a_residual_that_is_in_them() -> None:
    beside, inside = with_residual(False), with_residual(True)
    anchor = values(1.0)
    assert torch.equal(beside.weights_on(anchor, torch.empty(SIZE)), values(1.0))
    assert torch.equal(inside.weights_on(anchor, torch.empty(SIZE)), values(1.0 - LOST))
    assert torch.equal(anchor, values(1.0))


@pytest.mark.parametrize("in_weights", [False, True])
def test_a_forgotten_residual_leaves_the_last_packet_alone(in_weights: bool) -> None:
    feedback = with_residual(in_weights)
    feedback.encode(values(1 + 2.0**-11))
    pending = feedback.encoding_error
    assert pending is not None
    leaves = feedback.forget()
    assert (leaves is not None) == in_weights
    assert leaves is None or torch.equal(leaves, values(LOST, 0.0))
    assert feedback.residual is None
    assert feedback.weights_residual is None
    assert feedback.encoding_error is pending
    assert feedback.forget() is None
