"""Lies of an insider in joint offers: the offers of others that it puts beside its own.

Their bytes are honest in one way: the work of an honest learner is in the delta as often as the
offer tells of it, under the number that its author gave it. Whoever has that work could offer it as
its own, and nothing can prevent that (docs/security.md). Without "names" among the lies, the offers
of others are those that their authors made, and only their choice is false."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from mend_optim.engine.joint_offers import may_join
from mend_optim.protocol.lineage import Key, PeerId
from mend_optim.protocol.messages import Offer
from tests.virtual.units import Section, Vector, add

if TYPE_CHECKING:
    from tests.virtual.insider import Insider

Member = tuple[Offer, Section]


def lie_in_joint_offers(insider: Insider) -> None:
    """A joint offer of its own and of others that it chooses."""
    p = insider.fragment()
    last = insider.lineage(p).last_merged(insider.me)
    sealer = insider.engine.state.roster.sealer(p)
    for to in [sealer] if sealer in insider.peers else insider.some():
        own = _offer_of(insider, insider.me, p, to)
        own = replace(own, seq=insider.random.choice([last + 1, insider.count(last + 1)]))
        _send(insider, to, own, insider.work_of_nobody(), _members(insider, p, to))


def withheld(insider: Insider, offer: Offer) -> Offer:
    """A joint offer of its engine, without some of those that are in it, and without their work."""
    parts = {o.peer: o for o in insider.received if o.fragment == offer.fragment and may_join(o)}
    delta: Vector = offer.sections["delta"]  # type: ignore[assignment]
    others = []
    for other in offer.others:
        part = parts.get(other.peer)
        if part is None or part.seq != other.seq or insider.random.random() < 0.5:
            others.append(other)
        else:
            delta = add(delta, _delta(part), -1)
            insider.cluster.seen["joint lie: withheld"] += 1
    return _joint(insider, offer, Section(delta), others)


def _members(insider: Insider, p: int, to: PeerId) -> list[Member]:
    """Some offers of others, mostly of one kind."""
    kinds = {**HONEST, **FORGED} if "names" in insider.cluster.lies else HONEST
    members: list[Member] = []
    for _ in range(insider.random.choice([1, 1, 1, 2])):
        drawn = insider.random.sample(sorted(kinds), len(kinds))
        # The receiver refuses the obvious ones at once.
        drawn.sort(key=lambda kind: kind in OBVIOUS and insider.random.random() < 0.9)
        for kind in drawn:
            found = kinds[kind](insider, p, to)
            if found:
                insider.cluster.seen[f"joint lie: {kind}"] += 1
                members += found
                break
    return members


def _send(insider: Insider, to: PeerId, own: Offer, delta: Vector, members: list[Member]) -> None:
    for _, part in members:
        delta = add(delta, part)
    insider.tell(to, _joint(insider, own, Section(delta), [offer for offer, _ in members]))


def _joint(insider: Insider, own: Offer, delta: Section, others: list[Offer]) -> Offer:
    """With "size" among its lies, it says of some members that their work is of ruined weights."""
    lies = "size" in insider.cluster.lies
    if others:
        told = [lies and insider.random.random() < 0.3 for _ in range(1 + len(others))]
        delta.outsized = told
    delta.lied = True
    bare = tuple(replace(other, sections={}) for other in others)
    return replace(own, others=bare, sections={"delta": delta})  # type: ignore[dict-item]


def _delta(offer: Offer) -> Section:
    return offer.sections.get("delta", Section())  # type: ignore[return-value]


def _offer_of(insider: Insider, peer: PeerId, p: int, to: PeerId) -> Offer:
    """An offer as that peer might make it next."""
    last = insider.lineage(p).last_merged(peer)
    return Offer(
        peer=peer,
        fragment=p,
        seq=last + 1,
        tokens=4,
        steps=4,
        genesis=insider.engine.state.genesis,
        key=insider.lineage(p).key,
        due=insider.random.random() < 0.5,
        follows=last,
    )


# offers as their authors made them


def _held(insider: Insider, p: int, to: PeerId) -> list[Member]:
    """Those that came to it and are still to be merged, of neighbours and of others."""
    lineage = insider.lineage(p)
    came = {o.peer: o for o in insider.received if o.fragment == p and may_join(o)}
    held = [o for _, o in sorted(came.items()) if o.follows == lineage.last_merged(o.peer)]
    some = insider.random.sample(held, min(len(held), insider.random.choice([1, 2, 3])))
    return [(offer, _delta(offer)) for offer in some]


def _stale(insider: Insider, p: int, to: PeerId) -> list[Member]:
    """One that came earlier: it may be merged, or given up."""
    came = [o for o in insider.received if o.fragment == p and may_join(o)]
    return [(o, _delta(o)) for o in insider.random.sample(came, min(len(came), 1))]


def _the_receivers(insider: Insider, p: int, to: PeerId) -> list[Member]:
    """The receiver's own one."""
    came = [o for o in insider.received if o.fragment == p and o.peer == to and may_join(o)]
    return [(offer, _delta(offer)) for offer in came[-1:]]


