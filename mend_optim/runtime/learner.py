"""One learner: its engine, and the threads and clocks around it.

    training thread, in step():      ──▶┐                      ┌──▶ messages, for the network loop
    network loop, one per process:   ──▶┤ one mutex around one ├──▶ jobs, for the merge worker
    merge worker, one per learner:   ──▶┘        engine        └──▶ events: ledger, log, on_event

The mutex is held for decisions only. Copies, merges and sends happen after it is released. All
threads are daemons. `Learner.close` is idempotent. It also runs when the interpreter exits, and
when the learner's owner is gone: the threads reach nothing that leads to the owner."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from mend_optim.engine.boundaries import Readings
from mend_optim.engine.effects import Done, Extend, Job, Send, Work
from mend_optim.engine.ending import Ended
from mend_optim.engine.engine import Engine
from mend_optim.engine.joining import Resumed
from mend_optim.engine.ledger import Event
from mend_optim.engine.rollback import EarlierAnchor
from mend_optim.errors import ClosedError, MendError, unreachable
from mend_optim.model.copies import Ready
from mend_optim.model.layout import Layout
from mend_optim.protocol.handshake import Hello
from mend_optim.protocol.lineage import PeerId
from mend_optim.runtime import clock, open_learners
from mend_optim.runtime.guard import Guard
from mend_optim.runtime.interrupts import Uninterrupted
from mend_optim.runtime.long_wait import joining
from mend_optim.runtime.merge_worker import MergeWorker
from mend_optim.runtime.network_loop import CLOSE_S
from mend_optim.runtime.network_side import NetworkSide
from mend_optim.runtime.reporter import Reporter
from mend_optim.status import Status, learner_status, position_of
from mend_optim.transport.background_log import BackgroundLog
from mend_optim.transport.grpc_transport import Transport
from mend_optim.worker.anchors import Anchors
from mend_optim.worker.checkpoint import Kept, keep
from mend_optim.worker.correction import Correction

log = BackgroundLog("mend_optim")
FAILED = "a background thread of mend_optim failed; training goes on alone from here"
INHERITED = (
    "this optimizer's learner is in the process that forked this one; here it still steps, but it "
    "has no peers to wait for"
)
CLOSED = "this optimizer was closed; it still steps, but it has no peers to wait for"


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
        hello: makes this learner's side of a handshake, given its id and its address.
        transport: makes the transport, given its handler.
        ledger: path of the ledger, if there is one.
        on_event: called with every event, on a thread of its own.
        listen: the address that the transport listens on, if it does.
    """

    def __init__(
        self,
        *,
        engine: Callable[[float], Engine],
        hello: Callable[[PeerId, str], Hello],
        transport: Callable[[NetworkSide], Transport],
        ledger: Path | None,
        on_event: Callable[[Event], None] | None,
        listen: str | None = None,
    ) -> None:
        self.guard = Guard()
        self.engine = engine(clock.now())
        self.worker = MergeWorker(self.guard, self._finished, partial(_fail, self))
        self._reporter = Reporter(lambda: self.me, ledger, on_event, self._period, self.worker.fail)
        #: The thread that closes it, or has closed it.
        self.closer: int | None = None
        self._ended = threading.Event()
        #: Whether its owner is gone. Nobody can use it any more.
        self.dropped = False
        self._pid = os.getpid()
        self.network = NetworkSide(
            self.engine,
            self.guard,
            hello=hello,
            transport=transport,
            dispatch=self.dispatch_effects,
        )
        with open_learners.making_room(listen):
            self.network.start()
        open_learners.add(self)
        # The thread starts last, so that it never sees a half-made learner.
        self.worker.start()

    @property
    def mutex(self) -> threading.RLock:
        """The mutex around the engine. In a forked child it is another one."""
        return self.guard.mutex

    @property
    def me(self) -> PeerId:
        """Its name, and its present incarnation."""
        return self.engine.state.me

    @property
    def port(self) -> int:
        """The port that it listens on; 0 if nobody can dial it."""
        return self.network.transport.port

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
        with Uninterrupted(), self.mutex:
            self.worker.begin(anchors, corrections, self.network.transport.notary)
            self.engine.begin(clock.now(), genesis, anchors.layout.groups(), resumed)
            self.dispatch_effects()
        long_wait = self.network.long_wait("still waiting", joining)
        long_wait.until(lambda: self.engine.state.joined, self.wait)
        with self.mutex:
            return any(correction.replace for correction in self.worker.mailbox.values())

    def stepped(self, tokens: int, seconds: float | None, rate: float) -> None:
        """Count one inner step; `seconds` and `rate`: see `Boundaries.stepped`."""
        self.check()
        with Uninterrupted(), self.mutex:
            self.engine.boundaries.stepped(tokens, seconds, rate)

    def take(self, check: Callable[[], None]) -> Todo:
        """Take the corrections that are due, or none if `check` raises; reserve the due copies."""
        with Uninterrupted(), self.mutex:
            boundaries, mailbox = self.engine.boundaries, self.worker.mailbox
            if due := [p for p in mailbox if not boundaries.holds_back(p)]:
                check()
            corrections = [mailbox.pop(p) for p in due]
            for p, correction in zip(due, corrections, strict=True):
                self.engine.correction_applied(clock.now(), p, correction.replace)
            founding = boundaries.founding
            fragments_to_copy = {p: boundaries.moments(p) for p in boundaries.fragments_to_copy()}
            if fragments_to_copy and founding:
                boundaries.reserve_all()
            elif fragments_to_copy:
                for p in fragments_to_copy:
                    boundaries.reserve(p)
            wait = boundaries.must_wait() and not self.closed
            if corrections:
                self.dispatch_effects()
        return Todo(corrections, fragments_to_copy, founding, wait)

    def submit(self, p: int, tensor: Tensor, moments: Readings, ready: Ready) -> None:
        """Hand over the copy of fragment `p`, which is complete once `ready` returns."""
        with Uninterrupted(), self.mutex:
            self.worker.put(ready)
            self.engine.boundaries.snapshot(p, tensor, moments)
            self.dispatch_effects()

    def submit_all(
        self, tensors: tuple[Tensor, ...], moments: tuple[Readings, ...], ready: Ready
    ) -> None:
        """Hand over the copies of all fragments, which become the anchors."""
        with Uninterrupted(), self.mutex:
            self.worker.put(ready)
            self.engine.boundaries.found(tensors, moments)
            self.dispatch_effects()

    def release(self, fragments: Iterable[int]) -> None:
        """Give back fragments that `take` reserved and that were not copied."""
        with Uninterrupted(), self.mutex:
            self.engine.boundaries.release(fragments)

    def extend(
        self, layout: Layout, tensor: Tensor, ready: Ready, at: tuple[int, int, float]
    ) -> None:
        """Add the last fragment of `layout`, an added group whose parameters are `tensor`, trained
        from the totals (step, tokens, rate) `at`."""
        with Uninterrupted(), self.mutex:
            self.worker.put(ready)
            self.engine.state.work(Extend(layout, tensor, at, layout.groups()))
            self.dispatch_effects()

    def roll_back(self, anchors: Sequence[EarlierAnchor]) -> bool:
        """Go back to these anchors, and wait until the worker has taken them. False if it has
        refused them, or the learner was closed."""
        rollbacks, changed = self.engine.rollbacks, self.guard.changed
        with self.mutex:
            changed.wait_for(lambda: rollbacks.may_begin(len(anchors)) or self.closed)
            number = 0 if self.closed else rollbacks.begin(anchors)
            self.dispatch_effects()
            changed.wait_for(lambda: rollbacks.is_over(number) or self.closed)
            return 0 < number <= rollbacks.count

    def tell(self, event: Event) -> None:
        """Report something that only the training thread can see."""
        with Uninterrupted(), self.mutex:
            self.engine.state.emit(event)
            self.dispatch_effects()

    def rest(self, finishing: bool = False) -> None:
        """Stop stepping, to synchronize or to finish."""
        with Uninterrupted(), self.mutex:
            self.engine.rest(clock.now(), finishing)
            self.dispatch_effects()

    def wait(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `holds()`, which is called with the mutex held, or until the learner is
        closed. False if neither comes in time."""
        return self.guard.wait(holds, timeout_s)

    def wait_for_correction(self, timeout_s: float) -> bool:
        """Under `adopt_after`, wait until `take` has a correction or a copy to make, or need not
        wait for one."""
        mailbox, boundaries = self.worker.mailbox, self.engine.boundaries

        def may_go_on() -> bool:
            has_one = any(not boundaries.holds_back(p) for p in mailbox)
            return has_one or bool(boundaries.fragments_to_copy()) or not boundaries.must_wait()

        return self.wait(may_go_on, timeout_s)

    def give_up(self) -> None:
        """Go on without the anchor that `take` said to wait for: it did not come in time."""
        with Uninterrupted(), self.mutex:
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

    def wait_for_end(self, timeout_s: float) -> bool:
        """At rest, wait until `take` has something to do, or all have agreed to end."""
        return self.wait(self._may_end, timeout_s)

    def check(self) -> None:
        """Raise, once, an error for the fault that stopped a background thread.

        It is a bug in this library or a lack of memory, never a peer's fault."""
        error = self.guard.error
        if error is not None:
            self.guard.error = None
            raise MendError(FAILED) from error

    def has_work(self) -> bool:
        """Whether `take` has something to do. Call it with the mutex held."""
        assert self.guard.is_held()
        return bool(self.worker.mailbox) or bool(self.engine.boundaries.fragments_to_copy())

    def _has_news(self) -> bool:
        return self.has_work() or self.engine.boundaries.settled()

    def _may_end(self) -> bool:
        return self.has_work() or self.engine.ending.end() is not None

    # ── where it stands ───────────────────────────────────────────────────────────────────────────

    def is_alone(self) -> bool:
        """Whether no peer shares this learner's model: its weights are the anchor. So they are in a
        forked child: the worker may have been at work on the anchors when it was forked."""
        with self.mutex:
            return self.inherited or self.engine.state.alone

    def is_calling_back(self) -> bool:
        """Whether the caller is `on_event`, which runs beside training."""
        return self._reporter.is_calling_back()

    def is_settled(self) -> bool:
        """Whether, at rest, everything is merged and nobody has a greater anchor."""
        with self.mutex:
            return self.engine.boundaries.settled() and not self.closed

    def end(self) -> Ended | None:
        """Who ends together with this learner, once all are ready to."""
        with self.mutex:
            return None if self.closed else self.engine.ending.end()

    def fresh_fragments(self) -> set[int]:
        """The fragments whose anchors are first weights: nothing is merged in them."""
        with self.mutex:
            return self.engine.ending.fresh_fragments()

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
        return self._period() if self.engine.state.policies.auto else 0

    def _period(self) -> int:
        with self.mutex:
            return self.engine.state.schedule.sync_every

    def status(self, *, step: int, tokens: int, head_start: int, seconds_in_mend: float) -> Status:
        """The status; `head_start` counts until this learner has begun."""
        with self.mutex:
            state = self.engine.state
            return learner_status(
                state,
                self.engine.stragglers.failing,
                step=step,
                tokens=tokens,
                position=position_of(state, step, head_start),
                seconds_in_mend=seconds_in_mend,
                traffic=self.network.traffic(),
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
            self.worker.mailbox.update({each.fragment: each for each in corrections})
            self.engine.finished(clock.now(), job, done)
            self.dispatch_effects()

    # ── effects ───────────────────────────────────────────────────────────────────────────────────

    def dispatch_effects(self) -> None:
        """Hand out what the engine wants done. Nothing here blocks."""
        assert self.guard.is_held()
        for effect in self.engine.drain(clock.now()):
            match effect:
                case Send():
                    self.network.send(effect)
                case Work():
                    self.worker.perform(effect.job)
                case Event():
                    self.worker.put(partial(self._reporter.report, effect))
                case _:
                    unreachable(effect)
        self.guard.changed.notify_all()
        self.network.flush_soon()

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    def close(self, *, asked: bool = True) -> None:
        """Say goodbye, and stop both threads' work for this learner. `asked`: whether the script
        said so.

        A second call does nothing, nor does a call in a forked child."""
        if self.inherited:
            return
        # Ctrl-C waits, for 4 · CLOSE_S at most: no later call could do what it had left out.
        with Uninterrupted(), ExitStack() as parts:
            with self.mutex:
                # A second call would take the loop away from the process's other learners.
                if self.closer is not None:
                    return
                self.closer = threading.get_ident()
                _say_goodbye(self, asked)
            # The last one first.
            parts.callback(self._ended.set)
            parts.callback(open_learners.discard, self)
            parts.callback(self.network.loop.release)
            parts.callback(self._reporter.close, CLOSE_S)
            parts.callback(self.worker.join, CLOSE_S)
            parts.callback(self.network.stop)
            parts.callback(self.worker.end)

    def await_end(self) -> None:
        """Wait until `close`, on another thread, has ended."""
        self._ended.wait(3 * CLOSE_S)

    def drop(self) -> None:
        """The owner is gone: leave.

        The garbage collector may call this on any thread, in the middle of anything, and whatever
        locks that thread holds. So the worker thread does the work. A `SimpleQueue` may be put to
        from there; a lock may not be taken."""
        self.dropped = True
        self.worker.put(self._close_dropped)

    def _close_dropped(self) -> None:
        log.info("%s: its optimizer is gone and was not closed, so it leaves", self.me.name)
        self.close(asked=False)

    @property
    def inherited(self) -> bool:
        """Whether this process is a forked child of the one that the learner lives in."""
        return self._pid != os.getpid()

    def abandon(self) -> None:
        """In a forked child: be closed. Threads, peers and sockets are the parent's, so say no
        goodbye and wait for nobody."""
        self.guard.abandon()
        self.worker.abandon()
        self.network.abandon()
        self.engine.abandon()

    def require_open(self) -> None:
        if self.inherited:
            raise ClosedError(INHERITED)
        if self.closed:
            self.check()
            open_learners.await_farewell()
            raise ClosedError(CLOSED)


def _say_goodbye(learner: Learner, asked: bool) -> None:
    """Leave the run, with the mutex held: from here on the learner is over."""
    try:
        if not asked:
            learner.engine.ending.tell_unfinished()
        learner.engine.leave(clock.now())
        learner.dispatch_effects()
    except Exception:  # the engine may be what has failed
        log.exception("%s: no goodbye could be said", learner.me.name)
    learner.guard.end()
    learner.network.leave()


def _fail(learner: Learner, error: BaseException) -> None:
    """The calling thread, one of the learner's own, cannot go on. The others hear a goodbye. They
    would else evict a silent learner, meet it anew, and wait for it, again and again."""
    learner.guard.end(error)
    learner.close()


def is_wanted_in(learner: Learner, steps: int) -> bool:
    """Whether `take` has something to do now, or will have in so many steps."""
    with learner.mutex:
        return learner.has_work() or learner.engine.boundaries.due_in(steps)
