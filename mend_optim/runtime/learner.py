"""One learner: its engine, and the threads and clocks around it.

    training thread, in step():      ──▶┐                      ┌──▶ messages, for the network loop
    network loop, one per process:   ──▶┤ one mutex around one ├──▶ jobs, for the merge worker
    merge worker, one per learner:   ──▶┘        engine        └──▶ events: ledger, log, on_event

The mutex is held for decisions only. Copies, merges and sends happen after it is released. All
threads are daemons. `Learner.close` is idempotent, and also runs when the interpreter exits."""

from __future__ import annotations

import atexit
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from mend_optim.engine.boundaries import Readings
from mend_optim.engine.effects import Done, Extend, Job, Send, Work
from mend_optim.engine.engine import Engine
from mend_optim.engine.joining import Resumed
from mend_optim.engine.ledger import Event
from mend_optim.errors import ClosedError, MendError, unreachable
from mend_optim.model.copies import Ready
from mend_optim.model.layout import Layout
from mend_optim.protocol.handshake import Hello
from mend_optim.runtime.guard import Guard
from mend_optim.runtime.ledger_file import LedgerFile
from mend_optim.runtime.merge_worker import MergeWorker
from mend_optim.runtime.network_loop import CLOSE_S
from mend_optim.runtime.network_side import NetworkSide
from mend_optim.status import Status, learner_status
from mend_optim.transport.grpc_transport import Transport
from mend_optim.worker.anchors import Anchors
from mend_optim.worker.checkpoint import Kept, keep
from mend_optim.worker.correction import Correction

log = logging.getLogger("mend_optim")
# The kinds of events that the user may have to act on.
WARNINGS = ("alone", "refused", "fault", "costly", "below_quorum", "unknown", "unclosed")


class Todo(NamedTuple):
    """The training thread's tasks of this moment: first apply `corrections`, then copy fragments.

    `fragments_to_copy` gives, per fragment, the moments to copy with it. `founding` says whether
    the copies become the anchors. `wait` says whether an anchor is due that has not come."""

    corrections: list[Correction]
    fragments_to_copy: dict[int, tuple[str, ...]]
    founding: bool
    wait: bool


