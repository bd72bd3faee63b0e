"""The comparison of distributions with the files that git knows; the version, in each place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mend_optim
from tests.package.files import (
    INFO,
    NAME,
    NEEDED,
    metadata_faults,
    sdist_faults,
    version_in,
    wheel_faults,
)
from tests.package.installed import STEPS, check_agreement, example_of

ROOT = Path(__file__).parents[2]
TOP, DIST_INFO = f"{NAME}-1.2", f"{NAME}-1.2.dist-info"
METADATA = """\
Metadata-Version: 2.4
Name: mend-optim
Version: 1.2
License-Expression: Apache-2.0
Requires-Dist: grpcio>=1.70
Requires-Dist: numpy>=1.26
Requires-Dist: protobuf<8,>=6.30
Requires-Dist: torch>=2.4
Requires-Dist: rich<16,>=13; extra == 'cli'
"""
paths = st.sets(
    st.from_regex(r"(mend_optim|tests|docs)/[a-z]{1,3}\.py", fullmatch=True), max_size=6
)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@given(known=paths, packed=paths)
def test_an_sdist_holds_what_git_knows(known: set[str], packed: set[str]) -> None:
    found = {f"{TOP}/{name}" for name in {*packed, *NEEDED, "PKG-INFO"}}
    faults = sdist_faults(found, known, "1.2")
    lacking = [f"the sdist lacks {TOP}/{name}" for name in sorted(known - packed)]
    assert faults == lacking + [
        f"the sdist has a stray {TOP}/{name}" for name in sorted(packed - known)
    ]


@given(known=paths, packed=paths)
def test_a_wheel_holds_the_package_that_git_knows(known: set[str], packed: set[str]) -> None:
    base = {name for name in NEEDED if name.startswith("mend_optim/")}
    found = packed | base | {f"{DIST_INFO}/{name}" for name in INFO}
    wanted = {name for name in known if name.startswith("mend_optim/")}
    lacking = [f"the wheel lacks {name}" for name in sorted(wanted - packed)]
    assert wheel_faults(found, known, "1.2") == lacking + [
        f"the wheel has a stray {name}" for name in sorted(packed - wanted)
    ]


@pytest.mark.parametrize("name", NEEDED)
def test_no_distribution_goes_without_what_it_needs(name: str) -> None:
    """All files that git knows."""
    found = {f"{TOP}/{other}" for other in {*NEEDED, "PKG-INFO"} - {name}}
    assert sdist_faults(found, set(), "1.2") == [f"the sdist lacks {TOP}/{name}"]
    assert (ROOT / name).is_file()


def test_metadata_have_the_version_the_licence_and_four_dependencies() -> None:
    assert metadata_faults(METADATA, "1.2") == []
    assert metadata_faults(METADATA, "1.3") == ["Version is 1.2, not 1.3"]
    (fault,) = metadata_faults(METADATA.replace("; extra == 'cli'", ""), "1.2")
    assert fault.startswith("Requires-Dist is ['grpcio', 'numpy', 'protobuf', 'rich', 'torch']")
    (fault,) = metadata_faults(METADATA.replace("Apache-2.0", "MIT"), "1.2")
    assert fault == "License-Expression is MIT, not Apache-2.0"


def test_the_version_is_written_in_one_place() -> None:
    """The others read it there, or are compared with it here."""
    version = mend_optim.__version__
    assert version_in(read("mend_optim/__init__.py")) == version
    project = read("pyproject.toml")
    assert 'dynamic = ["version"]' in project
    assert re.findall(r'^path = "(.*?)"', project, re.MULTILINE) == ["mend_optim/__init__.py"]
    assert re.findall(r"^version\b", project, re.MULTILINE) == []
    assert f"(version {version}, " in read("README.md")
    newest = re.findall(r"^## (.*)$", read("docs/changelog.md"), re.MULTILINE)[0]
    assert newest.split()[1] == version  # after "[Unreleased]", or before a date: "[0.1.0] 0.1.0"


def test_the_first_example_of_the_readme_can_be_run() -> None:
    code = example_of(read("README.md"), "127.0.0.1:1", "127.0.0.1:2")
    assert 'listen="127.0.0.1:1", peers=["127.0.0.1:2"]' in code
    compile(code, "README.md", "exec")


@pytest.mark.parametrize("text", ["```diff\n+ x\n```\n", '```diff\n+ x = "0.0.0.0:29600"\n```\n'])
def test_an_example_without_its_addresses_is_not_run(text: str) -> None:
    with pytest.raises(LookupError, match="0 times"):
        example_of(text, "127.0.0.1:1", "127.0.0.1:2")


END = {"agreed": True, "tokens": {"a": STEPS, "b": STEPS - 1}, "weights": [[1.0]]}


@pytest.mark.parametrize(
    "other",
    [
        {**END, "agreed": False},
        {**END, "weights": [[2.0]]},
        {**END, "tokens": {"a": STEPS}},
        {**END, "tokens": {"a": STEPS, "b": STEPS - 2}},
    ],
)
def test_learners_that_end_otherwise_fail_the_check(other: dict[str, object]) -> None:
    check_agreement([END, END])
    with pytest.raises(RuntimeError, match="ended on"):
        check_agreement([END, other])
    if other["weights"] == END["weights"]:
        with pytest.raises(RuntimeError, match="ended on"):
            check_agreement([other, other])
