"""The log of a learner: every event as a line, and of the rounds a summary now and then.

A round is a line for debugging only, since there may be many a second. So the first merge is told,
and from then on a summary at most every 30 s. The rounds themselves are its clock: without rounds
there is no summary, and another event says why."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

from mend_optim.engine.ledger import Event, RoundRecord

log = logging.getLogger("mend_optim")
# The kinds of events that the user may have to act on.
WARNINGS = (
    "waiting",
    "outsized",
    "healed",
    "jumped",
    "unseen",
    "alone",
    "suspected",
    "evicted",
    "refused",
    "fault",
    "costly",
    "held_up",
    "below_quorum",
    "unknown",
    "unclosed",
)
# At least so long between two summaries.
EVERY_S = 30.0


def level_of(event: Event) -> int:
    """The level of an event's line. An all-clear is as loud as the news that it lifts."""
    kind = event.lifts or event.kind
    if kind in WARNINGS:
        return logging.WARNING
    return logging.DEBUG if kind == "round" else logging.INFO


class EventLog:
    """Writes one learner's events to the log `mend_optim`. Only the worker thread calls it.

    Args:
        name: the learner's name.
        period: returns the present period of the run.
        clock: returns the time in seconds.
    """

    def __init__(
        self, name: str, period: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._period = period
        self._clock = clock
        # When the last summary was written; None before the first merge.
        self._since: float | None = None
        self._forget()

    def _forget(self) -> None:
        """Begin to count anew, for the next summary."""
        self._rounds = 0
        # How often each learner was a member.
        self._members: Counter[str] = Counter()
        # How often a learner was expected and was none.
        self._absent = 0
        self._dropped = 0
        self._superseded = 0

    def tell(self, event: Event) -> None:
        """Write an event's line."""
        self._write(level_of(event), event.text)
        record = event.facts.get("round")
        if isinstance(record, RoundRecord):
            self._count(record)

    def _write(self, level: int, text: str) -> None:
        log.log(level, "%s: %s", self._name, text)

    def _count(self, record: RoundRecord) -> None:
        now = self._clock()
        self._dropped += record.dropped_tokens
        self._superseded += record.superseded_tokens
        if not record.members:
            return
        self._rounds += 1
        self._members.update(member.name for member in record.members)
        self._absent += len(record.absent)
        if self._since is None:
            self._tell_first(record)
        elif now - self._since >= EVERY_S:
            self._tell_summary(now - self._since, record)
        else:
            return
        self._since = now
        self._forget()

    def _tell_first(self, record: RoundRecord) -> None:
        names = ", ".join(sorted(self._members))
        text = f"first merge: one model of {names}, {record.tokens:,} tokens in it"
        self._write(logging.INFO, f"{text}, H = {self._period()}, {self._losses()}")

    def _tell_summary(self, seconds: float, record: RoundRecord) -> None:
        members = ", ".join(map(self._part, sorted(self._members)))
        rounds = "1 round" if self._rounds == 1 else f"{self._rounds:,} rounds"
        text = f"merged {rounds} in {seconds:.0f} s: {members}"
        text += f"; {record.tokens:,} tokens in the model, H = {self._period()}, {self._losses()}"
        self._write(logging.INFO, text)

    def _part(self, name: str) -> str:
        """A member, with its part of the rounds if it was not in all of them."""
        times = self._members[name]
        return name if times == self._rounds else f"{name} in {times:,}"

    def _losses(self) -> str:
        lost = [
            ("tokens dropped", self._dropped),
            ("tokens superseded", self._superseded),
            ("offers missed", self._absent),
        ]
        return ", ".join(f"{what}: {n:,}" for what, n in lost if n) or "nothing lost"
