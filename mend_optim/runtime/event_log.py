"""The log of a learner: every event as a line, and of the rounds a summary now and then.

A round is a line for debugging only, since there may be many a second. So the first merge is told,
and from then on a summary at most every 30 s. The rounds themselves are its clock: without rounds
there is no summary, and another event says why.

A peer can cause some events as often as it likes. So of each kind there are only so many lines in
30 s, and the next line says how many were left out. `on_event` is called for every event."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

from mend_optim.engine.ledger import Event, RoundRecord
from mend_optim.transport.background_log import BackgroundLog

log = BackgroundLog("mend_optim")
# The kinds of events that the user may have to act on.
WARNINGS = (
    "waiting",
    "outsized",
    "forked",
    "outvoted",
    "healed",
    "rolled_back",
    "switched",
    "replaced",
    "jumped",
    "unseen",
    "undialled",
    "alone",
    "suspected",
    "evicted",
    "refused",
    "fault",
    "costly",
    "held_up",
    "below_quorum",
    "late_beats",
    "stuck",
    "uneven",
    "parted",
    "unknown",
    "unclosed",
    "unfinished",
)
#: The kinds of which summaries tell enough: each round, and each new period of a run that chooses
#: it for itself.
FREQUENT = ("round", "period")
# At least so long between two summaries.
EVERY_S = 30.0
# Lines of one kind of event in that time.
MOST_LINES = 30


def level_of(event: Event) -> int:
    """The level of an event's line. An all-clear is as loud as the news that it lifts. A restart
    that has dropped work is no good news."""
    kind = event.lifts or event.kind
    if kind in WARNINGS or event.facts.get("dropped") is True:
        return logging.WARNING
    return logging.DEBUG if kind in FREQUENT else logging.INFO


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
        # By kind of event, the time from which its lines are counted, and how many came since.
        self._lines: dict[str, tuple[float, int]] = {}
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
        """Write an event's line, if there were not too many of its kind."""
        level = level_of(event)
        if level == logging.DEBUG:
            self._write(level, event.text)
        else:
            self._write_seldom(level, event)
        record = event.facts.get("round")
        if isinstance(record, RoundRecord):
            self._count(record)

    def _write_seldom(self, level: int, event: Event) -> None:
        left_out = self._left_out(event.kind)
        if left_out:
            more = f"{left_out:,} more lines of the kind {event.kind!r} were left out"
            self._write(level, f"{more}; on_event gets all")
        if left_out is not None:
            self._write(level, event.text)

    def _left_out(self, kind: str) -> int | None:
        """Count a line of this kind. Returns how many were left out before it, which is to be told
        now; None if this one is left out, too."""
        now = self._clock()
        since, lines = self._lines.get(kind, (now, 0))
        left_out = 0
        if now - since >= EVERY_S:
            left_out = max(0, lines - MOST_LINES)
            since, lines = now, 0
        self._lines[kind] = since, lines + 1
        return None if lines >= MOST_LINES else left_out

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
