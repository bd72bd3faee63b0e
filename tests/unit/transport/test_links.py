"""The news that a user gets of refused peers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mend_optim.protocol.lineage import PeerId
from mend_optim.transport import control
from mend_optim.transport.control import Links
from mend_optim.transport.goodbyes import Goodbyes
from tests.unit.transport.recorder import Recorder


def test_only_so_many_reasons_are_remembered_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer can make up any number of them. Each would stay in memory, and in the log."""
    monkeypatch.setattr(control, "REASONS", 3)
    recorder = Recorder("a")
    links = Links(recorder, None, Goodbyes(None))  # type: ignore[arg-type]
    theirs = replace(recorder.hello(), peer=PeerId("b", 1))
    for i in (0, 0, 1, 2, 3, 4):
        links.agree(recorder.hello(), replace(theirs, refusal=f"reason {i}"), "b:1")
    assert [event[2] for event in recorder.events] == ["reason 0", "reason 1", "reason 2"]
    assert len(links._reported) == 3
