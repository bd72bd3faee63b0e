"""Metrics of learners, as Prometheus gets them."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any
from urllib.request import urlopen

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim import MendOptimizer, PeerStatus, Refused, Status, UsageError
from mend_optim.integrations import prometheus
from mend_optim.integrations.figures import FIGURES
from mend_optim.integrations.prometheus import MendCollector, MetricsServer, serve_metrics
from tests.support.learners import Watch, cluster, descent, drive, start, wave
from tests.unit.integrations.test_figures import FULL

library = pytest.importorskip("prometheus_client", reason="pip install '.[prometheus]'")
parser = pytest.importorskip("prometheus_client.parser")

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
TEXT = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=8)
PEERS = st.builds(
    PeerStatus,
    name=TEXT,
    incarnation=st.integers(1, 3),
    state=st.sampled_from(["alive", "suspected", "ended"]),
    address=st.just(""),
    step=st.integers(0, 2**53),
    tokens=st.integers(0, 2**53),
    slow=st.floats(0, 100),
)
REFUSED = st.builds(Refused, peer=TEXT, reason=TEXT, times=st.integers(1, 1000))
STATUSES = st.builds(
    replace,
    st.just(FULL),
    name=TEXT,
    step=st.integers(0, 2**53),
    superseded_tokens=st.integers(-5, 5),
    roster=st.lists(PEERS, max_size=4).map(tuple),
    refused=st.lists(REFUSED, max_size=4).map(tuple),
    reported=st.dictionaries(TEXT, st.floats(), max_size=4),
)


class Told:
    """Stands for an optimizer with a given status."""

    def __init__(self, status: Status) -> None:
        self.told = status
        self.asked = 0

    def status(self) -> Status:
        self.asked += 1
        return self.told


class Broken:
    """An optimizer that cannot tell its status."""

    def status(self) -> Status:
        raise RuntimeError("no memory")


def samples_of(text: str) -> Samples:
    """The values that Prometheus reads in an exposition. No series may be there twice."""
    read = [
        ((sample.name, tuple(sorted(sample.labels.items()))), sample.value)
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    ]
    assert len({key for key, _ in read}) == len(read)
    return dict(read)


def exposed(*told: Any) -> Samples:
    registry = library.CollectorRegistry()
    registry.register(MendCollector(*told))
    return samples_of(library.generate_latest(registry).decode())


def scraped(server: MetricsServer) -> Samples:
    with urlopen(server.url, timeout=30) as answer:
        return samples_of(answer.read().decode())


def labelled(**labels: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


def expected(status: Status) -> Samples:
    """The samples of one status, slowly."""
    told: Samples = {}
    about = labelled(learner=status.name, address=status.address, security=status.security)
    told["mend_learner_info", about] = 1.0
    for figure in FIGURES:
        name = f"mend_{figure.name}_total" if figure.counts else f"mend_{figure.name}"
        for values, number in figure.read(status).items():
            labels: Mapping[str, str] = dict(zip(figure.labels, values, strict=True))
            told[name, labelled(learner=status.name, **labels)] = float(number)
    return told


def alike(these: Samples, those: Samples) -> bool:
    def same(one: float, other: float) -> bool:
        return one == other or (math.isnan(one) and math.isnan(other))

    return these.keys() == those.keys() and all(same(these[key], those[key]) for key in these)


@pytest.fixture
def serving() -> Iterator[Any]:
    """A server for an optimizer; closed afterwards."""
    servers: list[MetricsServer] = []

    def serve(optimizer: Any, **options: Any) -> MetricsServer:
        servers.append(serve_metrics(optimizer, options.pop("port", 0), **options))
        return servers[-1]

    yield serve
    for server in servers:
        server.close()


@given(STATUSES)
def test_prometheus_reads_the_figures_of_any_status(status: Status) -> None:
    assert alike(exposed(Told(status)), expected(status))


def test_several_learners_are_told_apart_by_their_label() -> None:
    a, b = Told(FULL), Told(replace(FULL, name="b", step=7))
    samples = exposed(a, b)
    assert samples["mend_steps_total", labelled(learner="a")] == 1500
    assert samples["mend_steps_total", labelled(learner="b")] == 7


def test_of_two_learners_with_one_name_the_later_is_exported() -> None:
    first, second = Told(FULL), Told(replace(FULL, step=7))
    assert exposed(first, second)["mend_steps_total", labelled(learner="a")] == 7


def test_a_learner_that_cannot_tell_leaves_the_others_alone() -> None:
    broken, b = Broken(), Told(replace(FULL, name="b"))
    assert alike(exposed(broken, b), expected(b.told))


def test_a_collector_holds_no_optimizer_alive() -> None:
    a, b = Told(FULL), Told(replace(FULL, name="b"))
    collector = MendCollector(a, b)
    registry = library.CollectorRegistry()
    registry.register(collector)
    library.generate_latest(registry)  # what was read before is not told again
    del a
    left = samples_of(library.generate_latest(registry).decode())
    assert alike(left, expected(b.told))
    del b
    assert samples_of(library.generate_latest(registry).decode()) == {}


def test_a_status_is_read_at_most_twice_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(prometheus.time, "monotonic", lambda: now[0])
    told = Told(FULL)
    collector = MendCollector(told)
    for _ in range(50):
        list(collector.collect())
    assert told.asked == 1
    now[0] += 0.5
    list(collector.collect())
    assert told.asked == 2


def test_a_registry_refuses_a_second_collector() -> None:
    registry, told = library.CollectorRegistry(), Told(FULL)
    registry.register(MendCollector(told))
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(MendCollector(told))
    assert told.asked == 0


def test_two_learners_that_train_are_scraped(serving: Any) -> None:
    watch = Watch()
    told = ({"on_event": watch}, {})
    with cluster(descent(0.0), descent(0.0), each=told, sync_every=2) as pair:
        start(pair)
        drive(pair, 8, wave)
        pair[0].report(loss=0.125)
        watch.until("round")
        samples = scraped(serving(pair[0]))
        assert samples["mend_steps_total", labelled(learner="a")] == 8
        assert samples["mend_reported", labelled(learner="a", name="loss")] == 0.125
        assert samples["mend_peer_up", labelled(learner="a", peer="b")] == 1
        assert samples["mend_rounds_adopted_total", labelled(learner="a")] >= 1
        assert samples["mend_sent_bytes_total", labelled(learner="a")] > 0


def test_a_scrape_of_a_closed_learner_still_tells_its_counts(serving: Any) -> None:
    with closing(MendOptimizer(descent(0.0), name="a", listen="127.0.0.1:0")) as optimizer:
        server = serving(optimizer)
    assert scraped(server)["mend_steps_total", labelled(learner="a")] == 0


def test_a_registry_of_the_users_is_served_whole(serving: Any) -> None:
    registry, told = library.CollectorRegistry(), Told(FULL)
    library.Gauge("heat", "Of the machine.", registry=registry).set(3)
    samples = scraped(serving(told, registry=registry))
    assert samples["heat", ()] == 3
    assert samples["mend_steps_total", labelled(learner="a")] == 1500


@pytest.mark.parametrize("closes", [True, False])
def test_a_registry_takes_the_next_learner_once_the_first_is_gone(
    serving: Any, closes: bool
) -> None:
    """As a notebook's cell does that runs again."""
    registry, first = library.CollectorRegistry(), Told(FULL)
    server = serving(first, registry=registry)
    with pytest.raises(UsageError, match="registry must have no other learner's metrics"):
        serve_metrics(Told(FULL), 0, registry=registry)
    if closes:
        server.close()
    del first
    second = Told(replace(FULL, step=7))
    samples = scraped(serving(second, registry=registry))
    assert samples["mend_steps_total", labelled(learner="a")] == 7


