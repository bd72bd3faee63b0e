"""The report on a journal: a table for people, figures as JSON lines, a picture."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from bench.storm.correctness import correctness_figures
from bench.storm.figure import Figure, none_of, table
from bench.storm.figures import storm_figures
from bench.storm.growth import endings, soak_figures
from bench.storm.journal import objects, read
from bench.storm.log import Log
from bench.storm.splits import partition_figures

PARTS: dict[str, tuple[Callable[[Log], Iterable[Figure]], ...]] = {
    "storm": (storm_figures, correctness_figures, endings),
    "partition": (partition_figures, correctness_figures, endings),
    "soak": (soak_figures, correctness_figures),
}


def figures(log: Log) -> list[Figure]:
    """All figures of the run's scenario."""
    scenario = log.of("run")[0]["options"]["scenario"]
    return [figure for part in PARTS[scenario] for figure in part(log)]


def ledgers(out: Path) -> dict[str, set[str]]:
    """The digests in each learner's ledger, of all its lives."""
    files = {path.stem.removeprefix("ledger-"): path for path in out.glob("ledger-*.jsonl")}
    return {who: {line.get("digest", "") for line in objects(path)} for who, path in files.items()}


def ledger_gaps(log: Log, digests: Mapping[str, set[str]]) -> list[str]:
    """Anchors that a learner reported in an event but did not write to its ledger."""
    return [
        f"{a.who} at version {a.version}"
        for a in log.adoptions
        if a.digest not in digests.get(a.who, set())
    ]


def report(out: Path) -> None:
    """Print the table; write figures.jsonl, table.txt and storm.png next to the journal."""
    log = Log(read(out / "journal.jsonl"))
    if not log.of("run"):
        sys.exit(f"the run in {out} did not begin")
    run = log.of("run")[0]
    found = [
        *figures(log),
        none_of("anchors not in the ledger", ledger_gaps(log, ledgers(out)), len(log.adoptions)),
    ]
    with (out / "figures.jsonl").open("w", encoding="utf-8") as file:
        for figure in found:
            entry = {**asdict(figure), "options": run["options"], "environment": run["environment"]}
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")
    text = table(found)
    (out / "table.txt").write_text(text + "\n", encoding="utf-8")
    print(text)
    try:
        from bench.storm.picture import draw
    except ImportError as error:
        print(f"no picture: {error}; pip install '.[bench]'", file=sys.stderr)
    else:
        draw(log, out / "storm.png")
    print(f"\nin {out}: journal.jsonl, figures.jsonl, table.txt, storm.png")
