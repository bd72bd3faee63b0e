"""`mend run` at the shell: checks the arguments, finds ports, makes a secret, runs the learners."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from mend_optim.cli.run.crew import Crew
from mend_optim.cli.run.held_ports import held_addresses
from mend_optim.cli.run.outlet import Outlet
from mend_optim.cli.run.run_folder import run_folder
from mend_optim.cli.run.seats import Table
from mend_optim.cli.run.supervisor import Supervisor, heard_signals
from mend_optim.errors import UsageError, require
from mend_optim.transport.security.shared_secret import new_secret

DESCRIPTION = "Run several learners on this machine, each a process of your script."
EPILOG = """\
Each learner gets its name, its address and those of the others by environment variables (MEND_NAME,
MEND_LISTEN, MEND_PEERS), and all get one new secret (MEND_SECRET_FILE). So a script that says none
of them needs no change: optimizer = MendOptimizer(AdamW(model.parameters()))
A name= that the script does pass wins over the variable: then all learners would have one name.

In the command, {name}, {index} and {count} stand for the learner's own values. A learner that ends
with another status than 0 is started again, unless each has failed three times and none has ever
joined: then the fault is in the script. Ctrl-C ends all.

  mend run -n 3 -- python train.py --shard {index}/{count}
  mend run -n 2 --gpus 0,1 -- python train.py

The exit status is 0 if all learners ended with 0, 130 after Ctrl-C (143 after SIGTERM), and else
that of the first learner that did not end well; 128 and the number of a signal if that ended it.
"""
NO_GROUPS = (
    "mend run needs groups of processes, as Linux and macOS have them; start each learner in a "
    "terminal of its own"
)
MOST = 256
HOST = "127.0.0.1"


def configure(parser: argparse.ArgumentParser) -> None:
    """Give the parser this command's arguments."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    parser.add_argument("-n", type=int, required=True, metavar="N", help="how many learners")
    parser.add_argument(
        "--names", metavar="A,B,…", help="their names; default: learner-0, learner-1 and so on"
    )
    parser.add_argument(
        "--port",
        type=int,
        metavar="PORT",
        help="the first one's; the next ones follow; default: ports that are free",
    )
    parser.add_argument(
        "--restarts",
        type=int,
        default=5,
        metavar="N",
        help="how often in a row a learner is started again; default: 5",
    )
    parser.add_argument(
        "--pause",
        type=float,
        default=1.0,
        metavar="S",
        help="seconds before the first time; each further pause is twice as long; default: 1",
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=10.0,
        metavar="S",
        help="seconds from Ctrl-C until learners that have not ended are killed; default: 10",
    )
    parser.add_argument(
        "--gpus", metavar="0,1,…", help="devices that learners take in turns (CUDA_VISIBLE_DEVICES)"
    )
    secured = parser.add_mutually_exclusive_group()
    secured.add_argument("--secret", type=Path, metavar="FILE", help="default: a new one")
    secured.add_argument(
        "--credentials", type=Path, metavar="DIR", help="certificates: DIR/NAME has a learner's"
    )
    secured.add_argument("--plain", action="store_true", help="without TLS, on this machine")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="-- COMMAND …", help="to run")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Run the learners. Returns the exit status."""
    if not hasattr(os, "killpg"):
        raise UsageError(NO_GROUPS)
    names = _names(given)
    command = _command(given.words)
    require(given.restarts >= 0, "--restarts", given.restarts, "an int >= 0")
    for argument, seconds in (("--pause", given.pause), ("--grace", given.grace)):
        require(0 <= seconds < 1e6, argument, seconds, "a number of seconds >= 0")
    with (
        # Around the folder: a signal more at the end would else leave it there, with the secret.
        heard_signals() as waiting,
        run_folder() as folder,
        held_addresses(HOST, len(names), given.port) as addresses,
    ):
        table = Table(
            names=names,
            addresses=addresses,
            command=command,
            secret=_secret(given, names, folder),
            credentials=str(given.credentials.absolute()) if given.credentials else "",
            joined=str(_made(folder / "joined")),
            gpus=[gpu.strip() for gpu in given.gpus.split(",")] if given.gpus else [],
        )
        crew = Crew(names, given.restarts, given.pause, given.grace)
        outlets = (Outlet(sys.stdout), Outlet(sys.stderr))
        colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        try:
            return Supervisor(table.seats(os.environ), crew, outlets, colours).run(waiting)
        except OSError as error:
            raise UsageError(
                f"COMMAND must be a program that can run, got {command[0]!r}: {error.strerror}"
            ) from None


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _names(given: argparse.Namespace) -> list[str]:
    require(1 <= given.n <= MOST, "-n", given.n, f"an int from 1 to {MOST}")
    if given.names is None:
        return [f"learner-{i}" for i in range(given.n)]
    names = [name.strip() for name in given.names.split(",")]
    good = len(names) == given.n == len(set(names)) and all(names)
    bound = f"{given.n} different names, separated by commas"
    require(good, "--names", given.names, bound, "give as many as -n says")
    printable = all(name.isprintable() and len(name.encode()) <= 200 for name in names)
    require(printable, "--names", given.names, "names of printable text, at most 200 bytes each")
    return names


def _command(words: list[str]) -> list[str]:
    command = words[1:] if words[:1] == ["--"] else words
    remedy = "write it behind --, as in: mend run -n 3 -- python train.py"
    require(bool(command), "COMMAND", command, "the command of a learner", remedy)
    found = shutil.which(command[0])
    bound = "a program that this shell finds"
    require(found is not None, "COMMAND", command[0], bound, "correct its name, or give its path")
    return command


def _secret(given: argparse.Namespace, names: Sequence[str], folder: Path) -> str:
    """The path of the learners' secret; empty if they need none."""
    if given.credentials:
        _check_credentials(given.credentials, names)
    if given.credentials or given.plain:
        return ""
    if given.secret:
        bound = "the file of a secret"
        remedy = "make one with mend certs secret FILE, or leave it out"
        require(given.secret.is_file(), "--secret", str(given.secret), bound, remedy)
        return str(given.secret.resolve())
    if find_spec("cryptography") is None:
        # Links that stay on this machine need none.
        return ""
    path = folder / "secret"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(new_secret())
    return str(path)


def _check_credentials(directory: Path, names: Sequence[str]) -> None:
    """Each learner checks what is in its own: but where it has none, none of them need start."""
    missing = next((name for name in names if not (directory / name).is_dir()), None)
    if missing is not None:
        raise UsageError(
            "--credentials must be a directory that has one for each learner, got"
            f" {str(directory)!r} without {missing}; issue it with mend certs issue {directory}"
            f" {missing}"
        )
