"""The table of packages in `docs/design.md`, checked for what each file imports, and for everything
that comes with it."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAME = "mend_optim"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for path in sorted((ROOT / NAME).rglob("*.py"))
    if path.stem != "__init__" and "_pb" not in path.parts
}
TOP = {
    "__main__",
    "errors",
    "environment",
    "optimizer",
    "finish",
    "inner_face",
    "reported",
    "reporting_face",
    "direct_steps",
    "own_methods",
    "own_tensors",
    "shared_tensors",
    "rank_meetings",
    "rank_traffic",
    "divided_parameters",
    "rank_run",
    "run_choice",
    "misplaced_calls",
    "run_history",
    "sole_trainer",
    "training_run",
    "wrapped_class",
    "wrapped_parameters",
    "handover",
    "settings",
    "given_names",
    "given_peers",
    "given_state",
    "security",
    "certs",
    "status",
    "distributed_checkpoint",
}

# The parts of this library that a package may import, besides itself and `errors`.
MAY_IMPORT = {
    "protocol": set(),
    "membership": {"protocol"},
    "engine": {"protocol", "membership"},
    "codecs": {"protocol"},
    "model": {"protocol", "engine.moment_schedule"},
    "worker": {
        "protocol",
        "codecs",
        "model.layout",
        "model.copies",
        "model.many_tensors",
        "engine.effects",
        "engine.moment_schedule",
        "engine.absence",
        "engine.accounts",
        "engine.pending",
        "engine.standing",
    },
    "transport": {"protocol"},
    "ranks": {"protocol", "model.layout", "model.copies", "model.many_tensors"},
    "runtime": {
        "protocol",
        "membership",
        "engine",
        "codecs",
        "model",
        "worker",
        "transport",
        "status",
    },
}
MAY_IMPORT["cli"] = {
    "protocol",
    "engine.ledger",
    "transport",
    "certs",
    "security",
    "environment",
}
# As a user of this library: its public face, and what that tells.
MAY_IMPORT["integrations"] = {"optimizer", "status", "finish", "engine.ledger"}
# The libraries that no module which comes with a package may import, however far away.
NEVER_COMES_WITH = {
    "protocol": {"torch", "numpy", "grpc", "google"},
    "membership": {"torch", "grpc", "google"},
    "engine": {"torch", "grpc", "google"},
    "codecs": {"grpc", "google"},
    "model": {"grpc", "google"},
    "worker": {"grpc", "google"},
    "transport": {"torch"},
    "cli": {"torch"},
    "ranks": {"grpc", "google"},
}

# Pure packages: time is an argument, effects are data, and random draws have a generator.
PURE = ("protocol", "membership", "engine", "codecs", "model", "worker")
IMPURE = {
    "time",
    "datetime",
    "threading",
    "queue",
    "concurrent",
    "multiprocessing",
    "subprocess",
    "asyncio",
    "logging",
    "socket",
    "select",
    "ssl",
    "random",
    "secrets",
    "importlib",
    "grpc",
    "google",
    "io",
    "os",
    "pathlib",
}
CHANCE = {
    "rand",
    "randn",
    "randint",
    "randperm",
    "rand_like",
    "randn_like",
    "randint_like",
    "normal",
    "normal_",
    "uniform_",
    "bernoulli",
    "bernoulli_",
    "multinomial",
    "random_",
    "exponential_",
    "manual_seed",
    "default_rng",
    "shuffle",
}
# The modules that need an optional extra.
EXTRAS = {
    "mend_optim.transport.security.issuing": "cryptography",
    "mend_optim.transport.security.notary": "cryptography",
    "mend_optim.transport.security.signers": "cryptography",
    "mend_optim.transport.security.evidence": "cryptography",
}
# The modules of `cli` that speak to the outside; all others there are pure. `proofs` checks
# certificates, `given_security` reads files, and `own_address` listens.
OUTWARD = {
    f"{NAME}.cli.check.own_address",
    f"{NAME}.cli.given_security",
    "mend_optim.cli.ledger.proofs",
    "mend_optim.cli.run.held_ports",
    "mend_optim.cli.run.outlet",
    "mend_optim.cli.run.run_folder",
    "mend_optim.cli.run.supervisor",
}
# Libraries that only these modules and packages may import.
CONFINED = {
    "grpc": {"transport.grpc_setup"},
    "cryptography": {
        "transport.security.issuing",
        "transport.security.notary",
        "transport.security.signers",
    },
    "google": {"transport.wire_parts", "transport.frames"},
    "prometheus_client": {"integrations.prometheus"},
    "transformers": {"integrations.transformers"},
    "lightning": {"integrations.lightning"},
    "pytorch_lightning": {"integrations.lightning"},
    "tensorboard": set(),
    "tqdm": {"runtime.wait_bar"},
    "threading": {"runtime", "transport.background_log", "cli.watch.command", "ranks.courier"},
    "ssl": {"transport.security.files", "transport.security.probe"},
    "time": {
        # The engine is told the time of `runtime.clock` alone. These others time only their own
        # waits and lines.
        "runtime.clock",
        "runtime.event_log",
        "runtime.guard",
        "runtime.ledger_file",
        "runtime.long_wait",
        "runtime.reporter",
        "runtime.wait_bar",
        "settings",
        "handover",
        "training_run",
        "cli.run.supervisor",
        "cli.check.command",
        "rank_run",
        "ranks.board",
        "ranks.group",
        "integrations.prometheus",
        "transport.security.channels",
        "transport.security.files",
        "transport.security.notary",
        # A survey compares two clocks.
        "transport.survey",
        "transport.surveying",
    },
    "asyncio": {"runtime", "transport"},
}


#: The collectives of torch. A call that one of them does not make is a hang of all.
TOGETHER = {
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "isend",
    "irecv",
    "new_group",
    "recv",
    "reduce",
    "reduce_scatter_tensor",
    "scatter",
    "send",
}


def place(module: str) -> str:
    """The package of a module, or the module itself at the top."""
    return module.split(".")[1]


def within(module: str, places: set[str]) -> bool:
    """Whether a module is one of these places, or in one of these packages."""
    parts = module.split(".")[1:]
    return parts[0] in places or ".".join(parts) in places


@cache
def imports(module: str) -> tuple[frozenset[str], frozenset[str]]:
    """The modules of this library that a module imports anywhere in its text, and the top-level
    names of others."""
    ours: set[str] = set()
    others: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: one import path for every name, so no relative ones"
            named = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in named:
            owner = next((m for m in (name, name.rpartition(".")[0]) if m in MODULES), "")
            if owner:
                ours.add(owner)
            elif name.split(".")[0] != NAME:
                others.add(name.split(".")[0])
    return frozenset(ours), frozenset(others)


def closure(modules: set[str]) -> set[str]:
    """These modules, and every module of this library that comes with them."""
    found: set[str] = set()
    left = set(modules)
    while left:
        found |= left
        left = set().union(*(imports(module)[0] for module in left)) - found
    return found


def members(package: str) -> set[str]:
    return {module for module in MODULES if place(module) == package}


@cache
def calls(module: str) -> set[str]:
    """The plain names that a module calls."""
    tree = ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8")))
    return {
        node.func.id
        for node in tree
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }


@cache
def draws(module: str) -> set[str]:
    """Random draws that use neither a generator of the caller's nor one that is seeded on the
    spot."""
    tree = ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8")))
    called = [node for node in tree if isinstance(node, ast.Call)]
    free = [
        call for call in called if not any(keyword.arg == "generator" for keyword in call.keywords)
    ]
    free = [call for call in free if not ast.unparse(call.func).endswith("Generator().manual_seed")]
    return {call.func.attr for call in free if isinstance(call.func, ast.Attribute)} & CHANCE


def together(module: str) -> set[str]:
    """The collectives of `torch.distributed` that a module uses."""
    tree = ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8")))
    return {
        node.attr
        for node in tree
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "dist"
    } & TOGETHER


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """The modules in and behind a cycle, or nothing. Modules that import nothing that is left are
    taken away until none can be."""
    left = dict(graph)
    while free := [name for name, needs in left.items() if not needs & set(left)]:
        for name in free:
            del left[name]
    return sorted(left)


def test_every_module_has_its_place() -> None:
    assert {place(module) for module in MODULES} == set(MAY_IMPORT) | TOP


def test_there_are_no_cycles() -> None:
    assert cycle({module: set(imports(module)[0]) for module in MODULES}) == []


def test_the_search_for_cycles_finds_one() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_only_what_it_may(package: str) -> None:
    allowed = MAY_IMPORT[package] | {package, "errors"}
    wrong = {
        (m, other)
        for m in members(package)
        for other in imports(m)[0]
        if not within(other, allowed)
    }
    assert wrong == set()


def test_nothing_needs_an_integration() -> None:
    core = set(MODULES) - members("integrations")
    assert closure(core) & members("integrations") == set()


@pytest.mark.parametrize("package", NEVER_COMES_WITH)
def test_what_a_package_must_not_know_does_not_come_with_it(package: str) -> None:
    everything = closure(members(package))
    wrong = {
        (module, name)
        for module in everything
        for name in imports(module)[1] & NEVER_COMES_WITH[package]
    }
    assert wrong == set()


@pytest.mark.parametrize("package", PURE)
def test_a_pure_package_knows_no_clock_thread_network_or_chance(package: str) -> None:
    everything = closure(members(package))
    assert {
        (module, name) for module in everything for name in imports(module)[1] & IMPURE
    } == set()
    spoken = {"print", "open", "input", "__import__"}
    assert {(module, name) for module in everything for name in calls(module) & spoken} == set()
    assert {(module, name) for module in everything for name in draws(module)} == set()


def test_only_the_commands_of_the_command_line_speak_to_the_outside() -> None:
    shells = {m for m in members("cli") if m.endswith(".command")} | OUTWARD
    pure = members("cli") - shells
    assert len(pure) >= 8
    impure = IMPURE - {"datetime"}  # a time of the ledger, in words
    # They take the names of the variables from there.
    everything = closure(pure) - {"mend_optim.environment"}
    assert {(m, name) for m in everything for name in imports(m)[1] & impure} == set()
    assert {(m, name) for m in pure for name in calls(m) & {"print", "open", "input"}} == set()


@pytest.mark.parametrize("library", CONFINED)
def test_clocks_threads_and_transport_stay_in_their_places(library: str) -> None:
    users = {module for module in MODULES if library in imports(module)[1]}
    assert {module for module in users if not within(module, CONFINED[library])} == set()


def test_only_the_group_calls_collectives() -> None:
    users = {module for module in MODULES if "torch" in imports(module)[1]}
    assert {module for module in users if together(module)} <= {f"{NAME}.ranks.group"}


def test_only_the_transport_knows_the_generated_messages() -> None:
    users = {
        module
        for module, path in MODULES.items()
        if "_pb import" in path.read_text(encoding="utf-8")
    }
    assert {module for module in users if place(module) != "transport"} == set()


BARE = """
import importlib, sys

