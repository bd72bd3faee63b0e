"""Integrations where their libraries are missing, and what comes with them where they are not."""

from __future__ import annotations

import subprocess
import sys

import pytest

MODULES = ("prometheus", "tensorboard", "figures", "finding", "training_end", "batch_tokens")
LIBRARIES = ("prometheus_client", "transformers", "lightning", "tensorboard")
IMPORTED = """
import importlib, sys
for module in {modules!r}:
    importlib.import_module("mend_optim.integrations." + module)
print(*sorted(set({libraries!r}) & set(sys.modules)))
"""


def test_a_module_without_its_own_base_class_imports_no_library() -> None:
    code = IMPORTED.format(modules=MODULES, libraries=LIBRARIES)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.returncode) == ("\n", 0), done.stderr


@pytest.mark.parametrize("library", ["transformers", "lightning"])
def test_a_callback_without_its_library_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"mend_optim.integrations.{library}", raising=False)
    with pytest.raises(ImportError, match=rf"pip install 'mend-optim\[{library}\]'"):
        __import__(f"mend_optim.integrations.{library}")
