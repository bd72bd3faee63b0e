"""The table of a learner's modes, beside one that is written out here as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.engine.mode import MODES, SWITCHING, Change, Mode
from mend_optim.engine.policies import Policies
from mend_optim.engine.schedule import Schedule
from mend_optim.engine.state import EngineState
from mend_optim.protocol.lineage import PeerId

# mode, change, next mode; LEFT and CLOSED are added below.
TABLE = """
    NEW                 BEGUN             JOINING
    JOINING             JOINED            TRAINING
    JOINING             JOINED_ALONE      SOLO
    JOINING             INSTALLED         JOINING
    JOINING             SWITCH_BEGUN      SWITCHING_JOINING
    SWITCHING_JOINING   SWITCH_ENDED      JOINING
    SWITCHING_JOINING   INSTALLED         SWITCHING_JOINING
    SOLO                MET_OWN_MODEL     TRAINING
    SOLO                MET_LESSER_MODEL  FOUNDING
    SOLO                INSTALLED         TRAINING
    SOLO                SWITCH_BEGUN      SWITCHING_SOLO
    SWITCHING_SOLO      SWITCH_ENDED      SOLO
    SWITCHING_SOLO      MET_OWN_MODEL     SWITCHING_TRAINING
    SWITCHING_SOLO      INSTALLED         SWITCHING_TRAINING
    FOUNDING            NOTHING_TO_FOUND  SOLO
    FOUNDING            COPY_BEGUN        COPYING
    FOUNDING            INSTALLED         TRAINING
    COPYING             COPY_FAILED       FOUNDING
    COPYING             FOUNDED           TRAINING
    TRAINING            LOST_ALL_PEERS    SOLO
    TRAINING            INSTALLED         TRAINING
    TRAINING            SWITCH_BEGUN      SWITCHING_TRAINING
    SWITCHING_TRAINING  SWITCH_ENDED      TRAINING
    SWITCHING_TRAINING  LOST_ALL_PEERS    SWITCHING_SOLO
    SWITCHING_TRAINING  INSTALLED         SWITCHING_TRAINING
"""
# mode: may_adopt, may_seal, before_joined, switching, founding, alone
CAPABILITIES = """
    NEW                 - - - - - -
    JOINING             + - + - - -
    SOLO                + + - - - +
    FOUNDING            - - - - + +
    COPYING             - - - - + +
    SWITCHING_JOINING   - - + + - -
    SWITCHING_SOLO      - - - + - +
    SWITCHING_TRAINING  - - - + - -
    TRAINING            + + - - - -
    CLOSED              - - - - - -
"""


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.strip().splitlines()]


NEXT = {(mode, change): after for mode, change, after in rows(TABLE)}
NEXT |= {(mode.name, "LEFT"): "CLOSED" for mode in Mode}
NEXT |= {("CLOSED", change.name): "CLOSED" for change in Change}


def state_in(mode: Mode) -> EngineState:
    state = EngineState(PeerId("me", 1), "", (), Policies(schedule=Schedule()))
    state.mode = mode
    return state


def test_the_table_of_modes() -> None:
    found = {(mode.name, change.name): after.name for (mode, change), after in MODES.items()}
    assert found == NEXT


@pytest.mark.parametrize("change", Change)
@pytest.mark.parametrize("mode", Mode)
def test_a_change_that_the_table_does_not_list_raises_and_changes_nothing(
    mode: Mode, change: Change
) -> None:
    state = state_in(mode)
    after = NEXT.get((mode.name, change.name))
    if after is None:
        with pytest.raises(KeyError):
            state.change(change)
        assert (state.mode, state.joined) == (mode, False)
    else:
        state.change(change)
        assert state.mode.name == after
        assert state.joined is (change.name in ("JOINED", "JOINED_ALONE"))


@pytest.mark.parametrize("row", rows(CAPABILITIES), ids=lambda row: row[0])
def test_what_a_learner_may_do_in_each_mode(row: list[str]) -> None:
    name, *expected = row
    mode = Mode[name]
    found = [
        mode.may_adopt,
        mode.may_seal,
        mode.before_joined,
        mode.switching,
        mode.founding,
        mode.alone,
    ]
    assert ["+" if can else "-" for can in found] == expected


def test_every_mode_is_in_the_table_of_capabilities() -> None:
    assert [row[0] for row in rows(CAPABILITIES)] == [mode.name for mode in Mode]


@given(st.lists(st.sampled_from(Change), max_size=20))
def test_a_closed_learner_stays_closed(changes: list[Change]) -> None:
    state = state_in(Mode.CLOSED)
    for change in changes:
        state.change(change)
        assert state.mode is Mode.CLOSED


@given(st.lists(st.sampled_from(Change), max_size=60))
def test_no_walk_through_the_table_undoes_joining(changes: list[Change]) -> None:
    """Nor does it lead from a mode before joining to one after it, but by joining."""
    state, joined = state_in(Mode.NEW), False
    for change in changes:
        if (state.mode, change) in MODES:
            state.change(change)
        assert state.joined >= joined
        joined = state.joined
        if state.mode is not Mode.CLOSED:
            assert joined is not (state.mode is Mode.NEW or state.mode.before_joined)


@pytest.mark.parametrize(("mode", "switching"), SWITCHING.items())
def test_a_switch_that_ends_leads_back_to_where_it_began(mode: Mode, switching: Mode) -> None:
    state = state_in(mode)
    state.change(Change.SWITCH_BEGUN)
    assert state.mode is switching
    state.change(Change.SWITCH_ENDED)
    assert state.mode is mode
