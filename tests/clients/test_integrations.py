"""Our callbacks inside the trainers of other libraries: two learners train one model, and end on
it. The numbers that they are compared with are observed by other ways: see `integrated.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from tests.clients.pair import Facts, Stage
from tests.clients.session import STEPS
from tests.clients.test_clients import needs


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    stage = Stage(tmp_path_factory.mktemp("integrations"))
    yield stage
    stage.end()


def check_finished(reports: Sequence[Facts], steps: Sequence[int]) -> None:
    """Both have ended on one model, with every token that was trained in it."""
    for report, count in zip(reports, steps, strict=True):
        assert report["agreed"], report["reason"]
        assert report["step"] == count
        assert report["tokens"] == report["expected_tokens"]
        assert (report["unmerged_tokens"], report["dropped_tokens"]) == (0, 0)
        assert report["all_tokens"] == {
            name: each["expected_tokens"] for name, each in zip("ab", reports, strict=True)
        }
        assert report["rounds"].count(["a", "b"]) >= 2
    assert reports[0]["digest"] == reports[1]["digest"] != ""
    assert reports[0]["weights"] == reports[1]["weights"]
    # So that equal counts are no accident.
    assert reports[0]["expected_tokens"] != sum(steps)


def check_evaluated(report: Facts, passes: int) -> None:
    """Each pass of an evaluation within training had the global weights, which are not the
    learner's own; those came back."""
    seen = report["evaluations"]
    assert seen["passes"] == seen["global"] == passes
    assert seen["unlike_own"] >= passes - 4  # until something is merged, they are the same
    assert seen["unlike_own"] > 0
    assert report["resumed"]


@needs("transformers")
def test_the_callback_in_the_trainer_of_transformers(stage: Stage) -> None:
    reports = stage.play("integrated_transformers", "non_padding")
    steps = (STEPS, STEPS + 6)
    check_finished(reports, steps)
    for report, count in zip(reports, steps, strict=True):
        assert [(at, own) for at, own, _ in report["logged"]] == [
            (at, at) for at in range(3, count + 1, 3)
        ]
        assert report["logged"][-1][2] == report["tokens"]
        assert report["history"] == [own for _, own, _ in report["logged"]]
        assert report["reported"]["loss"] == report["losses"][-1]
        # Every 8 steps, on two sets of one batch; newer versions also do so at the end. The last
        # one is the script's own, after training.
        evaluations = len(report["evaluated"]) - 1
        assert evaluations in (count // 8, -(-count // 8))
        check_evaluated(report, passes=2 * evaluations)
        assert report["evaluated_after"] < report["evaluated"][0]


@needs("transformers")
def test_the_callback_lets_the_trainer_count_tokens(stage: Stage) -> None:
    reports = stage.play("integrated_transformers", "by_default")
    check_finished(reports, (STEPS, STEPS))


@needs("lightning")
def test_the_callback_in_the_trainer_of_lightning(stage: Stage) -> None:
    reports = stage.play("integrated_lightning", "automatic")
    steps = (STEPS, STEPS + 6)
    check_finished(reports, steps)
    for report, count in zip(reports, steps, strict=True):
        assert report["logged"] == [[at, at] for at in range(3, count + 1, 3)]
        assert set(report["reported"]) == {"loss"}
        # Every 4 batches, of which 2 make a step; the set has 2 batches.
        check_evaluated(report, passes=2 * (count // 2))


@needs("lightning")
def test_the_callback_with_manual_optimization(stage: Stage) -> None:
    reports = stage.play("integrated_lightning", "manual")
    check_finished(reports, (STEPS, STEPS))
    for report in reports:
        check_evaluated(report, passes=2 * (STEPS // 4))


@needs("lightning")
def test_the_callback_before_one_that_averages_the_weights(stage: Stage) -> None:
    """The learners end on one model, which the average of each takes the place of."""
    reports = stage.play("integrated_lightning", "averaged")
    for report in reports:
        assert report["agreed"], report["reason"]
        assert report["tokens"] == report["expected_tokens"]
        assert report["resumed"]
        assert report["validated"]
        assert report["state"] == report["average"]
    assert reports[0]["ended_on"] == reports[1]["ended_on"]
    assert reports[0]["average"] != reports[1]["average"]
