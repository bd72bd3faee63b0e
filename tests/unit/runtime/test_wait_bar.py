"""The bar of a long wait: when there is one, what it shows, and that it is cleared."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from mend_optim.runtime import long_wait, wait_bar
from mend_optim.runtime.long_wait import LongWait
from mend_optim.runtime.wait_bar import LOOK_EVERY_S, SHOW_AFTER_S, WaitBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class FakeBar:
    """Stands for a bar of tqdm, and keeps what it was told to draw."""

    made: list[FakeBar]

    def __init__(self, desc: str, initial: int, **options: Any) -> None:
        self.n, self.options, self.text = initial, options, desc
        self.drawn = [(desc, initial)]
        self.closed = False
        FakeBar.made.append(self)

    def set_description_str(self, text: str, refresh: bool) -> None:
        assert not refresh
        self.text = text

    def refresh(self) -> None:
        assert not self.closed
        self.drawn.append((self.text, self.n))

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal of 100 columns as stderr, and a fake tqdm."""
    here = Terminal()
    monkeypatch.setattr(wait_bar, "sys", SimpleNamespace(stderr=here))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setitem(sys.modules, "tqdm", SimpleNamespace(tqdm=FakeBar))
    FakeBar.made = []
    return here


class Waiter:
    """A wait in a time of its own."""

    def __init__(self) -> None:
        self.now, self.received, self.cause = 100.0, 5_000_000, "b"

    def arguments(self) -> tuple[str, Callable[[], str], Callable[[], int], Callable[[], float]]:
        return "a: waits", lambda: self.cause, lambda: self.received, lambda: self.now


def test_a_bar_shows_the_cause_and_the_bytes_of_this_wait(terminal: Terminal) -> None:
    waiter = Waiter()
    with WaitBar(*waiter.arguments()) as bar:
        bar.draw()
        assert FakeBar.made == []
        waiter.now, waiter.received = 100.0 + SHOW_AFTER_S, 5_000_300
        bar.draw()
        (drawn,) = FakeBar.made
        waiter.received, waiter.cause = 5_900_000, "the weights of b"
        bar.draw()  # too early
        waiter.now += LOOK_EVERY_S
        bar.draw()
        assert drawn.drawn == [("a: waits for b", 300), ("a: waits for the weights of b", 900_000)]
        assert not drawn.closed
    assert drawn.closed
    assert drawn.options["file"] is terminal
    assert drawn.options["unit"] == "B"
    assert drawn.options["leave"] is False


def test_a_long_text_is_cut_to_the_terminal(terminal: Terminal) -> None:
    waiter = Waiter()
    waiter.cause = "b" * 200
    with WaitBar(*waiter.arguments()) as bar:
        waiter.now += SHOW_AFTER_S
        bar.draw()
    ((text, _),) = FakeBar.made[0].drawn
    assert len(text) == 68
    assert text.endswith("b…")


@pytest.mark.parametrize(
    ("columns", "text"), [("30", "a: waits for bbbbbb…"), ("46", "a: waits for bbbbbb…")]
)
def test_a_narrow_terminal_has_room_for_some_text(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, columns: str, text: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    waiter = Waiter()
    waiter.cause = "b" * 200
    with WaitBar(*waiter.arguments()) as bar:
        waiter.now += SHOW_AFTER_S
        bar.draw()
    ((drawn, _),) = FakeBar.made[0].drawn
    assert drawn == text


def test_a_text_that_just_fits_is_not_cut(terminal: Terminal) -> None:
    waiter = Waiter()
    waiter.cause = "b" * (68 - len("a: waits for "))
    with WaitBar(*waiter.arguments()) as bar:
        waiter.now += SHOW_AFTER_S
        bar.draw()
    ((text, _),) = FakeBar.made[0].drawn
    assert text == f"a: waits for {waiter.cause}"


def test_how_long_there_is_nothing_to_draw(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiter = Waiter()
    with WaitBar(*waiter.arguments()) as bar:
        assert bar.left_s() == SHOW_AFTER_S
        waiter.now += 3 * SHOW_AFTER_S
        assert bar.left_s() == 0.0
        bar.draw()
        assert bar.left_s() == LOOK_EVERY_S
    assert bar.left_s() == float("inf")
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with WaitBar(*waiter.arguments()) as bar:
        waiter.now += SHOW_AFTER_S
        bar.draw()
        assert bar.left_s() == float("inf")  # tqdm is not looked for again


def test_a_wait_that_fails_clears_its_bar_and_draws_no_more(terminal: Terminal) -> None:
    waiter = Waiter()
    bar = WaitBar(*waiter.arguments())

    def interrupted() -> None:
        with bar:
            waiter.now += SHOW_AFTER_S
            bar.draw()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert FakeBar.made[0].closed
    waiter.now += 100.0
    bar.draw()
    assert len(FakeBar.made[0].drawn) == 1


class Tee:
    """What scripts put in the place of stderr to keep a copy of it."""

    def write(self, text: str) -> None:
        raise AssertionError(f"nobody looks at {text!r}")

    def flush(self) -> None:
        pass


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stderr", [io.StringIO(), None, Tee(), closed()])
def test_there_is_none_where_nobody_looks(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, stderr: Any
) -> None:
    monkeypatch.setattr(wait_bar, "sys", SimpleNamespace(stderr=stderr))
    waiter = Waiter()
    with WaitBar(*waiter.arguments()) as bar:
        waiter.now += SHOW_AFTER_S
        bar.draw()
        assert bar.left_s() == float("inf")
    assert FakeBar.made == []


def test_there_is_none_without_tqdm_and_the_lines_stay(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mend_optim")
    monkeypatch.setitem(sys.modules, "tqdm", None)
    waiter = Waiter()
    with LongWait(*waiter.arguments()) as wait:
        waiter.now += long_wait.LINE_EVERY_S
        wait.tell()
    assert caplog.messages == ["a: waits after 10 s for b; 0.0 MB received meanwhile"]
    assert terminal.getvalue() == ""


def test_a_long_wait_looks_up_for_its_bar_and_clears_it(terminal: Terminal) -> None:
    waiter = Waiter()

    def sleep(holds: Callable[[], bool], timeout_s: float) -> bool:
        waiter.now += timeout_s
        return holds()

    LongWait(*waiter.arguments()).until(lambda: waiter.now >= 103.0, sleep)
    (drawn,) = FakeBar.made
    assert len(drawn.drawn) == 4  # after 1, 1.5, 2 and 2.5 s
    assert drawn.closed


@pytest.fixture
def real_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    pytest.importorskip("tqdm", reason="pip install '.[dev]'")
    here = Terminal()
    monkeypatch.setattr(wait_bar, "sys", SimpleNamespace(stderr=here))
    monkeypatch.setattr(wait_bar.shutil, "get_terminal_size", lambda: os.terminal_size((100, 24)))
    return here


def test_tqdm_draws_it_and_clears_the_line(real_terminal: Terminal) -> None:
    waiter = Waiter()
    with WaitBar(*waiter.arguments()) as bar:
        waiter.now, waiter.received = 101.0, 5_000_300
        bar.draw()
        waiter.now, waiter.received = 102.0, 17_000_000
        bar.draw()
        assert "a: waits for b: 12.0MB [" in real_terminal.getvalue().rpartition("\r")[2]
    blank = real_terminal.getvalue().rsplit("\r", 2)
    assert blank[1:] == [" " * len(blank[1]), ""]
    assert len(blank[1]) >= len("a: waits for b: 12.0MB [")
