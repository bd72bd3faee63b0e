"""The end of training in a trainer."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from mend_optim.errors import ClosedError
from mend_optim.finish import Finish
from mend_optim.optimizer import MendOptimizer

log = logging.getLogger("mend_optim")


def finish_all(optimizers: Sequence[MendOptimizer], timeout: float | None) -> list[Finish | None]:
    """Finish the runs of all these optimizers, one after the other. None for one that was closed
    before."""
    return [_finish(optimizer, timeout) for optimizer in optimizers]


def _finish(optimizer: MendOptimizer, timeout: float | None) -> Finish | None:
    try:
        ended = optimizer.finish(timeout)
    except ClosedError:
        log.info("%s: was closed before the end of training", optimizer.name)
        return None
    if not ended:
        log.warning("%s: training ended without the others: %s", optimizer.name, ended.reason)
    return ended
