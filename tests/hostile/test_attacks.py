"""What a hostile peer can do to real learners, row by row of the audit: each is held.

Every row runs on the same two learners, one after the other: an attack that leaves something behind
fails the next rows, too. R is memory and streams, L is liveness, M the model, T texts."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from mend_optim.engine.state import TRIAL
from mend_optim.transport._pb import peer_pb2 as pb
from mend_optim.transport.connection import CALLER, SERVICE
from mend_optim.transport.grpc_options import FILE_SHARE
from mend_optim.transport.receiving import SUPERSEDED
from tests.hostile.attacker import Attacker, chunks, header, rumors, say
from tests.hostile.ground import FEW_FILES, LIMIT, Ground, connections, memory_mb, open_files
from tests.system.processes import Process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
FOREVER = 2**62 - 1
INVALID = grpc.StatusCode.INVALID_ARGUMENT
#: The attacks by a peer that has said hello to "a", by name. They can be repeated.
ATTACKS: dict[str, Callable[[Ground], None]] = {}


def held(attack: Callable[[Ground, Attacker], None]) -> Callable[[Ground], None]:
    """Run an attack by a peer that has said hello to "a"; both learners must hold."""

    def run(ground: Ground) -> None:
        with ground.held(), ground.attacker(f"mallory {attack.__name__}") as mallory:
            mallory.hello()
            attack(ground, mallory)

    run.__name__ = attack.__name__
    run.__doc__ = attack.__doc__
    ATTACKS[attack.__name__.removeprefix("test_").replace("_", " ")] = run
    return run


# ── R: memory, streams, connections ───────────────────────────────────────────────────────────────


@held
def test_r1_long_texts_in_a_hello_are_refused(ground, mallory):
    for _ in range(12):
        with pytest.raises(grpc.RpcError) as refused:
            mallory.hello(refusal="x" * 4_000_000)
        assert refused.value.code() is INVALID


@held
def test_r2_of_forty_exchanges_of_one_peer_one_is_open(ground, mallory):
    """All but the last byte of the largest message on each: 480 MB once."""
    before = memory_mb(ground.a)
    for seq in range(1, 41):
        mallory.open("Exchange", mallory.offer([("delta", LIMIT - 8)], seq=seq), *chunks(LIMIT - 9))
    ended = mallory.ended_but_one()
    assert len(ended) == 39
    assert {call.details for call in ended} == {SUPERSEDED}
    with ground.lasts():
        for _ in range(20):  # a busy machine lets go of them a little later
            if memory_mb(ground.a) - before < 200:
                break
            ground.a.await_steps(5)
        assert memory_mb(ground.a) - before < 200


@held
def test_r3_sections_that_nobody_knows_are_refused(ground, mallory):
    for n in range(15):
        with ground.attacker(f"r3 {n}") as other:
            other.hello()
            call = other.open("Exchange", other.offer([("junk", LIMIT - 8)]))
            assert call.ended()
            assert "the payload of unknown sections is" in call.details


@held
def test_r4_headers_that_announce_the_most_take_no_memory(ground, mallory):
    before = memory_mb(ground.a)
    for seq in range(1, 201):
        mallory.open("Exchange", mallory.offer([("delta", LIMIT - 8)], seq=seq))
    with ground.lasts():
        assert memory_mb(ground.a) - before < 100


@held
def test_r5_impossible_headers_are_refused_by_name(ground, mallory):
    bad = [
        mallory.offer([("delta", 2**40)]),
        mallory.offer([("delta", 2**64 - 1)]),
        mallory.offer([(f"moment.{n}", 4) for n in range(300)]),
        mallory.offer([("delta", 4), ("delta", 4)]),
        mallory.offer([("delta", 4)], fragment=7),
        mallory.offer([("delta", 4)], tokens=2**64 - 1),
        b"junk",
        b"\x12\x7fjunk",
    ]
    for frame in bad:
        call = mallory.open("Exchange", frame)
        assert call.ended()
        assert call.code is INVALID, call.details


@held
def test_r7_garbage_is_no_learner(ground, mallory):
    for opening in (b"\0" * 64, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"PRI * H"):
        with connections(ground.a.address, 25, opening), ground.lasts():
            pass


@held
def test_r8_idle_connections_cost_little(ground, mallory):
    before = memory_mb(ground.a)
    with connections(ground.a.address, 300), ground.lasts():
        assert memory_mb(ground.a) - before < 60


@held
def test_r12_streams_that_are_reset_at_once_stop_nothing(ground, mallory):
    rpc = mallory.channel.stream_stream(f"/{SERVICE}/Control")
    for _ in range(1500):
        rpc(iter([b"x"]), metadata=((CALLER, mallory.me.SerializeToString()),)).cancel()
    with ground.lasts():
        pass


@held
def test_r14_a_caller_without_a_name_is_refused(ground, mallory):
    for value in (b"", b"\xff" * 100, pb.PeerId(name="a\nb").SerializeToString()):
        rpc = mallory.channel.stream_stream(f"/{SERVICE}/Control")
        call = rpc(iter([b""]), metadata=((CALLER, value),))
        with pytest.raises(grpc.RpcError):
            list(call)
        assert call.code() is grpc.StatusCode.FAILED_PRECONDITION


@held
def test_r14b_metadata_beyond_measure_are_refused(ground, mallory):
    name = (CALLER, mallory.me.SerializeToString())
    before = memory_mb(ground.a)
    for more in ([("x-much", "x" * 1_000_000)], [(f"x-{n}", "x") for n in range(20_000)]):
        rpc = mallory.channel.stream_stream(f"/{SERVICE}/Control")
        call = rpc(iter([b""]), metadata=(name, *more))
        with pytest.raises(grpc.RpcError):
            list(call)
        assert call.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
    assert memory_mb(ground.a) - before < 50


@held
def test_r15_no_socket_is_dialled_that_is_no_host(ground, mallory):
    number = os.getpid() % 60_000 + 1
    with socket.socket(socket.AF_UNIX) as there:
        there.bind(f"\0{number}")
        there.listen()
        there.setblocking(False)
        schemes = ["unix-abstract", "UNIX-ABSTRACT", "unix", "dns", "vsock", "xds"]
        roster = [rumors(1, n, address=f"{x}:{number}")[0] for n, x in enumerate(schemes)]
        mallory.control(mallory.beat(roster=roster))
        with ground.lasts():
            pass
        with pytest.raises(BlockingIOError):
            there.accept()


@held
def test_one_peer_has_an_end_of_streams(ground, mallory):
    for _ in range(100):
        mallory.open("Pull")
    (*_, last) = mallory.calls
    assert last.ended()
    # A learner that has no time for all of them lets some connections go.
    refused = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
    assert last.code in refused
    with ground.lasts():
        pass


def test_r9_training_can_open_its_own_files(
    ground: Ground, few_files: Process, tmp_path: Path
) -> None:
    """A learner that may have 256 files open, and 200 connections to it."""
    with ground.held():
        c = ground.supervisor.start("c", on=few_files, seed=3)
        c.await_steps(5)
        with connections(c.address, 200) as answered:
            assert sum(answered) <= FEW_FILES // FILE_SHARE < len(answered)
            assert open_files(c) < 200
            c.ask("save", "saved", path=str(tmp_path / "c.pt"))
            c.await_steps(5)
        c.leave()
    assert (tmp_path / "c.pt").stat().st_size > 1000


# ── M: the model ──────────────────────────────────────────────────────────────────────────────────


def shows_in_vain(ground, mallory, shown):
    """In a run under way, beats that show this anchor are answered by beats, and nobody asks for
    it. Returns the stream, and the count of the next beat."""
    for learner in (ground.a, ground.b):
        learner.await_rounds(TRIAL)
    mallory.hello()  # where those rounds took long, "a" has forgotten the one before
    stream = mallory.control(mallory.beat(**shown))
    for count in range(2, 12):
        with ground.lasts():
            say(stream, mallory.beat(count=count, **shown))

    def told(kind: str) -> bool:
        return any(pb.Control.FromString(answer).HasField(kind) for answer in [*stream.answers])

    ground.supervisor.until(lambda: told("beat"), "a beat in answer")
    assert not told("want")
    return stream, 12


@held
def test_m1_nobody_asks_for_an_anchor_that_one_insider_shows(ground, mallory):
    key = pb.Key(tokens=2**40, version=2**20, digest=b"m" * 32)
    hears = [pb.Rumor(peer=ground.hello.peer, count=2**40)]  # else it would pass for deaf
    shown = {"genesis": ground.genesis, "reports": [pb.Report(key=key)], "step": 1, "roster": hears}
    stream, count = shows_in_vain(ground, mallory, shown)
    for later in range(100):  # rounds may take longer on a busy machine than a peer may be silent
        say(stream, mallory.beat(count=count + later, **shown))
        roster = ground.a.report()["roster"]
        alive = [peer["name"] for peer in roster if peer["state"] == "alive"]
        if mallory.me.name in alive:
            break
        ground.a.await_steps(1)
    assert mallory.me.name in alive
    assert ground.a.rounds[-1]["tokens"] < key.tokens


# ── L: liveness ───────────────────────────────────────────────────────────────────────────────────


@held
def test_l1_rumors_of_thousands_stop_no_training(ground, mallory):
    stream = mallory.control(mallory.beat(roster=rumors(4000)))
    for count in range(2, 12):
        say(stream, mallory.beat(count=count, roster=rumors(1000, 1000 * count)))
    with ground.lasts():
        pass
    assert len(ground.a.report()["roster"]) <= 256
    say(stream, mallory.beat(count=99, roster=rumors(12_000)))
    assert stream.ended()


@held
def test_l2_nobody_says_goodbye_for_another(ground, mallory):
    b = next(p for p in ground.a.report()["roster"] if p["name"] == "b")
    gone = [pb.PeerId(name="b", incarnation=n) for n in (b["incarnation"], FOREVER)]
    said = [pb.Rumor(peer=peer, count=FOREVER, left=True) for peer in gone]
    mallory.control(mallory.beat(roster=said))
    with ground.lasts():
        pass
    assert {"name": "b", "state": "alive"}.items() <= {
        key: value
        for peer in ground.a.report()["roster"]
        if peer["name"] == "b"
        for key, value in peer.items()
    }.items()


@held
def test_l3_hellos_make_no_quorum(ground, mallory):
    for n in range(10):
        with ground.attacker(f"l3 {n}") as other:
            other.hello()
    with ground.lasts():
        pass


@held
def test_l4_anchors_that_nobody_gets_hold_up_no_rounds(ground, mallory):
    """They are of another model, and greater than anything: they count for nothing, as long as
    others train ours."""
    key = pb.Key(tokens=2**40, version=2**20, digest=b"m" * 32)
    hears = [pb.Rumor(peer=ground.hello.peer, count=2**40)]  # else it would pass for deaf
    shown = {
        "genesis": b"\xff" * len(ground.genesis),
        "reports": [pb.Report(key=key)],
        "step": 1,
        "roster": hears,
    }
    shows_in_vain(ground, mallory, shown)
    assert ground.a.report()["genesis"] == ground.genesis.hex()


@held
def test_l5_a_phantom_seals_nothing(ground, mallory):
    mallory.control(mallory.beat(roster=rumors(200, address="127.0.0.1:9")))
    with ground.lasts():
        pass


@held
def test_l6_thousands_of_wants_are_one(ground, mallory):
    stream = mallory.control(mallory.beat())
    say(stream, *[mallory.want()] * 3000)
    with ground.lasts():
        pass


@held
def test_l7_thousands_of_questions_stop_nothing(ground, mallory):
    stream = mallory.control()
    say(stream, *(mallory.beat(count=n, ping=n) for n in range(1, 4000)))
    with ground.lasts():
        pass


@held
def test_l10_a_beat_in_the_name_of_another_ends_the_stream(ground, mallory):
    stream = mallory.control(pb.Beat(peer=pb.PeerId(name="b", incarnation=1), count=FOREVER))
    assert stream.ended()


# ── M: the model ──────────────────────────────────────────────────────────────────────────────────


@held
def test_m3_an_offer_of_all_tokens_is_refused(ground, mallory):
    for tokens in (2**64 - 1, 2**62 + 1):
        call = mallory.open("Exchange", mallory.offer([("delta", 4)], tokens=tokens))
        assert call.ended()
        assert "tokens of an offer" in call.details


@held
def test_m6_an_offer_in_the_learners_own_name_reaches_no_worker(ground, mallory):
    report = ground.a.report()
    own = pb.PeerId(name="a", incarnation=mallory.host.peer.incarnation)
    offer = pb.Offer(peer=own, seq=1, tokens=1, steps=1, genesis=ground.genesis, key=pb.Key())
    for method in ("PassOn", "Exchange"):
        call = mallory.open(method, header([("delta", 68)], offer=offer), *chunks(68))
        call.finish()
        assert call.ended() or method == "PassOn"
    assert report["name"] == "a"


@held
def test_m8_a_position_beyond_all_ends_the_stream(ground, mallory):
    stream = mallory.control(mallory.beat(position=2**64 - 1))
    assert stream.ended()


@held
def test_offers_of_ever_new_numbers_are_checked_one_at_a_time(ground, mallory):
    before = memory_mb(ground.a)
    for seq in range(1, 31):
        offer = mallory.offer([("delta", LIMIT - 8)], seq=seq, genesis=ground.genesis)
        call = mallory.open("Exchange", offer, *chunks(LIMIT - 8))
        call.finish()
    ended = mallory.ended_but_one()
    assert len(ended) >= 29, f"{len(ended)} of 30 have ended"
    with ground.lasts():
        grown = memory_mb(ground.a) - before
        assert grown < 150, f"{grown} MB more"


# ── T: texts ──────────────────────────────────────────────────────────────────────────────────────


def test_t1_no_name_forges_a_line(ground: Ground) -> None:
    with ground.held():
        for name in ("b\nLOG ERROR", "\x1b]0;owned\a", "a\u202e", "e\u0301"):
            with ground.attacker(name) as mallory:
                with pytest.raises(grpc.RpcError) as refused:
                    mallory.hello()
                assert refused.value.code() is INVALID
    assert "owned" not in ground.a.complaints


def test_what_was_refused_is_counted(ground: Ground) -> None:
    began = time.time_ns()
    with ground.held(), ground.attacker("counted", began) as mallory:
        mallory.hello()
        for _ in range(5):
            assert mallory.open("Exchange", b"junk").ended()
    kinds = {tuple(kind[:2]): kind[2] for kind in ground.a.report()["refused"]}
    assert sum(times for (peer, _), times in kinds.items() if peer == "counted") == 5
    assert len(kinds) <= 130
