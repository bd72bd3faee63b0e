"""The digest of what is in an anchor, which beats tell: see `engine/attestations.py`.

It is taken from the sections that the next anchors follow from. So all learners that have an anchor
take the same digest, however they came to it."""

from __future__ import annotations

from torch import Tensor

from mend_optim.codecs.packing import as_bytes
from mend_optim.errors import PeerError
from mend_optim.protocol.messages import State
from mend_optim.worker.hashing import Hashing


def content_of(attested: dict[str, Tensor], hashing: Hashing) -> bytes:
    """The digest of what is in this learner's anchor."""
    parts = (as_bytes(attested[name]) for name in sorted(attested))
    return hashing.short(*parts)


def check_content(
    state: State, attested: dict[str, Tensor], expected: bytes, hashing: Hashing
) -> None:
    """Raise `PeerError` unless a verified anchor has that digest. `attested` are the sections that
    count."""
    parts = (state.sections[name].data for name in sorted(attested))
    if hashing.short(*parts) != expected:
        raise PeerError("other learners have something else under its key")
