"""Lines of the log from the library's own threads: a handler may raise, be slow, or hang."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest

from mend_optim.transport import background_log as room
from mend_optim.transport.background_log import LEFT_OUT, BackgroundLog
from tests.support.learners import LOCKSTEP, PATIENCE_S, cluster, descent, drive, read

NAME = "mend_optim.transport"


class Handler(logging.Handler):
    """Keeps the lines that it gets, after it has called `work`."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self.work = work
        self.lines: list[str] = []
        self.threads: set[str] = set()
        self.called = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.called.set()
        self.work()
        self.lines.append(record.getMessage())
        self.threads.add(threading.current_thread().name)


Handle = Callable[[Callable[[], object]], Handler]


@pytest.fixture
def handle(caplog: pytest.LogCaptureFixture) -> Iterator[Handle]:
    """Adds handlers to the library's logger, which tells from level INFO on."""
    caplog.set_level(logging.INFO, "mend_optim")
    logger = logging.getLogger("mend_optim")
    before = list(logger.handlers)

    def add(work: Callable[[], object]) -> Handler:
        handler = Handler(work)
        logger.addHandler(handler)
        return handler

    yield add
    await_writer()
    logger.handlers = before


@pytest.fixture
def log() -> BackgroundLog:
    return BackgroundLog(NAME)


@pytest.fixture
def let_go(handle: Handle) -> Iterator[threading.Event]:
    """A handler that waits for it waits until the end of the test at most."""
    event = threading.Event()
    yield event
    event.set()


def await_writer() -> None:
    """Wait for the lines, whether or not anybody has waited in vain before."""
    done = threading.Event()
    room._writer._waiting.put(done)
    assert room._writer._thread is None or done.wait(PATIENCE_S)


def nothing() -> None:
    """A handler that does its work."""


def test_lines_are_written_in_order_on_a_thread_of_their_own(
    log: BackgroundLog, handle: Handle
) -> None:
    handler = handle(nothing)
    for number in range(5):
        log.info("line %d", number)
    assert room.flush(PATIENCE_S)
    assert handler.lines == [f"line {number}" for number in range(5)]
    assert handler.threads == {"mend-log"}


def test_without_lines_there_is_no_thread(log: BackgroundLog, handle: Handle) -> None:
    handler = handle(nothing)
    for number in range(3):
        log.info("line %d", number)
        assert room.flush(PATIENCE_S)
        assert "mend-log" not in {thread.name for thread in threading.enumerate()}
    assert len(handler.lines) == 3


def test_a_record_tells_of_the_code_and_the_thread_that_wrote_it(
    log: BackgroundLog, caplog: pytest.LogCaptureFixture
) -> None:
    try:
        raise ValueError("a bug")
    except ValueError:
        log.exception("%s failed", "b")
    (record,) = caplog.records
    assert (record.name, record.levelname, record.getMessage()) == (NAME, "ERROR", "b failed")
    assert (record.filename, record.funcName) == (
        os.path.basename(__file__),
        test_a_record_tells_of_the_code_and_the_thread_that_wrote_it.__name__,
    )
    assert record.threadName == threading.current_thread().name
    assert "ValueError: a bug" in caplog.text


def test_a_line_below_the_level_costs_no_record(
    log: BackgroundLog, handle: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle(nothing)
    writer = Mock()
    monkeypatch.setattr(room, "_writer", writer)
    log.debug("seldom read")
    writer.put.assert_not_called()
    log.warning("read")
    writer.put.assert_called_once()
    writer.flush.return_value = True


@pytest.mark.parametrize("error", [ValueError("no disk"), SystemExit(1)])
def test_a_handler_that_raises_stops_no_later_line(
    log: BackgroundLog,
    handle: Handle,
    error: BaseException,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "_writer", room._Writer())
    raising = Mock(side_effect=[error, error, None])
    handler = handle(raising)
    for number in range(3):
        log.info("line %d", number)
    assert room.flush(PATIENCE_S)
    assert handler.lines == ["line 2"]
    told = capsys.readouterr().err
    assert told.count("A handler of the log failed") == 1
    assert type(error).__name__ in told


def test_a_handler_that_raises_says_nothing_where_logging_is_told_to_be_quiet(
    log: BackgroundLog,
    handle: Handle,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "_writer", room._Writer())
    monkeypatch.setattr(logging, "raiseExceptions", False)
    handle(Mock(side_effect=ValueError))
    log.info("line")
    assert room.flush(PATIENCE_S)
    assert capsys.readouterr().err == ""


def test_so_many_lines_wait_for_a_handler_that_hangs_and_the_rest_is_counted(
    log: BackgroundLog,
    handle: Handle,
    let_go: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "MOST_WAITING", 2)
    monkeypatch.setattr(room, "_writer", room._Writer())
    handler = handle(let_go.wait)
    log.info("line 0")
    assert handler.called.wait(PATIENCE_S)
    for number in range(1, 6):
        log.info("line %d", number)
    let_go.set()
    assert room.flush(PATIENCE_S)
    log.info("line %d", 6)
    log.info("line %d", 7)
    assert room.flush(PATIENCE_S)
    assert handler.lines == ["line 0", "line 1", "line 2", LEFT_OUT.format(3), "line 6", "line 7"]


def test_those_who_wait_for_the_lines_at_once_all_wait(
    log: BackgroundLog, handle: Handle, let_go: threading.Event
) -> None:
    """A handler that is slow is none that hangs."""
    handler = handle(let_go.wait)
    log.info("line")
    assert handler.called.wait(PATIENCE_S)
    with ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(room.flush, PATIENCE_S) for _ in range(2)]
        while room._writer._waiting.qsize() < 2:
            assert not any(wait.done() for wait in waits)
        let_go.set()
        assert all(wait.result() for wait in waits)


