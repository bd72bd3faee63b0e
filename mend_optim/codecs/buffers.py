"""A pool of host memory that is used again and again."""

from __future__ import annotations

import mmap
import sys
import weakref
from collections import defaultdict
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mend_optim.codecs.packing import as_bytes, fresh

Base = np.ndarray[Any, Any]
Reference = weakref.ref[Base]

#: Bytes. A smaller buffer is not worth keeping.
SMALL = 1 << 16
#: Bytes. A greater buffer has pages of its own. The C library would keep those of less than 32 MB
#: for itself when they are dropped.
LARGE = 1 << 20
#: Bytes. A greater buffer has huge pages, if the system has them: to touch 100 MB for the first
#: time takes a third of the time then. In small ones, such pages would take more than was asked
#: for.
HUGE = 1 << 24
#: Takes between two looks at what nobody needs, at the least.
LOOK = 64
#: A learner takes fewer buffers per round of a fragment.
PER_ROUND = 16


class Buffers:
    """Host buffers that return to the pool when their last holder drops them. Page faults cost more
    than copies, so a buffer of 100 MB is worth keeping. A slice of it, or a packet being sent,
    keeps it alive by itself.

    Tensors come in few sizes, those of fragments, and those of nearly one size share buffers. Bytes
    come in any size, rounded up to a power of two: otherwise a peer that sends another size every
    time would fill the memory.

    When a learner joins, or gives up all its disagreements at once, it needs several times the
    buffers that its rounds need. So a buffer that was free all the time while `look` others were
    taken goes back to the system.

    Args:
        look: more than is taken in a round of every fragment, as each may have a size of its own.
    """

    def __init__(self, look: int = LOOK) -> None:
        self._look = look
        self._free: defaultdict[int, list[Base]] = defaultdict(list)
        #: By size, how many buffers were free at the least, since the last look.
        self._idle: dict[int, int] = {}
        self._taken = 0
        #: By the id of a reference to what was handed out: that reference, and where the buffer
        #: goes back to.
        self._lent: dict[int, tuple[Reference, list[Base], Base]] = {}
        #: The references of those that came back, dead by now. Python appends them.
        self._back: list[Reference] = []

    def take(self, numel: int) -> Tensor:
        """A flat float32 buffer of `numel` elements, with arbitrary content."""
        self._collect()
        self._let_go()
        size = _size(numel)
        free = self._free[size]
        try:
            base = free.pop()
        except IndexError:
            base = _memory(size)
        self._idle[size] = min(self._idle.get(size, 0), len(free))
        # The reference is to this view, because torch's storage holds it and slices share it. The
        # tensor object handed out may die before its slices do, and arrays of it refer to `base`.
        lent = base[:numel]
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

    def _let_go(self) -> None:
        """Now and then, give back to the system what nobody has needed since the last time. The
        buffers at a list's begin have waited for longest."""
        self._taken += 1
        if self._taken % self._look:
            return
        for size, free in list(self._free.items()):
            del free[: self._idle.get(size, 0)]
            self._idle[size] = len(free)


def _size(numel: int) -> int:
    """The size of the buffers that serve `numel` elements: up to an eighth more, which nobody
    touches."""
    step = 1 << max(0, numel.bit_length() - 4)
    return -(-numel // step) * step


def _memory(numel: int) -> Base:
    """New memory for float32, with arbitrary content."""
    if 4 * numel < LARGE:
        return np.empty(numel, dtype=np.float32)
    # A mapping that is private to this process: its children don't see what comes later.
    private = {} if sys.platform == "win32" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}
    try:
        pages = mmap.mmap(-1, 4 * numel, **private)
    except OSError as fault:
        raise MemoryError(f"the system has no {4 * numel} bytes more") from fault
    if 4 * numel >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel may have no such pages
            pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, dtype=np.float32)
