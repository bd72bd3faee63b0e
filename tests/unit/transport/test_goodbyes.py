"""Where offers are signed, a goodbye that somebody else tells of counts only with a signature."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mend_optim.errors import PeerError
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Beat, Goodbye, Rumor
from mend_optim.protocol.proofs import Proof, check_goodbye, goodbye_proof
from mend_optim.protocol.statement import decode, encode_goodbye
from mend_optim.transport.goodbyes import CHECKED, Goodbyes
from tests.support.notaries import HashNotary

TELLER, GONE = PeerId("teller", 1), PeerId("gone", 7)
PROOF = goodbye_proof(GONE, HashNotary("gone"))
FORGED = goodbye_proof(GONE, HashNotary("teller"))


def nobody_is_linked(name: str) -> bool:
    return False


def beat(*rumors: Rumor) -> Beat:
    return Beat(peer=TELLER, address="teller:1", count=1, roster=rumors)


def goodbye(proof: bytes, peer: PeerId = GONE) -> Rumor:
    return Rumor(peer, "", 2**62, left=True, proof=proof)


def believed(rumor: Rumor) -> bool:
    told = Goodbyes(HashNotary("me")).told(beat(rumor), nobody_is_linked)
    return rumor in told.roster


def test_a_goodbye_is_signed_by_the_learner_that_leaves_and_believed_of_anybody() -> None:
    own = Goodbyes(HashNotary("gone")).signed(Goodbye(GONE))
    assert own == Goodbye(GONE, PROOF)
    assert Goodbyes(HashNotary("me")).proven(own) == own
    assert believed(goodbye(own.proof))


@pytest.mark.parametrize(
    "proof",
    [
        b"",
        b"garbage",
        FORGED,
        goodbye_proof(PeerId("gone", 6), HashNotary("gone")),
        goodbye_proof(PeerId("other", 7), HashNotary("gone")),
        HashNotary("gone").sign(b"").packed(),
        Proof.unpacked(PROOF)._replace(signature=b"another").packed(),
    ],
    ids=["none", "garbage", "forged", "former", "other", "something else", "changed"],
)
def test_an_unproven_goodbye_is_left_out_and_the_rest_of_the_beat_kept(proof: bytes) -> None:
    alive = Rumor(PeerId("alive", 1), "alive:1", 5)
    heard = Goodbyes(HashNotary("me")).told(beat(alive, goodbye(proof)), nobody_is_linked)
    assert heard == beat(alive)
    with pytest.raises(PeerError):
        check_goodbye(GONE, proof, HashNotary("me"))


def test_a_peer_that_leaves_without_a_proof_is_not_passed_on_with_one() -> None:
    """By its link it is known, so it has left all the same."""
    heard = Goodbyes(HashNotary("me")).proven(Goodbye(TELLER, FORGED))
    assert heard == Goodbye(TELLER)


def test_a_linked_peer_says_goodbye_itself() -> None:
    heard = Goodbyes(HashNotary("me")).told(beat(goodbye(PROOF)), lambda name: name == "gone")
    assert heard == beat()


def test_without_signatures_everything_stays_as_it_was_told() -> None:
    goodbyes, told = Goodbyes(None), beat(goodbye(b""), goodbye(b"garbage"))
    assert goodbyes.told(told, nobody_is_linked) is told
    assert goodbyes.signed(Goodbye(GONE)) == Goodbye(GONE)
    assert goodbyes.proven(Goodbye(GONE, b"garbage")) == Goodbye(GONE, b"garbage")


def test_a_beat_costs_no_more_checks_than_there_may_be_goodbyes_in_it() -> None:
    notary = HashNotary("me")
    peers = [PeerId(f"x{i}", 1) for i in range(10 * CHECKED)]
    told = beat(*[goodbye(goodbye_proof(peer, HashNotary(peer.name)), peer) for peer in peers])
    goodbyes = Goodbyes(notary)
    heard = goodbyes.told(told, nobody_is_linked)
    assert [rumor.peer for rumor in heard.roster] == peers[:CHECKED]
    assert len(notary.checked) == CHECKED
    goodbyes.told(replace(told, count=2), nobody_is_linked)
    assert len(notary.checked) == CHECKED  # every peer tells of the same ones, again and again


def test_a_goodbye_is_no_statement_about_an_offer() -> None:
    with pytest.raises(PeerError):
        decode(encode_goodbye(GONE))
