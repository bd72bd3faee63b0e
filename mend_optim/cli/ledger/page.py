"""The story of a run as one HTML page, which needs nothing beside it and runs no script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from mend_optim.cli.ledger.charts import (
    COLOURS,
    colour,
    lag_chart,
    ranked,
    throughput,
    timeline,
    tokens_chart,
)
from mend_optim.cli.ledger.story import Story
from mend_optim.cli.ledger.text import HEAD, cells_of, headline, reasons_of, round_cells
from mend_optim.cli.ledger.verdict import Finding, Verdict
from mend_optim.cli.wording import count_of, seconds_of, shown, some_of

#: How each page begins.
PAGE_BEGIN = "<!doctype html>"
#: The page has the last rounds in a table, at most so many.
MOST_ROUNDS = 500
_HUES = ("#2a78d6", "#1baf7a", "#eda100", "#008300", "#4a3aa7", "#e34948", "#e87ba4", "#eb6834")
_DARK = ("#3987e5", "#199e70", "#c98500", "#2f9e2f", "#9085e9", "#e66767", "#d55181", "#d95926")
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1a; --soft: #63625d; --line: #dddcd6;
  --page: #fcfcfb; --good: #2a78d6; --bad: #d03b3b; --warn: #eda100; }
@media (prefers-color-scheme: dark) { :root { --ink: #f0efea; --soft: #a5a49d; --line: #3b3a37;
  --page: #1a1a19; --good: #3987e5; --bad: #e66767; --warn: #c98500; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
  margin: 2rem auto; max-width: 1000px; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .4rem; }
p.soft, figcaption { color: var(--soft); margin: 0 0 .6rem; }
#verdict { border-left: 4px solid var(--good); padding: .4rem .8rem; margin: 1rem 0; }
#verdict.incomplete { border-color: var(--warn); } #verdict.broken { border-color: var(--bad); }
#verdict ul { margin: .3rem 0 0; padding-left: 1.2rem; } #verdict small { color: var(--soft); }
.tiles { display: flex; flex-wrap: wrap; gap: .5rem 2.5rem; margin: 1rem 0; }
.tiles b { display: block; font-size: 1.35rem; font-weight: 600; }
.tiles span { color: var(--soft); font-size: .85rem; }
figure { margin: 0; } svg { width: 100%; height: auto; overflow: visible; }
svg text { font-size: 11px; fill: var(--soft); } svg text.name { fill: var(--ink); }
.grid { stroke: var(--line); } .track { fill: var(--line); }
.member, .bar { fill: var(--good); } .some { fill: var(--good); opacity: .5; }
.absent { fill: none; stroke: var(--warn); stroke-width: 1.5; } .beside { fill: var(--bad); }
.key { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; font-size: .85rem; margin: 0 0 .4rem; }
.key i { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px;
  margin-right: .4rem; vertical-align: -1px; background: currentColor; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .85rem; width: 100%; }
th, td { text-align: right; padding: .25rem .5rem; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums; }
th:first-child, td:first-child, .left th, .left td { text-align: left; }
"""


def page_of(story: Story, verdict: Verdict) -> str:
    """The whole page."""
    names = [shown(name) for name, account in story.accounts.items() if account.has_ledger]
    body = [
        f"<h1>The run of {escape(some_of(names, 6) or 'nobody')}</h1>",
        f'<p class="soft">{escape(headline(story))}</p>',
        _verdict(verdict),
    ]
    if story.rounds:
        body += [_tiles(story), *_charts(story), *_tables(story)]
    inner = "\n".join(body)
    return (
        f'{PAGE_BEGIN}\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>mend ledger: {escape(verdict.word)}</title>\n"
        f"<style>{_STYLE}{_colours()}</style>\n</head>\n<body>\n{inner}\n</body>\n</html>\n"
    )


def _colours() -> str:
    """Fills for areas and dots, strokes for lines, and colours for keys."""

    def rules(hues: Sequence[str]) -> str:
        return "".join(
            f".c{i} {{ fill: {hue}; color: {hue}; }} polyline.c{i} {{ fill: none; stroke: {hue};"
            " stroke-width: 2; }\n"
            for i, hue in enumerate((*hues, "#898781"))
        )

    return f"\n{rules(_HUES)}@media (prefers-color-scheme: dark) {{\n{rules(_DARK)}}}\n"


