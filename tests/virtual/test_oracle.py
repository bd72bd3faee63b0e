"""The oracle looks again at whatever has changed, and at nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.virtual import insiders, ranked, storms
from tests.virtual.cluster import Cluster
from tests.virtual.oracle import Oracle
from tests.virtual.process import Learner
from tests.virtual.storms import policies
from tests.virtual.units import Vector

TWICE = {("somebody", 1): 2}


def vectors(learner: Learner) -> list[Vector]:
    return [*learner.units.theta, *learner.weights, *learner.disagreement]


def put_in_anchor(learner: Learner) -> None:
    learner.units.theta[0] = {**learner.units.theta[0], **TWICE}


def put_in_weights(learner: Learner) -> None:
    learner.weights[0] = {**learner.weights[0], **TWICE}


def put_in_disagreement(learner: Learner) -> None:
    learner.disagreement[0] = {**learner.disagreement[0], ("somebody", 1): -2}


@pytest.mark.parametrize("put", [put_in_anchor, put_in_weights, put_in_disagreement])
def test_a_vector_that_changed_is_looked_at(put: Callable[[Learner], None]) -> None:
    cluster = Cluster(2, 1, policies())
    cluster.start_all()
    cluster.run(30.0)
    learner = cluster.learners["learner-0"]
    cluster.oracle.check(learner)
    put(learner)
    with pytest.raises(AssertionError, match=r"merged twice|wrong weights"):
        cluster.oracle.check(learner)


@pytest.mark.parametrize("draw", [storms.draw, ranked.ranked, insiders.draw])
def test_no_vector_changes_in_place(
    draw: Callable[[int], storms.Storm], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle takes a vector that it has looked at for what it was then."""
    seen: dict[int, tuple[Vector, Vector]] = {}
    check = Oracle.check

    def remember(oracle: Oracle, learner: Learner) -> None:
        for vector in vectors(learner):
            seen.setdefault(id(vector), (vector, dict(vector)))
        check(oracle, learner)

    monkeypatch.setattr(Oracle, "check", remember)
    draw(300).play()
    assert len(seen) > 50
    assert all(vector == then for vector, then in seen.values())


@pytest.mark.parametrize("who", ["nobody", "the learner", "the author", "a third one"])
def test_the_author_may_have_said_that_it_gives_work_up_before_it_does(who: str) -> None:
    """The learner may move first. An anchor with later work of the author shows it nothing then."""
    cluster = Cluster(3, 1, policies())
    cluster.start_all()
    cluster.run(30.0)
    learner, author, third = (cluster.learners[name] for name in cluster.names)
    said = {"the learner": learner, "the author": author, "a third one": third}.get(who)
    if said:
        cluster.oracle.superseded[said.id, 0].add(author.name)
    lost = {(author.id, 10**6): 1}
    if who in ("the learner", "the author"):
        cluster.oracle.moved(learner, 0, lost, {}, dropped_tokens=0)
    else:
        with pytest.raises(AssertionError, match="vanished unsaid"):
            cluster.oracle.moved(learner, 0, lost, {}, dropped_tokens=0)
