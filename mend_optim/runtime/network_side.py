"""The half of a learner that runs on the network loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress

from mend_optim.engine.effects import Send
from mend_optim.engine.engine import Engine
from mend_optim.protocol.handshake import Hello, Namesake
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Message, Offer
from mend_optim.protocol.seed_lists import Listing
from mend_optim.protocol.sight import Sight
from mend_optim.protocol.transfer_fault import TransferFault
from mend_optim.protocol.unreached import Unreached
from mend_optim.runtime import clock
from mend_optim.runtime.guard import Guard
from mend_optim.runtime.long_wait import LongWait
from mend_optim.runtime.network_loop import CLOSE_S, NetworkLoop
from mend_optim.runtime.seen import sight_of
from mend_optim.runtime.wait_bar import WaitBar
from mend_optim.status import Traffic
from mend_optim.transport.grpc_transport import Transport

START_S = 30.0  # the longest that a transport may take to start listening


class NetworkSide:
    """One learner's transport, outbox and timer. It is the transport's `Handler`.

    Args:
        engine: told of what the transport reports, with the mutex held.
        guard: the mutex around the engine.
        hello: makes this learner's side of a handshake, given its id and its address.
        transport: makes the transport, given its handler.
        dispatch: called with the mutex held, after each call of the engine, to hand out its
            effects.
    """

    def __init__(
        self,
        engine: Engine,
        guard: Guard,
        *,
        hello: Callable[[PeerId, str], Hello],
        transport: Callable[[NetworkSide], Transport],
        dispatch: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._guard = guard
        self._hello = hello
        self._dispatch = dispatch
        self._outbox: deque[Send] = deque()
        self._flushing = False
        self._timer: asyncio.TimerHandle | None = None
        #: The end of the transport, once it has begun.
        self._leaving: Future[None] | None = None
        #: The numbers that the script reported last. The training thread replaces them as a whole.
        self.reported: Mapping[str, float] = {}
        # The transport comes first: in a forked child it raises, and no thread is to start there.
        self.transport = transport(self)
        self.loop = NetworkLoop.acquire()

    def start(self) -> None:
        """Start listening. Raises what the transport raises, and then has released the port and the
        loop."""
        try:
            self.loop.run(self.transport.start(), START_S)
        except BaseException:
            self.leave()
            self.stop()
            self.loop.release()
            raise
        self.flush_soon()

    def leave(self) -> None:
        """Begin to send the goodbyes in the outbox, and then to close all connections."""
        with suppress(RuntimeError):  # the loop is gone, and all of it with the loop
            self._leaving = self.loop.begin(self.transport.stop())

    def stop(self) -> None:
        """Wait until that is done, or takes too long."""
        if self._leaving:
            with suppress(Exception):
                self._leaving.result(CLOSE_S)

    def abandon(self) -> None:
        """In a forked child: never call the loop, whose thread and sockets are the parent's."""
        self._outbox.clear()
        self._flushing = True

    def send(self, send: Send) -> None:
        """Put a message into the outbox; `flush_soon` sends it."""
        assert self._guard.is_held()
        self._outbox.append(send)

    def traffic(self) -> Traffic:
        """What went over the network since the start."""
        here = self.transport
        return Traffic(
            here.bytes_sent, here.bytes_received, here.refusals.counted(), here.secured()
        )

    def unmet(self) -> str | None:
        """The addresses where there is nobody to train with, each with the cause. None if any peer
        has ever been here."""
        with self._guard.mutex:
            state = self._engine.state
            return None if state.roster.had_company else state.seeds.causes(state.seeds.sought())

    def long_wait(self, begin: str, what: Callable[[Engine], str]) -> LongWait:
        """A wait of the training thread that begins now; `what` is called with the mutex held."""
        return LongWait(f"{self._name}: {begin}", self._asker(what), self._bytes_received)

    def wait_bar(self, begin: str, what: Callable[[Engine], str]) -> WaitBar:
        """The same, if the engine writes the lines of the log."""
        return WaitBar(f"{self._name}: {begin}", self._asker(what), self._bytes_received)

    @property
    def _name(self) -> str:
        return self._engine.state.me.name

    def _bytes_received(self) -> int:
        return self.transport.bytes_received

    def _asker(self, what: Callable[[Engine], str]) -> Callable[[], str]:
        def ask() -> str:
            with self._guard.mutex:
                return what(self._engine)

        return ask

    def flush_soon(self) -> None:
        """Let the loop send the outbox and set its timer; once for any number of effects."""
        if not self._flushing:
            self._flushing = True
            self.loop.soon(self._flush)

    def _flush(self) -> None:
        with self._guard.mutex:
            self._flushing = False
            outbox, self._outbox = self._outbox, deque()
            wake_at = self._engine.wake_at()
        for send in outbox:
            self.transport.send(send.to, send.message, send.reply)
        if self._timer:
            self._timer.cancel()
        if not self._guard.over:
            delay_s = max(0.0, wake_at - clock.now())
            self._timer = self.loop.later(delay_s, self._tick)

    def _tick(self) -> None:
        with self._guard.mutex:
            self._engine.tick(clock.now())
            self._dispatch()

    # ── the transport's handler ───────────────────────────────────────────────────────────────────

    def hello(self) -> Hello:
        roster = self._engine.state.roster
        return self._hello(roster.me, roster.address)

    def met(self, id: PeerId, address: str, seed: str) -> bool:
        with self._guard.mutex:
            is_current = self._engine.met(clock.now(), id, address, seed)
            self._dispatch()
            return is_current

    def namesake(self, id: PeerId) -> Namesake | None:
        with self._guard.mutex:
            return self._engine.state.roster.namesake(id)

    def has_lost(self, id: PeerId) -> bool:
        with self._guard.mutex:
            return self._engine.state.roster.has_lost(id)

    def outranked(self, address: str, namesake: Namesake) -> PeerId | None:
        with self._guard.mutex:
            is_renewed = self._engine.outranked(clock.now(), address, namesake)
            self._dispatch()
            return self._engine.state.me if is_renewed else None

    def linked(self, id: PeerId, up: bool) -> None:
        with self._guard.mutex:
            self._engine.linked(clock.now(), id, up)
            self._dispatch()

    def heard(self, id: PeerId, fragment: int) -> None:
        with self._guard.mutex:
            self._engine.heard(clock.now(), id, fragment)

    def refused(self, address: str, reason: str) -> None:
        with self._guard.mutex:
            self._engine.refused(clock.now(), address, reason)
            self._dispatch()

    def refused_at(self, address: str, reason: str) -> None:
        with self._guard.mutex:
            self._engine.refused_at(clock.now(), address, reason)
            self._dispatch()

    def unreached(self, address: str, cause: Unreached) -> None:
        with self._guard.mutex:
            self._engine.unreached(clock.now(), address, cause)
            self._dispatch()

    def listed(self, source: str, listing: Listing) -> None:
        with self._guard.mutex:
            self._engine.listed(clock.now(), source, listing)
            self._dispatch()

    def itself(self, address: str) -> None:
        with self._guard.mutex:
            self._engine.itself(address)

    def shows(self, address: str) -> None:
        with self._guard.mutex:
            self._engine.state.roster.address = address

    def undialled(self, address: str, reached: Sequence[PeerId]) -> None:
        with self._guard.mutex:
            self._engine.presence.undialled(address, reached)
            self._dispatch()

    def dialled(self, address: str) -> None:
        with self._guard.mutex:
            self._engine.presence.dialled(address)
            self._dispatch()

    def receive(self, message: Message) -> None:
        with self._guard.mutex:
            self._engine.receive(clock.now(), message)
            self._dispatch()

    def passed_on(self, offer: Offer, by: PeerId) -> None:
        with self._guard.mutex:
            self._engine.passed_on(clock.now(), offer, by)
            self._dispatch()

    def delivered(self, to: PeerId, message: Message) -> None:
        with self._guard.mutex:
            self._engine.delivered(clock.now(), to, message)
            self._dispatch()

    def undelivered(self, to: PeerId, message: Message, fault: TransferFault) -> None:
        with self._guard.mutex:
            self._engine.undelivered(clock.now(), to, message, fault)
            self._dispatch()

    def sight(self) -> Sight:
        # A hello describes the whole model: it is not made while the mutex is held.
        codec = dict(self.hello().policy).get("codec", "")
        with self._guard.mutex:
            return sight_of(self._engine, clock.now(), self.traffic(), codec, self.reported)

    def others(self) -> int:
        with self._guard.mutex:
            return self._engine.state.roster.size - 1

    def contacts(self) -> Sequence[tuple[PeerId, str]]:
        with self._guard.mutex:
            peers = self._engine.state.roster.peers.values()
            return [(peer.id, peer.address) for peer in peers if peer.address]
