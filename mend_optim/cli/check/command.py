"""`mend check` at the shell: resolves, connects, says hello, and prints what it found."""

from __future__ import annotations

import argparse
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

from mend_optim.cli.check.findings import (
    MAY_DIFFER,
    Attempt,
    Facts,
    agreement,
    allowed_differences,
    differences,
    doubles,
    faults_of,
    has_faults,
    lines_of,
    told_address,
)
from mend_optim.cli.check.own_address import OwnAddress, add_own_address, own_address
from mend_optim.cli.check.plain import plain_of
from mend_optim.cli.given_security import add_security, read_given
from mend_optim.cli.plan.quantities import PARAMETERS
from mend_optim.cli.wording import shown
from mend_optim.environment import VARIABLES
from mend_optim.errors import require
from mend_optim.protocol.unreached import Unreached
from mend_optim.security import LinkSecurity
from mend_optim.transport.address import format_address, parse_address, parse_dialable
from mend_optim.transport.visit import visit

DESCRIPTION = "Check whether a learner can be reached at each address, before a day is lost to it."
EPILOG = f"""\
Run it on the machine of one learner, with the addresses of the others. It needs no model, and takes
no part in the run. The learners that it finds log nothing of it.

Credentials are those of the run: --secret or --credentials, or the variables
{VARIABLES["secret"]} and {VARIABLES["credentials"]}. Without any, links are plaintext.

  mend check beta.example:29600 gamma.example:29600 --secret cluster.secret
  mend check 127.0.0.1:29600 127.0.0.1:29601 --settings
  mend check beta.example:29600 --listen :29600 --secret cluster.secret

The exit status is 0 if a learner answers at each address and nothing is wrong, and 1 if not.
"""
#: The settings that all learners must share, and those in which they may differ: see
#: `Settings.policy` and `Settings.may_differ`.
SETTINGS = (
    "sync_every",
    "fragments",
    "adopt_after",
    "quorum",
    "weighting",
    "merge",
    "outer",
    "codec",
    "moments",
    "buffers",
    "credentials.signed",
    *MAY_DIFFER,
)
_CAUSES = {
    ConnectionRefusedError: Unreached.REFUSED,
    TimeoutError: Unreached.ANSWER,
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Give the parser this command's arguments."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    parser.add_argument("addresses", nargs="+", metavar="HOST:PORT", help="where a learner listens")
    parser.add_argument(
        "--settings", action="store_true", help="ask for all settings, and show which differ"
    )
    parser.add_argument(
        "--params", metavar="N", help="of your model: say how long an offer of it takes there"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_own_address(parser)
    parser.add_argument(
        "--timeout", type=float, default=10.0, metavar="S", help="for each answer; default: 10"
    )
    add_security(parser)
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Check each address. Returns the exit status."""
    require(0 < given.timeout < 1e6, "--timeout", given.timeout, "a number of seconds > 0")
    for address in given.addresses:
        parse_dialable("HOST:PORT", address)
    params = PARAMETERS.read("--params", given.params) if given.params else 0.0
    secured, name = read_given(given)
    found = []
    with own_address(given) as own:
        asks = _Asks(
            secured=secured,
            name=name,
            fields=SETTINGS if given.settings else (),
            own=own,
            params=params,
            timeout_s=given.timeout,
        )
        for address in given.addresses:
            found.append(_facts(address, asks))
            if not given.json:
                print("\n".join(_told(found[-1], whole=len(given.addresses) == 1)), flush=True)
    if given.json:
        print(json.dumps(plain_of(found), indent=1))
    else:
        _compare(found, of_settings=given.settings)
    return int(has_faults(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asks:
    """The questions to each learner, and the name to ask them under."""

    secured: LinkSecurity
    name: str
    fields: tuple[str, ...]
    own: OwnAddress
    params: float
    timeout_s: float


def _compare(found: list[Facts], *, of_settings: bool) -> None:
    """Print what is wrong with several learners together; `of_settings`: they were asked for the
    settings that they must share."""
    for fault in doubles(found):
        print(f"\n  {'FAULT':<12}{fault.text}\n  {'':<12}{fault.remedy}")
    differing = differences(found)
    if differing:
        print("\nThese settings differ, so the learners refuse each other:", *differing, sep="\n")
        print("Give all learners the same model and the same arguments.")
    elif of_settings and (told := agreement(found)):
        print(f"\n{told}")
    allowed = allowed_differences(found)
    if allowed:
        told = "These settings differ, and may; in a round, those of its sealer count:"
        print(f"\n{told}", *allowed, sep="\n")


def _facts(address: str, asks: _Asks) -> Facts:
    security = asks.secured.open(asks.name)
    described = security.described() if security.authenticates else "plaintext"
    host, port = parse_address("HOST:PORT", address)
    attempts = list(_attempts(host, port, asks.timeout_s))
    ips = [each.ip for each in attempts if each.took_s is not None]
    if not ips:
        return Facts(address=address, attempts=attempts, secured=described)
    came = visit(
        address,
        security,
        asks.name,
        asks.fields,
        patience_s=asks.timeout_s,
        wish=asks.own.wish,
    )
    back = None
    if came.answer:
        told = told_address(came, ips[0])
        back = (told, _reached(told, asks.timeout_s) if told else None)
    return Facts(
        address=address,
        attempts=attempts,
        secured=described,
        visit=came,
        back=back,
        asked_back=asks.own.back,
        params=asks.params,
    )


def _attempts(host: str, port: int, timeout_s: float) -> Iterator[Attempt]:
    """Connect to each IP address of a host."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        return
    for ip in dict.fromkeys(str(entry[4][0]) for entry in found):
        begun = time.monotonic()
        try:
            with socket.create_connection((ip, port), timeout_s) as connected:
                took_s = time.monotonic() - begun
                local_ip = str(connected.getsockname()[0])
        except OSError as error:
            cause = _CAUSES.get(type(error), Unreached.ROUTE)
            yield Attempt(ip=ip, took_s=None, cause=cause)
        else:
            yield Attempt(ip=ip, took_s=took_s, local_ip=local_ip)


def _reached(address: str, timeout_s: float) -> Unreached | None:
    """Why nobody can be connected to at an address; None if somebody can."""
    host, port = parse_address("address", address)
    attempts = list(_attempts(host, port, timeout_s))
    if not attempts:
        return Unreached.NAME
    causes = [each.cause for each in attempts]
    return None if None in causes else causes[0]


def _told(facts: Facts, *, whole: bool) -> Iterator[str]:
    """The findings at one address; `whole`: with all settings."""
    yield format_address(*parse_address("HOST:PORT", facts.address))
    for word, meaning in lines_of(facts):
        yield f"  {word:<12}{meaning}"
    for fault in faults_of(facts):
        yield f"  {'FAULT':<12}{fault.text}"
        yield f"  {'':<12}{fault.remedy}"
    if whole:
        yield from _settings(facts)


def _settings(facts: Facts) -> Iterator[str]:
    """All settings of one learner. Of several, only those are shown in which they differ."""
    for name, value in (facts.visit.settings if facts.visit else {}).items():
        if name in SETTINGS:
            yield f"  {name:<20}{shown(value)}"
