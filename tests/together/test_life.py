"""The life and death of an optimizer with peers: dropped, it leaves, and its port is free again; an
error names the learner that still holds a port."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent import futures
from contextlib import closing
from typing import Any

import pytest
import torch
from torch.nn import Parameter

import mend_optim
from mend_optim import ClosedError, Event, MendError, MendOptimizer, UsageError
from mend_optim.runtime import network_side
from mend_optim.transport import background_log
from mend_optim.transport.dialler import Dialler
from mend_optim.transport.server import Server
from tests.support.addresses import free_addresses
from tests.support.learners import (
    LOOPBACK,
    PATIENCE_S,
    TIMING,
    Watch,
    descent,
    drive,
    start,
    step,
    wave,
)

ALONE: dict[str, Any] = {"timing": mend_optim.Timing(join_timeout_s=0.0), "sync_every": 2}


@pytest.fixture(autouse=True)
def nobody_left() -> Iterator[None]:
    """No test leaves a learner behind, nor its last lines in the log of the next test."""
    yield
    mend_optim.close_all()
    for thread in workers():
        thread.join(PATIENCE_S)
    background_log.flush(PATIENCE_S)


def pair(**options: Any) -> tuple[MendOptimizer, Watch, MendOptimizer]:
    """Learner a and its events, and learner b, after their first round."""
    watch = Watch()
    a = MendOptimizer(
        descent(0.0), name="a", listen=LOOPBACK, timing=TIMING, sync_every=2, on_event=watch
    )
    b = MendOptimizer(
        descent(0.0),
        name="b",
        listen=LOOPBACK,
        peers=[a.status().address],
        timing=TIMING,
        sync_every=2,
        **options,
    )
    start([a, b])
    drive([a, b], 9, wave)
    watch.until("round")
    return a, watch, b


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "mend-merge"]


@pytest.mark.usefixtures("no_collector")
def test_an_optimizer_that_is_dropped_leaves_and_frees_its_model() -> None:
    _a, watch, b = pair()
    run, model = weakref.ref(b._run), weakref.ref(b.param_groups[0]["params"][0])
    assert model() is not None
    del b
    assert run() is None, "something refers to it"
    assert watch.until("left")[0].facts["peer"] == "b"
    gc.collect()  # torch's own optimizers are circles at times
    assert model() is None


@pytest.mark.usefixtures("no_collector")
def test_an_optimizer_that_is_dropped_tells_what_others_do_not_get(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _a, watch, b = pair()
    assert b.status().unmerged_tokens > 0
    (thread,) = [thread for thread in workers() if thread is b._learner.worker.thread]
    del b
    assert watch.until("left")[0].facts["peer"] == "b"
    thread.join(30.0)
    background_log.flush(30.0)
    (told,) = [each for each in caplog.messages if each.startswith("b: leaves without finish()")]
    assert "its tokens are in no anchor" in told


@pytest.mark.parametrize("thread", ["worker", "callback"])
def test_a_learner_whose_thread_fails_says_goodbye(thread: str) -> None:
    """Silent, it would be evicted and met anew for as long as its process lives."""

    def fail(event: Event) -> None:
        if event.kind == "a test":
            raise SystemExit

    _a, watch, b = pair(on_event=fail)
    learner = b._learner
    assert learner
    if thread == "worker":
        learner.worker.put(lambda: fail(Event("a test", "")))
    else:
        learner.tell(Event("a test", ""))
    assert watch.until("left")[0].facts["peer"] == "b"
    learner.await_end()
    with pytest.raises(MendError, match="training goes on alone"):
        step(b, 1.0)


def test_the_port_of_a_learner_that_fails_is_free_as_soon_as_it_has_left() -> None:
    with closing(MendOptimizer(descent(0.0), name="first", listen=LOOPBACK, **ALONE)) as first:
        learner, address = first._learner, first.status().address
        assert learner
        learner.worker.put(sys.exit)
        assert learner.wait(lambda: False, PATIENCE_S)
        first.close()
        with MendOptimizer(descent(0.0), name="second", listen=address, **ALONE) as second:
            assert second.status().address == address


def test_the_port_of_a_learner_that_cannot_start_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails once it listens."""
    (address,) = free_addresses(1)

    def fail(*_: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(Dialler, "start", fail)
    with pytest.raises(RuntimeError, match="a fault"):
        MendOptimizer(descent(0.0), name="first", listen=address, **ALONE)
    monkeypatch.undo()
    with MendOptimizer(descent(0.0), name="second", listen=address, **ALONE) as second:
        assert second.status().address == address


def test_the_port_of_a_learner_that_takes_too_long_to_start_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another learner keeps the loop alive, on which it would go on."""
    (address,) = free_addresses(1)
    listen = Server.start

    async def slow(server: Server, *arguments: Any) -> int:
        port = await listen(server, *arguments)
        await asyncio.Event().wait()
        return port

    with MendOptimizer(descent(0.0), name="other", listen=LOOPBACK, **ALONE):
        monkeypatch.setattr(Server, "start", slow)
        monkeypatch.setattr(network_side, "START_S", 0.0)
        with pytest.raises(futures.TimeoutError):
            MendOptimizer(descent(0.0), name="first", listen=address, **ALONE)
        monkeypatch.undo()
        with MendOptimizer(descent(0.0), name="second", listen=address, **ALONE) as second:
            assert second.status().address == address


def test_a_callback_that_leads_to_the_optimizer_keeps_nobody() -> None:
    class Logger:
        optimizer: MendOptimizer | None = None
        told = 0

        def tell(self, _: Event) -> None:
            self.told += 1

    logger = Logger()
    _a, watch, b = pair(on_event=logger.tell)
    logger.optimizer = b
    told, model = logger.told, weakref.ref(b.param_groups[0]["params"][0])
    assert told > 0
    del b, logger
    gc.collect()
    assert model() is None
    assert watch.until("left")[0].facts["peer"] == "b"


def test_the_threads_of_a_dropped_optimizer_end() -> None:
    before = workers()
    optimizer = MendOptimizer(descent(0.0), listen=LOOPBACK, **ALONE)
    step(optimizer, 1.0)
    (thread,) = [thread for thread in workers() if thread not in before]
    del optimizer
    gc.collect()
    thread.join(30.0)
    assert not thread.is_alive()


@pytest.mark.usefixtures("no_collector")
def test_a_port_is_free_as_soon_as_its_optimizer_is_dropped() -> None:
    first = MendOptimizer(descent(0.0), name="first", listen=LOOPBACK, **ALONE)
    address = first.status().address
    del first
    with MendOptimizer(descent(0.0), name="second", listen=address, **ALONE) as second:
        assert second.status().address == address


@pytest.mark.usefixtures("no_collector")
def test_a_port_is_free_if_its_optimizer_is_garbage() -> None:
    first: Any = MendOptimizer(descent(0.0), name="first", listen=LOOPBACK, **ALONE)
    address = first.status().address
    first.itself = first
    gone = weakref.ref(first)
    del first
    assert gone() is not None, "nothing has collected the circle yet"
    with MendOptimizer(descent(0.0), name="second", listen=address, **ALONE) as second:
        assert second.status().address == address
    assert gone() is None


def test_an_earlier_optimizer_that_still_holds_the_port_is_named() -> None:
    first = MendOptimizer(descent(0.0), name="first", listen=LOOPBACK, **ALONE)
    address = first.status().address
    with pytest.raises(UsageError) as error:
        MendOptimizer(descent(0.0), name="second", listen=address, **ALONE)
    assert str(error.value) == (
        f"listen must be an address of this machine with a free port, got {address!r}; the learner "
        "'first' of this process still listens there: if the new one takes its place, call close() "
        "of its MendOptimizer, or mend_optim.close_all(), before; if both train, pass a listen and "
        "peers of its own to each"
    )
    # the first one was not disturbed
    step(first, 1.0)
    assert first.status().step > 0
    assert not first.synchronize()  # nobody is there to merge with
    first.close()
    MendOptimizer(descent(0.0), name="second", listen=address, **ALONE).close()


def test_close_all_closes_every_learner_of_the_process() -> None:
    a, _watch, b = pair()
    addresses = [a.status().address, b.status().address]
    mend_optim.close_all()
    for optimizer in (a, b):
        with pytest.raises(ClosedError):
            optimizer.synchronize()
        step(optimizer, 1.0)  # it is its inner optimizer from here on
    for address in addresses:
        MendOptimizer(descent(0.0), listen=address, **ALONE)


def test_close_all_leaves_an_optimizer_without_peers_alone() -> None:
    parameter = Parameter(torch.ones(2))
    optimizer = MendOptimizer(torch.optim.SGD([parameter], lr=1.0))
    mend_optim.close_all()
    parameter.grad = torch.ones(2)
    optimizer.step()
    assert parameter.tolist() == [0.0, 0.0]
    assert optimizer.synchronize()


def test_a_learner_that_never_steps_again_is_in_every_round_with_nothing() -> None:
    quick = mend_optim.Timing(beat_s=0.05, evict_after_s=1.0)
    ended, rounds = Watch(), Watch()
    options: dict[str, Any] = {"timing": quick, "sync_every": 2, "grace": 0.0}
    trains = MendOptimizer(descent(0.0), name="a", listen=LOOPBACK, on_event=rounds, **options)
    peers = [trains.status().address]
    zombie = MendOptimizer(descent(0.0), name="b", peers=peers, on_event=ended, **options)
    with closing(trains), closing(zombie):
        start([trains, zombie])
        step(zombie, 1.0)
        ended.until("idle")
        before = len(rounds.of("round"))
        while len(rounds.of("round")) < before + 5:
            step(trains, 1.0)
        records = [event.facts["round"] for event in rounds.of("round")[before:]]
        merged = [{member.name: member.steps for member in record.members} for record in records]
        assert all(steps["a"] > 0 for steps in merged)
        assert all(steps["b"] == 0 for steps in merged)
        # it steps again, and its rounds have all of its work
        while not any(m.name == "b" and m.steps > 1 for m in last_members(rounds)):
            step(zombie, 1.0)
            step(trains, 1.0)


def last_members(watch: Watch) -> tuple[Any, ...]:
    return tuple(watch.of("round")[-1].facts["round"].members)
