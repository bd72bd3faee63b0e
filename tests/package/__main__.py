"""The checks of `make package` after it has built a wheel and an sdist.

    python -m tests.package files dist              # the two hold what git knows, and nothing else
    python -m tests.package use build/installed     # the package in that environment works

Ends with status 1, and says why, if something is wrong. It needs the standard library only."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.package.files import NAME, faults_of, version_in
from tests.package.installed import use

ROOT = Path(__file__).parents[2]


def main(what: str, where: str) -> str:
    """Returns what is wrong, as text for the standard error; empty if nothing is."""
    if what == "files":
        return "\n".join(faults_of(Path(where), ROOT))
    version = version_in((ROOT / NAME / "__init__.py").read_text(encoding="utf-8"))
    try:
        use(Path(where), (ROOT / "README.md").read_text(encoding="utf-8"), version)
    except RuntimeError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    wrong = main(*sys.argv[1:])
    print(wrong or f"{sys.argv[1]}: as they should be")
    sys.exit(1 if wrong else 0)
