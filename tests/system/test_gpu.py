"""The GPU paths: copies and corrections beside the training stream, AMP, fused, compiled and
captured steps, checkpoints, ranks. Skipped without a GPU."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mend_optim import MendOptimizer, MomentSchedule, Timing, UsageError
from mend_optim.model.side_copies import PIECE, SideCopies
from tests.support.learners import start

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(120),
]
TIMING = Timing(beat_s=0.2, join_timeout_s=20, round_timeout_s=30, evict_after_s=5)
STEPS, EVERY, SIZE = 40, 8, 256
#: Cycles for which the GPU does nothing: about a second.
NAP = 2_000_000_000

Pairs = list[tuple[nn.Module, MendOptimizer]]


def model(seed: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(SIZE, 512), nn.GELU(), nn.Linear(512, SIZE)).to("cuda", dtype)


def two_learners(
    make: Callable[[nn.Module], torch.optim.Optimizer], models: list[nn.Module], **kwargs: Any
) -> Pairs:
    """Two learners in this process, which have joined and have not trained."""
    options = {"sync_every": EVERY, "timing": TIMING, "quorum": 2, **kwargs}
    first = MendOptimizer(make(models[0]), name="a", listen="127.0.0.1:0", **options)
    second = MendOptimizer(
        make(models[1]),
        name="b",
        listen="127.0.0.1:0",
        peers=[first.status().address],
        **options,
    )
    start([first, second])
    return [(models[0], first), (models[1], second)]


def side_by_side(pairs: Pairs, work: Callable[[int, nn.Module, MendOptimizer], None]) -> None:
    """Both learners' work, each in a thread of its own."""
    faults: list[BaseException] = []

    def caught(seed: int, m: nn.Module, optimizer: MendOptimizer) -> None:
        try:
            work(seed, m, optimizer)
        except BaseException as fault:
            faults.append(fault)

    threads = [
        threading.Thread(target=caught, args=(seed, m, o)) for seed, (m, o) in enumerate(pairs)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]


def train(
    pairs: Pairs, step: Callable[..., None], dtype: torch.dtype = torch.float32, steps: int = STEPS
) -> None:
    """Train both learners and synchronize them."""

    def work(seed: int, m: nn.Module, optimizer: MendOptimizer) -> None:
        draws = torch.Generator("cuda").manual_seed(seed)
        for _ in range(steps):
            x = torch.randn(64, SIZE, device="cuda", generator=draws, dtype=dtype)
            step(m, optimizer, x)
        assert optimizer.synchronize(20)

    side_by_side(pairs, work)
    for _, optimizer in pairs:  # the first to finish takes what the other merged since
        assert optimizer.synchronize(20)


def together(
    make: Callable[[nn.Module], torch.optim.Optimizer],
    step: Callable[..., None],
    dtype: torch.dtype = torch.float32,
    **kwargs: Any,
) -> Pairs:
    """Two learners that have trained together."""
    pairs = two_learners(make, [model(seed, dtype) for seed in (0, 1)], **kwargs)
    train(pairs, step, dtype)
    return pairs


