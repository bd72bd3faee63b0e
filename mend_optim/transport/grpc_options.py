"""gRPC's options of this learner's server and of the connections that it dials: how long they may
stand still, and how much of the process the callers of its server may take up.

gRPC counts connections and streams itself. Its limit on RPCs (`maximum_concurrent_rpcs`) is not
used: up to grpcio 1.70 each RPC that it refuses lets one more in afterwards.
"""

from __future__ import annotations

from mend_optim.protocol.timing import Timing
from mend_optim.transport.lanes import MOST_IN_ALL
from mend_optim.transport.limits import MESSAGE_LIMIT

try:
    import resource
except ImportError:  # not a Unix
    resource = None  # type: ignore[assignment]

#: Streams that a peer may have open at a time, besides those for its fragments.
SPARE_STREAMS = 32
#: Streams of one peer for one fragment: an exchange, a pull, a push and what it passes on, and as
#: many that are about to end.
FRAGMENT_STREAMS = 8
#: Connections of one peer: for control and for bulky messages, and as many that are about to end.
PEER_CONNECTIONS = 4
#: Connections besides those of the most peers that there may be. A few peers have several lanes for
#: bulky messages each, and as many that are about to end.
SPARE_CONNECTIONS = 2 * MOST_IN_ALL
#: One part in so many of the files that the process may open is for callers. The rest is for its
#: own connections, and for the user's data and checkpoints.
FILE_SHARE = 4
#: Milliseconds: nobody's timing needs pings more often than that, and so many too early end a
#: connection.
PING_FLOOR_MS = 50
PING_STRIKES = 50
#: Seconds in which a caller must have shown who it is. With gRPC's own two minutes, a few silent
#: callers would keep everybody else out for as long.
HANDSHAKE_S = 10.0
#: Milliseconds until a connection without an open stream is closed. A peer's control stream is
#: always open; one for bulky messages is made again when it is needed.
IDLE_MS = 10 * 60 * 1000


def most_streams(fragments: int) -> int:
    """Return the streams that one peer may have open at a time."""
    return SPARE_STREAMS + FRAGMENT_STREAMS * fragments


def most_connections(learners: int, files: int | None) -> int:
    """Return the connections that may be open at a time.

    Args:
        learners: The most learners in the run.
        files: The most files that the process may have open; None: any number.
    """
    wanted = PEER_CONNECTIONS * learners + SPARE_CONNECTIONS
    return wanted if files is None else max(1, min(wanted, files // FILE_SHARE))


def most_files() -> int | None:
    """Return how many files this process may have open; None if nobody limits that."""
    if resource is None:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def _bounds(learners: int, streams: int) -> dict[str, int]:
    """Return what a server's callers may take up. Peers ping as often as their own timing says, but
    never more often than `PING_FLOOR_MS`."""
    return {
        "grpc.max_allowed_incoming_connections": most_connections(learners, most_files()),
        # a bit more than one peer may have: our own refusal says why
        "grpc.max_concurrent_streams": 2 * streams,
        "grpc.http2.max_ping_strikes": PING_STRIKES,
        "grpc.http2.min_ping_interval_without_data_ms": PING_FLOOR_MS,
        "grpc.max_connection_idle_ms": IDLE_MS,
    }


def _options(timing: Timing, patience_s: float) -> dict[str, int]:
    """Return the options of a connection that may stand still for `patience_s`: a transfer must
    survive an outage that is shorter."""
    return {
        "grpc.max_send_message_length": MESSAGE_LIMIT,
        "grpc.max_receive_message_length": MESSAGE_LIMIT,
        "grpc.keepalive_time_ms": int(1000 * _quiet_s(timing)),
        "grpc.keepalive_timeout_ms": int(1000 * patience_s),
        # without this it is a minute, whatever the line above says
        "grpc.http2.ping_timeout_ms": int(1000 * patience_s),
        "grpc.keepalive_permit_without_calls": 1,
        "grpc.http2.max_pings_without_data": 0,
    }


def _quiet_s(timing: Timing) -> float:
    """Return how long a connection may be silent before gRPC pings the other end."""
    return max(timing.evict_after_s / 3, 2 * PING_FLOOR_MS / 1000)


def server_options(timing: Timing, learners: int, streams: int) -> list[tuple[str, int]]:
    """Return the options of a server.

    Args:
        timing: The learner's timeouts.
        learners: The most learners in the run.
        streams: The streams that one peer may have open at a time.
    """
    options = _options(timing, timing.round_timeout_s) | _bounds(learners, streams)
    # a dial that takes longer than the latter is given up at the other end
    handshake_s = min(HANDSHAKE_S, timing.evict_after_s)
    options["grpc.server_handshake_timeout_ms"] = int(1000 * handshake_s)
    # without this a second learner on the same port would quietly share the port
    options["grpc.so_reuseport"] = 0
    return list(options.items())


def channel_options(timing: Timing, patience_s: float) -> list[tuple[str, int]]:
    """Return the options of a connection that this learner dials, and that may be dead for
    `patience_s` before it fails."""
    options = _options(timing, patience_s)
    # a proxy in the environment is not for peers
    options["grpc.enable_http_proxy"] = 0
    # a connection of its own for every channel
    options["grpc.use_local_subchannel_pool"] = 1
    # despite its name, this is how long one attempt to connect may take
    options["grpc.min_reconnect_backoff_ms"] = int(1000 * timing.evict_after_s)
    options["grpc.initial_reconnect_backoff_ms"] = int(200 * timing.beat_s)
    options["grpc.max_reconnect_backoff_ms"] = int(1000 * _quiet_s(timing))
    return list(options.items())
