"""Two small tasks on which the bench "learning" compares ways to train together.

- *text*: a transformer over bytes (0.12 M parameters) learns to continue the sources of Python's
  standard library; AdamW. A part of the data is a stretch of these sources.
- *images*: a convolutional network (38,282 parameters) learns to read the 8 × 8 digits that
  scikit-learn brings along, shifted and in noise; SGD with momentum. A part of the data is some of
  the ten digits.

A batch depends on its generator and on the part of the data that a learner has, so the runs of one
seed see the same data in the same order."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer

from examples.train_text import read_corpus

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class Part:
    """Part `index` of the data, which has `of` parts. A sample is of that part with the probability
    `share`, and else of all the data."""

    index: int
    of: int
    share: float

    def choose(self, generator: Generator, size: int, own: Tensor, count: int) -> Tensor:
        """So many indices of `count` examples, of which `own` are this part's. Raises `ValueError`
        if these are none."""
        if not len(own):
            raise ValueError(f"part {self.index} of {self.of} has no examples; take fewer learners")
        of_all = torch.randint(count, (size,), generator=generator)
        of_own = own[torch.randint(len(own), (size,), generator=generator)]
        return torch.where(torch.rand(size, generator=generator) < self.share, of_own, of_all)


class Draw(Protocol):
    """Draws a batch of so many examples: from a part of the data, or from all of it."""

    def __call__(self, generator: Generator, size: int, part: Part | None = None, /) -> Batch: ...


@dataclass(frozen=True, kw_only=True)
class Task:
    """A model, its inner optimizer and its data. A model maps a batch (x, y) to its mean
    loss, in nats."""

    model: Callable[[], nn.Module]
    inner: Callable[[Iterable[nn.Parameter], float], Optimizer]
    draw: Draw
    held_out: tuple[Batch, ...]

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        """The mean loss over the held-out examples."""
        losses = [model(x, y).item() * len(x) for x, y in self.held_out]
        return sum(losses) / sum(len(x) for x, _ in self.held_out)


def on_device(task: Task, device: str) -> Task:
    """The task with its models and batches on `device`. They are drawn on the host, so that they
    are the same everywhere."""

    def there(batch: Batch) -> Batch:
        x, y = batch
        return x.to(device), y.to(device)

    return Task(
        model=lambda: task.model().to(device),
        inner=task.inner,
        draw=lambda generator, size, part=None: there(task.draw(generator, size, part)),
        held_out=tuple(there(batch) for batch in task.held_out),
    )


# ── text ──────────────────────────────────────────────────────────────────────────────────────────

CONTEXT, WIDTH, LAYERS, HEADS = 64, 64, 2, 4
HELD_OUT_WINDOWS = 512


class Block(nn.Module):
    """Causal attention, then a two-layer perceptron, each added to its normalised input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm2(x))


class ByteModel(nn.Module):
    """A decoder-only transformer over bytes, a third of the text example's size."""

    def __init__(self) -> None:
        super().__init__()
        self.byte, self.place = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)
        for embedding in (self.byte, self.place):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = self.byte(x) + self.place.weight[: x.shape[1]]
        return F.cross_entropy(self.head(self.norm(self.blocks(hidden))).flatten(0, 1), y.flatten())


def windows(text: Tensor, starts: Tensor) -> Batch:
    """Bytes to read and, one place further, bytes to predict."""
    batch = text[starts[:, None] + torch.arange(CONTEXT + 1)].long()
    return batch[:, :-1], batch[:, 1:]


def text_task() -> Task:
    text, held_out = read_corpus(0, 1)
    starts = torch.linspace(0, len(held_out) - CONTEXT - 1, HELD_OUT_WINDOWS).long()

    count = len(text) - CONTEXT

    @cache  # a learner draws from one stretch at each step
    def stretch(index: int, of: int) -> Tensor:
        return torch.arange(count * index // of, count * (index + 1) // of)

    def draw(generator: Generator, size: int, part: Part | None = None, /) -> Batch:
        if part is None:
            return windows(text, torch.randint(count, (size,), generator=generator))
        return windows(text, part.choose(generator, size, stretch(part.index, part.of), count))

    return Task(
        model=ByteModel,
        inner=lambda parameters, rate: AdamW(parameters, lr=rate, betas=(0.9, 0.95)),
        draw=draw,
        held_out=tuple(windows(held_out, part) for part in starts.split(64)),
    )


# ── images ────────────────────────────────────────────────────────────────────────────────────────

DIGITS, SIDE, BRIGHTEST = 10, 8, 16.0
SHIFT, NOISE = 1, 0.25  # pixels to each side; standard deviation, where the brightest pixel is 1
HELD_OUT_EVERY, HELD_OUT_COPIES = 5, 4


class DigitModel(nn.Module):
    """Two convolutions and two linear layers. No batch normalisation, as buffers stay local."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * (SIDE // 2) ** 2, 64),
            nn.ReLU(),
            nn.Linear(64, DIGITS),
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.layers(x), y)


def absent() -> str:
    """Why the task "images" cannot run here; empty if it can."""
    if importlib.util.find_spec("sklearn") is None:
        return "scikit-learn, which brings the images, is missing; pip install 'mend-optim[bench]'"
    return ""


def disturbed(images: Tensor, generator: Generator) -> Tensor:
    """Each image moved by up to `SHIFT` pixels in either direction, and in noise:
    images_BHW -> images_B1HW."""
    padded = F.pad(images, (SHIFT, SHIFT, SHIFT, SHIFT))
    row, column = torch.randint(2 * SHIFT + 1, (2, len(images), 1, 1), generator=generator)
    inside = torch.arange(SIDE)
    which = torch.arange(len(images))[:, None, None]
    moved = padded[which, row + inside[:, None], column + inside]
    return (moved + NOISE * torch.randn(moved.shape, generator=generator))[:, None]


def images_task() -> Task:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32) / BRIGHTEST
    labels = torch.tensor(digits.target).long()
    held = torch.arange(len(images)) % HELD_OUT_EVERY == 0
    train_images, train_labels = images[~held], labels[~held]
    held_images = images[held].repeat(HELD_OUT_COPIES, 1, 1)
    held_images = disturbed(held_images, Generator().manual_seed(0))
    held_labels = labels[held].repeat(HELD_OUT_COPIES)

    def draw(generator: Generator, size: int, part: Part | None = None, /) -> Batch:
        count = len(train_images)
        if part is None:
            chosen = torch.randint(count, (size,), generator=generator)
        else:
            own = (train_labels * part.of // DIGITS == part.index).nonzero().flatten()
            chosen = part.choose(generator, size, own, count)
        return disturbed(train_images[chosen], generator), train_labels[chosen]

    return Task(
        model=DigitModel,
        inner=lambda parameters, rate: SGD(parameters, lr=rate, momentum=0.9, weight_decay=5e-4),
        draw=draw,
        held_out=((held_images, held_labels),),
    )


TASKS: dict[str, Callable[[], Task]] = {"text": text_task, "images": images_task}
#: The learning rates worth trying.
RATES = {"text": (1e-3, 2e-3, 4e-3), "images": (0.02, 0.04, 0.08)}
#: The rate that serves all arms well; a bench that tunes none takes it.
RATE = {"text": 2e-3, "images": 0.04}
ABSENT = {"images": absent}
