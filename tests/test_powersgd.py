from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import projected
from torch import Tensor

from mend_optim.codec import check, decode, encode
from mend_optim.errors import PeerError, UsageError
from mend_optim.packet import BF16, PACKED, Packet, Piece, pack
from mend_optim.powersgd import LOW_RANK, PowerSGD, factor, multiply

SEEDS = st.integers(0, 2**32 - 1)
SIDES = st.integers(1, 40)


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def of_rank(seed: int, n: int, m: int, rank: int) -> Tensor:
    return random(seed, n, rank) @ random(seed + 1, rank, m)


def there_and_back(codec: PowerSGD, tensor: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    packet, memory = encode(codec, tensor.reshape(-1), [tuple(tensor.shape)], memory)
    check(packet, [tuple(tensor.shape)])
    return decode(packet, [tuple(tensor.shape)]).view(tensor.shape), memory


def close(a: Tensor, b: Tensor, tolerance: float = 1e-4) -> bool:
    return bool((a - b).norm() <= tolerance * max(float(b.norm()), 1e-30))


# ── the factors ───────────────────────────────────────────────────────────────────────────────────────────────────────


@given(SEEDS, SIDES, SIDES, st.integers(1, 5), st.integers(0, 5))
def test_columns_are_orthonormal_whatever_the_rank(seed: int, n: int, m: int, r: int, rank: int) -> None:
    r = min(r, n, m)
    a = of_rank(seed, n, m, rank) if rank else torch.zeros(n, m)
    p, q = factor(a.unsqueeze(0), random(seed + 2, 1, m, r))
    assert close(p[0].T @ p[0], torch.eye(r), 1e-5)
    assert close(q[0], a.T @ p[0])


@given(SEEDS, st.integers(2, 12), st.integers(2, 12), st.integers(1, 3))
def test_one_step_projects_onto_what_the_start_spans(seed: int, n: int, m: int, r: int) -> None:
    r = min(r, n, m)
    a, start = random(seed, n, m), random(seed + 2, m, r)
    p, q = factor(a.unsqueeze(0), start.unsqueeze(0))
    twin = projected(a.double().tolist(), (a.double() @ start.double()).tolist())
    assert close((p @ q.transpose(1, 2))[0].double(), torch.tensor(twin, dtype=torch.float64), 1e-3)


@given(SEEDS, SIDES, SIDES, st.integers(1, 5), st.sampled_from([1e-25, 1.0, 1e12]))
def test_what_is_lost_is_never_more_than_what_was_there(seed: int, n: int, m: int, r: int, scale: float) -> None:
    a = random(seed, n, m) * scale
    found, _ = there_and_back(PowerSGD(rank=r, min_ratio=1), a)
    assert (found - a).double().norm() <= a.double().norm() * (1 + 1e-5)


@given(SEEDS, st.integers(12, 40), st.integers(12, 40), st.integers(0, 3))
def test_nothing_is_lost_of_a_matrix_of_smaller_rank(seed: int, n: int, m: int, rank: int) -> None:
    a = of_rank(seed, n, m, rank) if rank else torch.zeros(n, m)
    found, _ = there_and_back(PowerSGD(rank=3, min_ratio=1), a)
    assert close(found, a)


@given(SEEDS, st.integers(1, 6), st.integers(1, 6))
def test_nothing_is_lost_at_full_rank(seed: int, n: int, m: int) -> None:
    a = random(seed, n, m)
    p, q = factor(a.unsqueeze(0), random(seed + 2, 1, m, min(n, m)))
    assert close((p @ q.transpose(1, 2))[0], a)


@given(SEEDS, st.integers(1, 30), st.integers(1, 30), st.integers(1, 4))
def test_products_are_rounded_after_every_operation_in_order(seed: int, n: int, m: int, r: int) -> None:
    p, q = random(seed, n, r), random(seed + 1, m, r)
    out = torch.empty(n, m)
    multiply(p, q, out)
    total = np.outer(p[:, 0], q[:, 0])
    for k in range(1, r):
        total = total + np.outer(p[:, k], q[:, k])
    assert total.dtype == np.float32
    assert torch.equal(out, torch.from_numpy(total))


def test_products_of_many_blocks_are_those_of_one() -> None:
    p, q, out = random(0, 700, 3), random(1, 300, 3), torch.empty(700, 300)
    multiply(p, q, out)
    rows = torch.empty(1, 300)
    for i in range(0, 700, 41):
        multiply(p[i : i + 1], q, rows)
        assert torch.equal(rows[0], out[i])


# ── the codec ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_warm_start_finds_the_best_factors() -> None:
    values = torch.tensor([0.7**k for k in range(30)])
    u, v = torch.linalg.qr(random(0, 60, 30)).Q, torch.linalg.qr(random(1, 50, 30)).Q
    a, codec, memory = (u * values) @ v.T, PowerSGD(rank=4, min_ratio=1), None
    errors = []
    for _ in range(12):
        found, memory = there_and_back(codec, a, memory)
        errors.append(float((found - a).norm()))
    best = float(values[4:].norm())
    assert errors[-1] <= 1.01 * best < errors[0]
    assert all(later <= earlier * (1 + 1e-4) for earlier, later in pairwise(errors))


def test_zeros_are_no_dead_end() -> None:
    codec, a = PowerSGD(rank=2, min_ratio=1), of_rank(3, 20, 15, 2)
    found, memory = there_and_back(codec, torch.zeros(20, 15))
    assert not found.any()
    assert close(there_and_back(codec, a, memory)[0], a)


@given(SEEDS, st.integers(2, 5))
def test_matrices_of_one_shape_are_factored_as_each_alone(seed: int, count: int) -> None:
    codec = PowerSGD(rank=2, min_ratio=1)
    matrices = [random(seed + i, 9, 12) for i in range(count)]
    starts = [random(seed - i - 1, 12, 2) for i in range(count)]
    together, _ = codec.pieces(matrices, torch.cat([start.reshape(-1) for start in starts]))
    for i in range(count):
        (alone,), _ = codec.pieces([matrices[i]], starts[i].reshape(-1))
        for mine, theirs in zip(together[i].parts, alone.parts, strict=True):
            assert close(torch.as_tensor(mine), torch.as_tensor(theirs))


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_sizes_are_those_of_the_factors(rank: int) -> None:
    packet, memory = encode(PowerSGD(rank=rank), torch.ones(64 * 48), [(64, 48)])
    assert packet.nbytes == 8 + 8 + 4 * rank * (64 + 48)
    assert memory is not None
    assert memory.numel() == 48 * rank


SHAPES = [(64, 48), (48, 64), (64, 16, 3, 3), (16, 16), (3, 100), (16, 15), (100,), (), (0, 5), (5, 0), (1, 10**6)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", [1, 2, 4, 7])
def test_a_tensor_is_factored_where_that_is_so_many_times_smaller(shape: tuple[int, ...], rank: int) -> None:
    n, m = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (0, 0)
    r = min(rank, n, m)
    smaller = r > 0 and n * m / (r * (n + m)) >= 2
    assert PowerSGD(rank=rank, min_ratio=2).rank_of(shape) == (r if smaller else 0)


def test_vectors_scalars_and_small_matrices_travel_as_bfloat16() -> None:
    tensors = [torch.ones(100), torch.ones(6, 6), torch.ones(64, 64), torch.ones(10, 8, 3, 3)]
    pieces, _ = PowerSGD(rank=2).pieces(tensors, None)
    assert [piece.form for piece in pieces] == [BF16, BF16, LOW_RANK, LOW_RANK]


@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 4), (4, 0), (1, 1), (2, 3), (3, 1, 1, 1), (1, 50)])
def test_every_shape_comes_back(shape: tuple[int, ...]) -> None:
    tensor = torch.full(shape, 0.5)
    found, _ = there_and_back(PowerSGD(), tensor)
    assert found.shape == shape
    assert torch.equal(found, tensor)


