"""`mend ledger` at the shell: reads the files, prints the story, writes the page."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from mend_optim.cli.ledger.page import PAGE_BEGIN, page_of
from mend_optim.cli.ledger.proofs import check_proofs, unchecked_proofs
from mend_optim.cli.ledger.story import Story, story_of
from mend_optim.cli.ledger.text import text_of
from mend_optim.cli.ledger.verdict import Finding, verdict_of
from mend_optim.errors import UsageError, require

EPILOG = """\
Start each learner with ledger="NAME.jsonl", copy the files of all of them to one place, and give
all of them here: one learner's ledger does not know what the others did.

The exit status is 0 if the run was sound, 1 if something happened that must not happen (an offer
merged twice, a fork that never healed, a wrong signature), 3 if lines or ledgers are missing, so
that nobody can tell, and 2 if the command was wrong.

  mend ledger a.jsonl b.jsonl c.jsonl --html run.html
"""
DESCRIPTION = "Tell several learners' ledgers as one story, and judge whether the run was sound."


def configure(parser: argparse.ArgumentParser) -> None:
    """Give the parser this command's arguments."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a learner's ledger")
    parser.add_argument("--html", type=Path, metavar="OUT", help="write a page with charts, too")
    parser.add_argument(
        "--ca", type=Path, metavar="CA.PEM", help="check the signatures of all rounds (extra certs)"
    )
    parser.add_argument(
        "--last", type=int, default=10, metavar="N", help="rounds to print; default: 10"
    )
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Tell the story. Returns the exit status."""
    require(given.last >= 0, "--last", given.last, "an int >= 0")
    if given.html:
        _check_page(given.html)
    story = story_of([(str(path), _read(path)) for path in given.files])
    verdict = verdict_of(story, _proofs(story, given.ca))
    if given.html:
        _write(given.html, page_of(story, verdict))
    print(text_of(story, verdict, given.last))
    return verdict.status


def _read(path: Path) -> list[str]:
    try:
        # An editor may have put a mark before the first line.
        return path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    except OSError as error:
        raise UsageError(
            f"FILE must be a ledger that you may read, got {str(path)!r}: {error.strerror}; give"
            " the path that the learner got as ledger="
        ) from None


def _check_page(path: Path) -> None:
    """Raise `UsageError` if the page would take the place of another file. `--html *.jsonl` names
    a ledger."""
    if not path.is_file():
        return  # to read a pipe would be to wait for its writer
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            begin = file.read(len(PAGE_BEGIN))
    except OSError:
        return  # `_write` tells
    require(
        begin in ("", PAGE_BEGIN),
        "--html",
        str(path),
        "a new file, or a page that this command wrote",
        "ledgers come before --html",
    )


def _write(path: Path, page: str) -> None:
    """Write the page in one go: on a full disk, the one that is there stays."""
    is_file = path.is_file() or not path.exists()  # not a terminal or a pipe
    draft = path.with_name(f"{path.name}.new") if is_file else path
    try:
        draft.write_text(page, encoding="utf-8")
        if is_file:
            draft.replace(path)
    except OSError as error:
        if is_file:
            draft.unlink(missing_ok=True)
        raise UsageError(
            f"--html must be a file that you may write, got {str(path)!r}: {error.strerror}"
        ) from None


def _proofs(story: Story, authorities: Path | None) -> Sequence[Finding]:
    if authorities is None:
        return unchecked_proofs(story)
    try:
        pem = authorities.read_bytes()
    except OSError as error:
        raise UsageError(
            f"--ca must be the ca.pem of the run, got {str(authorities)!r}: {error.strerror}"
        ) from None
    return check_proofs(story, pem)
