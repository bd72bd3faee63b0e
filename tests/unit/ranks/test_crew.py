"""A rank's decisions from the words of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mend_optim import ClosedError, MendError, UsageError
from mend_optim.ranks.crew import Crew
from mend_optim.ranks.orders import Deed, Order, decode_order, encode_order
from mend_optim.ranks.words import Call, Table, Word


class Said:
    """A table that is there already, or a rank that is lost."""

    def __init__(self, table: Table | None) -> None:
        self.table = table

    def wait(self, meanwhile: Callable[[float], None]) -> Table:
        if self.table is None:
            raise MendError("lost")
        return self.table

    def missing(self) -> dict[int, Word | None]:
        return {1: step(7)}


class Slow(Said):
    """A table that comes after half a minute."""

    def wait(self, meanwhile: Callable[[float], None]) -> Table:
        for waited_s in range(31):
            meanwhile(waited_s)
        return super().wait(meanwhile)


class ScriptedTalk:
    """The other rank says what a script has; None: it is lost."""

    rank = 0
    size = 2

    def __init__(self, *others: Word | None) -> None:
        self.others = list(others)
        self.said: list[Word] = []
        self.told: list[tuple[bytes, int]] = []

    def say(self, word: Word) -> Any:
        self.said.append(word)
        other = self.others.pop(0)
        return Said(None if other is None else Table([word, other]))

    def failed(self) -> tuple[int, ...]:
        return ()

    def tell(self, data: bytes, nbytes: int) -> Sequence[bytes]:
        self.told.append((data, nbytes))
        return [data.ljust(nbytes, b"\0"), b"x" * nbytes]


class Interrupted:
    """Ctrl-C comes during the wait."""

    def wait(self, meanwhile: Callable[[float], None]) -> Table:
        raise KeyboardInterrupt


def crew_of(*others: Word | None) -> tuple[Crew, ScriptedTalk]:
    talk = ScriptedTalk(*others)
    return Crew(talk), talk  # type: ignore[arg-type]


def step(number: int, **options: Any) -> Word:
    return Word(call=Call.STEP, step=number, **options)


def test_words_are_heard_one_step_later() -> None:
    crew, talk = crew_of(step(1, tokens=5), step(2))
    assert crew.posted() is None
    crew.post(step(1, tokens=3))
    table = crew.posted()
    assert table is not None
    assert table.tokens == 8
    crew.post(step(2))
    assert [word.step for word in talk.said] == [1, 2]


def test_the_longest_tells_how_much_all_tell() -> None:
    crew, talk = crew_of(Word(call=Call.JOIN, step=0, nbytes=7), Word(call=Call.JOIN, step=0))
    assert crew.tell(Call.JOIN, 0, b"abc") == [b"abc\0\0\0\0", b"xxxxxxx"]
    assert talk.told == [(b"abc", 7)]
    assert crew.tell(Call.JOIN, 0) == [b"", b""]
    assert len(talk.told) == 1


@pytest.mark.parametrize(
    ("other", "kind", "told"),
    [
        (step(2), UsageError, "rank 0 is in step 1, rank 1 is in step 2; call step"),
        (Word(call=Call.CLOSE, step=0), UsageError, r"rank 1 is in close\(\) after step 0"),
        (step(1, failed=True), MendError, "rank 1 of this learner failed"),
        (None, MendError, "lost; rank 0 is in step 1 and waits for rank 1, .* in step 7$"),
    ],
)
def test_after_a_fault_nothing_goes_on(
    other: Word | None, kind: type[MendError], told: str
) -> None:
    crew, talk = crew_of(other)
    with pytest.raises(kind, match=told):
        crew.agree(step(1))
    assert crew.is_over
    for call in (lambda: crew.agree(step(1)), lambda: crew.post(step(1)), crew.posted):
        with pytest.raises(MendError, match="no longer agree"):
            call()
    crew.fail(Call.STEP, 1)
    crew.leave(1)
    assert len(talk.said) == 1


def test_the_others_learn_of_a_fault_at_once() -> None:
    crew, talk = crew_of(step(1))
    crew.fail(Call.STEP, 1)
    assert talk.said == [step(1, failed=True)]
    with pytest.raises(MendError, match="no longer agree"):
        crew.agree(step(2))


def test_the_others_learn_of_a_rank_that_leaves() -> None:
    crew, talk = crew_of(step(1))
    crew.leave(4)
    assert talk.said == [Word(call=Call.CLOSE, step=4)]
    for _ in range(2):
        with pytest.raises(ClosedError, match=r"at close\(\).*call state_dict\(\)"):
            crew.agree(Word(call=Call.STATE_DICT, step=4))
        crew.leave(4)
    assert len(talk.said) == 1


def test_one_that_leaves_after_a_fault_still_tells_of_the_fault() -> None:
    crew, _ = crew_of(step(1))
    crew.fail(Call.STEP, 1)
    crew.leave(1)
    with pytest.raises(MendError, match="no longer agree"):
        crew.agree(Word(call=Call.STATE_DICT, step=1))


def test_a_long_wait_for_a_rank_that_makes_another_call_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A rank that alone saves waits for others, which wait for it in a collective of the model."""
    crew, talk = crew_of()
    at = Word(call=Call.STATE_DICT, step=3)
    monkeypatch.setattr(talk, "say", lambda word: Slow(Table([word, word])))
    crew.agree(at)
    line = "rank 0 is in state_dict() after step 3 and waits for rank 1, which was last in step 7"
    remedy = "all ranks must make the same calls, also state_dict()"
    assert caplog.messages == [f"{line}, after {s} s; {remedy}" for s in (10, 20, 30)]
    # All are there now. The lead may wait for the network as long as it likes.
    crew.agree(at)
    assert len(caplog.messages) == 3
    crew.agree(step(4))
    assert len(caplog.messages) == 6


