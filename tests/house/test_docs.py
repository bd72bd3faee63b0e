"""The documents are true where that can be checked: every name exists, every link leads somewhere,
and every command runs."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.addresses import port_of_all_hosts

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
DOCUMENTS = [README, *sorted(DOCS.glob("*.md")), *sorted((ROOT / ".github").glob("*.md"))]
INDEX = DOCS / "index.md"  # of the site, for which the README stands on GitHub
WIDTH, README_LINES = 100, 150

TEST = re.compile(r"`([\w/]*test_\w+\.py)::(test_\w+)`")  # the path is relative to tests/
SCRIPT = re.compile(r"^```python\n# (\w+\.py)$", re.MULTILINE)  # to copy from a page
MODULE = re.compile(r"`((?:\w+/)*\w+\.py)`")
TARGET = re.compile(r"(?:`|^ {4})make ([a-z-]+)", re.MULTILINE)
BENCH = re.compile(r"python -m bench((?: [a-z]\w*)+)")
LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROMISE = re.compile(r"^### (.+?)\n(.*?)(?=^##)", re.MULTILINE | re.DOTALL)
ADDRESS = re.compile(r"[\w\]]:(\d{4,5})\b")
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Sphinx understands these, and GitHub shows them as they stand: directives, roles, targets.
SPHINX = re.compile(
    r"^\s*(?:`{3,}|:{3,}|~{3,})\{|(?<!`)\{[\w:-]+\}`[^`]|^\([\w-]+\)=$|^%\s", re.MULTILINE
)
ROW = re.compile(r"^\|(.*)\|$", re.MULTILINE)
FIGURE = re.compile(r"\d+(?:[.,]\d+)*")
ENTRY = re.compile(r"^## (.+)\n\n((?:.+\n)+)", re.MULTILINE)
EXAMPLE = re.compile(r"^ {4}\.venv/bin/python (examples/\S+) (.*)$", re.MULTILINE)

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def unfenced(text: str) -> str:
    """A document without its fenced blocks, in which `#` begins a comment."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


@cache
def functions_of(path: Path) -> set[str]:
    tree = ast.parse(read(path))
    return {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}


@cache
def anchors_of(path: Path) -> set[str]:
    """The headings of a document, as GitHub names them: links can jump to these."""
    headings = (re.sub(r"[^\w\- ]", "", h.lower()) for h in HEADING.findall(unfenced(read(path))))
    return {heading.strip().replace(" ", "-") for heading in headings}


def is_too_long(line: str) -> bool:
    """Whether a line of prose could have been wrapped: targets of links count nothing, and one
    word by itself, such as the name of a test, cannot be wrapped."""
    visible = re.sub(r"\]\([^)]*\)|https?://\S+", "", line)
    return len(visible) > WIDTH and len(visible.split()) > 2


