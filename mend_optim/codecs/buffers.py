"""A pool of host memory that is used again and again."""

from __future__ import annotations

import weakref
from collections import defaultdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mend_optim.codecs.packing import as_bytes, fresh

#: Bytes. A smaller buffer is not worth keeping.
SMALL = 1 << 16


class Buffers:
    """Host buffers that return to the pool when their last holder drops them. Page faults cost more
    than copies, so a buffer of 100 MB is worth keeping. A slice of it, or a packet being sent,
    keeps it alive by itself.

    Tensors come in few sizes, those of fragments, and are pinned for GPUs. Bytes come in any size,
    rounded up to a power of two: otherwise a peer that sends another size every time would fill the
    memory."""

    def __init__(self, pin: bool = False) -> None:
        self._pin = pin
        self._free: defaultdict[tuple[int, bool], list[np.ndarray[Any, Any]]] = defaultdict(list)

    def take(self, numel: int) -> Tensor:
        """A flat float32 buffer of `numel` elements, with arbitrary content."""
        return self._lend(numel, self._pin)

    def take_bytes(self, nbytes: int) -> memoryview:
        """A buffer of `nbytes` bytes, with arbitrary content."""
        if nbytes < SMALL:
            return fresh(nbytes)
        return as_bytes(self._lend(1 << (-(-nbytes // 4) - 1).bit_length(), False))[:nbytes]

    def _lend(self, numel: int, pin: bool) -> Tensor:
        free = self._free[numel, pin]
        try:
            base = free.pop()
        except IndexError:
            base = torch.empty(numel, dtype=torch.float32, pin_memory=pin, device="cpu").numpy()
        # The finalizer is on this view, because torch's storage holds it and slices share it. The
        # tensor object handed out may die before its slices do, and arrays of it refer to `base`.
        lent = base.view()
        weakref.finalize(lent, free.append, base).atexit = False
        # The caller's script may be in inference mode, and the worker changes the buffer later.
        with torch.inference_mode(False):
            return torch.from_numpy(lent)