def plain_step(m: nn.Module, optimizer: Any, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    (m(x) - x).float().pow(2).mean().backward()
    optimizer.step()


def adamw(m: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(m.parameters(), lr=1e-3)


def check(pairs: Pairs) -> None:
    """Both hold one anchor, bit for bit, with all tokens of both. There were rounds, and the
    weights are near the anchor."""
    (m, a), (n, b) = pairs
    with closing(a), closing(b):
        assert a.status().roster
        assert b.status().roster
        assert a.status().fragments == b.status().fragments
        assert a.status().rounds_adopted >= 1
        assert a.status().fragments[0].tokens == a.status().tokens + b.status().tokens
        local = [p.detach().clone() for p in m.parameters()]
        with a.global_weights(), b.global_weights():
            for p, q, mine in zip(m.parameters(), n.parameters(), local, strict=True):
                assert p.is_cuda
                assert torch.equal(p, q)
                torch.testing.assert_close(
                    p, mine, atol=2e-2 if p.dtype == torch.bfloat16 else 1e-5, rtol=0
                )


# ── rounds ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fused", [False, True])
def test_adamw_on_a_gpu(fused: bool) -> None:
    check(together(lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3, fused=fused), plain_step))


@pytest.mark.parametrize("codec", ["int4", "powersgd"])
def test_bf16_parameters_and_fragments(codec: str) -> None:
    def make(m: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(m.parameters(), lr=0.05)

    check(together(make, plain_step, torch.bfloat16, fragments=2, codec=codec))


def test_lockstep_on_a_gpu() -> None:
    check(together(adamw, plain_step, adopt_after=2, grace=20))


@pytest.mark.parametrize("capturable", [False, True])
def test_moments_are_averaged(capturable: bool) -> None:
    """Also where the optimizer's counters of updates are on the GPU."""

    def make(m: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(m.parameters(), lr=1e-3, capturable=capturable)

    # Nobody trains after the last round.
    pairs = together(make, plain_step, moments=MomentSchedule(first=1, second=1), adopt_after=0)
    (m, a), (n, b) = pairs
    for p, q in zip(m.parameters(), n.parameters(), strict=True):
        ours, theirs = a.state[p], b.state[q]
        assert ours["exp_avg"].is_cuda
        torch.testing.assert_close(ours["exp_avg"], theirs["exp_avg"], atol=1e-7, rtol=1e-4)
        torch.testing.assert_close(ours["exp_avg_sq"], theirs["exp_avg_sq"], atol=1e-9, rtol=1e-4)
    check(pairs)


def test_weights_on_a_gpu_are_those_on_the_host() -> None:
    """In lockstep, with gradients that nobody computes, the devices differ by rounding alone."""

    def ended(device: str) -> list[torch.Tensor]:
        models = [model(seed).to(device) for seed in (0, 1)]
        gradients = torch.Generator().manual_seed(0)
        drawn = [
            [torch.randn(p.shape, generator=gradients) for p in m.parameters()] for m in models
        ]

        trained: dict[int, list[torch.Tensor]] = {}

        def work(seed: int, m: nn.Module, optimizer: MendOptimizer) -> None:
            for _ in range(STEPS):
                for p, gradient in zip(m.parameters(), drawn[seed], strict=True):
                    p.grad = gradient.to(device)
                optimizer.step()
            trained[seed] = [p.detach().cpu() for p in m.parameters()]

        def make(m: nn.Module) -> torch.optim.Optimizer:
            return torch.optim.SGD(m.parameters(), lr=1e-2)

        pairs = two_learners(make, models, adopt_after=2, grace=20, fragments=2)
        side_by_side(pairs, work)
        for _, optimizer in pairs:
            optimizer.close()
        return trained[0] + trained[1]

    for there, here in zip(ended("cuda"), ended("cpu"), strict=True):
        torch.testing.assert_close(there, here, atol=1e-6, rtol=1e-6)


# ── the training stream ───────────────────────────────────────────────────────────────────────────


def test_steps_with_syncs_do_not_wait_for_the_gpu() -> None:
    """Copies and corrections are enqueued while the GPU is still busy with something else."""
    pairs = two_learners(lambda m: torch.optim.SGD(m.parameters(), lr=1e-3), [model(0), model(1)])
    train(pairs, plain_step)
    (m, a), (_, b) = pairs
    x = torch.randn(64, SIZE, device="cuda")
    with closing(a), closing(b):
        before = a.status()
        torch.cuda._sleep(NAP)
        busy = torch.cuda.Event()
        busy.record()
        for _ in range(EVERY):
            plain_step(m, a, x)
        assert not busy.query()
        train(pairs, plain_step)
        after = a.status()
    assert after.rounds_adopted > before.rounds_adopted


def test_without_room_on_the_gpu_copies_go_straight_to_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = 0
    empty = torch.empty

    def scarce(*size: Any, **options: Any) -> torch.Tensor:
        nonlocal refused
        if options.get("device") == torch.device("cuda", 0):
            refused += 1
            raise torch.cuda.OutOfMemoryError("no room")
        return empty(*size, **options)

    monkeypatch.setattr(torch, "empty", scarce)
    pairs = together(adamw, plain_step)
    assert refused
    check(pairs)


def test_memory_on_the_gpu_is_given_back() -> None:
    pairs = two_learners(adamw, [model(0), model(1)])
    train(pairs, plain_step)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    train(pairs, plain_step)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before
    check(pairs)


def test_what_takes_many_pieces_of_pinned_memory_is_whole() -> None:
    side, numel = SideCopies(torch.device("cuda", 0)), 3 * PIECE // 4 + 1
    values, out = torch.randn(numel), torch.empty(numel)
    brought, room = side.bring([values]), side.room(numel)
    assert brought is not None
    assert room is not None
    side.use(brought)
    room.copy_(brought[0])
    side.take_out(room, out)
    side.ready()()
    assert torch.equal(out, values)


# ── ways to step ──────────────────────────────────────────────────────────────────────────────────


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

    check(together(adamw, step))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_model(mode: str) -> None:
    """Of the learners, one compiles. With "reduce-overhead" that captures graphs, beside rounds."""
    compiled: dict[int, Callable[[torch.Tensor], torch.Tensor]] = {}

    def step(m: nn.Module, optimizer: MendOptimizer, x: torch.Tensor) -> None:
        if optimizer.name == "a":
            forward = compiled.setdefault(id(m), torch.compile(m, mode=mode))
        else:
            forward = m
        optimizer.zero_grad()
        (forward(x) - x).pow(2).mean().backward()
        optimizer.step()

    check(together(lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3, fused=True), step))


@pytest.mark.parametrize("mode", ["thread_local", "global"])
def test_a_captured_forward_and_backward_pass(mode: str) -> None:
    """Gradients come from a graph that is captured beside rounds, and replayed. The other learner
    does not train meanwhile: in "global" mode no thread of the process may allocate."""
    graphs: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
    steps: dict[int, int] = {}
    meeting = threading.Barrier(2)

    def step(m: nn.Module, optimizer: MendOptimizer, x: torch.Tensor) -> None:
        steps[id(m)] = steps.get(id(m), 0) + 1
        if steps[id(m)] == 2 * EVERY:
            meeting.wait(60)
            if optimizer.name == "a":
                graphs[id(m)] = captured(m, x)
            meeting.wait(60)
        if id(m) not in graphs:
            plain_step(m, optimizer, x)
            return
        graph, inputs = graphs[id(m)]
        inputs.copy_(x)
        graph.replay()
        optimizer.step()

    def captured(m: nn.Module, x: torch.Tensor) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        inputs = x.clone()
        graph = torch.cuda.CUDAGraph()
        m.zero_grad(set_to_none=False)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, capture_error_mode=mode):
            for p in m.parameters():
                assert p.grad is not None
                p.grad.zero_()
            (m(inputs) - inputs).pow(2).mean().backward()
        return graph, inputs

    check(together(adamw, step))
    assert graphs


@pytest.mark.parametrize("mode", ["thread_local", "global"])
def test_copies_are_made_while_a_graph_is_captured(mode: str) -> None:
    """Of sizes for which torch has no memory left over, so that it has to be taken meanwhile."""
    numel = 3 * PIECE + 1
    side, values = SideCopies(torch.device("cuda", 0)), torch.randn(numel)
    room, out = side.room(numel), torch.empty(numel)
    assert room is not None
    x, y = (room.copy_(values)[:1024].clone() for _ in range(2))
    side.take_out(room, out)
    ready, brought = side.ready(), []

    def work() -> None:
        ready()
        brought.append(side.bring([values]))

    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    graph, worker = torch.cuda.CUDAGraph(), threading.Thread(target=work)
    with torch.cuda.graph(graph, capture_error_mode=mode):
        worker.start()
        worker.join()
        y.add_(x)
    graph.replay()
    assert torch.equal(out, values)
    assert torch.equal(brought[0][0].cpu(), values)
    assert torch.equal(y.cpu(), 2 * values[:1024])


def test_a_step_that_is_captured_is_refused() -> None:
    m = model(0)
    optimizer = MendOptimizer(
        torch.optim.AdamW(m.parameters(), lr=1e-3, capturable=True),
        name="a",
        listen="127.0.0.1:0",
        timing=TIMING,
    )
    x = torch.randn(64, SIZE, device="cuda")
    with closing(optimizer):
        plain_step(m, optimizer, x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with (
            pytest.raises(UsageError, match=r"step\(\) must not be captured"),
            torch.cuda.graph(graph, capture_error_mode="thread_local"),
        ):
            optimizer.step()


# ── checkpoints and ranks ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_checkpoint_goes_on(dtype: torch.dtype) -> None:
    """In mid-run, with rounds on their way. What bf16 has rounded away is in it."""

    def make(m: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(m.parameters(), lr=1e-3)

    pairs = two_learners(make, [model(seed, dtype) for seed in (0, 1)])
    train(pairs, plain_step, dtype)
    (m, a), (n, b) = pairs
    x = torch.randn(64, SIZE, device="cuda", dtype=dtype)
    for _ in range(EVERY + 1):
        plain_step(m, a, x)
    file = io.BytesIO()
    torch.save({"model": m.state_dict(), "optimizer": a.state_dict()}, file)
    a.close()
    file.seek(0)
    saved = torch.load(file, weights_only=False)
    again = copy.deepcopy(m)
    again.load_state_dict(saved["model"])
    back = MendOptimizer(
        make(again),
        name="a",
        listen="127.0.0.1:0",
        peers=[b.status().address],
        sync_every=EVERY,
        timing=TIMING,
        quorum=2,
    )
    back.load_state_dict(saved["optimizer"])
    train([(again, back), (n, b)], plain_step, dtype)
    assert back.status().dropped_tokens == 0
    check([(again, back), (n, b)])


@pytest.fixture
def ranks() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_ranks_that_share_a_gpu(
    kind: str, ranks: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    m = model(seed=1)
    with MendOptimizer(
        torch.optim.AdamW(m.named_parameters(), lr=1e-3),
        name="alone",
        listen="127.0.0.1:0",
        sync_every=EVERY,
        timing=TIMING,
        quorum=2,
    ) as optimizer:
        for rank in range(2):
            place = [kind, str(rank), "2", str(tmp_path / "store"), optimizer.status().address]
            command = [sys.executable, "-m", "tests.system.gpu_rank", *place]
            ranks.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        draws = torch.Generator("cuda").manual_seed(2)
        steps = 0
        while steps < STEPS or not optimizer.status().roster:
            plain_step(m, optimizer, torch.randn(64, SIZE, device="cuda", generator=draws))
            steps += 1
        finish = optimizer.finish(60)
    digests = [process.communicate(timeout=60)[0].split()[-1] for process in ranks]
    assert digests == [finish.digest] * 2
    assert finish.agreed
    assert set(finish.tokens) == {"alone", "ranks"}
