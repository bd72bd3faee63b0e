"""The identity of an anchor: where it comes from, and which of two anchors wins.

An anchor is the global parameters of one fragment. Its lineage is

    (tokens, version, digest) + genesis + merged {peer: last merged sequence number}

tokens   how much training is in the anchor
version  how many seals and foundings led to it
digest   a chain, digest' = H(digest, payload, members), so equal digests mean equal histories
genesis  a digest of the first weights, whose first bit says whether an optimizer had trained them:
         see `first_genesis`. Anchors of different genesis are different models. After a rollback
         it is another one, which tells whose rollback that was: see `Rollback`
merged   which offers are in the anchor

Two rules of the protocol live here:

- *The greater anchor wins.* Lineages of one genesis are totally ordered by (tokens, version,
  digest). A learner that meets a greater one adopts it. This one rule serves the late joiner, the
  restarted process, the missed seal, and the partition that heals. First weights have 0 tokens, so
  they never overwrite a trained anchor.
- *Every offer is merged at most once.* An offer claims its author's work after a certain sequence
  number. An anchor admits the offer only if `merged` shows that none of that work is in it.

A learner that restarts is another author. So that `merged` does not grow for ever, an anchor
remembers the newest `PROCESSES` processes of each name. All work of older ones counts as merged:
an offer of it, from a checkpoint as old as that, is refused, and its sender drops the work.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

#: Length of every digest.
DIGEST_BYTES = 16
#: The bit in the first byte of a genesis that says that its weights were trained before.
_TRAINED = 0x80
#: Length of the number of rollbacks in a genesis.
ROLLBACK_BYTES = 4
#: The most rollbacks of one run.
MOST_ROLLBACKS = 2 ** (8 * ROLLBACK_BYTES) - 1
#: Incarnations are below this, so that there is room beyond each. Clocks reach it in 2116.
INCARNATIONS = 1 << 62
#: Incarnations are nanoseconds of a clock, and clocks may differ by so much. Hearsay of a process
#: that started later than that is not believed: it would lock the real one out by a number that
#: nobody reaches.
CLOCKS_DIFFER_NS = 24 * 3600 * 10**9
#: Processes of one name that an anchor remembers.
PROCESSES = 16
#: An anchor with so many authors, or so many bytes of them, takes work of no new one: the header of
#: a message has room for it, and for what one more round brings.
MOST_AUTHORS = 50_000
MOST_AUTHOR_NBYTES = 5 << 19
#: A name has at most 256 bytes, so fewer authors are never too many bytes.
FEW_AUTHORS = 9_000
#: Bytes of an author beside its name.
AUTHOR_NBYTES = 32
#: Stands for the number of the last offer of a process that an anchor has forgotten: no offer has a
#: greater one.
FORGOTTEN = 1 << 62


class PeerId(NamedTuple):
    """One process of one learner. A new process of the same learner is another peer."""

    #: The learner's name. Unique among the learners that train together.
    name: str
    #: The time of the process's start in nanoseconds, or some seconds more: see `beyond`. New at
    #: every start, and greater than before.
    incarnation: int

    def beyond(self, incarnation: int) -> PeerId:
        """Return this process under an incarnation that is greater than another one, for a machine
        whose clock was set back.

        The new one is at most 4.3 s greater, and follows from both. So of two processes that have
        to exceed the same one, each takes one of its own."""
        digest = content_digest(f"{self.incarnation} {incarnation}".encode())
        return self._replace(incarnation=incarnation + 1 + int.from_bytes(digest[:4], "big"))

    @property
    def started(self) -> str:
        """When the process started by its own clock, in UTC."""
        days, second = divmod(self.incarnation // 10**9, 24 * 60 * 60)
        time = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
        return f"{_date(days)} {time} UTC"

    def __str__(self) -> str:
        return f"{self.name}#{self.incarnation:x}"


class Key(NamedTuple):
    """The order of lineages: by tokens, then version, then digest, which only breaks ties."""

    #: Tokens in the anchor.
    tokens: int
    #: Seals and foundings that led to it.
    version: int
    #: Its history.
    digest: bytes


#: Less than every anchor.
NOWHERE = Key(0, 0, b"")


class Entry(NamedTuple):
    """One member of a seal."""

    #: The author of the offer's work; not always the peer that sent the offer, see `Claim`.
    peer: PeerId
    #: The offer's number.
    seq: int
    #: The tokens that it carried, or that it weighs by.
    tokens: int
    #: The inner steps that it carried, or that it weighs by.
    steps: int


class Claim(NamedTuple):
    """The work that an offer carries: everything of `author` after its offer number `settled`.

    The author is not always the sender. If a process goes on from a checkpoint that held unmerged
    work, that work stays its author's, because the old process, or a second one with the same
    checkpoint, may have offered it as well.
    """

    #: The process that trained.
    author: PeerId
    #: The number of the author's last offer that is not part of the claim.
    #: Invariant: settled < the offer's `seq`.
    settled: int


def _oldest(authors: Iterable[PeerId]) -> dict[str, int]:
    """By name, the oldest of the newest `PROCESSES` incarnations, where there are as many."""
    known: defaultdict[str, list[int]] = defaultdict(list)
    for author in authors:
        known[author.name].append(author.incarnation)
    return {
        name: sorted(incarnations)[-PROCESSES]
        for name, incarnations in known.items()
        if len(incarnations) >= PROCESSES
    }


def _date(days: int) -> str:
    """The date so many days after 1 January 1970.

    Years begin in March here, so that leap days come last. A cycle of the calendar is 400 years, or
    146,097 days."""
    cycle, day = divmod(days + 719_468, 146_097)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5
    year += 400 * cycle + month // 10
    return f"{year:04}-{(month + 2) % 12 + 1:02}-{day + 1:02}"


def content_digest(*parts: bytes | memoryview) -> bytes:
    """Return a 128-bit digest of the parts' bytes, in order: SHA-256, truncated, which is the
    fastest strong hash in the standard library."""
    state = hashlib.sha256()
    for part in parts:
        state.update(part)
    return state.digest()[:DIGEST_BYTES]


def first_genesis(digest: bytes, trained: bool) -> bytes:
    """Return the genesis of first weights of this digest.

    The first bit says whether an optimizer has trained them before. Learners that start together
    take the greatest genesis, so trained weights never give way to random ones there."""
    head = digest[0] | _TRAINED if trained else digest[0] & ~_TRAINED
    return bytes([head]) + digest[1:]


class Rollback(NamedTuple):
    """The last rollback of a run: a user went back to an earlier anchor on purpose.

    The run goes on as another model, whose genesis is

        digest of (former genesis, learner, anchors)  +  number of the rollback  +  learner's name

    So nothing that belongs to the former model fits the new one: no offer, no seal and no anchor.
    Wherever the genesis goes, the number goes, too, and with it the order of models."""

    #: Rollbacks of the run up to this one, with it; at least 1.
    number: int
    #: The name of the learner that rolled the run back.
    by: str

    @classmethod
    def told_by(cls, genesis: bytes) -> Rollback | None:
        """The rollback that a genesis tells of; None if it is that of first weights.

        Raises:
            ValueError: the genesis is damaged.
        """
        if len(genesis) <= DIGEST_BYTES:
            return None
        told = genesis[DIGEST_BYTES:]
        number, name = int.from_bytes(told[:ROLLBACK_BYTES], "big"), told[ROLLBACK_BYTES:].decode()
        if not number or not name:
            raise ValueError(f"a genesis of {len(genesis)} bytes tells of no rollback")
        return cls(number, name)

    def genesis(self, *parts: bytes) -> bytes:
        """The genesis of the model from here on; `parts` tell it from every other one."""
        told = self.number.to_bytes(ROLLBACK_BYTES, "big") + self.by.encode()
        return content_digest(told, *parts) + told


def rollbacks(genesis: bytes) -> int:
    """How many rollbacks led to the model of this genesis."""
    told = Rollback.told_by(genesis)
    return told.number if told else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The identity of one fragment's anchor. Immutable; `seal` and `found` return its
    successors."""

    #: Tokens of all offers merged into the anchor. A successor has at least as many.
    tokens: int
    #: Seals and foundings that led to it. A successor has one more.
    version: int
    #: The chain over its history.
    digest: bytes
    #: Of the first weights: see `first_genesis`, or `Rollback`. A successor has the same, except
    #: after a rollback.
    genesis: bytes
    #: For each author, the number of its last offer in the anchor. Read-only; a number never
    #: decreases from an anchor to its successor.
    merged: Mapping[PeerId, int] = field(default_factory=dict)
    #: By name, the oldest incarnation that is remembered, if older ones are forgotten.
    oldest: Mapping[str, int] = field(init=False, repr=False, compare=False)
    #: The names of all authors.
    names: frozenset[str] = field(init=False, repr=False, compare=False)
    #: Its place in the order of lineages.
    key: Key = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "merged", MappingProxyType(dict(self.merged)))
        object.__setattr__(self, "names", frozenset(author.name for author in self.merged))
        object.__setattr__(self, "oldest", MappingProxyType(_oldest(self.merged)))
        object.__setattr__(self, "key", Key(self.tokens, self.version, self.digest))

    @classmethod
    def fresh(cls, genesis: bytes) -> Lineage:
        """Return the lineage of first weights: without tokens, so that they never overwrite a
        trained anchor."""
        return cls(tokens=0, version=0, digest=genesis, genesis=genesis)

    def last_merged(self, peer: PeerId) -> int:
        """Return the number of the last offer of `peer` in this anchor: 0 if it has none, and
        `FORGOTTEN` if the anchor remembers only younger processes of that name."""
        if peer in self.merged:
            return self.merged[peer]
        return FORGOTTEN if peer.incarnation < self.oldest.get(peer.name, 0) else 0

    def has_room_for(self, author: PeerId) -> bool:
        """Whether the anchor may merge work of this author: it knows the author, or may learn of
        one more."""
        return author in self.merged or not self._is_full()

    def _is_full(self) -> bool:
        count = len(self.merged)
        if count < FEW_AUTHORS:
            return False
        nbytes = sum(len(author.name.encode()) for author in self.merged) + AUTHOR_NBYTES * count
        return count >= MOST_AUTHORS or nbytes >= MOST_AUTHOR_NBYTES

    def admits(self, claim: Claim) -> bool:
        """Return whether none of the claimed work is in this anchor. Because of this rule, no work
        is merged twice."""
        return self.last_merged(claim.author) <= claim.settled

    def seal(self, members: Iterable[Entry], payload: bytes) -> Lineage:
        """Return the successor after merging `members`.

            tokens' = tokens + Σ member tokens
            version' = version + 1
            digest' = H(digest, payload, members)

        Args:
            members: The merged offers, in any order; they are hashed in ascending order.
            payload: The digest of the merged bytes.
        """
        members = sorted(members)
        chain = [self.digest, payload, *(repr(tuple(entry)).encode() for entry in members)]
        return Lineage(
            tokens=self.tokens + sum(entry.tokens for entry in members),
            version=self.version + 1,
            digest=content_digest(*chain),
            genesis=self.genesis,
            merged=self._with({entry.peer: entry.seq for entry in members if entry.seq}),
        )

    def found(self, merged: Mapping[PeerId, int], tokens: int, model: bytes) -> Lineage:
        """Return the successor when a learner that is alone takes its own weights as the anchor.

        Args:
            merged: All work in the weights that may also be in offers.
            tokens: The tokens that the learner trained since this anchor.
            model: The digest of the whole model. The new digest depends on this, but not on the
                fragment. So if two founders trained equally many tokens, all their fragments are
                ordered alike, and no learner ends with a mixture of both models.
        """
        digest = content_digest(self.genesis, model)
        return Lineage(
            tokens=self.tokens + tokens,
            version=self.version + 1,
            digest=digest,
            genesis=self.genesis,
            merged=self._with(merged),
        )

    def _with(self, later: Mapping[PeerId, int]) -> dict[PeerId, int]:
        """`merged` after these offers, without the processes that are forgotten."""
        seqs = {peer: max(seq, self.last_merged(peer)) for peer, seq in later.items()}
        known = {**self.merged, **seqs}
        oldest = _oldest(known)
        return {p: seq for p, seq in known.items() if p.incarnation >= oldest.get(p.name, 0)}

    def rolled_back(self, genesis: bytes) -> Lineage:
        """The lineage of the same anchor after a rollback to it, as a model of another genesis.

        What was merged later is in this anchor no more, so each learner finds its own part of that
        missing here. The digest is another one: a seal that was made of the anchor the first time
        must not be taken again."""
        return replace(self, digest=content_digest(genesis, self.digest), genesis=genesis)


