"""The bounds of a server follow from the limits of the run and of the process."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.protocol.timing import Timing
from mend_optim.transport import grpc_options as room
from mend_optim.transport.grpc_options import (
    FILE_SHARE,
    PING_FLOOR_MS,
    channel_options,
    most_connections,
    most_files,
    most_streams,
    server_options,
)
from mend_optim.transport.lanes import most_lanes


@given(st.integers(2, 4096), st.integers(1, 4095))
def test_all_lanes_of_all_peers_have_room(learners: int, peers: int) -> None:
    """As many again may be about to end."""
    peers = min(peers, learners - 1)
    assert most_connections(learners, None) >= 2 * peers * (1 + most_lanes(peers))


@given(st.integers(2, 4096), st.none() | st.integers(1, 1 << 20))
def test_connections_leave_files_to_training(learners: int, files: int | None) -> None:
    most = most_connections(learners, files)
    assert most >= 1
    if files is None:
        assert most > 2 * learners
    else:
        assert most <= max(1, files // FILE_SHARE)
    if files is not None and files > 100 * learners + 1000:
        assert most > 2 * learners


def test_the_share_is_of_what_this_process_may_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "most_files", lambda: 1024)
    options = dict(server_options(Timing(), 256, most_streams(1)))
    assert options["grpc.max_allowed_incoming_connections"] == 256
    assert options["grpc.max_concurrent_streams"] == 2 * most_streams(1)


def test_the_limit_on_files_is_the_systems() -> None:
    resource = pytest.importorskip("resource")
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert most_files() == (None if soft == resource.RLIM_INFINITY else soft)


@given(st.floats(0.001, 1000))
def test_no_learner_pings_as_often_as_a_server_minds(beat_s: float) -> None:
    timing = Timing(beat_s=beat_s, evict_after_s=3.1 * beat_s)
    quiet_ms = dict(channel_options(timing, 1.0))["grpc.keepalive_time_ms"]
    floor_ms = dict(server_options(timing, 2, 1))["grpc.http2.min_ping_interval_without_data_ms"]
    assert quiet_ms > floor_ms == PING_FLOOR_MS


def test_pings_that_come_too_often_end_a_connection() -> None:
    """To gRPC, no strikes mean that it never minds."""
    assert dict(server_options(Timing(), 2, 1))["grpc.http2.max_ping_strikes"] > 0


@pytest.mark.parametrize(("evict_after_s", "handshake_ms"), [(30.0, 10_000), (4.0, 4_000)])
def test_a_handshake_takes_no_longer_than_a_dial(evict_after_s: float, handshake_ms: int) -> None:
    options = dict(server_options(Timing(evict_after_s=evict_after_s), 2, 1))
    assert options["grpc.server_handshake_timeout_ms"] == handshake_ms


@pytest.mark.parametrize("fragments", [1, 24, 1000])
def test_every_fragment_has_its_streams(fragments: int) -> None:
    assert most_streams(fragments) >= 1 + 4 * fragments
