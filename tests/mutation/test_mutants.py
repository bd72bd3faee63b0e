"""The list of mutants does not rot: each changes what it says, every law has some, and a run is
judged rightly."""

from __future__ import annotations

from pathlib import Path
from types import CodeType

import pytest

from tests.mutation.mutant_list import Mutant
from tests.mutation.mutants import MUTANTS, ROOT, mutated, verdict

LAWS = range(1, 12)


def meaning(source: str, called: str) -> CodeType:
    return without_lines(compile(source, called, "exec", dont_inherit=True))


def without_lines(code: CodeType) -> CodeType:
    """The code alone: not where in the text it stands."""
    constants = (without_lines(c) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(co_consts=tuple(constants), co_linetable=b"", co_firstlineno=1)


@pytest.mark.parametrize("room", sorted({mutant.room for mutant in MUTANTS}))
def test_each_mutant_of_a_room_changes_one_place_into_other_code(room: str) -> None:
    source = (ROOT / "mend_optim" / f"{room}.py").read_text(encoding="utf-8")
    means = meaning(source, room)
    idle = [
        mutant.name
        for mutant in MUTANTS
        if mutant.room == room and meaning(mutated(source, mutant), mutant.name) == means
    ]
    assert idle == []


@pytest.mark.parametrize(
    ("source", "same"),
    [
        ("def f(x):\n    # a comment\n    return (x  +  1)\n", True),
        ("def f(x):\n    return x + 2\n", False),
        ("def f(x):\n    return x + 1.0\n", False),
        ("def f(y):\n    return y + 1\n", False),
        ("def f(x: int):\n    return x + 1\n", False),
    ],
)
def test_other_code_is_told_from_the_same_code_elsewhere(source: str, same: bool) -> None:
    code = "\n\ndef f(x):\n    return x + 1\n"
    assert (meaning(source, "a") == meaning(code, "b")) is same


@pytest.mark.parametrize("law", LAWS)
def test_every_law_has_mutants(law: int) -> None:
    assert len([mutant for mutant in MUTANTS if mutant.law == law]) >= 2


def test_mutants_are_named_once_and_break_a_law() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert {mutant.law for mutant in MUTANTS} <= set(LAWS)


def test_the_tests_that_must_notice_are_there() -> None:
    named = {
        argument.split("::")[0]
        for mutant in MUTANTS
        for argument in mutant.tests
        if ".py" in argument
    }
    assert {name for name in named if not (ROOT / name).is_file()} == set()


@pytest.mark.parametrize(("text", "times"), [("absent", 0), ("twice", 2)])
def test_a_text_that_does_not_occur_once_is_refused(text: str, times: int) -> None:
    with pytest.raises(ValueError, match=f"rotten.*got {times} times"):
        mutated("twice twice once", Mutant("rotten", 1, "room", text, "", ()))


SUMMARY = "\n==== short test summary info ====\n"
FAILURE = f"F{SUMMARY}FAILED tests/test_round.py::test_one[a b] - assert 1 == 2\n"
ERROR = f"E{SUMMARY}ERROR tests/test_round.py - ImportError: no\n"


@pytest.mark.parametrize(
    ("status", "output", "expected"),
    [
        (0, "..", ("passed", "")),
        (1, FAILURE, ("caught", "test_round.py::test_one[a b]")),
        (1, ERROR, ("broken", "pytest ended with status 1")),
        (2, ERROR, ("broken", "pytest ended with status 2")),
        (4, "not the copy", ("broken", "pytest ended with status 4")),
        (5, "no tests ran", ("broken", "pytest ended with status 5")),
    ],
)
def test_only_a_test_that_failed_has_caught_a_mutant(
    status: int, output: str, expected: tuple[str, str]
) -> None:
    outcome, by = verdict(status, output)
    assert (outcome, by.split(":\n")[0]) == expected


def test_mutants_are_made_where_the_sources_are() -> None:
    assert Path(__file__).parents[2] == ROOT
