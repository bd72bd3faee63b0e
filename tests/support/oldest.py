"""The oldest release of each distribution that `pyproject.toml` promises, as pip takes it.

python -m tests.support.oldest grpcio protobuf            prints grpcio==1.70 protobuf==6.30
python -m tests.support.oldest --check grpcio protobuf    fails unless these are installed here
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import version
from pathlib import Path

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def oldest(name: str) -> str:
    """The number of the oldest release. Raises `LookupError`."""
    text = PYPROJECT.read_text(encoding="utf-8")
    found = re.findall(rf'^ *"{name}>=([\d.]+)', text, re.MULTILINE)
    if len(found) != 1:
        raise LookupError(f"{name} has {len(found)} lower bounds in {PYPROJECT}; one is needed")
    return str(found[0])


def main(arguments: list[str]) -> str:
    """What is printed; text for the standard error if these are not the oldest."""
    names = [name for name in arguments if name != "--check"]
    if "--check" not in arguments:
        print(*(f"{name}=={oldest(name)}" for name in names))
        return ""
    wrong = [name for name in names if not f"{version(name)}.".startswith(f"{oldest(name)}.")]
    return "".join(f"{name} is {version(name)}, not {oldest(name)}\n" for name in wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) or 0)
