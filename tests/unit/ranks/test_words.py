"""The words of ranks, and the decisions of all from them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.ranks.words import WIDTH, Call, Table, Word, decode_word, encode_word, waits

words = st.builds(
    Word,
    call=st.sampled_from(Call),
    step=st.integers(0, 2**40),
    tokens=st.integers(0, 2**40),
    failed=st.booleans(),
    answer=st.booleans(),
    nbytes=st.integers(0, 2**40),
    copy=st.integers(-1, 2**40),
    moments=st.integers(0, 2**40),
    comes=st.integers(0, 2**40),
    staged=st.integers(0, 2**40),
    differs=st.booleans(),
)


@given(words)
def test_a_word_is_a_row_and_back(word: Word) -> None:
    row = encode_word(word)
    assert len(row) == WIDTH
    assert all(type(number) is int for number in row)
    assert decode_word(row) == word


@given(st.lists(words, min_size=1, max_size=5))
def test_decisions_are_those_of_the_words(said: list[Word]) -> None:
    table = Table([encode_word(word) for word in said])
    assert table.words == tuple(said)
    lead = said[0]
    assert (table.meets, table.copy) == (lead.answer, lead.copy)
    assert (table.moments, table.comes) == (lead.moments, lead.comes)
    assert table.tokens == sum(word.tokens for word in said)
    assert table.any_answer == any(word.answer for word in said)
    # All ranks have the corrections that none of them lacks.
    assert all(word.staged >= table.staged for word in said)
    assert any(word.staged == table.staged for word in said)
    assert table.differs != any(not word.differs for word in said)
    assert table.nbytes == max(word.nbytes for word in said)
    assert table.failed == tuple(rank for rank, word in enumerate(said) if word.failed)
    together = len({(word.call, word.step) for word in said}) == 1
    assert table.is_whole == (together and not table.failed)


def table(*where: tuple[Call, int]) -> Table:
    return Table([Word(call=call, step=step) for call, step in where])


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            table((Call.STEP, 18), (Call.STEP, 17)),
            "rank 0 is in step 18, rank 1 is in step 17",
        ),
        (
            table((Call.STATE_DICT, 4), *[(Call.STEP, 5)] * 5),
            "rank 0 is in state_dict() after step 4, ranks 1, 2, 3, 4, … are in step 5",
        ),
        (
            table((Call.CONSTRUCTOR, 0), (Call.FIRST_STATE, 0)),
            "rank 0 is in the constructor, rank 1 is in the beginning of step 1",
        ),
    ],
)
def test_ranks_that_have_parted_are_named(said: Table, told: str) -> None:
    assert said.parting() == told


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        ({}, "the others"),
        ({2: None}, "rank 2"),
        ({1: Word(Call.JOIN, 0)}, "rank 1, which was last in join() after step 0"),
        (dict.fromkeys(range(1, 7)), "rank 1; rank 2; rank 3; rank 4; …"),
    ],
)
def test_a_rank_that_waits_tells_for_whom(missing: dict[int, Word | None], told: str) -> None:
    assert waits(0, (Call.STEP, 3), missing) == f"rank 0 is in step 3 and waits for {told}"
