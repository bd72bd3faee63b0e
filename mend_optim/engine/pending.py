"""One learner's offer of one fragment, from the snapshot until some anchor has merged it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mend_optim.engine.absence import PRESENT, Absence
from mend_optim.engine.residual_share import NO_SHARE, Share
from mend_optim.protocol.lineage import Claim, PeerId
from mend_optim.protocol.messages import Offer

NEVER = float("inf")


@dataclass(slots=True, kw_only=True)
class Pending:
    """An offer whose work and bytes never change, although its receiver and its number may.

    Only its own methods write its fields, except that `Progress` writes `missed` and `due`."""

    #: The claim on its work. Invariant: `claim.settled < seq`.
    claim: Claim
    #: Its number under `claim.author`. A number stands for one history: see `renumbered`.
    seq: int
    #: The inner step of the snapshot.
    step: int
    #: Tokens trained in it. Invariant: 0 if `steps` is 0.
    tokens: int
    #: Inner steps trained in it; 0 in a flush of nothing but a residual.
    steps: int
    #: The sum of the inner learning rates of its steps: see `Totals`.
    rate: float = 0.0
    #: The rounds that its learner missed while it did this work.
    absence: Absence = PRESENT
    #: The share of its delta that it offers: see `Absence`. Invariant: in [`LEAST_SHARE`, 1].
    share: float = 1.0
    #: Whether it launches a round. Once it has missed a round, it waits to be called.
    due: bool
    #: Whether it was made at rest, and brings the residual of earlier encodings.
    flush: bool = False
    #: The last offer of the same author in our anchor: only an anchor that has it may merge this.
    follows: int = 0
    #: The share that it claims: see `residual_share`.
    again: Share = NO_SHARE
    #: (seq, follows) of the same work on the anchors of other branches, oldest first.
    earlier: tuple[tuple[int, int], ...] = ()
    #: The message, once the worker has encoded Δ. Invariant: not None if anything was sent.
    offer: Offer | None = None
    #: The peer that was sent it last, or nobody.
    sent_to: PeerId | None = None
    #: When it was sent last.
    sent_at: float = 0.0
    #: How long its seal may be on its way, judged by how long the offer took.
    seal_s: float = 0.0
    #: Whether `sent_to` has all of it. Invariant: False while `sent_to` is None.
    delivered: bool = False
    #: When it is sent again unless the sealer is heard of.
    resend_at: float = NEVER
    #: Whether a round went on without it, or the training thread has stopped waiting for it.
    missed: bool = False
    #: Whether it goes to the sealer itself, because a relay has not brought it there.
    direct: bool = False
    #: Whether a seal has something else under one of its numbers. Written by `Accounts` alone.
    forged: bool = False

    @property
    def work(self) -> Share:
        """The (tokens, steps) of its entry in a seal."""
        return self.tokens, self.steps or max(1, self.again[1])

    @property
    def numbers(self) -> dict[int, int]:
        """Every seq that it has had, each with the number of the offer that it followed then."""
        return {**dict(self.earlier), self.seq: self.follows}

    @property
    def is_on_its_way(self) -> bool:
        """Whether it has been sent, and nobody has said yet what became of it."""
        return self.sent_to is not None and not self.delivered and self.resend_at == NEVER

    def encoded(self, offer: Offer) -> None:
        """The worker has encoded Δ."""
        self.offer = offer

    def scaled_to(self, share: float) -> None:
        """Only this share of its delta is offered."""
        self.share = share

    def lost_the_rest(self) -> None:
        """The user has replaced the weights. The part of its delta that it does not offer is in
        them no more."""
        self.share = 1.0

    def sent(self, now: float, to: PeerId | None, *, delivered: bool) -> None:
        """The offer is on its way to `to`; nobody: it waits for a sealer."""
        self.sent_to = to
        self.sent_at = now
        self.delivered = delivered
        self.resend_at = NEVER

    def astray(self) -> None:
        """A relay has it, and the sealer lacks it."""
        self.direct = True

    def arrived(self, resend_at: float) -> None:
        """The sealer has all of it."""
        self.delivered = True
        self.resend_at = resend_at

    def still_coming(self, resend_at: float) -> None:
        """The sealer is alive: its seal may be on its way."""
        self.resend_at = max(self.resend_at, resend_at)

    def lost(self, resend_at: float = NEVER) -> None:
        """It did not arrive, or no seal will come for it down this stream."""
        self.delivered = False
        self.resend_at = resend_at

    def forgotten(self, now: float) -> None:
        """The peer that has it does not keep it: it is sent again at once."""
        self.resend_at = now

    def renumbered(self, seq: int, follows: int) -> None:
        """Our anchor is of another branch, on which the same work follows another offer."""
        self.earlier = (*self.earlier, (self.seq, self.follows))
        self.seq = seq
        self.follows = follows
        self.sent_to = None
        self.delivered = False
        if self.offer:
            self.offer = replace(self.offer, seq=seq, follows=follows, inherited=self.claim)

    def renamed(self, me: PeerId) -> None:
        """Its sender has another incarnation. Its author stays, and so do number and bytes."""
        self.sent_to = None
        self.delivered = False
        if self.offer:
            self.offer = replace(self.offer, peer=me, inherited=self.claim)

    def transplanted(self, genesis: bytes) -> None:
        """Our model has become another one: nobody has the offer as it is now."""
        if self.offer:
            self.offer = replace(self.offer, genesis=genesis)
            self.sent_to = None
            self.delivered = False
