"""Threads and clocks: all of a learner's.

    training thread ── step(): stepped, take, submit ──┐
    network loop (one per process) ── gRPC, timers ────┼──▶ one mutex around one engine ──▶ messages, jobs, events
    merge worker (one per learner) ── tensor jobs ─────┘            its rounds ──▶ ledger thread (`LedgerFile`)

The mutex is held for decisions only: copies, merges and sends happen after it is released. All
threads are daemons; `close` is idempotent and also runs at interpreter exit."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from mend_optim.engine.boundaries import Readings
from mend_optim.engine.effects import Done, Extend, Job, Send, Work
from mend_optim.engine.engine import Engine
from mend_optim.engine.joining import Resumed
from mend_optim.engine.ledger import Event
from mend_optim.errors import ClosedError, MendError
from mend_optim.model.copies import Ready
from mend_optim.model.layout import Layout
from mend_optim.protocol.handshake import Hello
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Message
from mend_optim.runtime.ledger_file import LedgerFile
from mend_optim.runtime.network_loop import CLOSE_S, NetworkLoop
from mend_optim.transport.grpc_transport import Transport
from mend_optim.worker.anchors import Anchors
from mend_optim.worker.checkpoint import Kept, keep
from mend_optim.worker.correction import Correction, stack

log = logging.getLogger("mend_optim")
# of the kinds of events
WARNINGS = ("alone", "refused", "fault", "costly", "below_quorum", "unknown", "unclosed")
T = TypeVar("T")


class Todo(NamedTuple):
    """What the training thread must do now: apply corrections, then copy fragments, each with some
    of its moments; `wait`: an anchor is due that has not come."""

    corrections: list[Correction]
    fragments_to_copy: dict[int, tuple[str, ...]]
    founding: bool
    wait: bool


class Learner:
    """One learner's engine, worker and place on the network. It is the transport's `Handler`."""

    def __init__(
        self,
        engine: Callable[[float], Engine],
        hello: Callable[[str], Hello],
        transport: Callable[[Learner], Transport],
        ledger: Path | None,
        on_event: Callable[[Event], None] | None,
    ) -> None:
        # `with` on the lock, never on the condition: the latter is Python code, in which Ctrl-C can
        # leave it locked.
        self.mutex = threading.RLock()
        self.condition = threading.Condition(self.mutex)
        self.error: BaseException | None = None
        self.closed = False
        self._anchors: Anchors | None = None
        self._mailbox: dict[int, Correction] = {}
        self._outbox: deque[Send] = deque()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._on_event = on_event
        self._timer: asyncio.TimerHandle | None = None
        self._flushing = self._released = False
        self._hello = hello
        self._pid = os.getpid()
        self.engine = engine(time.monotonic())
        self._ledger = LedgerFile(ledger, self.engine.state.me) if ledger else None
        self.network = NetworkLoop.acquire()
        try:
            self.transport = transport(self)
            self.address = self.network.run(self.transport.start(), 30.0)
        except BaseException:
            self.network.release()
            raise
        self.engine.state.roster.address = self.address
        _open.add(self)
        # Last, so that no thread ever sees a half-made learner.
        self._worker = threading.Thread(target=self._work, name="mend-merge", daemon=True)
        self._worker.start()
        self._schedule_flush()

    # ── the training thread ───────────────────────────────────────────────────────────────────────

    def begin(
        self, anchors: Anchors, resumed: Resumed | None, corrections: Sequence[Correction]
    ) -> bool:
        """Show our weights, or where a checkpoint stood; wait until joined. Returns whether the
        weights in the mailbox are to replace ours."""
        genesis = anchors.genesis()
        with self.mutex:
            self._anchors = anchors
            self._mailbox.update({correction.fragment: correction for correction in corrections})
            self.engine.begin(time.monotonic(), genesis, anchors.layout.groups(), resumed)
            self._dispatch_effects()
            self.condition.wait_for(lambda: self.engine.state.joined or self._over())
            return any(c.replace for c in self._mailbox.values())

    def stepped(self, tokens: int, seconds: float | None) -> None:
        """One inner step was taken; `seconds`: see `Boundaries.stepped`."""
        self.check()
        with self.mutex:
            self.engine.boundaries.stepped(tokens, seconds)

    def take(self) -> Todo:
        """Take the corrections that are due, and reserve the fragments that are to be copied."""
        now = time.monotonic()
        with self.mutex:
            ready = [p for p in self._mailbox if not self.engine.boundaries.holds_back(p)]
            corrections = [self._mailbox.pop(p) for p in ready]
            for correction in corrections:
                self.engine.correction_applied(now, correction.fragment, correction.replace)
            founding = self.engine.boundaries.founding
            fragments_to_copy = {
                p: self.engine.boundaries.moments(p)
                for p in self.engine.boundaries.fragments_to_copy()
            }
            if fragments_to_copy and founding:
                self.engine.boundaries.reserve_all()
            elif fragments_to_copy:
                for p in fragments_to_copy:
                    self.engine.boundaries.reserve(p)
            wait = self.engine.boundaries.must_wait() and not self._over()
            if corrections:
                self._dispatch_effects()
        return Todo(corrections, fragments_to_copy, founding, wait)

    def submit(self, p: int, tensor: Tensor, moments: Readings, ready: Ready) -> None:
        """The copy of fragment `p` is made, or under way until `ready`."""
        with self.mutex:
            self._jobs.put(ready)
            self.engine.boundaries.snapshot(p, tensor, moments)
            self._dispatch_effects()

    def submit_all(
        self, tensors: tuple[Tensor, ...], moments: tuple[Readings, ...], ready: Ready
    ) -> None:
        """The copies of all fragments, to found anchors."""
        with self.mutex:
            self._jobs.put(ready)
            self.engine.boundaries.found(tensors, moments)
            self._dispatch_effects()

    def extend(self, layout: Layout, tensor: Tensor, ready: Ready, at: tuple[int, int]) -> None:
        """A group was added, whose parameters are `tensor`."""
        with self.mutex:
            self._jobs.put(ready)
            self.engine.state.work(Extend(layout, tensor, at, layout.groups()))
            self._dispatch_effects()

    def tell(self, event: Event) -> None:
        """Of something that only the training thread can see."""
        with self.mutex:
            self.engine.state.emit(event)
            self._dispatch_effects()

    def wait(self, news: Callable[[], bool], timeout_s: float) -> bool:
        """Wait on the engine until `news`; False if it does not come in time."""
        with self.mutex:
            return self.condition.wait_for(lambda: news() or self._over(), max(0.0, timeout_s))

    def deliverable(self) -> bool:
        """Whether `take` would find something to do. Called with the mutex held."""
        return bool(self._mailbox) or not self.engine.boundaries.must_wait()

    def release(self, fragments: Iterable[int]) -> None:
        with self.mutex:  # the copies that `take` asked for were not made
            self.engine.boundaries.release(fragments)

    def give_up(self) -> None:
        """The anchor that `take` said to wait for did not come in time."""
        with self.mutex:
            self.engine.boundaries.waited_out()

    def news(self) -> bool:
        """Whether `take` has something for a training thread at rest. Called with the mutex
        held."""
        return (
            bool(self._mailbox)
            or bool(self.engine.boundaries.fragments_to_copy())
            or self.engine.boundaries.settled()
        )

    def rest(self) -> None:
        """The training thread stops stepping to synchronize."""
        with self.mutex:
            self.engine.rest(time.monotonic())
            self._dispatch_effects()

    def anchors(self) -> list[Tensor]:
        """Copies of all anchors."""
        return self._between_jobs(lambda anchors: anchors.copies())

    def keep(self) -> list[Kept]:
        """Copies of all that a checkpoint keeps, as of one moment: a job in the queue counts as not
        begun."""

        def copy(anchors: Anchors) -> list[Kept]:
            with self.mutex:
                standings, mailbox = self.engine.standings(), dict(self._mailbox)
            return [keep(s, anchors.save(p), mailbox.get(p)) for p, s in enumerate(standings)]

        return self._between_jobs(copy)

    def _between_jobs(self, look: Callable[[Anchors], T]) -> T:
        """Let the worker look at the anchors between two of its jobs; do it ourselves once there is
        no worker, or where we are the worker (in `on_event`)."""
        anchors, seen = self._anchors, list[T]()
        assert anchors is not None

        def see() -> None:
            made = look(anchors)
            with self.mutex:
                seen.append(made)
                self.condition.notify_all()

        if threading.current_thread() is not self._worker:
            self._jobs.put(see)
            with self.mutex:
                self.condition.wait_for(lambda: seen or self._over())
            if not seen:
                self._worker.join(CLOSE_S)  # it ends its job before it ends
        return seen[0] if seen else look(anchors)

    def check(self) -> None:
        """Raise, chained, what stopped a background thread: a bug of ours or no memory, never a
        peer's fault."""
        if self.error is not None:
            error, self.error = self.error, None
            raise MendError(
                "a background thread of mend_optim failed; training goes on alone from here"
            ) from error

    def _over(self) -> bool:
        return self.closed or self.error is not None

    # ── the worker ────────────────────────────────────────────────────────────────────────────────

    def _work(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                job()
        except BaseException as error:
            with self.mutex:
                self.error, self.closed = error, True
                self.condition.notify_all()
            log.exception("the merge worker failed")

    def _perform(self, job: Job) -> None:
        assert self._anchors is not None
        done, made = self._anchors.perform(job)
        corrections = [self._stacked(correction) for correction in made]
        with self.mutex:
            for correction in corrections:
                self._mailbox[correction.fragment] = correction
            self._finish(job, done)

    def _stacked(self, correction: Correction) -> Correction:
        """A correction that was not yet applied is taken back and added to the new one, outside the
        mutex."""
        with self.mutex:
            older = self._mailbox.pop(correction.fragment, None)
        return stack(older, correction)

    def _finish(self, job: Job, done: Done) -> None:
        self.engine.finished(time.monotonic(), job, done)
        self._dispatch_effects()

    # ── effects ───────────────────────────────────────────────────────────────────────────────────

    def _dispatch_effects(self) -> None:
        """Hand out what the engine wants done. Called with the mutex held; nothing here blocks."""
        for effect in self.engine.drain(time.monotonic()):
            if isinstance(effect, Send):
                self._outbox.append(effect)
            elif isinstance(effect, Work):
                self._jobs.put(lambda job=effect.job: self._perform(job))  # type: ignore[misc]
            else:
                self._jobs.put(lambda event=effect: self._deliver_event(event))  # type: ignore[misc]
        self.condition.notify_all()
        self._schedule_flush()

    def _schedule_flush(self) -> None:
        """Let the network loop send and set its timer; once for any number of effects."""
        if not self._flushing:
            self._flushing = True
            self.network.soon(self._flush)

    def _flush(self) -> None:
        with self.mutex:
            self._flushing = False
            outbox, self._outbox = self._outbox, deque()
            wake = self.engine.wake_at()
        for send in outbox:
            self.transport.send(send.to, send.message, send.reply)
        if self._timer:
            self._timer.cancel()
        if not self.closed:
            self._timer = self.network.loop.call_later(
                max(0.0, wake - time.monotonic()), self._tick
            )

    def _tick(self) -> None:
        with self.mutex:
            self.engine.tick(time.monotonic())
            self._dispatch_effects()

    def _deliver_event(self, event: Event) -> None:
        """Ledger, log and callback; none of them may hurt training."""
        record = event.facts.get("round")
        if record and self._ledger:
            self._ledger.add(record)
        level = (
            logging.WARNING if event.kind in WARNINGS else logging.DEBUG if record else logging.INFO
        )
        log.log(level, "%s: %s", self.engine.state.me.name, event.text)
        if self._on_event:
            try:
                self._on_event(event)
            except Exception:
                log.exception("on_event failed, told of %r", event.kind)

    # ── the transport's handler, on the network loop ──────────────────────────────────────────────

    def _call_engine(self, method: str, *args: Any) -> Any:
        with self.mutex:
            result = getattr(self.engine, method)(time.monotonic(), *args)
            self._dispatch_effects()
            return result

    def hello(self) -> Hello:
        return self._hello(self.engine.state.roster.address)

    def met(self, id: PeerId, address: str, seed: str) -> bool:
        return bool(self._call_engine("met", id, address, seed))

    def linked(self, id: PeerId, up: bool) -> None:
        self._call_engine("linked", id, up)

    def heard(self, id: PeerId) -> None:
        with self.mutex:
            self.engine.heard(time.monotonic(), id)

    def refused(self, address: str, reason: str) -> None:
        self._call_engine("refused", address, reason)

    def itself(self, address: str) -> None:
        with self.mutex:
            self.engine.state.seeds.discard(address)

    def receive(self, message: Message) -> None:
        self._call_engine("receive", message)

    def delivered(self, to: PeerId, message: Message) -> None:
        self._call_engine("delivered", to, message)

    def undelivered(self, to: PeerId, message: Message) -> None:
        self._call_engine("undelivered", to, message)

    def contacts(self) -> Sequence[tuple[PeerId, str]]:
        with self.mutex:
            return [
                (peer.id, peer.address)
                for peer in self.engine.state.roster.peers.values()
                if peer.address
            ]

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Say goodbye, stop both threads' work for this learner. Safe to call twice, and in a
        forked child, where it does nothing."""
        _open.discard(self)
        if self._pid != os.getpid():
            return
        with self.mutex:
            # else the second call would take the loop away from the process's other learners
            if self._released:
                return
            self._released = True
            self.engine.leave(time.monotonic())
            self._dispatch_effects()
            self.closed = True
            self.condition.notify_all()
        self._jobs.put(None)
        with suppress(Exception):
            self.network.run(self.transport.stop(), CLOSE_S)
        if threading.current_thread() is not self._worker:  # `on_event` may close its learner
            self._worker.join(CLOSE_S)
        if self._ledger:
            self._ledger.close(CLOSE_S)
        self.network.release()

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
