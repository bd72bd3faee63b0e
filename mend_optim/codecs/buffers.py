"""A pool of host memory that is used again and again."""

from __future__ import annotations

import weakref
from collections import defaultdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mend_optim.codecs.packing import as_bytes, fresh

Base = np.ndarray[Any, Any]
Reference = weakref.ref[Base]

#: Bytes. A smaller buffer is not worth keeping.
SMALL = 1 << 16


class Buffers:
    """Host buffers that return to the pool when their last holder drops them. Page faults cost more
    than copies, so a buffer of 100 MB is worth keeping. A slice of it, or a packet being sent,
    keeps it alive by itself.

    Tensors come in few sizes, those of fragments. Bytes come in any size, rounded up to a power of
    two: otherwise a peer that sends another size every time would fill the memory."""

    def __init__(self) -> None:
        self._free: defaultdict[int, list[Base]] = defaultdict(list)
        #: By the id of a reference to what was handed out: that reference, and where the buffer
        #: goes back to.
        self._lent: dict[int, tuple[Reference, list[Base], Base]] = {}
        #: The references of those that came back, dead by now. Python appends them.
        self._back: list[Reference] = []

    def take(self, numel: int) -> Tensor:
        """A flat float32 buffer of `numel` elements, with arbitrary content."""
        self._collect()
        free = self._free[numel]
        try:
            base = free.pop()
        except IndexError:
            base = torch.empty(numel, dtype=torch.float32, device="cpu").numpy()
        # The reference is to this view, because torch's storage holds it and slices share it. The
        # tensor object handed out may die before its slices do, and arrays of it refer to `base`.
        lent = base.view()
        # The last holder may be the training thread, anywhere. Ctrl-C, which Python raises between
        # any two of its own instructions, is lost in a callback that has such.
        reference = weakref.ref(lent, self._back.append)
        self._lent[id(reference)] = reference, free, base
        # The caller's script may be in inference mode, and the worker changes the buffer later.
        with torch.inference_mode(False):
            return torch.from_numpy(lent)

    def take_bytes(self, nbytes: int) -> memoryview:
        """A buffer of `nbytes` bytes, with arbitrary content."""
        if nbytes < SMALL:
            return fresh(nbytes)
        return as_bytes(self.take(1 << (-(-nbytes // 4) - 1).bit_length()))[:nbytes]

    def _collect(self) -> None:
        """Put back the buffers that came back, the last one to be lent first, while it is in the
        processor's cache. Other threads may do the same."""
        while self._back:
            try:
                reference = self._back.pop(0)
            except IndexError:
                return
            _, free, base = self._lent.pop(id(reference))
            free.append(base)
