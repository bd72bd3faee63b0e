"""Delays that jump by several beats from one message to the next, in order, as over TCP: peers are
suspected and come back, rounds go on, and the run ends."""

from __future__ import annotations

from typing import Any

import pytest

from mend_optim.engine.effects import Send
from mend_optim.protocol.messages import Offer, Seal, State
from mend_optim.protocol.timing import Timing
from tests.virtual.process import Learner
from tests.virtual.storms import policies
from tests.virtual.test_endings import Ends

TIMING = Timing(beat_s=0.5, evict_after_s=10.0, round_timeout_s=20.0, join_timeout_s=15.0)


class Jumpy(Ends):
    """A network that loses nothing, and delays each message by up to `most_beats` beats."""

    most_beats = 0.0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        #: By sender, receiver and connection, when the last message arrives.
        self.last: dict[tuple[str, str, bool], float] = {}

    def send(self, sender: Learner, effect: Send) -> None:
        way = sender.name, effect.to.name, isinstance(effect.message, Offer | Seal | State)
        jump_s = self.random.random() * self.most_beats * TIMING.beat_s
        self.last[way] = max(self.last.get(way, 0.0), self.now + 0.1 + jump_s)
        self.at(self.last[way] - self.now, self.arrive, sender, effect)


@pytest.mark.parametrize("beats", [4, 6])
def test_rounds_go_on_and_the_run_ends_where_delays_jump_by_beats(beats: int) -> None:
    cluster = Jumpy(3, beats, policies(timing=TIMING, sync_every=10))
    cluster.most_beats = beats
    cluster.speed = dict.fromkeys(cluster.names, 0.1)
    cluster.start_all()
    cluster.run(130.0)
    states = [learner.engine.state for learner in cluster.learners.values()]
    assert min(fragment.lineage.version for state in states for fragment in state.fragments) >= 15
    assert cluster.seen["evicted"] == 0
    for name in cluster.names:
        cluster.finish(name)
    assert cluster.until(lambda: cluster.all_ended(set(cluster.names)), 90.0)
    ends = list(cluster.ends.values())
    assert len(ends) == 3
    assert all(end.anchors == ends[0].anchors for end in ends)
    assert sum(end.left_over for end in ends) == 0
