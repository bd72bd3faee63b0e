"""Checks the proofs in a ledger: whether the members of its rounds did sign the offers that the
rounds have merged. It needs the authorities alone, and no learner that runs. Needs the package
`cryptography`, as `issuing.py` does."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from mend_optim.errors import PeerError
from mend_optim.protocol.lineage import Entry, PeerId
from mend_optim.protocol.proofs import Proof, difference, proofs_in
from mend_optim.protocol.statement import Statement, decode
from mend_optim.transport.limits import check
from mend_optim.transport.security.channels import EXPIRY_GRACE_S
from mend_optim.transport.security.signers import Authorities


def statements_of(record: Mapping[str, Any], authorities: Authorities) -> list[Statement]:
    """The proven statements of the members of one round, in their order.

    Raises:
        PeerError: a member is not proven.
        KeyError, TypeError, ValueError: it is not the record of a round.
    """
    members = [_entry_of(member) for member in record["members"]]
    if not members:
        return []
    proofs = _proofs_of(record["proofs"], len(members))
    told = [decode(proof.statement) for proof in proofs]
    check(len({statement.sender for statement in told}) == len(members), "a learner counts twice")
    check(len({statement.genesis for statement in told}) == 1, "offers are of several models")
    for entry, proof, statement in zip(members, proofs, told, strict=True):
        signer = authorities.check(proof)
        signer.check_valid(float(record["time"]), 2 * EXPIRY_GRACE_S)
        flaw = difference(entry, statement)
        if signer.name != statement.sender.name:
            flaw = f"{signer.name!a} has signed that"
        if statement.fragment != record["fragment"]:
            flaw = "it has signed an offer of another fragment"
        check(not flaw, f"member {entry.peer.name!a} is not proven: {flaw}")
    return told


def _entry_of(member: Mapping[str, Any]) -> Entry:
    peer = PeerId(member["name"], member["incarnation"])
    return Entry(peer, member["seq"], member["tokens"], member["steps"])


def _proofs_of(text: str, members: int) -> list[Proof]:
    check(bool(text), "the round is not signed")
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as fault:
        raise PeerError(f"the proofs are damaged: {fault}") from fault
    proofs = proofs_in(data, members)
    check(len(proofs) == members, f"there are {members} members and {len(proofs)} proofs")
    return proofs
