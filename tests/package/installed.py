"""The first example of the README and the command, run by a Python into which the wheel was
installed, in an empty folder. So it is the installed package that runs, and not the sources."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.addresses import free_addresses

STEPS = 40
LIMIT_S = 120
#: The README leaves the model, the loop and the end to its reader.
SCRIPT = """
import json

import torch

torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
{example}
for step in range({steps}):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).square().sum().backward()
    optimizer.step()
end = optimizer.finish()
weights = [parameter.tolist() for parameter in model.parameters()]
print(json.dumps({{"agreed": bool(end), "tokens": end.tokens, "weights": weights}}))
"""
PLACES = (r'"0\.0\.0\.0:29600"', r'\["b:29600", "c:29600"\]')


def example_of(readme: str, listen: str, peer: str) -> str:
    """The first example, with the addresses of this machine in place of those of a, b and c."""
    diff = re.findall(r"^```diff\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)[0]
    code = "\n".join(line[2:] for line in diff.splitlines())
    for place, address in zip(PLACES, (f'"{listen}"', f'["{peer}"]'), strict=True):
        code, count = re.subn(place, address, code)
        if count != 1:
            raise LookupError(f"the README's first example has {count} times {place}, not once")
    return code


class Installed:
    """A virtual environment, used from an empty folder and without this process's variables for
    Python and for learners."""

    def __init__(self, environment: Path, folder: Path) -> None:
        self.bin = environment.absolute() / "bin"
        self.folder = folder
        self.variables = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("PYTHON", "MEND_", "VIRTUAL_ENV"))
        }

    def start(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self.bin / program), *arguments],
            cwd=self.folder,
            env=self.variables,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, program: str, *arguments: str) -> str:
        """The output of a program. Raises `RuntimeError` if it fails."""
        return ended(self.start(program, *arguments))


def ended(process: subprocess.Popen[str]) -> str:
    try:
        said, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    if process.returncode:
        raise RuntimeError(f"{process.args!r} ended with status {process.returncode}")
    return said


def check_place(installed: Installed, version: str) -> None:
    """The package is the installed one, and its version is that of its metadata."""
    code = "import mend_optim as m, importlib.metadata as d; print(m.__file__)"
    code += '; print(m.__version__, d.version("mend-optim"))'
    file, versions = installed.run("python", "-c", code).splitlines()
    if not Path(file).is_relative_to(installed.bin.parent):
        raise RuntimeError(f"{file} was imported, which is not in {installed.bin.parent}")
    if versions.split() != [version, version]:
        raise RuntimeError(f"the versions of package and metadata are {versions}, not {version}")


def check_command(installed: Installed) -> None:
    """`mend --help` and `python -m mend_optim --help` say the same, and name every command."""
    said = [installed.run("mend", "--help"), installed.run("python", "-m", "mend_optim", "--help")]
    if said[0] != said[1] or not said[0].startswith("usage: mend"):
        raise RuntimeError(f"the two ways to ask for help say {said}")


def check_example(installed: Installed, readme: str) -> None:
    """Two learners of the README's first example end on one model, which has the work of both."""
    installed.run("python", "-m", "mend_optim.certs", "secret", "cluster.secret")
    addresses = free_addresses(2)
    learners = []
    try:
        for listen, peer in (addresses, addresses[::-1]):
            script = SCRIPT.format(example=example_of(readme, listen, peer), steps=STEPS)
            learners.append(installed.start("python", "-c", script))
        told = [json.loads(ended(learner).splitlines()[-1]) for learner in learners]
    finally:
        for learner in learners:
            learner.kill()
            learner.communicate()
    check_agreement(told)


def check_agreement(told: Sequence[Mapping[str, Any]]) -> None:
    """The gradient of a first step may belong to weights that the step replaces; it counts nothing
    then. So a learner has trained all its steps, or all but one."""
    one, other = told
    trained = list(one["tokens"].values())
    enough = len(trained) == 2 and min(trained) >= STEPS - 1
    if one != other or not one["agreed"] or not enough:
        raise RuntimeError(f"the learners ended on {one} and {other}")


def use(environment: Path, readme: str, version: str) -> None:
    """Raises if anything that the installed package is used for fails."""
    with tempfile.TemporaryDirectory() as folder:
        installed = Installed(environment, Path(folder))
        check_place(installed, version)
        check_command(installed)
        check_example(installed, readme)