class Learner:
    """One learner's engine, its worker, and its place on the network.

    Every public method takes the mutex itself.

    Args:
        engine: makes the engine, given the time.
        hello: makes this learner's side of a handshake, given its address.
        transport: makes the transport, given its handler.
        ledger: path of the ledger, if there is one.
        on_event: called with every event, on the worker thread.
    """

    def __init__(
        self,
        *,
        engine: Callable[[float], Engine],
        hello: Callable[[str], Hello],
        transport: Callable[[NetworkSide], Transport],
        ledger: Path | None,
        on_event: Callable[[Event], None] | None,
    ) -> None:
        self.guard = Guard()
        self.mutex = self.guard.mutex
        self.engine = engine(time.monotonic())
        self.me = self.engine.state.me
        self.worker = MergeWorker(self.guard, self._finished)
        self._ledger = LedgerFile(ledger, self.me) if ledger else None
        self._on_event = on_event
        self._released = False
        self._pid = os.getpid()
        self.network = NetworkSide(
            self.engine,
            self.guard,
            hello=hello,
            transport=transport,
            dispatch=self._dispatch_effects,
        )
        self.network.start()
        _open.add(self)
        # The thread starts last, so that it never sees a half-made learner.
        self.worker.start()

    @property
    def closed(self) -> bool:
        """Whether it takes part in no round any more: it was closed, or a thread of it failed."""
        return self.guard.over

    # ── the training thread ───────────────────────────────────────────────────────────────────────

    def begin(
        self, anchors: Anchors, resumed: Resumed | None, corrections: Sequence[Correction]
    ) -> bool:
        """Show this learner's weights, or where its checkpoint stood, and wait until it has joined.

        Returns whether corrections in the mailbox replace its weights."""
        genesis = anchors.genesis()
        with self.mutex:
            mailbox = self.worker.mailbox
            self.worker.anchors = anchors
            mailbox.update({correction.fragment: correction for correction in corrections})
            self.engine.begin(time.monotonic(), genesis, anchors.layout.groups(), resumed)
            self._dispatch_effects()
            self.guard.changed.wait_for(lambda: self.engine.state.joined or self.closed)
            return any(correction.replace for correction in mailbox.values())

    def stepped(self, tokens: int, seconds: float | None, rate: float) -> None:
        """Count one inner step; `seconds` and `rate`: see `Boundaries.stepped`."""
        self.check()
        with self.mutex:
            self.engine.boundaries.stepped(tokens, seconds, rate)

    def take(self) -> Todo:
        """Take the corrections that are due, and reserve the fragments that are to be copied."""
        with self.mutex:
            now = time.monotonic()
            boundaries, mailbox = self.engine.boundaries, self.worker.mailbox
            due = [p for p in mailbox if not boundaries.holds_back(p)]
            corrections = [mailbox.pop(p) for p in due]
            for correction in corrections:
                self.engine.correction_applied(now, correction.fragment, correction.replace)
            founding = boundaries.founding
            fragments_to_copy = {p: boundaries.moments(p) for p in boundaries.fragments_to_copy()}
            if fragments_to_copy and founding:
                boundaries.reserve_all()
            elif fragments_to_copy:
                for p in fragments_to_copy:
                    boundaries.reserve(p)
            wait = boundaries.must_wait() and not self.closed
            if corrections:
                self._dispatch_effects()
        return Todo(corrections, fragments_to_copy, founding, wait)

    def submit(self, p: int, tensor: Tensor, moments: Readings, ready: Ready) -> None:
        """Hand over the copy of fragment `p`, which is complete once `ready` returns."""
        with self.mutex:
            self.worker.put(ready)
            self.engine.boundaries.snapshot(p, tensor, moments)
            self._dispatch_effects()

    def submit_all(
        self, tensors: tuple[Tensor, ...], moments: tuple[Readings, ...], ready: Ready
    ) -> None:
        """Hand over the copies of all fragments, which become the anchors."""
        with self.mutex:
            self.worker.put(ready)
            self.engine.boundaries.found(tensors, moments)
            self._dispatch_effects()

    def release(self, fragments: Iterable[int]) -> None:
        """Give back fragments that `take` reserved and that were not copied."""
        with self.mutex:
            self.engine.boundaries.release(fragments)

    def extend(
        self, layout: Layout, tensor: Tensor, ready: Ready, at: tuple[int, int, float]
    ) -> None:
        """Add the last fragment of `layout`, an added group whose parameters are `tensor`, trained
        from the totals (step, tokens, rate) `at`."""
        with self.mutex:
            self.worker.put(ready)
            self.engine.state.work(Extend(layout, tensor, at, layout.groups()))
            self._dispatch_effects()

    def tell(self, event: Event) -> None:
        """Report something that only the training thread can see."""
        with self.mutex:
            self.engine.state.emit(event)
            self._dispatch_effects()

    def rest(self) -> None:
        """Stop stepping, to synchronize."""
        with self.mutex:
            self.engine.rest(time.monotonic())
            self._dispatch_effects()

    def wait(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `holds()`, which is called with the mutex held, or until the learner is
        closed. False if neither comes in time."""
        with self.mutex:
            return self.guard.changed.wait_for(lambda: holds() or self.closed, max(0.0, timeout_s))

    def wait_for_correction(self, timeout_s: float) -> bool:
        """Under `adopt_after`, wait until `take` has a correction or need not wait for one."""
        return self.wait(self._may_go_on, timeout_s)

    def give_up(self) -> None:
        """Go on without the anchor that `take` said to wait for: it did not come in time."""
        with self.mutex:
            self.engine.boundaries.waited_out()

    def steps_on(self) -> bool:
        """Before an inner step under `adopt_after=0`: let anchors that the worker is taking end,
        because they may replace the weights, and a step in between would be lost. Returns whether
        `take` has corrections."""
        with self.mutex:
            moving = self.engine.boundaries.steps_on
            self.guard.changed.wait_for(lambda: not moving() or self.closed)
            return bool(self.worker.mailbox) and not self.closed

    def wait_for_news(self, timeout_s: float) -> bool:
        """At rest, wait until `take` has something to do, or everything is merged."""
        return self.wait(self._has_news, timeout_s)

    def check(self) -> None:
        """Raise, once, an error for the fault that stopped a background thread.

        It is a bug in this library or a lack of memory, never a peer's fault."""
        error = self.guard.error
        if error is not None:
            self.guard.error = None
            raise MendError(
                "a background thread of mend_optim failed; training goes on alone from here"
            ) from error

    def _may_go_on(self) -> bool:
        assert self.guard.is_held()
        return bool(self.worker.mailbox) or not self.engine.boundaries.must_wait()

    def _has_news(self) -> bool:
        assert self.guard.is_held()
        boundaries = self.engine.boundaries
        return (
            bool(self.worker.mailbox)
            or bool(boundaries.fragments_to_copy())
            or boundaries.settled()
        )

    # ── where it stands ───────────────────────────────────────────────────────────────────────────

    def is_alone(self) -> bool:
        """Whether no peer shares this learner's model: its weights are the anchor."""
        with self.mutex:
            return self.engine.state.alone

    def is_settled(self) -> bool:
        """Whether, at rest, everything is merged and nobody has a greater anchor."""
        with self.mutex:
            return self.engine.boundaries.settled() and not self.closed

    def step_count(self) -> int:
        """This learner's own inner steps."""
        with self.mutex:
            return self.engine.state.totals.step

    def head_start(self) -> int:
        """The cluster's inner steps before this learner's first."""
        with self.mutex:
            return self.engine.state.head_start

    def period(self) -> int:
        """The period of the run, if it chooses its own; else 0."""
        with self.mutex:
            state = self.engine.state
            return state.schedule.sync_every if state.policies.auto else 0

    def status(self, *, step: int, tokens: int, head_start: int, seconds_in_mend: float) -> Status:
        """The status; `head_start` counts until this learner has begun."""
        with self.mutex:
            state = self.engine.state
            return learner_status(
                state,
                self.engine.stragglers.failing,
                step=step,
                tokens=tokens,
                position=state.position if state.fragments else step + head_start,
                seconds_in_mend=seconds_in_mend,
                bytes_sent=self.network.transport.bytes_sent,
                bytes_received=self.network.transport.bytes_received,
            )

    def anchors(self) -> list[Tensor]:
        """Copies of all anchors."""
        return self.worker.between_jobs(lambda anchors: anchors.copies())

    def keep(self) -> list[Kept]:
        """Copies of all that a checkpoint keeps, as of one moment: a job in the queue counts as not
        begun."""

        def copy(anchors: Anchors) -> list[Kept]:
            with self.mutex:
                standings, mailbox = self.engine.standings(), dict(self.worker.mailbox)
            return [keep(s, anchors.save(p), mailbox.get(p)) for p, s in enumerate(standings)]

        return self.worker.between_jobs(copy)

    # ── the worker ────────────────────────────────────────────────────────────────────────────────

    def _finished(self, job: Job, done: Done, corrections: Sequence[Correction]) -> None:
        """Post a job's corrections and tell the engine, in one hold of the mutex."""
        with self.mutex:
            for correction in corrections:
                self.worker.mailbox[correction.fragment] = correction
            self.engine.finished(time.monotonic(), job, done)
            self._dispatch_effects()

    # ── effects ───────────────────────────────────────────────────────────────────────────────────

    def _dispatch_effects(self) -> None:
        """Hand out what the engine wants done. Nothing here blocks."""
        assert self.guard.is_held()
        for effect in self.engine.drain(time.monotonic()):
            match effect:
                case Send():
                    self.network.send(effect)
                case Work():
                    self.worker.perform(effect.job)
                case Event():
                    self.worker.put(partial(self._deliver_event, effect))
                case _:
                    unreachable(effect)
        self.guard.changed.notify_all()
        self.network.flush_soon()

    def _deliver_event(self, event: Event) -> None:
        """Write an event to ledger and log, and call back. None of them may hurt training."""
        record = event.facts.get("round")
        if record and self._ledger:
            self._ledger.add(record)
        level = logging.INFO
        if event.kind in WARNINGS:
            level = logging.WARNING
        elif record:
            level = logging.DEBUG
        log.log(level, "%s: %s", self.me.name, event.text)
        if self._on_event:
            try:
                self._on_event(event)
            except Exception:
                log.exception("on_event failed, told of %r", event.kind)

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Say goodbye, and stop both threads' work for this learner.

        A second call does nothing, nor does a call in a forked child."""
        _open.discard(self)
        if self._pid != os.getpid():
            return
        with self.mutex:
            # A second call would take the loop away from the process's other learners.
            if self._released:
                return
            self._released = True
            self.engine.leave(time.monotonic())
            self._dispatch_effects()
            self.guard.end()
        self.worker.end()
        self.network.stop()
        self.worker.join(CLOSE_S)
        if self._ledger:
            self._ledger.close(CLOSE_S)
        self.network.loop.release()

    def require_open(self) -> None:
        if self.closed:
            raise ClosedError(
                "this optimizer was closed; it still steps, but it has no peers to wait for"
            )


_open: weakref.WeakSet[Learner] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for learner in list(_open):
        learner.close()
