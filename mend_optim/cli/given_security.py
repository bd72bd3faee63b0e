"""The options of a command by which it shows credentials, as a learner's visitor."""

from __future__ import annotations

import argparse
from pathlib import Path

from mend_optim.security import LinkSecurity, read_security
from mend_optim.transport.security.credentials import Credentials
from mend_optim.transport.security.files import name_of_files
from mend_optim.transport.visit import VISITOR


def add_security(parser: argparse.ArgumentParser) -> None:
    """Give the parser these options."""
    secured = parser.add_mutually_exclusive_group()
    secured.add_argument("--secret", type=Path, metavar="FILE", help="the run's secret")
    secured.add_argument(
        "--credentials", type=Path, metavar="DIR", help="the files of the learner of this machine"
    )


def read_given(given: argparse.Namespace) -> tuple[LinkSecurity, str]:
    """How to secure connections, and in which name."""
    credentials = None
    if given.secret:
        credentials = Credentials.secret(given.secret)
    if given.credentials:
        credentials = Credentials.files(given.credentials)
    security = read_security(credentials, insecure=False)
    chosen = security.credentials
    if chosen is None or chosen.source.value == "secret":
        return security, VISITOR
    return security, name_of_files(security.source, chosen.path)
