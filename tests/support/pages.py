"""The scripts of the documents: Python blocks whose first line is a comment with a file's name."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.addresses import free_addresses, port_of_all_hosts
from tests.support.alongside import ROOT, run_alongside

DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# (\w+\.py)\n")
END = re.compile(r"^stopped at step (\d+); (\w+), loss (\S+)$", re.MULTILINE)


def scripts_of(page: str) -> dict[str, str]:
    """The scripts of a page, by the names that it gives them. Fails if a block has no name."""
    blocks = BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))
    named = [(NAMED.match(block), block) for block in blocks]
    assert all(name for name, _ in named), f"a Python block of {page} is no script with a name"
    return {name[1]: block for name, block in named if name}


def stops(outputs: Sequence[str]) -> list[tuple[int, str, str]]:
    """The step, the digest and the loss with which each of the learners ended."""
    ends = [END.findall(output) for output in outputs]
    assert [len(end) for end in ends] == [1] * len(outputs), outputs
    return [(int(step), digest, loss) for ((step, digest, loss),) in ends]


def play(page: str, name: str, folder: Path, learners: Sequence[str] = "ab") -> list[str]:
    """Run one script of a page as these learners at the same time; their outputs. Without any, it
    runs once, without peers."""
    addresses = free_addresses(len(learners))
    settings = [
        {
            "MEND_NAME": learner,
            "MEND_LISTEN": address,
            "MEND_PEERS": ",".join(other for other in addresses if other != address),
        }
        for learner, address in zip(learners, addresses, strict=True)
    ]
    return run_together(page, [name], folder, settings or [{}])


def play_command(page: str, name: str, folder: Path) -> list[str]:
    """Run one script as the page says, by `mend run`; the outputs of its two learners."""
    command = f"    mend run -n 2 -- python {name}\n"
    assert command in (DOCS / page).read_text(encoding="utf-8")
    program = ["-m", "mend_optim", "run", "-n", "2", "--restarts", "0", "--", sys.executable, name]
    (output,) = run_together(page, program, folder, [{}])
    lines = [re.findall(rf"^learner-{index} \| (.*\n)", output, re.MULTILINE) for index in (0, 1)]
    return ["".join(of_learner) for of_learner in lines]


def play_ranks(page: str, name: str, folder: Path, ranks: int = 2) -> list[str]:
    """Run one script of a page as ranks of `torch.distributed`; their outputs."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port_of_all_hosts()}
    place["WORLD_SIZE"] = str(ranks)
    settings = [{**place, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    return run_together(page, [name], folder, settings)


def run_together(
    page: str, arguments: Sequence[str], folder: Path, settings: Sequence[dict[str, str]]
) -> list[str]:
    """The outputs of Python with these arguments, beside the scripts of a page: one process for
    each environment. Fails with the output of the first that ends badly or late."""
    for script, text in scripts_of(page).items():
        (folder / script).write_text(text, encoding="utf-8")
    return run_alongside([arguments] * len(settings), folder, settings)
