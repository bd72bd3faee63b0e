"""The sizes of offers: what is outsized, what is remembered, and what travels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mend_optim import Guard, PeerError, UsageError
from mend_optim.codecs.packing import MOST, raw
from mend_optim.engine.effects import Outsize
from mend_optim.protocol.lineage import Entry, PeerId
from mend_optim.protocol.messages import SIZES, Packet, Seal
from mend_optim.worker.offer_sizes import (
    FAINT,
    FEWEST,
    HUGEST,
    KEPT,
    LEAST_FACTOR,
    MOST_TOLD,
    PATIENCE,
    ROUNDED,
    Judged,
    Size,
    SizeHistory,
    check_history,
    outsized_in,
    read_sizes,
    refused_in,
    sizes_of,
    sizes_packet,
)
from tests import reference
from tests.support.engines import BASE, ME, PEER, THIRD, offer_of, seal_of

GUARD = Guard()
USUAL = [Size(1.0, 4)] * FEWEST

rms = st.floats(2.0**-20, 2.0**40, width=32)
steps = st.integers(1, 50)
sizes = st.builds(Size, rms, steps)
# A history whose sizes are alike, and offers that are a few times as large, or hundreds of times.
usual = st.builds(Size, st.sampled_from([1.0, 2.0]), steps)
offered = st.builds(Size, st.sampled_from([1.0, 20.0, 60.0, 500.0]), steps)
histories = st.lists(usual, min_size=FEWEST, max_size=KEPT) | st.lists(sizes, max_size=KEPT)
huge = st.builds(Size, st.floats(2.0**40, 2.0**126, width=32) | st.just(math.inf), steps)
rounds = st.lists(offered, min_size=1, max_size=5) | st.lists(
    st.one_of(st.none(), sizes, huge), min_size=1, max_size=5
)


def history_of(known: Sequence[Size], refusals: int = 0) -> SizeHistory:
    history = SizeHistory()
    history.sizes.extend(known)
    history.refusals = refusals
    return history


def judge(
    *found: Size | None, known: Sequence[Size] = USUAL, refusals: int = 0, clip: bool = False
) -> list[Judged]:
    return history_of(known, refusals).judge(Guard(clip=clip), found)


def sealed(*rows: tuple[int, float, float], tokens: int = 10) -> Seal:
    """A seal of offers of (steps, RMS, times)."""
    peers = [PeerId(f"p{i}", 1) for i in range(len(rows))]
    entries = [
        Entry(peer, 1, tokens if steps else 0, steps)
        for peer, (steps, _, _) in zip(peers, rows, strict=True)
    ]
    packet = sizes_packet([Judged(size, times) for _, size, times in rows], {})
    return replace(seal_of(BASE, *entries), sections={SIZES: packet})


# ── the rule ──────────────────────────────────────────────────────────────────────────────────────


@given(known=histories, found=rounds, refusals=st.integers(0, PATIENCE), clip=st.booleans())
def test_it_judges_as_its_slow_twin_does(
    known: list[Size], found: list[Size | None], refusals: int, clip: bool
) -> None:
    judged = history_of(known, refusals).judge(Guard(clip=clip), found)
    expected = reference.judged(known, found, refusals, 8.0, clip)
    for one, (times, factor) in zip(judged, expected, strict=True):
        assert one.times == pytest.approx(times)
        assert one.factor == pytest.approx(factor)


def test_eight_times_the_usual_size_is_too_much() -> None:
    judged = judge(Size(8.0, 4), Size(1.0, 4))
    assert [one.times for one in judged] == [0, 0]
    judged = judge(Size(8.5, 4), Size(1.0, 4))
    assert judged[0] == Judged(8.5, 8.5, 0.0)
    assert judged[1] == Judged(1.0)
    assert refused_in(judged) == {0: Outsize(8.5, 8.5)}


def test_few_offers_say_nothing() -> None:
    assert judge(Size(1e9, 4), Size(1.0, 4), known=USUAL[1:])[0] == Judged(1e9)


def test_more_steps_may_go_farther_and_fewer_as_far() -> None:
    assert judge(Size(39.0, 20))[0].times == 0
    assert judge(Size(41.0, 20))[0].times == pytest.approx(8.2)
    assert judge(Size(7.9, 1))[0].times == 0


def test_what_all_do_is_the_usual_size_from_here_on() -> None:
    judged = judge(Size(100.0, 4), Size(90.0, 4), Size(110.0, 4))
    assert [one.times for one in judged] == [-100.0, -90.0, -110.0]
    assert not refused_in(judged)


@pytest.mark.parametrize("sizes", [*permutations((0.01, 0.01, 1.0)), (0.01, 1), (1, 0.01)])
def test_learners_may_differ_for_good(sizes: Sequence[float]) -> None:
    """All but one barely move. Nobody's offer is refused, whoever comes first."""
    history = SizeHistory()
    for _ in range(KEPT):
        judged = history.judge(GUARD, [Size(size, 4) for size in sizes])
        assert not any(one.times > 0 for one in judged)
        history.merged(sealed(*((4, size, 0.0) for size in sizes)))


