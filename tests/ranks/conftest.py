"""Shared parts of the tests of real ranks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ranks.company import Nursery


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """Forks all ranks of a test module."""
    nursery = Nursery()
    yield nursery
    nursery.close()
