"""Metrics for Prometheus, of the learners in this process. The extra `prometheus` installs the
library that serves them.

    optimizer = MendOptimizer(AdamW(model.parameters()), listen=..., peers=[...])
    serve_metrics(optimizer, 9464)

A scrape reads `optimizer.status()` on a thread of the HTTP server, at most twice a second. Training
goes on meanwhile, and a scrape raises nothing."""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from mend_optim.errors import UsageError
from mend_optim.integrations.figures import FIGURES, PREFIX, Figure
from mend_optim.optimizer import MendOptimizer
from mend_optim.status import Status

log = logging.getLogger("mend_optim")

#: A status is read again after so long, in seconds. Scrapers may come as often as they like.
FRESH_S = 0.5
EXTRA = "metrics need the package prometheus-client; run pip install 'mend-optim[prometheus]'"
#: The label of every metric: the learner's name.
LEARNER = "learner"
_INFO = "The learner: where it serves, and how its links are secured."


class MendCollector:
    """A collector for a registry of `prometheus_client`: the metrics of one or several learners of
    this process.

    It holds no optimizer alive. A learner whose optimizer is gone is no longer exported. Of two
    with the same name, the one that was added later is exported.

    Args:
        *optimizers: the `MendOptimizer`s to export.
    """

    def __init__(self, *optimizers: MendOptimizer) -> None:
        self._library = _import_core()
        self._watched: list[_Watched] = []
        for optimizer in optimizers:
            self.add(optimizer)

    def add(self, optimizer: MendOptimizer) -> None:
        """Export another optimizer's learner, too."""
        self._watched = [each for each in self._watched if each.is_there()] + [_Watched(optimizer)]

    def collect(self) -> Iterator[Any]:
        """The metrics of this moment. A registry calls it."""
        return self._families(self._statuses())

    def describe(self) -> Iterator[Any]:
        """The metrics without their samples. A registry calls it, to refuse names that it has."""
        return self._families([])

    def _statuses(self) -> list[Status]:
        now = time.monotonic()
        read = [status for each in self._watched if (status := each.status(now)) is not None]
        return list({status.name: status for status in read}.values())

    def is_empty(self) -> bool:
        """Whether all its optimizers are gone."""
        return not any(each.is_there() for each in self._watched)

    def _families(self, statuses: Sequence[Status]) -> Iterator[Any]:
        yield self._info(statuses)
        for figure in FIGURES:
            yield self._family(figure, statuses)

    def _info(self, statuses: Sequence[Status]) -> Any:
        family = self._library.InfoMetricFamily(f"{PREFIX}_learner", _INFO, labels=[LEARNER])
        for status in statuses:
            told = {"address": status.address, "security": status.security}
            family.add_metric([status.name], told)
        return family

    def _family(self, figure: Figure, statuses: Sequence[Status]) -> Any:
        kinds = self._library
        kind = kinds.CounterMetricFamily if figure.counts else kinds.GaugeMetricFamily
        name = f"{PREFIX}_{figure.name}"
        family = kind(name, figure.text, labels=[LEARNER, *figure.labels])
        for status in statuses:
            for labels, value in figure.read(status).items():
                family.add_metric([status.name, *labels], float(value))
        return family


class _Watched:
    """One optimizer that is exported, and its last status."""

    def __init__(self, optimizer: MendOptimizer) -> None:
        self._optimizer = weakref.ref(optimizer)
        #: The last status, and when it was read.
        self._last: tuple[float, Status] | None = None

    def is_there(self) -> bool:
        """Whether the optimizer still exists."""
        return self._optimizer() is not None

    def status(self, now: float) -> Status | None:
        """A recent status; None if the optimizer is gone, or does not tell."""
        optimizer, last = self._optimizer(), self._last
        if optimizer is None:
            self._last = None
            return None
        if last is not None and now - last[0] < FRESH_S:
            return last[1]
        try:
            status = optimizer.status()
        except Exception:
            # A scrape has no one to tell it to, and must not end the server's thread.
            log.debug("a scrape got no status", exc_info=True)
            return None
        self._last = now, status
        return status


class MetricsServer:
    """An HTTP server of metrics, which `serve_metrics` has started.

    It ends with the process, or by `close()`."""

    def __init__(self, server: Any, host: str, collector: MendCollector, registry: Any) -> None:
        self._server = server
        self._host = host
        self._collector = collector
        #: It serves all that is in here, perhaps with other metrics of the user's.
        self.registry = registry
        _servers.add(self)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_port)

    @property
    def url(self) -> str:
        """Where a scraper finds the metrics."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}/metrics"

    @property
    def is_idle(self) -> bool:
        """Whether the optimizer is gone."""
        return self._collector.is_empty()

    def close(self) -> None:
        """Stop serving, and give the port back. A second call does nothing."""
        if self in _servers:
            _servers.discard(self)
            self._server.shutdown()
            self._server.server_close()
            self.unregister()

    def unregister(self) -> None:
        """Take the learner's metrics out of the registry, which may be the user's."""
        with suppress(KeyError):  # it is out already
            self.registry.unregister(self._collector)

    def abandon(self) -> None:
        """In a forked child: give up the port, which is the parent's. No thread serves here."""
        self._server.socket.close()


# The servers of this process that are open.
_servers: set[MetricsServer] = set()


def serve_metrics(
    optimizer: MendOptimizer, port: int, *, host: str = "127.0.0.1", registry: Any = None
) -> MetricsServer:
    """Serve a learner's metrics over HTTP, on a background thread.

    Anybody who reaches the port can read the learners' names, addresses and numbers. So by default
    only this machine can.

    Args:
        optimizer: its learner is exported for as long as it exists.
        port: to listen on; 0 takes a free one.
        host: the address of this machine to listen on; "0.0.0.0" for all of them.
        registry: a `prometheus_client.CollectorRegistry` to add the learner to, if all that is in
            it should be served: `prometheus_client.REGISTRY` has metrics of the process. None: the
            learner's metrics only.

    Returns:
        The server, with its `port` and its `url`.

    Raises:
        ImportError: the library is missing.
        UsageError: the port is not free, or the address is not one of this machine; or the registry
            has another learner's metrics.
    """
    library = _import_library()
    collector = MendCollector(optimizer)
    shown = library.CollectorRegistry() if registry is None else registry
    # A notebook's cell that runs again lets go of the old optimizer, and not of its server.
    for earlier in [each for each in _servers if each.is_idle]:
        if earlier.port == port:
            earlier.close()
        elif earlier.registry is shown:
            earlier.unregister()
    try:
        shown.register(collector)
    except ValueError as error:
        raise UsageError(
            f"registry must have no other learner's metrics, got {registry!r}: {error}; close() the"
            " server of that one, or pass a registry of its own"
        ) from error
    try:
        server, _ = library.start_http_server(port, addr=host, registry=shown)
    except (OSError, OverflowError) as error:
        shown.unregister(collector)
        raise UsageError(
            f"port must be a free port of host {host!r}, got {port!r}: {error}; choose another "
            "one, or 0 for any, and an address of this machine"
        ) from error
    return MetricsServer(server, host, collector, shown)


def _import_library() -> Any:
    try:
        import prometheus_client
    except ImportError as error:
        raise ImportError(EXTRA) from error
    return prometheus_client


def _import_core() -> Any:
    """The classes of metrics."""
    _import_library()
    from prometheus_client import metrics_core

    return metrics_core


def _abandon_all() -> None:
    """In a forked child, such as a worker of a `DataLoader`, which may live longer than the parent:
    a new process of the learner needs the port."""
    for server in list(_servers):
        server.abandon()
    _servers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)
