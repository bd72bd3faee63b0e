"""Learners of the first code with this version of the protocol are understood, and understand: so a
run can be brought to new code one learner after the other."""

from __future__ import annotations

from dataclasses import fields

import pytest

from mend_optim.codecs.packing import fresh
from mend_optim.protocol.messages import Beat, Report, Rumor
from mend_optim.transport.frames import Assembler
from mend_optim.transport.wire import decode_control, decode_hello
from tests.fixtures import write_wire
from tests.support.former import as_former, recorded


def test_no_field_has_another_number_or_meaning() -> None:
    """Fields may be added. A field that is taken away, or changed, needs another version of the
    protocol: `write_wire.py` beside the fixture says what to do then."""
    now = write_wire.fields()
    for message, known in recorded()["fields"].items():
        assert known.items() <= now[message].items(), message


def test_a_hello_is_understood() -> None:
    assert decode_hello(bytes.fromhex(recorded()["hello"])) == write_wire.HELLO


@pytest.mark.parametrize("name", write_wire.CONTROL)
def test_a_control_message_is_understood(name: str) -> None:
    data = bytes.fromhex(recorded()["control"][name])
    assert decode_control(data) == write_wire.CONTROL[name]


@pytest.mark.parametrize("name", write_wire.BULK)
def test_a_bulky_message_is_understood(name: str) -> None:
    assembler, sent = Assembler(lambda fragment: 1 << 20, fresh), write_wire.BULK[name]
    frames = map(bytes.fromhex, recorded()["bulk"][name])
    (read,) = [message for message in map(assembler.feed, frames) if message]
    assert read == sent
    packets = [
        [(key, p.codec, p.numel, bytes(p.data)) for key, p in message.sections.items()]
        for message in (read, sent)
    ]
    assert packets[0] == packets[1]


def test_what_a_former_learner_sends_is_all_that_it_knows() -> None:
    """The recorded beat has a value in every field that there was, and in no other."""
    beat = write_wire.CONTROL["beat"]
    assert isinstance(beat, Beat)
    assert as_former(beat) == beat
    for part in (beat, beat.reports, beat.roster):
        parts = part if isinstance(part, tuple) else (part,)
        kind = type(parts[0])
        names = {f.name for f in fields(kind)} & recorded()["fields"][kind.__name__].keys()
        assert all(any(getattr(each, name) for each in parts) for name in names), kind


def test_a_former_learner_knows_nothing_of_later_fields() -> None:
    a, b = write_wire.A, write_wire.B
    rumor, report = Rumor(b, "b:1", 1), Report(write_wire.KEY)
    beat = Beat(peer=a, address="a:1", count=1, reports=(report,), roster=(rumor,))
    later = Beat(
        peer=a,
        address="a:1",
        count=1,
        reports=(report,),
        roster=(Rumor(b, "b:1", 1, hops=2),),
        rests=True,
    )
    assert later != beat
    assert as_former(later) == beat