def test_most_of_a_round_say_what_is_usual() -> None:
    """Of three, one whose offer is older than the higher learning rate does not decide."""
    judged = judge(Size(100.0, 4), Size(100.0, 4), Size(1.0, 4))
    assert not refused_in(judged)
    judged = judge(Size(100.0, 4), Size(1.0, 4), Size(1.0, 4))
    assert set(refused_in(judged)) == {0}


def test_of_two_accidents_in_a_round_neither_excuses_the_other() -> None:
    judged = judge(Size(100.0, 4), Size(1.0, 4), Size(1.0, 4), Size(100.0, 4))
    assert set(refused_in(judged)) == {0, 3}


def test_an_offer_of_zeros_says_nothing_of_the_others() -> None:
    assert set(refused_in(judge(Size(100.0, 4), Size(0.0, 4)))) == {0}
    assert not refused_in(judge(Size(0.0, 4), Size(1.0, 4)))


def test_rounding_errors_say_nothing() -> None:
    faint, small = Size(0.9 * ROUNDED * 3.0, 4), Size(1.1 * ROUNDED * 3.0, 4)
    for history in (SizeHistory(), history_of(USUAL)):
        found = history.without_rounding([faint, None, small], lambda: 3.0)
        assert found == [Size(0.0, 4), None, small]
    told = [judged.rms for judged in history.judge(GUARD, found)]
    assert told == [0.0, 0.0, small.rms]


def test_the_weights_are_measured_only_where_an_offer_is_faint() -> None:
    measured = []

    def weights() -> float:
        measured.append(1)
        return 1.0

    history = history_of(USUAL)
    sizes = [Size(1.01 * FAINT, 4), None, Size(100.0, 4)]
    assert history.without_rounding(sizes, weights) == sizes
    assert not measured
    sizes[0] = Size(0.99 * FAINT, 4)
    assert history.without_rounding(sizes, weights) == sizes
    assert measured


def test_what_is_refused_again_and_again_is_how_the_learner_trains() -> None:
    assert set(refused_in(judge(Size(100.0, 4), refusals=PATIENCE - 1))) == {0}
    assert judge(Size(100.0, 4), refusals=PATIENCE)[0].times == -100.0


def test_nothing_is_endless_with_or_without_a_guard() -> None:
    for guard in (None, GUARD, Guard(clip=True)):
        for refusals in (0, PATIENCE):
            found = [Size(2 * HUGEST, 4), Size(2 * HUGEST, 4)]
            assert set(refused_in(history_of([], refusals).judge(guard, found))) == {0, 1}
    assert history_of(USUAL).judge(None, [Size(HUGEST, 4)]) == [Judged(HUGEST)]
    assert not refused_in(history_of(USUAL).judge(Guard(clip=True), [Size(MOST_TOLD, 4)]))


@pytest.mark.parametrize("size", [80.0, 1e17, 1e33, MOST])
def test_a_clipped_offer_has_the_greatest_size_that_is_not_outsized(size: float) -> None:
    (judged,) = judge(Size(size, 8), clip=True)
    assert judged.factor * size == pytest.approx(8 * 2)


def test_an_offer_that_float32_cannot_scale_down_is_refused() -> None:
    """The greatest RMS of all, when the usual one is tiny."""
    known = [Size(2.0**-10, 4)] * FEWEST
    assert judge(Size(2.0**119, 4), known=known, clip=True)[0].factor == LEAST_FACTOR
    assert set(refused_in(judge(Size(2.0**120, 4), known=known, clip=True))) == {0}


@pytest.mark.parametrize("known", [[], USUAL])
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("size", [MOST, math.inf])
def test_a_size_however_large_can_be_told(known: list[Size], clip: bool, size: float) -> None:
    (judged,) = judge(Size(size, 4), known=known, clip=clip)
    seal = replace(sealed((4, 1.0, 0.0)), sections={SIZES: sizes_packet([judged], {})})
    assert read_sizes(seal) == [pytest.approx((MOST_TOLD, MOST_TOLD))]


# ── what is remembered ────────────────────────────────────────────────────────────────────────────


def test_the_last_merged_offers_are_remembered() -> None:
    history = SizeHistory()
    for k in range(KEPT):
        history.merged(sealed((4, 1.0 + k, 0.0), (5, 2.0, 0.0)))
    assert len(history.sizes) == KEPT
    assert list(history.sizes)[-2:] == [Size(float(KEPT), 4), Size(2.0, 5)]


def test_a_clipped_offer_however_large_leaves_a_history_that_can_be_read() -> None:
    """A clipping guard takes what is larger than any history tells."""
    history = SizeHistory()
    history.merged(sealed((4, 2.0 * HUGEST, 0.0)))
    again = SizeHistory()
    again.load(history.save())
    assert list(again.sizes) == [Size(HUGEST, 4)]


