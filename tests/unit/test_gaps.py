"""The longest gap between two steps, against a slow twin that keeps all of them."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.gaps import Gaps, Longest, without_core_s

#: For each step: the time since the last one, how much of it was without a core, and whether the
#: loop did something else in it. Whole numbers, so that sums are exact.
steps = st.lists(
    st.tuples(st.integers(0, 100), st.integers(0, 100), st.booleans()).map(
        lambda step: (step[0], min(step[:2]), step[2])
    )
)


def twin(spans: list[list[tuple[int, int, bool]]]) -> list[Longest]:
    found = []
    is_first = True
    for span in spans:
        counted = []
        for gap, starved, excused in span:
            if not (excused or is_first):
                counted.append((gap, gap - starved))
            is_first = False
        gaps, with_core = zip(*counted, strict=True) if counted else ((0,), (0,))
        found.append(Longest(len(span), max(gaps), max(with_core)))
    return found


@given(st.lists(steps))
def test_the_longest_gap_is_that_of_the_twin(spans: list[list[tuple[int, int, bool]]]) -> None:
    gaps, now, without_core, found = Gaps(), 7, 3, []
    for span in spans:
        for gap, starved, excused in span:
            now, without_core = now + gap, without_core + starved
            if excused:
                gaps.excuse()
            gaps.note(now, without_core)
        found.append(gaps.take())
    assert found == twin(spans)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_kernel_says_how_long_a_thread_was_without_a_core() -> None:
    def waited_ns() -> int:
        """The second of three counters: time on a core, time waiting for one, turns."""
        counters = Path(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/schedstat")
        return int(counters.read_text(encoding="ascii").split()[1])

    before = waited_ns()
    found = without_core_s()
    assert before <= round(1e9 * found) <= waited_ns()
