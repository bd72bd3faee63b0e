"""`mend check` and `mend top` run one event loop after another, and say nothing of that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mend_optim.errors import PeerError
from mend_optim.protocol.unreached import Unreached
from mend_optim.protocol.visited import Visit
from mend_optim.transport import look, visit
from mend_optim.transport.late_events import run_alone
from mend_optim.transport.look import looks
from mend_optim.transport.security.channels import Plaintext
from mend_optim.transport.survey import Wish

LATE = "Event loop is closed"


class PollerCompletionQueue:
    """As gRPC's: it hands out the events of all loops on whichever runs."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def handle_events(self) -> None:
        raise RuntimeError(self.fault)


async def brought(fault: str) -> str:
    asyncio.get_running_loop().call_soon(PollerCompletionQueue(fault).handle_events)
    await asyncio.sleep(0)
    return "whole"


@pytest.mark.parametrize("fault", [LATE, "no such event"])
def test_an_event_of_a_former_loop_is_no_news_but_other_faults_are(
    caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    assert run_alone(brought(fault)) == "whole"
    assert len(caplog.records) == (fault != LATE)


def test_another_use_of_a_closed_loop_is_a_fault(caplog: pytest.LogCaptureFixture) -> None:
    def misuse() -> None:
        raise RuntimeError(LATE)

    async def misused() -> None:
        asyncio.get_running_loop().call_soon(misuse)
        await asyncio.sleep(0)

    run_alone(misused())
    assert len(caplog.records) == 1


def visited() -> object:
    wish = Wish()
    return visit.visit("a:1", Plaintext(""), "mend-check", [], patience_s=1.0, wish=wish)


def looked() -> object:
    return looks(["a:1"], Plaintext(""), "mend-top", 1.0)


@pytest.mark.parametrize("deed", [visited, looked])
def test_a_visit_and_a_look_are_silent_about_a_visit_before(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, deed: Callable[[], object]
) -> None:
    async def unreached(*_: Any) -> Any:
        await brought(LATE)
        raise PeerError("nobody answers")

    async def why(*_: Any) -> Any:
        await brought(LATE)
        return Visit(cause=Unreached.REFUSED)

    monkeypatch.setattr(look, "_look", unreached)
    monkeypatch.setattr(visit._Visitor, "visit", why)
    assert deed()
    assert caplog.messages == []
