"""Calls to the GPU while another thread captures a CUDA graph.

torch captures in the "global" mode unless it is told otherwise. Then no thread of the process may
make calls that a replay would not repeat, such as to take memory: the call fails, and so does the
capture. The threads of rounds make such calls at any time. Nothing that they do belongs into the
user's graph, so they may ask not to be counted in."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

#: CU_STREAM_CAPTURE_MODE_RELAXED of the CUDA driver.
RELAXED = 2


@contextmanager
def beside_captures() -> Iterator[None]:
    """Let this thread take memory of the GPU, and wait for it, while other threads capture."""
    exchange = _exchange()
    if exchange is None:
        yield
        return
    # The driver swaps the mode of this thread and the given one.
    mode = ctypes.c_int(RELAXED)
    swapped = exchange(ctypes.byref(mode)) == 0
    try:
        yield
    finally:
        if swapped:
            exchange(ctypes.byref(mode))


@functools.cache
def _exchange() -> Callable[[Any], int] | None:
    """The driver's function, which torch does not offer; None without such a driver."""
    if torch.version.cuda is None:
        return None
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        exchange = driver.cuThreadExchangeStreamCaptureMode
    except (OSError, AttributeError):
        return None
    exchange.argtypes = [ctypes.POINTER(ctypes.c_int)]
    exchange.restype = ctypes.c_int
    return exchange
