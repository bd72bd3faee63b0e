"""Where a learner's events go: its ledger, the log, and `on_event`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from mend_optim.engine.ledger import Event
from mend_optim.protocol.lineage import PeerId
from mend_optim.runtime.event_log import EventLog
from mend_optim.runtime.ledger_file import LedgerFile

log = logging.getLogger("mend_optim")


class Reporter:
    """Reports one learner's events. Only its worker thread calls `report`.

    Args:
        me: returns the learner: it may take another incarnation.
        ledger: path of the ledger, if there is one.
        on_event: called with every event.
        period: returns the present period of the run.
    """

    def __init__(
        self,
        me: Callable[[], PeerId],
        ledger: Path | None,
        on_event: Callable[[Event], None] | None,
        period: Callable[[], int],
    ) -> None:
        self._me = me
        self._log = EventLog(me().name, period)
        self._ledger = LedgerFile(ledger, me()) if ledger else None
        self._on_event = on_event

    def report(self, event: Event) -> None:
        """Write an event to ledger and log, and call back. None of them may hurt training."""
        record = event.facts.get("round")
        if record and self._ledger:
            self._ledger.by = self._me()
            self._ledger.add(record)
        self._log.tell(event)
        if self._on_event:
            try:
                self._on_event(event)
            except Exception:
                log.exception("on_event failed, told of %r", event.kind)

    def close(self, within_s: float) -> None:
        """Let the ledger write what waits."""
        if self._ledger:
            self._ledger.close(within_s)
