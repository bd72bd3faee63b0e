"""The lines of a ledger file, as records.

A disk that was full may have cut a line short. Such a line is *damaged*: it is reported, and the
others count. A file that is no ledger at all has nothing but such lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from operator import attrgetter, itemgetter
from typing import Any

from mend_optim.engine.ledger import MemberRecord, RoundRecord
from mend_optim.protocol.lineage import PeerId

#: The types that JSON has for the texts that annotate a field of a record.
_TYPES: Mapping[str, tuple[type, ...]] = {
    "int": (int,),
    "str": (str,),
    "bool": (bool,),
    "float": (int, float),
    "tuple[str, ...]": (list,),
    "tuple[MemberRecord, ...]": (list,),
}
#: Those of them that are numbers.
_NUMBERS = ("int", "float")
#: At most so many characters of a fault are told: a field may be as long as its file.
WHY = 200
#: No learner counts further, and no clock goes further.
MOST = 2**63
#: By kind of record, its fields: name, type as it is written, and default.
_KNOWN: Mapping[type, Sequence[tuple[str, str, Any]]] = {
    kind: [(each.name, str(each.type), each.default) for each in fields(kind)]
    for kind in (RoundRecord, MemberRecord)
}
#: The values of a member: of its record, and of what a line tells.
_values_held = attrgetter(*(name for name, *_ in _KNOWN[MemberRecord]))
_values_told = itemgetter(*(name for name, *_ in _KNOWN[MemberRecord]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One adopted anchor, as one learner wrote it down."""

    #: The file, and the number of the line in it, from 1 on.
    source: str
    number: int
    #: When the anchor was adopted, in Unix seconds by the learner's clock.
    time: float
    #: The process that adopted it.
    by: PeerId
    record: RoundRecord
    #: The line as it was: its fields would take far more memory.
    text: str

    @property
    def place(self) -> str:
        """Where the line is."""
        return f"{self.source}:{self.number}"

    @property
    def raw(self) -> Mapping[str, Any]:
        """All fields of the line, for those who check its proofs."""
        told: Mapping[str, Any] = json.loads(self.text)
        return told


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLine:
    """A line that is no line of a ledger: its number in the file, and what is wrong with it."""

    number: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """The lines of one file that are no lines of a ledger, and how many others it has."""

    source: str
    lines: Sequence[BadLine]
    good: int


class KnownMembers:
    """The members of each anchor, as the first line told them. Every learner writes down the rounds
    of all, so what others tell alike is read once, and held once."""

    def __init__(self) -> None:
        #: By fragment, version and digest of the anchor.
        self._known: dict[tuple[int, int, str], tuple[MemberRecord, ...]] = {}

    def of(self, anchor: tuple[int, int, str], told: Sequence[Any]) -> tuple[MemberRecord, ...]:
        """The members of an anchor that a line tells."""
        known = self._known.get(anchor)
        if known and _are_alike(known, told):
            return known
        members = tuple(MemberRecord(**_fields_of(MemberRecord, member)) for member in told)
        if members:  # an anchor that came whole names none
            self._known.setdefault(anchor, members)
        return members


def _are_alike(known: Sequence[MemberRecord], told: Sequence[Any]) -> bool:
    """Whether a line tells just these members. They are compared as records: what the JSON of a
    line becomes takes several times as much memory, and is not kept."""
    return len(known) == len(told) and all(
        isinstance(other, dict) and _values_held(member) == _values_told(other)
        for member, other in zip(known, told, strict=True)
    )


def read_lines(
    source: str, text: Iterable[str], known: KnownMembers | None = None
) -> tuple[list[Line], Damage]:
    """Return the lines of one file, in their order, and its damage.

    Args:
        source: the name of the file.
        text: its lines.
        known: the members that other ledgers of the same run have told, to which those of this one
            are added.
    """
    known = known or KnownMembers()
    good: list[Line] = []
    damaged: list[BadLine] = []
    for number, words in enumerate(text, 1):
        if not words.strip():
            continue
        try:
            good.append(_line_of(source, number, words, known))
        except (KeyError, TypeError, ValueError, RecursionError) as fault:
            damaged.append(BadLine(number=number, why=_reason(fault)))
    return good, Damage(source=source, lines=damaged, good=len(good))


def _reason(fault: Exception) -> str:
    if isinstance(fault, json.JSONDecodeError | RecursionError):
        return "it is no JSON, as when a full disk cuts a line short"
    if isinstance(fault, KeyError):
        return f"it has no field {fault.args[0]!r}"
    told = str(fault)
    return told if len(told) <= WHY else f"{told[:WHY]}…"


def _line_of(source: str, number: int, words: str, members: KnownMembers) -> Line:
    told = json.loads(words)
    if not isinstance(told, dict):
        raise TypeError("it is no record")
    return Line(
        source=source,
        number=number,
        time=float(_typed("time", told["time"], "float")),
        by=PeerId(
            _typed("name", told["name"], "str"), _typed("incarnation", told["incarnation"], "int")
        ),
        record=_record_of(told, members),
        text=words,
    )


def _record_of(told: Mapping[str, Any], members: KnownMembers) -> RoundRecord:
    found = _fields_of(RoundRecord, told)
    anchor = found["fragment"], found["version"], found["digest"]
    found["members"] = members.of(anchor, found["members"])
    for name in ("absent", "superseded"):
        found[name] = tuple(_typed(name, each, "str") for each in found[name])
    return RoundRecord(**found)


def _fields_of(kind: type, told: Any) -> dict[str, Any]:
    """The fields of such a record. Fields that it doesn't know are of a later version, and are left
    out."""
    if not isinstance(told, dict):
        raise TypeError(f"{told!r} is no record")
    found = {}
    for name, type_text, default in _KNOWN[kind]:
        if name in told:
            found[name] = _typed(name, told[name], type_text)
        elif default is MISSING:
            raise KeyError(name)
        else:
            found[name] = default
    return found


def _typed(name: str, value: Any, kind: str) -> Any:
    if type(value) not in _TYPES[kind]:  # for Python, a bool is an int
        raise TypeError(f"its field {name!r} is {value!r}")
    # JSON has numbers of any length, and Python's reads NaN and Infinity, too.
    if kind in _NUMBERS and not abs(value) <= MOST:
        raise TypeError(f"its field {name!r} is no number that a learner writes")
    return value
