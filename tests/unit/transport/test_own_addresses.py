"""A learner that listens at a name: at which addresses, and what it says if it cannot."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from mend_optim.errors import UsageError
from mend_optim.transport.address import format_address
from mend_optim.transport.security.channels import Plaintext
from tests.unit.transport.test_grpc_transport import Crew, Learner, scenario


def named(*ips: str) -> dict[str, Any]:
    """The options of a learner that listens at a name with these addresses."""

    async def resolve(host: str, port: int) -> list[str]:
        if not ips:
            raise OSError("no such name")
        return [format_address(ip, port) for ip in ips]

    return {"resolve": resolve}


@scenario
async def test_a_port_that_is_taken_on_ipv4_alone_is_the_users_error(crew: Crew) -> None:
    """gRPC would be content with [::1], where peers that get 127.0.0.1 don't dial."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"localhost:{taken.getsockname()[1]}"
        b = Learner("b", listen=listen)
        crew.learners.append(b)
        with pytest.raises(UsageError, match=f"free port, got '{listen}'"):
            await b.transport.start()


@scenario
async def test_the_port_must_be_free_at_each_address_of_a_name(crew: Crew) -> None:
    """Peers that got another of its addresses would reach the other program."""
    with socket.create_server(("127.0.0.2", 0)) as taken:
        port = taken.getsockname()[1]
        b = Learner("b", listen=f"here:{port}", **named("127.0.0.1", "127.0.0.2"))
        crew.learners.append(b)
        with pytest.raises(UsageError, match="free port, got 'here:"):
            await b.transport.start()
        assert b.transport.port == 0
        with socket.create_server(("127.0.0.1", port)):
            """The port is free there again."""


@scenario
async def test_a_learner_listens_at_each_address_of_a_name(crew: Crew) -> None:
    b = await crew("b", listen="here:0", **named("127.0.0.1", "127.0.0.2"))
    port = b.transport.port
    a = await crew("a", f"127.0.0.1:{port}")
    c = await crew("c", f"127.0.0.2:{port}")
    await a.linked_with(b)
    await c.linked_with(b)


@pytest.mark.parametrize("elsewhere", ["198.51.100.7", "2001:db8::1"])
def test_addresses_of_other_machines_are_not_listened_at(elsewhere: str) -> None:
    @scenario
    async def run(crew: Crew) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        b = await crew("b", listen=f"here:{port}", **named(elsewhere, "127.0.0.1"))
        a = await crew("a", f"127.0.0.1:{port}")
        await a.linked_with(b)

    run()


@scenario
async def test_a_port_of_grpcs_choice_may_be_taken_at_a_further_address(crew: Crew) -> None:
    security = Plaintext("none")
    binding = security.bind

    def bind(server: Any, address: str) -> int:
        if address.startswith("127.0.0.2:"):
            raise RuntimeError("the port is taken")
        return binding(server, address)

    security.bind = bind  # type: ignore[method-assign]
    b = await crew("b", listen="here:0", security=security, **named("127.0.0.1", "127.0.0.2"))
    a = await crew("a", f"127.0.0.1:{b.transport.port}")
    await a.linked_with(b)


@pytest.mark.parametrize("ips", [(), ("198.51.100.7",)], ids=["none", "another machine's"])
def test_a_name_without_an_address_here_is_the_users_error(ips: tuple[str, ...]) -> None:
    @scenario
    async def run(crew: Crew) -> None:
        b = Learner("b", listen="there:0", **named(*ips))
        crew.learners.append(b)
        with pytest.raises(UsageError, match="free port, got 'there:0'"):
            await b.transport.start()

    run()
