"""Mutants of the choice of peers that are asked for whole anchors."""

from __future__ import annotations

from tests.mutation.mutant_list import Mutant, of

TESTS = of("unit/engine/test_sources")


def mutant(
    name: str, old: str, new: str, room: str = "engine/sources", tests: str = TESTS
) -> Mutant:
    return Mutant(name, 4, room, old, new, tests)


SOURCE_MUTANTS = (
    mutant("one-peer-sends-all", "    if len(asked_at) < at_once", "    if 0 < at_once"),
    mutant(
        "a-lone-source-sends-one-for-ever",
        "and self._was_heard_alone(now, min(asked_at))",
        "and False",
    ),
    mutant("whoever-is-heard-first-is-alone", ">= MEETING_BEATS * self", ">= 0 * self"),
    mutant("the-newest-want-tells-who-is-alone", "min(asked_at)", "max(asked_at)"),
    mutant("the-first-sends-half", " if peers > 1 else 1", ""),
    mutant("each-sends-its-share-at-once", "(2 * peers)", "peers"),
    mutant("a-share-of-nothing", ", 1), MOST_AT_ONCE)", ", 0), MOST_AT_ONCE)"),
    mutant(
        "any-number-at-once",
        "min(max(fragments // (2 * peers), 1), MOST_AT_ONCE)",
        "max(fragments // (2 * peers), 1)",
    ),
    mutant("seals-keep-a-source-busy", " and wanted.whole]", "]"),
    mutant("a-busy-peer-sends-what-others-have", "is_alone and own not in ranks", "is_alone"),
    mutant("neighbours-go-first-no-more", "any(rank < own for", "any(False for"),
    mutant("far-ones-count-beside-neighbours", "ranks.count(own)", "len(ranks)"),
    mutant(
        "nobody-is-asked-before-its-first-beat",
        "known.beat is None:\n            return True",
        "known.beat is None:\n            return False",
    ),
    mutant(
        "a-lone-learner-asks-only-the-greater",
        "if self.switching.is_part(beat):\n            self.switching.ask(now, beat)\n        elif state.alone",
        "if self.switching.is_part(beat) and theirs > ours:\n            self.switching.ask(now, beat)\n        elif state.alone",
        room="engine/adoption",
    ),
    mutant("neighbours-go-last", "return not are_neighbours", "return are_neighbours"),
    mutant("weak-links-send-as-much", ", beat.declines", ", False"),
    mutant("one-that-is-behind-is-a-source", ".version + 1 >= key.version", ".version >= 0"),
    mutant("the-doubted-are-waited-for", " and not self.state.claims.doubts(other.id)", ""),
    mutant("another-model-is-as-good", "beat.genesis != genesis or ", ""),
    mutant("a-lesser-anchor-is-as-good", "shown > least and ", ""),
    mutant("nobody-is-asked-but-a-liar", " and (most is None or shown <= most)", ""),
    mutant("the-suspected-are-waited-for", "other.linked and not other.suspected and ", ""),
    mutant(
        "the-first-source-is-the-only-one",
        "            switch.peer = min(others)\n",
        "            self.state.end_switch()\n",
        room="engine/pulling",
    ),
    mutant(
        "a-switch-without-a-source-goes-on",
        "        else:\n            self.state.end_switch()\n",
        "",
        room="engine/pulling",
    ),
    mutant(
        "our-own-anchors-are-asked-for-in-a-switch",
        "        if state.switch:\n            return  # another",
        "        if False:\n            return  # another",
        room="engine/pulling",
    ),
    mutant(
        "anchors-of-our-model-are-sought-in-a-switch",
        "genesis = state.switch.genesis if state.switch else state.genesis",
        "genesis = state.genesis",
    ),
    mutant(
        "what-this-learner-yields-to-waits",
        "return self.whole and not (self.gives_way or self.mends)",
        "return self.whole",
        room="engine/wanted",
    ),
    mutant(
        "a-part-that-has-come-is-asked-for-again",
        "            if fragment.fragment not in switch.states:\n                self",
        "            if True:\n                self",
        room="engine/switching",
    ),
    mutant(
        "nobody-is-asked-on-within-a-model",
        "            self.ask_on(now, anchor.peer)\n",
        "",
        room="engine/adoption",
    ),
    mutant(
        "nobody-is-asked-on",
        "        self.adoption.ask_on(now, job.states[0].peer)\n",
        "",
        room="engine/outcomes",
    ),
    mutant(
        "a-seal-is-asked-for-on-an-old-word",
        "report.key.version > fragment.lineage.version + 1:\n                    self.pulling.catch",
        "report.key > fragment.lineage.key:\n                    self.pulling.catch",
        room="engine/adoption",
    ),
    mutant(
        "the-first-is-to-blame",
        "job.states[done.refused].peer",
        "job.states[0].peer",
        room="engine/outcomes",
    ),
    mutant(
        "only-the-first-has-kept-its-word",
        "for peer in {anchor.peer for anchor in job.states}:",
        "for peer in [job.states[0].peer]:",
        room="engine/outcomes",
    ),
    mutant(
        "the-worker-blames-the-first",
        "refused=i)",
        "refused=0)",
        "worker/anchors",
        of("unit/worker/test_anchors", "several_states"),
    ),
    mutant("nobody-is-overtaken", "if took_s is None or self._asked_at(peer):", "if True:"),
    mutant("the-busy-overtake", "if took_s is None or self._asked_at(peer):", "if took_s is None:"),
    mutant("the-hardly-slower-are-overtaken", "SLOWER = 2", "SLOWER = 1"),
    mutant("copies-of-what-comes-at-once", "max(SLOWER * took_s, self.state", "min(1, self.state"),
    mutant(
        "overtaken-within-a-beat",
        "max(SLOWER * took_s, self.state.policies.timing.beat_s)",
        "SLOWER * took_s",
    ),
    mutant("a-third-copy", "not (wanted.overtaken or wanted.held)", "not wanted.held"),
    mutant(
        "the-slow-are-forgotten",
        "until=until, overtaken=slow)",
        "until=until)",
        room="engine/pulling",
    ),
    mutant(
        "what-the-slow-send-is-asked-for-anew",
        "            self.state.wants[p] = other\n",
        "",
        room="engine/pulling",
    ),
    mutant(
        "nobody-overtakes-twice",
        "            other.overtaken = None\n",
        "",
        room="engine/pulling",
    ),
    mutant(
        "the-overtaken-are-given-up-in-time",
        "        for wanted in self._asked():\n            if wanted.peer == peer:\n",
        "        for wanted in self.state.wants.values():\n            if wanted.peer == peer:\n",
        room="engine/pulling",
    ),
    mutant(
        "the-overtaken-are-waited-for-without-end",
        "            for wanted in list(asked):\n",
        "            for wanted in [asked]:\n",
        room="engine/pulling",
    ),
    mutant(
        "the-overtaken-are-asked-for-nothing",
        "(wanted for wanted in asked if wanted.peer == peer)",
        "(wanted for wanted in [asked] if asked and wanted.peer == peer)",
        room="engine/pulling",
    ),
    mutant("a-copy-that-is-dearer", "rank <= self._rank(slower", "rank >= self._rank(slower"),
    mutant("any-copy-is-as-dear", "rank <= self._rank(slower.id, slower.beat)", "True"),
    mutant("any-idle-peer-overtakes", "            if id == peer\n", ""),
    mutant("no-copy-of-what-the-unheard-send", "return bool(ranks)", "return False"),
    mutant(
        "a-copy-is-never-asked-for-in-a-switch",
        "        self.pulling.overtake(now, beat.peer)\n",
        "",
        room="engine/switching",
    ),
    mutant(
        "a-beat-overtakes-nobody",
        "            self.pulling.overtake(now, beat.peer)\n",
        "",
        room="engine/adoption",
    ),
    mutant(
        "an-anchor-that-came-overtakes-nobody",
        "            self.pulling.overtake(now, peer)\n",
        "",
        room="engine/adoption",
    ),
    mutant(
        "the-pace-of-the-gone-is-kept",
        " for id, took_s in self._took_s.items() if id in here}",
        " for id, took_s in self._took_s.items()}",
    ),
    mutant(
        "the-pace-of-whoever-was-asked",
        "if wanted and wanted.peer == peer:",
        "if wanted:",
    ),
    mutant(
        "all-are-heard-to-the-end",
        "        self._end_older_pulls(link, want.fragment)\n",
        "",
        room="transport/transfers",
        tests=of("unit/transport/test_transfers"),
    ),
    mutant(
        "an-answer-ends-all-questions",
        '            if key == ("pull", to.id, fragment):\n',
        '            if key[0] == "pull":\n',
        room="transport/transfers",
        tests=of("unit/transport/test_transfers"),
    ),
    mutant(
        "an-answer-ends-later-questions",
        '            if key == ("pull", link.id, fragment):\n                return\n',
        '            if key == ("pull", link.id, fragment):\n                continue\n',
        room="transport/transfers",
        tests=of("unit/transport/test_transfers"),
    ),
    mutant(
        "a-question-that-is-over-has-failed",
        "                del self._running[key]  # first: the learner does not wait for it\n",
        "",
        room="transport/transfers",
        tests=of("unit/transport/test_transfers"),
    ),
)
