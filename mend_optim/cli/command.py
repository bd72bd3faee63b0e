"""The command `mend`, and `python -m mend_optim`. Each subcommand is imported only when it runs, so
that those which need no torch start at once."""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import metadata
from platform import platform, python_version

from mend_optim.errors import UsageError

DESCRIPTION = "Work with learners of mend_optim."
EPILOG = "mend COMMAND --help tells more about each."
#: The exit status of a command that was given wrong arguments, as argparse has it.
WRONG = 2
#: The packages that the library needs to run, without the extras.
DEPENDENCIES = ("torch", "numpy", "grpcio", "protobuf")
#: The exit statuses of a command that Ctrl-C has ended, and of one whose reader has seen enough, as
#: a shell has them; and of one that the system refused something, such as room on a full disk, as
#: `sysexits.h` has it. None says anything about a run.
INTERRUPTED, UNREAD, REFUSED = 128 + 2, 128 + 13, 74
#: A value that is below zero, and an option that may take one.
NEGATIVE = re.compile(r"-[0-9.]")
LONG = re.compile(r"--[a-z-]+")


def _ledger(parser: argparse.ArgumentParser) -> None:
    from mend_optim.cli.ledger.command import configure

    configure(parser)


def _run(parser: argparse.ArgumentParser) -> None:
    from mend_optim.cli.run.command import configure

    configure(parser)


def _plan(parser: argparse.ArgumentParser) -> None:
    from mend_optim.cli.plan.command import configure

    configure(parser)


def _check(parser: argparse.ArgumentParser) -> None:
    from mend_optim.cli.check.command import configure

    configure(parser)


def _certs(parser: argparse.ArgumentParser) -> None:
    from mend_optim.certs import configure

    configure(parser)


def _status(parser: argparse.ArgumentParser) -> None:
    from mend_optim.cli.watch.command import configure

    configure(parser)


def _top(parser: argparse.ArgumentParser) -> None:
    from mend_optim.cli.watch.command import configure_top

    configure_top(parser)


#: By name of the subcommand: its purpose, and the function that gives its parser its arguments.
COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "check": ("check whether learners can be reached at addresses", _check),
    "status": ("say once how a run goes, with an exit status for probes", _status),
    "top": ("watch a run", _top),
    "plan": ("say what a run on a link would be like", _plan),
    "run": ("run several learners on this machine", _run),
    "ledger": ("tell several learners' ledgers as one story, with a verdict", _ledger),
    "certs": ("make and check credentials", _certs),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status: 2 if its arguments were wrong, and 130, 141 or 74
    if Ctrl-C, a reader or the system has ended it."""
    fill_closed_streams()
    replace_missing_characters()
    words = with_negatives(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            return _status_of(words)
        finally:
            # Here, and not when Python ends, which would give a full disk a status of its own.
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough. Nothing more can be written there.
        _write_no_more()
        return UNREAD
    except OSError as error:
        _write_no_more()
        _complain(f"mend: the system refused something: {error}")
        return REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED


def _status_of(words: Sequence[str]) -> int:
    given = parser_for(words).parse_args(words)
    try:
        status: int = given.run(given)
    except UsageError as error:
        _complain(f"mend {given.command}: {error}")
        return WRONG
    return status


def _complain(text: str) -> None:
    """Tell the user. A standard error that is full or gone changes no status."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _write_no_more() -> None:
    """Lead standard output to nowhere. The rest in its buffer would else fail once more when
    Python ends."""
    with suppress(OSError):  # it may be no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fill_closed_streams() -> None:
    """Open the standard streams that are closed, as by `>&-`, to nowhere. Else a file or socket
    that is opened next would have the number of one, and get what is written there."""
    number = os.open(os.devnull, os.O_RDWR)
    while number <= 2:
        number = os.open(os.devnull, os.O_RDWR)
    os.close(number)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)


def replace_missing_characters() -> None:
    """From here on, question marks stand for characters that the terminal or file lacks, such as a
    dash. An exception would end the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def with_negatives(words: Sequence[str]) -> list[str]:
    """The same words, with "--rtt", "-40ms" as "--rtt=-40ms": the parser would take the latter for
    an option, and say that the former has no value. Words after "--" stay."""
    found: list[str] = []
    for word in words:
        last = found[-1] if found else ""
        if NEGATIVE.match(word) and LONG.fullmatch(last) and "--" not in found:
            found[-1] = f"{last}={word}"
        else:
            found.append(word)
    return found


def parser_for(words: Sequence[str]) -> argparse.ArgumentParser:
    """A parser of all commands. Only the one that is in the words has arguments."""
    raw = argparse.RawDescriptionHelpFormatter  # which wraps no lines
    parser = argparse.ArgumentParser(
        prog="mend", description=DESCRIPTION, epilog=EPILOG, formatter_class=raw
    )
    parser.add_argument(
        "--version",
        action="version",
        version=versions() if "--version" in words else "",
        help="say which versions run here, for a report of a fault",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    wanted = next((word for word in words if not word.startswith("-")), "")
    for name, (said, configure) in COMMANDS.items():
        one = commands.add_parser(name, help=said, formatter_class=raw)
        if name == wanted:
            configure(one)
    return parser


def versions() -> str:
    """The versions of the library, of what it needs, of Python and of the system, in one line.
    Metadata tells them, so nothing is imported."""
    from mend_optim import __version__

    needed = ", ".join(f"{name} {_version_of(name)}" for name in DEPENDENCIES)
    return f"mend_optim {__version__}, {needed}, Python {python_version()}, {platform()}"


def _version_of(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"
