"""Calls beside a captured graph, with a stand-in for the driver; `tests/system/test_gpu.py` has a
real one."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from mend_optim.model import graph_capture
from mend_optim.model.graph_capture import RELAXED, beside_captures


class Driver:
    """Swaps the mode of its only thread as the real one does."""

    def __init__(self, mode: int) -> None:
        self.mode = mode

    def exchange(self, mode: Any) -> int:
        value = ctypes.cast(mode, ctypes.POINTER(ctypes.c_int)).contents
        self.mode, value.value = value.value, self.mode
        return 0


@pytest.fixture(params=[0, 1])
def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver(request.param)
    monkeypatch.setattr(graph_capture, "_exchange", lambda: driver.exchange)
    return driver


def test_a_thread_is_relaxed_meanwhile_and_then_as_before(driver: Driver) -> None:
    before = driver.mode
    with beside_captures():
        assert driver.mode == RELAXED
        with beside_captures():
            assert driver.mode == RELAXED
        assert driver.mode == RELAXED
    assert driver.mode == before


def test_a_fault_leaves_the_thread_as_it_was(driver: Driver) -> None:
    before = driver.mode
    with pytest.raises(ZeroDivisionError), beside_captures():
        raise ZeroDivisionError
    assert driver.mode == before


def test_without_a_driver_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise OSError(name)

    monkeypatch.setattr(graph_capture.torch.version, "cuda", "13.0")
    monkeypatch.setattr(graph_capture.ctypes, "CDLL", absent)
    graph_capture._exchange.cache_clear()
    try:
        with beside_captures():
            assert graph_capture._exchange() is None
    finally:
        graph_capture._exchange.cache_clear()
