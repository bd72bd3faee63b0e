"""Learners as actors of Ray: one is killed, starts again, and trains with the others."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ray = pytest.importorskip("ray")

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "examples" / "launch"
PATIENCE_S = 150.0
pytestmark = pytest.mark.timeout(400)  # Ray starts a cluster, and every actor imports torch
Stand = dict[str, Any]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the example, with a cluster of Ray on this machine."""
    monkeypatch.syspath_prepend(str(LAUNCH))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    paths = {"PYTHONPATH": f"{ROOT}:{LAUNCH}"}
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        namespace="mend",
        runtime_env={"env_vars": paths},
        _node_ip_address="127.0.0.1",
    )
    import ray_learners  # type: ignore[import-not-found]

    yield ray_learners
    ray.shutdown()
    sys.modules.pop("ray_learners")


def train_until(learners: list[Any], condition: Callable[[list[Stand]], bool]) -> list[Stand]:
    """Let all learners train at a time until the last stand of each meets a condition."""
    stands: dict[int, Stand] = {}
    under_way = {learner.train.remote(8): number for number, learner in enumerate(learners)}
    met = False
    while under_way:
        (ready,), _ = ray.wait(list(under_way), num_returns=1, timeout=PATIENCE_S)
        number = under_way.pop(ready)
        try:
            stands[number] = ray.get(ready)
        except ray.exceptions.RayActorError:
            stands.pop(number, None)
        met = met or (
            len(stands) == len(learners) and condition([stands[n] for n in sorted(stands)])
        )
        if not met:
            under_way[learners[number].train.remote(8)] = number
    return [stands[number] for number in range(len(learners))]


def test_a_learner_that_is_killed_starts_again_and_rejoins(example: Any) -> None:
    both = ["learner-0", "learner-1"]

    def merge(stands: list[Stand]) -> bool:
        return all(stand["members"] == both for stand in stands)

    _board, learners = example.start(2, beat_s=0.2)
    before = train_until(learners, merge)
    os.kill(before[1]["pid"], signal.SIGKILL)

    def merge_again(stands: list[Stand]) -> bool:
        return merge(stands) and stands[1]["pid"] != before[1]["pid"]

    after = train_until(learners, merge_again)
    assert after[0]["pid"] == before[0]["pid"]
    # it went on where the others were, and not from the start
    assert after[1]["step"] > before[1]["step"]
    digests = ray.get([learner.finish.remote() for learner in learners], timeout=PATIENCE_S)
    assert digests[0] == digests[1] != ""


def test_the_example_trains_one_model(example: Any) -> None:
    _board, learners = example.start(2, beat_s=0.2)
    done = example.train(learners, steps=40, at_once=40)
    assert len(done) == 2
    digests = ray.get([learner.finish.remote() for learner in done], timeout=PATIENCE_S)
    assert digests[0] == digests[1] != ""
