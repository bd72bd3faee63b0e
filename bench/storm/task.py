"""The learners' task: predict the next byte of Python's own standard library from the eight bytes
before it."""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CONTEXT, SYMBOLS, BATCH = 8, 128, 64
CORPUS_BYTES = 2_000_000
WIDTH, HIDDEN = 16, 96


def read_corpus() -> Tensor:
    """The first bytes of the library's modules, in an order that does not depend on their names'
    alphabet."""
    root = Path(sysconfig.get_paths()["stdlib"])
    modules = sorted(
        root.glob("*.py"), key=lambda path: hashlib.sha256(path.name.encode()).digest()
    )
    text = bytearray()
    for path in modules:
        text += path.read_bytes()
        if len(text) >= CORPUS_BYTES:
            break
    return torch.frombuffer(text, dtype=torch.uint8) & (SYMBOLS - 1)


def network(seed: int) -> nn.Sequential:
    """Some 25,000 parameters in 5 tensors."""
    torch.manual_seed(seed)
    hidden = nn.Linear(CONTEXT * WIDTH, HIDDEN)
    return nn.Sequential(
        nn.Embedding(SYMBOLS, WIDTH), nn.Flatten(), hidden, nn.Tanh(), nn.Linear(HIDDEN, SYMBOLS)
    )


class Task:
    """A model and its batches. Each life of a learner draws batches of its own."""

    def __init__(self, corpus: Tensor, seed: int) -> None:
        self.model = network(seed)
        self._corpus = corpus
        self._draws = torch.Generator().manual_seed(seed)

    def loss(self) -> Tensor:
        starts = torch.randint(len(self._corpus) - CONTEXT, (BATCH,), generator=self._draws)
        window = self._corpus[starts[:, None] + torch.arange(CONTEXT + 1)].long()
        return F.cross_entropy(self.model(window[:, :-1]), window[:, -1])