def test_a_port_that_is_taken_is_named(serving: Any) -> None:
    told, registry = Told(FULL), library.CollectorRegistry()
    port = serving(told).port
    with pytest.raises(UsageError, match=rf"port must be a free port of host .*, got {port}: .*"):
        serve_metrics(told, port, registry=registry)
    serving(told, registry=registry)  # nothing of the failed call is left in it


@pytest.mark.parametrize(("port", "host"), [(70000, "127.0.0.1"), (0, "203.0.113.1")])
def test_an_address_that_is_none_of_this_machine_is_refused(port: int, host: str) -> None:
    with pytest.raises(UsageError, match="port must be a free port of host"):
        serve_metrics(Told(FULL), port, host=host)


def test_the_server_of_an_optimizer_that_is_gone_gives_way(serving: Any) -> None:
    first, second = Told(FULL), Told(replace(FULL, step=7))
    port = serving(first).port
    with pytest.raises(UsageError):
        serve_metrics(second, port)
    del first
    samples = scraped(serving(second, port=port))
    assert samples["mend_steps_total", labelled(learner="a")] == 7


def test_a_closed_server_gives_its_port_back(serving: Any) -> None:
    told = Told(FULL)
    server = serving(told)
    port = server.port
    server.close()
    server.close()
    assert serving(told, port=port).port == port


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_forked_child_that_lives_longer_does_not_keep_the_port() -> None:
    optimizer = MendOptimizer(descent(1.0), name="a")
    server = serve_metrics(optimizer, 0)
    port = server.port
    waits, ends = os.pipe()
    said, says = os.pipe()
    child = os.fork()
    if not child:
        os.write(says, b"here")
        os.close(ends)
        os.read(waits, 1)
        os._exit(0)
    try:
        assert os.read(said, 4) == b"here"
        server.close()
        with closing(serve_metrics(optimizer, port)) as again:
            assert again.port == port
    finally:
        os.close(ends)
        os.waitpid(child, 0)
        for end in (waits, said, says):
            os.close(end)


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ImportError, match=r"pip install 'mend-optim\[prometheus\]'"):
        serve_metrics(Told(FULL), 0)
    with pytest.raises(ImportError, match=r"pip install 'mend-optim\[prometheus\]'"):
        MendCollector()
