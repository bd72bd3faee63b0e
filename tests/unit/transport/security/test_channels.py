"""Mutual TLS over loopback: who gets in, who does not, and in whose name. Whoever is refused learns
nothing of the learner, not even its name."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import sys
import warnings
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mend_optim.errors import PeerError
from mend_optim.protocol.handshake import Hello
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Beat, Call, Goodbye, Offer, Seal, State, Want
from mend_optim.protocol.unreached import Unreached
from mend_optim.transport.address import parse_address
from mend_optim.transport.connection import Connection
from mend_optim.transport.dialler import VisitOutcome
from mend_optim.transport.grpc_setup import grpc
from mend_optim.transport.security.channels import BARE, EXPIRY_GRACE_S, MutualTls, Security
from mend_optim.transport.security.identity import Identity
from mend_optim.transport.security.names import ANY_LEARNER, host_of_name, uri_of
from mend_optim.transport.stream import Counter
from tests.support.certificates import (
    CLIENT,
    DAY,
    NOW,
    SERVER,
    Authority,
    certificates_in,
    files_of,
    issue,
    new_authority,
)
from tests.unit.transport.recorder import offer_of, seal_of, state_of
from tests.unit.transport.test_grpc_transport import LOOPBACK, Crew, Learner, scenario

OURS, OTHERS = new_authority(), new_authority()
ROOT_KEY = certificates_in(OURS.pem)[0].key
#: Seconds that an attempt may take which must fail.
PATIENCE_S = 10.0


def identity(name: str, authority: Any = OURS, denied: Any = (), **wrong: Any) -> Identity:
    chain, key = issue(authority, name, **wrong)
    return Identity(name=name, authorities=OURS.pem, chain=chain, key=key, denied=frozenset(denied))


def tls(name: str, authority: Any = OURS, **wrong: Any) -> MutualTls:
    return MutualTls(identity(name, authority, **wrong), "files")


def secured(test: Callable[[Crew], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A scenario whose learners have credentials, unless it says otherwise."""

    class Secured(Crew):
        async def __call__(self, name: str, *seeds: str, **options: Any) -> Learner:
            return await super().__call__(name, *seeds, **{"security": tls(name), **options})

    async def run(crew: Crew) -> None:
        crew.__class__ = Secured
        await test(crew)

    run.__name__ = test.__name__
    return scenario(run)


class Stranger:
    """A caller that does as it likes, with any credentials, or none."""

    def __init__(self, channel: Any, said: PeerId) -> None:
        self.said = said
        self._channel = channel
        self._connection = Connection(channel, said, Counter(), PATIENCE_S)

    async def hello(self) -> Hello:
        mine = Hello(peer=self.said, address="", model=(("model", "same"),), policy=())
        return await self._connection.hello(mine, PATIENCE_S)

    async def opens(self, method: str) -> None:
        with self._connection.stream(method) as stream:
            await stream.accepted()

    async def __aenter__(self) -> Stranger:
        return self

    async def __aexit__(self, *fault: object) -> None:
        await self._connection.close()


def stranger(address: str, security: MutualTls | None, said: str, to: str = "b") -> Stranger:
    channel = security.channel(address, [], to) if security else grpc.aio.insecure_channel(address)
    return Stranger(channel, PeerId(said, 1))


def nameless(address: str, authorities: bytes = OURS.pem) -> Stranger:
    """A caller without a certificate."""
    credentials = grpc.ssl_channel_credentials(authorities)
    options = [("grpc.ssl_target_name_override", host_of_name("b", ROOT_KEY))]
    channel = grpc.aio.secure_channel(address, credentials, options=options)
    return Stranger(channel, PeerId("a", 1))


# ── the right ones ────────────────────────────────────────────────────────────────────────────────