ENDS = """
import logging
from mend_optim.transport.background_log import BackgroundLog
logging.basicConfig(format="%(message)s", level=logging.INFO)
for number in range(100):
    BackgroundLog("mend_optim").info("line %d", number)
"""


def test_the_end_of_the_process_waits_for_the_lines() -> None:
    end = subprocess.run(
        [sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=200, check=True
    )
    assert end.stderr.splitlines() == [f"line {number}" for number in range(100)]


def test_nobody_waits_twice_for_a_handler_that_hangs(
    log: BackgroundLog,
    handle: Handle,
    let_go: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer = room._Writer()
    monkeypatch.setattr(room, "_writer", writer)
    handler = handle(let_go.wait)
    log.info("line")
    assert handler.called.wait(PATIENCE_S)
    assert not writer.flush(0.0)
    wait = Mock(side_effect=AssertionError)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Event, "wait", wait)
        assert not writer.flush(PATIENCE_S)
    wait.assert_not_called()
    let_go.set()
    await_writer()
    assert writer.flush(PATIENCE_S)


def test_a_handler_may_wait_for_the_lines_before(log: BackgroundLog, handle: Handle) -> None:
    seen: list[bool] = []
    handle(lambda: seen.append(room.flush(PATIENCE_S)))  # as `close()` of an optimizer does
    log.info("line")
    assert room.flush(PATIENCE_S)
    assert seen == [True]


def test_without_a_thread_the_caller_writes(
    log: BackgroundLog, handle: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_writer", room._Writer())
    handler = handle(nothing)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError))
        log.info("no thread")
    assert handler.lines == ["no thread"]
    log.info("a thread")
    assert room.flush(PATIENCE_S)
    assert handler.lines == ["no thread", "a thread"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_forked_child_writes_its_own_lines(
    log: BackgroundLog, handle: Handle, let_go: threading.Event
) -> None:
    """The thread of the parent is not in it, and no line that waits for that."""
    handler = handle(let_go.wait)
    for _ in range(2):
        log.info("of the parent")
    assert handler.called.wait(PATIENCE_S)
    child = os.fork()
    if not child:
        handler.work = nothing
        log.info("of the child")
        room.flush(PATIENCE_S)
        os._exit(0 if handler.lines == ["of the child"] else 1)
    let_go.set()
    assert os.waitpid(child, 0)[1] == 0


def test_a_handler_that_raises_holds_up_no_rounds(handle: Handle) -> None:
    handler = handle(Mock(side_effect=SystemExit("a bug of the user's")))
    with cluster(descent(0.0), descent(0.0), **LOCKSTEP) as optimizers:
        drive(optimizers, 3, lambda i, s: 1.0)  # would raise
        assert handler.called.wait(PATIENCE_S)
        assert read(optimizers[0]) == [-3.0]


def test_a_handler_that_hangs_holds_up_neither_rounds_nor_the_end(
    handle: Handle, let_go: threading.Event
) -> None:
    handler = handle(let_go.wait)
    with cluster(descent(0.0), descent(0.0), **LOCKSTEP) as optimizers:
        drive(optimizers, 3, lambda i, s: 1.0)  # would hang
        assert handler.called.wait(PATIENCE_S)
        assert read(optimizers[0]) == [-3.0]


def test_the_end_waits_for_the_log(
    handle: Handle, let_go: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = room.flush

    def flush(within_s: float) -> bool:
        let_go.set()
        return real(within_s)

    handler = handle(let_go.wait)
    monkeypatch.setattr(room, "flush", flush)
    with cluster(descent(0.0), descent(0.0), **LOCKSTEP) as optimizers:
        drive(optimizers, 1, lambda i, s: 1.0)
    assert any("first merge" in line for line in handler.lines)
