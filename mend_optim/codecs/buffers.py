"""Host memory that is used again and again."""

from __future__ import annotations

import weakref
from collections import defaultdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mend_optim.codecs.packing import as_bytes, fresh

SMALL = 1 << 16  # bytes: less is not worth keeping


class Buffers:
    """Host buffers that return to the pool when their last holder drops them. Page faults cost more
    than copies, so a buffer of 100 MB is worth keeping; a slice of it, or a packet being sent,
    keeps it alive by itself.

    Tensors are of few sizes, those of fragments, and pinned for GPUs. Bytes are of any size: for
    them it is rounded up to a power of two, or whoever sends other sizes every time would fill the
    memory."""

    def __init__(self, pin: bool = False) -> None:
        self._pin = pin
        self._free: defaultdict[tuple[int, bool], list[np.ndarray[Any, Any]]] = defaultdict(list)

    def take(self, numel: int) -> Tensor:
        """A flat float32 buffer of `numel` elements with arbitrary content."""
        return self._lend(numel, self._pin)

    def take_bytes(self, nbytes: int) -> memoryview:
        """A buffer for `nbytes` bytes, with arbitrary content."""
        if nbytes < SMALL:
            return fresh(nbytes)
        return as_bytes(self._lend(1 << (-(-nbytes // 4) - 1).bit_length(), False))[:nbytes]

    def _lend(self, numel: int, pin: bool) -> Tensor:
        free = self._free[numel, pin]
        try:
            base = free.pop()
        except IndexError:
            base = torch.empty(numel, dtype=torch.float32, pin_memory=pin).numpy()
        # The view is what torch's storage holds, and what slices share: not the tensor object
        # handed out, and not its arrays, which are all of `base`.
        lent = base.view()
        weakref.finalize(lent, free.append, base).atexit = False
        return torch.from_numpy(lent)
