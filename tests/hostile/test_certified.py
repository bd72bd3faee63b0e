"""Strangers and an insider at the door of learners with certificates, which sign their offers: the
rows of the audit that credentials and signatures hold, on two real learners."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from mend_optim import Credentials
from mend_optim.protocol.lineage import Claim, PeerId
from mend_optim.protocol.messages import PROOFS
from mend_optim.protocol.proofs import proofs_packet, signed
from mend_optim.protocol.statement import content_of
from mend_optim.transport._pb import peer_pb2 as pb
from mend_optim.transport.connection import SERVICE
from mend_optim.transport.frames import to_frames
from tests.hostile.attacker import REPLY_S, Attacker, tls_channel
from tests.hostile.ground import NUMEL, UNHURRIED, WIDTH, Ground, await_refusal
from tests.hostile.listener import Listener
from tests.hostile.test_attacks import FOREVER
from tests.hostile.test_false_work import SEALER, offer_of, seal_in_the_eyes_of_a, seal_of
from tests.support.certificates import (
    ANY_LEARNER,
    Authority,
    files_of,
    load_identity,
    new_authority,
)
from tests.system.processes import Process, Supervisor
from tests.system.test_processes import await_common_seals

from mend_optim.transport.security.notary import CertificateNotary  # isort: skip - needs the extra

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
STREAMS = ("Control", "Exchange", "Pull", "Push", "PassOn", "Survey")


class Certified:
    """Learners with certificates, and callers with others."""

    def __init__(self, supervisor: Supervisor, folder: Path) -> None:
        self.folder = folder
        self.authority = new_authority()
        names = {name: self.files(name) for name in ("a", "b", SEALER)}
        special = {name: {"certificates": str(names[name])} for name in "ab"}
        self.ground = Ground(supervisor, special=special)

    def files(self, name: str, *, authority: Authority | None = None) -> Path:
        directory = self.folder / (name if authority is None else f"{name} of another")
        return files_of(directory, authority or self.authority, name)

    def caller(self, directory: Path, name: str, *, named: bool = True) -> Attacker:
        address = self.ground.a.address
        channel = tls_channel(address, ANY_LEARNER, directory, named=named)
        return Attacker(address, self.ground.hello, name, channel=channel)

    def insider(self) -> Attacker:
        return self.caller(self.folder / SEALER, SEALER)

    def notary(self) -> Any:
        """The notary that signs in the insider's name."""
        credentials = Credentials.files(self.folder / SEALER)
        identity = load_identity("here", credentials, SEALER)
        return CertificateNotary(lambda: identity)


@pytest.fixture(scope="module")
def certified(
    processes: list[Process], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Certified]:
    supervisor = Supervisor(processes)
    try:
        yield Certified(supervisor, tmp_path_factory.mktemp("certified"))
    finally:
        supervisor.end()


def without_certificate(certified: Certified) -> Attacker:
    return certified.caller(certified.folder / SEALER, SEALER, named=False)


def of_another_authority(certified: Certified) -> Attacker:
    other = new_authority()
    directory = certified.files(SEALER, authority=other)
    (directory / "ca.pem").write_bytes(certified.authority.pem)  # it takes "a" for what it is
    return certified.caller(directory, SEALER)


def in_plaintext(certified: Certified) -> Attacker:
    return certified.ground.attacker(SEALER)


@pytest.mark.parametrize("stranger", [without_certificate, of_another_authority, in_plaintext])
def test_i2_strangers_get_no_answer(
    certified: Certified, stranger: Callable[[Certified], Attacker]
) -> None:
    """I1, I2, I7, I8, I9: no hello, no anchor, no look and no survey."""
    ground = certified.ground
    with ground.held(), stranger(certified) as mallory:
        for method in ("Hello", "Watch"):
            call = mallory.channel.unary_unary(f"/{SERVICE}/{method}")
            with pytest.raises(grpc.RpcError) as fault:
                call(mallory.host.SerializeToString(), timeout=REPLY_S)
            assert fault.value.code() is grpc.StatusCode.UNAVAILABLE
        for method in STREAMS:
            stream = mallory.open(method, b"")
            assert stream.ended()
            assert (stream.code, stream.answers) == (grpc.StatusCode.UNAVAILABLE, [])
        with ground.lasts():
            pass


