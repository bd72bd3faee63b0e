"""Where an anchor comes from: the ordered identity that makes anchors a max-register.

    lineage ℓ = (tokens, version, digest) + genesis + merged {peer: last merged sequence number}

Lineages of one genesis are totally ordered by `(tokens, version, digest)`; a learner that meets a
greater one adopts it. The digest is a chain, digest' = H(digest, members, payload), so equal
digests mean equal histories."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

DIGEST_BYTES = 16


class PeerId(NamedTuple):
    """A learner's name and its incarnation, new at every process start: the key of exactly-once."""

    name: str
    incarnation: int

    def __str__(self) -> str:
        return f"{self.name}#{self.incarnation:x}"


class Key(NamedTuple):
    """The total order of lineages: tokens first, then version, then the digest to break ties."""

    tokens: int
    version: int
    digest: bytes


class Entry(NamedTuple):
    """One member of a seal: whose offer, which one, how much work it carried."""

    peer: PeerId
    seq: int
    tokens: int
    steps: int


class Claim(NamedTuple):
    """Whose work an offer carries: everything of `author` after its offer number `settled`.

    The author is not always the sender: work that a checkpoint held unmerged stays its author's
    when another process goes on with it, since the old process, or a second one with the same
    checkpoint, may have offered it as well."""

    author: PeerId
    settled: int


def content_digest(*parts: bytes | memoryview) -> bytes:
    """A 128-bit digest of the parts' bytes, in order (SHA-256, truncated: the fastest strong hash
    in the standard library)."""
    state = hashlib.sha256()
    for part in parts:
        state.update(part)
    return state.digest()[:DIGEST_BYTES]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The identity of one fragment's anchor. Immutable; `seal` and `found` return its
    successors."""

    tokens: int
    version: int
    digest: bytes
    genesis: bytes
    merged: Mapping[PeerId, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "merged", MappingProxyType(dict(self.merged)))

    @classmethod
    def fresh(cls, genesis: bytes) -> Lineage:
        """The lineage of first weights: no tokens, so it can never overwrite a trained one."""
        return cls(tokens=0, version=0, digest=genesis, genesis=genesis)

    @property
    def key(self) -> Key:
        return Key(self.tokens, self.version, self.digest)

    def last_merged(self, peer: PeerId) -> int:
        """The sequence number of the last offer of `peer` in this anchor; 0 if it has none."""
        return self.merged.get(peer, 0)

    def admits(self, claim: Claim) -> bool:
        """Whether none of the claimed work is in this anchor: the rule that makes every merge the
        only one."""
        return self.last_merged(claim.author) <= claim.settled

    def seal(self, members: Iterable[Entry], payload: bytes) -> Lineage:
        """The successor after merging `members`, whose merged bytes have the digest `payload`.

        tokens' = tokens + Σ member tokens, version' = version + 1, digest' = H(digest, members,
        payload).
        """
        members = sorted(members)
        chain = [self.digest, payload, *(repr(tuple(entry)).encode() for entry in members)]
        return Lineage(
            tokens=self.tokens + sum(entry.tokens for entry in members),
            version=self.version + 1,
            digest=content_digest(*chain),
            genesis=self.genesis,
            merged={
                **self.merged,
                **{entry.peer: max(entry.seq, self.last_merged(entry.peer)) for entry in members},
            },
        )

    def found(self, merged: Mapping[PeerId, int], tokens: int, model: bytes) -> Lineage:
        """The successor when a learner, alone, takes its own weights as the anchor; `merged` names
        all work in them that may also be in offers.

        The digest depends on the whole model (`model`) but not on the fragment, so that all
        fragments of two founders that trained equally many tokens are ordered alike and no learner
        ends with a mixture of both models."""
        digest = content_digest(self.genesis, model)
        later = {peer: max(seq, self.last_merged(peer)) for peer, seq in merged.items()}
        return Lineage(
            tokens=self.tokens + tokens,
            version=self.version + 1,
            digest=digest,
            genesis=self.genesis,
            merged={**self.merged, **later},
        )


class ModelKey(NamedTuple):
    """The order of whole models. `started` breaks the tie before the first seal: what somebody
    trains is worth more than first weights."""

    tokens: int
    started: bool
    version: int
    genesis: bytes


def model_key(keys: Iterable[Key], genesis: bytes, started: bool) -> ModelKey:
    listed = list(keys)
    return ModelKey(sum(k.tokens for k in listed), started, sum(k.version for k in listed), genesis)
