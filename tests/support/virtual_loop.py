"""An event loop in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next timer instead of waiting for it."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._look = self._selector.select  # type: ignore[attr-defined]
        self._selector.select = self._jump  # type: ignore[attr-defined]

    def _jump(self, timeout: float | None) -> Any:
        assert timeout is not None, "everybody waits, and no timer will wake anybody"
        self._now += timeout
        return self._look(0)

    def time(self) -> float:
        return self._now
