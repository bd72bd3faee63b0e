"""`mend status` and `mend top` against real learners on this machine, which train together."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from mend_optim import Credentials, MendOptimizer
from mend_optim.cli.command import main
from mend_optim.cli.watch.command import MERGING, NO_ANSWER, NOT_MERGING, see
from mend_optim.cli.watch.crowd import Crowd
from mend_optim.engine.engine import Engine
from mend_optim.errors import PeerError
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.sight import Sight
from mend_optim.security import read_security
from mend_optim.transport.look import looks
from mend_optim.transport.watching import MOST_LOOKS
from tests.support.learners import LOCKSTEP, LOOPBACK, TIMING, descent, parameters, start, together
from tests.support.learners import until as until_holds

pytestmark = pytest.mark.usefixtures("no_environment")
ROUNDS = 3


def address_of(optimizer: MendOptimizer) -> str:
    assert optimizer._learner is not None
    return f"127.0.0.1:{optimizer._learner.port}"


@contextmanager
def pair(**told: Any) -> Iterator[tuple[MendOptimizer, MendOptimizer]]:
    """Two learners that have merged some rounds."""
    told = {"listen": LOOPBACK, "timing": TIMING, **LOCKSTEP, **told}
    a = MendOptimizer(descent(1.0), name="a", **told)
    b = MendOptimizer(descent(1.0), name="b", peers=[address_of(a)], **told)
    try:
        start([a, b])
        together(lambda: trained(a), lambda: trained(b))
        yield a, b
    finally:
        a.close()
        b.close()


def trained(optimizer: MendOptimizer) -> None:
    for step in range(ROUNDS):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = parameter.detach().clone()
        optimizer.step()
        optimizer.report(loss=1.0 / (step + 1))
    assert parameters(optimizer)


def look_bare(addresses: list[str]) -> dict[str, Sight | PeerError]:
    return looks(addresses, read_security(None, insecure=False).open("x"), "x", 20.0)


def test_all_learners_are_seen_through_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pair() as (a, b):
        rosters = a.status().roster, b.status().roster
        assert main(["status", address_of(a), "--json"]) == MERGING
        told = json.loads(capsys.readouterr().out)
        assert told["merging"]
        assert told["states"] == {"a": "merging", "b": "merging"}
        for learner in told["learners"]:
            assert learner["step"] == learner["rounds"] == ROUNDS
            assert learner["reported"] == {"loss": pytest.approx(1 / ROUNDS)}
            assert learner["last"][-1]["members"] == ["a", "b"]
            assert learner["tokens_per_s"] > 0
        (first, *_) = told["learners"]
        assert main(["status", address_of(a), "--json"]) == MERGING
        (again, *_) = json.loads(capsys.readouterr().out)["learners"]
        assert 0 < first["quiet_s"] <= again["quiet_s"]
        assert main(["status", address_of(b)]) == MERGING
        assert "loss 0.3333" in capsys.readouterr().out
        # Nobody has met the watcher, or refused it.
        assert [p.name for p in a.status().roster] == [p.name for p in rosters[0]] == ["b"]
        assert a.status().refused == ()


@pytest.mark.parametrize("plain", [["--plain"], []])
def test_zones_are_shown(
    plain: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pair(zone="east") as (a, _):
        assert (a.status().zone, a.status().roster[0].zone) == ("east", "east")
        assert main(["status", address_of(a), "--json"]) == MERGING
        learners = json.loads(capsys.readouterr().out)["learners"]
        assert [learner["zone"] for learner in learners] == ["east", "east"]
        assert [learner["roster"][0]["zone"] for learner in learners] == ["east", "east"]
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        assert main(["top", address_of(a), "--once", *plain]) == 0
        told = re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", capsys.readouterr().out)
        head = told.split()
        assert head[:3] == ["learner", "state", "zone"] if not plain else head[1:4]


@pytest.mark.parametrize(("plain", "tty"), [(["--plain"], True), ([], True), ([], False)])
def test_top_draws_with_rich_on_a_terminal_and_else_plain_lines(
    plain: list[str],
    tty: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: tty)
    with pair() as (a, _):
        assert main(["top", address_of(a), "--once", *plain]) == 0
    told = capsys.readouterr().out
    assert "merging" in told
    assert ("█" in told) is (tty and not plain)
    assert tty or told.endswith("\n")
    first = told.splitlines()[0]
    is_time = re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", first) is not None
    assert is_time is ("█" not in told)


def test_a_kill_gives_the_terminal_its_cursor_back(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    looked = []

    def look(*given: Any) -> object:
        looked.append(given)
        if len(looked) == 2:  # the first look comes before anything is drawn
            os.kill(os.getpid(), signal.SIGTERM)
        return see(*given)

    monkeypatch.setattr("mend_optim.cli.watch.command.see", look)
    with pair() as (a, _):
        former = signal.signal(signal.SIGTERM, lambda *_: pytest.fail("the command was killed"))
        try:
            with pytest.raises(SystemExit) as ended:
                main(["top", address_of(a), "--every", "0.1"])
        finally:
            signal.signal(signal.SIGTERM, former)
    assert ended.value.code == 128 + signal.SIGTERM
    hidden, shown = "\x1b[?25l", "\x1b[?25h"
    told = capsys.readouterr().out
    assert told.rfind(shown) > told.rfind(hidden) >= 0


def test_a_learner_that_is_alone_does_not_merge(capsys: pytest.CaptureFixture[str]) -> None:
    optimizer = MendOptimizer(descent(1.0), name="a", listen=LOOPBACK, timing=TIMING)
    address = address_of(optimizer)
    try:
        assert main(["status", address]) == NOT_MERGING
    finally:
        optimizer.close()
    capsys.readouterr()
    assert main(["status", address]) == NO_ANSWER
    told = f"{address}: connection refused; `mend check` finds out why\n"
    assert capsys.readouterr().out == told


def test_a_cause_that_is_not_known_is_told_in_the_words_of_grpc(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert main(["status", address, "--timeout", "0.2"]) == NO_ANSWER
    assert capsys.readouterr().out.startswith(f"{address}: no answer (DEADLINE_EXCEEDED: ")


def test_the_other_is_watched_on_when_the_one_that_was_dialled_dies() -> None:
    with pair() as (a, b):
        crowd = Crowd(address_of(a))
        see(crowd, look_bare)
        a.close()
        until_holds(b, lambda: not b._learner or not b._learner.engine.state.roster.peers)
        found = see(crowd, look_bare)
        assert isinstance(found[address_of(a)], PeerError)
        assert {row.name for row in crowd.rows() if row.sight} == {"b"}


def test_one_that_waits_in_finish_is_seen_by_the_others_and_by_watchers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pair() as (a, b):
        learner = a._learner
        assert learner

        def trains_on() -> None:
            roster = learner.engine.state.roster
            until_holds(a, lambda: all(peer.word and peer.word.finishes for peer in roster))
            assert [peer.finishing for peer in a.status().roster] == [True]
            assert "b alive, waits in finish()" in str(a.status())
            assert main(["status", address_of(a), "--json"]) == MERGING
            a.finish()

        together(b.finish, trains_on)
    states = json.loads(capsys.readouterr().out)["states"]
    assert states == {"a": "merging", "b": "finishing"}


def test_a_flood_of_looks_is_refused_and_training_goes_on() -> None:
    """The learner counts what it refuses, as of every peer."""
    with pair() as (a, b):
        security = read_security(None, insecure=False).open("x")
        me = PeerId("x", 1)

        async def flood() -> list[Any]:
            from mend_optim.protocol.timing import Timing
            from mend_optim.transport.connection import Connection
            from mend_optim.transport.grpc_options import channel_options
            from mend_optim.transport.stream import Counter

            channel = security.channel(address_of(a), channel_options(Timing(), 20.0), "")
            connection = Connection(channel, me, Counter(), 20.0)
            answers = []
            try:
                for _ in range(25):
                    many = (connection.look(20.0) for _ in range(2 * MOST_LOOKS))
                    answers += await asyncio.gather(*many, return_exceptions=True)
                return answers
            finally:
                await connection.close()

        answers = asyncio.run(flood())
        # gRPC refuses some of so many streams itself.
        assert all(isinstance(each, PeerError | Sight) for each in answers)
        assert any("too many watch" in str(each) for each in answers)
        assert any("too many watch" in each.reason for each in a.status().refused)
        before = a.status().rounds_adopted
        together(lambda: trained(a), lambda: trained(b))
        assert a.status().rounds_adopted == before + ROUNDS


def test_a_stranger_is_told_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cryptography")
    from tests.support.certificates import secret_in

    secret, another = secret_in(tmp_path), secret_in(tmp_path, "another.secret")
    with pair(credentials=Credentials.secret(secret)) as (a, _):
        address = address_of(a)
        assert main(["status", address, "--secret", str(secret)]) == MERGING
        capsys.readouterr()
        assert main(["status", address]) == NO_ANSWER
        told = capsys.readouterr().out
        assert "what answers is no learner, or it wants TLS: give the run's credentials" in told
        for given in ([], ["--secret", str(another)]):
            assert main(["status", address, "--json", *given]) == NO_ANSWER
            told = json.loads(capsys.readouterr().out)
            assert told["learners"] == []
            assert told["states"] == {}


def test_a_user_sees_who_is_late_and_who_declines_to_seal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of three learners two train on, and the third one takes no step meanwhile."""
    every: dict[str, Any] = {"listen": LOOPBACK, "timing": TIMING, "sync_every": 1, "grace": 0}
    with ExitStack() as stack:
        made: list[MendOptimizer] = []
        for name in "abc":
            peers = [address_of(one) for one in made]
            made.append(MendOptimizer(descent(1.0), name=name, peers=peers, **every))
            stack.callback(made[-1].close)
        a, b, c = made
        start(made)

        while sum(a.status().roster[1].missed) < 2:  # the first round begins after a beat
            for one in (a, b):
                _step(one)
        assert "c alive, late: not in the last " in str(a.status())
        assert a.status().roster[0].missed == (0,)
        declining = _engine(c).beats.declining
        declining._until, _engine(c).state.roster.place.is_weak = float("inf"), True
        until_holds(a, lambda: _engine(a).state.roster.peers["c"].declines)
        assert c.status().declines
        assert [peer.declines for peer in a.status().roster] == [False, True]
        main(["status", address_of(a)])
        printed = capsys.readouterr().out
        assert re.search(r"c +\w+, late \(\d+ rounds\), declines to seal", printed)


def _engine(optimizer: MendOptimizer) -> Engine:
    assert optimizer._learner is not None
    return optimizer._learner.engine


def _step(optimizer: MendOptimizer) -> None:
    for parameter in parameters(optimizer):
        parameter.grad = parameter.clone()
    optimizer.step()
