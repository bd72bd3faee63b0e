"""The lead waits for the network for longer than a rank may be silent in its group."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.ranks.company import Company, Nursery
from tests.ranks.scenarios import ROUNDS

#: The other ranks give up after a longer silence of the lead.
TIMEOUT_S = 3.0
#: So often the lead says that it waits, in a longer time.
OFTEN = {"join": 4, "finish": 12}


@pytest.mark.parametrize("call", OFTEN)
def test_ranks_wait_with_their_lead(nursery: Nursery, tmp_path: Path, call: str) -> None:
    """As they do while a large model comes over a slow link, or while a peer that has much left to
    train pauses."""
    company = Company(nursery, tmp_path)
    if call == "finish":
        os.mkfifo(tmp_path / "go on")
        b = company.start("b", "pause")
        company.await_event("b0", "open")
    a = company.start("a", "wait long", 2, timeout_s=TIMEOUT_S)
    if call == "finish":
        company.await_event("a0", "merged")
        (tmp_path / "pause").touch()
        company.await_event("b0", "pauses")
    said = company.events["a1"]
    enough = len(said["waits"]) + OFTEN[call]
    company.until(lambda: len(said["waits"]) >= enough or said["ended"], "the lead's words")
    assert not said["ended"]
    if call == "join":
        b = company.start("b", "beside")
    assert company.await_event("a0", "merged")["rounds"] >= ROUNDS
    if call == "finish":
        (tmp_path / "go on").write_text("")
    (tmp_path / "enough").touch()
    first, second, other = company.left([*a, *b])
    assert first["finish"][0]
    assert first["finish"][1] == second["finish"][1] == other["finish"][1]
