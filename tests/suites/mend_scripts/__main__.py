"""Runs one script: `python -m mend_scripts ppo --mend alone --folder DIR`. With `--mend live`, it
is one of two learners. It writes `report.json` into the folder."""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import random
from pathlib import Path
from typing import Any

import numpy
import torch

from mend_optim import Timing

from .swap import Swap

#: Short enough that short scripts have rounds.
SYNC_EVERY = 8


class Heard(logging.Handler):
    """Keeps what the library warns of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def arguments_of(told: argparse.Namespace, ledger: Path) -> dict[str, Any] | None:
    if told.mend == "off":
        return None
    if told.mend == "alone":
        return {}
    return {
        "name": told.listen,
        "listen": told.listen,
        "peers": [told.peer],
        "sync_every": SYNC_EVERY,
        "ledger": ledger,
        "timing": Timing(beat_s=0.2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m mend_scripts", description=__doc__)
    parser.add_argument("script")
    parser.add_argument("--mend", choices=["off", "alone", "live"], default="off")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--listen")
    parser.add_argument("--peer")
    told = parser.parse_args()
    told.folder.mkdir(parents=True, exist_ok=True)
    ledger, heard = told.folder / "ledger.jsonl", Heard()
    ledger.unlink(missing_ok=True)
    logging.getLogger("mend_optim").addHandler(heard)
    torch.set_num_threads(1)
    random.seed(told.seed)
    numpy.random.seed(told.seed)
    torch.manual_seed(told.seed)
    script = importlib.import_module(f"{__package__}.{told.script}")
    figures = script.train(Swap(arguments_of(told, ledger)), told.folder, told.seed)
    report = {
        "figures": [float(figure) for figure in figures],
        "rounds": len(ledger.read_text().splitlines()) if ledger.exists() else 0,
        "warnings": heard.lines,
    }
    (told.folder / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
