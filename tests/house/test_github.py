"""The files in `.github`. GitHub leaves out a form that breaks its rules, and tells nobody."""

from __future__ import annotations

import ast
import copy
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.mutation.mutants import MUTANTS

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
FORMS = sorted(
    set((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")) - {GITHUB / "ISSUE_TEMPLATE/config.yml"}
)
#: By type of an element: the attributes that it must have, and those that it may have.
ATTRIBUTES = {
    "markdown": ({"value"}, set()),
    "input": ({"label"}, {"description", "placeholder", "value"}),
    "textarea": ({"label"}, {"description", "placeholder", "value", "render"}),
    "dropdown": ({"label", "options"}, {"description", "multiple", "default"}),
    "checkboxes": ({"label", "options"}, {"description"}),
}
PARTS = {"name", "description", "title", "labels", "body", "assignees", "projects", "type"}


def read_yaml(path: Path) -> Any:
    yaml = pytest.importorskip("yaml", reason="PyYAML, of the extra dev, is not installed")
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def form_faults(form: dict[str, Any]) -> list[str]:
    """How a form breaks GitHub's rules for issue forms."""
    faults = [f"no {part}" for part in ("name", "description", "body") if not form.get(part)]
    faults += [f"unknown part {part}" for part in form.keys() - PARTS]
    body = form.get("body") or []
    if all(element.get("type") == "markdown" for element in body):
        faults.append("nothing to fill in")
    ids = [element["id"] for element in body if "id" in element]
    faults += [f"id {i} is not made of letters" for i in ids if not re.fullmatch(r"[\w-]+", i)]
    asked = [e["attributes"]["label"] for e in body if "label" in e.get("attributes", {})]
    for what, values in (("id", ids), ("label", asked)):
        faults += [f"{what} {v} twice" for v in sorted(set(values)) if values.count(v) > 1]
    return faults + [fault for element in body for fault in element_faults(element)]


def element_faults(element: dict[str, Any]) -> list[str]:
    if element.get("type") not in ATTRIBUTES:
        return [f"unknown type {element.get('type')}"]
    must, may = ATTRIBUTES[element["type"]]
    given = {name for name, value in element.get("attributes", {}).items() if value}
    faults = [f"{element['type']} has no {name}" for name in sorted(must - given)]
    faults += [f"{element['type']} has {name}" for name in sorted(given - must - may)]
    unknown = element.keys() - {"type", "id", "attributes", "validations"}
    unknown |= {f"validations.{v}" for v in element.get("validations", {}).keys() - {"required"}}
    return faults + [f"{element['type']} has {name}" for name in sorted(unknown)]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_a_form_keeps_to_the_rules(path: Path) -> None:
    assert form_faults(read_yaml(path)) == []


def test_there_is_a_form_for_each_kind_of_issue() -> None:
    assert [path.stem for path in FORMS] == ["bug", "feature", "question"]
    assert read_yaml(GITHUB / "ISSUE_TEMPLATE/config.yml") == {"blank_issues_enabled": False}


def test_a_bug_comes_with_what_an_answer_needs() -> None:
    text = (GITHUB / "ISSUE_TEMPLATE/bug.yml").read_text(encoding="utf-8")
    for command in ("mend --version", "mend check", "mend ledger", "docs/troubleshooting.md"):
        assert command in text


GOOD = {
    "name": "Bug",
    "description": "Something is wrong.",
    "body": [
        {"type": "textarea", "id": "what", "attributes": {"label": "What"}},
        {"type": "input", "id": "who", "attributes": {"label": "Who"}},
    ],
}


@pytest.mark.parametrize(
    ("where", "key", "value", "fault"),
    [
        ("form", "name", "", "no name"),
        ("form", "lables", ["bug"], "unknown part lables"),
        (
            "form",
            "body",
            [{"type": "markdown", "attributes": {"value": "x"}}],
            "nothing to fill in",
        ),
        ("element", "type", "text", "unknown type text"),
        ("element", "id", "who", "id who twice"),
        ("element", "id", "a b", "id a b is not made of letters"),
        ("element", "attributes", {"label": "Who"}, "label Who twice"),
        ("element", "attributes", {"label": ""}, "textarea has no label"),
        ("element", "attributes", {"label": "x", "options": ["y"]}, "textarea has options"),
        ("element", "required", True, "textarea has required"),
        ("element", "validations", {"require": True}, "textarea has validations.require"),
    ],
)
def test_a_form_that_breaks_a_rule_is_found(where: str, key: str, value: Any, fault: str) -> None:
    form: dict[str, Any] = copy.deepcopy(GOOD)
    assert form_faults(form) == []
    (form if where == "form" else form["body"][0])[key] = value
    assert form_faults(form) == [fault]


def test_the_mutant_that_shows_how_to_write_one_exists() -> None:
    text = (GITHUB / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    call = ast.parse(code).body[0]
    played = re.findall(r"-m tests\.mutation\.mutants (\S+)$", text, re.MULTILINE)
    (shown,) = [mutant for mutant in MUTANTS if mutant.name in played]
    assert eval(ast.unparse(call), vars(import_module("tests.mutation.mutant_list"))) == shown
