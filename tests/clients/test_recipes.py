"""The script of docs/recipes.md that needs transformers, as it stands there."""

from __future__ import annotations

from pathlib import Path

from tests.clients.test_clients import needs
from tests.support.pages import play, stops

STEPS = 40_000  # of the script: on any machine more than the beats that an early stop takes


@needs("transformers")
@needs("accelerate")
def test_a_trainer_stops_early_and_ends_on_one_model(tmp_path: Path) -> None:
    a, b = stops(play("recipes.md", "trainer.py", tmp_path))
    assert a[1:] == b[1:]
    assert min(a[0], b[0]) > 0
    assert max(a[0], b[0]) < STEPS
    assert all((tmp_path / f"best-{name}" / "model.safetensors").is_file() for name in "ab")
