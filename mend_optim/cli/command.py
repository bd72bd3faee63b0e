"""The command `mend`, and `python -m mend_optim`. Each subcommand is imported only when it runs, so
that those which need no torch start at once."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from mend_optim.errors import UsageError

DESCRIPTION = "Work with learners of mend_optim."
EPILOG = "mend COMMAND --help tells more about each."
#: The exit status of a command that was given wrong arguments, as argparse has it.
WRONG = 2


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
    """Run one command. Returns the exit status: 2 if its arguments were wrong."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    given = parser_for(words).parse_args(words)
    try:
        status: int = given.run(given)
        sys.stdout.flush()
    except UsageError as error:
        print(f"mend {given.command}: {error}", file=sys.stderr)
        return WRONG
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough. Nothing more can be written there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def parser_for(words: Sequence[str]) -> argparse.ArgumentParser:
    """A parser of all commands. Only the one that is in the words has arguments."""
    parser = argparse.ArgumentParser(prog="mend", description=DESCRIPTION, epilog=EPILOG)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    wanted = next((word for word in words if not word.startswith("-")), "")
    for name, (said, configure) in COMMANDS.items():
        one = commands.add_parser(
            name, help=said, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if name == wanted:
            configure(one)
    return parser
