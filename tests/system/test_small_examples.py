"""The small scripts in examples/: two learners of each end on one model, which has learned."""

from __future__ import annotations

from pathlib import Path

from examples.train_gan import NETWORKS
from tests.support.pairs import play_pair


def test_images_with_batch_norm_bf16_and_workers(tmp_path: Path) -> None:
    """The learned statistics are merged with the weights: the whole state is the same."""
    a, b = play_pair("train_images.py", tmp_path, "--steps", "60", "--batch", "16")
    assert a["digest"]
    assert a["digest"] == b["digest"]
    assert a["weights"] == b["weights"]
    assert a["tokens"] == b["tokens"] == {"a": 60 * 16, "b": 60 * 16}
    assert min(a["rounds"], b["rounds"]) > 0
    assert a["loss"] == b["loss"] < 0.7 * max(a["first_loss"], b["first_loss"])


def test_a_gan_has_two_optimizers(tmp_path: Path) -> None:
    """Each of its networks is merged with the other learner's."""
    a, b = play_pair("train_gan.py", tmp_path, "--steps", "400", ports=2)
    assert all(a["digests"])
    assert a["digests"] == b["digests"]
    assert a["tokens"] == b["tokens"]
    assert a["tokens"] == [{f"{name}-{role}": 400 for name in "ab"} for role in NETWORKS]
    assert a["loss"] == b["loss"] < 0.5 * a["first_loss"]
