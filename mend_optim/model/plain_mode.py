"""Torch's modes that a script may be in while it calls this library."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def in_plain_mode(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function make its tensors on the host, and outside of inference mode.

    A script may call it under `torch.inference_mode()`, or with another default device. The merge
    worker, which is another thread, is in neither mode: it could not change tensors of the one, nor
    read those of the other."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if not torch.is_inference_mode_enabled() and torch.empty(0).device.type == "cpu":
            return function(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad(), torch.device("cpu"):
            return function(*args, **kwargs)

    return call
