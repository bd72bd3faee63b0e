"""Where a learner's events go: its ledger, the log, and `on_event`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from mend_optim.engine.ledger import Event
from mend_optim.protocol.lineage import PeerId
from mend_optim.runtime.callback import Callback
from mend_optim.runtime.event_log import EventLog
from mend_optim.runtime.ledger_file import LedgerFile
from mend_optim.transport import background_log

#: Seconds of its end that a learner keeps for the log.
LOG_S = 0.5


class Reporter:
    """Reports one learner's events. Only its worker thread calls `report`.

    Args:
        me: returns the learner: it may take another incarnation.
        ledger: path of the ledger, if there is one.
        on_event: called with every event.
        period: returns the present period of the run.
        end: called with what `on_event` raises to end training.
    """

    def __init__(
        self,
        me: Callable[[], PeerId],
        ledger: Path | None,
        on_event: Callable[[Event], None] | None,
        period: Callable[[], int],
        end: Callable[[BaseException], object],
    ) -> None:
        self._me = me
        self._log = EventLog(me().name, period)
        self._ledger = LedgerFile(ledger, me()) if ledger else None
        self._callback = Callback(me().name, on_event, end) if on_event else None

    def report(self, event: Event) -> None:
        """Write an event to ledger and log, and call back. None of them may hurt training."""
        record = event.facts.get("round")
        if record and self._ledger:
            self._ledger.by = self._me()
            self._ledger.add(record)
        self._log.tell(event)
        if self._callback:
            self._callback.tell(event)

    def is_calling_back(self) -> bool:
        """Whether the caller is `on_event`."""
        return self._callback is not None and self._callback.is_own_thread()

    def close(self, within_s: float) -> None:
        """Let the ledger and the log write what waits, and `on_event` hear what waits."""
        ends = time.monotonic() + within_s
        # What ledger and callback say of their own end is to be written, too.
        deadline = ends - LOG_S
        if self._ledger:
            self._ledger.close(within_s - LOG_S)
        if self._callback:
            self._callback.close(max(0.0, deadline - time.monotonic()))
        background_log.flush(max(0.0, ends - time.monotonic()))
