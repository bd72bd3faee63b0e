"""`mend run` keeps the ports of its learners from other programs, not from the learners."""

from __future__ import annotations

import socket
import sys

import pytest

from mend_optim.cli.run.held_ports import held_addresses
from mend_optim.errors import UsageError

HOST = "127.0.0.1"
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="ports are held on Linux alone")


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def test_ports_are_free_and_different() -> None:
    with held_addresses(HOST, 20, None) as addresses:
        assert len(set(addresses)) == 20
        for address in addresses:
            socket.create_server((HOST, port_of(address))).close()


@on_linux
def test_a_held_port_is_not_given_to_a_client_and_is_left_to_a_server() -> None:
    with held_addresses(HOST, 1, None) as (address,):
        place = (HOST, port_of(address))
        with socket.socket() as client, pytest.raises(OSError, match="in use"):
            client.bind(place)
        for _ in range(2):  # the second one is the learner that is started again
            with socket.create_server(place), pytest.raises(OSError, match="in use"):
                socket.create_server(place)
    with socket.socket() as client:
        client.bind(place)


def two_free_ports() -> int:
    """The first of two ports of which nobody has either."""
    while True:
        with socket.create_server((HOST, 0)) as server:
            first: int = server.getsockname()[1]
            try:
                socket.create_server((HOST, first + 1)).close()
            except OSError:
                continue
            return first


def test_given_ports_follow_each_other() -> None:
    first = two_free_ports()
    with held_addresses(HOST, 2, first) as addresses:
        assert addresses == [f"{HOST}:{first}", f"{HOST}:{first + 1}"]


def test_a_port_at_which_a_server_listens_is_refused_and_named() -> None:
    first = two_free_ports()
    with socket.create_server((HOST, first + 1)):
        told = (
            f"--port must be the first of 2 free ports, got {first}:"
            rf" {first + 1} is not \(Address already in use\)"
        )
        with pytest.raises(UsageError, match=told), held_addresses(HOST, 2, first):
            raise AssertionError("a taken port was given")


def test_ports_are_let_go_at_once_where_they_would_keep_the_server_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with held_addresses(HOST, 1, None) as (address,), socket.socket() as server:
        server.bind((HOST, port_of(address)))


def test_the_last_port_is_one() -> None:
    with held_addresses(HOST, 1, 65535) as addresses:
        assert addresses == [f"{HOST}:65535"]


@pytest.mark.parametrize(("count", "first"), [(1, 0), (2, 65535)])
def test_there_are_no_ports_beyond_the_last(count: int, first: int) -> None:
    told = f"--port must be a port from 1 to {65536 - count}, got {first}"
    with pytest.raises(UsageError, match=told), held_addresses(HOST, count, first):
        raise AssertionError("a port was given that does not exist")
