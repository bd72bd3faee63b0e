"""The dashboard in examples/grafana.json: it shows all metrics, and only such as there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mend_optim.integrations.figures import FIGURES

BOARD = json.loads((Path(__file__).parents[3] / "examples" / "grafana.json").read_text("utf-8"))
PANELS = BOARD["panels"]
#: The metrics that are exported, and the labels of each.
LABELS = {
    "mend_learner_info": {"learner", "address", "security"},
    **{
        f"mend_{figure.name}{'_total' * figure.counts}": {"learner", *figure.labels}
        for figure in FIGURES
    },
}
TARGETS = [target for panel in PANELS for target in panel.get("targets", ())]

each_target = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target["expr"])


def metrics_in(expression: str) -> set[str]:
    return set(re.findall(r"\bmend_\w+", expression))


def labels_in(target: dict[str, Any]) -> set[str]:
    """The labels that a panel selects, groups by or names in its legend."""
    expression = target["expr"]
    selected = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", expression)
    grouped = re.findall(r"\bby \(([^)]*)\)", expression)
    legend = re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
    return {*selected, *legend, *(label.strip() for each in grouped for label in each.split(","))}


def strings(value: Any) -> Iterator[str]:
    """All texts in the dashboard."""
    if isinstance(value, dict):
        for each in value.values():
            yield from strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from strings(each)
    elif isinstance(value, str):
        yield value


def test_these_are_the_metrics_that_are_exported() -> None:
    library = pytest.importorskip("prometheus_client", reason="pip install '.[prometheus]'")
    from mend_optim.integrations.prometheus import MendCollector
    from tests.unit.integrations.test_figures import FULL
    from tests.unit.integrations.test_prometheus import Told, samples_of

    told, registry = Told(FULL), library.CollectorRegistry()
    registry.register(MendCollector(told))
    samples = samples_of(library.generate_latest(registry).decode())
    found: dict[str, set[str]] = {}
    for name, labels in samples:
        found.setdefault(name, set()).update(label for label, _ in labels)
    assert found == LABELS


@each_target
def test_an_expression_names_metrics_and_labels_that_there_are(target: dict[str, Any]) -> None:
    named = metrics_in(target["expr"])
    assert named
    assert named <= LABELS.keys()
    known = set.intersection(*(LABELS[name] for name in named))
    assert labels_in(target) <= known


@each_target
def test_a_counter_is_shown_as_a_rate_or_an_increase(target: dict[str, Any]) -> None:
    kept = {"mend_dropped_tokens_total"}  # whose sum is of interest
    for name in metrics_in(target["expr"]) - kept:
        ranged = re.search(rf"(rate|increase)\({name}\{{[^}}]*\}}\[\$__\w+\]", target["expr"])
        assert bool(ranged) == name.endswith("_total")


def test_every_metric_is_shown() -> None:
    shown = set().union(*(metrics_in(target["expr"]) for target in TARGETS))
    assert shown == LABELS.keys()


def test_the_variable_asks_for_a_label_that_there_is() -> None:
    (learner,) = [each for each in BOARD["templating"]["list"] if each["name"] == "learner"]
    found = re.fullmatch(r"label_values\((\w+), (\w+)\)", learner["query"]["query"])
    assert found is not None
    assert found[2] in LABELS[found[1]]


def test_every_variable_is_defined() -> None:
    defined = {each["name"] for each in BOARD["templating"]["list"]}
    used = {name for text in strings(BOARD) for name in re.findall(r"\$\{?(\w+)", text)}
    assert {name for name in used if not name.startswith("__")} == defined


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    numbers = [panel["id"] for panel in PANELS]
    assert len(set(numbers)) == len(numbers)
    cells = [
        (x, y)
        for panel in PANELS
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert all(0 <= x < 24 for x, _ in cells)
    assert all(panel["description"] for panel in PANELS if panel["type"] != "row")
