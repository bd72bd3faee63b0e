"""The thread that performs one learner's tensor jobs, and the corrections that they make."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from mend_optim.engine.effects import Done, Job
from mend_optim.protocol.proofs import Notary
from mend_optim.runtime import last_work
from mend_optim.runtime.guard import LOOK_UP_S, Guard
from mend_optim.runtime.hashers import Hashers
from mend_optim.transport.background_log import BackgroundLog
from mend_optim.worker.anchors import Anchors
from mend_optim.worker.correction import Correction, stack
from mend_optim.worker.signing import Signing

log = BackgroundLog("mend_optim")
T = TypeVar("T")
#: Seconds that the end of the process waits for the last jobs: those of a model of billions of
#: parameters may take that long.
LAST_JOBS_S = 60.0


class MergeWorker:
    """One learner's worker thread, its queue of jobs, and its mailbox of corrections.

    The thread performs jobs one at a time, in order. It holds the learner's mutex only to change
    the mailbox, never during tensor work.

    Args:
        guard: the learner's mutex, which also protects the mailbox.
        finished: called on the worker thread, without the mutex, after each of the engine's jobs.
            It posts the corrections and tells the engine, in one hold of the mutex.
        fail: called on the worker thread with the error that ends it.
    """

    def __init__(
        self,
        guard: Guard,
        finished: Callable[[Job, Done, Sequence[Correction]], None],
        fail: Callable[[BaseException], object],
    ) -> None:
        self._guard = guard
        self._finished = finished
        self.fail = fail
        #: The tensor side of the learner, from `Learner.begin` on. Only this thread may touch it.
        self.anchors: Anchors | None = None
        #: At most one correction per fragment, which training has not taken yet. Under the mutex.
        self.mailbox: dict[int, Correction] = {}
        self.jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._hashers = Hashers()
        self._has_failed = False
        self.thread = threading.Thread(target=self._run, name="mend-merge", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def begin(
        self, anchors: Anchors, corrections: Sequence[Correction], notary: Notary | None
    ) -> None:
        """Take the anchors, and corrections that a checkpoint kept. Offers are signed if there is a
        notary."""
        assert self._guard.is_held()
        anchors.hashing.spread = self._hashers.spread
        anchors.signing = Signing(notary, anchors.hashing) if notary else None
        self.anchors = anchors
        self.mailbox.update({correction.fragment: correction for correction in corrections})

    def put(self, action: Callable[[], object]) -> None:
        """Run `action` on the worker thread, after everything that was put before it."""
        self.jobs.put(action)

    def perform(self, job: Job) -> None:
        """Perform one of the engine's jobs, after everything that was put before it."""
        self.jobs.put(lambda: self._perform(job))

    def between_jobs(self, look: Callable[[Anchors], T]) -> T:
        """Let the worker thread look at the anchors between two of its jobs, and wait for it.

        The caller looks itself if the worker thread has ended, or if the caller is the worker
        thread."""
        anchors = self.anchors
        assert anchors is not None
        seen: list[T] = []

        def see() -> None:
            made = look(anchors)
            with self._guard.mutex:
                seen.append(made)
                self._guard.changed.notify_all()

        if not self.is_own_thread():
            self.jobs.put(see)
            # The thread ends its present jobs before it ends, however long that takes. A look
            # beside one of them could see half of a merge, which a checkpoint would keep.
            with self._guard.mutex:
                while not seen and self.thread.is_alive():
                    self._guard.changed.wait(LOOK_UP_S)
        return seen[0] if seen else look(anchors)

    def abandon(self) -> None:
        """In a forked child, which has no such threads: jobs that are put from now on are lost."""
        self.jobs = queue.SimpleQueue()
        if self.anchors:
            self.anchors.hashing.spread = map

    def end(self) -> None:
        """Let the thread end after the jobs in the queue."""
        last_work.note(self.thread, LAST_JOBS_S)
        self.jobs.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end. The thread itself, which closes a learner that was dropped,
        does what is left, unless it has failed: among that is what there is to tell of the end."""
        if not self.is_own_thread():
            self.thread.join(timeout_s)
        elif not self._has_failed:
            while (action := self.jobs.get()) is not None:
                action()
            self.end()

    def is_own_thread(self) -> bool:
        """Whether the caller is the worker thread."""
        return threading.current_thread() is self.thread

    def _run(self) -> None:
        try:
            while (action := self.jobs.get()) is not None:
                action()
        except BaseException as error:
            log.exception("the merge worker failed")
            self._has_failed = True
            self.fail(error)
        finally:
            self._hashers.end()

    def _perform(self, job: Job) -> None:
        assert self.anchors is not None
        done, made = self.anchors.perform(job)
        corrections = [self.anchors.bring(self._stacked(correction)) for correction in made]
        self._finished(job, done, corrections)

    def _stacked(self, correction: Correction) -> Correction:
        """Take an earlier correction that training has not taken back out of the mailbox, and add
        it to this one.

        The tensors are added without the mutex. Meanwhile, training finds no correction there."""
        with self._guard.mutex:
            older = self.mailbox.pop(correction.fragment, None)
        return stack(older, correction)
