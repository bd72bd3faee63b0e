"""The findings of a survey of the way to a learner, in words, with a remedy for each fault."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from mend_optim.cli.plan.model import CODINGS, OVERHEAD
from mend_optim.cli.wording import bits_of, seconds_of, shown
from mend_optim.protocol.lineage import CLOCKS_DIFFER_NS
from mend_optim.protocol.surveyed import ClockTrip, DialBack, Surveyed, Transfer
from mend_optim.transport.address import format_address, parse_address

#: Seconds by which clocks may differ without a word. A time server keeps them much closer.
CLOCKS_MAY_DIFFER_S = 60.0
SET_CLOCKS = "set the clocks of both machines by a time server (NTP)"
UPDATE = "install the same mend-optim on both"
_OPEN = (
    "open the port in the firewalls of both sides, and forward it where addresses are translated;"
    " or pass no listen=: a learner that nobody can dial trains along, and seals nothing"
)
_BACK = {
    DialBack.REFUSED: ("connection refused", _OPEN),
    DialBack.ANSWER: ("no answer", _OPEN),
    DialBack.ROUTE: ("no route", "check the network between the two machines"),
    DialBack.OTHER: (
        "something else answers there",
        "forward that port to this machine, or give one that leads here",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault and its remedy."""

    text: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Back:
    """An address of this machine that the learner is to dial.

    Attributes:
        argument: which of the user's arguments it is.
        address: as the user gave it.
        port: its port.
        ips: the IP addresses of its host; None if it has no host.
    """

    argument: str
    address: str
    port: int
    ips: Collection[str] | None = None


def way_lines(
    found: Surveyed, local_ips: Collection[str], back: Back | None, params: float
) -> list[tuple[str, str]]:
    """The facts of a survey, as pairs of a word and its meaning.

    Args:
        found: The result of the survey.
        local_ips: This machine's own addresses, as it connected to the learner.
        back: Where the learner was to dial, if it was.
        params: Of the model, if the user has told them; else 0.
    """
    if found.is_too_old:
        told = "it is too old to tell of clock and bandwidth, and how it sees you"
        return [("way there", f"{told}; {UPDATE}")]
    lines = []
    if found.seen_ip:
        lines.append(("sees you", _seen(found.seen_ip, local_ips)))
    if back and found.dialled is DialBack.REACHED:
        lines.append(("dials back", f"and reaches {format_address(found.seen_ip, back.port)}"))
    if found.clock:
        lines.append(("clock", _clock(found.clock)))
    if found.up:
        back_too = f", {_rate(found.down)} back" if found.down else ""
        lines.append(("bandwidth", f"{_rate(found.up)} there{back_too}"))
        lines += _offers(found.up, params)
    if found.wait_s:
        told = f"not measured, because others have just done so; again in {_upwards(found.wait_s)}"
        lines.append(("way there", told))
    if found.fault:
        lines.append(("way there", f"not measured to the end: {shown(found.fault)}"))
    return lines


def way_faults(found: Surveyed, back: Back | None) -> Iterator[Fault]:
    """The faults of the way.

    Args:
        found: The result of the survey.
        back: Where the learner was to dial, if it was.
    """
    if found.clock:
        yield from _clock_faults(found.clock)
    if back:
        yield from _back_faults(found, back)


def _seen(ip: str, local_ips: Collection[str]) -> str:
    if not local_ips or ip in local_ips:
        return f"as {ip}"
    return f"as {ip}, and this machine is {', '.join(local_ips)}: addresses are translated between"


def _clock(trip: ClockTrip) -> str:
    if abs(trip.offset_ns) <= trip.bound_ns:
        return f"as here, ± {_upwards(trip.bound_ns / 1e9)}"
    word = "ahead of" if trip.offset_ns > 0 else "behind"
    offset = seconds_of(abs(trip.offset_ns) / 1e9)
    return f"{offset} {word} this machine's, ± {_upwards(trip.bound_ns / 1e9)}"


def _upwards(seconds: float) -> str:
    """A duration that is no bound if it is rounded to nothing."""
    return seconds_of(max(seconds, 1e-3))


def _clock_faults(trip: ClockTrip) -> Iterator[Fault]:
    """The consequences of clocks that surely differ. Rounds need no clocks in common, but a start
    of a learner has the time as its number, and certificates have dates."""
    surely_ns = abs(trip.offset_ns) - trip.bound_ns
    if surely_ns <= CLOCKS_MAY_DIFFER_S * 1e9:
        return
    offset = seconds_of(abs(trip.offset_ns) / 1e9)
    side = "ahead of" if trip.offset_ns > 0 else "behind"
    text = f"its clock is {offset} {side} this machine's: "
    if surely_ns > CLOCKS_DIFFER_NS:
        text += "learners do not believe others' word of one that started a day later"
    else:
        text += (
            "a learner that moves to the machine behind waits until its former start is given up"
        )
    yield Fault(text=text, remedy=f"{SET_CLOCKS}; certificates and ledgers go by them, too")


def _rate(transfer: Transfer) -> str:
    least = "at least " if transfer.is_least else ""
    return least + bits_of(transfer.bytes_per_s)


def _offers(up: Transfer, params: float) -> list[tuple[str, str]]:
    """How long an offer of the whole model takes on this link, in each codec."""
    if not params:
        return []
    told = [
        f"{each.argument} {_upwards(each.nbytes(params) * OVERHEAD / up.bytes_per_s)}"
        for each in CODINGS
    ]
    return [("an offer", f"takes with codec {', '.join(told)}")]


def _back_faults(found: Surveyed, back: Back) -> Iterator[Fault]:
    if found.dialled is DialBack.REACHED:
        return
    ip = found.seen_ip
    if found.dialled:
        cause, remedy = _BACK[found.dialled]
        target = format_address(ip, back.port)
        yield Fault(text=f"it cannot dial {target} back: {cause}", remedy=remedy)
    elif found.is_too_old:
        yield Fault(text="it is too old to dial back", remedy=UPDATE)
    elif found.wait_s:
        text = "it has not dialled back, because it has just done so for others"
        yield Fault(text=text, remedy=f"check again in {_upwards(found.wait_s)}")
    elif ip and back.ips is not None and ip not in back.ips:
        yield _elsewhere(ip, back)
    else:
        text = f"it has not dialled back: {shown(found.fault) or 'it sees no address'}"
        yield Fault(text=text, remedy="look at the log of that machine")


def _elsewhere(ip: str, back: Back) -> Fault:
    """A learner dials nobody but the one that asks."""
    host, _ = parse_address(back.argument, back.address)
    leads = ", ".join(back.ips or ()) or "nowhere"
    is_name = leads != host
    text = (
        f"{back.argument} {shown(back.address)} is not where it sees you"
        f"{f': that is {leads}' if is_name else ''}, and it dials {ip} alone"
    )
    remedy = f"give {back.argument} the address that leads to {ip}, or check from another network"
    return Fault(text=text, remedy=remedy)
