"""Ledgers of made-up runs, as lines: true ones, and the changes that forge them."""

from __future__ import annotations

import copy
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from mend_optim.engine.ledger import MemberRecord, RoundRecord
from mend_optim.protocol.lineage import Entry, Lineage, PeerId

START = 1_790_000_000.0
Record = dict[str, Any]
Files = dict[str, list[Record]]
Source = tuple[str, list[str]]


def peer(name: str, process: int = 1) -> PeerId:
    return PeerId(name, process)


class Ledgers:
    """The ledgers of some learners, which all hear each other unless a test says otherwise."""

    def __init__(self, names: Sequence[str], fragment: int = 0, genesis: bytes = b"g" * 16) -> None:
        self.names = list(names)
        self.fragment = fragment
        self.lineages = {name: Lineage.fresh(genesis) for name in names}
        self.processes = dict.fromkeys(names, 1)
        self.seqs: defaultdict[PeerId, int] = defaultdict(int)
        self.files: Files = {name: [] for name in names}
        self.now = START

    def round(
        self,
        members: dict[str, int],
        takers: Iterable[str] = (),
        *,
        expected: Iterable[str] = (),
        salt: str = "",
    ) -> None:
        """The first of the takers, or of all learners, seals the work of these members, with so
        many tokens each; all takers take it. `expected`: beside them."""
        told = list(takers) or self.names
        self.now += 10
        base = self.lineages[told[0]]
        entries = []
        for name, tokens in sorted(members.items()):
            author = peer(name, self.processes[name])
            self.seqs[author] += 1
            entries.append(Entry(author, self.seqs[author], tokens, tokens // 4 + 1))
        lineage = base.seal(entries, salt.encode())
        total = sum(members.values())
        record = RoundRecord(
            fragment=self.fragment,
            version=lineage.version,
            tokens=lineage.tokens,
            digest=lineage.digest.hex(),
            reason="all_present" if len(entries) == len(told) else "grace_expired",
            sealer=told[0],
            members=tuple(
                MemberRecord(**_member(entry), weight=entry.tokens / total) for entry in entries
            ),
            absent=tuple(sorted({*told, *expected} - set(members))),
            offer_bytes=100,
            merged_bytes=300,
        )
        for i, name in enumerate(told):
            assert self.lineages[name] == base
            self.write(name, record, lineage, late_s=i / 4)

    def whole(self, name: str, of: str, reason: str = "pulled", **facts: Any) -> None:
        """A learner takes another one's anchor whole."""
        lineage = self.lineages[of]
        record = RoundRecord(
            fragment=self.fragment,
            version=lineage.version,
            tokens=lineage.tokens,
            digest=lineage.digest.hex(),
            reason=reason,
            **facts,
        )
        self.now += 1
        self.write(name, record, lineage)

    def found(self, name: str, tokens: int) -> None:
        """A learner makes an anchor of weights that it has trained alone, for so many tokens."""
        author = peer(name, self.processes[name])
        self.seqs[author] += 1
        base = self.lineages[name]
        self.lineages[name] = base.found({author: self.seqs[author]}, tokens, name.encode())
        self.whole(name, of=name, reason="founded", mine=True)

    def write(self, name: str, record: RoundRecord, lineage: Lineage, late_s: float = 0.0) -> None:
        self.lineages[name] = lineage
        line = record.json(peer(name, self.processes[name]), self.now + late_s)
        self.files[name].append(json.loads(line))

    def restart(self, name: str) -> None:
        self.processes[name] += 1

    @property
    def text(self) -> list[Source]:
        """The files, as `story_of` takes them."""
        return text_of(self.files)

    def forged(self, change: Callable[[Files], object]) -> list[Source]:
        """The files with a change."""
        files = copy.deepcopy(self.files)
        change(files)
        return text_of(files)


def text_of(files: Files) -> list[Source]:
    return [(f"{name}.jsonl", [json.dumps(r) for r in files[name]]) for name in files]


def of_version(files: Files, version: int) -> Iterator[Record]:
    """The records of that version in all files."""
    for records in files.values():
        yield from (record for record in records if record["version"] == version)


def _member(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.peer.name,
        "incarnation": entry.peer.incarnation,
        "seq": entry.seq,
        "tokens": entry.tokens,
        "steps": entry.steps,
    }
