"""Integrations where their libraries are missing, and what comes with them where they are not."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

MODULES = ("prometheus", "tensorboard", "figures", "finding", "training_end", "batch_tokens")
LIBRARIES = ("prometheus_client", "transformers", "lightning", "tensorboard")
CALLBACKS = ("mend_optim.integrations.transformers", "mend_optim.integrations.lightning")
IMPORTED = """
import importlib, sys
for module in {modules!r}:
    importlib.import_module("mend_optim.integrations." + module)
print(*sorted(set({libraries!r}) & set(sys.modules)))
"""


def test_a_module_without_its_own_base_class_imports_no_library() -> None:
    code = IMPORTED.format(modules=MODULES, libraries=LIBRARIES)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert (done.stdout, done.returncode) == ("\n", 0), done.stderr


def hide(monkeypatch: pytest.MonkeyPatch, *libraries: str) -> None:
    """Let these libraries be missing, and our callbacks not imported yet."""
    for name in list(sys.modules):
        if name.partition(".")[0] in libraries or name in CALLBACKS:
            monkeypatch.delitem(sys.modules, name)
    for library in libraries:
        monkeypatch.setitem(sys.modules, library, None)


@pytest.mark.parametrize("library", ["transformers", "lightning"])
def test_a_callback_without_its_library_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    hide(monkeypatch, "transformers", "lightning", "pytorch_lightning")
    with pytest.raises(ImportError, match=rf"pip install 'mend-optim\[{library}\]'"):
        importlib.import_module(f"mend_optim.integrations.{library}")


def test_lightning_may_be_there_under_its_other_name(monkeypatch: pytest.MonkeyPatch) -> None:
    other = pytest.importorskip("pytorch_lightning", reason="pip install '.[lightning]'")
    hide(monkeypatch, "lightning")
    module = importlib.import_module("mend_optim.integrations.lightning")
    assert issubclass(module.MendCallback, other.Callback)
    del sys.modules["mend_optim.integrations.lightning"]
