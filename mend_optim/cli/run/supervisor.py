"""The processes of `mend run`: started in groups of their own, listened to, and ended.

All is done on one thread, which waits for output, for signals and for the time that the crew asks
for. A child that has ended is a signal, too (SIGCHLD)."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO

from mend_optim.cli.run.crew import Action, Crew, Pass, Say, Show, Start
from mend_optim.cli.run.outlet import Outlet
from mend_optim.cli.run.output import Prefixed
from mend_optim.cli.run.seats import Seat
from mend_optim.environment import JOINED_FILE

#: Signals that stop the command: those of Ctrl-C, Ctrl-\ and `kill`, and SIGHUP, which comes when
#: the terminal is closed. Windows lacks some.
STOPS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP")
    if hasattr(signal, name)
)
#: Signals with a meaning of the script's own, as "save a checkpoint", which the learners get.
NOTES = tuple(getattr(signal, name) for name in ("SIGUSR1", "SIGUSR2") if hasattr(signal, name))
NAME = "mend"
#: Lines of a learner that can be shown once more.
LAST_LINES = 10
#: The status of a process that the system had no room for, as a shell has it.
NOT_STARTED = 126
#: The most that is read at once, and the most that a pipe keeps for its reader.
READ, PIPE = 1 << 16, 1 << 20
#: How long the last lines wait for a reader that stands still, once a signal has ended the run.
LAST_WORDS_S = 1.0


class Supervisor:
    """Runs the learners until all have ended.

    Args:
        seats: the learners.
        crew: decides what becomes of those that end.
        outlets: standard output and standard error.
        colours: whether names have colours.
    """

    def __init__(
        self,
        seats: Sequence[Seat],
        crew: Crew,
        outlets: tuple[Outlet, Outlet],
        colours: bool,
    ) -> None:
        self._seats = seats
        self._crew = crew
        self._outlets = outlets
        self._colours = colours
        self._width = max(len(name) for name in (NAME, *(seat.name for seat in seats)))
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        #: Whether any process could be started: then the command is one that can run.
        self._has_started = False
        self._selector = selectors.DefaultSelector()
        #: Of the signals and the outlets that are stalled, without the learners' streams.
        self._stall = selectors.DefaultSelector()
        self._said = Prefixed(NAME, self._width)
        #: The last lines of each learner's last process.
        self._last: list[deque[bytes]] = [deque(maxlen=LAST_LINES) for _ in seats]

    def run(self, waiting: socket.socket) -> int:
        """Run them. Returns the exit status of the command.

        Args:
            waiting: has the signals, as of `heard_signals`.
        """
        for selector in (self._selector, self._stall):
            selector.register(waiting, selectors.EVENT_READ, None)
        try:
            while not (self._crew.is_over and not self._running):
                self._do(self._crew.tick(time.monotonic()))
                self._wait(waiting)
            self._wait_for_reader(waiting)
        finally:
            for index, child in self._running.items():
                self._send(index, signal.SIGKILL)
                child.wait()
        return self._crew.status

    def _wait(self, waiting: socket.socket) -> None:
        """Wait for the next event, and take it in. While a reader stands still, learners wait for
        it, too; but no learner that has been told to end waits for a reader."""
        wake_at = self._crew.wake_at
        patience_s = None if wake_at is None else max(0.0, wake_at - time.monotonic())
        is_held = self._is_stalled and not self._crew.is_stopped
        for key, _ in (self._stall if is_held else self._selector).select(patience_s):
            if key.data is None:
                self._hear(waiting)
            elif isinstance(key.data, Outlet):
                self._write_on(key.data)
            else:
                self._read(*key.data)
        self._reap()

    def _wait_for_reader(self, waiting: socket.socket) -> None:
        """All have ended. Wait until their last lines are read, or until a signal has come and the
        reader stands still."""
        while self._is_stalled:
            found = self._stall.select(LAST_WORDS_S if self._crew.is_stopped else None)
            if not found:
                return
            for key, _ in found:
                if key.data is None:
                    self._hear(waiting)
                else:
                    self._write_on(key.data)

    def _hear(self, waiting: socket.socket) -> None:
        """Take in the signals that have come."""
        for number in waiting.recv(4096):
            if number in STOPS:
                self._do(self._crew.told(number, time.monotonic()))
            elif number in NOTES:
                self._do(self._crew.noted(number))

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Start():
                    self._start(action.index)
                case Pass():
                    self._send(action.index, action.signal)
                case Say():
                    self._put(2, self._said.feed(f"{action.text}\n".encode()))
                case Show():
                    self._put(2, self._last[action.index])

    def _start(self, index: int) -> None:
        seat = self._seats[index]
        try:
            child = _started(seat)
        except OSError as error:
            if not self._has_started:
                raise
            self._put(2, self._said.feed(f"{seat.name} cannot start: {error}\n".encode()))
            self._do(self._crew.ended(index, NOT_STARTED, time.monotonic(), self._joined()))
            return
        self._has_started = True
        self._running[index] = child
        self._last[index].clear()
        for to, pipe in ((1, child.stdout), (2, child.stderr)):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            told = Prefixed(seat.name, self._width, index if self._colours else None)
            self._selector.register(pipe, selectors.EVENT_READ, (pipe, to, told, index))

    def _read(self, pipe: IO[bytes], to: int, told: Prefixed, index: int) -> bool:
        """Read what there is of a stream. Returns whether there may be more."""
        try:
            data = os.read(pipe.fileno(), READ)
        except BlockingIOError:
            return False
        if data:
            self._pass_on(index, to, told.feed(data))
            return True
        self._close(pipe, to, told, index)
        return False

    def _close(self, pipe: IO[bytes], to: int, told: Prefixed, index: int) -> None:
        self._pass_on(index, to, told.end())
        self._selector.unregister(pipe)
        pipe.close()

    def _pass_on(self, index: int, to: int, lines: Iterable[bytes]) -> None:
        lines = list(lines)
        self._last[index].extend(lines)
        self._put(to, lines)

    @property
    def _is_stalled(self) -> bool:
        return any(outlet.is_stalled for outlet in self._outlets)

    def _put(self, to: int, lines: Iterable[bytes]) -> None:
        outlet = self._outlets[to - 1]
        # Nobody waits for a reader that stands still at the end: the rest of the output is lost.
        if not (self._crew.is_stopped and outlet.is_full):
            outlet.put(lines)
        self._watch(outlet)

    def _write_on(self, outlet: Outlet) -> None:
        outlet.write()
        self._watch(outlet)

    def _watch(self, outlet: Outlet) -> None:
        """See to it that a reader that goes on is an event."""
        number = outlet.number
        if number is None or outlet.is_stalled == (number in self._stall.get_map()):
            return
        for selector in (self._selector, self._stall):
            if outlet.is_stalled:
                selector.register(number, selectors.EVENT_WRITE, outlet)
            else:
                selector.unregister(number)

    def _reap(self) -> None:
        """Take leave of the children that have ended, and of all that they left behind."""
        for index, child in list(self._running.items()):
            if not _has_ended(child):
                continue
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            code = child.wait()
            del self._running[index]
            for pipe in (child.stdout, child.stderr):
                self._drain(pipe)
            self._do(self._crew.ended(index, code, time.monotonic(), self._joined()))

    def _joined(self) -> list[int]:
        """The learners of which a process has ever joined."""
        files = [seat.environment.get(JOINED_FILE, "") for seat in self._seats]
        return [index for index, file in enumerate(files) if os.path.exists(file)]

    def _drain(self, pipe: IO[bytes] | None) -> None:
        """Read the rest of a stream whose process has ended. A process that has left its group may
        write on without end."""
        if pipe is None or pipe.closed:
            return
        _, to, told, index = self._selector.get_key(pipe).data
        for _ in range(PIPE // READ):
            if not self._read(pipe, to, told, index):
                break
        if not pipe.closed:
            self._close(pipe, to, told, index)

    def _send(self, index: int, number: int) -> None:
        """Send a signal: SIGTERM and those of the script to the learner itself, the others to its
        workers, too, as a terminal does."""
        child = self._running.get(index)
        if child is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            if number == signal.SIGTERM or number in NOTES:
                os.kill(child.pid, number)
            else:
                os.killpg(child.pid, number)


def _started(seat: Seat) -> subprocess.Popen[bytes]:
    # In a session of its own, a Ctrl-C at the terminal does not reach it twice.
    return subprocess.Popen(
        seat.command,
        env=dict(seat.environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def _has_ended(child: subprocess.Popen[bytes]) -> bool:
    """Whether a child has ended. It is not waited for yet where the system can tell so, as macOS
    can from Python 3.13 on: until then nobody else gets the number of its group."""
    if not hasattr(os, "waitid"):
        return child.poll() is not None
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


@contextmanager
def heard_signals() -> Iterator[socket.socket]:
    """A socket from which the numbers of the signals that arrive can be read."""
    # `nohup` lets a process ignore SIGHUP, so that it outlives its terminal. A shell lets what it
    # starts with `&` ignore Ctrl-C, too, but then nothing could end all learners.
    mute = [each for each in (signal.SIGHUP, *NOTES) if signal.getsignal(each) is signal.SIG_IGN]
    ours = [each for each in (*STOPS, *NOTES, signal.SIGCHLD) if each not in mute]
    reading, writing = socket.socketpair()
    with reading, writing:
        for end in (reading, writing):
            end.setblocking(False)
        former = {number: signal.signal(number, _heard) for number in ours}
        waker = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        try:
            yield reading
        finally:
            signal.set_wakeup_fd(waker)
            for number, handler in former.items():
                signal.signal(number, handler)


def _heard(number: int, frame: object) -> None:
    """Python has written the number into the socket already."""
