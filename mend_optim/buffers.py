"""Host memory that is used again and again."""

from __future__ import annotations

import weakref
from collections import defaultdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .packet import as_bytes


class Buffers:
    """Float32 host buffers that return to the pool when their last holder drops them (pinned for GPUs). Page faults
    cost more than copies, so a buffer of 100 MB is worth keeping; a slice of it, or a packet being sent, keeps it alive
    by itself."""

    def __init__(self, pin: bool = False) -> None:
        self._pin = pin
        self._free: defaultdict[int, list[np.ndarray[Any, Any]]] = defaultdict(list)

    def take(self, numel: int) -> Tensor:
        """A flat float32 buffer of `numel` elements with arbitrary content."""
        free = self._free[numel]
        try:
            base = free.pop()
        except IndexError:
            base = torch.empty(numel, dtype=torch.float32, pin_memory=self._pin).numpy()
        # The view is what torch's storage holds: slices share the storage, but not the tensor object handed out.
        lent = base.view()
        weakref.finalize(lent, free.append, base).atexit = False
        return torch.from_numpy(lent)

    def take_bytes(self, nbytes: int) -> memoryview:
        """A buffer for `nbytes` bytes from the wire, with arbitrary content."""
        return as_bytes(self.take(-(-nbytes // 4)))[:nbytes]
