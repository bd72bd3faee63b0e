"""Two learners of one script in examples/, on loopback, until both have ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.addresses import free_addresses
from tests.support.alongside import ROOT, run_alongside


def play_pair(script: str, folder: Path, *options: str, ports: int = 1) -> list[dict[str, Any]]:
    """The reports of learners a and b, each of which is the last line of its output. Both listen on
    so many `ports`, and each knows the other's addresses, so neither starts to train alone."""
    addresses = free_addresses(2 * ports)
    path = str(ROOT / "examples" / script)
    own = {"a": addresses[:ports], "b": addresses[ports:]}
    commands = [
        [path, "--name", name, "--listen", *own[name], "--peers", *own[other], *options]
        for name, other in ("ab", "ba")
    ]
    outputs = run_alongside(commands, folder, [{}, {}], apart=True)
    reports = [json.loads(output.splitlines()[-1]) for output in outputs]
    assert [report["learner"] for report in reports] == ["a", "b"]
    return reports