def test_what_was_refused_scaled_down_or_not_judged_is_not() -> None:
    history = SizeHistory()
    history.merged(sealed((0, 100.0, 100.0), (4, 50.0, 50.0), (4, 0.0, 0.0), (0, 0.0, 0.0)))
    assert not history.sizes


def test_another_usual_size_is_the_only_one_that_counts() -> None:
    history = history_of(USUAL, refusals=PATIENCE)
    history.merged(sealed((4, 100.0, -100.0), (4, 90.0, 0.0)))
    assert list(history.sizes) == [Size(100.0, 4), Size(90.0, 4)]
    assert history.refusals == 0


def test_rounds_that_merge_nothing_usual_are_counted() -> None:
    history = history_of(USUAL)
    for count in (1, 2, 3, 3):
        history.merged(sealed((0, 100.0, 100.0)))
        assert history.refusals == count
    history.merged(sealed((0, 0.0, 0.0)))
    assert history.refusals == 3
    history.merged(sealed((0, 100.0, 100.0), (4, 1.0, 0.0)))
    assert history.refusals == 0


def test_a_learner_that_trains_alone_with_larger_steps_is_heard_in_the_end() -> None:
    """Of four rounds with its offer alone, the last one merges it."""
    history, merged = history_of(USUAL), []
    for _ in range(8):
        (judged,) = history.judge(GUARD, [Size(100.0, 4)])
        merged.append(judged.factor > 0)
        history.merged(sealed((4 if judged.factor else 0, judged.rms, judged.times)))
    assert merged == [False] * PATIENCE + [True] * 5


@given(known=histories, refusals=st.integers(0, PATIENCE))
def test_a_history_travels_and_is_saved_as_it_is(known: list[Size], refusals: int) -> None:
    history, copy, loaded = history_of(known, refusals), history_of(USUAL), history_of(USUAL)
    check_history(history.export())
    copy.install(history.export())
    loaded.load(history.save())
    for one in (copy, loaded):
        assert (list(one.sizes), one.refusals) == (known, refusals)


# ── what travels ──────────────────────────────────────────────────────────────────────────────────


def test_the_sizes_of_a_seal_are_those_of_its_members() -> None:
    judged = [Judged(1.0), Judged(0.0), Judged(16.0, 16.0, 0.5)]
    packet = sizes_packet(judged, {1: Outsize(100.0, 90.0)})
    seal = replace(sealed((4, 1.0, 0.0), (0, 0.0, 0.0), (4, 1.0, 0.0)), sections={SIZES: packet})
    assert read_sizes(seal) == [(1.0, 0.0), (100.0, 90.0), (16.0, 16.0)]
    assert outsized_in(seal) == {1: Outsize(100.0, 90.0), 2: Outsize(16.0, 16.0)}


@pytest.mark.parametrize(
    "numbers",
    [[1.0], [1.0, 0.0, 1.0, 0.0], [float("nan"), 0.0], [1.0, float("inf")], [-1.0, 0.0]],
)
def test_damaged_sizes_are_refused(numbers: list[float]) -> None:
    seal = replace(sealed((4, 1.0, 0.0)), sections={SIZES: raw(torch.tensor(numbers))})
    with pytest.raises(PeerError, match="offer"):
        read_sizes(seal)


@pytest.mark.parametrize(
    "packet",
    [
        raw(torch.tensor([])),
        raw(torch.tensor([float("nan")])),
        raw(torch.tensor([PATIENCE + 1.0])),
        raw(torch.tensor([0.0, 1.0])),
        raw(torch.tensor([0.0, 0.0, 4.0])),
        raw(torch.tensor([0.0, 1.0, 0.0])),
        raw(torch.tensor([0.0, 2 * HUGEST, 4.0])),
        raw(torch.zeros(3 + 2 * KEPT)),
        Packet("packed", 1, memoryview(b"1234")),
        Packet("none", 2, memoryview(b"1234")),
    ],
    ids=range(10),
)
def test_a_damaged_history_is_refused(packet: Packet) -> None:
    with pytest.raises(PeerError, match="offers"):
        check_history({SIZES: packet})


def test_residuals_and_empty_offers_are_not_judged() -> None:
    work, nothing = offer_of(ME), offer_of(PEER, steps=0)
    flush = replace(offer_of(THIRD), again=(40, 4))
    assert sizes_of([work, nothing, flush], {0: 2.0, 2: 3.0}) == [Size(2.0, 4), None, None]


def test_an_offer_is_judged_by_its_true_size() -> None:
    assert sizes_of([offer_of(ME)], {0: 1e33}) == [Size(1e33, 4)]


# ── the policy ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("norm", [1.9, float("inf"), float("nan"), "8", True])
def test_a_bad_norm_is_refused(norm: object) -> None:
    with pytest.raises(UsageError, match=r"guard\.norm must be"):
        Guard(norm=norm)  # type: ignore[arg-type]


def test_a_bad_clip_is_refused() -> None:
    with pytest.raises(UsageError, match=r"guard\.clip must be"):
        Guard(clip=1)  # type: ignore[arg-type]
