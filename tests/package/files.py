"""The files of a wheel and of an sdist, beside those that git knows. Each comparison returns
faults: one text for each file that is missing, or that nobody asked for."""

from __future__ import annotations

import re
import subprocess
import tarfile
import zipfile
from collections.abc import Iterable, Set
from email.parser import HeaderParser
from pathlib import Path

NAME = "mend_optim"
#: Dependencies that a user gets without asking for an extra.
RUNTIME = {"torch", "numpy", "grpcio", "protobuf"}
#: Metadata of an installed distribution.
INFO = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
#: Files without which a distribution is of no use, whatever git knows.
NEEDED = (
    "LICENSE",
    "README.md",
    "Makefile",
    "constraints.txt",
    "pyproject.toml",
    "docs/quickstart.md",
    "examples/train_text.py",
    "protos/peer.proto",
    "tests/conftest.py",
    f"{NAME}/__init__.py",
    f"{NAME}/py.typed",
)


def known_files(root: Path) -> frozenset[str]:
    """The files of a checkout that git knows. Raises `CalledProcessError` where git knows none."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True
    )
    return frozenset(filter(None, listed.stdout.split("\0")))


def differences(of: str, found: Set[str], wanted: Set[str]) -> list[str]:
    return [f"{of} lacks {name}" for name in sorted(wanted - found)] + [
        f"{of} has a stray {name}" for name in sorted(found - wanted)
    ]


def sdist_faults(found: Set[str], known: Set[str], version: str) -> list[str]:
    """How an sdist differs from all that git knows, in one folder, and `PKG-INFO`."""
    top = f"{NAME}-{version}"
    wanted = {f"{top}/{name}" for name in (*known, *NEEDED, "PKG-INFO")}
    return differences("the sdist", found, wanted)


def wheel_faults(found: Set[str], known: Set[str], version: str) -> list[str]:
    """How a wheel differs from the package that git knows, and the metadata beside it."""
    package = {name for name in (*known, *NEEDED) if name.startswith(f"{NAME}/")}
    info = {f"{NAME}-{version}.dist-info/{name}" for name in INFO}
    return differences("the wheel", found, package | info)


def metadata_faults(metadata: str, version: str) -> list[str]:
    """The faults of `METADATA`: of its version, licence, or the dependencies without an extra."""
    fields = HeaderParser().parsestr(metadata)
    required = {
        re.split(r"[^\w.-]", line)[0]
        for line in fields.get_all("Requires-Dist", [])
        if "extra ==" not in line
    }
    seen = {
        "Version": (fields["Version"], version),
        "License-Expression": (fields["License-Expression"], "Apache-2.0"),
        "Requires-Dist": (sorted(required), sorted(RUNTIME)),
    }
    return [f"{k} is {is_}, not {wanted}" for k, (is_, wanted) in seen.items() if is_ != wanted]


def version_in(source: str) -> str:
    """`__version__` of the text of `mend_optim/__init__.py`."""
    (version,) = re.findall(r'^__version__ = "([^"]+)"$', source, re.MULTILINE)
    return str(version)


def faults_of(folder: Path, root: Path) -> list[str]:
    """All faults of the one wheel and the one sdist in a folder."""
    known = known_files(root)
    version = version_in((root / NAME / "__init__.py").read_text(encoding="utf-8"))
    wheel = folder / f"{NAME}-{version}-py3-none-any.whl"
    sdist = folder / f"{NAME}-{version}.tar.gz"
    faults = differences("the folder", names(folder.iterdir()), names([wheel, sdist]))
    if faults:
        return faults
    with tarfile.open(sdist) as archive:
        packed = {member.name for member in archive if not member.isdir()}
    with zipfile.ZipFile(wheel) as zipped:
        installed = set(zipped.namelist())
        metadata = zipped.read(f"{NAME}-{version}.dist-info/METADATA").decode()
    return [
        *sdist_faults(packed, known, version),
        *wheel_faults(installed, known, version),
        *metadata_faults(metadata, version),
    ]


def names(paths: Iterable[Path]) -> set[str]:
    return {path.name for path in paths}
