"""How long signatures hold up a round of 16 learners that sign their offers: signing one's own
offer, and checking the proofs of all members of a seal, or the offers of all others.

The digests of the tensors' bytes are not in it: they depend on the size of the model. Certificates
are known from earlier rounds, as they are from the second round on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from time import perf_counter

from bench.result import Result, compared, plain
from mend_optim.engine.policies import weights
from mend_optim.protocol.lineage import Lineage, PeerId
from mend_optim.protocol.messages import PROOFS, Offer, Seal
from mend_optim.protocol.proofs import Notary, check_offer, check_proofs, proofs_packet, signed
from mend_optim.transport.security.identity import Identity
from mend_optim.transport.security.issuing import Authority
from mend_optim.transport.security.notary import CertificateNotary

MEMBERS = 16
REPEATS = 200
WARM = 5
LIMIT_MS = 1.0
GENESIS = bytes(16)
CONTENT = bytes(64)
BASE = Lineage.fresh(GENESIS)
NOW = datetime.now(timezone.utc).replace(tzinfo=None)
VALID = NOW - timedelta(days=1), NOW + timedelta(days=1)
AUTHORITY = Authority.random(*VALID)


def run() -> Iterator[Result]:
    """Of a learner, and of the sealer, against the limit of 1 ms."""
    notaries = _notaries(MEMBERS)
    own = notaries[0]
    learner_ms, sealer_ms = [], []
    nbytes = 0
    for turn in range(WARM + REPEATS):
        offers = [_offer(i, seq=turn + 1) for i in range(MEMBERS)]
        sent = [signed(o, notary) for o, notary in zip(offers[1:], notaries[1:], strict=True)]
        began = perf_counter()
        mine = signed(offers[0], own)
        signing_ms = 1e3 * (perf_counter() - began)
        seal = _seal([mine, *sent], own)
        nbytes = seal.sections[PROOFS].nbytes
        began = perf_counter()
        check_proofs(seal, BASE, own)
        learner_ms.append(signing_ms + 1e3 * (perf_counter() - began))
        began = perf_counter()
        for offer in sent:
            check_offer(offer, CONTENT, own)
        sealer_ms.append(signing_ms + 1e3 * (perf_counter() - began))
    limits = [LIMIT_MS] * REPEATS
    notes = f"ECDSA P-256, {MEMBERS} members, {nbytes / MEMBERS:.0f} bytes each"
    for what, took in (("a learner", learner_ms), ("the sealer", sealer_ms)):
        yield compared(
            "signatures", f"{what}, a round", "ms", took[WARM:], limits, goal="<= 1", notes=notes
        )
    yield plain("signatures", "a certificate that is new", "ms", _new_certificate_ms(own))


def _new_certificate_ms(own: CertificateNotary, repeats: int = 20) -> list[float]:
    """How long the first signature of each of so many learners takes."""
    took = []
    for notary in _notaries(repeats):
        proof = notary.sign(b"")
        began = perf_counter()
        own.check(proof, merged=True)
        took.append(1e3 * (perf_counter() - began))
    return took


def _notaries(count: int) -> list[CertificateNotary]:
    return [CertificateNotary(partial(_same, _identity(f"learner-{i}"))) for i in range(count)]


def _same(identity: Identity) -> Identity:
    return identity


def _identity(name: str) -> Identity:
    chain, key = AUTHORITY.issue(name, *VALID)
    return Identity(name=name, authorities=AUTHORITY.pem, chain=chain, key=key)


def _offer(i: int, seq: int) -> Offer:
    return Offer(
        peer=PeerId(f"learner-{i}", 1),
        fragment=0,
        seq=seq,
        tokens=1000,
        steps=16,
        genesis=GENESIS,
        key=BASE.key,
        due=True,
        content=CONTENT,
    )


def _seal(offers: Sequence[Offer], notary: Notary) -> Seal:
    members = tuple(offer.entry for offer in offers)
    return Seal(
        sealer=offers[0].peer,
        fragment=0,
        base=BASE.digest,
        key=BASE.seal(members, b"").key,
        members=members,
        weights=tuple(weights("tokens", members)),
        absent=(),
        reason="all_present",
        payload=b"",
        sections={PROOFS: proofs_packet(offers, notary)},
    )
