"""The arguments that secure links: whoever leaves this machine says how, in the call or in the
environment."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import pytest

from mend_optim import Credentials, UsageError
from mend_optim.environment import VARIABLES
from mend_optim.security import INSECURE, LOCAL, LinkSecurity, read_security, refuse_open_links
from mend_optim.transport.security.channels import Plaintext
from tests.unit.test_settings import read

pytestmark = pytest.mark.usefixtures("no_environment")

FILES, SECRET = Credentials.files("pki"), Credentials.secret("s")
LOOPBACKS = ["127.0.0.1:0", "localhost:29600", "[::1]:29600", "127.8.9.1:1"]
BEYOND = ["0.0.0.0:29600", ":29600", "[::]:29600", "10.0.0.5:29600", "b:29600", "localhost.b:1"]


def refused(listen: str | None, peers: tuple[str, ...], security: LinkSecurity) -> str:
    try:
        refuse_open_links(security, listen, "listen", peers, "MEND_PEERS")
    except UsageError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("address", LOOPBACKS)
def test_on_this_machine_links_need_nothing(address: str) -> None:
    assert refused(address, (), LinkSecurity()) == refused(None, (address,), LinkSecurity()) == ""


@pytest.mark.parametrize("address", BEYOND)
def test_links_that_leave_this_machine_are_refused_with_both_remedies(address: str) -> None:
    for said, argument in (
        (refused(address, (), LinkSecurity()), "listen must be a loopback address"),
        (refused("127.0.0.1:0", ("127.0.0.1:1", address), LinkSecurity()), "MEND_PEERS must be"),
    ):
        assert said.startswith(argument)
        assert f"got {address!r}" in said
        assert "pass credentials=Credentials.secret(…) or Credentials.files(…)" in said
        assert "insecure=True" in said


@pytest.mark.parametrize("address", BEYOND)
@pytest.mark.parametrize(
    "security", [LinkSecurity(insecure=True), LinkSecurity(credentials=FILES)], ids=repr
)
def test_links_may_leave_if_the_user_says_how(address: str, security: LinkSecurity) -> None:
    assert refused(address, (address,), security) == ""


@pytest.mark.parametrize(
    ("environment", "credentials", "source"),
    [
        ({}, None, ""),
        ({"MEND_CREDENTIALS": "pki"}, FILES, "MEND_CREDENTIALS"),
        ({"MEND_SECRET_FILE": "s"}, SECRET, "MEND_SECRET_FILE"),
    ],
)
def test_the_environment_stands_in_for_credentials(
    environment: dict[str, str],
    credentials: Credentials | None,
    source: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    told = read_security(None, False)
    assert told.credentials == credentials
    assert not source or told.source == source
    own = read_security(Credentials.files("own"), False)
    assert (own.credentials, own.source) == (Credentials.files("own"), "credentials")


@pytest.mark.parametrize(
    ("value", "insecure"), [("1", True), ("True", True), (" yes ", True), ("0", False), ("", False)]
)
def test_the_environment_stands_in_for_insecure(
    value: str, insecure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEND_INSECURE", value)
    assert read_security(None, False).insecure is insecure


def test_another_value_of_the_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEND_INSECURE", "never")
    with pytest.raises(UsageError, match=r"^MEND_INSECURE must be one of .*, got 'never'$"):
        read_security(None, False)


@pytest.mark.parametrize(
    ("credentials", "insecure", "environment", "error"),
    [
        (FILES, True, {}, "insecure must be left out with credentials"),
        (FILES, False, {"MEND_INSECURE": "1"}, "MEND_INSECURE must be left out with credentials"),
        (None, True, {"MEND_SECRET_FILE": "s"}, "insecure must be left out with MEND_SECRET_FILE"),
        (
            None,
            False,
            {"MEND_SECRET_FILE": "s", "MEND_CREDENTIALS": "pki"},
            "MEND_SECRET_FILE must be left out with MEND_CREDENTIALS",
        ),
    ],
)
def test_contradictions_are_refused(
    credentials: Credentials | None,
    insecure: bool,
    environment: dict[str, str],
    error: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=f"^{error}"):
        read_security(credentials, insecure)


def test_every_variable_stands_in_for_something_here() -> None:
    assert {"credentials", "secret", "insecure"} < set(VARIABLES)


def test_a_learner_beyond_loopback_is_refused_before_anything_starts() -> None:
    for told in ({"listen": "0.0.0.0:0"}, {"peers": "b:1"}):
        with pytest.raises(UsageError, match="insecure=True"):
            read(insecure=False, **told)
        place = read(**told).place
        assert place is not None
        assert place.security.insecure


def test_going_without_is_warned_of_and_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        local = LinkSecurity().open("a")
        assert caplog.records == []
        bare = LinkSecurity(insecure=True).open("a")
    assert isinstance(bare, Plaintext)
    assert (local.described(), bare.described()) == (LOCAL, INSECURE)
    assert (local.keeps_bytes, bare.keeps_bytes) == (True, False)
    (record,) = caplog.records
    assert record.getMessage().startswith("a: insecure=True: links are neither encrypted nor")


def test_a_copy_has_no_credentials(tmp_path: Path) -> None:
    settings: Any = read(listen="127.0.0.1:0", credentials=FILES, insecure=False)
    assert settings.place.security.credentials == FILES
    copied = pickle.loads(pickle.dumps(settings.offline()))
    assert copied.place is None
    assert "pki" not in repr(copied)
