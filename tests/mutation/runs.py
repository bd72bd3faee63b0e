"""Runs of pytest on copies of the sources, each in a process forked from this one.

To import torch and the tests' own libraries takes most of a run. This process has imported
them once. Each run imports the sources and the tests anew, from its own copy."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import pytest

#: What many tests import, and no mutant changes. Not grpc: after a second fork, which some tests
#: make, a learner would not start.
SHARED = ("google.protobuf.message", "hypothesis", "numpy", "torch", "xdist")
OWN = ("mend_optim", "tests")
OPTIONS = ("-x", "-q", "--tb=no", "-rf", "-p", "no:cacheprovider", "-W", "ignore")


class Report(NamedTuple):
    """What a run of pytest has said."""

    #: Its exit status; None if it hung.
    status: int | None
    output: str
    seconds: float


def prepare() -> None:
    """Import what the runs share. In a run, no search for garbage goes through it: that would copy
    its pages."""
    for name in SHARED:
        importlib.import_module(name)
    gc.freeze()


def pytest_in(folder: Path, selection: Sequence[str], timeout_s: float) -> Report:
    """Run the selection on the copy in `folder`, until the first failure."""
    started = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        arguments = (folder, [*OPTIONS, *selection], output.fileno())
        process = get_context("fork").Process(target=_run, args=arguments)
        process.start()
        assert process.pid is not None
        try:
            process.join(timeout_s)
            status = process.exitcode
        finally:
            with suppress(ProcessLookupError):
                # What the tests have started, and left behind, and the run itself if it hangs.
                os.killpg(process.pid, signal.SIGKILL)
            process.join()
        output.seek(0)
        return Report(status, output.read(), time.monotonic() - started)


def _run(folder: Path, arguments: list[str], output: int) -> None:
    """Become a process like one that `python -m pytest` starts in that folder."""
    os.setsid()
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.chdir(folder)
    os.environ |= {
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "COLUMNS": "300",
    }
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(folder))
    for name in [name for name in sys.modules if name.split(".")[0] in OWN]:
        del sys.modules[name]
    importlib.invalidate_caches()
    status = pytest.main(arguments)
    atexit._run_exitfuncs()  # a fork does not, and a mutant may hang there
    sys.exit(status)
