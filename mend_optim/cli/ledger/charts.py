"""The charts of a run, as SVG. Each takes the story and returns one element, without scripts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import median

from mend_optim.cli.ledger.story import Round, Story
from mend_optim.cli.wording import clock_of, count_of, seconds_of, shown

WIDTH, LEFT, RIGHT, ROW = 960, 120, 16, 22
#: A chart shows at most so many spans of time, and each of them has all rounds in it.
SPANS = 120
#: Learners with a colour of their own; the others share one.
COLOURS = 8


@dataclass(frozen=True, slots=True)
class Axis:
    """Time, from left to right."""

    first: float
    last: float

    @classmethod
    def of(cls, story: Story) -> Axis:
        """From the first line to the last."""
        times = [line.time for line in story.lines]
        return cls(min(times), max(max(times), min(times) + 1e-3))

    def x(self, time: float) -> float:
        """Where a time is."""
        share = (time - self.first) / (self.last - self.first)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    @property
    def span(self) -> float:
        """The seconds of one span."""
        return (self.last - self.first) / SPANS

    def index(self, time: float) -> int:
        """In which span a time is."""
        return min(SPANS - 1, max(0, int((time - self.first) / self.span)))

    def ticks(self, height: float) -> str:
        """Five times below the chart."""
        marks = []
        for i in range(5):
            time = self.first + i / 4 * (self.last - self.first)
            anchor = ("start", "middle", "middle", "middle", "end")[i]
            # All have dates, or none has.
            told = clock_of(time, time + self.last - self.first)
            marks.append(
                f'<text x="{self.x(time):.1f}" y="{height + 16:.0f}" text-anchor="{anchor}">'
                f"{told}</text>"
            )
        return "".join(marks)


def timeline(story: Story) -> str:
    """A row for each learner: when it was a member of rounds, absent, or on another branch."""
    axis = Axis.of(story)
    names = list(story.accounts)
    height = ROW * len(names)
    beside = _beside(story)
    parts = []
    for row, name in enumerate(names):
        y = row * ROW
        parts.append(_label(y + ROW / 2, name))
        seen = [line.time for line in story.lines if line.by.name == name]
        if seen:
            parts.append(
                f'<rect class="track" x="{axis.x(min(seen)):.1f}" y="{y + ROW / 2 - 1:.0f}"'
                f' width="{axis.x(max(seen)) - axis.x(min(seen)):.1f}" height="2"/>'
            )
        parts += _cells(story, axis, name, y)
        parts += [
            f'<rect class="beside" x="{axis.x(time) - 1.5:.1f}" y="{y + 1}" width="3"'
            f' height="{ROW - 2}"><title>{escape(said)}</title></rect>'
            for time, said in beside.get(name, ())
        ]
    return _svg("timeline", "Who was in each round", height, parts, axis)


def _cells(story: Story, axis: Axis, name: str, y: float) -> Iterable[str]:
    spans: defaultdict[int, list[Round]] = defaultdict(list)
    for each in story.rounds:
        if name in each.members or name in each.absent:
            spans[axis.index(each.time)].append(each)
    width = max(2.0, (WIDTH - LEFT - RIGHT) / SPANS - 1)
    for index, rounds in sorted(spans.items()):
        within = sum(name in each.members for each in rounds)
        tokens = sum(each.members.get(name, 0) for each in rounds)
        kind = "member" if within == len(rounds) else "absent" if not within else "some"
        versions = sorted({each.version for each in rounds})
        told = f"version {versions[0]}"
        if len(versions) > 1:
            told = f"versions {versions[0]} to {versions[-1]}"
        title = (
            f"{shown(name)}, {clock_of(rounds[0].time)}, {told}: in {within} of {len(rounds)},"
            f" {count_of(tokens)} tokens"
        )
        left = LEFT + index * (WIDTH - LEFT - RIGHT) / SPANS
        yield (
            f'<rect class="{kind}" x="{left:.1f}" y="{y + 3}" width="{width:.1f}"'
            f' height="{ROW - 6}" rx="2"><title>{escape(title)}</title></rect>'
        )


def _beside(story: Story) -> Mapping[str, Sequence[tuple[float, str]]]:
    """By learner's name, its anchors on other branches than the trunk."""
    found: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
    for p, forks in story.forks.items():
        for fork in forks:
            for key in fork.keys:
                for line in story.chains[p].anchors[key].lines:
                    said = (
                        f"{shown(line.by.name)}, {clock_of(line.time)}: version"
                        f" {key[1]} on another branch ({fork.fate.value})"
                    )
                    found[line.by.name].append((line.time, said))
    return found


