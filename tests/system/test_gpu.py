"""The GPU paths: asynchronous copies to pinned memory, corrections back, AMP, fused and compiled
steps. Skipped without a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

from mend_optim import MendOptimizer, Timing

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
TIMING = Timing(beat_s=0.2, join_timeout_s=20, round_timeout_s=30, evict_after_s=5)
STEPS, EVERY = 40, 8


def model(seed: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).to("cuda", dtype)


def together(
    make: Callable[[nn.Module], torch.optim.Optimizer],
    step: Callable[..., None],
    dtype: torch.dtype = torch.float32,
    **kwargs: object,
) -> list[tuple[nn.Module, MendOptimizer]]:
    """Train two learners in two threads of this process, synchronize, return both."""
    models = [model(seed, dtype) for seed in (0, 1)]
    first = MendOptimizer(
        make(models[0]),
        name="a",
        listen="127.0.0.1:0",
        sync_every=EVERY,
        timing=TIMING,
        quorum=2,
        **kwargs,
    )  # type: ignore[arg-type]
    second = MendOptimizer(
        make(models[1]),
        name="b",
        peers=[first.status().address],
        sync_every=EVERY,
        timing=TIMING,
        quorum=2,
        **kwargs,  # type: ignore[arg-type]
    )
    faults: list[BaseException] = []

    def train(m: nn.Module, optimizer: MendOptimizer, seed: int) -> None:
        try:
            draws = torch.Generator("cuda").manual_seed(seed)
            for _ in range(STEPS):
                step(
                    m, optimizer, torch.randn(64, 256, device="cuda", generator=draws, dtype=dtype)
                )
            assert optimizer.synchronize(20)
        except BaseException as fault:
            faults.append(fault)

    pairs = [(models[0], first), (models[1], second)]
    threads = [
        threading.Thread(target=train, args=(m, o, seed)) for seed, (m, o) in enumerate(pairs)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    for _, optimizer in pairs:  # the first to finish takes what the other merged since
        assert optimizer.synchronize(20)
    return pairs


def plain_step(m: nn.Module, optimizer: MendOptimizer, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    (m(x) - x).float().pow(2).mean().backward()
    optimizer.step()


def check(pairs: list[tuple[nn.Module, MendOptimizer]]) -> None:
    """Both hold one anchor, bit for bit, with all tokens of both. There were rounds, and the
    weights are near the anchor."""
    (m, a), (n, b) = pairs
    try:
        assert a.status().roster
        assert b.status().roster
        assert a.status().fragments == b.status().fragments
        assert a.status().rounds_adopted >= 3
        assert a.status().fragments[0].tokens == a.status().tokens + b.status().tokens
        local = [p.detach().clone() for p in m.parameters()]
        with a.global_weights(), b.global_weights():
            for p, q, mine in zip(m.parameters(), n.parameters(), local, strict=True):
                assert p.is_cuda
                assert torch.equal(p, q)
                torch.testing.assert_close(
                    p, mine, atol=2e-2 if p.dtype == torch.bfloat16 else 1e-5, rtol=0
                )
    finally:
        a.close()
        b.close()


@pytest.mark.parametrize("fused", [False, True])
def test_adamw_on_a_gpu(fused: bool) -> None:
    check(together(lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3, fused=fused), plain_step))


def test_bf16_parameters_and_fragments() -> None:
    check(
        together(
            lambda m: torch.optim.SGD(m.parameters(), lr=0.05),
            plain_step,
            torch.bfloat16,
            fragments=2,
        )
    )


def test_lockstep_on_a_gpu() -> None:
    check(
        together(
            lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3),
            plain_step,
            adopt_after=2,
            grace=20,
        )
    )


def test_amp_with_a_scaler() -> None:
    scalers: dict[int, torch.amp.GradScaler] = {}

    def step(m: nn.Module, optimizer: MendOptimizer, x: torch.Tensor) -> None:
        scaler = scalers.setdefault(id(m), torch.amp.GradScaler("cuda", init_scale=256.0))
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = (m(x) - x).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    check(together(lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3), step))


def test_compiled_model() -> None:
    compiled: dict[int, Callable[[torch.Tensor], torch.Tensor]] = {}
    lock = threading.Lock()

    def step(m: nn.Module, optimizer: MendOptimizer, x: torch.Tensor) -> None:
        with lock:  # two threads must not compile at once
            forward = compiled.setdefault(id(m), torch.compile(m))
            optimizer.zero_grad()
            (forward(x) - x).pow(2).mean().backward()
        optimizer.step()

    check(together(lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3, fused=True), step))
