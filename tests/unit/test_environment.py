"""Variables that stand in for arguments, and variables that only look as if they did."""

from __future__ import annotations

import pytest
import torch
from torch.optim import SGD

from mend_optim import MendOptimizer, environment

pytestmark = pytest.mark.usefixtures("no_environment")


@pytest.fixture(autouse=True)
def _new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was reported yet."""
    monkeypatch.setattr(environment, "_reported", set())


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]


def wrap() -> None:
    MendOptimizer(SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1))


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("MEND_PEER", "; did you mean MEND_PEERS?"),
        ("MEND_LISTENS", "; did you mean MEND_LISTEN?"),
        ("MEND_XYZZY_WHATEVER", ""),
    ],
)
def test_an_unknown_variable_is_reported_once_with_the_nearest_known_one(
    variable: str, hint: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(variable, "b:1")
    wrap()
    wrap()
    said = f"the environment variable {variable} means nothing to mend_optim{hint}"
    assert warnings(caplog) == [said]


def test_known_variables_and_those_of_others_are_not_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MEND_NAME", "a")
    monkeypatch.setenv("MENDED", "1")
    monkeypatch.setenv("AMEND_PEER", "1")
    wrap()
    assert warnings(caplog) == []
