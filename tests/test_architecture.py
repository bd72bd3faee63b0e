"""The house rules that files can show: pure rooms below, threads and transport apart, no cycles, no long files."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "mend_optim"
ROOMS = {path.stem: path for path in sorted(PACKAGE.glob("*.py")) if path.stem != "__init__"}
LONGEST = 400

# From the bottom up. A room that is not listed is pure.
TRANSPORT = {"wire", "inherited", "stream", "link", "control", "transfer", "peer"}
CONCURRENCY, FACE = {"network_loop", "ledger_file", "merge_thread"}, {"handover", "settings", "optimizer", "stateful"}
SHELL = TRANSPORT | CONCURRENCY | FACE
PURE = sorted(set(ROOMS) - SHELL)

IMPURE = {
    "time", "datetime", "threading", "queue", "concurrent", "multiprocessing", "subprocess", "asyncio", "logging",
    "socket", "select", "ssl", "random", "secrets", "importlib", "grpc", "google", "io", "os", "pathlib",
}  # fmt: skip
CHANCE = {
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal", "normal_", "uniform_",
    "bernoulli", "bernoulli_", "multinomial", "random_", "exponential_", "manual_seed", "default_rng", "shuffle",
}  # fmt: skip
CONFINED = {
    "grpc": {"peer"},
    "google": {"wire"},
    "threading": CONCURRENCY,
    "time": {"merge_thread", "ledger_file", "handover", "peer", "settings", "optimizer"},
    "asyncio": {*CONCURRENCY, *TRANSPORT},
}


def imports(path: Path) -> tuple[set[str], set[str]]:
    """What a file imports anywhere in it: rooms of this package, and top-level names of others."""
    rooms: set[str] = set()
    others: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            full = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            rooms.update([node.module.split(".")[0]] if node.module else [alias.name for alias in node.names])
            continue
        elif isinstance(node, ast.ImportFrom):
            full = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        rooms.update(name.split(".")[1] for name in full if name.startswith("mend_optim."))
        others.update(name.split(".")[0] for name in full if not name.startswith("mend_optim."))
    return rooms, others


def calls(path: Path) -> set[str]:
    """Plain names that a file calls."""
    tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return {node.func.id for node in tree if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}


def draws(path: Path) -> set[str]:
    """Random draws that are not from a generator of the caller's, or from one seeded on the spot."""
    named = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    free = [call for call in named if not any(keyword.arg == "generator" for keyword in call.keywords)]
    free = [call for call in free if not ast.unparse(call.func).endswith("Generator().manual_seed")]
    return {call.func.attr for call in free if isinstance(call.func, ast.Attribute)} & CHANCE


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """A cycle, empty if there is none: take away what imports nothing that is left, until nothing goes."""
    left = dict(graph)
    while free := [room for room, needs in left.items() if not needs & set(left)]:
        for room in free:
            del left[room]
    return sorted(left)


def test_there_are_no_cycles() -> None:
    assert cycle({room: imports(path)[0] for room, path in ROOMS.items()}) == []


def test_the_search_for_cycles_finds_one() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]


@pytest.mark.parametrize("room", PURE)
def test_a_pure_room_knows_no_clock_thread_network_or_chance(room: str) -> None:
    rooms, others = imports(ROOMS[room])
    assert others & IMPURE == set()
    assert rooms & {*SHELL, "_pb"} == set()
    assert calls(ROOMS[room]) & {"print", "open", "input", "__import__"} == set()
    assert draws(ROOMS[room]) == set()


@pytest.mark.parametrize(("rooms", "above"), [(TRANSPORT, CONCURRENCY | FACE), (CONCURRENCY, FACE)])
def test_a_room_imports_nothing_above_it(rooms: set[str], above: set[str]) -> None:
    assert {room for room in rooms & set(ROOMS) if imports(ROOMS[room])[0] & above} == set()


@pytest.mark.parametrize("module", CONFINED)
def test_clocks_threads_and_transport_stay_in_their_rooms(module: str) -> None:
    assert {room for room, path in ROOMS.items() if module in imports(path)[1]} <= CONFINED[module]


def test_only_wire_knows_the_generated_messages() -> None:
    assert {room for room, path in ROOMS.items() if "_pb" in imports(path)[0]} <= {"wire"}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_stays_short(room: str) -> None:
    assert len(ROOMS[room].read_text(encoding="utf-8").splitlines()) <= LONGEST


def test_no_room_is_a_drawer_for_everything() -> None:
    assert set(ROOMS) & {"util", "utils", "common", "config", "helpers", "manager", "misc"} == set()
