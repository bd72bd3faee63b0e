"""What two learners must agree on before they exchange anything else."""

from __future__ import annotations

from dataclasses import dataclass

from mend_optim.protocol.lineage import PeerId

# 2: packets with a form for every tensor, seals that relay them; 3: closing offers; 4: tensors that
# are coalesced, and nobody's own packet comes back.
PROTOCOL = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What two learners must agree on before they exchange anything else; also the answer to it.

    `model` and `policy` are (field, value) pairs in a fixed order. `refusal` is empty in a request
    and in a welcome."""

    peer: PeerId
    address: str
    model: tuple[tuple[str, str], ...]
    policy: tuple[tuple[str, str], ...]
    protocol: int = PROTOCOL
    refusal: str = ""


def first_difference(
    mine: tuple[tuple[str, str], ...], theirs: tuple[tuple[str, str], ...]
) -> str | None:
    """ "field: here …, there …" for the first field in which two fingerprints differ; None if they
    agree."""
    here, there = dict(mine), dict(theirs)
    for name in [*here, *(name for name in there if name not in here)]:
        if here.get(name) != there.get(name):
            return f"{name}: here {here.get(name, 'absent')}, there {there.get(name, 'absent')}"
    return None


def refusal(mine: Hello, theirs: Hello) -> str:
    """Why these two must not train together, naming the first differing field on both sides; "" if
    they may."""
    if mine.protocol != theirs.protocol:
        return f"protocol version: here {mine.protocol}, there {theirs.protocol}; install the same mend-optim on both"
    if mine.peer.name == theirs.peer.name:
        return f"name: {mine.peer.name!r} on both sides; give every learner a name of its own"
    models = _without_extras(mine.model, theirs.model)
    return first_difference(*models) or first_difference(mine.policy, theirs.policy) or ""


def _without_extras(*models: tuple[tuple[str, str], ...]) -> list[tuple[tuple[str, str], ...]]:
    """Two models' fields, without the added groups that one of them does not have (yet)."""
    shared = set.intersection(*({name for name, _ in model} for model in models))
    return [
        tuple(f for f in model if f[0] in shared or not f[0].startswith(ADDED)) for model in models
    ]


ADDED = "added group"
