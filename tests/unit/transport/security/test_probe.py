"""Why a hello fails over TLS: told by real dials, at each kind of place."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from mend_optim.protocol.unreached import Unreached
from mend_optim.transport import grpc_options
from mend_optim.transport.security import probe as module
from mend_optim.transport.security.channels import BARE, Security
from mend_optim.transport.security.probe import probe
from tests.support.certificates import DAY, files_of, new_authority
from tests.unit.transport.security.test_channels import OURS, secured, tls
from tests.unit.transport.test_diagnosis import (
    _hang_up,
    _reset,
    _speak_first,
    _speak_http1,
    _stay_silent,
    closed_port,
    no_name,
    serving,
    tcp,
)
from tests.unit.transport.test_grpc_transport import Crew, scenario

OTHERS = new_authority()
PLACES: dict[str, tuple[Any, Unreached | None]] = {
    "closed port": (closed_port, None),
    "no such name": (no_name, None),
    "silent": (lambda: tcp(_stay_silent), None),
    "HTTP/1": (lambda: tcp(_speak_http1), Unreached.NO_TLS),
    "ssh": (lambda: tcp(_speak_first), Unreached.NO_TLS),
    "hangs up": (lambda: tcp(_hang_up), Unreached.CLOSED),
    "resets": (lambda: tcp(_reset), Unreached.CLOSED),
    "gRPC in plaintext": (serving, Unreached.NO_TLS),
}
CERTIFICATES: dict[str, tuple[dict[str, Any], Unreached]] = {
    "right": ({}, Unreached.DECLINED),
    "expired": ({"begin": -9 * DAY, "end": -DAY}, Unreached.EXPIRED),
    "not yet valid": ({"begin": DAY}, Unreached.EARLY),
    "another authority": ({"authority": OTHERS}, Unreached.AUTHORITY),
    "no learner": ({"hosts": ["there.example"]}, Unreached.NO_LEARNER),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_probe_tells_what_is_there(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    there, expected = PLACES[place]
    monkeypatch.setattr(module, "PATIENCE_S", 0.5)

    async def dial() -> Unreached | None:
        context: AbstractAsyncContextManager[str] = there()
        async with context as address:
            return await probe(address, OURS.pem)

    assert asyncio.run(dial()) is expected


@pytest.mark.parametrize("place", PLACES)
def test_without_credentials_a_probe_knows_tls_and_closed_connections(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, told = PLACES[place]
    expected = told if told is Unreached.CLOSED else None
    monkeypatch.setattr(module, "PATIENCE_S", 0.5)

    async def dial() -> Unreached | None:
        context: AbstractAsyncContextManager[str] = there()
        async with context as address:
            return await BARE.probe(address)

    assert asyncio.run(dial()) is expected


@pytest.mark.parametrize("certificate", CERTIFICATES)
def test_a_probe_tells_what_is_wrong_with_a_certificate(certificate: str, tmp_path: Path) -> None:
    told, expected = CERTIFICATES[certificate]
    directory = files_of(tmp_path / "b", told.get("authority", OURS), "b", **without(told))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "cert.pem", directory / "key.pem")

    async def dial() -> Unreached | None:
        async with tcp(_stay_silent, ssl=context) as address:
            return await probe(address, "Für uns: 安全\n".encode() + OURS.pem)

    assert asyncio.run(dial()) is expected


def without(told: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in told.items() if key != "authority"}


@pytest.mark.parametrize("certificate", sorted(set(CERTIFICATES) - {"right"}))
def test_a_learner_tells_why_it_does_not_reach_another(certificate: str) -> None:
    told, expected = CERTIFICATES[certificate]

    @secured
    async def run(crew: Crew) -> None:
        b = await crew("b", security=tls("b", **told))
        a = await crew("a", b.address)
        await a.until(lambda: (b.address, expected) in a.of("unreached"))
        first = expected if certificate == "no learner" else Unreached.PROTOCOL
        assert {cause for _, cause in a.of("unreached")[:2]} == {first}

    run()


@secured
async def test_a_learner_whose_own_certificate_is_declined_is_told_so(crew: Crew) -> None:
    b = await crew("b")
    a = await crew("a", b.address, security=tls("a", begin=-9 * DAY, end=-DAY))
    await a.until(lambda: (b.address, Unreached.DECLINED) in a.of("unreached"))


@secured
async def test_a_learner_that_is_denied_is_told_that_it_is_declined(crew: Crew) -> None:
    """Its certificate is right, so no handshake fails, and no probe finds a fault."""
    b = await crew("b", security=tls("b", denied=["a"]))
    a = await crew("a", b.address)
    await a.until(lambda: a.of("unreached"))
    assert set(a.of("unreached")) == {(b.address, Unreached.DECLINED)}


@secured
async def test_a_learner_is_told_that_it_denies_a_seed(crew: Crew) -> None:
    b = await crew("b")
    a = await crew("a", b.address, security=tls("a", denied=["b"]))
    await a.until(lambda: a.of("unreached"))
    assert set(a.of("unreached")) == {(b.address, Unreached.DENIED)}
    assert b.id not in {id for id, _, _ in a.of("met")}
    assert b.events == []


@secured
async def test_a_peer_in_plaintext_is_told_of(crew: Crew) -> None:
    b = await crew("b", security=BARE)
    a = await crew("a", b.address)
    await a.until(lambda: (b.address, Unreached.NO_TLS) in a.of("unreached"))


@secured
async def test_a_learner_without_credentials_is_told_that_its_peer_wants_them(crew: Crew) -> None:
    b = await crew("b")
    a = await crew("a", b.address, security=BARE)
    await a.until(lambda: (b.address, Unreached.WANTS_TLS) in a.of("unreached"))
    assert a.of("unreached")[0] == (b.address, Unreached.PROTOCOL)


@pytest.mark.parametrize("security", [tls, lambda _: BARE], ids=["TLS", "plaintext"])
def test_a_learner_that_takes_no_more_connections_is_told_of(
    security: Callable[[str], Security], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks neither like one without credentials nor like another program."""
    monkeypatch.setattr(grpc_options, "most_connections", lambda *_: 0)

    @scenario
    async def run(crew: Crew) -> None:
        b = await crew("b", security=security("b"))
        a = await crew("a", b.address, security=security("a"))
        await a.until(lambda: (b.address, Unreached.CLOSED) in a.of("unreached"))
        told = {cause for _, cause in a.of("unreached")}
        assert told == {Unreached.PROTOCOL, Unreached.CLOSED}

    run()


@secured
async def test_an_impostor_is_told_of(crew: Crew) -> None:
    evil = await crew("b", security=tls("evil"))
    a = await crew("a", evil.address)
    await a.until(lambda: (evil.address, Unreached.IMPOSTOR) in a.of("unreached"))
