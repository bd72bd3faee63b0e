"""One rank of a test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True, kw_only=True)
class Cast:
    """The rank that plays."""

    learner: str
    rank: int
    ranks: int
    folder: Path
    #: Of each learner.
    addresses: dict[str, str]
    say: Callable[..., None]

    @property
    def number(self) -> int:
        """Each learner trains on its own batches."""
        return "ab".index(self.learner) + 1

    def leave(self, facts: dict[str, Any]) -> None:
        """Leave something behind for the test."""
        torch.save(facts, self.folder / f"{self.learner}{self.rank}.pt")