@secured
async def test_two_learners_with_certificates_meet_and_exchange_everything(crew: Crew) -> None:
    a, b = await crew.pair()
    assert a.of("met")[0] == (b.id, b.address, b.address)
    assert b.of("met")[0] == (a.id, a.address, "")
    up, down = Beat(peer=a.id, address=a.address, count=1), Call(b.id, 1)
    a.transport.send(b.id, up, "")
    b.transport.send(a.id, down, "")
    await b.until(lambda: b.messages(Beat) == [up])
    await a.until(lambda: a.messages(Call) == [down])
    offer = offer_of(a)
    b.answer = lambda message: b.transport.send(a.id, seal_of(b, offer), "exchange")
    a.transport.send(b.id, offer, "")
    await a.until(lambda: a.of("delivered") and a.messages(Seal))
    b.answer = lambda message: b.transport.send(a.id, state_of(b), "pull")
    a.transport.send(b.id, Want(a.id, 0, b""), "")
    await a.until(lambda: a.messages(State))


@secured
async def test_a_learner_that_nobody_can_dial_takes_part(crew: Crew) -> None:
    b = await crew("b")
    a = await crew("a", b.address, listen=None)
    await a.linked_with(b)
    await b.linked_with(a)


@secured
async def test_gossip_leads_to_a_learner_of_that_name(crew: Crew) -> None:
    a, b = await crew("a"), await crew("b")
    a.known = [(b.id, b.address)]
    await a.linked_with(b)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has abstract sockets")
@pytest.mark.parametrize("security", [BARE, tls("a")], ids=["plaintext", "TLS"])
def test_a_host_that_is_called_like_a_scheme_of_grpcs_is_a_host(security: Security) -> None:
    number = os.getpid() % 60_000 + 1

    async def dial() -> None:
        channel = security.channel(f"unix-abstract:{number}", [], "b")
        async with Stranger(channel, PeerId("a", 1)) as a:
            with pytest.raises(PeerError):
                await a.hello()

    with socket.socket(socket.AF_UNIX) as there:
        there.bind(f"\0{number}")
        there.listen()
        there.setblocking(False)
        asyncio.run(dial())
        with pytest.raises(BlockingIOError):
            there.accept()


@secured
async def test_a_learner_recognises_itself(crew: Crew) -> None:
    first = await crew("a")
    address = first.address
    await first.transport.stop()
    a = await crew("a", address, listen=address)
    await a.until(lambda: a.of("itself") == [(address,)])


@pytest.mark.parametrize("key", ["P-256", "RSA"])
def test_keys_of_both_kinds_work(key: str) -> None:
    @secured
    async def run(crew: Crew) -> None:
        b = await crew("b", security=tls("b", key=key))
        a = await crew("a", b.address)
        await a.linked_with(b)

    run()


@secured
async def test_a_certificate_without_any_use_said_works_at_both_ends(crew: Crew) -> None:
    b = await crew("b", security=tls("b", usage=None))
    a = await crew("a", b.address, security=tls("a", usage=None))
    await a.linked_with(b)


@secured
async def test_while_authorities_change_both_kinds_of_learners_meet(crew: Crew) -> None:
    """The old one comes first in everybody's file. b has a certificate of the new one."""
    later = Authority.random(NOW - DAY, NOW + DAY)
    both = OURS.pem + later.pem
    own = issue(later, "b", hosts=[host_of_name("b", ROOT_KEY), ANY_LEARNER])
    new = Identity(name="b", authorities=both, chain=own[0], key=own[1])
    b = await crew("b", security=MutualTls(new, "files"))
    a = await crew("a", b.address, security=MutualTls(replace(identity("a"), authorities=both), ""))
    await a.linked_with(b)
    late = await crew("late", b.address)
    await late.until(lambda: late.of("unreached"))
    assert late.of("met") == []


