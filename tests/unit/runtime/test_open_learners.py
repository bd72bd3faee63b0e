"""Who holds a port of this process, as a new learner finds it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from mend_optim.errors import UsageError
from mend_optim.protocol.lineage import PeerId
from mend_optim.runtime import open_learners
from mend_optim.runtime.guard import Guard
from mend_optim.runtime.open_learners import making_room

EARLIER = PeerId("earlier", 1)
HERE = "127.0.0.1:5000"
TAKEN = UsageError("the port is taken")


@dataclass(eq=False)
class Fake:
    """A learner whose end is under way on another thread, if it is dropped."""

    port: int
    dropped: bool
    me: PeerId = EARLIER
    calls: list[str] = field(default_factory=list)
    guard: Guard = field(default_factory=Guard)
    closer: int | None = None

    def close(self, *, asked: bool = True) -> None:
        self.calls.append("close" if asked else "close unasked")
        self.closer = self.closer or threading.get_ident()

    def await_end(self) -> None:
        self.calls.append("await_end")
        open_learners.discard(self)


@pytest.fixture
def earlier(request: pytest.FixtureRequest) -> Iterator[Fake]:
    fake = Fake(*request.param)
    open_learners.add(fake)
    yield fake
    open_learners.discard(fake)


@pytest.mark.parametrize("earlier", [(5000, True)], indirect=True)
def test_a_dropped_learner_has_ended_before_its_port_is_taken(earlier: Fake) -> None:
    with making_room(HERE):
        assert earlier.calls == ["close unasked", "await_end"]


@pytest.mark.parametrize("earlier", [(5000, False)], indirect=True)
def test_a_learner_that_another_thread_closes_has_ended_before(earlier: Fake) -> None:
    earlier.closer = 1
    with making_room(HERE):
        assert earlier.calls == ["await_end"]


@pytest.mark.parametrize("earlier", [(5000, False)], indirect=True)
def test_an_open_learner_is_not_disturbed(earlier: Fake) -> None:
    with pytest.raises(UsageError, match="'earlier' of this process"), making_room(HERE):
        raise TAKEN
    assert earlier.calls == []


@pytest.mark.parametrize("earlier", [(5001, True), (0, True)], indirect=True)
@pytest.mark.parametrize("listen", [HERE, "127.0.0.1:0", None])
def test_a_learner_on_another_port_is_in_nobodys_way(earlier: Fake, listen: str | None) -> None:
    with pytest.raises(UsageError) as error, making_room(listen):
        raise TAKEN
    assert error.value is TAKEN
    assert earlier.calls == []


@pytest.mark.parametrize("earlier", [(5000, False)], indirect=True)
@pytest.mark.parametrize("fault", [None, KeyboardInterrupt])
def test_the_exit_of_the_interpreter_is_not_the_scripts_word(
    earlier: Fake, fault: type | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception that has ended the script says enough. A learner may be closing already, and has
    to say its last words, too."""
    monkeypatch.delattr(sys, "last_type", raising=False)
    if fault:
        monkeypatch.setattr(sys, "last_type", fault, raising=False)
    open_learners._close_at_exit()
    assert earlier.calls == ["close" if fault else "close unasked", "await_end"]


@pytest.fixture
def busy() -> Iterator[None]:
    """Other threads come and go at any moment."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("busy")
def test_learners_may_start_and_end_on_other_threads_meanwhile() -> None:
    over = threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            fake = Fake(5001, dropped=False)
            open_learners.add(fake)
            open_learners.discard(fake)

    staying = [Fake(5002, dropped=False) for _ in range(50)]
    for fake in staying:
        open_learners.add(fake)
    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        for _ in range(10_000):
            with making_room(HERE):
                pass
    finally:
        over.set()
        other.join()
        for fake in staying:
            open_learners.discard(fake)