def tokens_chart(story: Story) -> str:
    """The tokens in the anchors over time, by learner, one upon the other."""
    axis = Axis.of(story)
    rounds = [each for each in story.rounds if each.fragment == min(story.chains)]
    height, names = 200, ranked(story)
    total = max(1, sum(sum(each.members.values()) for each in rounds))
    sums = dict.fromkeys(names, 0)
    steps: list[tuple[float, dict[str, int]]] = [(axis.first, dict(sums))]
    for each in rounds:
        for name, tokens in each.members.items():
            sums[name] += tokens
        if axis.x(each.time) - axis.x(steps[-1][0]) < 1 < len(steps):
            # Nobody sees two steps within a point of the page.
            steps[-1] = (steps[-1][0], dict(sums))
        else:
            steps.append((each.time, dict(sums)))
    steps.append((axis.last, dict(sums)))
    floor = [0] * len(steps)
    parts = list(_grid(height, total, count_of))
    for name in (name for name in names if sums[name]):
        top = [low + step[name] for low, (_, step) in zip(floor, steps, strict=True)]
        xs = [axis.x(time) for time, _ in steps]
        path = _stair(xs, [height * (1 - value / total) for value in top])
        back = _stair(xs, [height * (1 - value / total) for value in floor], reverse=True)
        said = f"{escape(shown(name))}: {count_of(sums[name])} tokens"
        parts.append(
            f'<path class="{colour(names, name)}" d="M{path} L{back} Z">'
            f"<title>{said}</title></path>"
        )
        floor = top
    return _svg("tokens", "Tokens in the common model", height, parts, axis)


def _stair(xs: Sequence[float], ys: Sequence[float], reverse: bool = False) -> str:
    points = [(xs[0], ys[0])]
    for i in range(1, len(xs)):
        points += [(xs[i], ys[i - 1]), (xs[i], ys[i])]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in (points[::-1] if reverse else points))


def throughput(story: Story) -> str:
    """The tokens per second that rounds brought into the common model."""
    axis = Axis.of(story)
    spans: defaultdict[int, int] = defaultdict(int)
    for each in story.rounds:
        if each.fragment == min(story.chains):
            spans[axis.index(each.time)] += sum(each.members.values())
    height, most = 140, max([*spans.values(), 1])
    width = (WIDTH - LEFT - RIGHT) / SPANS
    parts = list(_grid(height, most / axis.span, count_of))
    for index, tokens in sorted(spans.items()):
        tall = height * tokens / most
        said = (
            f"{clock_of(axis.first + index * axis.span)}: {count_of(tokens / axis.span)} tokens/s"
        )
        parts.append(
            f'<rect class="bar" x="{LEFT + index * width:.1f}" y="{height - tall:.1f}"'
            f' width="{max(1.0, width - 1):.1f}" height="{tall:.1f}"><title>{said}</title></rect>'
        )
    return _svg("throughput", "Tokens per second", height, parts, axis)


def lag_chart(story: Story) -> str:
    """How long after a round each learner had its anchor: the median of each span."""
    axis = Axis.of(story)
    names = ranked(story)
    spans: dict[str, defaultdict[int, list[float]]] = {n: defaultdict(list) for n in names}
    for each in story.rounds:
        for name, time in each.adopted.items():
            spans[name][axis.index(each.time)].append(max(0.0, time - each.time))
    medians = {n: {i: median(lags) for i, lags in spans[n].items()} for n in names}
    height = 140
    most = max([*(lag for by_span in medians.values() for lag in by_span.values()), 1e-3])
    parts = list(_grid(height, most, seconds_of))
    for name in names:
        points = [
            (axis.x(axis.first + (i + 0.5) * axis.span), height * (1 - lag / most), lag)
            for i, lag in sorted(medians[name].items())
        ]
        if not points:
            continue
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
        parts.append(f'<polyline class="{colour(names, name)}" points="{line}"/>')
        parts += [
            f'<circle class="{colour(names, name)}" cx="{x:.1f}" cy="{y:.1f}" r="3">'
            f"<title>{escape(shown(name))}: {seconds_of(lag)}</title></circle>"
            for x, y, lag in points
        ]
    return _svg("lag", "Seconds until each learner had a round's anchor", height, parts, axis)


# ── parts of all charts ───────────────────────────────────────────────────────────────────────────


def ranked(story: Story) -> list[str]:
    """The learners, those with the most tokens first."""
    return sorted(story.accounts, key=lambda name: (-story.accounts[name].tokens, name))


def colour(names: Sequence[str], name: str) -> str:
    """The class that gives a learner its colour."""
    return f"c{min(names.index(name), COLOURS)}"


def _label(y: float, name: str) -> str:
    told = shown(name)
    short = told if len(told) <= 16 else f"{told[:15]}…"
    return (
        f'<text class="name" x="{LEFT - 8}" y="{y + 4:.0f}" text-anchor="end">{escape(short)}'
        f"<title>{escape(told)}</title></text>"
    )


def _grid(height: float, most: float, wording: Callable[[float], str]) -> Iterable[str]:
    for share in (0.0, 0.5, 1.0):
        y = height * (1 - share)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        said = wording(share * most)
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{said}</text>'


def _svg(name: str, title: str, height: float, parts: Iterable[str], axis: Axis) -> str:
    inner = "\n".join(parts)
    return (
        f'<svg id="{name}" role="img" aria-label="{escape(title)}"'
        f' viewBox="0 -8 {WIDTH} {height + 32:.0f}">\n{inner}\n{axis.ticks(height)}\n</svg>'
    )
