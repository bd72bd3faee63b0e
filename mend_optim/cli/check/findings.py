"""The findings of a check of one address, in words, with a remedy for each fault."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mend_optim.cli.check.way import UPDATE, Back, Fault, way_faults, way_lines
from mend_optim.cli.wording import seconds_of, shown, table_of
from mend_optim.protocol.handshake import PROTOCOL
from mend_optim.protocol.unreached import Unreached
from mend_optim.protocol.visited import COUNT, FIRST, Visit
from mend_optim.transport.address import is_loopback, parse_address, seen_from

#: The settings in which learners may differ: see `Settings.may_differ`.
MAY_DIFFER = ("guard",)
#: The word of a refusal for a setting that the learner does not know.
NOT_TOLD = "absent"
TLS_WANTED = (
    Unreached.WANTS_TLS.value,
    "give this command the run's credentials: --secret FILE or --credentials DIR",
)
TLS_REFUSED = (
    Unreached.NO_TLS.value,
    "start that learner with credentials, too, or leave them out here, or correct the port",
)
SILENT = (
    "the port accepts connections, but nothing answers within {:g} s: the process may be frozen, or"
    " a firewall drops the bytes"
)
LOOK_THERE = (
    "look there whether the process is stopped or overloaded, and let firewalls pass the port's"
    " bytes in both directions"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A connection to one of the IP addresses that a name has."""

    ip: str
    #: How long it took; None if it failed.
    took_s: float | None
    #: Why it failed.
    cause: Unreached | None = None
    #: This machine's own address on it.
    local_ip: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that is known of one address.

    Attributes:
        address: as the user gave it.
        attempts: for each IP address that it resolves to; none if it does not resolve.
        visit: the answer; None if no connection succeeded.
        secured: how the visitor secured its connection.
        back: the address that the learner tells others to dial, and why it cannot be connected to;
            None if it can.
        asked_back: the address of this machine that the learner was asked to dial.
        params: of the model, if the user has told them.
    """

    address: str
    attempts: Sequence[Attempt]
    secured: str
    visit: Visit | None = None
    back: tuple[str, Unreached | None] | None = None
    asked_back: Back | None = None
    params: float = 0.0

    @property
    def ips(self) -> list[str]:
        """Those that were connected to."""
        return [attempt.ip for attempt in self.attempts if attempt.took_s is not None]


def lines_of(facts: Facts) -> list[tuple[str, str]]:
    """The known facts, as pairs of a word and its meaning."""
    found = []
    if facts.attempts:
        found.append(("resolves", f"to {', '.join(each.ip for each in facts.attempts)}"))
    for each in facts.attempts:
        if each.took_s is not None:
            to = f" to {each.ip}" if len(facts.attempts) > 1 else ""
            found.append(("connects", f"in {seconds_of(each.took_s)}{to}"))
    answer = facts.visit.answer if facts.visit else None
    if facts.visit and answer:
        found.append(("answers", f"as {shown(answer.peer.name)}, started {answer.peer.started}"))
        found.append(("secured", facts.secured))
        found.append(("round trip", seconds_of(facts.visit.round_trip_s)))
        tells = facts.back[0] if facts.back else ""
        told = f"tells others to dial {shown(tells)}" if tells else "tells no address: it dials"
        found.append(("address", told))
        settings = facts.visit.settings
        if COUNT in settings:
            first = f", the first is {shown(settings[FIRST])}" if FIRST in settings else ""
            found.append(("model", f"{shown(settings[COUNT])} parameters{first}"))
        local_ips = [each.local_ip for each in facts.attempts if each.local_ip]
        found += way_lines(facts.visit.surveyed, local_ips, facts.asked_back, facts.params)
    return found


def faults_of(facts: Facts) -> Iterator[Fault]:
    """The faults of an address."""
    if not facts.attempts:
        yield _unreached(Unreached.NAME)
        return
    for each in facts.attempts:
        if each.cause is not None:
            several = f"{each.ip}: " if len(facts.attempts) > 1 else ""
            yield Fault(text=several + each.cause.value, remedy=_remedy(each.cause))
    visit = facts.visit
    if visit is None:
        return
    if visit.answer is None:
        yield _no_answer(visit)
        return
    if visit.answer.protocol != PROTOCOL:
        there = visit.answer.protocol
        text = f"it speaks version {there} of the protocol, and this is {PROTOCOL}"
        yield Fault(text=text, remedy=UPDATE)
    yield from _address_faults(facts)
    yield from way_faults(visit.surveyed, facts.asked_back)


def _no_answer(visit: Visit) -> Fault:
    if visit.cause is Unreached.WANTS_TLS:
        return Fault(text=TLS_WANTED[0], remedy=TLS_WANTED[1])
    if visit.cause is Unreached.NO_TLS:
        return Fault(text=TLS_REFUSED[0], remedy=TLS_REFUSED[1])
    if visit.silent_s:
        return Fault(text=SILENT.format(visit.silent_s), remedy=LOOK_THERE)
    cause = visit.cause or Unreached.ANSWER
    if cause is Unreached.ANSWER:
        text = f"no learner answers: {shown(visit.fault)}"
        return Fault(text=text, remedy="look at the log of that machine")
    return _unreached(cause)


def _unreached(cause: Unreached) -> Fault:
    return Fault(text=cause.value, remedy=_remedy(cause))


def _remedy(cause: Unreached) -> str:
    """The remedy, for somebody who gave the address here and not in `peers`."""
    return cause.remedy.replace(" in peers", "").replace("this learner's", "your")


def _address_faults(facts: Facts) -> Iterator[Fault]:
    """Whether others reach the learner where it tells them to."""
    if not facts.back or not facts.back[0]:
        return
    address, cause = facts.back
    host, _ = parse_address("address", address)
    here = [ip for ip in facts.ips if not is_loopback(ip)]
    if is_loopback(host) and here:
        yield Fault(
            text=f"it tells others to dial {shown(address)}, which no other machine can",
            remedy="pass advertise= the address that you have checked",
        )
    elif cause is not None:
        yield Fault(
            text=f"it tells others to dial {shown(address)}, and from here: {cause.value}",
            remedy="pass advertise= an address that all learners can dial",
        )


def told_address(visit: Visit, ip: str) -> str:
    """Where others should dial a learner, as seen from here; empty if it tells no address. A
    loopback address is kept as it is: that may be what is wrong."""
    told = visit.answer.address if visit.answer else ""
    if not told:
        return ""
    host, _ = parse_address("address", told)
    return told if is_loopback(host) else seen_from(told, ip)


def has_faults(all_facts: Sequence[Facts]) -> bool:
    """Whether anything is wrong."""
    each = any(True for facts in all_facts for _ in faults_of(facts))
    return each or bool(doubles(all_facts) or differing(all_facts))


def differing(all_facts: Sequence[Facts]) -> dict[str, list[str]]:
    """By setting in which learners differ, and must not, the values of all that told theirs, in
    their order. A learner of another version of the protocol tells none."""
    compared = _compared(all_facts).items()
    return {name: values for name, values in compared if name not in MAY_DIFFER}


def allowed_to_differ(all_facts: Sequence[Facts]) -> dict[str, list[str]]:
    """The same of the settings in which they may differ. An older learner tells none of these: its
    value is not known, which is no difference."""
    compared = _compared(all_facts).items()
    asked = {name: values for name, values in compared if name in MAY_DIFFER}
    return {name: values for name, values in asked.items() if len({*values} - {NOT_TOLD}) > 1}


def _told(all_facts: Sequence[Facts]) -> list[tuple[str, dict[str, str]]]:
    """The name and the settings of each learner that told them, in their order."""
    visits = [facts.visit for facts in all_facts if facts.visit]
    return [
        (each.answer.peer.name, each.settings) for each in visits if each.answer and each.settings
    ]


def _compared(all_facts: Sequence[Facts]) -> dict[str, list[str]]:
    settings = [each for _, each in _told(all_facts)]
    found = {}
    for name in dict.fromkeys(name for each in settings for name in each):
        values = [each.get(name, "not set") for each in settings]
        if len(set(values)) > 1:
            found[name] = values
    return found


def differences(all_facts: Sequence[Facts]) -> list[str]:
    """A table of the settings in which learners differ, and must not; empty if there are none."""
    return _table(all_facts, differing(all_facts))


def allowed_differences(all_facts: Sequence[Facts]) -> list[str]:
    """A table of the settings in which learners differ, and may; empty if there are none."""
    return _table(all_facts, allowed_to_differ(all_facts))


def agreement(all_facts: Sequence[Facts]) -> str:
    """A line that says that the settings which learners must share are equal; empty if they are
    not, or if fewer than two learners have told theirs, or if one that answered has not."""
    visits = [each.visit for each in all_facts if each.visit and each.visit.answer]
    learners = {visit.answer.peer for visit in visits if visit.answer}
    if len(learners) < 2 or differing(all_facts):
        return ""
    if not all(visit.settings for visit in visits):
        return ""
    answered = f"the {len(learners)} learners that answered"
    return f"The settings that learners must share are equal on {answered}."


def _table(all_facts: Sequence[Facts], differing: dict[str, list[str]]) -> list[str]:
    names = [shown(name) for name, _ in _told(all_facts)]
    rows = [(name, *map(shown, values)) for name, values in differing.items()]
    return table_of(("setting", *names), rows, 99) if rows else []


def doubles(all_facts: Sequence[Facts]) -> list[Fault]:
    """Names that more than one process has."""
    found: dict[str, dict[int, str]] = {}
    for each in all_facts:
        if each.visit and each.visit.answer:
            peer = each.visit.answer.peer
            found.setdefault(peer.name, {})[peer.incarnation] = each.address
    return [
        Fault(
            text=f"{shown(name)} is the name of {len(processes)} learners, at"
            f" {' and '.join(processes.values())}",
            remedy="give every learner a name of its own",
        )
        for name, processes in found.items()
        if len(processes) > 1
    ]
