"""Real client libraries: two processes train one model inside each, and the client's own outputs
are right.

The clients that come with torch always run. The others run where they are installed: `make
test-clients`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import AdamW

from tests.clients.pair import Facts, Stage
from tests.clients.session import STEPS, SYNC_EVERY, digest, network

LR = 0.01


def needs(library: str) -> pytest.MarkDecorator:
    reason = f"{library} is not installed: `make test-clients`, or pip install '.[clients]'"
    return pytest.mark.skipif(find_spec(library) is None, reason=reason)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    stage = Stage(tmp_path_factory.mktemp("clients"))
    yield stage
    stage.end()


def check_merged(
    reports: Sequence[Facts], taken: Sequence[int] = (STEPS, STEPS), before: int = 0
) -> None:
    """Rounds had both learners as members. The steps of each are counted, and merged once. Both
    agree to the bit. `taken`: the steps of each in this run, in any order. `before`: the
    steps that each had counted when it began."""
    assert sorted(report["taken"] for report in reports) == sorted(taken)
    for report in reports:
        assert report["settled"]
        assert report["rounds_adopted"] >= STEPS // SYNC_EVERY
        assert report["seals"].count(["a", "b"]) >= 2
        assert report["step"] == report["tokens"] == before + report["taken"]
        assert report["dropped_tokens"] == 0
        assert report["merged_tokens"] == [sum(each["tokens"] for each in reports)]
    assert reports[0]["weights"] == reports[1]["weights"]


def check_untouched(report: Facts) -> None:
    """Loading a checkpoint has run no round."""
    assert (report["rounds_adopted"], report["seals"]) == (0, [])


def check_clipped(norms: Sequence[float], limit: float) -> None:
    """Every gradient that was longer than the limit reached the optimizer at the limit."""
    assert norms == pytest.approx([limit] * STEPS, rel=1e-4)


def hyperbola(first: int, last: int) -> Any:
    """The rates of the scripts' schedule, from one step to before another."""
    return pytest.approx([LR / (1 + step) for step in range(first, last)])


def load(path: Path) -> Any:
    """The contents of a file, read without trusting it."""
    return torch.load(path, weights_only=True)


def fits(state: Any, model: torch.nn.Module, step: int) -> bool:
    """Whether a plain optimizer can go on from this state."""
    plain = AdamW(model.parameters(), lr=1.0)
    plain.load_state_dict(state)
    return all(float(plain.state[p]["step"]) == step for p in model.parameters())


# ── what comes with torch ─────────────────────────────────────────────────────────────────────────


def test_checkpoints_of_torch_distributed(stage: Stage) -> None:
    reports = stage.play("torch_tools", "checkpoint")
    check_merged([report["trained"] for report in reports])
    for report in reports:
        loaded = report["loaded"]
        assert loaded["weights"] == report["trained"]["weights"]
        assert (loaded["moments"], loaded["lr"]) == (report["saved"], LR)
        check_untouched(loaded)
    check_merged(reports)  # only `state` and `param_groups` were kept: they begin to count afresh
    assert reports[0]["weights"] != reports[0]["loaded"]["weights"]


def test_the_step_that_makes_a_fresh_optimizers_state_is_no_training(stage: Stage) -> None:
    reports = stage.play("torch_tools", "phantom")
    for report in reports:
        assert report["keys"] == ["0.bias", "0.weight", "2.bias", "2.weight"]
        assert report["unchanged"]
        check_untouched(report["counted"])
        assert (report["counted"]["step"], report["counted"]["tokens"]) == (0, 0)
    check_merged(reports)


def test_a_compiled_step_trains_as_a_plain_one(stage: Stage) -> None:
    plain = stage.play("torch_tools", "plain")
    compiled = stage.play("torch_tools", "compiled_step")
    check_merged(plain)
    check_merged(compiled)
    assert compiled[0]["weights"] == plain[0]["weights"]


def test_a_whole_training_step_can_be_compiled(stage: Stage) -> None:
    reports = stage.play("torch_tools", "compiled_training")
    check_merged(reports)
    for report in reports:
        assert report["losses"][-1] < report["losses"][0] / 2


def test_averaged_weights_and_their_learning_rates(stage: Stage) -> None:
    reports = stage.play("torch_tools", "averaging")
    check_merged(reports)
    half = STEPS // 2
    falling = [0.1 * (1 - step / STEPS) for step in range(1, half + 1)]
    annealed = [0.05 - (0.05 - 0.025) * min(step / 4, 1) for step in range(1, half + 1)]
    for report in reports:
        assert report["rates"] == pytest.approx(falling + annealed)
        assert report["averaged"] == half
        assert report["error"] < 1e-6


@pytest.mark.parametrize("scene", ["clip_norm", "clip_value"])
def test_clipped_gradients(stage: Stage, scene: str) -> None:
    reports = stage.play("torch_tools", scene)
    check_merged(reports)
    for report in reports:
        assert min(report["whole"]) > 0.1
        check_clipped(report["clipped"], 0.1)


# ── Lightning ─────────────────────────────────────────────────────────────────────────────────────


