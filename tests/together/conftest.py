"""Fixtures of the tests of several learners."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.support.learners import descent


@pytest.fixture(scope="session", autouse=True)
def first_optimizer() -> None:
    """At the first optimizer of a process torch imports its compiler. That takes seconds, more on a
    busy machine, and would count for the first test that happens to come; and errors of that time
    hold frames."""
    descent(0.0)


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Only reference counts free objects."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
