"""Mutants of what a process may do to a learner: handlers of its log, green threads, and being the
first of a container."""

from __future__ import annotations

from tests.mutation.mutant_list import Mutant, of

WRITTEN = of("unit/transport/test_background_log")


def log(name: str, text: str, instead: str) -> Mutant:
    """No handler of the log stops a learner (law 7)."""
    return Mutant(name, 7, "transport/background_log", text, instead, WRITTEN)


LOG_MUTANTS = (
    log(
        "a-handler-that-hangs-holds-up-rounds",
        "            is_started = self._start()\n",
        "            is_started = False\n",
    ),
    log(
        "a-handler-that-exits-ends-the-log",
        "except BaseException:  # even",
        "except Exception:  # even",
    ),
    log("a-handler-that-raises-fills-the-terminal", "self._has_failed = True\n", "pass\n"),
    log("a-quiet-log-is-not-quiet", " and logging.raiseExceptions and", " and"),
    log("any-number-of-lines-wait", "self._waiting.qsize() >= MOST_WAITING", "False"),
    log("lines-are-left-out-in-silence", "                self._left_out += 1\n", ""),
    log("lines-that-were-left-out-are-told-for-ever", "self._left_out -= count\n", "pass\n"),
    log("the-end-of-the-process-loses-lines", "atexit.register(lambda: flush(EXIT_S))\n", ""),
    log(
        "a-process-without-learners-has-a-thread",
        "if not self._waiting.empty():",
        "if True:",
    ),
    log(
        "one-waits-for-the-lines-at-a-time",
        "        if not done.wait(within_s):",
        "        self._in_vain = done\n        if not done.wait(within_s):",
    ),
    log(
        "each-end-waits-for-a-handler-that-hangs",
        "if self._in_vain and not self._in_vain.is_set():",
        "if False:",
    ),
    log(
        "a-handler-waits-for-itself",
        "thread is None or threading.current_thread() is thread",
        "thread is None",
    ),
    log(
        "a-log-without-a-thread-stops-training",
        "except RuntimeError:  # too",
        "except ZeroDivisionError:  # too",
    ),
    log("a-child-tells-its-lines-to-nobody", "    _writer = _Writer()\n\n\nif", "    pass\n\n\nif"),
    log("lines-below-the-level-are-made", "if not self._logger.isEnabledFor(level):", "if False:"),
    Mutant(
        "the-end-loses-lines-of-the-log",
        7,
        "runtime/reporter",
        "        background_log.flush(max(0.0, ends - time.monotonic()))\n",
        "",
        WRITTEN,
    ),
    Mutant(
        "green-threads-of-gevent-hang",
        7,
        "transport/grpc_setup",
        '("threading", "select")',
        '("_thread",)',
        of("unit/transport/test_grpc_setup"),
    ),
    Mutant(
        "gevent-without-its-select-hangs",
        7,
        "transport/grpc_setup",
        '("threading", "select")',
        '("threading",)',
        of("unit/transport/test_grpc_setup"),
    ),
    Mutant(
        "green-threads-of-eventlet-hang",
        7,
        "transport/grpc_setup",
        'eventlet.is_monkey_patched("thread")',
        "False",
        of("unit/transport/test_grpc_setup"),
    ),
    Mutant(
        "a-learner-in-each-spawned-worker",
        7,
        "transport/grpc_transport",
        "        refuse_import_of_main()\n",
        "",
        of("unit/transport/test_grpc_setup"),
    ),
    Mutant(
        "a-spawned-worker-may-import-the-script",
        7,
        "transport/grpc_setup",
        'if getattr(current_process(), "_inheriting", False):',
        "if False:",
        of("unit/transport/test_grpc_setup"),
    ),
    Mutant(
        "a-patched-socket-is-refused",
        7,
        "transport/grpc_setup",
        'eventlet.is_monkey_patched("thread")',
        "True",
        of("unit/transport/test_grpc_setup"),
    ),
    Mutant(
        "the-first-process-of-a-container-trains-on-alone",
        7,
        "runtime/farewell",
        "if self._thread and os.getpid() == 1:",
        "if False:",
        of("unit/runtime/test_farewell"),
    ),
    Mutant(
        "the-first-process-of-a-container-ends-without-a-learner",
        7,
        "runtime/farewell",
        "if self._thread and os.getpid() == 1:",
        "if os.getpid() == 1:",
        of("unit/runtime/test_farewell"),
    ),
)