@pytest.mark.parametrize(
    ("version", "taken"),
    [
        (ssl.TLSVersion.TLSv1, False),
        (ssl.TLSVersion.TLSv1_1, False),
        (ssl.TLSVersion.TLSv1_2, True),
        (ssl.TLSVersion.TLSv1_3, True),
    ],
)
def test_old_versions_of_tls_are_refused(
    version: ssl.TLSVersion, taken: bool, tmp_path: Path
) -> None:
    directory = files_of(tmp_path, OURS, "a")
    context = ssl.create_default_context(cafile=str(directory / "ca.pem"))
    context.load_cert_chain(directory / "cert.pem", directory / "key.pem")
    context.set_ciphers("ALL:@SECLEVEL=0")  # or this end would refuse the old ones
    context.set_alpn_protocols(["h2"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = version

    @secured
    async def run(crew: Crew) -> None:
        b = await crew("b")
        try:
            _, writer = await asyncio.open_connection(
                *parse_address("b", b.address), ssl=context, server_hostname=ANY_LEARNER
            )
        except OSError:  # an `SSLError` is one; some versions of gRPC just hang up
            assert not taken
        else:
            said = writer.get_extra_info("ssl_object").version()
            writer.close()
            assert taken, said
            assert said == version.name.replace("_", ".")

    run()


@secured
async def test_a_model_that_differs_is_refused_on_both_sides(crew: Crew) -> None:
    b = await crew("b")
    b.policy = (("sync_every", "64"),)
    a = await crew("a", b.address)
    await a.until(lambda: a.of("refused"))
    remedy = "pass the same sync_every to both"
    assert a.of("refused") == [(b.address, f"sync_every: here 128, there 64; {remedy}")]
    await b.until(lambda: b.of("refused"))
    assert b.of("refused") == [(a.address, f"sync_every: here 64, there 128; {remedy}")]


# ── strangers ─────────────────────────────────────────────────────────────────────────────────────

CALLERS: dict[str, dict[str, Any]] = {
    "another authority": {"authority": OTHERS},
    "expired": {"begin": -9 * DAY, "end": -DAY},
    "not yet valid": {"begin": DAY},
    "not for callers": {"usage": [SERVER]},
    "no URI": {"uris": []},
    "two URIs": {"uris": [uri_of("a"), uri_of("c")]},
    "somebody else's URI": {"uris": ["spiffe://there/a"]},
    "another name": {"uris": [uri_of("c")]},
    "Ed25519": {"key": "Ed25519"},
}


@pytest.mark.parametrize("caller", CALLERS)
def test_a_caller_with_a_wrong_certificate_learns_nothing(caller: str) -> None:
    @secured
    async def run(crew: Crew) -> None:
        b = await crew("b")
        async with stranger(b.address, tls("a", **CALLERS[caller]), "a") as other:
            with pytest.raises(PeerError) as fault:
                await other.hello()
            for method in ("Control", "Exchange", "Pull", "Push", "PassOn"):
                with pytest.raises(PeerError):
                    await other.opens(method)
        assert "same" not in str(fault.value)
        assert b.events == []
        async with stranger(b.address, tls("a"), "a") as right:
            assert (await right.hello()).peer == b.id

    run()


@secured
async def test_a_caller_without_a_certificate_or_without_tls_gets_no_answer(crew: Crew) -> None:
    b = await crew("b")
    for caller in (nameless(b.address), stranger(b.address, None, "a")):
        async with caller as other:
            with pytest.raises(PeerError):
                await other.hello()
    assert b.events == []


@secured
async def test_a_learner_in_plaintext_and_one_with_credentials_never_meet(crew: Crew) -> None:
    b = await crew("b")
    plain = await crew("c", b.address, security=Learner("x").transport._security)
    await plain.until(lambda: plain.of("unreached"))
    a = await crew("a", plain.address)
    await a.until(lambda: a.of("unreached"))
    assert a.of("unreached")[0] == (plain.address, Unreached.PROTOCOL)
    assert plain.of("met") == a.of("met") == b.of("met") == []


@secured
async def test_another_authority_of_the_same_name_is_another(crew: Crew) -> None:
    b = await crew("b", security=MutualTls(other_cluster("b"), "files"))
    a = await crew("a", b.address)
    await a.until(lambda: a.of("unreached"))
    assert a.of("met") == b.of("met") == []


def other_cluster(name: str) -> Identity:
    """Everything of another authority, but the names that dials of ours demand."""
    hosts = [host_of_name(name, ROOT_KEY), ANY_LEARNER]
    chain, key = issue(OTHERS, name, hosts=hosts)
    return Identity(name=name, authorities=OURS.pem + OTHERS.pem, chain=chain, key=key)


SERVERS: dict[str, dict[str, Any]] = {
    "expired": {"begin": -9 * DAY, "end": -DAY},
    "not yet valid": {"begin": DAY},
    "not for servers": {"usage": [CLIENT]},
    "another host": {"hosts": [ANY_LEARNER, host_of_name("c", ROOT_KEY)]},
    "no common host": {"hosts": [host_of_name("b", ROOT_KEY)]},
}


@pytest.mark.parametrize("server", SERVERS)
def test_a_server_with_a_wrong_certificate_is_not_met(server: str) -> None:
    @secured
    async def run(crew: Crew) -> None:
        b = await crew("b", security=tls("b", **SERVERS[server]))
        a = await crew("a", b.address)
        await a.until(lambda: a.of("unreached"))
        assert a.of("met") == []

    run()


# ── insiders ──────────────────────────────────────────────────────────────────────────────────────


@secured
async def test_an_insider_says_hello_in_its_own_name_only(crew: Crew) -> None:
    b = await crew("b")
    async with stranger(b.address, tls("evil"), "a") as evil:
        with pytest.raises(PeerError, match="the certificate of 'evil' cannot speak for 'a'"):
            await evil.hello()
    assert b.events == []


@pytest.mark.parametrize("method", ["Control", "Exchange", "Pull", "Push", "PassOn"])
def test_an_insider_opens_no_stream_in_the_name_of_another(method: str) -> None:
    @secured
    async def run(crew: Crew) -> None:
        a, b = await crew.pair()
        async with stranger(b.address, tls("evil"), "a") as evil:
            with pytest.raises(PeerError, match="'evil' cannot speak for 'a'"):
                await evil.opens(method)
        a.transport.send(b.id, Call(a.id, 0), "")
        await b.until(lambda: b.messages(Call))
        assert b.messages(Goodbye) == []

    run()


@secured
async def test_an_insider_at_the_address_of_a_seed_is_not_taken_for_another(crew: Crew) -> None:
    """It answers hellos with the name of b, which its certificate does not have."""
    evil = await crew("b", security=tls("evil"))
    a = await crew("a", evil.address)
    await a.until(lambda: len(a.of("unreached")) >= 2)
    assert a.of("met") == []


@secured
async def test_an_insider_at_the_address_of_a_contact_is_not_taken_for_it(crew: Crew) -> None:
    evil = await crew("b", security=tls("evil"))
    b = await crew("b", incarnation=2)
    a = await crew("a")
    visit = a.transport._dialler._visit

    async def visited(address: str, seed: str, contact: PeerId | None) -> VisitOutcome:
        outcome = await visit(address, seed, contact)
        a._note("visited", address, outcome)
        return outcome

    a.transport._dialler._visit = visited  # type: ignore[method-assign]
    a.known = [(evil.id, evil.address)]
    await a.until(lambda: a.of("visited") or a.up)
    assert a.of("visited") == [(evil.address, VisitOutcome.FAILED)]
    a.known = [(evil.id, evil.address), (b.id, b.address)]
    await a.linked_with(b)
    assert evil.id not in a.up
    assert {id for id, _, _ in a.of("met")} == {b.id}


@secured
async def test_an_insider_with_two_hosts_cannot_change_its_name_between_hellos(crew: Crew) -> None:
    """Its certificate has the hosts of b and evil. It says that it is b, and then evil."""
    hosts = [host_of_name(name, ROOT_KEY) for name in ("b", "evil")]
    evil = await crew("b", security=tls("evil", hosts=[*hosts, ANY_LEARNER]))
    said: list[str] = []

    def hello() -> Hello:
        said.append("b" if len(said) % 2 == 0 else "evil")
        peer = PeerId(said[-1], 1)
        return Hello(peer=peer, address="", model=(("model", "same"),), policy=evil.policy)

    evil.hello = hello  # type: ignore[method-assign]
    said.append("evil")  # the transport asked for its name when it started
    a = await crew("a", evil.address)
    await evil.until(lambda: len(evil.of("met")) >= 4)
    assert said.count("evil") >= 2
    assert a.of("met") == []


@secured
async def test_bulky_messages_go_to_the_name_and_not_to_the_address(crew: Crew) -> None:
    """An insider says that b is to be dialled where it listens itself. It has met a, too, so it
    would take an offer of a."""
    evil = await crew("evil")
    b = await crew("b")
    a = await crew("a", b.address, evil.address)
    await a.linked_with(b, evil)
    link = a.transport._links.get(b.id)
    assert link is not None
    link.reach(evil.address, "127.0.0.1")
    a.transport.send(b.id, offer_of(a), "")
    await a.until(lambda: a.of("undelivered"))
    assert evil.messages(Offer) == []


# ── the denied, and those whose time is over ──────────────────────────────────────────────────────


def sha256_of(security: MutualTls) -> str:
    return security._identity.certificate.sha256


@pytest.mark.parametrize("by", ["name", "certificate"])
def test_a_denied_caller_gets_no_answer(by: str) -> None:
    @secured
    async def run(crew: Crew) -> None:
        own = tls("a")
        denied = {"name": "a", "certificate": sha256_of(own)}[by]
        b = await crew("b", security=tls("b", denied=[denied]))
        async with stranger(b.address, own, "a") as other:
            with pytest.raises(PeerError, match="is denied here"):
                await other.hello()
        async with stranger(b.address, tls("c"), "c") as right:
            assert (await right.hello()).peer == b.id
        assert "a" not in {id.name for id, _, _ in b.of("met")}

    run()


class Caller:
    """What gRPC knows of a caller whose certificate has ended since it connected."""

    def __init__(self, end: timedelta) -> None:
        own = identity("a", begin=-DAY, end=end)
        self._shown = {
            "transport_security_type": [b"ssl"],
            "peer_uri": [uri_of("a").encode()],
            "x509_pem_cert": [own.chain],
        }

    def auth_context(self) -> dict[str, list[bytes]]:
        return self._shown


def test_a_certificate_counts_for_an_hour_after_its_end() -> None:
    hour = timedelta(seconds=EXPIRY_GRACE_S)
    tls("b").check_caller(Caller(-hour + timedelta(minutes=5)), "a")
    with pytest.raises(PeerError, match=r"the certificate of 'a' expired on 20"):
        tls("b").check_caller(Caller(-hour - timedelta(minutes=5)), "a")


def test_a_connection_that_is_not_tls_is_refused_whatever_it_shows() -> None:
    caller = Caller(DAY)
    caller._shown["transport_security_type"] = [b"insecure"]
    with pytest.raises(PeerError, match="the connection is not TLS"):
        tls("b").check_caller(caller, "a")
    del caller._shown["transport_security_type"]
    with pytest.raises(PeerError, match="the connection is not TLS"):
        tls("b").check_caller(caller, "a")


@pytest.mark.parametrize("listen", [LOOPBACK, "localhost:0", ":0"])
def test_a_learner_with_credentials_listens_wherever_it_may(listen: str) -> None:
    @secured
    async def run(crew: Crew) -> None:
        b = await crew("b", listen=listen)
        a = await crew("a", "localhost:" + b.address.rpartition(":")[2])
        await a.linked_with(b)

    run()


def test_the_description_names_the_certificate_and_no_key() -> None:
    own = tls("a")
    said = own.described()
    assert said.startswith(f"mutual TLS (files), certificate {sha256_of(own)[:12]}, valid until 20")