def test_i3_an_insider_speaks_for_nobody_else(certified: Certified) -> None:
    """I3 and I4: neither as b, nor as a later process of b."""
    ground = certified.ground
    b = next(peer for peer in ground.a.report()["roster"] if peer["name"] == "b")
    with ground.held(), certified.insider() as mallory:
        for incarnation in (b["incarnation"], FOREVER):
            mallory.me.CopyFrom(pb.PeerId(name="b", incarnation=incarnation))
            with pytest.raises(grpc.RpcError) as fault:
                mallory.hello()
            assert "cannot speak for 'b'" in fault.value.details()
            for method in STREAMS:
                stream = mallory.open(method, b"")
                assert stream.ended()
                assert "cannot speak for 'b'" in stream.details
        with ground.lasts():
            pass
        after = next(peer for peer in ground.a.report()["roster"] if peer["name"] == "b")
        assert (after["incarnation"], after["state"]) == (b["incarnation"], "alive")
        await_refusal(ground.a, "", "the certificate of", 2)


def test_i4_nobody_says_goodbye_or_beats_for_another(certified: Certified) -> None:
    ground = certified.ground
    with ground.held(), certified.insider() as mallory:
        mallory.hello()
        b = pb.PeerId(name="b", incarnation=1)
        for message in (pb.Goodbye(peer=b), pb.Beat(peer=b, count=FOREVER), pb.Want(peer=b)):
            stream = mallory.control(message)
            assert stream.ended()
        await_refusal(ground.a, SEALER, "that claims to be from", 3)


def test_i5_an_insider_at_the_address_of_a_seed_is_taken_for_nobody(certified: Certified) -> None:
    """The newcomer of the audit took the insider's model, and shut the true "a" out."""
    ground = certified.ground
    [known] = [peer for peer in ground.b.report()["roster"] if peer["name"] == "a"]
    directory = certified.folder / SEALER
    with (
        ground.held(merged="abc"),
        certified.insider() as mallory,
        Listener(mallory, directory=directory) as there,
    ):
        mallory.me.CopyFrom(pb.PeerId(name="a", incarnation=FOREVER))
        newcomer = ground.supervisor.start(
            "c",
            width=WIDTH,
            peers=[there.address, ground.b.address],
            certificates=str(certified.files("c")),
            timing={"join_timeout_s": 2.0},
            **UNHURRIED,
        )
        # It joins as soon as it has the model of "b", and may not have to wait for that.
        joined = newcomer.await_event("joined")
        causes = {event["text"] for event in (joined, *newcomer.events["waiting"])}
        cause = f"{there.address} (its certificate is not of the name that it says)"
        assert any(cause in text for text in causes)
        await_common_seals(ground.supervisor, [ground.a, ground.b, newcomer], 2)
        assert there.hellos
        assert there.offers == []
        [met] = [peer for peer in newcomer.report()["roster"] if peer["name"] == "a"]
        for what in ("incarnation", "address"):
            assert met[what] == known[what]
        assert newcomer.report()["genesis"] == ground.a.report()["genesis"]
        assert newcomer.leave() == 0


def test_m5_unsigned_work_and_that_of_others_is_merged_by_nobody(certified: Certified) -> None:
    ground = certified.ground
    notary = certified.notary()
    with ground.held(), certified.insider() as mallory:
        mallory.hello()
        mallory.control(mallory.beat())
        unsigned = offer_of(ground, mallory, torch.zeros(NUMEL))
        mallory.offers(unsigned)
        await_refusal(ground.a, SEALER, "offer refused: ", 1)
        of_b = replace(unsigned, seq=2, inherited=Claim(PeerId("b", 1), 1))
        mallory.offers(signed(replace(of_b, content=content_of(of_b.sections)), notary))
        await_refusal(ground.a, SEALER, "offer refused: ", 2)
        with ground.lasts():
            pass


def test_m4b_a_seal_of_members_that_signed_nothing_is_refused(certified: Certified) -> None:
    """It is whole otherwise: its weights follow from its members, and it comes from the sealer."""
    ground = certified.ground
    notary = certified.notary()

    def seals(offer: pb.Offer) -> Iterator[bytes]:
        own = offer_of(ground, mallory, torch.zeros(NUMEL))
        own = signed(replace(own, content=content_of(own.sections)), notary)
        b = PeerId("b", 1)
        for members in ((own.entry,), (own.entry._replace(peer=b),)):
            seal = seal_of(mallory, offer, members=members)
            yield from to_frames(seal)
            proofs = {PROOFS: proofs_packet([own], notary)}
            if members[0].peer == b:
                yield from to_frames(replace(seal, sections={**seal.sections, **proofs}))

    directory = certified.folder / SEALER
    with (
        ground.held(),
        certified.insider() as mallory,
        Listener(mallory, seals, directory) as there,
    ):
        beat = seal_in_the_eyes_of_a(ground, mallory, there)
        await_refusal(ground.a, SEALER, "seal refused: ", 3, meanwhile=beat)
