"""The checks of a seal that every learner makes before it takes the outer step. The sealer makes
them before it merges. They depend on the seal, on its base and on the settings that all share. So
all learners come to the same result.

    rule                                        without it, a seal could
    ──────────────────────────────────────────  ──────────────────────────────────────────────────
    at most `limits.learners` members           cost more than any round
    no work twice, and none merged before       merge work twice
    no new authors where there is no room       make an anchor that no message can hold
    shares only where residuals are merged      weigh a member by work that it does not bring
    weights follow from members and shares      weigh members as its sealer likes
    nobody's tokens per step beyond `SPREAD`    let one member's word outweigh all others
    nobody's tokens beyond `MOST_TOKENS`        use up the tokens that an anchor can count

Machines differ: one learner may take a batch a few hundred times as large as another's. So `SPREAD`
is wide, and it bounds only large rates: a small one weighs little by itself. The median of two
rates is their mean, and neither is beyond it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from statistics import median

from mend_optim.engine.policies import Policies, weights
from mend_optim.engine.residual_share import entries_by
from mend_optim.protocol.lineage import Entry, Lineage, PeerId
from mend_optim.protocol.messages import Offer, Seal
from mend_optim.protocol.peer_limits import COUNTER_LIMIT

#: A member's tokens per step are at most so many times the median of the members'.
SPREAD = 1000
#: A member has at most so many tokens. No learner trains as many between two rounds, and as many
#: rounds as it takes to reach `COUNTER_LIMIT` with them are more than any run has.
MOST_TOKENS = 1 << 40
LARGER_UNIT = "count in a larger unit, because rounds refuse an offer of more tokens"


def flaw_of(seal: Seal, base: Lineage, policies: Policies, is_buffers: bool) -> str:
    """Why a seal on `base` is refused; empty if it is not.

    Args:
        seal: the seal.
        base: the lineage of the anchor that it is merged on.
        policies: this learner's settings.
        is_buffers: whether it is a seal of the fragment of buffers.
    """
    members = seal.members
    entries = entries_by(members, seal.shares)
    if len(members) > policies.limits.learners:
        return f"it has {len(members)} members, and limits.learners is {policies.limits.learners}"
    if _repeats(members) or any(e.steps and e.seq <= base.last_merged(e.peer) for e in members):
        return "it merges work twice"
    if not all(base.has_room_for(entry.peer) for entry in members if entry.seq):
        return "it has new members, and the anchor has work of as many as a message can list"
    if seal.shares and not (policies.residual_in_weights or is_buffers):
        return "it weighs members by residuals, and encodings leave none"
    if seal.weights != tuple(weights(policies.weighting, entries)):
        return "its weights do not follow from the work of its members"
    beyond = outlier(members, entries)
    return "" if beyond is None else f"{members[beyond].peer.name} has {told(entries[beyond])}"


def _repeats(members: Sequence[Entry]) -> bool:
    """Whether an author's work is in a seal twice. One more entry of the author may be empty: that
    of its own process, if another one has offered the work."""
    stepped = [entry.peer for entry in members if entry.steps]
    idle = [entry.peer for entry in members if not entry.steps]
    return len(set(stepped)) < len(stepped) or len(set(idle)) < len(idle)


def outlier(members: Sequence[Entry], entries: Sequence[Entry]) -> int | None:
    """The index of the member with the most tokens, if those are beyond `MOST_TOKENS`, or with the
    most tokens per step, if those are beyond `SPREAD`; else None. `entries` are the members as they
    are weighed."""
    for listed in (members, entries):
        tokens = [entry.tokens for entry in listed]
        if tokens and max(tokens) > MOST_TOKENS:
            return tokens.index(max(tokens))
        rates = {i: e.tokens / e.steps for i, e in enumerate(listed) if e.tokens and e.steps}
        if rates:
            most = max(rates, key=lambda i: rates[i])
            if rates[most] > SPREAD * median(rates.values()):
                return most
    return None


def to_leave_out(
    members: Sequence[Entry],
    entries: Sequence[Entry],
    orphans: Collection[int],
    own: Entry | None = None,
) -> int | None:
    """The index of the offer without which a sealer merges the others; None: no seal of all of them
    has an `outlier`.

    The offers that came from their senders are compared with each other. Those that others passed
    on, the `orphans`, must not make one of them an outlier: any learner can pass on what it has
    made up.

    Args:
        members: the offers' entries.
        entries: the same, as they are weighed.
        orphans: the indices of those whose word does not count.
        own: the work of the sealer itself. It is compared beside any offer that has it: where two
            senders disagree, somebody has to say which of them is alone.
    """
    beyond = outlier(members, entries)
    present = [i for i in range(len(members)) if i not in orphans]
    if beyond is None or beyond in orphans or len(present) == len(members):
        return beyond
    beside = [own] if own else []
    among = outlier(
        [*(members[i] for i in present), *beside], [*(entries[i] for i in present), *beside]
    )
    if among is not None and among < len(present):
        return present[among]
    return min(orphans, key=lambda i: entries[i].tokens / max(1, entries[i].steps))


def to_refuse(
    base: Lineage, offers: Sequence[Offer], entries: Sequence[Entry], own: Entry | None
) -> tuple[Offer, str] | None:
    """The offer without which a sealer merges the others on `base`, and why: the one to leave out,
    or the one with the most tokens, where the anchor cannot count all of them."""
    beyond = to_leave_out([offer.entry for offer in offers], entries, _orphans(offers), own)
    if beyond is not None:
        return offers[beyond], told(entries[beyond])
    if base.tokens + sum(offer.tokens for offer in offers) <= COUNTER_LIMIT:
        return None
    most = max(offers, key=lambda offer: offer.tokens)
    return most, f"with its {most.tokens} tokens, the anchor would have too many"


def way_of(offer: Offer) -> str:
    """The end of a sentence about an offer: whether another learner has passed it on."""
    return f"; {offer.passed_by.name} has passed it on" if offer.passed_by else ""


def _orphans(offers: Sequence[Offer]) -> set[int]:
    """The indices of offers whose word does not count: those that others passed on, and those of a
    process that a later one of its name has followed. A learner can start as often as it likes."""
    newest: dict[str, PeerId] = {}
    for offer in offers:
        name = offer.peer.name
        newest[name] = max(newest.get(name, offer.peer), offer.peer)
    stepped = ((i, offer) for i, offer in enumerate(offers) if offer.steps)
    return {
        i
        for i, offer in stepped
        if offer.passed_by is not None or offer.peer != newest[offer.peer.name]
    }


def told(entry: Entry) -> str:
    """The tokens or the rate of a member that are beyond the bounds, in words."""
    if entry.tokens > MOST_TOKENS:
        return f"{entry.tokens} tokens; the limit is {MOST_TOKENS}; count them in a larger unit"
    return (
        f"{entry.tokens} tokens in {entry.steps} steps, over {SPREAD} times the rate of the others;"
        " count tokens alike everywhere"
    )
