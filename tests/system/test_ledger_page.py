"""The page of `mend ledger`, in a real browser without a window: it shows what it should, within
its bounds."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import escape, unescape
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mend_optim.cli.ledger.page import page_of
from mend_optim.cli.ledger.story import story_of
from mend_optim.cli.ledger.verdict import verdict_of
from tests.support.ledgers import Ledgers

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason=f"no browser is installed: none of {', '.join(BROWSERS)}"
)

# A page around the one that is looked at. It measures what the browser has drawn.
LOOK = """<!doctype html><body style="margin: 0">
<iframe style="border: 0; width: {width}px; height: 3000px" srcdoc="{page}"></iframe>
<pre id="seen"></pre><script>
const frame = document.querySelector("iframe");
frame.onload = () => {{
  const page = frame.contentDocument, view = frame.contentWindow;
  const box = (e) => {{
    const r = e.getBoundingClientRect();
    return [r.x, r.y, r.right, r.bottom];
  }};
  const boxes = (words) => [...page.querySelectorAll(words)].map(box);
  const seen = {{
    text: page.body.innerText,
    width: page.documentElement.scrollWidth,
    charts: boxes("svg"),
    members: boxes("#timeline .member"), absent: boxes("#timeline .absent"),
    beside: boxes("#timeline .beside"), timeline: boxes("#timeline"),
    areas: boxes("#tokens path"), tokens: boxes("#tokens"),
    bars: boxes("#throughput .bar"), lags: boxes("#lag polyline"),
    fills: [...page.querySelectorAll("#tokens path")].map((e) => view.getComputedStyle(e).fill),
    verdict: view.getComputedStyle(page.querySelector("#verdict")).borderLeftColor,
  }};
  document.querySelector("#seen").textContent = JSON.stringify(seen);
}};
</script>"""


def looked_at(page: str, folder: Path, width: int) -> dict[str, Any]:
    """The parts of a page that the browser shows."""
    file = folder / "look.html"
    file.write_text(LOOK.format(width=width, page=escape(page)), encoding="utf-8")
    assert BROWSER
    done = subprocess.run(
        [
            *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *(
                "--disable-background-networking",
                "--no-first-run",
                f"--user-data-dir={folder}/user",
            ),
            *("--virtual-time-budget=5000", "--dump-dom", file.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=200,
    )
    seen = re.search(r'<pre id="seen">(.+?)</pre>', done.stdout, re.DOTALL)
    assert seen, done.stderr[-2000:]
    told = json.loads(unescape(seen[1]))
    assert isinstance(told, dict)
    return told


def within(inner: list[float], outer: list[float]) -> bool:
    return (
        inner[0] >= outer[0] - 1
        and inner[1] >= outer[1] - 1
        and inner[2] <= outer[2] + 1
        and inner[3] <= outer[3] + 1
    )


def forked() -> str:
    """The page of a run in which c and d have gone a way of their own."""
    ledgers = Ledgers(("a", "b", "c", "d"))
    for _ in range(5):
        ledgers.round({"a": 30, "b": 20, "c": 10})
    for _ in range(3):
        ledgers.round({"c": 10, "d": 5}, ("c", "d"))
        ledgers.round({"a": 30, "b": 20}, ("a", "b"))
    story = story_of(ledgers.text)
    return page_of(story, verdict_of(story))


@pytest.mark.parametrize("width", [1000, 420])
def test_the_browser_shows_the_run(tmp_path: Path, width: int) -> None:
    seen = looked_at(forked(), tmp_path, width)
    assert "broken: the run did what it must not do" in seen["text"]
    assert "c, d: a branch with versions 6 to 8" in seen["text"]
    assert "The run of a, b, c, d" in seen["text"]
    # Nothing reaches beyond the window, and no chart lies upon another.
    assert seen["width"] <= width
    charts = seen["charts"]
    assert len(charts) == 4
    assert all(above[3] <= below[1] for above, below in pairwise(charts))
    # a and b are in eight rounds of the trunk, c in five, and d is expected in those.
    (timeline,) = seen["timeline"]
    assert len(seen["members"]) == 8 + 8 + 5
    assert len(seen["absent"]) == 5
    assert len(seen["beside"]) == 2 * 3
    marks = seen["members"] + seen["absent"] + seen["beside"]
    assert all(within(mark, timeline) and mark[2] - mark[0] > 0.5 for mark in marks)
    # One area for each learner that has tokens, each with a colour of its own, none above the top.
    areas = seen["areas"]
    assert len(areas) == 3
    assert len(set(seen["fills"])) == 3
    assert all(within(area, seen["tokens"][0]) for area in areas)
    assert len(seen["bars"]) == 8
    assert len(seen["lags"]) == 4
    assert seen["verdict"] == "rgb(208, 59, 59)"
