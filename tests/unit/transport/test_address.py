"""Addresses: as the user wrote them, as a peer told them, as gRPC reports them."""

from __future__ import annotations

import pytest

from mend_optim.errors import UsageError
from mend_optim.transport.address import (
    grpc_target,
    host_of,
    parse_address,
    parse_dialable,
    seen_from,
)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("10.0.0.5:29600", ("10.0.0.5", 29600)),
        ("trainer-1.example.org:1", ("trainer-1.example.org", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("[fe80::1%br-lan.100]:9", ("fe80::1%br-lan.100", 9)),
        (":0", ("", 0)),
    ],
)
def test_addresses_are_parsed(text, parsed):
    assert parse_address("listen", text) == parsed


@pytest.mark.parametrize(
    "text",
    ["", "host", "host:", "host:port", "::1:80", "a b:1", "unix:/x:1", "h:65536", "h:-1", None],
)
def test_what_is_no_address_is_the_users_error(text):
    with pytest.raises(
        UsageError, match=r"^peers\[1\] must be an address .*, got .*; write '10.0.0.5:29600'"
    ):
        parse_address("peers[1]", text)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("10.0.0.5:29600", "dns:///10.0.0.5:29600"),
        ("[::1]:29600", "dns:///[::1]:29600"),
        # gRPC would read the interface ab0 as one character
        ("[fe80::1%ab0]:29600", "dns:///[fe80::1%25ab0]:29600"),
        ("trainer_1.example:29600", "dns:///trainer_1.example:29600"),
        ("unix:4242", "dns:///unix:4242"),
        ("google-c2p-experimental:4242", "dns:///google-c2p-experimental:4242"),
    ],
)
def test_a_host_is_a_host_to_grpc(text, target):
    """gRPC takes no name of a host for one of its schemes."""
    parse_dialable("peers", text)
    assert grpc_target(text) == target


@pytest.mark.parametrize("text", ["[fd5]:1", "[fd5%eth0]:1", "[1.2.3.4.5]:1", "[::1::]:1", "[:]:1"])
def test_brackets_hold_ipv6(text):
    """Without them, a name or garbage would be left, which nobody checked."""
    with pytest.raises(UsageError, match="peers must be an address with IPv6 in its brackets"):
        parse_dialable("peers", text)
    assert seen_from(text, "10.0.0.1") == ""


@pytest.mark.parametrize(
    "text", [":29600", "host:0", "0.0.0.0:29600", "[::]:29600", "[0::0]:1", "[::ffff:0.0.0.0]:1"]
)
def test_an_address_to_dial_has_host_and_port(text):
    with pytest.raises(UsageError, match="peers must be an address with"):
        parse_dialable("peers", text)


@pytest.mark.parametrize(
    ("told", "by", "dial"),
    [
        ("10.0.0.9:5", "10.0.0.1", "10.0.0.9:5"),
        (":5", "10.0.0.1", "10.0.0.1:5"),
        ("0.0.0.0:5", "fd00::1", "[fd00::1]:5"),
        # two learners on the other machine know each other so
        ("127.0.0.1:5", "10.0.0.1", "10.0.0.1:5"),
        ("127.8.0.1:5", "10.0.0.1", "10.0.0.1:5"),
        ("[::ffff:127.0.0.1]:5", "10.0.0.1", "10.0.0.1:5"),
        ("[0:0::1]:5", "10.0.0.1", "10.0.0.1:5"),
        ("LocalHost.:5", "10.0.0.1", "10.0.0.1:5"),
        ("[0::0]:5", "10.0.0.1", "10.0.0.1:5"),
        ("[::ffff:0.0.0.0]:5", "10.0.0.1", "10.0.0.1:5"),
        ("127.0.0.1:5", "127.0.0.1", "127.0.0.1:5"),
        ("localhost:5", "::1", "localhost:5"),
        (":5", "", ""),
        ("", "10.0.0.1", ""),
        ("nonsense", "10.0.0.1", ""),
        ("host:0", "10.0.0.1", ""),
    ],
)
def test_an_address_means_what_its_teller_means(told, by, dial):
    assert seen_from(told, by) == dial


@pytest.mark.parametrize(
    ("seen", "host"),
    [
        ("ipv4:10.0.0.5:40312", "10.0.0.5"),
        ("ipv6:%5B::1%5D:9", "::1"),
        ("ipv6:[::ffff:10.0.0.5]:9", "10.0.0.5"),
        ("unix:", ""),
    ],
)
def test_where_a_connection_comes_from(seen, host):
    assert host_of(seen) == host
