"""The peers that agreed to train with this learner, and the control streams with them.

    stranger ──hello, both agree──▶ link ──first stream opens──▶ linked ──last one closes──▶ link
       ▲                             │
       └── a newer incarnation is known, or no stream is open for long

Only a peer with a link may open streams. Either side may dial, or both: a message goes out on the
newest stream there is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace

from mend_optim.errors import PeerError
from mend_optim.protocol.handshake import AT_ITS_END, Hello, Life, refusal
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Beat, Control, Goodbye, Offer, Rumor, Seal, State
from mend_optim.protocol.refusals import Refusals
from mend_optim.transport.address import seen_from
from mend_optim.transport.background_log import BackgroundLog
from mend_optim.transport.frames import check_sender
from mend_optim.transport.goodbyes import Goodbyes
from mend_optim.transport.handler import Handler
from mend_optim.transport.link import Link, Outbox
from mend_optim.transport.stream import RpcFailed, Stream
from mend_optim.transport.transfers import Transfers
from mend_optim.transport.wire import decode_control, encode_control

log = BackgroundLog("mend_optim.transport")

#: Seconds that a side that ends a control stream waits until the other has read all of it.
LINGER_S = 2.0
#: Refusals remembered, so that each is reported once: the last ones of all, and of one name. One
#: that was forgotten is reported again.
REASONS = 1000
REASONS_OF_ONE = 8
#: How a refused hello is counted. Its sender has chosen its name, and many words of the reason.
HELLO = "hello refused: the event `refused` says why"


class Links:
    """All links of one learner, by incarnation."""

    def __init__(self, handler: Handler, transfers: Transfers, goodbyes: Goodbyes) -> None:
        self._handler = handler
        self._transfers = transfers
        self._goodbyes = goodbyes
        #: At most one incarnation of each name, the greatest that agreed.
        self._links: dict[PeerId, Link] = {}
        #: (peer name, reason) of the last refusals that the handler was told, the oldest first.
        self._reported: dict[tuple[str, str], None] = {}
        #: What was refused of them and of strangers.
        self.refusals = Refusals()
        #: This learner, which the streams of its dialling name as their caller. Set by
        #: `Transport.start`, and whenever the learner takes another incarnation.
        self.me: PeerId | None = None
        #: The learner is leaving: it accepts no hello and no stream, and dials nobody any more.
        #: Only `Transport.stop` sets this.
        self.closing = False
        #: Called with each beat, once the handler has taken it.
        self.after_beat: Callable[[Beat], None] = lambda beat: None

    def __iter__(self) -> Iterator[Link]:
        return iter(list(self._links.values()))

    def __len__(self) -> int:
        return len(self._links)

    def get(self, id: PeerId) -> Link | None:
        """Return the link with exactly this incarnation."""
        return self._links.get(id)

    def _is_present(self, link: Link) -> bool:
        """Whether the peer has not been dismissed."""
        return self._links.get(link.id) is link

    def _has(self, name: str) -> bool:
        """Whether a learner of this name has a control stream with this one."""
        return any(link.id.name == name and link.streams for link in self)

    # ── agreeing ──────────────────────────────────────────────────────────────────────────────────

    def agree(self, mine: Hello, theirs: Hello, address: str, seed: str = "") -> str:
        """Compare two hellos.

        Args:
            mine: This learner's hello.
            theirs: The peer's hello, or its answer to this learner's.
            address: Where to dial the peer; empty if nobody can.
            seed: The configured address at which the peer was reached, if that is how.

        Returns:
            Why the two must not train together. Empty if they may; then the handler has met the
            peer.
        """
        reason = refusal(mine, theirs)
        if not reason and theirs.namesake:
            name = theirs.peer.name
            renewed = self._handler.outranked(seed or address or name, theirs.namesake)
            if renewed:
                self._rename(renewed)
            return theirs.refusal or theirs.namesake.reason(mine.peer)
        reason = reason or theirs.refusal
        is_told = bool(reason)
        if not reason and not self._handler.met(theirs.peer, address, seed):
            namesake = self._handler.namesake(theirs.peer)
            reason = namesake.reason(theirs.peer) if namesake else AT_ITS_END
            # The others settle themselves.
            is_told = namesake is None or namesake.life is Life.ALIVE
        if is_told and theirs.only_asks:
            # What it has not is its own finding, and nothing that the user here can mend.
            log.debug("refused %s, which only asks: %s", theirs.peer, reason)
        elif is_told:
            self.refusals.add("", HELLO)
            self._report(theirs.peer, seed or address, reason)
            if seed:
                self._handler.refused_at(seed, reason)
        return reason

    def answer(self, mine: Hello, theirs: Hello, reason: str) -> Hello:
        """Return this learner's hello to a peer that it refuses for this reason. It says no more of
        this learner than that."""
        namesake = self._handler.namesake(theirs.peer)
        told = refusal(theirs, mine) or reason
        return replace(mine, model=(), policy=(), refusal=told, namesake=namesake)

    def _rename(self, me: PeerId) -> None:
        """This learner has another incarnation. Its streams name the former one as their caller, so
        end them all. Each side then dials, and says hello, again."""
        self.me = me
        for link in self:
            self._hang_up(link)

    def _report(self, peer: PeerId, address: str, reason: str) -> None:
        """Tell the handler of a refusal, once: the two will try again and again."""
        refused = (peer.name, reason)
        if refused in self._reported:
            return
        # A peer that makes up ever more reasons takes only its own place.
        of_one = [known for known in self._reported if known[0] == peer.name]
        if len(of_one) >= REASONS_OF_ONE:
            del self._reported[of_one[0]]
        elif len(self._reported) >= REASONS:
            del self._reported[next(iter(self._reported))]
        self._reported[refused] = None
        self._handler.refused(address or peer.name, reason)

    def admit(
        self, id: PeerId, address: str, host: str, *, dialled: bool = False, seed: str = ""
    ) -> Link:
        """Let a peer open streams from now on, and its past incarnations no more.

        Args:
            id: The peer.
            address: Where to dial it; empty if nobody can.
            host: Where its connections come from, or where it was dialled.
            dialled: Whether this learner reached it at `address`.
            seed: The configured seed that has this address, if that is how.
        """
        link = self._links.get(id) or Link(id)
        for past in self:
            if past.id.name == id.name and past is not link:
                # A new incarnation would else begin with a new burst, as often as it likes.
                link.inflow = past.inflow
                self.dismiss(past)
        self._links[id] = link
        if not dialled:
            link.called(host)
        # the address at which this learner reached a peer is better than the one the peer tells
        if dialled or not link.dialled:
            link.reach(address, host)
            link.dialled = dialled
            link.seed = seed
        link.down_since = asyncio.get_running_loop().time()
        return link

    def dismiss(self, link: Link) -> None:
        """Make the peer a stranger again. Its streams may take a while to end, and the peer may be
        back with new ones before."""
        self._links.pop(link.id, None)
        self._hang_up(link)
        if link.streams:
            self._handler.linked(link.id, False)

    def expel(self, link: Link, reason: str) -> None:
        """Dismiss a peer that may take part no more, and tell the handler why."""
        self._report(link.id, link.address, reason)
        if link.dialled:
            self._handler.refused_at(link.seed or link.address, reason)
        self.dismiss(link)

    def _hang_up(self, link: Link) -> None:
        self._drop(link)
        for outbox in link.streams:
            outbox.close()
        link.close_lanes()

    def tidy(self, patience_s: float) -> None:
        """Dismiss the peers without a control stream for `patience_s`. A transfer under way has its
        own patience, so its peer stays.

        A peer that is outranked by now goes at once, so that its next hello is told why. So does
        one that was evicted for its silence. If each of two has evicted the other, no beat would
        come any more on a stream that still stands: they have to say hello again."""
        now = asyncio.get_running_loop().time()
        for link in self:
            namesake = self._handler.namesake(link.id)
            is_past = namesake is not None and namesake.id != link.id
            is_still = not link.streams and not link.busy
            is_past = is_past or self._handler.has_lost(link.id)
            if is_past or (is_still and now - link.down_since > patience_s):
                self.dismiss(link)

    def _drop(self, link: Link) -> None:
        """End our transfers with the peer and its open requests: it is gone, or says so."""
        self._transfers.drop(link)
        for kind, fragment in list(link.requests):
            link.close_request(kind, fragment)

    # ── control streams ───────────────────────────────────────────────────────────────────────────

    async def converse(self, link: Link, stream: Stream, linger: bool = False) -> None:
        """Run a control stream until either side ends it.

        Args:
            link: The peer at the other end.
            stream: The stream.
            linger: Whether to wait at the end until the peer has read everything. The side that
                dialled must, because leaving breaks the stream. After a goodbye either side does:
                a connection that breaks takes along what the peer has not read yet, and the last
                beat of a learner that leaves may come after its goodbye, on another stream.
        """
        if not self._is_present(link):
            return  # the peer was dismissed while the stream opened
        outbox = Outbox()
        link.streams.append(outbox)
        if len(link.streams) == 1:
            self._handler.linked(link.id, True)
        listening = asyncio.get_running_loop().create_task(self._listen(link, stream, outbox))
        try:
            while (message := await outbox.get()) is not None:
                assert not isinstance(message, (Offer, Seal, State))
                await stream.write(encode_control(message))
                linger = linger or isinstance(message, Goodbye)
            await stream.finish()
            if linger or link.has_left:
                await asyncio.wait({listening}, timeout=LINGER_S)
        except PeerError:
            # A goodbye may have come before the peer ended the stream.
            await asyncio.wait({listening}, timeout=LINGER_S)
            raise
        finally:
            listening.cancel()
            link.streams.remove(outbox)
            outbox.finished.set()
            if not link.streams and self._is_present(link):
                link.down_since = asyncio.get_running_loop().time()
                self._handler.linked(link.id, False)

    async def _listen(self, link: Link, stream: Stream, outbox: Outbox) -> None:
        """Take what the peer sends until the stream ends, then end this side of it."""
        try:
            while (data := await stream.read(patient=True)) is not None:
                await link.inflow.take(len(data))
                message = decode_control(data)
                if isinstance(message, Beat):
                    await link.inflow.take_entries(message.entries)
                self._take(link, message)
        except PeerError as fault:
            # A peer that died is suspected, and nothing of it was refused.
            if not (isinstance(fault, RpcFailed) and fault.is_broken_link):
                self.refusals.add(link.id.name, str(fault))
            log.debug("control stream of %s: %s", link.id, fault)
        finally:
            outbox.close()

    def _take(self, link: Link, message: Control) -> None:
        check_sender(message, link.id)
        if isinstance(message, Beat):
            message = _as_seen_here(self._goodbyes.told(message, self._has), link.host)
            if not message.address and not link.dialled:
                link.withdraw()
        elif isinstance(message, Goodbye):
            message = self._goodbyes.proven(message)
        self._handler.receive(message)
        if isinstance(message, Beat):
            self.after_beat(message)
        if isinstance(message, Goodbye):
            # The peer waits for this side's end of the streams.
            link.has_left = True
            self._hang_up(link)


def _as_seen_here(beat: Beat, host: str) -> Beat:
    """Return the beat with all addresses as this learner must dial them; `host` is the sender's."""
    roster = tuple(_with_address(rumor, seen_from(rumor.address, host)) for rumor in beat.roster)
    return replace(beat, address=seen_from(beat.address, host), roster=roster)


def _with_address(rumor: Rumor, address: str) -> Rumor:
    """Return the rumor with this address. A copy costs more than to look at it."""
    return rumor if rumor.address == address else replace(rumor, address=address)
