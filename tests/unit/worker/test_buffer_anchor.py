"""The anchor of buffers: offers of values, their mean, and what a learner's own buffers do then."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mend_optim.codecs.buffers import Buffers
from mend_optim.codecs.powersgd import PowerSGD
from mend_optim.engine.effects import (
    Advance,
    Agree,
    Export,
    Found,
    Inspect,
    Install,
    Merge,
    Prepare,
    Reoffer,
)
from mend_optim.model.layout import BufferFragment, Layout
from mend_optim.model.module_buffers import gather_buffers, move_buffers
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Offer, Packet, Seal, State
from mend_optim.worker.anchors import Anchors
from mend_optim.worker.buffer_anchor import STRAY, BufferAnchor, mean_buffers, without_strays
from mend_optim.worker.checkpoint import Kept, keep, kept_correction
from mend_optim.worker.correction import BufferCorrection, Correction, stack
from mend_optim.worker.merge import FINE
from mend_optim.worker.outer import DiLoCoNesterov
from tests import reference
from tests.support.engines import BASE, GENESIS
from tests.support.jobs import Performed, perform

numbers = st.floats(-1e6, 1e6, width=32)
BIG = 2**53 + 1  # no float64 holds it


class Learner:
    """The buffers of one learner, without an engine. All that is for deltas is in use beside."""

    def __init__(self, name: str, mean: float, count: int = 0) -> None:
        self.id = PeerId(name, 1)
        self.tensors = [
            torch.full((3,), mean),
            torch.tensor(mean, dtype=torch.float64),
            torch.tensor(count),
            torch.tensor([True, False]),
        ]
        named = list(zip("abcd", self.tensors, strict=True))
        layout = Layout(["w"], [torch.ones(1)], 1, buffers=named)
        fragment = layout.fragments[1]
        assert isinstance(fragment, BufferFragment)
        self.fragment = fragment
        self.anchors = Anchors(
            layout,
            [torch.ones(1), self.copy()],
            codec=PowerSGD(rank=1),
            outer=DiLoCoNesterov(),
            scheme="median",
            buffers=Buffers(),
        )

    def copy(self) -> Tensor:
        out = torch.empty(self.fragment.nbytes, dtype=torch.uint8)
        gather_buffers(self.fragment, self.tensors, out)
        return out

    def observe(self, mean: float, count: int) -> None:
        self.tensors[0].fill_(mean)
        self.tensors[1].fill_(mean)
        self.tensors[2].fill_(count)

    def do(self, job: Any) -> Performed:
        return perform(self.anchors, job)

    def offer(self, tokens: int = 1, flush: bool = False) -> Offer:
        done = self.do(Prepare(fragment=1, seq=1, tensor=self.copy(), flush=flush))
        assert done.fault == ""
        return self.message(done, tokens, 1)

    def message(self, done: Performed | None, tokens: int, steps: int) -> Offer:
        return Offer(
            peer=self.id,
            fragment=1,
            seq=1,
            tokens=tokens,
            steps=steps,
            genesis=GENESIS,
            key=BASE.key,
            due=True,
            sections=done.sections if done else {},
        )

    def seal(self, offers: Sequence[Offer], weights: Sequence[float]) -> Seal:
        job = Merge(fragment=1, base=BASE, offers=tuple(offers), weights=tuple(weights))
        done = self.do(job)
        assert done.fault == ""
        members = tuple(offer.entry for offer in offers)
        return Seal(
            sealer=self.id,
            fragment=1,
            base=BASE.digest,
            key=BASE.seal(members, done.digest).key,
            members=members,
            weights=tuple(weights),
            absent=(),
            reason="all_present",
            payload=done.digest,
            sections=done.sections,
        )

    def advance(self, seal: Seal, member: bool = True, **facts: Any) -> BufferCorrection:
        lineage = BASE.seal(seal.members, seal.payload)
        job = Advance(seal=seal, lineage=lineage, merged_own_offer=member, **facts)
        done = self.do(job)
        assert done.fault == ""
        (correction,) = done.corrections
        assert isinstance(correction, BufferCorrection)
        return correction

    def take(self, correction: Correction) -> None:
        assert isinstance(correction, BufferCorrection)
        move_buffers(self.fragment, self.tensors, correction.values, correction.base)

    def state(self) -> State:
        done = self.do(Export(1, BASE))
        return State(
            peer=self.id, fragment=1, lineage=BASE, content=done.digest, sections=done.sections
        )

    @property
    def values(self) -> list[float]:
        return [tensor.flatten()[0].item() for tensor in self.tensors]

    @property
    def theta(self) -> list[float]:
        anchor = self.anchors.fragments[1].theta
        return [
            self.fragment.view(place, anchor).flatten()[0].item()
            for place in range(len(self.tensors))
        ]


def pair() -> tuple[Learner, Learner]:
    return Learner("a", 0.0), Learner("b", 0.0)


# ── the mean ──────────────────────────────────────────────────────────────────────────────────────


@given(st.data())
def test_the_mean_is_that_of_its_slow_twin(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 5))
    w = [data.draw(st.integers(0, 9)) for _ in range(count)]
    w[data.draw(st.integers(0, count - 1))] += 1
    shares = [weight / sum(w) for weight in w]
    rows = [data.draw(st.lists(numbers, min_size=3, max_size=3)) for _ in range(count)]
    counts = [data.draw(st.integers(-(2**63), 2**63 - 1)) for _ in range(count)]
    tokens = [data.draw(st.integers(0, 3)) for _ in range(count)]
    layout = Layout(
        ["w"],
        [torch.ones(1)],
        1,
        buffers=[("x", torch.zeros(3, dtype=torch.float64)), ("n", torch.tensor(0))],
    )
    fragment = layout.fragments[1]
    assert isinstance(fragment, BufferFragment)
    values = []
    for row, number in zip(rows, counts, strict=True):
        out = torch.zeros(fragment.nbytes, dtype=torch.uint8)
        gather_buffers(
            fragment, [torch.tensor(row, dtype=torch.float64), torch.tensor(number)], out
        )
        values.append(out)
    out = torch.zeros(fragment.nbytes, dtype=torch.uint8)
    mean_buffers(fragment, values, shares, tokens, out)
    expected = [reference.buffer_mean(column, shares) for column in zip(*rows, strict=True)]
    assert fragment.view(0, out).tolist() == pytest.approx(expected, rel=1e-12, abs=1e-9)
    for column, found in zip(zip(*rows, strict=True), fragment.view(0, out).tolist(), strict=True):
        members = [value for value, weight in zip(column, w, strict=True) if weight]
        assert min(members) <= found <= max(members)
    most = max((i for i in range(count) if w[i]), key=lambda i: tokens[i])
    assert fragment.view(1, out).item() == counts[most]


@pytest.mark.parametrize(
    ("value", "last"), [(0.1, 8), (0.1, 9), (1 / 3, 10), (1e30, 12), (-math.inf, 3)]
)
def test_what_all_agree_on_stays_to_the_bit(value: float, last: int) -> None:
    """The weighted sum of equal numbers is often another number, by a rounding."""
    learners = [Learner(name, value) for name in "abc"]
    offers = [learner.offer() for learner in learners]
    seal = learners[0].seal(offers, [tokens / (2 + last) for tokens in (1, 1, last)])
    before = learners[0].copy()
    for learner in learners:
        learner.take(learner.advance(seal))
        assert torch.equal(learner.copy(), before)
        assert torch.equal(learner.anchors.fragments[1].theta, before)


def packed(*tensors: Tensor) -> tuple[BufferFragment, list[Tensor]]:
    """Each of these, as the flat values of the same buffer of one learner each."""
    layout = Layout(["w"], [torch.ones(1)], 1, buffers=[("x", tensors[0])])
    fragment = layout.fragments[1]
    assert isinstance(fragment, BufferFragment)
    values = [torch.zeros(fragment.nbytes, dtype=torch.uint8) for _ in tensors]
    for tensor, out in zip(tensors, values, strict=True):
        gather_buffers(fragment, [tensor], out)
    return fragment, values


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("numel", [1, FINE, 2 * FINE + 7])
def test_the_mean_of_parts_of_a_buffer_is_that_of_the_whole_to_the_bit(
    dtype: torch.dtype, numel: int
) -> None:
    draws = torch.Generator().manual_seed(numel)
    tensors = [torch.randn(numel, generator=draws).to(dtype) for _ in range(5)]
    tensors[2][-1] = tensors[3][-1] = -math.inf
    w = [0.1, 0.3, 0.25, 0.15, 0.2]
    fragment, values = packed(*tensors)
    out = torch.zeros_like(values[0])
    mean_buffers(fragment, values, w, [1] * 5, out)
    wide = torch.stack(tensors).double()
    mean = torch.zeros(numel, dtype=torch.float64)
    for value, weight in zip(wide, w, strict=True):
        mean += value * weight
    expected = mean.clamp(wide.amin(0), wide.amax(0)).to(dtype)
    assert torch.equal(fragment.view(0, out), expected)


class Largest(TorchDispatchMode):
    """Finds the size of the largest tensor in float64 that operations give."""

    nbytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, Tensor) and found.dtype == torch.float64:
            self.nbytes = max(self.nbytes, found.nbytes)
        return found


def test_no_copy_in_float64_is_as_large_as_a_large_buffer() -> None:
    fragment, values = packed(*(torch.full((4 * FINE,), float(i)) for i in range(5)))
    anchor = BufferAnchor(fragment, values[0].clone(), Buffers())
    with Largest() as largest:
        mean_buffers(fragment, values, [0.2] * 5, [1] * 5, anchor.theta)
        anchor.refuse_strange(values[1])
    assert 0 < largest.nbytes < fragment.nbytes


# ── a round ───────────────────────────────────────────────────────────────────────────────────────


def test_a_round_is_the_plain_weighted_mean_and_all_end_on_it() -> None:
    a, b = pair()
    a.observe(1.0, BIG)
    b.observe(5.0, BIG + 1)
    seal = a.seal([a.offer(tokens=1), b.offer(tokens=3)], [0.25, 0.75])
    a.take(a.advance(seal, sealed_here=True))
    b.take(b.advance(seal))
    assert a.values == b.values == a.theta == b.theta == [4.0, 4.0, BIG + 1, True]
    assert torch.equal(a.copy(), b.copy())


def test_an_offer_may_be_a_flush_and_late_and_is_the_same() -> None:
    a, b = pair()
    a.observe(1.0, 3)
    b.observe(5.0, 2)
    seal = a.seal([a.offer(tokens=2, flush=True), b.offer()], [0.5, 0.5])
    a.take(a.advance(seal, gain=0.3))
    assert a.values == a.theta == [3.0, 3.0, 3, True]


def test_a_learner_that_has_gone_on_keeps_what_it_saw_since() -> None:
    a, b = pair()
    a.observe(2.0, 10)
    b.observe(6.0, 20)
    seal = a.seal([a.offer(tokens=1), b.offer(tokens=2)], [0.5, 0.5])
    a.observe(1.0, 14)
    b.observe(7.0, 24)
    a.take(a.advance(seal))
    b.take(b.advance(seal))
    assert a.values == [3.0, 3.0, 20, True]
    assert b.values == [5.0, 5.0, 24, True]  # its own integers were taken: it goes on with them


def test_a_variance_never_becomes_negative() -> None:
    a, b = pair()
    a.observe(10.0, 1)
    b.observe(2.0, 1)
    seal = a.seal([a.offer(), b.offer()], [0.5, 0.5])
    a.observe(1.0, 2)
    a.take(a.advance(seal))
    assert a.values[0] == 1.0  # by the whole difference it would be -3


def test_a_learner_that_missed_a_round_does_not_add_the_others_values_to_its_own() -> None:
    a, b = pair()
    b.observe(5.0, 7)
    a.observe(5.0, 3)
    seal = b.seal([b.offer()], [1.0])
    waiting = a.offer()
    a.take(a.advance(seal, member=False))
    assert a.values == [5.0, 5.0, 7, True]
    again = b.seal([replace(waiting, seq=1)], [1.0])
    assert b.do(Advance(seal=again, lineage=BASE, merged_own_offer=False)).fault == ""
    assert b.theta == [5.0, 5.0, 3, True]


def test_a_learner_at_rest_counts_with_the_values_of_the_anchor() -> None:
    a, b = Learner("a", 4.0, 9), Learner("b", 4.0, 9)
    a.observe(8.0, 3)
    seal = a.seal([a.offer(tokens=1), b.message(None, 0, 0)], [0.25, 0.75])
    b.take(b.advance(seal, member=False))
    assert b.values == b.theta == [5.0, 5.0, 3, True]


@pytest.mark.parametrize("others", [1, 3])
def test_statistics_of_weights_that_exploded_are_in_nobodys(others: int) -> None:
    """Rounds refuse what its parameters have learned. These would stay for hundreds of steps."""
    learners = [Learner(name, 4.0, 9) for name in "abcd"[: others + 1]]
    for learner in learners:
        learner.observe(8.0, 3)
    learners[0].observe(1e18, 3)
    offers = [learner.offer() for learner in learners]
    sent = [bytes(offer.sections["delta"].data) for offer in offers]
    seal = learners[1].seal(offers, [1 / len(offers)] * len(offers))
    assert [bytes(offer.sections["delta"].data) for offer in offers] == sent
    for learner in learners:
        learner.take(learner.advance(seal))
    mean = (4.0 + 8.0 * others) / (1 + others)
    assert [learner.values[:2] for learner in learners] == [[mean, mean]] * len(learners)


@pytest.mark.parametrize("seen", [8.0 * STRAY, 1e30])
def test_statistics_that_all_have_or_one_alone_are_no_strays(seen: float) -> None:
    """Inputs may be as large as they like, and the first anchor knows none of them."""
    for count, rests in ((1, False), (1, True), (2, False)):
        learners = [Learner(name, 1.0) for name in "ab"]
        for learner in learners[:count]:
            learner.observe(seen, 3)
        offers = [learner.offer() for learner in learners[:count]]
        if rests:
            offers.append(learners[1].message(None, 0, 0))
        seal = learners[0].seal(offers, [1 / len(offers)] * len(offers))
        learners[0].take(learners[0].advance(seal))
        mean = (seen + 1.0) / 2 if rests else seen
        assert learners[0].theta[0] == pytest.approx(mean)


@given(
    st.lists(st.floats(1.0, 2.0**100), min_size=2, max_size=5),
    st.floats(2.0**-20, 2.0**20),
)
def test_a_stray_is_far_from_the_anchor_and_from_the_others(
    seen: list[float], known: float
) -> None:
    learners = [Learner("a", value) for value in seen]
    fragment, anchor = learners[0].fragment, Learner("a", known).copy()
    values = [learner.copy() for learner in learners]
    kept = without_strays(fragment, values, range(len(seen)), anchor)
    for i, value in enumerate(seen):
        others = sorted(seen[:i] + seen[i + 1 :])
        half = len(others) // 2
        middle = (others[half] + others[-1 - half]) / 2
        bound = STRAY * max(known, middle)
        assume(abs(value / bound - 1) > 1e-6)
        is_stray = value > bound
        expected = known if is_stray else value
        assert fragment.view(1, kept[i]).item() == pytest.approx(expected, rel=1e-9)
        assert fragment.view(2, kept[i]).equal(fragment.view(2, values[i]))


def test_the_first_value_of_a_buffer_that_was_zero_everywhere_is_no_stray() -> None:
    """Only one learner may use a part of the model."""
    user, other = Learner("a", 3.0), Learner("b", 0.0)
    fragment, values = user.fragment, [user.copy(), other.copy()]
    kept = without_strays(fragment, values, [0, 1], other.copy())
    assert fragment.view(1, kept[0]).equal(fragment.view(1, values[0]))


def test_statistics_like_the_anchors_are_no_strays_beside_those_of_a_newcomer() -> None:
    old, new = Learner("a", 1000.0), Learner("b", 1.0)
    values = [old.copy(), new.copy()]
    kept = without_strays(old.fragment, values, [0, 1], old.copy())
    assert all(one is other for one, other in zip(kept, values, strict=True))


def test_a_synchronous_learner_becomes_the_anchor() -> None:
    a, b = pair()
    a.observe(1.0, 1)
    b.observe(4.0, 2)
    seal = a.seal([a.offer(), b.offer()], [0.5, 0.5])
    a.observe(0.3, 5)
    a.take(a.advance(seal, replace=True))
    assert a.values == a.theta


def test_at_rest_the_buffers_become_the_anchor() -> None:
    a, b = pair()
    b.observe(5.0, 7)
    seal = b.seal([b.offer()], [1.0])
    a.observe(9.0, 3)
    a.take(a.advance(seal, member=False))
    assert a.values[0] != 5.0
    (correction,) = a.do(Agree(1)).corrections
    assert not correction.replace
    a.take(correction)
    assert a.values == a.theta == [5.0, 5.0, 7, True]


def test_a_whole_anchor_does_what_its_seal_would() -> None:
    a, b = pair()
    c = Learner("b", 0.0)
    for learner in (b, c):
        learner.observe(6.0, 4)
    a.observe(2.0, 3)
    offer = b.offer(tokens=3)
    c.offer(tokens=3)
    seal = a.seal([a.offer(tokens=2), offer], [0.5, 0.5])
    a.advance(seal)
    for learner in (b, c):
        learner.observe(7.0, 5)
    b.take(b.advance(seal))
    done = c.do(Install(states=(a.state(),), merged_own_offer=True, replace=False))
    c.take(done.corrections[0])
    assert b.values == c.values == [5.0, 5.0, 5, True]
    assert b.theta == c.theta


def test_alone_the_buffers_are_founded_as_they_are() -> None:
    a, _ = pair()
    a.observe(3.0, 8)
    a.offer()
    done = a.do(Found((torch.ones(1), a.copy())))
    assert done.fault == ""
    assert a.theta == [3.0, 3.0, 8, True]
    assert "delta" not in a.anchors.save(1)


# ── what is refused ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_buffers_that_are_not_finite_are_offered_and_founded_by_nobody(bad: float) -> None:
    a, _ = pair()
    a.observe(bad, 1)
    done = a.do(Prepare(fragment=1, seq=1, tensor=a.copy()))
    assert done.fault == "Buffer a is not finite"
    assert a.do(Found((torch.ones(1), a.copy()))).fault == "Buffer a is not finite"
    assert a.theta == [0.0, 0.0, 0, True]


def garbled(offer: Offer, **packet: Any) -> Offer:
    found = {"codec": "none", "numel": offer.sections["delta"].numel, "data": memoryview(b"")}
    found["data"] = offer.sections["delta"].data
    return replace(offer, sections={"delta": Packet(**{**found, **packet})})


def test_an_offer_with_another_size_codec_or_garbage_is_refused() -> None:
    a, b = pair()
    good = b.offer()
    assert a.do(Inspect(good)).fault == ""
    data = bytearray(good.sections["delta"].data)
    wrong = [
        garbled(good, numel=good.sections["delta"].numel - 1),
        garbled(good, data=memoryview(bytes(8))),
        garbled(good, codec="packed"),
        garbled(good, data=memoryview(b"\xff" * len(data))),
        replace(good, sections={}),
    ]
    assert all(a.do(Inspect(offer)).fault for offer in wrong)


def test_a_seal_or_an_anchor_that_was_changed_is_refused_and_changes_nothing() -> None:
    a, b = pair()
    b.observe(5.0, 1)
    seal = b.seal([b.offer()], [1.0])
    bad = Packet("none", seal.sections["merged"].numel, memoryview(bytes(len(b.copy()))))
    fake = replace(seal, sections={"merged": bad})
    assert "digest" in a.do(Advance(seal=fake, lineage=BASE, merged_own_offer=False)).fault
    state = replace(b.state(), sections={"anchor": bad})
    assert "digest" in a.do(Install(states=(state,), merged_own_offer=False, replace=False)).fault
    b.observe(math.nan, 1)
    b.anchors.fragments[1].theta.copy_(b.copy())
    job = Install(states=(b.state(),), merged_own_offer=False, replace=False)
    assert a.do(job).fault == "Buffer a is not finite"
    assert a.theta == [0.0, 0.0, 0, True]


# ── corrections that wait, and checkpoints ────────────────────────────────────────────────────────


def moved(learner: Learner, *corrections: Correction) -> list[float]:
    together: Correction | None = None
    for correction in corrections:
        together = stack(together, correction)
    assert together is not None
    learner.take(together)
    return learner.values


def to(learner: Learner, value: float) -> Tensor:
    other = Learner("x", value, int(value))
    return other.copy()


def test_corrections_that_were_not_taken_yet_count_from_where_the_buffers_are() -> None:
    a, _ = pair()
    a.observe(1.0, 1)

    def rest(value: float, base: float) -> BufferCorrection:
        return BufferCorrection(1, to(a, value), False, base=to(a, base))

    offered = BufferCorrection(1, to(a, 8.0), False, base=to(a, 1.0), is_offer=True)
    became = BufferCorrection(1, to(a, 5.0), False)
    replaced = BufferCorrection(1, to(a, 5.0), True)
    # It rested on 0 and went on to 1: two steps to 4 and 6 are one to 6.
    assert moved(a, rest(4.0, 0.0), rest(6.0, 4.0))[0] == 6.0
    a.observe(2.0, 1)
    assert moved(a, rest(4.0, 0.0), offered)[0] == 8.0
    a.observe(-3.0, 1)
    assert moved(a, rest(4.0, 0.0), offered)[0] == 4.0
    a.observe(-3.0, 1)
    assert moved(a, became, rest(6.0, 5.0))[0] == 6.0
    a.observe(-3.0, 1)
    assert moved(a, rest(6.0, 5.0), became)[0] == 5.0
    both = stack(replaced, rest(6.0, 5.0))
    assert both.replace
    assert isinstance(both, BufferCorrection)
    assert both.base is None


@pytest.mark.parametrize("is_offer", [True, False])
def test_a_checkpoint_keeps_the_correction_and_the_offer(is_offer: bool) -> None:
    a, _ = pair()
    a.observe(BIG, BIG)
    offer = a.offer()
    correction = BufferCorrection(1, to(a, 8.0), False, base=to(a, 1.0), is_offer=is_offer)
    saved = a.anchors.save(1)
    standing: Any = type("Standing", (), {"pending": object()})()
    kept: Kept = keep(standing, saved, correction)
    assert all(tensor.dtype == torch.uint8 for tensor in kept.tensors.values())
    found = kept_correction(a.fragment, kept, torch.empty_like(correction.values))
    assert isinstance(found, BufferCorrection)
    assert torch.equal(found.values, correction.values)
    assert found.base is not None
    assert correction.base is not None
    assert torch.equal(found.base, correction.base)
    assert found.is_offer is is_offer
    other = Learner("a", 0.0)
    other.anchors.load(1, kept.tensors)
    again = other.do(Reoffer(1, 1))
    assert bytes(again.sections["delta"].data) == bytes(offer.sections["delta"].data)
    assert other.theta == a.theta
