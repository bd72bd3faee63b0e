"""The loop that all learners of a process share, and its end."""

from __future__ import annotations

import asyncio
import gc

import pytest

from mend_optim.runtime.network_loop import NetworkLoop


class Stream:
    """Work on the loop that takes a few turns more to end once it is cancelled."""

    def __init__(self) -> None:
        self.began = self.ended = False

    async def read(self) -> None:
        self.began = True
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.ended = True


async def leave_open(stream: Stream) -> None:
    asyncio.get_running_loop().create_task(stream.read())
    await asyncio.sleep(0)
    assert stream.began


@pytest.fixture
def own_loop(monkeypatch: pytest.MonkeyPatch) -> NetworkLoop:
    """A loop that no other learner of this process uses."""
    monkeypatch.setattr(NetworkLoop, "_shared", None)
    monkeypatch.setattr(NetworkLoop, "_users", 0)
    return NetworkLoop.acquire()


def test_work_that_is_open_ends_before_the_loop_does_without_a_word(
    own_loop: NetworkLoop, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Stream()
    own_loop.run(leave_open(stream), 10.0)
    own_loop.release()
    assert own_loop.loop.is_closed()
    assert stream.ended
    gc.collect()
    assert caplog.messages == []


def test_the_loop_lives_until_the_last_learner_lets_go(own_loop: NetworkLoop) -> None:
    assert NetworkLoop.acquire() is own_loop
    own_loop.release()
    assert own_loop.thread.is_alive()
    own_loop.release()
    assert not own_loop.thread.is_alive()


class PollerCompletionQueue:
    """As gRPC's: it hands out the events of all loops on whichever runs."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def handle_events(self) -> None:
        raise RuntimeError(self.fault)


@pytest.mark.parametrize("fault", ["Event loop is closed", "no such event"])
def test_an_event_of_a_former_loop_is_no_news_but_other_faults_are(
    own_loop: NetworkLoop, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    def misuse() -> None:
        raise RuntimeError(fault)

    own_loop.soon(PollerCompletionQueue(fault).handle_events)
    own_loop.release()
    late = [record for record in caplog.records if record.name == "asyncio"]
    assert len(late) == (fault != "Event loop is closed")
    caplog.clear()
    own_loop = NetworkLoop.acquire()
    own_loop.soon(misuse)
    own_loop.release()
    assert len(caplog.records) == 1


async def many_turns() -> str:
    for _ in range(50):
        await asyncio.sleep(0)
    return "whole"


def test_work_that_was_begun_elsewhere_ends_before_the_loop_does(own_loop: NetworkLoop) -> None:
    """Ctrl-C may end the wait for it, and let go of the loop at once."""
    begun = [own_loop.begin(many_turns()) for _ in range(3)]
    own_loop.release()
    assert [each.result(0.0) for each in begun] == ["whole"] * 3