@cache
def script(name: str) -> ModuleType:
    """A Python file in docs/, as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Names


@each_document
def test_every_test_that_is_named_exists(document: Path) -> None:
    for file, name in TEST.findall(read(document)):
        path = ROOT / "tests" / file
        assert path.is_file(), f"{document.name} names {file}: paths are relative to tests/"
        assert name in functions_of(path), f"{document.name} names {file}::{name}"


@each_document
def test_every_file_that_is_named_exists(document: Path) -> None:
    for file in set(MODULE.findall(read(document))) - set(SCRIPT.findall(read(document))):
        places = (ROOT, ROOT / "mend_optim")
        assert any((place / file).is_file() for place in places), f"{document.name} names {file}"


@each_document
def test_every_target_that_is_named_exists(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", read(ROOT / "Makefile"), re.MULTILINE))
    assert set(TARGET.findall(read(document))) <= targets


@each_document
def test_every_bench_that_is_named_exists(document: Path) -> None:
    source = read(ROOT / "bench" / "__main__.py")
    benches = set(re.findall(r'^    "(\w+)": \w+\.run\w*,$', source, re.MULTILINE))
    named = {name for names in BENCH.findall(read(document)) for name in names.split()}
    assert benches
    assert named <= benches


@each_document
def test_every_link_leads_somewhere(document: Path) -> None:
    for link in LINK.findall(unfenced(read(document))):
        if link.startswith("https://"):
            continue
        file, _, anchor = link.partition("#")
        target = document.parent / file if file else document
        assert target.exists(), f"{document.name} links to {link}"
        assert not anchor or anchor in anchors_of(target), f"{document.name} links to {link}"


def test_every_port_that_is_named_stays_free() -> None:
    """Linux gives any port from 32768 on to the next outgoing connection."""
    pages = [*DOCUMENTS, *(ROOT / "examples").glob("*.py")]
    ports = {int(port) for page in pages for port in ADDRESS.findall(read(page))}
    assert 29600 in ports
    assert max(ports) < 30000


# They have the form that they should have


@each_document
def test_prose_is_wrapped(document: Path) -> None:
    lines = enumerate(read(document).splitlines(), 1)
    fences, prose = 0, []
    for number, line in lines:
        fences += line.startswith("```")
        if fences % 2 == 0 and not line.startswith(("|", "    ")):
            prose.append((number, line))
    assert [number for number, line in prose if is_too_long(line)] == []


@each_document
def test_python_in_a_document_is_python(document: Path) -> None:
    if document.name == script("make_reference").PAGE.name:
        return  # signatures
    for code in PYTHON.findall(read(document)):
        ast.parse(textwrap.dedent(code))


def test_the_readme_is_short() -> None:
    assert len(read(README).splitlines()) <= README_LINES


def test_every_promise_is_held_by_a_test() -> None:
    promises = PROMISE.findall(read(DOCS / "guarantees.md"))
    assert len(promises) >= 19
    for heading, body in promises:
        for entry in ("- *Rests on:* ", "- *Breaks it:*", "- *Test:*"):
            assert body.count(entry) == 1, f"{heading}: {entry}"
        assert TEST.search(body.partition("- *Test:*")[2]), heading


def test_the_readme_links_to_every_promise() -> None:
    headings = [heading for heading, _ in PROMISE.findall(read(DOCS / "guarantees.md"))]
    links = [link for link in LINK.findall(read(README)) if "guarantees.md#" in link]
    assert [link.partition("#")[2] for link in links] == [
        heading.lower().replace(" ", "-") for heading in headings
    ]


def test_the_readme_links_to_every_page() -> None:
    linked = {link.partition("#")[0] for link in LINK.findall(read(README))}
    pages = set(DOCS.glob("*.md")) - {INDEX}
    assert {f"docs/{path.name}" for path in pages} <= linked


def test_the_index_of_the_site_has_every_page_once() -> None:
    lines = [line for tree in TOCTREE.findall(read(INDEX)) for line in tree.splitlines()]
    listed = [line for line in lines if line and not line.startswith(":")]
    assert sorted(listed) == sorted(path.stem for path in DOCS.glob("*.md") if path != INDEX)


@each_document
def test_github_shows_it_as_the_site_does(document: Path) -> None:
    text = TOCTREE.sub("", read(document)) if document == INDEX else read(document)
    assert SPHINX.findall(text) == []


@pytest.mark.parametrize(
    ("link", "on_the_site"),
    [
        ("[the words](../README.md#how-a-round-works)", "[the words](index.md)"),
        ("[traces](../tests/virtual/traces)", "traces"),
        ("[the policy](../.github/SECURITY.md)", "the policy"),
        ("[a script](../examples/train_text.py)", "[a script](../examples/train_text.py)"),
        ("[limits](limits.md#memory)", "[limits](limits.md#memory)"),
    ],
)
def test_links_that_would_leave_the_site(link: str, on_the_site: str) -> None:
    assert script("conf").without_links_outside(link) == on_the_site


# Pages that repeat what others say


def test_every_figure_of_the_choice_is_on_the_page_that_it_comes_from() -> None:
    """The first cell and the header of a row say what was measured, the last one where."""
    rows = [row.split("|") for row in ROW.findall(read(DOCS / "is_it_for_me.md"))]
    checked = 0
    for first, *cells, source in rows:
        for link in LINK.findall(source):
            if link.startswith("#"):
                continue
            page = read(DOCS / link.partition("#")[0])
            for figure in FIGURE.findall(" ".join([first, *cells])):
                known = rf"(?<![\d.,]){re.escape(figure)}(?![\d]|[.,]\d)"
                assert re.search(known, page) or figure == "0", f"{figure} in {first}"
                checked += 1
    assert checked > 50


def test_the_glossary_has_every_word_and_links_to_its_page() -> None:
    entries = ENTRY.findall(read(DOCS / "glossary.md"))
    words = [word for word, _ in entries]
    assert words == sorted(words)
    assert {word for word, body in entries if not LINK.search(body)} == set()
    table = re.findall(r"^\| (\w+)(?: Θ)? \| ", read(README), re.MULTILINE)
    assert "learner" in table
    assert {word.capitalize() for word in table if word != "word"} <= set(words)


def test_the_reference_is_current() -> None:
    assert read(script("make_reference").PAGE) == script("make_reference").render(), (
        "run python docs/make_reference.py"
    )


# The commands of the README


def test_the_readme_installs_as_every_change_is_checked() -> None:
    checked = read(ROOT / ".ci" / "run")
    commands = re.findall(r"^ {4}((?:make|pip) [^#\n]*)", read(README), re.MULTILINE)
    assert commands
    for command in map(str.strip, commands):
        pattern = re.escape(command).replace(r"install\ ", r"install .*")
        assert re.search(rf"{pattern}(\s|$)", checked), f".ci/run does not run {command}"


def test_the_learners_of_the_readme_train_one_model() -> None:
    commands = EXAMPLE.findall(read(README))
    assert len(commands) == 2
    port = port_of_all_hosts()
    learners = []
    try:
        for script, arguments in commands:
            told = arguments.replace("29600", port).split()
            told += ["--steps", "100000", "--batch", "2", "--sync-every", "8", "--progress", "json"]
            command = [sys.executable, str(ROOT / script), *told]
            learners.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        for learner in learners:  # each speaks every second, until a round has merged both
            assert learner.stdout is not None
            said = map(json.loads, learner.stdout)
            assert any(line.get("members") == ["a", "b"] for line in said)
    finally:
        for learner in learners:
            learner.kill()
            learner.communicate()
