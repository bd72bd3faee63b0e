"""The text example with two learners and every codec: the loss after equal steps, compared with
float32.

The learners are threads in lockstep (`adopt_after=0`), and their batches depend on seed and step
alone. Moments are not averaged. So two runs of one seed differ in nothing but the codec."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from bench.result import Result, compared
from examples.train_text import CONTEXT, TextModel, content_digest, evaluate, read_corpus, windows
from mend_optim import Int8, MendOptimizer, PowerSGD
from mend_optim.codecs.registry import CODECS, Codec

LEARNERS, STEPS, SYNC_EVERY, BATCH, LR, WARMUP = 2, 320, 16, 8, 1e-3, 50
SEEDS = (0, 1, 2)
LIMIT_S = 600.0

MEASURED: dict[str, Codec] = {
    "bf16": CODECS["bf16"],
    "int8": CODECS["int8"],
    "int4": CODECS["int4"],
    "float4": CODECS["float4"],
    "sparse": CODECS["sparse"],
    "powersgd r4": PowerSGD(rank=4),
    "powersgd r8": PowerSGD(rank=8),
    "powersgd r16": PowerSGD(rank=16),
    "powersgd r32": PowerSGD(rank=32),
    "int8, both ways": Int8(back="same"),
    "powersgd r16, both ways": PowerSGD(rank=16, back="same"),
}
# Of more than two learners, the sealer encodes the merged delta once more.
MANY = 4
MEASURED_WITH_MANY: dict[str, Codec] = {
    "int8": CODECS["int8"],
    "int4": CODECS["int4"],
    "powersgd r16": PowerSGD(rank=16),
    'powersgd r16, back="exact"': PowerSGD(rank=16, back="exact"),
}
# For the codecs that lose most: their distance to float32 must not grow with more steps.
LONG = 4 * STEPS
GOALS = {
    "bf16": "<= 1.005",
    "int8": "<= 1.005",
    "int4": "<= 1.005",
    "powersgd r8": "<= 1.015",
    "powersgd r16": "<= 1.015",
}


def run() -> Iterator[Result]:
    torch.set_num_threads(1)
    texts = [read_corpus(i, LEARNERS) for i in range(LEARNERS)]
    floors = [final_losses(CODECS["none"], seed, texts, moments=None) for seed in SEEDS]
    notes = (
        f"{LEARNERS} learners, {STEPS} steps of AdamW each, {SYNC_EVERY} between rounds; "
        "a pair for each seed"
    )
    for name, codec in MEASURED.items():
        losses = [final_losses(codec, seed, texts, moments=None) for seed in SEEDS]
        yield from _compared(name, codec, losses, floors, notes)
    yield from many()
    floors = [final_losses(CODECS["none"], 0, texts, LONG, moments=None)]
    for name in ("sparse", "powersgd r8", "powersgd r16"):
        losses = [final_losses(MEASURED[name], 0, texts, LONG, moments=None)]
        yield from _compared(f"{name}, {LONG} steps", MEASURED[name], losses, floors, "one seed")


def many() -> Iterator[Result]:
    """The same with more learners."""
    texts = [read_corpus(i, MANY) for i in range(MANY)]
    floors = [final_losses(CODECS["none"], seed, texts, moments=None) for seed in SEEDS]
    for name, codec in MEASURED_WITH_MANY.items():
        losses = [final_losses(codec, seed, texts, moments=None) for seed in SEEDS]
        notes = f"{MANY} learners; a pair for each seed"
        yield from _compared(f"{name}, {MANY} learners", codec, losses, floors, notes)


class Losses(NamedTuple):
    """Held-out losses after the last step, which is a boundary; and after `synchronize()`."""

    trained: float
    closed: float


def _compared(
    name: str, codec: Codec, losses: Sequence[Losses], floors: Sequence[Losses], notes: str
) -> Iterator[Result]:
    what, goal = f"{name}: held-out loss over float32's", GOALS.get(name.partition(",")[0], "")
    own, floor = ([each.closed for each in some] for some in (losses, floors))
    yield compared("convergence", what, "nats/byte", own, floor, goal=goal, notes=notes)
    if codec.residual_in_weights:
        own = [each.trained for each in losses]
        yield compared(
            "convergence",
            f"{what}, before synchronize()",
            "nats/byte",
            own,
            floor,
            goal="",
            notes=notes,
        )


def final_losses(
    codec: Codec, seed: int, texts: list[tuple[Tensor, Tensor]], steps: int = STEPS, **settings: Any
) -> Losses:
    """The held-out losses of the global weights at the end, with one learner on each text. Raises
    if the learners do not agree on the weights."""
    torch.manual_seed(seed)
    first, learners = TextModel(), len(texts)
    models = [first, *(copy.deepcopy(first) for _ in range(learners - 1))]
    optimizers: list[MendOptimizer] = []
    for i, model in enumerate(models):
        inner = AdamW(model.parameters(), lr=LR)
        peers = [optimizers[0].status().address] if optimizers else []
        options: dict[str, Any] = {
            "sync_every": SYNC_EVERY,
            "adopt_after": 0,
            "quorum": learners,
            "codec": codec,
        }
        place: dict[str, Any] = {"name": f"l{i}", "listen": "127.0.0.1:0", "peers": peers}
        optimizers.append(MendOptimizer(inner, **place, **options, **settings))
    pairs = list(zip(models, optimizers, strict=True))
    _each(lambda i: train(*pairs[i], texts[i][0], learners * seed + i, steps), learners)
    trained = _loss(codec, pairs, texts[0][1])
    _each(lambda i: optimizers[i].synchronize(LIMIT_S), learners)
    closed = _loss(codec, pairs, texts[0][1])
    for optimizer in optimizers:
        optimizer.close()
    return Losses(trained, closed)


def _each(work: Callable[[int], object], count: int) -> None:
    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)


def _loss(codec: Codec, pairs: Sequence[tuple[nn.Module, MendOptimizer]], text: Tensor) -> float:
    digests = set()
    for model, optimizer in pairs:
        with optimizer.global_weights():
            digests.add(content_digest(model))
            loss = float(evaluate(model, text))
    if len(digests) != 1:
        raise RuntimeError(f"{codec}: the learners end on {len(digests)} models")
    return loss


def train(model: nn.Module, optimizer: MendOptimizer, text: Tensor, seed: int, steps: int) -> None:
    """The last step is a boundary, so all of it is merged."""
    warmup = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: min(1.0, (done + 1) / WARMUP)
    )
    for step in range(steps):
        draws = torch.Generator().manual_seed(1_000_003 * seed + step)
        starts = torch.randint(len(text) - CONTEXT, (BATCH,), generator=draws)
        optimizer.zero_grad()
        model(*windows(text, starts)).backward()
        optimizer.step()
        warmup.step()
