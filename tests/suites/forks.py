"""Runs of one module side by side, in forks of one process: torch is imported once for all."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# The forks are made before there is any thread. At the first optimizer, torch imports much. What is
# frozen, no search for garbage goes through: not in a fork either, where it would copy all pages.
FORKS = """
import gc, json, os, runpy, sys
import numpy, torch
import mend_optim.optimizer
torch.optim.SGD([torch.zeros(1)])
gc.freeze()
module, each = sys.argv[1:]
children = []
for arguments in json.loads(each):
    child = os.fork()
    if not child:
        sys.argv[1:] = arguments
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        sys.exit()
    children.append(child)
statuses = [os.waitpid(child, 0)[1] for child in children]
sys.exit(any(statuses))
"""


def run_forks(
    module: str, each: Sequence[Sequence[str]], folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run `python -m module` in a folder, once with each of these arguments. The status is 0 if
    every run ended well."""
    return subprocess.run(
        [sys.executable, "-c", FORKS, module, json.dumps(each)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
