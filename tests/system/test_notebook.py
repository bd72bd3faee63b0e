"""The notebook in examples/: its cells run in order, and its two learners end on one model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

NOTEBOOK = Path(__file__).parents[2] / "examples" / "two_learners.ipynb"


@pytest.fixture
def names() -> Iterator[dict[str, Any]]:
    """What the cells define. Learners that a failed cell has left behind are closed."""
    names: dict[str, Any] = {"__name__": "notebook"}
    threads = torch.get_num_threads()
    yield names
    torch.set_num_threads(threads)
    for name in "ab":
        if name in names:
            names[name].close()


def cells() -> list[str]:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_its_learners_end_on_one_model(names: dict[str, Any]) -> None:
    for number, cell in enumerate(cells()):
        exec(compile(cell, f"cell {number}", "exec"), names)
    first, second = names["finishes"]
    assert first.digest
    assert first.digest == second.digest
    assert dict(first.tokens) == dict(second.tokens)
    assert sorted(first.tokens) == ["a", "b"]
    assert first.dropped_tokens == second.dropped_tokens == 0
    pairs = zip(names["model_a"].parameters(), names["model_b"].parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert max(names["losses"]) < 0.1 * names["first_loss"]


def test_it_is_kept_without_outputs() -> None:
    """Outputs would be another at every run, and so would the file."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert not [cell for cell in notebook["cells"] if cell.get("outputs")]
    assert not [cell for cell in notebook["cells"] if cell.get("execution_count")]
