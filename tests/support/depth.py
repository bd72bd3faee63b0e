"""How much a test plays: what there is time for with every change or, with DEEP=1 as in `make
test-deep`, more."""

from __future__ import annotations

import os

DEEP = os.environ.get("DEEP") == "1"


def many(few: int, deep: int) -> int:
    """So many examples, seeds or storms."""
    return deep if DEEP else few
