"""Every public name has a docstring with an example, and every example runs."""

from __future__ import annotations

import doctest
import inspect
import re
import sys

import pytest

import mend_optim

# Public names that still lack an example, or an entry per argument. If you add it, take the name
# off the list.
STILL_WITHOUT = set[str]()
ENTRIES = re.compile(r"^(?:Args|Attributes):$", re.MULTILINE)
MODULES = sorted({getattr(mend_optim, name).__module__ for name in mend_optim.__all__})


def lacks(name: str) -> bool:
    public = getattr(mend_optim, name)
    docstring = inspect.cleandoc(public.__doc__ or "")
    if inspect.isfunction(public):
        without = not inspect.signature(public).parameters
    else:
        without = issubclass(public, Exception)
    entries = without or bool(ENTRIES.search(docstring))
    return not entries or ">>>" not in docstring


def test_every_public_name_has_entries_and_an_example() -> None:
    assert {name for name in mend_optim.__all__ if lacks(name)} == STILL_WITHOUT


@pytest.mark.usefixtures("no_environment")
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("module", MODULES)
def test_examples_run(module: str) -> None:
    results = doctest.testmod(sys.modules[module], report=True)
    assert results.failed == 0
