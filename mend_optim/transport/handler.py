"""The contract between the transport and the learner.

The transport moves messages; the learner decides what they mean. A learner passes itself to its
`Transport` as the handler, and the transport reports everything that happens on the network through
the methods of `Handler`. The other direction is one method, `Transport.send`.

Threads
    The network loop calls every method, one call at a time. A handler needs no lock against the
    transport; it needs one only against its learner's other threads.

What a handler must never do
    - Block. While a method runs, no learner of this process sends or receives anything, because
      all of them share the loop. Take a mutex that is held for decisions only. Leave tensor work,
      disks and user callbacks to other threads.
    - Raise. The transport would take the exception for a fault of the peer and break its stream.
    - Run the loop, or wait for a coroutine of the transport.

    A handler may call `Transport.send` from within any of its methods. `send` calls no method back
    before it returns.

Order
    - `met(peer)` returns True before the handler hears anything else of that incarnation.
    - `linked(peer, True)` and `linked(peer, False)` alternate, beginning with True.
    - A peer's control messages arrive in the order in which the peer sent them, as long as one
      control stream lasts. A bulky message has a stream of its own, so it may arrive before or
      after any other message.
    - For one offer, `delivered` comes before the seals that answer it.
    - After `Transport.stop` has returned, the transport calls nothing.

What becomes of a message that you send
    Beats, calls and goodbyes are not acknowledged. The transport drops them if there is no control
    stream, and on a slow stream a newer beat replaces an older one. Every offer and every want ends
    in exactly one of four ways:

    - It is answered: by a seal that holds the offer, or by a state or a seal for the want.
    - It is `undelivered`. The transport doesn't try again; the learner decides what to do.
    - A newer message takes its place, and the transport says nothing of the older one. For an
      offer, that is the next offer of the same fragment, whichever peer it goes to. For a want, it
      is the next want for the same fragment that goes to the same peer.
    - The transport stops.

    An offer that is passed on for another learner is not answered: it ends once it is `delivered`.
    The next one of the same learner and fragment that is passed on to the same peer takes its
    place.

Memory
    The transport reads a message's sections piece by piece while it sends them. Don't change their
    bytes until the message has ended in one of these ways. A received message owns its buffers; the
    transport keeps no reference to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mend_optim.protocol.handshake import Hello, Namesake
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Message, Offer
from mend_optim.protocol.seed_lists import Listing
from mend_optim.protocol.sight import Sight
from mend_optim.protocol.transfer_fault import TransferFault
from mend_optim.protocol.unreached import Unreached


class Handler(Protocol):
    """The learner, as its transport sees it. The module's docstring holds the rules."""

    # ── questions of the transport ────────────────────────────────────────────────────────────────

    def hello(self) -> Hello:
        """Return this learner's hello as of now. The transport fills in the address."""

    def sight(self) -> Sight:
        """Return where this learner stands, for somebody that watches. The transport asks at most
        a few times a second, however many watch."""

    def contacts(self) -> Sequence[tuple[PeerId, str]]:
        """Return the peers to dial, each with its address.

        The transport asks with every beat. It dials each contact that has no control stream of the
        transport's own dialling, and gives up an address that is no longer listed.
        """

    def others(self) -> int:
        """Return how many other learners the run has, as far as this one knows: also those that it
        has no link with. The transport asks before it opens a connection for a bulky message."""

    def met(self, id: PeerId, address: str, seed: str) -> bool:
        """Take note that this learner and a peer agreed to train together.

        Args:
            id: The peer.
            address: Where to dial the peer; empty if nobody can dial it.
            seed: The configured address at which the transport reached the peer; empty if the peer
                dialled, or if gossip brought its address.

        Returns:
            False if the peer has a `namesake`, or is a newcomer to a run that is about to end. The
            transport then refuses the peer.
        """

    def namesake(self, id: PeerId) -> Namesake | None:
        """Return the process because of which this one is turned away: it has the same name, and a
        later start. None if there is none.

        The transport tells the peer of it. It also asks for the peers that it has links with.
        """

    def has_lost(self, id: PeerId) -> bool:
        """Return whether a peer was evicted for its silence, and has not been met since. The
        transport then hangs up, so that the two say hello again."""

    def outranked(self, address: str, namesake: Namesake) -> PeerId | None:
        """The learner at `address` turns this one away because of a `namesake`.

        Returns:
            What this learner is called from here on, if it has taken another incarnation. The
            transport then says hello to all peers again.
        """

    # ── links ─────────────────────────────────────────────────────────────────────────────────────

    def linked(self, id: PeerId, up: bool) -> None:
        """The first control stream with a peer opened (`up`), or the last one closed."""

    def heard(self, id: PeerId, fragment: int) -> None:
        """A part of a bulky message of a fragment arrived from a peer, so the peer lives."""

    def refused(self, address: str, reason: str) -> None:
        """This learner and the one at `address` must not train together.

        Either side may have refused. The transport reports each reason once per peer name, and
        again once it has forgotten it.
        """

    def refused_at(self, address: str, reason: str) -> None:
        """This learner dialled `address`, and must not train with the one that answers there.

        A caller may tell any address as its own. So this is not called for callers.
        """

    def unreached(self, address: str, cause: Unreached) -> None:
        """Nobody answered a hello at this seed. The transport tries again, and reports each failed
        attempt."""

    def listed(self, source: str, listing: Listing) -> None:
        """A list of seeds was read, or cannot be read. The transport reports each time."""

    def itself(self, address: str) -> None:
        """The learner at this seed is this learner."""

    def shows(self, address: str) -> None:
        """From here on others should dial this learner there; empty: nowhere."""

    def undialled(self, address: str, reached: Sequence[PeerId]) -> None:
        """Nobody dials this learner at its address, or nobody any more, although it has dialled
        these. The address is shown no more, but for a few beats now and then."""

    def dialled(self, address: str) -> None:
        """Somebody has dialled this learner at its address, after all."""

    # ── messages ──────────────────────────────────────────────────────────────────────────────────

    def receive(self, message: Message) -> None:
        """A whole message arrived.

        The peer that sent the message is the one that the message names. A seal that answers an
        offer of this learner contains that offer's packet again, which the sealer had left out.
        """

    def passed_on(self, offer: Offer, by: PeerId) -> None:
        """A peer passed on a whole offer. The offer names the learner that made it, which is
        another one, and is gone as far as that peer knows."""

    def delivered(self, to: PeerId, message: Message) -> None:
        """The peer has the whole of an offer. If it is this learner's own, its seals are still to
        come."""

    def undelivered(self, to: PeerId, message: Message, fault: TransferFault) -> None:
        """The transport could not deliver a message, or its stream broke before the answer.

        The message is an offer, a want, or a state or seal with which this learner answered a want.
        An offer can be `delivered` first and `undelivered` later.
        """
