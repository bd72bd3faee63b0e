"""Fixtures of the tests of several learners."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.support.learners import descent


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Only reference counts free objects."""
    # At the first optimizer, torch imports much, and its errors of that time hold our frames.
    descent(0.0)
    gc.collect()
    gc.disable()
    yield
    gc.enable()
