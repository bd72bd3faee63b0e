"""Two hellos are compared: the first difference is the reason for a refusal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mend_optim.protocol.handshake import NO_VALUE, PROTOCOL, Hello, refusal
from mend_optim.protocol.lineage import PeerId

MINE = Hello(peer=PeerId("a", 1), address="", model=(), policy=(("sync_every", "20"),))
THEIRS = replace(MINE, peer=PeerId("b", 1))


def test_learners_that_agree_are_not_refused() -> None:
    assert refusal(MINE, THEIRS) == refusal(THEIRS, MINE) == ""


def test_a_setting_that_may_differ_is_told_to_a_visitor_and_compared_with_no_learners() -> None:
    mine = replace(MINE, may_differ=(("guard", "None"),))
    theirs = replace(THEIRS, may_differ=(("guard", "Guard()"),))
    assert refusal(mine, theirs) == refusal(mine, THEIRS) == refusal(THEIRS, mine) == ""
    visitor = replace(THEIRS, policy=(("guard", NO_VALUE),))
    assert refusal(visitor, mine).startswith("guard: here ?, there None;")
    assert refusal(visitor, MINE).startswith("guard: here ?, there absent;")


@pytest.mark.parametrize("version", [0, PROTOCOL - 1, PROTOCOL + 1])
def test_another_version_of_the_protocol_is_refused_before_all_else(version: int) -> None:
    """It may mean something else by every other field, and by a refusal."""
    other = replace(THEIRS, protocol=version, policy=(("sync_every", "30"),), refusal="no")
    assert refusal(MINE, other).startswith(f"protocol version: here {PROTOCOL}, there {version};")
