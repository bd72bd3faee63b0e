"""How long signatures hold up a round of 16 learners that sign their offers: signing one's own
offer, and checking the proofs of all members of a seal, or the offers of all others.

The digests of the tensors' bytes are not in it: they depend on the size of the model. Certificates
are known from earlier rounds, as they are from the second round on.

The sealer checks each offer when it comes, so its row is the sum of what it does in a round. Beside
both, in every turn, is what the bare functions of the library take for as many signatures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from time import perf_counter

from bench.result import Result, compared, plain
from mend_optim.engine.policies import weights
from mend_optim.protocol.lineage import Lineage, PeerId
from mend_optim.protocol.messages import PROOFS, SIGNATURE, Offer, Seal
from mend_optim.protocol.proofs import (
    Notary,
    Proof,
    check_offer,
    check_proofs,
    proofs_packet,
    signed,
)
from mend_optim.transport.security.identity import Identity
from mend_optim.transport.security.issuing import Authority
from mend_optim.transport.security.notary import CertificateNotary
from mend_optim.transport.security.signers import ECDSA, Authorities

MEMBERS = 16
REPEATS = 200
WARM = 5
LIMIT_MS = 1.0
BARE = "the bare functions"
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
    took: dict[str, list[float]] = defaultdict(list)
    nbytes = 0
    for turn in range(WARM + REPEATS):
        offers = [_offer(i, seq=turn + 1) for i in range(MEMBERS)]
        sent = [signed(o, notary) for o, notary in zip(offers[1:], notaries[1:], strict=True)]
        began = perf_counter()
        mine = signed(offers[0], own)
        signing_ms = 1e3 * (perf_counter() - began)
        seal = _seal([mine, *sent], own)
        nbytes = seal.sections[PROOFS].nbytes
        rounds: dict[str, Callable[[], object]] = {
            "a learner": partial(check_proofs, seal, BASE, own),
            "the sealer": partial(_check_offers, sent, own),
            BARE: _bare_checks(sent),
        }
        for what, check in rounds.items():
            began = perf_counter()
            check()
            took[what].append(signing_ms + 1e3 * (perf_counter() - began))
    notes = f"ECDSA P-256, {MEMBERS} members, {nbytes / MEMBERS:.0f} bytes each"
    yield from _rows({what: times[WARM:] for what, times in took.items()}, notes)
    yield plain("signatures", "a certificate that is new", "ms", _new_certificate_ms(own))


def _rows(took: dict[str, list[float]], notes: str) -> Iterator[Result]:
    """Each against the limit, and against the bare functions."""
    bare = took.pop(BARE)
    yield plain("signatures", f"{BARE}, a round", "ms", bare, notes=notes)
    for what, times in took.items():
        limits = [LIMIT_MS] * len(times)
        yield compared(
            "signatures", f"{what}, a round", "ms", times, limits, goal="<= 1", notes=notes
        )
        yield compared("signatures", f"{what}, over {BARE}", "ms", times, bare, notes=notes)


def _check_offers(offers: Sequence[Offer], own: CertificateNotary) -> None:
    for offer in offers:
        check_offer(offer, CONTENT, own)


def _bare_checks(offers: Sequence[Offer]) -> Callable[[], None]:
    """Checks the signatures of these offers, and nothing else of them."""
    authorities = Authorities(AUTHORITY.pem)
    checks = []
    for offer in offers:
        proof = Proof.unpacked(offer.sections[SIGNATURE].data)
        key = authorities.check(proof).key
        checks.append(partial(key.verify, proof.signature, proof.statement, ECDSA))

    def check_all() -> None:
        for check in checks:
            check()

    return check_all


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