@needs("lightning")
def test_lightning_with_automatic_optimization_and_going_on_from_a_checkpoint(stage: Stage) -> None:
    reports = stage.play("lightning_trainer", "automatic")
    for part, like, steps in [("first", "plain", STEPS), ("resumed", "plain_resumed", 2 * STEPS)]:
        both = [report[part] for report in reports]
        check_merged(both, before=steps - STEPS)
        for report in reports:
            seen = report[part]["seen"]
            assert seen == report[like]
            assert (seen["global_step"], seen["steps"]) == (steps, STEPS)
            assert seen["rates"] == hyperbola(steps - STEPS, steps)
            check_clipped(report[part]["clipped"], 0.1)
    for report in reports:
        assert report["first"]["seen"]["batches"] == 2 * STEPS
        assert report["first"]["seen"]["files"] == [
            f"step={step}.ckpt" for step in (STEPS // 2, STEPS)
        ]


@needs("lightning")
def test_checkpoints_of_lightning_fit_a_plain_optimizer(stage: Stage) -> None:
    reports = stage.play("lightning_trainer", "manual")
    for report in reports:
        for name, step in [("merged.ckpt", STEPS), (f"step={STEPS // 2}.ckpt", STEPS // 2)]:
            saved = load(report["folder"] / "run" / name)
            assert fits(saved["optimizer_states"][0], network(), step)
            assert saved["lr_schedulers"][0]["last_epoch"] == step
            assert saved["global_step"] == step
        merged = load(report["folder"] / "run" / "merged.ckpt")["state_dict"]
        assert digest(merged.values()) == report["weights"]


@needs("lightning")
def test_lightning_with_manual_optimization(stage: Stage) -> None:
    reports = stage.play("lightning_trainer", "manual")
    check_merged(reports)
    for report in reports:
        seen = report["seen"]
        assert (seen["global_step"], seen["steps"], seen["batches"], seen["epochs"]) == (
            STEPS,
            STEPS,
            STEPS,
            1,
        )
        assert seen["rates"] == hyperbola(0, STEPS)
        check_clipped(report["clipped"], 0.1)


@needs("lightning")
def test_lightning_with_manual_optimization_drops_the_gradient_of_replaced_weights(
    stage: Stage,
) -> None:
    """Its proxy passes a closure that computes nothing."""
    reports = stage.play("lightning_trainer", "newcomer")
    check_merged(reports, (STEPS, STEPS - 1))
    assert [report["seen"]["global_step"] for report in reports] == [STEPS, STEPS]


# ── Hugging Face ──────────────────────────────────────────────────────────────────────────────────


@needs("accelerate")
def test_accelerate_with_accumulated_gradients_and_a_saved_state(stage: Stage) -> None:
    reports = stage.play("accelerate_loop", "loop")
    check_merged([report["trained"] for report in reports])
    check_merged(reports, before=STEPS)
    for report in reports:
        trained, loaded = report["trained"], report["loaded"]
        for part, first in [(trained, 0), (report, STEPS)]:
            assert part["micro_batches"] == 2 * STEPS
            assert part["skipped"] == 0
            assert part["rates"] == hyperbola(first, first + STEPS)
            check_clipped(part["clipped"], 0.1)
        assert (loaded["weights"], loaded["moments"]) == (trained["weights"], trained["moments"])
        check_untouched(loaded)
        assert [loaded["next_rate"]] == hyperbola(STEPS, STEPS + 1)
        assert fits(load(Path(trained["saved"]) / "optimizer.bin"), network(), STEPS)


@needs("transformers")
def test_transformers_trainer_and_going_on_from_its_checkpoint(stage: Stage) -> None:
    """Both go on from checkpoints of their own, between two merges."""
    reports = stage.play("transformers_trainer", "train")
    first, resumed = ([report[part] for report in reports] for part in ("first", "resumed"))
    check_merged(first)
    check_merged(resumed, before=STEPS)
    warm = [LR * step / 4 for step in range(4)]
    rates = pytest.approx(
        warm + [LR * (1 - step / (2 * STEPS - 4)) for step in range(2 * STEPS - 4)]
    )
    for one, other in zip(first, resumed, strict=True):
        assert (one["global_step"], other["global_step"]) == (STEPS, 2 * STEPS)
        assert (one["steps"], other["steps"]) == (STEPS, STEPS)
        assert (one["micro_batches"], other["micro_batches"]) == (2 * STEPS, 2 * STEPS)
        assert one["saved"] + other["saved"] == [12, 24, 36, 48]
        assert other["rates"] == rates
        assert other["losses"][:STEPS] == one["losses"]
        assert other["losses"][-1] < one["losses"][0] / 2
        check_clipped(one["clipped"], 0.5)


@needs("transformers")
def test_checkpoints_of_transformers_fit_a_plain_optimizer(stage: Stage) -> None:
    for report in stage.play("transformers_trainer", "train"):
        folder = report["folder"] / f"checkpoint-{STEPS}"
        assert {path.name for path in folder.iterdir()} >= {
            "model.safetensors",
            "optimizer.pt",
            "scheduler.pt",
        }
        assert json.loads((folder / "trainer_state.json").read_text())["global_step"] == STEPS
        assert load(folder / "scheduler.pt")["last_epoch"] == STEPS
        state = load(folder / "optimizer.pt")
        assert {float(entry["step"]) for entry in state["state"].values()} == {STEPS}