def test_an_order_travels() -> None:
    order = Order(deed=Deed.PUT, fragment=3, facts={"for_good": True, "names": ["a"]})
    assert decode_order(encode_order(order) + b"\0\0") == order


@pytest.mark.parametrize("posts", [True, False])
def test_a_rank_that_is_interrupted_while_it_waits_is_over_and_says_so(
    posts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would say its next word while the others are elsewhere, and wait for theirs for ever."""
    crew, talk = crew_of()
    said: list[Word] = []

    def say(word: Word) -> Interrupted:
        said.append(word)
        return Interrupted()

    monkeypatch.setattr(talk, "say", say)
    if posts:
        crew.post(step(4))
    with pytest.raises(KeyboardInterrupt):
        _ = crew.posted() if posts else crew.agree(step(4))
    assert crew.is_over
    assert said == [step(4), step(4, failed=True)]
    with pytest.raises(MendError, match="no longer agree"):
        crew.tell(Call.JOIN, 4)


NAMED = "rank 1 of this learner failed, and its own error tells why"
ORDER = Word(call=Call.JOIN, step=4)


@pytest.mark.parametrize("error", [MendError("lost"), UsageError("a mistake"), OSError("full")])
def test_a_rank_that_said_first_that_it_failed_is_named(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end is what this rank notices: a transfer or a letter that does not come."""
    crew, talk = crew_of(ORDER)
    monkeypatch.setattr(talk, "failed", lambda: (1,))
    explains = type(error) is MendError
    with (
        pytest.raises(type(error), match=NAMED if explains else str(error)),
        crew.telling_of_faults(Call.JOIN, 4),
    ):
        raise error
    # It says nothing of its own then, so a third rank learns the name of the first that failed.
    assert talk.said == ([] if explains else [ORDER._replace(failed=True)])
    with pytest.raises(MendError, match="no longer agree"):
        crew.agree(step(4))


@pytest.mark.parametrize(
    ("error", "failed", "told"),
    [
        (MendError("lost"), (), "lost"),
        (MendError("lost"), (1,), NAMED),
        (KeyboardInterrupt("Ctrl-C"), (), "Ctrl-C"),
    ],
)
def test_a_fault_while_the_ranks_tell(
    error: BaseException, failed: tuple[int, ...], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew, talk = crew_of(ORDER, ORDER)

    def break_off(data: bytes, nbytes: int) -> Sequence[bytes]:
        raise error

    monkeypatch.setattr(talk, "tell", break_off)
    monkeypatch.setattr(talk, "failed", lambda: failed)
    with pytest.raises(type(error), match=told):
        crew.tell(Call.JOIN, 4, b"an order")
    assert talk.said[1:] == ([] if failed else [ORDER._replace(failed=True)])
