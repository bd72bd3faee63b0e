"""The decisions of `mend run`: the learners to start again, and how all end. Nothing runs here."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from mend_optim.cli.run.crew import (
    CALM_S,
    HOPELESS,
    LONGEST_PAUSE_S,
    Action,
    Crew,
    Pass,
    Say,
    Show,
    Start,
)
from mend_optim.cli.run.output import LONGEST, Prefixed
from mend_optim.cli.run.seats import Table
from mend_optim.environment import JOINED_FILE


def acts(actions: Iterable[Action]) -> list[Action]:
    return [action for action in actions if not isinstance(action, Say)]


def said(actions: Iterable[Action]) -> str:
    return " ".join(action.text for action in actions if isinstance(action, Say))


def crew_of(names: str, restarts: int = 2, pause_s: float = 1.0, grace_s: float = 10.0) -> Crew:
    crew = Crew(list(names), restarts, pause_s, grace_s)
    assert acts(crew.tick(0.0)) == [Start(i) for i in range(len(names))]
    return crew


def test_learners_that_end_well_are_done() -> None:
    crew = crew_of("ab")
    assert crew.wake_at is None
    assert said(crew.ended(0, 0, 5.0, joined={0})) == "a is done"
    assert not crew.is_over
    list(crew.ended(1, 0, 5.0))
    assert (crew.is_over, crew.status, crew.wake_at) == (True, 0, None)


def test_a_learner_that_is_done_and_never_joined_is_named() -> None:
    crew = crew_of("abc")
    told = "a is done, and has never joined: does its script step a MendOptimizer?"
    assert said(crew.ended(0, 0, 5.0)) == told
    list(crew.ended(1, 1, 5.0, joined={1}))
    list(crew.tick(6.0))
    assert said(crew.ended(1, 0, 7.0)) == "b is done"  # a process before this one had joined
    list(crew.told(signal.SIGINT, 8.0))
    assert said(crew.ended(2, 0, 9.0)) == "c is done"


def test_a_learner_is_started_again_after_pauses_that_double_and_then_no_more() -> None:
    crew = crew_of("a")
    assert said(crew.ended(0, 3, 0.5)) == (
        "a ended with status 3 after 0.5 s; it starts again in 1 s (1 of 2)"
    )
    assert crew.wake_at == 1.5
    assert acts(crew.tick(1.4)) == []
    assert acts(crew.tick(1.5)) == [Start(0)]
    assert "in 2 s (2 of 2)" in said(crew.ended(0, -signal.SIGKILL, 2.0))
    assert acts(crew.tick(4.0)) == [Start(0)]
    assert said(crew.ended(0, -signal.SIGKILL, 5.0)) == (
        "a was ended by SIGKILL after 1.0 s; it is not started again"
    )
    assert (crew.is_over, crew.status) == (True, 137)


def test_a_learner_that_ran_for_long_begins_to_count_anew() -> None:
    crew = crew_of("a", restarts=1)
    list(crew.ended(0, 1, 1.0))
    list(crew.tick(2.0))
    assert "1 of 1" in said(crew.ended(0, 1, 2.0 + CALM_S))


def test_pauses_have_a_longest_one() -> None:
    crew, now = crew_of("a", restarts=100), 0.0
    for _ in range(50):
        list(crew.ended(0, 1, now, joined={0}))
        assert crew.wake_at is not None
        assert crew.wake_at - now <= LONGEST_PAUSE_S
        now = crew.wake_at
        list(crew.tick(now))


def fail(crew: Crew, index: int, times: int) -> list[Action]:
    """A learner fails so often, after a long run each time. Returns what follows the last time."""
    now, actions = 0.0, []
    for _ in range(times):
        list(crew.tick(now))
        now += CALM_S
        actions = list(crew.ended(index, 3, now))
        now += LONGEST_PAUSE_S
    return actions


def test_learners_of_which_none_ever_joins_are_given_up_however_long_they_run() -> None:
    crew = crew_of("ab", restarts=100)
    fail(crew, 0, HOPELESS)
    assert crew.wake_at is not None
    fail(crew, 1, HOPELESS - 1)
    assert crew.wake_at is not None
    assert len(acts(crew.tick(1e5))) == 2
    last = list(crew.ended(1, 3, 1e6))
    assert not crew.is_over  # the other one runs, and may join
    assert "no learner has joined in 3 starts, so none is started again" in said(last)
    last = list(crew.ended(0, 4, 1e6))
    assert (crew.is_over, crew.status) == (True, 4)
    assert "a ended with status 4 after" in said(last)
    assert "the last lines of a were:" in said(last)
    assert acts(last) == [Show(0)]


def test_learners_that_all_pause_are_given_up_at_once() -> None:
    crew = crew_of("ab", restarts=100)
    for _ in range(HOPELESS - 1):
        for index in (0, 1):
            list(crew.ended(index, 3, 1.0))
        list(crew.tick(1e3))
    list(crew.ended(0, 3, 1.0))
    assert acts(crew.ended(1, 3, 1.0)) == [Show(1)]
    assert crew.is_over


def test_learners_are_not_given_up_once_one_has_joined_or_is_done() -> None:
    for joined, code in (({0}, 3), (set[int](), 0)):
        crew = crew_of("ab", restarts=100)
        list(crew.ended(0, code, 1.0, joined))
        assert acts(fail(crew, 1, 20)) == []
        assert crew.wake_at is not None


def test_learners_are_not_given_up_while_one_that_has_joined_runs() -> None:
    """It has failed as often before."""
    crew = crew_of("ab", restarts=100)
    fail(crew, 0, HOPELESS)
    fail(crew, 1, HOPELESS - 1)
    list(crew.tick(1e5))
    last = list(crew.ended(1, 3, 1e5, joined={0}))
    assert "it starts again in" in said(last)
    assert crew.wake_at is not None


def test_a_learner_that_ends_well_at_last_has_ended_well() -> None:
    crew = crew_of("a")
    list(crew.ended(0, 1, 1.0))
    list(crew.tick(2.0))
    list(crew.ended(0, 0, 3.0))
    assert crew.status == 0


def test_the_first_signal_is_passed_on_and_after_the_grace_who_is_left_is_killed() -> None:
    crew = crew_of("abc")
    list(crew.ended(0, 1, 1.0))  # pauses
    assert acts(crew.told(signal.SIGTERM, 1.5)) == [
        Pass(1, signal.SIGTERM),
        Pass(2, signal.SIGTERM),
    ]
    assert acts(crew.tick(2.0)) == []
    list(crew.ended(1, 0, 3.0))
    assert crew.wake_at == 11.5
    killed = list(crew.tick(11.5))
    assert acts(killed) == [Pass(2, signal.SIGKILL)]
    assert said(killed) == "c did not end within 10 s"
    list(crew.ended(2, -signal.SIGKILL, 11.6))
    assert (crew.is_over, crew.status) == (True, 128 + signal.SIGTERM)


def test_a_signal_of_the_script_goes_to_those_that_run_and_stops_nobody() -> None:
    crew = crew_of("abc")
    list(crew.ended(0, 1, 1.0))  # pauses
    for _ in range(2):
        passed = list(crew.noted(signal.SIGUSR1))
        assert acts(passed) == [Pass(1, signal.SIGUSR1), Pass(2, signal.SIGUSR1)]
        assert said(passed) == "SIGUSR1: passed on to the learners"
    assert not crew.is_stopped
    assert acts(crew.tick(100.0)) == [Start(0)]


def test_the_second_signal_kills() -> None:
    crew = crew_of("a")
    list(crew.told(signal.SIGINT, 1.0))
    assert acts(crew.told(signal.SIGINT, 1.1)) == [Pass(0, signal.SIGKILL)]
    assert crew.wake_at is None


events = st.lists(
    st.tuples(
        st.sampled_from(["end", "tick", "stop"]),
        st.integers(0, 2),
        st.sampled_from([0, 0, 1, -9]),
        st.floats(0, 100),
    ),
    max_size=40,
)


@given(events, st.integers(0, 3))
def test_nobody_is_started_after_the_stop_or_more_often_than_agreed(
    told: list[tuple[str, int, int, float]], restarts: int
) -> None:
    crew = crew_of("abc", restarts=restarts)
    running, now, stopped, in_a_row = {0, 1, 2}, 0.0, False, dict.fromkeys(range(3), 0)
    begun = dict.fromkeys(range(3), 0.0)
    for kind, index, code, passed_s in told:
        now += passed_s
        actions: list[Action] = []
        if kind == "end" and index in running:
            running.remove(index)
            in_a_row[index] = 1 if now - begun[index] >= CALM_S else in_a_row[index] + 1
            actions = list(crew.ended(index, code, now))
        elif kind == "stop":
            stopped = True
            actions = list(crew.told(signal.SIGINT, now))
        elif kind == "tick":
            actions = list(crew.tick(now))
        for action in acts(actions):
            if isinstance(action, Start):
                assert not stopped
                assert action.index not in running
                assert in_a_row[action.index] <= restarts
                running.add(action.index)
                begun[action.index] = now
            elif isinstance(action, Pass):
                assert action.index in running
        assert not (crew.is_over and running)
        assert crew.is_over or running or crew.wake_at is not None


@given(st.lists(st.binary(max_size=30)), st.data())
def test_lines_are_whole_however_they_come(lines: list[bytes], data: st.DataObject) -> None:
    text = b"".join(line.replace(b"\r", b"").replace(b"\n", b"") + b"\n" for line in lines) + b"end"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    stream = Prefixed("a", 3)
    got = b""
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        got += b"".join(stream.feed(text[begin:end]))
    got += b"".join(stream.end())
    want = [line for line in text.split(b"\n") if line]
    assert got == b"".join(b"a   | " + line + b"\n" for line in want)
    assert list(stream.end()) == []


def test_a_progress_bar_makes_lines_and_an_endless_line_is_cut() -> None:
    stream = Prefixed("a", 1)
    assert list(stream.feed(b"10%\r20%\r\n30")) == [b"a | 10%\n", b"a | 20%\n"]
    (cut,) = stream.feed(b"x" * LONGEST)
    assert len(cut) == len("a | \n") + LONGEST
    assert list(Prefixed("b", 1, 1).feed(b"x\n")) == [b"\x1b[33mb | \x1b[0mx\n"]


def test_each_learner_is_told_its_own() -> None:
    table = Table(
        names=("a", "b", "c"),
        addresses=("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"),
        command=("train", "--shard={index}/{count}", "{name}", "{other}"),
        secret="/s",
        gpus=("0", "1"),
        joined="/j",
    )
    seats = table.seats({"PATH": "/bin", "MEND_CREDENTIALS": "/elsewhere", "MEND_INSECURE": "1"})
    assert [seat.environment[JOINED_FILE] for seat in seats] == ["/j/0", "/j/1", "/j/2"]
    assert [seat.command for seat in seats] == [
        ("train", f"--shard={i}/3", name, "{other}") for i, name in enumerate("abc")
    ]
    assert dict(seats[1].environment) == {
        "PATH": "/bin",
        "MEND_NAME": "b",
        "MEND_LISTEN": "127.0.0.1:2",
        "MEND_PEERS": "127.0.0.1:1,127.0.0.1:3",
        "MEND_SECRET_FILE": "/s",
        JOINED_FILE: "/j/1",
        "PYTHONUNBUFFERED": "1",
        "CUDA_VISIBLE_DEVICES": "1",
    }
    assert seats[2].environment["CUDA_VISIBLE_DEVICES"] == "0"
    (seat,) = Table(
        names=("a",), addresses=("127.0.0.1:1",), command=("x",), credentials="/pki"
    ).seats({})
    assert seat.environment["MEND_CREDENTIALS"] == "/pki/a"
    assert JOINED_FILE not in seat.environment
    assert seat.environment["MEND_PEERS"] == ""
