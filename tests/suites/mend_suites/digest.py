"""One number for everything that optimizers did in a test: a digest of all their parameters after
each of their steps.

Two runs of a test with equal digests have trained with the same numbers, to the bit."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook


class StepDigest:
    """Watches the steps of all optimizers of torch, from here to `close()`."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=8)
        self._handle = register_optimizer_step_post_hook(self._after)

    def take(self) -> str:
        """The digest of all steps since the last call."""
        digest = self._hash.hexdigest()
        self._hash = hashlib.blake2b(digest_size=8)
        return digest

    def close(self) -> None:
        self._handle.remove()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _after(self, optimizer: Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                # A tensor without data has no numbers.
                with suppress(Exception):
                    self._hash.update(_bytes(parameter))


def _bytes(tensor: Tensor) -> bytes:
    dense = tensor.detach().to_dense().cpu().contiguous()
    return dense.flatten().view(torch.uint8).numpy().tobytes()
