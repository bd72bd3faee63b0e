"""Processes in which a learner cannot live."""

from __future__ import annotations

import sys
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
