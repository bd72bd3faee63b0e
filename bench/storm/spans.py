"""Sets of moments, as lists of spans (begin, end) in order."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence

Span = tuple[float, float]
Spans = list[Span]


def union(spans: Iterable[Span]) -> Spans:
    """The same moments, in spans that do not touch."""
    joined: Spans = []
    for begin, end in sorted(span for span in spans if span[0] < span[1]):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def without(spans: Iterable[Span], gone: Iterable[Span]) -> Spans:
    left = union(spans)
    for begin, end in union(gone):
        left = [
            part
            for span in left
            for part in ((span[0], min(span[1], begin)), (max(span[0], end), span[1]))
        ]
        left = [part for part in left if part[0] < part[1]]
    return left


def common(spans: Iterable[Span], others: Iterable[Span]) -> Spans:
    listed = union(spans)
    return without(listed, without(listed, others))


def length(spans: Iterable[Span]) -> float:
    return sum(end - begin for begin, end in spans)


def count(moments: Sequence[float], spans: Iterable[Span]) -> int:
    """How many of the moments, which are in order, lie in the spans."""
    return sum(
        bisect.bisect_left(moments, end) - bisect.bisect_left(moments, begin)
        for begin, end in spans
    )