class ModelKey(NamedTuple):
    """The order of whole models of different genesis: a learner gives up the lesser model."""

    #: Rollbacks that led to the model. They come first: a user has said that the work after the
    #: anchor is worth nothing, however much that is.
    rollbacks: int
    #: Tokens in all anchors of the model.
    tokens: int
    #: How far a learner has begun with it (`begun`), while no anchor has any work. Later this is
    #: the same for all: two learners between which there is a third one must agree on an order.
    begun: int
    #: The sum of the anchors' versions.
    version: int
    #: The first weights, which break the last tie: ones that were trained before win it.
    genesis: bytes


#: How far a learner has begun with a model that it has trained.
STEPPED = 2


def begun(joined: bool, step: int) -> int:
    """How far a learner has begun with its model: 0 before it joins, then 1, and 2 from its first
    step on. A model with steps is worth more than first weights. A learner that has joined steps
    at any time, so a newcomer must not give it other weights."""
    return STEPPED if step else int(joined)


def model_key(keys: Iterable[Key], genesis: bytes, begun: int) -> ModelKey:
    """Return a model's place in the order of models, from its anchors' keys."""
    tokens = version = 0
    for key in keys:
        tokens += key.tokens
        version += key.version
    return ModelKey(
        rollbacks=rollbacks(genesis),
        tokens=tokens,
        begun=STEPPED if tokens else begun,
        version=version,
        genesis=genesis,
    )
