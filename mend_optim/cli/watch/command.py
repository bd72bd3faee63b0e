"""`mend status` and `mend top` at the shell: look at all learners, and print what was seen."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import datetime, timezone
from importlib.util import find_spec

from mend_optim.cli.given_security import add_security, read_given
from mend_optim.cli.watch.crowd import Crowd
from mend_optim.cli.watch.text import lines_of
from mend_optim.cli.wording import shown
from mend_optim.environment import VARIABLES
from mend_optim.errors import PeerError, require
from mend_optim.protocol.sight import Sight
from mend_optim.protocol.unreached import Unreached
from mend_optim.transport.address import parse_dialable
from mend_optim.transport.diagnosis import why_unreached
from mend_optim.transport.look import looks

STATUS = "Say once how a run goes."
TOP = "Watch a run. Ctrl-C ends it."
EPILOG = f"""\
Give the address of any learner. Its peers are found through it. It takes no part in the run.

Credentials are those of the run: --secret or --credentials, or the variables
{VARIABLES["secret"]} and {VARIABLES["credentials"]}. Without any, links are plaintext.
"""
CODES = """
The exit status is 0 if the learner at the address trains and rounds merge its work with others', 1
if no learner answers there, and 3 if it answers, and does not merge (yet, or any more).
"""
#: The exit statuses, besides that of wrong arguments.
MERGING, NO_ANSWER, NOT_MERGING = 0, 1, 3
NO_CREDENTIALS = "give the run's credentials by --secret or --credentials"
#: How often a look follows learners to further ones.
HOPS = 4

Look = Callable[[list[str]], dict[str, "Sight | PeerError"]]


def configure(parser: argparse.ArgumentParser) -> None:
    """Give the parser of `mend status` its arguments."""
    parser.description, parser.epilog = STATUS, EPILOG + CODES
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    _configure(parser)
    parser.set_defaults(run=run_status)


def configure_top(parser: argparse.ArgumentParser) -> None:
    """Give the parser of `mend top` its arguments."""
    parser.description, parser.epilog = TOP, EPILOG
    parser.add_argument("--once", action="store_true", help="draw once, and end")
    parser.add_argument("--plain", action="store_true", help="plain lines, also where rich is")
    parser.add_argument(
        "--every", type=float, default=2.0, metavar="S", help="between two looks; default: 2"
    )
    _configure(parser)
    parser.set_defaults(run=run_top)


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("address", metavar="HOST:PORT", help="where a learner listens")
    parser.add_argument(
        "--timeout", type=float, default=5.0, metavar="S", help="for each look; default: 5"
    )
    add_security(parser)


def _read(given: argparse.Namespace) -> Look:
    require(0 < given.timeout < 1e6, "--timeout", given.timeout, "a number of seconds > 0")
    parse_dialable("HOST:PORT", given.address)
    secured, name = read_given(given)
    security = secured.open(name)
    return lambda addresses: looks(addresses, security, name, given.timeout)


def see(crowd: Crowd, look: Look) -> dict[str, Sight | PeerError]:
    """Look at all learners that are known, and at those that they tell of."""
    found: dict[str, Sight | PeerError] = {}
    for _ in range(HOPS):
        found |= look([each for each in crowd.addresses() if each not in found])
        crowd.follow(found)
        if not crowd.has_news(found):
            break
    crowd.take(found)
    return found


def run_status(given: argparse.Namespace) -> int:
    """Look once. Returns the exit status."""
    look = _read(given)
    crowd = Crowd(given.address)
    there = see(crowd, look)[given.address]
    if given.json:
        print(json.dumps(_plain(crowd, there), indent=1))
    elif isinstance(there, PeerError):
        print(_unanswered(given, there))
    else:
        print("\n".join(lines_of(crowd)))
    return status_of(there)


def status_of(there: Sight | PeerError) -> int:
    """The exit status, by what the learner at the given address tells."""
    if isinstance(there, PeerError):
        return NO_ANSWER
    return MERGING if there.is_merging else NOT_MERGING


def _unanswered(given: argparse.Namespace, fault: PeerError) -> str:
    cause = why_unreached(fault)
    # A server that wants TLS hangs up on plaintext, as one that is no learner does.
    is_plain = cause is Unreached.PROTOCOL and read_given(given)[0].credentials is None
    told = f"{cause.value}, or it wants TLS: {NO_CREDENTIALS}" if is_plain else cause.value
    # The words of gRPC are long, and tell no more where the cause is known.
    words = f" ({shown(str(fault))})" if cause is Unreached.ANSWER else ""
    return f"{given.address}: {told}{words}; `mend check` finds out why"


def _plain(crowd: Crowd, there: Sight | PeerError) -> dict[str, object]:
    return {
        "merging": status_of(there) == MERGING,
        "fault": str(there) if isinstance(there, PeerError) else "",
        "learners": [
            asdict(sight) | {"tokens_per_s": sight.tokens_per_s, "reported": dict(sight.reported)}
            for sight in crowd.sights
        ],
        "states": {row.name: row.state for row in crowd.rows()},
    }


def run_top(given: argparse.Namespace) -> int:
    """Look again and again. Returns the exit status."""
    require(0.1 <= given.every < 1e6, "--every", given.every, "a number of seconds >= 0.1")
    look = _read(given)
    crowd = Crowd(given.address)
    # A pipe or a file would get nothing of what rich draws before the end.
    draws_plainly = given.plain or not sys.stdout.isatty() or find_spec("rich") is None
    # Ctrl-C is the way to end it.
    with suppress(KeyboardInterrupt):
        first = see(crowd, look)[given.address]
        if isinstance(first, PeerError):
            print(_unanswered(given, first))
            return NO_ANSWER
        if draws_plainly:
            _top_plainly(crowd, look, given)
        else:
            _top_richly(crowd, look, given)
    return 0


def _top_plainly(crowd: Crowd, look: Look, given: argparse.Namespace) -> None:
    print(_time(), *lines_of(crowd), sep="\n", flush=True)
    while not given.once:
        threading.Event().wait(given.every)
        see(crowd, look)
        print("", _time(), *lines_of(crowd), sep="\n", flush=True)


def _time() -> str:
    """The time of a look. A file of them may be read long afterwards, and on another machine."""
    return f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


def _top_richly(crowd: Crowd, look: Look, given: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.live import Live

    from mend_optim.cli.watch.live import picture

    console = Console()
    drawn = Live(picture(crowd, console), console=console, auto_refresh=False)
    with _ended_in_order(), drawn as live:
        while not given.once:
            threading.Event().wait(given.every)
            see(crowd, look)
            live.update(picture(crowd, console), refresh=True)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Within it, SIGTERM ends the command as an exception does, as Ctrl-C would: the terminal gets
    its cursor back."""
    former = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def _end(number: int, frame: object) -> None:
    raise SystemExit(128 + number)