def test_nobody_elses_random_numbers_are_used_or_changed() -> None:
    before, a = torch.get_rng_state(), random(0, 40, 40)
    first, _ = there_and_back(PowerSGD(), a)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(12345)
    again, _ = there_and_back(PowerSGD(), a)
    assert torch.equal(first, again)
    other, _ = there_and_back(PowerSGD(seed=1), a)
    assert not torch.equal(first, other)


def test_what_another_rank_remembered_is_forgotten() -> None:
    a = random(0, 40, 40)
    _, memory = there_and_back(PowerSGD(rank=2), a)
    assert torch.equal(there_and_back(PowerSGD(rank=4), a, memory)[0], there_and_back(PowerSGD(rank=4), a)[0])


# ── what a peer may send ──────────────────────────────────────────────────────────────────────────────────────────────


def low_rank(p: Tensor, q: Tensor, rank: int | None = None) -> Packet:
    return pack([Piece(LOW_RANK, p.shape[1] if rank is None else rank, (p, q))], len(p) * len(q))


@pytest.mark.parametrize("rank", [0, 9, 2**31, 2**32 - 1])
def test_a_rank_that_cannot_be_is_refused(rank: int) -> None:
    with pytest.raises(PeerError, match=f"rank {rank} of a tensor of shape \\[8, 30\\]"):
        check(low_rank(torch.ones(8, 2), torch.ones(30, 2), rank), [(8, 30)])


def test_a_vector_in_factors_is_refused() -> None:
    with pytest.raises(PeerError, match="rank 1 of a tensor of shape"):
        check(low_rank(torch.ones(8, 1), torch.ones(30, 1)), [(240,)])


def test_factors_of_another_size_are_refused() -> None:
    with pytest.raises(PeerError, match="expected"):
        check(low_rank(torch.ones(8, 2), torch.ones(29, 2), 2), [(8, 30)])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2.0**70])
def test_factors_that_do_not_give_finite_products_are_refused(value: float) -> None:
    p, q = torch.full((8, 1), 1.0), torch.full((30, 1), 1.0)
    p[3], q[5] = value, value
    with pytest.raises(PeerError, match="factors"):
        check(low_rank(p, q), [(8, 30)])


def test_a_packet_of_factors_is_packed() -> None:
    packet, _ = encode(PowerSGD(), torch.ones(64 * 64), [(64, 64)])
    assert packet.codec == PACKED


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "rank must be an int from 1 to 1024, got 0"),
        ({"rank": 2.0}, "rank must be an int from 1 to 1024, got 2.0"),
        ({"rank": True}, "rank must be an int from 1 to 1024, got True"),
        ({"min_ratio": 0.5}, "min_ratio must be a number of at least 1, got 0.5"),
        ({"min_ratio": "2"}, "min_ratio must be a number of at least 1, got '2'"),
        ({"back": "dense"}, "back must be 'exact' or 'same', got 'dense'"),
        ({"seed": None}, "seed must be an int, got None"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PowerSGD(**options)  # type: ignore[arg-type]
