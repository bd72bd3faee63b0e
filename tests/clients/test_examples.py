"""The scripts in examples/ that need a client library: two learners of each end on one model, which
has learned."""

from __future__ import annotations

from pathlib import Path

from tests.clients.test_clients import needs
from tests.support.pairs import play_pair

FLOAT_BYTES = 4


@needs("peft")
@needs("transformers")
def test_of_lora_only_the_adapters_travel(tmp_path: Path) -> None:
    """In a round, a learner sends less than half of what the whole model would take."""
    a, b = play_pair("train_lora.py", tmp_path, "--steps", "40")
    assert a["digest"]
    assert a["digest"] == b["digest"]
    assert a["tokens"] == b["tokens"]
    assert sorted(a["tokens"]) == ["a", "b"]
    assert a["loss"] == b["loss"] < 0.7 * a["first_loss"]
    for report in (a, b):
        assert report["rounds"] > 0
        assert report["numbers_in_adapters"] < 0.1 * report["numbers_in_model"]
        model_bytes = report["numbers_in_model"] * FLOAT_BYTES
        assert 0 < report["bytes_sent"] < report["rounds"] * model_bytes / 2


@needs("stable_baselines3")
def test_a_policy_whose_optimizer_the_library_makes(tmp_path: Path) -> None:
    a, b = play_pair("train_rl.py", tmp_path, "--steps", "384")
    assert a["digest"]
    assert a["digest"] == b["digest"]
    assert a["tokens"] == b["tokens"] == {"a": 384, "b": 384}
    assert a["reward"] == b["reward"] > 1.5 * max(a["first_reward"], b["first_reward"])
