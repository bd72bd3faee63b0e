"""The address of this machine that `mend check` lets learners dial."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mend_optim.cli.check.way import Back
from mend_optim.errors import require
from mend_optim.transport.address import parse_dialable
from mend_optim.transport.survey import Wish
from mend_optim.transport.token_port import listen
from mend_optim.transport.wire_survey import LEAST_PORT

LISTEN, ADVERTISE = "--listen", "--advertise"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnAddress:
    """The requests to learners, and the address that they are to dial."""

    wish: Wish
    back: Back | None = None


def add_own_address(parser: argparse.ArgumentParser) -> None:
    """Give the parser these options."""
    parser.add_argument(
        LISTEN,
        metavar="HOST:PORT",
        help="listen there, and let each learner try to dial that port of this machine",
    )
    parser.add_argument(
        ADVERTISE,
        metavar="HOST:PORT",
        help="the address that leads to --listen, where it is another one",
    )
    parser.add_argument(
        "--quick", action="store_true", help="measure no bandwidth, which takes up to 6 MB each way"
    )


@contextmanager
def own_address(given: argparse.Namespace) -> Iterator[OwnAddress]:
    """Listen where the user wants that, as long as the context lasts."""
    rates = not given.quick
    if given.listen is None:
        require(given.advertise is None, ADVERTISE, given.advertise, f"left out without {LISTEN}")
        yield OwnAddress(wish=Wish(rates=rates))
        return
    back = _advertised(given.advertise) if given.advertise is not None else None
    with listen(LISTEN, given.listen) as listening:
        port = int(listening.getsockname()[1])
        back = back or Back(argument=LISTEN, address=given.listen, port=port)
        wish = Wish(rates=rates, listening=listening, port=back.port, ips=back.ips)
        yield OwnAddress(wish=wish, back=back)


def _advertised(address: str) -> Back:
    host, port = parse_dialable(ADVERTISE, address)
    remedy = "learners dial no port below, where other services are"
    is_right = port >= LEAST_PORT
    require(is_right, ADVERTISE, address, f"an address with a port >= {LEAST_PORT}", remedy)
    return Back(argument=ADVERTISE, address=address, port=port, ips=_ips(host))


def _ips(host: str) -> list[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        return []
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
