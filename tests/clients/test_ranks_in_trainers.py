"""Trainers that train by DDP, two of them with our callbacks: a learner of two ranks, beside one of
one process. Each trains, writes a checkpoint, and goes on from that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.clients.ranked_session import STEPS
from tests.clients.test_clients import needs
from tests.support.addresses import free_addresses

HERE = Path(__file__).parent
PATIENCE_S = 200.0
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
#: Of a step on one rank: rows of 8 ids, and rows.
TOKENS = {"ranked_transformers": 2 * 8, "ranked_lightning": 2, "ranked_accelerate": 2}


def started(script: str, name: str, folder: Path, addresses: list[str]) -> subprocess.Popen[str]:
    """One learner: a is two ranks, and b is one process."""
    here = {key: text for key, text in os.environ.items() if not key.startswith("MEND_")}
    with (folder / f"{name}.log").open("w") as log:
        return subprocess.Popen(
            [
                *(sys.executable, *(TORCHRUN if name == "a" else ())),
                *(str(HERE / f"{script}.py"), name, str(folder), *addresses),
            ],
            stdout=log,
            stderr=log,
            text=True,
            env={
                **here,
                "PYTHONPATH": str(HERE.parents[1]),
                "HF_HUB_OFFLINE": "1",
                "OMP_NUM_THREADS": "1",
            },
        )


def ends_of(script: str, folder: Path) -> list[list[dict[str, Any]]]:
    """How both parts ended, on the ranks of a and on b."""
    addresses = free_addresses(4)
    learners = {name: started(script, name, folder, addresses) for name in "ab"}
    try:
        for name, process in learners.items():
            code = process.wait(PATIENCE_S)
            assert code == 0, (folder / f"{name}.log").read_text()[-3000:]
    except subprocess.TimeoutExpired:
        logs = [(folder / f"{name}.log").read_text()[-3000:] for name in learners]
        raise AssertionError("a learner does not end:\n" + "\n".join(logs)) from None
    finally:
        for process in learners.values():
            process.terminate()
    return [json.loads((folder / f"{each}.json").read_text()) for each in ("a0", "a1", "b0")]


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("ranked_transformers", marks=needs("transformers")),
        pytest.param("ranked_lightning", marks=needs("lightning")),
        pytest.param("ranked_accelerate", marks=needs("accelerate")),
    ],
)
def test_two_ranks_train_and_go_on_from_their_checkpoint(script: str, tmp_path: Path) -> None:
    for number, ends in enumerate(zip(*ends_of(script, tmp_path), strict=True)):
        steps = STEPS * (1 + number)
        alone = steps * TOKENS[script]
        for end in ends:
            assert end["agreed"], end["reason"]
            assert end["step"] == steps
            assert end["tokens"] == {"a": 2 * alone, "b": alone}
            assert (end["digest"], end["weights"]) == (ends[0]["digest"], ends[0]["weights"])
        lead, _, other = ends
        for end in (lead, other):
            assert end["rounds"].count(["a", "b"]) >= 2
            assert end["logged"][-STEPS // 2 :] == [*range(steps - STEPS + 2, steps + 1, 2)]
