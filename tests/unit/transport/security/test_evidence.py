"""The proofs in a ledger: of honest rounds they hold, and each kind of change is found."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mend_optim.engine.ledger import sealed_record
from mend_optim.protocol.messages import PROOFS, Offer
from mend_optim.protocol.proofs import proofs_packet, signed
from mend_optim.protocol.statement import pack, unpack
from mend_optim.transport.security.identity import Identity
from tests.support.certificates import NOW, issue, new_authority
from tests.support.engines import BASE, PEER, THIRD, offer_of, seal_of

from mend_optim.transport.security.signers import Authorities  # isort: skip - needs the extra
from tests.support.unproven import unproven  # isort: skip - needs the extra
from mend_optim.transport.security.notary import CertificateNotary  # isort: skip

AUTHORITY = new_authority()
DAY_S = 24 * 3600


def notary(name: str) -> CertificateNotary:
    chain, key = issue(AUTHORITY, name)
    shown = Identity(name=name, authorities=AUTHORITY.pem, chain=chain, key=key)
    return CertificateNotary(lambda: shown)


NOTARIES = {name: notary(name) for name in (PEER.name, THIRD.name, "gone")}


def line(*offers: Offer, day: int = 0, **changes: Any) -> str:
    """The line of a round that has merged these offers."""
    seal = seal_of(BASE, *(offer.entry for offer in offers))
    packet = proofs_packet(offers, NOTARIES["gone"])
    record = sealed_record(replace(seal, sections={PROOFS: packet}), mine=False)
    then = NOW.timestamp() + day * DAY_S
    return json.dumps({**json.loads(record.json(PEER, then)), **changes})


def signed_by(name: str, offer: Offer) -> Offer:
    return signed(offer, NOTARIES[name])


ONE = signed_by("peer", offer_of(PEER))
TWO = signed_by("third", offer_of(THIRD))
IDLE = signed_by("third", replace(offer_of(THIRD), seq=0, tokens=0, steps=0))


def found(*lines: str) -> list[tuple[int, str]]:
    return list(unproven(lines, AUTHORITY.pem))


def test_rounds_of_signed_offers_are_proven() -> None:
    pulled = json.dumps({"fragment": 0, "members": [], "proofs": "", "time": 1.0})
    assert found(line(ONE, TWO), pulled, line(ONE, IDLE), line(ONE)) == []


def test_a_line_counts_at_its_own_time() -> None:
    """A certificate that has expired since was good then."""
    for day, good in ((25, True), (31, False), (-3, False)):
        assert (found(line(ONE, day=day)) == []) is good


def member(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda record: record["members"][0].update(changes)


def without_one(record: dict[str, Any]) -> None:
    del record["members"][0]


def unsigned(record: dict[str, Any]) -> None:
    record["proofs"] = ""


def cut(record: dict[str, Any]) -> None:
    record["proofs"] = base64.b64encode(base64.b64decode(record["proofs"])[:-1]).decode()


def damaged(record: dict[str, Any]) -> None:
    record["proofs"] = "!" + record["proofs"]


def without_a_proof(record: dict[str, Any]) -> None:
    first, _ = unpack(base64.b64decode(record["proofs"]), 2)
    record["proofs"] = base64.b64encode(pack([first])).decode()


def elsewhere(record: dict[str, Any]) -> None:
    record["fragment"] = 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (member(tokens=41), "member 'peer' is not proven: it has signed something else"),
        (member(steps=5), "member 'peer' is not proven: it has signed something else"),
        (member(seq=2), "member 'peer' is not proven: it has signed something else"),
        (member(incarnation=2), "member 'peer' is not proven: it has signed something else"),
        (member(name="gone"), "member 'gone' is not proven: it has signed something else"),
        (without_one, "are not 1 parts or fewer"),
        (unsigned, "the round is not signed"),
        (without_a_proof, "there are 2 members and 1 proofs"),
        (cut, "ends beyond"),
        (damaged, "the proofs are damaged"),
        (elsewhere, "it has signed an offer of another fragment"),
        (lambda record: record.pop("proofs"), "it is no line of a ledger: KeyError('proofs')"),
        (lambda record: record.pop("time"), "it is no line of a ledger: KeyError('time')"),
    ],
)
def test_a_line_that_was_changed_proves_nothing(
    change: Callable[[dict[str, Any]], None], why: str
) -> None:
    record = json.loads(line(ONE, TWO))
    change(record)
    ((number, reason),) = found(line(ONE), json.dumps(record), line(TWO))
    assert number == 2
    assert why in reason


def test_a_line_with_one_member_twice_proves_nothing() -> None:
    ((_, why),) = found(line(ONE, ONE))
    assert why == "a learner counts twice"


def test_members_of_one_round_have_one_model() -> None:
    other = signed_by("third", replace(offer_of(THIRD), genesis=b"other"))
    ((_, why),) = found(line(ONE, other))
    assert why == "offers are of several models"


def test_a_member_that_somebody_else_has_signed_is_not_proven() -> None:
    ((_, why),) = found(line(signed_by("gone", offer_of(PEER))))
    assert why == "member 'peer' is not proven: 'gone' has signed that"


@pytest.mark.parametrize("text", ["", "no json", "[]", "{}", "null"])
def test_what_is_no_line_is_named(text: str) -> None:
    ((_, why),) = found(text)
    assert why.startswith("it is no line of a ledger")


def test_authorities_are_certificates() -> None:
    with pytest.raises(ValueError, match=r"certificate|PEM|load"):
        Authorities(b"garbage")
