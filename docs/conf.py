"""How Sphinx makes a site of these pages: `make docs`. On GitHub they are read as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
OUTSIDE = re.compile(r"\[([^]]*)\]\((\.\./[^)\s#]*)(?:#[^)\s]*)?\)")

project = "mend_optim"
copyright = author = "The mend_optim authors"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "mend_optim"
html_show_sphinx = False
myst_heading_anchors = 6  # as on GitHub, every heading can be linked to
nitpicky = True


def without_links_outside(text: str) -> str:
    """The text with those links that would leave the site: the README is its first page, files can
    be downloaded, and a folder or a page elsewhere in the repository keeps its name alone."""

    def inside(link: re.Match[str]) -> str:
        label, target = link.groups()
        if target == "../README.md":
            return f"[{label}](index.md)"
        path = DOCS / target
        return label if path.is_dir() or path.suffix == ".md" else link.group()

    return OUTSIDE.sub(inside, text)


def setup(app: Any) -> None:
    """Sphinx calls this before it reads a page."""

    def read(app: Any, page: str, content: list[str]) -> None:
        content[0] = without_links_outside(content[0])

    app.connect("source-read", read)
