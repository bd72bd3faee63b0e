"""Addresses: "host:port", "[ipv6]:port" or ":port"."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import unquote

from mend_optim.errors import UsageError, require

_ADDRESS = re.compile(
    r"(?:\[(?P<ipv6>[0-9a-fA-F:.]+(?:%\w+)?)\]|(?P<host>[\w.-]*)):(?P<port>[0-9]{1,5})", re.ASCII
)
_ANY = ("", "0.0.0.0", "::")


def parse_address(argument: str, text: str) -> tuple[str, int]:
    """Host and port of an address; the host is empty in ":port". Raises `UsageError` naming the
    argument."""
    match = _ADDRESS.fullmatch(text) if isinstance(text, str) else None
    remedy = "write '10.0.0.5:51900', 'trainer.example:51900', '[fd00::5]:51900' or ':51900'"
    require(match is not None, argument, text, "an address 'host:port'", remedy)
    assert match is not None
    require(
        int(match["port"]) <= 65535,
        argument,
        text,
        "an address with a port of at most 65535",
        remedy,
    )
    return match["ipv6"] or match["host"] or "", int(match["port"])


def parse_dialable(argument: str, text: str) -> tuple[str, int]:
    """Host and port of an address that somebody else is to be reached at. Raises `UsageError`."""
    host, port = parse_address(argument, text)
    remedy = "give the host and port that the other learner listens on"
    require(port > 0, argument, text, "an address with a port >= 1", remedy)
    require(host not in _ANY, argument, text, "an address with the host to dial", remedy)
    return host, port


def format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def advertised(listen: str, port: int) -> str:
    """What a learner that listens there tells others: no host if it listens on any; each fills in
    what it sees."""
    host, _ = parse_address("listen", listen)
    return format_address("" if host in _ANY else host, port)


def seen_from(address: str, host: str) -> str:
    """An address told by somebody at `host`, as we must dial it; empty if nobody can.

    A host left open is the teller's. So is a loopback one, unless the teller is on our own machine:
    "localhost" there is not here.
    """
    try:
        there, port = parse_address("address", address)
    except UsageError:
        return ""
    if there in _ANY or (_is_loopback(there) and not _is_loopback(host)):
        there = host
    return format_address(there, port) if there and port else ""


def host_of(transport_peer: str) -> str:
    """The host in what gRPC says of a connection: "ipv4:10.0.0.5:40312", "ipv6:%5B::1%5D:40312"."""
    try:
        host, _ = parse_address("connection", unquote(transport_peer).partition(":")[2])
        mapped = ipaddress.IPv6Address(host).ipv4_mapped if ":" in host else None
    except ValueError:  # also a `UsageError`
        return ""
    return str(mapped or host)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
