from __future__ import annotations

import math
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mend_optim.codecs.packing import BF16, PACKED, Piece, Scratch, fill, pack
from mend_optim.codecs.powersgd import FACTORS, LEAST_EXPONENT, PowerSGD, factor, multiply
from mend_optim.codecs.registry import check_packet, decode_packet, encode_packet
from mend_optim.errors import PeerError, UsageError
from mend_optim.protocol.messages import Packet
from tests.reference import product, projected

SEEDS = st.integers(0, 2**32 - 1)
SIDES = st.integers(1, 40)


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def of_rank(seed: int, n: int, m: int, rank: int) -> Tensor:
    return random(seed, n, rank) @ random(seed + 1, rank, m)


def there_and_back(
    codec: PowerSGD, tensor: Tensor, memory: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    packet, memory = encode_packet(codec, tensor.reshape(-1), [tuple(tensor.shape)], memory)
    check_packet(packet, [tuple(tensor.shape)])
    return decode_packet(packet, [tuple(tensor.shape)]).view(tensor.shape), memory


def close(a: Tensor, b: Tensor, tolerance: float = 1e-4) -> bool:
    return bool((a - b).norm() <= tolerance * max(float(b.norm()), 1e-30))


# ── the factors ───────────────────────────────────────────────────────────────────────────────────

TOPS = st.sampled_from([form.top for form in FACTORS.values()])
BITS = st.sampled_from(sorted(FACTORS))
LOST = {8: 0.03, 16: 1e-4}  # what rounding the factors loses of a whole matrix, at most


@given(SEEDS, SIDES, SIDES, st.integers(1, 5), st.integers(0, 5), TOPS)
def test_columns_are_whole_numbers_and_nearly_orthogonal_whatever_the_rank(
    seed: int, n: int, m: int, r: int, rank: int, top: int
) -> None:
    r = min(r, n, m)
    a = of_rank(seed, n, m, rank) if rank else torch.zeros(n, m)
    (p,), (q,) = factor([a], random(seed + 2, 1, r, m), top)
    assert torch.equal(p, p.round())
    assert torch.equal(p.abs().amax(0), torch.full((r,), float(top)))
    lengths = p.norm(dim=0)
    assert close(p.T @ p / lengths / lengths[:, None], torch.eye(r), 4 / top + 1e-5)
    assert close(p.T @ p @ q, p.T @ a)


@given(SEEDS, st.integers(2, 12), st.integers(2, 12), st.integers(1, 3), TOPS)
def test_one_step_projects_onto_what_the_start_spans(
    seed: int, n: int, m: int, r: int, top: int
) -> None:
    r = min(r, n, m)
    a, start = random(seed, n, m), random(seed + 2, r, m)
    (p,), (q,) = factor([a], start.unsqueeze(0), top)
    onto_whole = projected(a.double().tolist(), p.double().tolist())
    assert close((p @ q).double(), torch.tensor(onto_whole, dtype=torch.float64), 1e-3)
    ideal = projected(a.double().tolist(), (a.double() @ start.double().T).tolist())
    assert close((p @ q).double(), torch.tensor(ideal, dtype=torch.float64), 1e-3 + 6 / top)


@given(SEEDS, SIDES, SIDES, st.integers(1, 5), BITS, st.sampled_from([1e-25, 1.0, 1e12]))
def test_what_is_lost_is_never_more_than_what_was_there(
    seed: int, n: int, m: int, r: int, bits: int, scale: float
) -> None:
    a = random(seed, n, m) * scale
    found, _ = there_and_back(PowerSGD(rank=r, bits=bits, min_ratio=1), a)
    assert (found - a).double().norm() <= a.double().norm() * (1 + 1e-5)


@given(SEEDS, st.integers(12, 40), st.integers(12, 40), st.integers(0, 3), BITS)
def test_nothing_is_lost_of_a_matrix_of_smaller_rank(
    seed: int, n: int, m: int, rank: int, bits: int
) -> None:
    a = of_rank(seed, n, m, rank) if rank else torch.zeros(n, m)
    found, _ = there_and_back(PowerSGD(rank=3, bits=bits, min_ratio=1), a)
    assert close(found, a, LOST[bits])


@given(SEEDS, st.integers(1, 6), st.integers(1, 6), BITS)
def test_nothing_is_lost_at_full_rank(seed: int, n: int, m: int, bits: int) -> None:
    """Of a wide matrix, not even what rounding P would lose: its columns span everything."""
    a = random(seed, n, m)
    (p,), (q,) = factor([a], random(seed + 2, 1, min(n, m), m), FACTORS[bits].top)
    assert close(p @ q, a, 1e-4 if n <= m else LOST[bits])


@given(
    SEEDS, SIDES, st.integers(1, 5), BITS, st.lists(st.integers(-40, 40), min_size=5, max_size=5)
)
def test_right_factors_are_rounded_to_the_nearest(
    seed: int, m: int, r: int, bits: int, sizes: list[int]
) -> None:
    """Rows far below the greatest excepted: those count in its units."""
    q = random(seed, 1, r, m) * 2.0 ** torch.tensor(sizes[:r])[:, None]
    (whole,), (exponents,) = FACTORS[bits].rounded(q)
    unit = 2.0 ** exponents.double()[:, None]
    lost = (whole * unit - q[0].double()).abs()
    assert (lost <= unit / 2).all()
    assert (lost <= q[0].abs()).all()
    assert exponents.max() - exponents.min() <= FACTORS[bits].reach(r)
    near = exponents > exponents.max() - FACTORS[bits].reach(r)
    assert (whole.abs().amax(1)[near] > FACTORS[bits].top / 2 - 1).all()


@pytest.mark.parametrize("bits", sorted(FACTORS))
def test_rows_of_zeros_do_not_coarsen_the_others(bits: int) -> None:
    q = torch.zeros(1, 2, 30)
    q[:, 0] = random(0, 30) * 1e-25
    (whole,), (exponents,) = FACTORS[bits].rounded(q)
    assert close((whole * 2.0 ** exponents.double()[:, None]).float(), q[0], LOST[bits])


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("bits", sorted(FACTORS))
def test_factors_that_are_not_finite_are_refused(bits: int, value: float) -> None:
    q = random(0, 1, 2, 30)
    q[0, 1, 3] = value
    (whole,), (exponents,) = FACTORS[bits].rounded(q)
    with pytest.raises(PeerError, match=r"scaled by 2.* too large"):
        check_packet(factors(torch.ones(8, 2), whole, exponents, bits), [(8, 30)])


# ── products ──────────────────────────────────────────────────────────────────────────────────────


@st.composite
def operands(draw: st.DrawFn) -> tuple[int, Tensor, Tensor, Tensor]:
    """Integers and exponents of every kind that `check` lets through; the bits."""
    generator, bits = np.random.default_rng(draw(SEEDS)), draw(BITS)
    n, m, r = draw(st.integers(1, 8)), draw(st.integers(1, 8)), draw(st.integers(1, 5))
    r, low = min(n, m, r), -(2 ** (bits - 1))
    p, q = (torch.from_numpy(generator.integers(low, -low, shape)) for shape in ((n, r), (r, m)))
    apart = generator.integers(0, FACTORS[bits].reach(r), r, endpoint=True)
    return bits, p, q, torch.from_numpy(apart + draw(st.integers(LEAST_EXPONENT, 80)))


@given(operands())
def test_products_are_exact_and_rounded_once(told: tuple[int, Tensor, Tensor, Tensor]) -> None:
    bits, p, q, exponents = told
    form, shape, out = FACTORS[bits], (len(p), q.shape[1]), torch.empty(len(p), q.shape[1])
    data = factors(p, q, exponents, bits).data[16:][: form.nbytes(shape, len(q))]
    form.check(data, shape, len(q))
    fill(out.view(-1), partial(form.decoded, data, shape, len(q)))
    assert out.tolist() == product(p.tolist(), q.T.tolist(), exponents.tolist())
    assert not ((out != 0) & (out.abs() < 2.0**LEAST_EXPONENT)).any()


@pytest.mark.parametrize("bits", sorted(FACTORS))
@pytest.mark.parametrize("r", [2, 3, 4, 7, 64, 1024])
def test_the_greatest_sum_is_exact_in_any_order(bits: int, r: int) -> None:
    """One product alone needs the last bit of it: nothing is rounded on the way."""
    form, generator = FACTORS[bits], torch.Generator().manual_seed(r)
    p = torch.full((1, r), -(2**form.bits), dtype=form.product)
    q = p.T * 2.0 ** form.reach(r)
    p[0, 0] = q[0, 0] = 1
    whole = (r - 1) * 2 ** (2 * form.bits + form.reach(r)) + 1
    assert 2 ** (form.digits - 2) < whole < 2**form.digits
    assert int(p @ q) == whole
    for order in (torch.randperm(r, generator=generator) for _ in range(20)):
        total = torch.zeros((), dtype=form.product)
        for k in order.tolist():
            total += p[0, k] * q[k, 0]
        assert int(total) == whole


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_products_are_the_same_where_a_library_may_multiply_in_fewer_bits(precision: str) -> None:
    packet, _ = encode_packet(PowerSGD(rank=16), random(0, 300 * 200), [(300, 200)])
    exact, before = decode_packet(packet, [(300, 200)]), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        assert torch.equal(decode_packet(packet, [(300, 200)]), exact)
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("bits", sorted(FACTORS))
def test_products_of_many_blocks_are_those_of_one(bits: int) -> None:
    p, q = (
        torch.randint(-127, 128, shape, generator=torch.Generator().manual_seed(i)).to(
            FACTORS[bits].product
        )
        for i, shape in enumerate(((1700, 3), (3, 300)))
    )
    blocks = [block.clone() for block in multiply(p, q, Scratch(p.shape[0] * q.shape[1]))]
    assert len(blocks) > 1
    whole = torch.cat(blocks).view(1700, 300)
    for i in range(0, 1700, 41):
        (row,) = multiply(p[i : i + 1], q, Scratch(q.shape[1]))
        assert torch.equal(row, whole[i])


# ── the codec ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("bits", sorted(FACTORS))
def test_a_warm_start_finds_the_best_factors(bits: int) -> None:
    values = torch.tensor([0.7**k for k in range(30)])
    u, v = torch.linalg.qr(random(0, 60, 30)).Q, torch.linalg.qr(random(1, 50, 30)).Q
    a, codec, memory = (u * values) @ v.T, PowerSGD(rank=4, bits=bits, min_ratio=1), None
    errors = []
    for _ in range(12):
        found, memory = there_and_back(codec, a, memory)
        errors.append(float((found - a).norm()))
    best = float(values[4:].norm())
    assert errors[-1] <= 1.01 * best < errors[0]
    assert all(later <= earlier * (1 + 1e-4) for earlier, later in pairwise(errors))


def test_zeros_are_no_dead_end() -> None:
    codec, a = PowerSGD(rank=2, bits=16, min_ratio=1), of_rank(3, 20, 15, 2)
    found, memory = there_and_back(codec, torch.zeros(20, 15))
    assert not found.any()
    assert close(there_and_back(codec, a, memory)[0], a)


@given(SEEDS, st.integers(2, 5))
def test_matrices_of_one_shape_are_factored_as_each_alone(seed: int, count: int) -> None:
    codec = PowerSGD(rank=2, bits=16, min_ratio=1)
    matrices = [random(seed + i, 9, 12) for i in range(count)]
    starts = [random(seed - i - 1, 2, 12) for i in range(count)]
    shapes, values = [(9, 12)] * count, torch.cat([matrix.reshape(-1) for matrix in matrices])
    together, _ = encode_packet(
        codec, values, shapes, torch.cat([start.reshape(-1) for start in starts])
    )
    for matrix, start, found in zip(
        matrices, starts, decode_packet(together, shapes).view(count, 9, 12), strict=True
    ):
        assert close(found, there_and_back(codec, matrix, start.reshape(-1))[0], 1e-3)


@pytest.mark.parametrize("rank", [1, 2, 4])
@pytest.mark.parametrize("bits", sorted(FACTORS))
def test_sizes_are_those_of_the_factors(rank: int, bits: int) -> None:
    packet, memory = encode_packet(PowerSGD(rank=rank, bits=bits), torch.ones(64 * 48), [(64, 48)])
    assert packet.nbytes == 8 + 8 + -(-(2 * rank + bits // 8 * rank * (64 + 48)) // 4) * 4
    assert memory is not None
    assert memory.numel() == 48 * rank


SHAPES = [
    (64, 48),
    (48, 64),
    (64, 16, 3, 3),
    (16, 16),
    (3, 100),
    (16, 15),
    (100,),
    (),
    (0, 5),
    (5, 0),
    (1, 10**6),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", [1, 2, 4, 7])
def test_a_tensor_is_factored_where_that_is_so_many_times_smaller(
    shape: tuple[int, ...], rank: int
) -> None:
    n, m = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (0, 0)
    r = min(rank, n, m)
    smaller = r > 0 and n * m / (r * (n + m)) >= 2
    assert PowerSGD(rank=rank, min_ratio=2).rank_of(shape) == (r if smaller else 0)


def test_vectors_scalars_and_small_matrices_travel_as_bfloat16() -> None:
    tensors = [torch.ones(100), torch.ones(6, 6), torch.ones(64, 64), torch.ones(10, 8, 3, 3)]
    pieces, _ = PowerSGD(rank=2).pieces(tensors, None)
    assert [piece.form for piece in pieces] == [BF16, BF16, FACTORS[8], FACTORS[8]]


@pytest.mark.parametrize(
    "shape", [(), (1,), (0,), (0, 4), (4, 0), (1, 1), (2, 3), (3, 1, 1, 1), (1, 50)]
)
def test_every_shape_comes_back(shape: tuple[int, ...]) -> None:
    tensor = torch.full(shape, 0.5)
    found, _ = there_and_back(PowerSGD(rank=4), tensor)
    assert found.shape == shape
    assert torch.equal(found, tensor)


def test_nobody_elses_random_numbers_are_used_or_changed() -> None:
    before, a = torch.get_rng_state(), random(0, 40, 40)
    first, _ = there_and_back(PowerSGD(rank=4), a)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(12345)
    again, _ = there_and_back(PowerSGD(rank=4), a)
    assert torch.equal(first, again)
    other, _ = there_and_back(PowerSGD(seed=1), a)
    assert not torch.equal(first, other)


def test_what_another_rank_remembered_is_forgotten() -> None:
    a = random(0, 40, 40)
    _, memory = there_and_back(PowerSGD(rank=2), a)
    assert torch.equal(
        there_and_back(PowerSGD(rank=4), a, memory)[0], there_and_back(PowerSGD(rank=4), a)[0]
    )


# ── what a peer may send ──────────────────────────────────────────────────────────────────────────


def factors(
    p: Tensor, q: Tensor, exponents: Tensor | None = None, bits: int = 8, rank: int | None = None
) -> Packet:
    form, r = FACTORS[bits], p.shape[1]
    exponents = torch.zeros(r) if exponents is None else exponents
    parts = exponents.to(torch.int16), p.T.to(form.dtype).contiguous(), q.to(form.dtype)
    return pack([Piece(form, r if rank is None else rank, parts)], len(p) * q.shape[1])


@pytest.mark.parametrize("rank", [0, 9, 2**31, 2**32 - 1])
@pytest.mark.parametrize("bits", sorted(FACTORS))
def test_a_rank_that_cannot_be_is_refused(rank: int, bits: int) -> None:
    with pytest.raises(
        PeerError, match=f"Rank {rank} is impossible for a tensor of shape \\[8, 30\\]"
    ):
        check_packet(factors(torch.ones(8, 2), torch.ones(2, 30), rank=rank, bits=bits), [(8, 30)])


def test_sums_of_more_products_than_stay_exact_are_refused() -> None:
    n = 1025
    with pytest.raises(PeerError, match=r"Rank 1025 is impossible .* the limit is 1024"):
        check_packet(factors(torch.ones(n, n), torch.ones(n, n)), [(n, n)])


def test_a_vector_in_factors_is_refused() -> None:
    with pytest.raises(PeerError, match="Rank 1 is impossible for a tensor of shape"):
        check_packet(factors(torch.ones(8, 1), torch.ones(1, 30)), [(240,)])


def test_factors_of_another_size_are_refused() -> None:
    with pytest.raises(PeerError, match="240 elements in at most 960 bytes are needed"):
        check_packet(factors(torch.ones(8, 2), torch.ones(2, 29), rank=2), [(8, 30)])


@pytest.mark.parametrize(
    ("exponents", "bits"),
    [
        ((LEAST_EXPONENT - 1, LEAST_EXPONENT), 8),
        ((0, 10), 8),
        ((0, 23), 16),
        ((111, 112), 8),
        ((95, 96), 16),
        ((-(2**15), -(2**15)), 8),
        ((2**15 - 1, 2**15 - 1), 16),
    ],
)
def test_exponents_that_do_not_give_exact_and_finite_products_are_refused(
    exponents: tuple[int, int], bits: int
) -> None:
    with pytest.raises(PeerError, match="Factors are scaled by 2"):
        check_packet(
            factors(torch.ones(8, 2), torch.ones(2, 30), torch.tensor(exponents), bits), [(8, 30)]
        )


@pytest.mark.parametrize(
    ("exponents", "bits"), [((0, 9), 8), ((0, 22), 16), ((LEAST_EXPONENT, LEAST_EXPONENT), 8)]
)
def test_exponents_as_far_apart_as_can_be_are_let_through(
    exponents: tuple[int, int], bits: int
) -> None:
    check_packet(
        factors(torch.ones(8, 2), torch.ones(2, 30), torch.tensor(exponents), bits), [(8, 30)]
    )


@pytest.mark.parametrize(("greatest", "bits"), [(111, 8), (95, 16)])
def test_the_greatest_products_that_are_let_through_are_finite(greatest: int, bits: int) -> None:
    low = -FACTORS[bits].top - 1
    packet = factors(
        torch.full((8, 2), low), torch.full((2, 30), low), torch.full((2,), greatest), bits
    )
    check_packet(packet, [(8, 30)])
    assert decode_packet(packet, [(8, 30)]).max() == 2.0**126


def test_a_packet_of_factors_is_packed() -> None:
    packet, _ = encode_packet(PowerSGD(rank=4), torch.ones(64 * 64), [(64, 64)])
    assert packet.codec == PACKED


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "rank must be an int from 1 to 1024, got 0"),
        ({"rank": 2.0}, "rank must be an int from 1 to 1024, got 2.0"),
        ({"rank": True}, "rank must be an int from 1 to 1024, got True"),
        ({"bits": 4}, "bits must be 8 or 16, got 4"),
        ({"bits": 8.0}, "bits must be 8 or 16, got 8.0"),
        ({"min_ratio": 0.5}, "min_ratio must be a number of at least 1, got 0.5"),
        ({"min_ratio": "2"}, "min_ratio must be a number of at least 1, got '2'"),
        ({"back": "dense"}, r"back must be one of \(\'auto\', \'exact\', \'same\'\), got 'dense'"),
        ({"seed": None}, "seed must be an int, got None"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PowerSGD(**options)  # type: ignore[arg-type]
