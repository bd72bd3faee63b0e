"""Processes in which a learner cannot live."""

from __future__ import annotations

import subprocess
import sys
from multiprocessing import current_process
from pathlib import Path
from unittest.mock import Mock

import pytest

from mend_optim import MendOptimizer
from mend_optim.errors import UsageError
from mend_optim.transport.grpc_setup import refuse_green_threads
from tests.support.learners import LOOPBACK, descent


def gevent(*patched: str) -> Mock:
    return Mock(is_module_patched=lambda name: name in patched)


def eventlet(*patched: str) -> Mock:
    return Mock(is_monkey_patched=lambda name: name in patched)


@pytest.mark.parametrize("patched", ["threading", "select"])
def test_a_learner_is_refused_where_gevent_has_replaced_threads(
    monkeypatch: pytest.MonkeyPatch, patched: str
) -> None:
    monkeypatch.setitem(sys.modules, "gevent.monkey", gevent("socket", patched))
    with pytest.raises(UsageError, match="gevent has patched threading or select"):
        MendOptimizer(descent(0.0), name="a", listen=LOOPBACK)  # would hang


def test_a_learner_is_refused_where_eventlet_has_replaced_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "eventlet.patcher", eventlet("socket", "thread"))
    with pytest.raises(UsageError, match="eventlet has patched threads;"):
        MendOptimizer(descent(0.0), name="a", listen=LOOPBACK)  # would hang


def test_the_rest_that_they_patch_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gevent.monkey", gevent("socket", "time", "signal"))
    monkeypatch.setitem(sys.modules, "eventlet.patcher", eventlet("socket", "select"))
    refuse_green_threads()


def test_without_peers_threads_may_be_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gevent.monkey", gevent("threading"))
    MendOptimizer(descent(0.0)).step()


UNGUARDED = """
from multiprocessing import get_context
from mend_optim.transport.grpc_setup import refuse_import_of_main

refuse_import_of_main()
process = get_context("spawn").Process(target=print)
process.start()
process.join()
print("the process ended with", process.exitcode)
"""


def test_a_spawned_process_that_imports_the_script_is_told_of_the_guard(tmp_path: Path) -> None:
    """Each worker of a `DataLoader` does, where workers are spawned."""
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED, encoding="utf-8")
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert ended.stdout == "the process ended with 1\n"
    assert "UsageError: listen and peers must not be given while a spawned" in ended.stderr
    assert "put what trains below if __name__ == '__main__':" in ended.stderr


def test_no_learner_is_made_while_a_script_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current_process(), "_inheriting", True, raising=False)
    MendOptimizer(descent(0.0)).step()  # without peers it may
    with pytest.raises(UsageError, match="a worker of a DataLoader, imports the script"):
        MendOptimizer(descent(0.0), name="a", listen=LOOPBACK)
