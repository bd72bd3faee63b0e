"""Real rounds in lockstep, of several fragments, and a learner that is at another step than the
others."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from mend_optim import MendOptimizer
from tests.support.learners import (
    LOOPBACK,
    PATIENCE_S,
    TIMING,
    cluster,
    descent,
    settle,
    start,
    step,
    together,
)

H = 8
#: No round goes on without a learner within a test.
OPTIONS: dict[str, Any] = {
    "sync_every": H,
    "fragments": 2,
    "merge": "mean",
    "grace": 10 * PATIENCE_S,
    "timing": replace(TIMING, round_timeout_s=10 * PATIENCE_S, evict_after_s=10 * PATIENCE_S),
}


def train(optimizer: MendOptimizer, steps: int) -> None:
    for _ in range(steps):
        step(optimizer, 1.0)


@pytest.mark.parametrize("adopt_after", [0, 1])
def test_a_learner_that_joins_between_two_fragments_and_the_others_do_not_wait_crosswise(
    adopt_after: int,
) -> None:
    """It comes to the boundary of the first fragment, they to that of the second. Each round needs
    those that wait in the other one."""
    options = {**OPTIONS, "adopt_after": adopt_after}
    with cluster(descent(0.0, 0.0), descent(0.0, 0.0), **options) as (a, b):
        together(partial(train, a, H // 2 + adopt_after), partial(train, b, H // 2 + adopt_after))
        assert [fragment.version for fragment in a.status().fragments] == [1, 0]
        late = MendOptimizer(
            descent(0.0, 0.0), listen=LOOPBACK, peers=[a.status().address], name="c", **options
        )
        with closing(late) as c:
            start([a, b, c])
            together(
                partial(train, a, 3 * H), partial(train, b, 3 * H), partial(train, c, 5 * H // 2)
            )
            settle([a, b, c])
            fragments = [o.status().fragments for o in (a, b, c)]
            assert len({f.digest for each in fragments for f in each}) == 2
            assert min(f.version for f in fragments[0]) >= 4