def _empty(insider: Insider, p: int, to: PeerId) -> list[Member]:
    """One of nothing, which only its author may send."""
    nothing = replace(_offer_of(insider, insider.anybody(), p, to), seq=0, tokens=0, steps=0)
    return [(replace(nothing, follows=0), Section())]


def _twice(insider: Insider, p: int, to: PeerId) -> list[Member]:
    """One that it holds, and again that one, perhaps of another process of its author."""
    members = _held(insider, p, to)[:1]
    again = [
        (replace(o, peer=insider.random.choice([o.peer, insider.next_of(o.peer)])), Section())
        for o, _ in members
    ]
    return members + again


# offers that nobody made


def _forged(insider: Insider, author: PeerId, offer: Offer) -> list[Member]:
    insider.cluster.impersonates(author)
    return [(offer, insider.work_of_nobody())]


def _unheld(insider: Insider, p: int, to: PeerId) -> list[Member]:
    """One of a neighbour, or of anybody, as it might come."""
    zone = insider.cluster.zones
    near = [peer for peer in insider.peers if zone.get(peer.name) == zone.get(insider.name)]
    others = [peer for peer in near if peer != to]
    author = insider.random.choice([*others, *others, insider.anybody()])
    offer = _offer_of(insider, author, p, to)
    return _forged(insider, author, replace(offer, seq=insider.count(offer.seq, offer.seq)))


def _wrong(insider: Insider, p: int, to: PeerId) -> list[Member]:
    """One that it holds, with something else in some of its fields, and with other work."""
    members = _held(insider, p, to)[:1]
    return [
        forged
        for offer, _ in members
        for forged in _forged(insider, offer.peer, _other_fields(insider, offer))
    ]


def _wrong_tokens(insider: Insider, p: int, to: PeerId) -> list[Member]:
    """One that it holds, weighed by other tokens or steps."""
    members = _held(insider, p, to)[:1]
    for offer, _ in members:
        insider.cluster.impersonates(offer.peer)
    return [
        (
            replace(
                o, tokens=insider.count(o.tokens, 900 * o.tokens), steps=insider.count(o.steps)
            ),
            d,
        )
        for o, d in members
    ]


def _for_the_receiver(insider: Insider, p: int, to: PeerId) -> list[Member]:
    """One in the name of the receiver."""
    return _forged(insider, to, _offer_of(insider, to, p, to))


def _other_fields(insider: Insider, offer: Offer) -> Offer:
    other = insider.other_offer(offer)
    # Offers in another one have no work of third ones, and none under the number of real work.
    return replace(other, key=Key(0, 0, b""), seq=max(other.seq, offer.seq + 1))


Kind = Callable[["Insider", int, PeerId], list[Member]]
HONEST: dict[str, Kind] = {
    "held": _held,
    "stale": _stale,
    "the receiver's": _the_receivers,
    "empty": _empty,
    "twice": _twice,
}
FORGED: dict[str, Kind] = {
    "unheld": _unheld,
    "wrong": _wrong,
    "wrong tokens": _wrong_tokens,
    "for the receiver": _for_the_receiver,
}
OBVIOUS = ("the receiver's", "empty", "twice", "for the receiver")
