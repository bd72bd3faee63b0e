"""Addresses: "host:port", "[ipv6]:port" or ":port"."""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from urllib.parse import quote, unquote

from mend_optim.errors import UsageError, require

# An IPv6 address may name its interface, such as br-lan or eth0.100.
_IPV6 = r"\[(?P<ipv6>[0-9a-fA-F:.]+(?:%[\w.-]+)?)\]"
_ADDRESS = re.compile(rf"(?:{_IPV6}|(?P<host>[\w.-]*)):(?P<port>[0-9]{{1,5}})", re.ASCII)

#: Addresses that `seen_from` remembers: each beat tells of the same ones again.
KNOWN = 4096


def parse_address(argument: str, text: str) -> tuple[str, int]:
    """Split an address into host and port; the host of ":port" is empty.

    Args:
        argument: The name of the user's argument, for the error.
        text: The address.

    Raises:
        UsageError: The text is not an address, or its port is greater than 65535.
    """
    match = _ADDRESS.fullmatch(text) if isinstance(text, str) else None
    remedy = "write '10.0.0.5:29600', 'trainer.example:29600', '[fd00::5]:29600' or ':29600'"
    require(match is not None, argument, text, "an address 'host:port'", remedy)
    assert match is not None
    require(
        int(match["port"]) <= 65535,
        argument,
        text,
        "an address with a port of at most 65535",
        remedy,
    )
    is_sound = match["ipv6"] is None or _ip(match["ipv6"]) is not None
    require(is_sound, argument, text, "an address with IPv6 in its brackets", remedy)
    return match["ipv6"] or match["host"] or "", int(match["port"])


def parse_dialable(argument: str, text: str) -> tuple[str, int]:
    """Split an address that this learner is to dial into host and port.

    Raises:
        UsageError: The text is not an address, or has no port >= 1 or no host to dial.
    """
    host, port = parse_address(argument, text)
    remedy = "give the host and port that the other learner listens on"
    require(port > 0, argument, text, "an address with a port >= 1", remedy)
    require(not _is_any(host), argument, text, "an address with the host to dial", remedy)
    return host, port


def format_address(host: str, port: int) -> str:
    """Return the address of a host and port, the inverse of `parse_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def grpc_target(address: str) -> str:
    """Return what gRPC calls an address to dial, be its host a name or an IP address.

    gRPC reads schemes of its own before a colon: "unix:4242" would be a socket in the working
    directory. After this one there is always a host."""
    return "dns:///" + quote(address, safe=":[]")


def advertised(listen: str, port: int) -> str:
    """Return the address that a learner tells others.

    It has no host if the learner listens on all of its machine's addresses; each peer fills in the
    host that it sees.

    Args:
        listen: Where the learner was told to listen.
        port: Where it does.
    """
    host, _ = parse_address("listen", listen)
    return format_address("" if _is_any(host) else host, port)


@lru_cache(KNOWN)
def seen_from(address: str, host: str) -> str:
    """Return an address that a peer told, as this learner must dial it; empty if nobody can.

    If the address leaves its host open, it means the peer's own host. So does a loopback address,
    because the peer's "localhost" is not this machine, unless the peer runs here, too.

    Args:
        address: The address that the peer told.
        host: The peer's host, as this learner sees it.
    """
    try:
        there, port = parse_address("address", address)
    except UsageError:
        return ""
    if _is_any(there) or (is_loopback(there) and not is_loopback(host)):
        there = host
    return format_address(there, port) if there and port else ""


def host_of(transport_peer: str) -> str:
    """Return the host of a connection, from gRPC's name for it: "ipv4:10.0.0.5:40312" or
    "ipv6:%5B::1%5D:40312". Empty if there is none."""
    try:
        host, _ = parse_address("connection", unquote(transport_peer).partition(":")[2])
    except UsageError:
        return ""
    return str(_ip(host) or host)


def is_ip(host: str) -> bool:
    """Return whether a host is an IP address, and no name that would have to be resolved."""
    return _ip(host) is not None


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, as only this machine can reach it."""
    ip = _ip(host)
    return ip.is_loopback if ip else host.lower().removesuffix(".") == "localhost"


def _is_any(host: str) -> bool:
    """Return whether a host is all of a machine's addresses, of which none is said."""
    ip = _ip(host)
    return ip.is_unspecified if ip else not host


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address that a host is, and of an IPv4 address in IPv6 the former. None if it
    is a name."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return None
    return (ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None) or ip