def _verdict(verdict: Verdict) -> str:
    items = "".join(_item(finding) for finding in verdict.findings)
    return (
        f'<div id="verdict" class="{verdict.severity.value}"><strong>{escape(verdict.text)}'
        f"</strong>{f'<ul>{items}</ul>' if items else ''}</div>"
    )


def _item(finding: Finding) -> str:
    remedy = f"<br><small>{escape(shown(finding.remedy))}</small>" if finding.remedy else ""
    return f"<li>{escape(finding.severity.value)}: {escape(shown(finding.text))}{remedy}</li>"


def _tiles(story: Story) -> str:
    accounts = story.accounts.values()
    pace = count_of(story.pace.per_s) if story.pace.seconds else "–"
    paused_s = sum(story.pace.pauses)
    pauses = {"of that in pauses": seconds_of(paused_s)} if paused_s else {}
    tiles = {
        "anchors": count_of(len(story.rounds)),
        "tokens": count_of(story.tokens),
        "tokens per second": pace,
        "duration": seconds_of(story.seconds),
        **pauses,
        "absences": count_of(sum(account.absences for account in accounts)),
        "superseded tokens": count_of(sum(account.superseded for account in accounts)),
        "dropped tokens": count_of(sum(account.dropped for account in accounts)),
    }
    inner = "".join(
        f"<div><b>{value}</b><span>{name}</span></div>" for name, value in tiles.items()
    )
    return f'<div class="tiles">{inner}</div>'


def _charts(story: Story) -> Iterable[str]:
    marks = {
        '<span style="color: var(--good)"><i></i></span>': "member of all rounds of that time",
        '<span style="color: var(--good); opacity: .5"><i></i></span>': "of some of them",
        '<span style="color: var(--warn)"><i></i></span>': "expected and absent",
        '<span style="color: var(--bad)"><i></i></span>': "on another branch",
    }
    key = "".join(f"<span>{mark}{said}</span>" for mark, said in marks.items())
    yield _figure("Who was in each round", f'<div class="key">{key}</div>', timeline(story))
    names = ranked(story)
    learners = [
        f'<span><span class="{colour(names, name)}"><i></i></span>{escape(shown(name))}</span>'
        for name in names[:COLOURS]
    ]
    if len(names) > COLOURS:
        learners.append(f'<span><span class="c{COLOURS}"><i></i></span>others</span>')
    key = f'<div class="key">{"".join(learners)}</div>'
    yield _figure("Tokens in the common model", key, tokens_chart(story))
    yield _figure("Tokens per second", "", throughput(story))
    yield _figure("Lag: from a round until each learner had its anchor", key, lag_chart(story))
    yield (
        "<p class='soft'>Times are of each learner's own clock. Where the clocks of two machines"
        " differ, so does the lag.</p>"
    )


def _figure(title: str, key: str, chart: str) -> str:
    return f"<h2>{escape(title)}</h2>\n<figure>{key}{chart}</figure>"


def _tables(story: Story) -> Iterable[str]:
    rows = [cells_of(name, account, story.tokens) for name, account in story.accounts.items()]
    yield f"<h2>Learners</h2>\n{_table('learners', '', HEAD, rows)}"
    yield f"<p class='soft'>{escape(reasons_of(story))}</p>"
    last = story.sequence[-MOST_ROUNDS:]
    title = "Rounds" if len(last) == len(story.rounds) else f"The last {len(last)} rounds"
    head = ("fragment", "time", "version", "reason", "sealer", "members and tokens", "absent")
    cells = [(str(each.fragment), *round_cells(each, story.rounds[0].time)) for each in last]
    yield f"<h2>{title}</h2>\n{_table('rounds', 'left', head, cells)}"


def _table(name: str, kind: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    heads = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "\n".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return (
        f'<div class="wide"><table id="{name}" class="{kind}"><thead><tr>{heads}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )
