"""The handshake: two learners compare models and settings before they exchange anything else.

The learner that dials sends its hello, and the other answers with its own. Each side compares the
two. If they differ in anything on which learners must agree, `refusal` names the first field that
differs, with the values on both sides. Then the two don't train together.

A learner is also turned away while a later process of its name is known. Its machine's clock may
have been set back between two starts, or there are two processes of one name. The other side tells
it of that process: see `Namesake`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from mend_optim.protocol.lineage import PeerId

#: The version of the protocol. Raise it when the meaning of a message changes; a new field or
#: section needs no new version, because receivers ignore those that they don't know. Then write
#: down anew what such a learner sends: see `tests/fixtures/write_wire.py`.
#:
#: - 2: packets have a form for every tensor; seals relay packets
#: - 3: offers that bring only residuals of encodings
#: - 4: tensors are coalesced; no learner's own packet comes back to it
#: - 5: seals scale the mean and tell the run's period; offers and seals have learning rates
#: - 6: the digests of offers, seals and anchors are those of trees
#: - 7: no learner seals more than its share, so others seal some fragments
#: - 8: learners of a zone pass one another's offers on; an offer of nothing counts on the sealer's
#:   anchor alone
#: - 9: seals and anchors have the headway of rounds whose members differ in speed
#: - 10: weights by throughput are rounded otherwise, as equal batches have the weights of tokens
PROTOCOL = 10

#: A value that no learner has. A hello with it only asks for the learner's own.
NO_VALUE = "?"
#: The prefix of the names of model fields that describe an added parameter group. Learners need not
#: add a group at the same moment, so these fields must agree only where both sides have them.
ADDED = "added group"
#: The prefix of the names of model fields that describe the other parameters.
PARAMETER = "parameter "
#: The beginning of those that DDP names.
WRAPPED = PARAMETER + "module."
#: The prefix of the names of model fields that describe buffers.
BUFFER = "buffer "
#: The refusal of a newcomer that the other learner does not want to meet now, whatever its
#: incarnation is. It passes: the other one may begin another run there.
AT_ITS_END = (
    "the run is at its end or has all the learners that it takes (limits.learners), and admits no "
    "newcomer; start this learner again later"
)
#: The model field of a learner that does not have its parameters as its optimizer lists them.
BY_NAME = ("order of parameters", "by name")


def plain_name(name: str) -> str:
    """A parameter's name without the part that `torch.compile` adds."""
    return name.replace("_orig_mod.", "")


def are_positions(names: Sequence[str]) -> bool:
    """Whether these parameters have no names, so that positions stand for them."""
    return any(map(str.isdecimal, names))


def name_order(names: Sequence[str]) -> list[int]:
    """The order in which all learners have the parameters of these names, as indices into `names`:
    by name, so that each process may list them in its own order, as pipeline stages do.

    Positions, and names that occur twice, stay as they are listed."""
    known = list(map(plain_name, names))
    if len(set(known)) < len(known) or are_positions(known):
        return list(range(len(known)))
    return sorted(range(len(known)), key=known.__getitem__)


class Life(Enum):
    """What a learner knows of the life of another process."""

    #: It was heard of lately.
    ALIVE = "alive"
    #: It was not heard of lately, and is not given up yet.
    SUSPECTED = "suspected"
    #: It said goodbye, or was evicted.
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Namesake:
    """A process that has the name of the receiver of a hello, and a later start."""

    id: PeerId
    life: Life

    def reason(self, other: PeerId) -> str:
        """Return why `other`, with the earlier start, is turned away."""
        name, later, earlier = self.id.name, self.id.started, other.started
        if earlier == later:
            earlier = f"{(self.id.incarnation - other.incarnation) / 1e6:,.3g} ms earlier"
        if self.life is Life.ALIVE:
            return (
                f"name: {name!r} is the name of a live process, started {later}, so the one started"
                f" {earlier} is turned away; give each a name of its own, or end one of them"
            )
        is_gone = "is gone" if self.life is Life.GONE else "is not given up yet"
        return f"name: a process {name!r} with a later start, {later}, {is_gone}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A learner's side of the comparison; also the answer to a hello."""

    #: The sender.
    peer: PeerId
    #: Where others can dial the sender; empty if nobody can.
    address: str
    #: The model: (field, value) pairs, in an order in which the first difference tells the most.
    model: tuple[tuple[str, str], ...]
    #: The settings that all learners must share, as (field, value) pairs.
    policy: tuple[tuple[str, str], ...]
    #: Settings in which learners may differ, as (field, value) pairs. They never travel in a hello;
    #: one that only asks for such a value is told it as any other.
    may_differ: tuple[tuple[str, str], ...] = ()
    #: The sender's version of the protocol.
    protocol: int = PROTOCOL
    #: In an answer, why the sender refuses the receiver, as the receiver would say it; empty in a
    #: welcome and in a request. A refusal has neither model nor policy: a learner that is turned
    #: away learns the first difference, and no more.
    refusal: str = ""
    #: The reason for the refusal, if that is a process with the receiver's name and a later start.
    namesake: Namesake | None = None

    @property
    def only_asks(self) -> bool:
        """Whether the sender only wants to be told a value, or who is there: a visitor (see
        `visit`), or a learner that has yet to find out whose address it dials."""
        return any(value == NO_VALUE for _, value in (*self.model, *self.policy))


def first_difference(
    mine: tuple[tuple[str, str], ...], theirs: tuple[tuple[str, str], ...]
) -> str | None:
    """Compare two fingerprints, whatever the order of their fields.

    Returns:
        "field: here …, there …" for the first field that differs; None if they agree.
    """
    here, there = dict(mine), dict(theirs)
    for name in [*here, *(name for name in there if name not in here)]:
        if here.get(name) != there.get(name):
            return f"{name}: here {here.get(name, 'absent')}, there {there.get(name, 'absent')}"
    return None


def model_difference(
    mine: tuple[tuple[str, str], ...], theirs: tuple[tuple[str, str], ...]
) -> str | None:
    """Compare two models. Parameters correspond by their order, as in torch's own checkpoints;
    their names may differ, because not every optimizer is given names. But the same names are in
    the same order: equal shapes must not hide another one. Buffers correspond alike; how many there
    are is compared elsewhere.

    Returns:
        "field: here …, there …" for the first field that differs; None if they agree.
    """
    for prefix in (PARAMETER, BUFFER):
        here, there = _listed(mine, prefix), _listed(theirs, prefix)
        if len(here) == len(there):
            for (name, kind), (other, kind_there) in zip(here, there, strict=True):
                if kind != kind_there:
                    field = name if name == other else f"{name}, there {other}"
                    return f"{field}: here {kind}, there {kind_there}"
    if moved := _moved(*([name for name, _ in _listed(m, PARAMETER)] for m in (mine, theirs))):
        return moved
    models = (mine, theirs)
    known = (PARAMETER, BUFFER, BY_NAME[0])
    rest = [tuple(f for f in model if not f[0].startswith(known)) for model in models]
    return first_difference(*rest)


def _moved(here: Sequence[str], there: Sequence[str]) -> str:
    """The first parameter that has another place there, if the names are the same; else "". Names
    are the same, too, if only the part differs that a wrapper puts before them."""
    bare = [[name.replace(WRAPPED, PARAMETER, 1) for name in names] for names in (here, there)]
    if sorted(bare[0]) == sorted(bare[1]) and len(set(bare[0])) == len(bare[0]):
        here, there = bare
    if sorted(here) != sorted(there):
        return ""
    for place, (name, other) in enumerate(zip(here, there, strict=True), 1):
        if name != other:
            return f"{name}: here number {place}, there number {there.index(name) + 1}"
    return ""


def _model_remedy(*models: tuple[tuple[str, str], ...]) -> str:
    """How to make two models agree that differ. One model may have been given to two optimizers in
    part, or in another order, and then building it again changes nothing."""
    here, there = (_listed(model, PARAMETER) for model in models)
    if len(here) != len(there):
        return "build the same model on both, and give both optimizers the same parameters"
    names, names_there = ([name for name, _ in listed] for listed in (here, there))
    if _moved(names, names_there):
        if sorted(names) == sorted(names_there):
            return "let both go on from checkpoints of one run, or neither"
        return "give both optimizers the names of the model itself, and not of what DDP made of it"
    kinds, kinds_there = ([kind for _, kind in listed] for listed in (here, there))
    if kinds != kinds_there and sorted(kinds) == sorted(kinds_there):
        return (
            "list the parameters in one order on both, or give both optimizers named_parameters()"
        )
    return "build the same model on both"


def _order_difference(
    mine: tuple[tuple[str, str], ...], theirs: tuple[tuple[str, str], ...]
) -> str:
    """One learner has no names for its parameters, and the other has ordered its own by theirs: the
    orders differ if they build the same model. Else ""."""
    unnamed = [
        are_positions([name.removeprefix(PARAMETER) for name, _ in _listed(m, PARAMETER)])
        for m in (mine, theirs)
    ]
    ordered = [BY_NAME in model for model in (mine, theirs)]
    if not ((unnamed[0] and ordered[1]) or (unnamed[1] and ordered[0])):
        return ""
    here, there = ("by name" if each else "as listed" for each in ordered)
    return f"{BY_NAME[0]}: here {here}, there {there}"


def _listed(model: tuple[tuple[str, str], ...], prefix: str) -> list[tuple[str, str]]:
    return [field for field in model if field[0].startswith(prefix)]


def refusal(mine: Hello, theirs: Hello) -> str:
    """Return why two learners must not train together, naming the first field that differs; empty
    if they may. A hello that is a refusal shows no model and no settings, so it gives its reason
    itself. One that only asks is answered whatever its name: a visitor shows the credentials of the
    learner of its machine, which may be the one that it asks."""
    if mine.protocol != theirs.protocol:
        return (
            f"protocol version: here {mine.protocol}, there {theirs.protocol};"
            " install the same mend-optim on both"
        )
    asks = mine.only_asks or theirs.only_asks
    if mine.peer.name == theirs.peer.name and not asks:
        return (
            f"name: {mine.peer.name!r} on both sides, here started {mine.peer.started}, there"
            f" {theirs.peer.started}; give every learner a name of its own, or end one of the two"
        )
    if theirs.refusal:
        return ""
    models = _without_extras(mine.model, theirs.model)
    difference = model_difference(*models)
    if difference:
        return f"{difference}; {_model_remedy(*models)}"
    if order := _order_difference(mine.model, theirs.model):
        return f"{order}; give named_parameters() to the optimizers of both, or of none"
    difference = first_difference(_asked(mine, theirs), _asked(theirs, mine))
    if difference:
        return f"{difference}; pass the same {difference.partition(':')[0]} to both"
    return ""


def _asked(hello: Hello, by: Hello) -> tuple[tuple[str, str], ...]:
    """The settings of a hello that are compared with those of another one."""
    return (*hello.policy, *hello.may_differ) if by.only_asks else hello.policy


def _without_extras(*models: tuple[tuple[str, str], ...]) -> list[tuple[tuple[str, str], ...]]:
    """Return two models' fields without the added groups that only one of them has so far."""
    shared = set.intersection(*({name for name, _ in model} for model in models))
    return [
        tuple(f for f in model if f[0] in shared or not f[0].startswith(ADDED)) for model in models
    ]
