"""Mutants of a learner of several ranks."""

from __future__ import annotations

from tests.mutation.mutant_list import Mutant, of

PIECES = of("unit/ranks/test_pieces")
SHARDS = of("unit/ranks/test_shards", "not 64")
WORDS = of("unit/ranks/test_words")
ASSEMBLY = of("unit/ranks/test_assembly")
CREW = of("unit/ranks/test_crew")
CARRIER = of("unit/ranks/test_carrier")
COPIES = of("unit/ranks/test_copies_check")
GROUP = of("unit/ranks/test_group")
BOARD = of("unit/ranks/test_board")
MERGING = of("ranks/test_merging", "one_learner")
HELD = of("unit/engine/test_held")
TRAFFIC = of("unit/test_rank_traffic")
COURIER = of("unit/ranks/test_courier")
STORMS = of("virtual/test_ranked")
TYPES = of("unit/ranks/test_types")
PLANS = of("unit/runtime/test_held_copies")


def mutant(name: str, place: str, old: str, new: str, tests: tuple[str, ...]) -> Mutant:
    """A user's mistake raises at once (law 8), before it can do harm."""
    return Mutant(name, 8, f"ranks/{place}", old, new, tests)


RANK_MUTANTS = (
    mutant(
        "gaps-are-no-fault",
        "pieces",
        "            _refuse_gaps(name, parts)\n",
        "            pass\n",
        PIECES,
    ),
    mutant(
        "overlaps-are-no-fault",
        "pieces",
        "bool((times == 1).all())",
        "bool((times > 0).all())",
        PIECES,
    ),
    mutant(
        "an-element-held-twice-counts-once",
        "pieces",
        "        np.add.at(times, np.ix_(*cells), 1)",
        "        times[np.ix_(*cells)] += 1",
        PIECES,
    ),
    mutant(
        "two-shapes-of-one-name",
        "pieces",
        "if (known.shape, known.dtype) == (piece.shape, piece.dtype):",
        "if known:",
        PIECES,
    ),
    mutant(
        "two-tensors-of-one-name",
        "pieces",
        "        if piece.name in names:",
        "        if False:",
        PIECES,
    ),
    mutant(
        "chunks-that-are-rounded-down",
        "pieces",
        "    size = -(-len(indices) // chunks)",
        "    size = len(indices) // chunks",
        PIECES,
    ),
    mutant(
        "copies-travel-to-the-lead",
        "pieces",
        "(rank > 0, load[rank], rank)",
        "(load[rank], -rank)",
        PIECES,
    ),
    mutant(
        "blocks-are-forgotten",
        "shards",
        "rank = mesh.get_local_rank(mesh_dim)\n        indices = dealt(indices, mesh.size(mesh_dim), rank, blocks)",
        "rank = mesh.get_local_rank(mesh_dim)\n        indices = dealt(indices, mesh.size(mesh_dim), rank)",
        SHARDS,
    ),
    mutant(
        "sums-pass-for-values",
        "shards",
        '        if not (placement.is_replicate() or hasattr(placement, "dim")):',
        "        if False:",
        SHARDS,
    ),
    mutant(
        "flattened-parameters-pass",
        "shards",
        'if hasattr(tensor, "_fsdp_flattened") or hasattr(tensor, "_is_flat_param"):',
        "if False:",
        SHARDS,
    ),
    mutant("a-split-of-a-part", "shards", "size % blocks == 0", "True", SHARDS),
    mutant(
        "steps-may-differ", "words", "ranks[word.call, word.step]", "ranks[word.call, 0]", WORDS
    ),
    mutant(
        "only-the-lead-answers",
        "words",
        "any(self._column(_ANSWER))",
        "bool(self._rows[0][_ANSWER])",
        WORDS,
    ),
    mutant(
        "parts-in-the-wrong-place",
        "assembly",
        "self.whole.span(self.places[number])",
        "self.whole.span(number)",
        ASSEMBLY,
    ),
    mutant(
        "a-rank-that-is-interrupted-goes-on",
        "crew",
        "            self.fail(*self._at)\n",
        "",
        CREW,
    ),
    mutant(
        "a-rank-that-is-interrupted-was-nowhere",
        "crew",
        "        self._at = (word.call, word.step)\n",
        "",
        CREW,
    ),
    mutant(
        "a-rank-that-failed-is-overheard",
        "crew",
        "        if table.failed:",
        "        if False:",
        CREW,
    ),
    mutant(
        "ranks-that-parted-go-on",
        "words",
        "len(heads) == 1 and not heads.pop()[_FAILED]",
        "not heads.pop()[_FAILED]",
        WORDS,
    ),
    mutant(
        "a-rank-leaves-without-a-word",
        "crew",
        "        self._say_last(Word(call=Call.CLOSE, step=step))",
        "        pass",
        CREW,
    ),
    mutant(
        "after-a-fault-all-goes-on",
        "crew",
        "        if self.is_over:\n            raise",
        "        if False:\n            raise",
        CREW,
    ),
    mutant(
        "what-the-lead-has-is-left-out",
        "carrier",
        "        sent.put(part, out)",
        "        pass",
        CARRIER,
    ),
    mutant(
        "copies-travel-twice",
        "carrier",
        "part.only(frozenset(division.sent_by(rank)))",
        "part",
        CARRIER,
    ),
    mutant(
        "ranks-get-nothing-of-the-lead",
        "carrier",
        "            self._group.transfer(torch.empty(0), to, own, of)\n            return own",
        "            return own",
        TYPES,
    ),
    mutant(
        "the-lead-adds-something-else",
        "carrier",
        "        self.own[p].take(values, own)",
        "        self.own[p].take(2 * values, own)",
        TYPES,
    ),
    Mutant(
        "each-rank-adds-its-own",
        8,
        "rank_traffic",
        "self._own.apply(self._arrived.popleft(), step)",
        "self._own.apply(Correction(0, self._own.copy(0), False), step)",
        TYPES,
    ),
    mutant(
        "unequal-copies-pass",
        "copies_check",
        "                if digest != known:",
        "                if False:",
        COPIES,
    ),
    mutant(
        "shards-that-began-as-zeros-pass",
        "copies_check",
        "GROSS * largest for",
        "9 * largest for",
        COPIES,
    ),
    mutant("rounding-is-gross", "copies_check", "GROSS * largest for", "0 * largest for", COPIES),
    mutant(
        "absent-ranks-are-not-named",
        "group",
        "if not store.check([key])]",
        "if store.check([key])]",
        GROUP,
    ),
    mutant("groups-wait-half-an-hour", "group", "members, timeout=timeout,", "members,", GROUP),
    Mutant(
        "an-anchor-is-held-for-ever",
        7,
        "engine/outcomes",
        "if fragment.is_held and fragment.held_until <= now:",
        "if False:",
        HELD,
    ),
    Mutant(
        "a-copy-is-offered-to-nobody",
        5,
        "engine/boundaries",
        "is_held or self.state.mode is not Mode.TRAINING:",
        "is_held:",
        HELD,
    ),
    Mutant(
        "a-copy-whose-anchor-has-moved-is-offered",
        5,
        "engine/boundaries",
        "if not self.state.fragments[p].is_held or",
        "if",
        HELD,
    ),
    Mutant(
        "news-waits-for-a-copy-that-is-not-made",
        7,
        "engine/outcomes",
        "            fragment.let_go()\n            self.go_on(now, p)",
        "            fragment.let_go()",
        HELD,
    ),
    Mutant(
        "a-rank-adds-what-it-alone-has",
        5,
        "rank_traffic",
        "self._add(table.staged, step, learner)",
        "self._add(self._staged, step, learner)",
        TRAFFIC,
    ),
    mutant(
        "one-rank-has-it-so-all-have",
        "words",
        "min(self._column(_STAGED))",
        "max(self._column(_STAGED))",
        WORDS,
    ),
    Mutant(
        "what-is-recalled-is-lost",
        5,
        "rank_traffic",
        "        if self._sent:\n",
        "        if False:\n",
        TRAFFIC,
    ),
    Mutant(
        "what-is-recalled-is-added-all-the-same",
        5,
        "rank_traffic",
        "        self._arrived.clear()\n        self._added = self._staged\n",
        "",
        TRAFFIC,
    ),
    Mutant(
        "one-rank-raises-alone",
        8,
        "rank_traffic",
        "(table.differs or not isinstance",
        "(True or not isinstance",
        TRAFFIC,
    ),
    Mutant(
        "weights-are-replaced-in-passing",
        5,
        "runtime/held_copies",
        "if any(correction.replace or correction.resets for correction in mailbox.values()):",
        "if False:",
        STORMS,
    ),
    Mutant(
        "weights-rest-on-an-anchor-that-is-still-to-come",
        5,
        "runtime/held_copies",
        "        if p not in learner.worker.mailbox:\n",
        "        if True:\n",
        PLANS,
    ),
    mutant(
        "a-courier-goes-on-after-a-fault",
        "courier",
        "        if faults:\n",
        "        if False:\n",
        COURIER,
    ),
    Mutant(
        "parameters-are-in-the-order-of-the-list",
        8,
        "protocol/handshake",
        "return sorted(range(len(known)), key=known.__getitem__)",
        "return list(range(len(known)))",
        of("unit/test_wrapped_parameters"),
    ),
    Mutant(
        "only-the-lead-counts-tokens",
        5,
        "rank_run",
        "max(1, table.tokens)",
        "max(1, table.lead.tokens)",
        MERGING,
    ),
    Mutant(
        "ranks-count-no-zero",
        5,
        "rank_run",
        "self._count.take(0 if counted else",
        "self._count.take(1 if counted else",
        MERGING,
    ),
    mutant(
        "words-of-another-step",
        "board",
        "return row[0] == number and ",
        "return ",
        BOARD,
    ),
    mutant(
        "a-row-that-is-half-there",
        "board",
        " and row[-1] == zlib.crc32(said)",
        "",
        BOARD,
    ),
    mutant(
        "frames-that-are-too-few",
        "board",
        "FRAMES = 4",
        "FRAMES = 2",
        BOARD,
    ),
    mutant(
        "a-rank-that-has-ended-is-waited-for",
        "board",
        "            if now > ask_at:",
        "            if False:",
        BOARD,
    ),
    mutant(
        "the-last-word-of-a-rank-that-ends",
        "board",
        "            if not _is_there(_ROW.unpack(row), row[: _SAID.size], number):",
        "            if True:",
        BOARD,
    ),
    mutant(
        "a-rank-holds-no-lock",
        "board",
        "        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)\n",
        "        pass\n",
        BOARD,
    ),
    mutant(
        "a-word-may-take-for-ever",
        "board",
        "            if now - started > self._timeout_s:",
        "            if False:",
        BOARD,
    ),
    mutant(
        "ranks-look-without-a-pause",
        "board",
        "max(LEAST_S, (now - started) / 10)",
        "LEAST_S",
        BOARD,
    ),
    mutant(
        "threads-have-a-board",
        "board",
        'len(processes) == size and "" not in processes',
        '"" not in processes',
        BOARD,
    ),
    mutant(
        "a-rank-that-is-elsewhere-has-the-board",
        "board",
        'len(processes) == size and "" not in processes',
        "len(processes) == size",
        BOARD,
    ),
    mutant(
        "a-board-keeps-its-name",
        "board",
        "        if name:\n            _remove(name)\n",
        "        pass\n",
        BOARD,
    ),
    mutant(
        "a-board-without-memory",
        "board",
        "        os.posix_fallocate(file, 0, _length(size))",
        "        os.ftruncate(file, _length(size))",
        BOARD,
    ),
    mutant(
        "a-file-that-is-no-board",
        "board",
        "    if (found.st_uid, found.st_size) != (os.geteuid(), _length(size)):",
        "    if False:",
        BOARD,
    ),
    mutant(
        "a-board-of-another-user",
        "board",
        "    if (found.st_uid, found.st_size) != (os.geteuid(), _length(size)):",
        "    if found.st_size != _length(size):",
        BOARD,
    ),
)
