"""A pool of buffers that counts what is in use."""

from __future__ import annotations

from torch import Tensor

from mend_optim.codecs.buffers import Buffers


class CountedBuffers(Buffers):
    """Counts the bytes that are lent."""

    def __init__(self) -> None:
        super().__init__()
        #: The most bytes that were lent at a time, since the caller last set this.
        self.peak = 0

    @property
    def in_use(self) -> int:
        """Bytes that are lent now."""
        self._collect()
        return sum(base.nbytes for _, _, base in list(self._lent.values()))

    def take(self, numel: int) -> Tensor:
        lent = super().take(numel)
        self.peak = max(self.peak, self.in_use)
        return lent
