"""Peers through torchrun's store: the rules of who is told what, and a real store on loopback."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import TCPStore

from mend_optim.errors import PeerError, UsageError
from mend_optim.protocol.seed_lists import Listing
from mend_optim.runtime import rendezvous
from mend_optim.runtime.rendezvous import Rendezvous, World, own_host, read_world
from tests.support.addresses import port_of_all_hosts

NEEDED = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "RANK": "1", "WORLD_SIZE": "4"}


def unchecked(called: str, address: str) -> None:
    """Any address may be dialled."""


def world_of(size: int, *ranks: int, port: int = 29500, **told: Any) -> World:
    facts = {"host": "127.0.0.1", "is_local": True, "agents_store": True, "run": "none", **told}
    return World(port=port, size=size, ranks=ranks, **facts)


# ── rules ─────────────────────────────────────────────────────────────────────────────────────────


def test_the_variables_of_torchrun_describe_the_world() -> None:
    elastic = {
        "LOCAL_WORLD_SIZE": "2",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": "mine",
    }
    world = read_world({**NEEDED, **elastic}, "peers")
    told = {"host": "10.0.0.1", "is_local": False, "run": "mine"}
    assert world == world_of(4, 1, **told)
    assert world.key(2, 3) == "mend_optim/mine/2/3"
    plain = read_world(NEEDED, "peers")
    assert (plain.agents_store, plain.run, plain.listen) == (False, "none", "0.0.0.0:0")


@pytest.mark.parametrize(
    "told", [{"LOCAL_WORLD_SIZE": "4"}, {"MASTER_ADDR": "localhost"}, {"MASTER_ADDR": "::1"}]
)
def test_processes_of_one_machine_need_no_other(told: dict[str, str]) -> None:
    world = read_world({**NEEDED, **told}, "peers")
    assert (world.is_local, world.listen) == (True, "127.0.0.1:0")


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"RANK": ""}, "MEND_PEERS must be addresses, or 'env://' .*; not set: RANK"),
        ({"RANK": "4"}, "RANK must be a whole number from 0 to 3, got '4'"),
        ({"RANK": "-1"}, "RANK must be a whole number from 0 to 3, got '-1'"),
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE must be a whole number from 1 to 1000000"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT must be a whole number from 1 to 65535"),
        ({"MASTER_ADDR": "no host"}, "MASTER_ADDR and MASTER_PORT must be an address"),
    ],
)
def test_variables_that_are_wrong_are_named(told: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_world({**NEEDED, **told}, "MEND_PEERS")


@given(
    st.integers(1, 6).flatmap(
        lambda size: st.tuples(
            st.just(size),
            st.sets(st.integers(0, size - 1), min_size=1),
            st.dictionaries(st.integers(0, size - 1), st.sampled_from(["a:1", "b:1", "c:1"])),
        )
    )
)
def test_the_others_are_those_of_other_ranks_once_each(drawn) -> None:
    size, ranks, told = drawn
    listing = world_of(size, *ranks).listing(told)
    own = {told[rank] for rank in ranks if rank in told}
    others = [told[rank] for rank in sorted(told) if rank not in ranks]
    assert set(listing.seeds) == set(others) - own
    assert len(listing.seeds) == len(set(listing.seeds))
    absent = [str(rank) for rank in range(size) if rank not in ranks and rank not in told]
    assert listing.awaited == (f"no address of rank {', '.join(absent)} yet" if absent else "")


def test_of_many_ranks_that_are_awaited_some_are_named() -> None:
    awaited = world_of(100, 0).listing({}).awaited
    assert awaited == "no address of rank 1, 2, 3, 4, 5, 6, 7, 8, … yet"


@pytest.mark.parametrize(
    ("address", "own", "is_local", "told"),
    [
        ("127.0.0.1:5", "10.0.0.9", True, "127.0.0.1:5"),
        ("trainer.example:5", "10.0.0.9", False, "trainer.example:5"),
        (":5", "10.0.0.9", False, "10.0.0.9:5"),
        (":5", "fd00::9", False, "[fd00::9]:5"),
        (":5", "127.0.0.1", True, "127.0.0.1:5"),
        (":5", "127.0.1.1", False, "master.example:5"),  # on the store's own host
    ],
)
def test_an_address_is_told_as_others_must_dial_it(
    address: str, own: str, is_local: bool, told: str
) -> None:
    world = world_of(2, 0, host="master.example", is_local=is_local)
    assert world.published(address, lambda: own) == told


def test_the_own_address_is_that_of_the_way_to_the_store() -> None:
    assert own_host("127.0.0.1", 29500) == "127.0.0.1"


# ── a store ───────────────────────────────────────────────────────────────────────────────────────

OTHERS_STORE = """
import sys
from torch.distributed import TCPStore

store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


class Store:
    """A store that this process keeps: to start one that keeps it takes as long as a hundred of
    these tests."""

    def __init__(self) -> None:
        self.port = 0
        self.begin()

    def begin(self) -> None:
        """Keep an empty store, at the same port if there was one."""
        self.kept: TCPStore | None = TCPStore(
            "127.0.0.1", self.port, is_master=True, wait_for_workers=False
        )
        self.port = self.kept.port

    def end(self) -> None:
        """Close the port and all connections."""
        self.kept = None


class OthersStore:
    """A store that another process keeps, as `torchrun` does; it can be frozen."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", OTHERS_STORE]
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store()
    yield store
    store.end()


@pytest.fixture
def others_store() -> Iterator[OthersStore]:
    store = OthersStore()
    yield store
    store.kill()


def rank(
    store: Store | OthersStore, size: int, *ranks: int, number: int = 0, **told: Any
) -> Rendezvous:
    return Rendezvous(world_of(size, *ranks, port=store.port, **told), number, unchecked)


def read(list_: Rendezvous, address: str) -> Listing:
    return asyncio.run(list_.read(address))


class Told:
    """A store in which rank 1 has told this."""

    def __init__(self, value: bytes) -> None:
        self.value = value

    def set(self, key: str, value: str) -> None: ...

    def check(self, keys: list[str]) -> bool:
        return True

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [b"127.0.0.1:1", self.value]


@pytest.mark.parametrize("told", [b"here", b"b\xff:1"], ids=["no-address", "no-text"])
def test_what_is_no_address_is_a_fault_of_the_list_until_it_is_one(told: bytes) -> None:
    a = Rendezvous(world_of(2, 0, agents_store=False), 0, unchecked)
    a._store = store = Told(told)
    with pytest.raises(PeerError, match=r"the address of rank 1 must be an address 'host:port'"):
        read(a, "127.0.0.1:1")
    store.value = b"127.0.0.1:2"
    assert read(a, "127.0.0.1:1").seeds == ("127.0.0.1:2",)


def test_a_torch_without_stores_is_a_fault_of_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.distributed, "TCPStore")
    a = Rendezvous(world_of(2, 0, agents_store=False), 0, unchecked)
    with pytest.raises(PeerError, match=r"this build of torch has no TCPStore, which 'env://' "):
        read(a, "127.0.0.1:1")


def test_name_servers_that_do_not_answer_hide_no_store(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it opens a store, torch asks for the host's name. By the defaults of resolv.conf(5),
    three servers are tried twice for 5 s each, and that counts as time for the connection."""

    def after_lookup(*place: Any, timeout: timedelta, **options: Any) -> Any:
        if timeout <= timedelta(seconds=3 * 2 * 5):
            raise RuntimeError("The client socket has timed out")
        return TCPStore(*place, timeout=timeout, **options)

    monkeypatch.setattr(torch.distributed, "TCPStore", after_lookup)
    assert read(rank(store, 1, 0), "127.0.0.1:1") == Listing(seeds=())
    assert rendezvous.PATIENCE_S > rendezvous.OPEN_S


def test_learners_find_each_other(store: Store) -> None:
    a, b, c = rank(store, 4, 0), rank(store, 4, 1), rank(store, 4, 2, 3)
    assert read(a, "127.0.0.1:1") == Listing(seeds=(), awaited="no address of rank 1, 2, 3 yet")
    assert read(c, ":3").seeds == ("127.0.0.1:1",)
    assert read(b, "127.0.0.1:2") == Listing(seeds=("127.0.0.1:1", "127.0.0.1:3"))
    assert read(a, "127.0.0.1:1") == Listing(seeds=("127.0.0.1:2", "127.0.0.1:3"))
    # one that nobody can dial only looks
    assert read(rank(store, 5, 4), "").seeds == ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")
    # a process that was started again, at another port
    assert read(rank(store, 4, 1), "127.0.0.1:9").seeds == ("127.0.0.1:1", "127.0.0.1:3")
    assert read(a, "127.0.0.1:1").seeds == ("127.0.0.1:9", "127.0.0.1:3")


def test_runs_and_several_learners_of_a_process_are_kept_apart(store: Store) -> None:
    read(rank(store, 2, 0), "127.0.0.1:1")
    awaited = Listing(seeds=(), awaited="no address of rank 0 yet")
    assert read(rank(store, 2, 1, number=1), "127.0.0.1:2") == awaited
    assert read(rank(store, 2, 1, run="other"), "127.0.0.1:2") == awaited


def test_an_address_that_must_not_be_dialled_is_a_fault_of_the_list(store: Store) -> None:
    def check(called: str, address: str) -> None:
        raise UsageError(f"{called} is {address}")

    read(rank(store, 2, 0), "10.0.0.1:1")
    a = Rendezvous(world_of(2, 1, port=store.port), 0, check)
    with pytest.raises(PeerError, match=r"the address of rank 0 is 10.0.0.1:1"):
        read(a, "")


def test_a_store_that_dies_is_a_fault_of_the_list_until_it_is_back(store: Store) -> None:
    a = rank(store, 2, 0)
    read(a, "127.0.0.1:1")
    store.end()
    for _ in range(2):
        with pytest.raises(PeerError, match=rf"store at 127.0.0.1:{store.port} cannot be reached"):
            read(a, "127.0.0.1:1")
    store.begin()
    assert read(a, "127.0.0.1:1") == Listing(seeds=(), awaited="no address of rank 1 yet")


def test_a_store_that_froze_holds_nobody_up(others_store: OthersStore) -> None:
    a = rank(others_store, 2, 0)
    read(a, "127.0.0.1:1")
    others_store.process.send_signal(signal.SIGSTOP)
    os.waitpid(others_store.process.pid, os.WUNTRACED)  # it has stopped
    with (
        patch.object(rendezvous, "PATIENCE_S", 0.2),
        pytest.raises(PeerError, match=rf"store at 127.0.0.1:{others_store.port} does not answer"),
    ):
        read(a, "127.0.0.1:1")


def test_without_torchrun_the_first_rank_keeps_the_store() -> None:
    told = {"port": int(port_of_all_hosts()), "agents_store": False}
    b = Rendezvous(world_of(2, 1, **told), 0, unchecked)
    with pytest.raises(PeerError, match="cannot be reached"):
        read(b, "127.0.0.1:2")
    a = Rendezvous(world_of(2, 0, **told), 0, unchecked)
    assert read(a, "127.0.0.1:1").seeds == ()
    assert read(b, "127.0.0.1:2").seeds == ("127.0.0.1:1",)
    assert read(a, "127.0.0.1:1").seeds == ("127.0.0.1:2",)