for missing in {missing!r}:
    sys.modules[missing] = None  # importing it raises ImportError
# `mend_optim/__init__.py` imports torch. Its packages must not need it.
sys.modules[{name!r}] = package = type(sys)({name!r})
package.__path__ = [{path!r}]
for module in {modules!r}:
    importlib.import_module(module)
print("imported", len({modules!r}))
"""


@pytest.mark.parametrize(
    ("package", "missing"),
    [
        ("protocol", ("torch", "numpy", "grpc", "google.protobuf")),
        ("membership", ("torch", "grpc", "google.protobuf")),
        ("engine", ("torch", "grpc", "google.protobuf")),
        ("transport", ("torch",)),
        ("cli", ("torch",)),
    ],
)
def test_a_package_can_be_imported_where_torch_is_not(
    package: str, missing: tuple[str, ...]
) -> None:
    absent = {module for module, library in EXTRAS.items() if not find_spec(library)}
    modules = sorted(members(package) - absent)
    code = BARE.format(missing=missing, name=NAME, path=str(ROOT / NAME), modules=modules)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.stdout.split() == ["imported", str(len(modules))], done.stderr[-2000:]


def test_no_module_is_a_drawer_for_everything() -> None:
    names = {part for name in MODULES for part in name.split(".")}
    assert names & {"util", "utils", "common", "config", "helpers", "manager", "misc"} == set()
