"""A place for each suite: its source distribution, and an environment with what it needs.

The environments see the packages of the interpreter that runs this, torch above all, and add their
own. They don't see this repository: a folder on their path has `mend_optim`, the plugin and
the scripts in it, and nothing else, because suites have packages named `tests` too."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

from tests.suites.suites import SuiteSource

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
PACKAGES = {
    "mend_optim": ROOT / "mend_optim",
    "mend_suites": HERE / "mend_suites",
    "mend_scripts": HERE / "mend_scripts",
}
#: One thread, no GPU, no network, no display, and nothing that makes learners of optimizers.
SURROUNDINGS = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "TORCH_DEVICE": "cpu",
    "HF_HUB_OFFLINE": "1",
    "MPLBACKEND": "Agg",
}


def pip(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"pip {' '.join(arguments)}: {done.stderr[-2000:]}")


class Place:
    """Where one suite lives.

    Args:
        suite: the suite.
        folder: for all suites; what is there already is used again.
    """

    def __init__(self, suite: SuiteSource, folder: Path) -> None:
        self._suite = suite
        self._home = folder / suite.name
        self._packages = folder / "packages"
        self.python = self._home / "venv" / "bin" / "python"

    def prepare(self) -> None:
        """Fetch and install whatever is missing."""
        self._link_packages()
        # Without it, pytest would find the options of this repository.
        (self._home.parent / "pytest.ini").write_text("[pytest]\n")
        if self._suite.release is None:
            folder = self._home / "source" / self._suite.name
            folder.mkdir(parents=True, exist_ok=True)
            for test in self._suite.tests:
                shutil.copy(HERE / test, folder)
        wanted = "\n".join([self._suite.version, *self._suite.needs])
        ready = self._home / "ready"
        if ready.exists() and ready.read_text() == wanted:
            return
        self._make_environment()
        if self._suite.release is not None:
            self._unpack(self._suite.release)
        ready.write_text(wanted)

    def source(self) -> Path:
        """The folder that tests are named from."""
        (folder,) = (self._home / "source").iterdir()
        return folder

    def surroundings(self) -> dict[str, str]:
        """The environment variables of a run."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("MEND_")}
        return {**kept, **SURROUNDINGS, "PYTHONPATH": str(self._packages)}

    def _link_packages(self) -> None:
        """Link the packages that every run imports. Suites are prepared side by side, so each link
        is put in its place at once, while others may be using it."""
        self._home.mkdir(parents=True, exist_ok=True)
        self._packages.mkdir(exist_ok=True)
        for name, target in PACKAGES.items():
            link = self._home / name
            link.unlink(missing_ok=True)
            link.symlink_to(target, target_is_directory=True)
            link.replace(self._packages / name)

    def _make_environment(self) -> None:
        venv.create(self._home / "venv", with_pip=True, clear=True)
        site = next((self._home / "venv" / "lib").glob("python*/site-packages"))
        shared = sysconfig.get_path("purelib")
        (site / "shared.pth").write_text(f"{shared}\n")
        needs = [*filter(None, [self._suite.release]), *self._suite.needs]
        pip(self.python, "install", "-q", "-c", str(ROOT / "constraints.txt"), *needs)

    def _unpack(self, release: str) -> None:
        name = release.partition("==")[0]
        sdist = self._home / "sdist"
        only = ("--no-deps", "--no-binary", name, "--no-build-isolation")
        try:
            pip(Path(sys.executable), "download", "-q", *only, "-d", str(sdist), release)
        except RuntimeError:
            # Its metadata take the build tools that it names.
            pip(Path(sys.executable), "download", "-q", *only[:-1], "-d", str(sdist), release)
        (archive,) = sdist.glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(self._home / "source", filter="data")
