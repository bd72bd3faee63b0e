"""Rows of the audit on two real learners: what a hostile peer has a learner send, and the addresses
that it has it dial."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import grpc
import pytest

from mend_optim.membership.sealers import sealer_of
from mend_optim.transport._pb import peer_pb2 as pb
from mend_optim.transport.connection import CALLER, SERVICE
from mend_optim.transport.dialler import HEARSAY_DIALS
from mend_optim.transport.watching import MOST_LOOKS
from mend_optim.transport.wire_sight import encode_look
from tests.hostile.attacker import Attacker, rumors, say
from tests.hostile.ground import PACE_S, UNHURRIED, WIDTH, Ground, await_refusal, open_files
from tests.hostile.listener import Listener
from tests.hostile.test_attacks import held
from tests.system.processes import TIMING, Process, members

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@held
def test_i6_calls_of_anybody_are_answered_once_in_a_beat(ground: Ground, mallory: Attacker) -> None:
    """It listens, so the offers of "a" reach it; and it does not seal."""
    assert sealer_of(0, ["a", "b", mallory.me.name]) == "b"
    with Listener(mallory) as there:
        mallory.hello(address=there.address)
        stream = mallory.control(mallory.beat(address=there.address))
        step = ground.a.step
        for _ in range(20):
            say(stream, *[pb.Call(peer=mallory.me)] * 100)
            ground.a.await_steps(2)
        ground.supervisor.until(lambda: there.offers, "an offer to reach the caller")
        beats = (ground.a.step - step) * PACE_S / TIMING["beat_s"]
        assert len(there.offers) <= 5 * beats + 5
        with ground.lasts():
            pass


@contextmanager
def silent(count: int) -> Iterator[tuple[list[str], list[socket.socket]]]:
    """Places that take connections and say nothing; and the connections that came."""
    came: list[socket.socket] = []
    with ExitStack() as stack:
        places = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]

        def take(place: socket.socket) -> None:
            with suppress(OSError):
                while True:
                    came.append(place.accept()[0])

        for place in places:
            threading.Thread(target=take, args=(place,), daemon=True).start()
        try:
            yield [f"127.0.0.1:{place.getsockname()[1]}" for place in places], came
        finally:
            for place in places:
                place.shutdown(socket.SHUT_RDWR)
            for connection in came:
                connection.close()


def still_open(came: list[socket.socket]) -> list[socket.socket]:
    """The connections that the other end has not closed."""
    return [connection for connection in came if not _has_ended(connection)]


def _has_ended(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


@held
def test_r16_one_address_of_many_names_is_dialled_once_at_a_time(
    ground: Ground, mallory: Attacker
) -> None:
    with silent(1) as ((address,), came):
        stream = mallory.control(mallory.beat(roster=rumors(200, address=address)))
        for count in range(2, 8):
            say(stream, mallory.beat(count=count, roster=rumors(200, 10 * count, address=address)))
            with ground.lasts():
                pass
            # Both learners hear of the names, and either dials again once nobody has answered. gRPC
            # may have a connection or two more for that. With a dial for each name there are 16.
            assert len(still_open(came)) <= 8
        ground.supervisor.until(lambda: came, "a learner to dial")


@held
def test_r16b_of_many_addresses_a_few_are_dialled_at_a_time(
    ground: Ground, mallory: Attacker
) -> None:
    before = open_files(ground.a)
    with silent(100) as (addresses, came):
        told = [rumors(1, n, address=address)[0] for n, address in enumerate(addresses)]
        mallory.control(mallory.beat(roster=told))
        ground.supervisor.until(lambda: len(came) >= HEARSAY_DIALS, "a learner to dial")
        for _ in range(5):
            with ground.lasts():
                assert open_files(ground.a) - before <= 2 * HEARSAY_DIALS


@held
def test_r17_a_flood_of_looks_is_refused(ground: Ground, mallory: Attacker) -> None:
    look = mallory.channel.unary_unary(f"/{SERVICE}/Watch")
    name = ((CALLER, mallory.me.SerializeToString()),)
    calls = [look.future(encode_look(), metadata=name) for _ in range(20 * MOST_LOOKS)]
    with ground.lasts():
        pass
    codes = {call.code() for call in calls}
    assert grpc.StatusCode.OK in codes
    assert grpc.StatusCode.RESOURCE_EXHAUSTED in codes
    await_refusal(ground.a, "", "too many watch")


def test_l11_nobody_refuses_in_the_name_of_a_seed(ground: Ground, few_files: Process) -> None:
    """A learner that waits for its seed is told, from the seed's own address as it seems, that it
    may go away. It waits on, and joins when the seed answers."""
    with ground.held(merged="abc"):
        seed = ground.a.address
        ground.a.signal(signal.SIGSTOP)
        try:
            how = {"on": few_files, "width": WIDTH, **UNHURRIED}
            c = ground.supervisor.start("c", peers=[seed], seed=3, **how)
            with Attacker(c.address, ground.hello, "d") as mallory:
                mallory.hello(address=seed, refusal="go away")
            assert c.await_event("refused")["reason"] == "go away"
        finally:
            ground.a.signal(signal.SIGCONT)
        ground.supervisor.until(
            lambda: any("c" in members(round) for round in c.rounds), "work of c to be merged"
        )
        c.leave()
