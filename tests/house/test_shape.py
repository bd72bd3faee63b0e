"""Caps on size and form that no linter here holds. Nobody raises one without a split."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "mend_optim"
SOURCES = [path for path in sorted(PACKAGE.rglob("*.py")) if "_pb" not in path.parts]
TABLES = {"mutant_list.py"}  # of texts, which the formatter would tear apart
FORMATTED = [
    path
    for folder in ("mend_optim", "tests", "bench", "examples", "docs")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "_pb" not in path.parts and path.name not in TABLES
]
FILE_LINES = 500
CLASS_LINES = 250  # of code: comments, docstrings and blank lines don't count

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
NO_CODE = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


def within(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


def docstring_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | Definition) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            lines |= set(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return lines


@cache
def code_lines(text: str) -> frozenset[int]:
    """Lines that hold code: no comments, no docstrings, nothing blank."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return frozenset(lines - docstring_lines(ast.parse(text)))


def sizes() -> Iterator[tuple[str, int, int]]:
    """Every file and class, with its size and its cap."""
    for path in SOURCES:
        yield within(path), len(text_of(path).splitlines()), FILE_LINES
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                lines = set(range(node.lineno, (node.end_lineno or 0) + 1))
                if len(lines) > CLASS_LINES:  # to find out what is code takes a while
                    lines &= code_lines(text_of(path))
                yield f"{within(path)}::{node.name}", len(lines), CLASS_LINES


def public_names(tree: ast.Module) -> Iterator[str]:
    """Functions, classes and constants that a module defines, without those with an underscore."""
    for node in tree.body:
        if isinstance(node, Definition):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [name.id for target in node.targets for name in leaves(target)]
        elif isinstance(node, ast.AnnAssign):
            names = [name.id for name in leaves(node.target)]
        else:
            continue
        yield from (name for name in names if not name.startswith("_"))


def leaves(target: ast.expr) -> Iterator[ast.Name]:
    return (node for node in ast.walk(target) if isinstance(node, ast.Name))


# Every module may have a logger and a type variable.
EVERYWHERE = {"log", "T"}


def defined_twice() -> set[tuple[str, str]]:
    """(package, name) of public names that more than one module of a package defines."""
    modules: Counter[tuple[str, str]] = Counter()
    for path in SOURCES:
        names = set(public_names(tree_of(path))) - EVERYWHERE
        modules.update((within(path.parent), name) for name in names)
    return {place for place, count in modules.items() if count > 1}


def silent_packages() -> set[str]:
    packages = [path for path in SOURCES if path.name == "__init__.py"]
    return {within(path) for path in packages if ast.get_docstring(tree_of(path)) is None}


def too_long() -> dict[str, str]:
    return {name: f"{size} > {cap}" for name, size, cap in sizes() if size > cap}


def test_files_and_classes_are_short_enough_to_read() -> None:
    over = too_long()
    assert over == {}


def test_a_public_name_is_defined_once_in_its_package() -> None:
    assert defined_twice() == set()


def test_a_package_says_who_runs_it() -> None:
    assert silent_packages() == set()


def test_comments_docstrings_and_blank_lines_are_not_code() -> None:
    text = '"""One."""\n\n# two\nx = 1  # three\ny = (\n    2,\n)\n\n\ndef f():\n    """Four."""\n'
    assert code_lines(text) == {4, 5, 6, 7, 10}


def test_nothing_is_kept_from_the_formatter() -> None:
    mark = "# fmt: " + "skip"
    assert {path.name for path in FORMATTED if mark in text_of(path)} == set()


def test_imports_are_absolute() -> None:
    """A relative import would be a second path to the same name."""
    relative = {
        within(path)
        for path in SOURCES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ImportFrom) and node.level
    }
    assert relative == set()


def test_a_package_exports_nothing() -> None:
    packages = [p for p in SOURCES if p.name == "__init__.py" and p.parent != PACKAGE]
    exporting = {
        within(path)
        for path in packages
        for node in tree_of(path).body
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    }
    assert exporting == set()
