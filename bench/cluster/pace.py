"""Rounds per second on links of four speeds, for each codec: two learners of the text example in
two network namespaces, with a boundary at every step. So a round begins as soon as the last one has
been adopted, and nothing but the round itself decides how often there is one.

Steps take 25 ms, so no more than 40 rounds a second are possible. The bare wire is a pair of
interfaces in the kernel, as fast as the machine's loopback."""

from __future__ import annotations

from collections.abc import Iterator

from bench.cluster.link import Part, Setting, measure
from bench.result import Result, plain

CODECS = ("none", "bf16", "int8", "int4", "powersgd")
# At 1 Mbit/s a round of float32 takes half a minute.
PARTS = (
    Part("", least_s=4.0, least_rounds=20),
    Part("100mbit", least_s=4.0, least_rounds=10),
    Part("10mbit", least_s=8.0, least_rounds=4),
    Part("1mbit", least_s=20.0, least_rounds=2, cap_s=90.0),
)


def run() -> Iterator[Result]:
    for codec in CODECS:
        (pairs,) = measure([Setting(codec, adopt_after=None, sync_every=1)], PARTS)
        for part, pair in zip(PARTS, pairs, strict=True):
            often = [learner.adopted / learner.seconds for learner in pair]
            what = f"rounds a second, {codec}, {part.rate or 'bare wire'}"
            rounds = " and ".join(str(learner.adopted) for learner in pair)
            notes = f"n: the learners; {rounds} rounds in {max(x.seconds for x in pair):.0f} s"
            yield plain("pace", what, "1/s", often, notes)
