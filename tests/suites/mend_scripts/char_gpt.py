"""A small GPT on characters, as in nanoGPT: two parameter groups, a rate with warmup and cosine,
accumulation, clipping, and a checkpoint that training goes on from."""

from __future__ import annotations

import codecs
import contextlib
import io
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .swap import Swap

BLOCK, BATCH, WIDTH, STEPS, MICRO, WARMUP, RATE = 32, 8, 32, 48, 2, 8, 3e-3


def text() -> str:
    with contextlib.redirect_stdout(io.StringIO()):
        import this
    return codecs.decode(this.s, "rot13")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        y = self.before(x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.after(x))


class GPT(nn.Module):
    def __init__(self, symbols: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(symbols, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, symbols, bias=False)
        self.head.weight = self.token.weight
        nn.init.normal_(self.token.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.blocks(self.token(ids) + self.place.weight))


def groups(model: nn.Module) -> list[dict[str, Any]]:
    """Matrices decay, vectors don't."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


def rate(step: int) -> float:
    if step < WARMUP:
        return RATE * (step + 1) / WARMUP
    return RATE * 0.5 * (1 + math.cos(math.pi * step / STEPS))


def loop(model: nn.Module, optimizer: Any, data: Tensor, first: int, last: int) -> list[float]:
    losses = []
    for step in range(first, last):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        total = 0.0
        for _ in range(MICRO):
            starts = torch.randint(len(data) - BLOCK - 1, (BATCH, 1))
            window = data[starts + torch.arange(BLOCK + 1)]
            logits = model(window[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten()) / MICRO
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(total)
    return losses


def session(swap: Swap, folder: Path, first: int, last: int) -> list[float]:
    """What one start of the script does: begin, or go on from the checkpoint."""
    letters = sorted(set(text()))
    data = torch.tensor([letters.index(letter) for letter in text()])
    model = GPT(len(letters))
    optimizer = swap(torch.optim.AdamW(groups(model), lr=RATE, betas=(0.9, 0.95)))
    file = folder / "ckpt.pt"
    if first:
        saved = torch.load(file)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    losses = loop(model, optimizer, data, first, last)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    return losses


def train(swap: Swap, folder: Path, seed: int) -> list[float]:
    half = STEPS // 2
    return session(swap, folder, 0, half) + session(swap, folder, half, STEPS)
