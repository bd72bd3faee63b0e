"""The bench "learning": real learners in lockstep, the file of its runs, and its report."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.cluster import learning, lockstep, recipes
from bench.cluster.gaps import comparisons, goal, report, results
from bench.cluster.learning import ARMS, Selection, cells, main, parse_arguments, plan, selections
from bench.cluster.lockstep import MERGING, measure
from bench.cluster.runs import (
    ALONE,
    APART,
    PARALLEL,
    Cell,
    Outcome,
    Record,
    Run,
    append,
    line,
    read,
)
from bench.cluster.tasks import ABSENT, RATES, TASKS, Part, images_task, text_task
from mend_optim import Timing
from tests.support.tasks import small_text

TINY = Run(
    task="text",
    arm="new",
    members=2,
    period=2,
    late=2,
    steps=8,
    batch=2,
    rate=2e-3,
    seed=0,
)
OTHER_WEIGHTS = [replace(TINY, arm=arm) for arm in ("by tokens", "throughput")]


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    """Most of a tiny run would be spent on held-out text, and on waiting for the first beats."""
    small = small_text()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TASKS, "text", lambda: small)
        patch.setattr(lockstep, "Timing", partial(Timing, beat_s=0.05))
        yield


def baseline(arm: str, members: int) -> Run:
    return replace(TINY, arm=arm, members=members, period=0, late=0)


def outcome(*held_out: float, own: tuple[float, ...] = ()) -> Outcome:
    return Outcome(
        held_out=held_out, own=own or held_out, training=held_out, digest="d", seconds=1.0
    )


def records(end: float, *, arm: str = "new", seed: int = 0, rate: float = 2e-3) -> list[Record]:
    """A run that ends with this loss, where alone ends with 2 and data parallel with 1."""
    ends = {
        baseline(ALONE, 1): outcome(4.0, 3.0, 2.5, 2.0),
        baseline(PARALLEL, 2): outcome(3.0, 2.0, 1.5, 1.0),
        replace(TINY, arm=arm): outcome(4.5, 2.9, 2.5, end),
    }
    return [Record(run=replace(run, seed=seed, rate=rate), outcome=o) for run, o in ends.items()]


# ── runs ──────────────────────────────────────────────────────────────────────────────────────────


def test_every_arm_runs_and_all_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one process, as processes of their own would each import torch."""
    out = tmp_path / "runs.jsonl"
    for short in [
        baseline(ALONE, 1),
        replace(baseline(PARALLEL, 2), small=2),
        replace(baseline(APART, 2), skew=50),
        # Four fragments take a period of four steps, weights differ where batches do, and no arm
        # but the rules has the gain of anchors that are four steps late.
        *(replace(TINY, arm=a, period=5, late=4, small=2) for a in MERGING),
    ]:
        run = replace(short, steps=12)
        found = measure(run)
        assert all(map(math.isfinite, [*found.held_out, *found.own, *found.training]))
        assert (len(found.held_out), len(found.own)) == (4, 4)
        assert len(found.training) == run.steps
        append(out, Record(run=run, outcome=found))
    digests = [record.outcome.digest for record in read(out)]
    assert len(set(digests)) == len(digests) == len(ARMS)
    assert main(["--report", str(out)]) == 0
    printed = capsys.readouterr().out
    assert f"|  | {' | '.join(MERGING)} |" in printed
    assert "| H 5, τ 4, the others' batches 2 times smaller |" in printed


def test_every_recipe_differs_from_the_rules_and_leaves_nothing_behind() -> None:
    """Several replace functions of the library while they run."""
    tiny = replace(TINY, steps=4)
    rules = measure(tiny).digest
    tried = [replace(tiny, arm=recipe) for recipe in recipes.RECIPES]
    tried += [replace(tiny, task=recipes.with_inner("text", inner)) for inner in recipes.INNERS]
    found = [recipes.measure(run) for run in tried]
    assert all(math.isfinite(outcome.held_out[-1]) for outcome in found)
    assert len({rules, *(outcome.digest for outcome in found)}) == len(found) + 1
    assert measure(tiny).digest == rules


def test_the_report_pairs_a_recipe_with_the_rules() -> None:
    better = [record for record in records(1.25, arm="average") if record.run.arm == "average"]
    text = recipes.report([*records(1.5), *better])
    assert "| text | 2, 2 | average | 75 (75 to 75, 1) | 25 (25 to 25, 1) |" in text
    assert "| text | data parallel | 0.002 | 1.0000 (1.0000 to 1.0000, 1) |" in text


def test_the_recipes_share_their_baselines() -> None:
    runs = recipes.runs_of(recipes.Tried(tasks=["text"], seeds=[7]))
    assert len(runs) == len(set(runs)) == 5 + (4 * 3 + 1) + 2 * 5


def test_a_repeated_run_ends_with_the_same_weights() -> None:
    once, twice = (replace(measure(TINY), seconds=0.0) for _ in range(2))
    assert once == twice


def test_evaluation_does_not_disturb_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    late = replace(TINY, period=4, late=3)
    disturbed = measure(late)
    monkeypatch.setattr("bench.cluster.lockstep._quarters", lambda steps: [steps])
    assert measure(late).digest == disturbed.digest


def test_one_learner_trains_as_if_it_were_alone() -> None:
    assert measure(replace(TINY, members=1)).digest == measure(baseline(ALONE, 1)).digest


def test_a_cluster_may_choose_its_period(monkeypatch: pytest.MonkeyPatch) -> None:
    delays = []
    monkeypatch.setattr("bench.cluster.lockstep.delay_offers", lambda _, s: delays.append(s))
    monkeypatch.setattr("bench.cluster.lockstep.PACE_S", 0.01)
    found = measure(replace(TINY, period="auto", late=3))
    assert (found.chosen, measure(TINY).chosen) == (1, 0), "a run begins with the shortest"
    assert delays == [0.03, 0.03]


def test_a_fixed_period_may_run_freely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.cluster.lockstep.PACE_S", 0.01)
    (chosen,) = selections(parse_arguments(["--tasks", "text", "--cells", "5free:0", "auto:1"]))
    assert [cell.period for cell in chosen.cells] == ["5free", "auto"]
    assert measure(replace(TINY, period="5free", late=0)).chosen == 0
    with pytest.raises(SystemExit):
        parse_arguments(["--cells", "free:0"])


def test_learners_may_differ_in_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others take half as many steps, in as much time; the curve is that of the first."""
    monkeypatch.setattr(lockstep, "PACE_S", 0.01)
    found = measure(replace(TINY, period="2free", late=0, slow=2))
    assert (len(found.held_out), len(found.training)) == (4, 8)
    assert math.isfinite(found.held_out[-1])


def test_data_parallel_takes_as_many_samples_of_slow_members_as_they_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn, small = [], TASKS["text"]()

    def draw(generator: Any, batch: int, part: Part | None) -> Any:
        drawn.append(batch)
        return small.draw(generator, batch, part)

    monkeypatch.setitem(TASKS, "text", lambda: replace(small, draw=draw))
    measure(replace(baseline(PARALLEL, 3), batch=8, slow=4, steps=1))
    assert drawn == [8, 2, 2]


def test_learners_may_differ_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token is a sample, so they differ in weight, too. Data parallel takes all their samples."""
    drawn, small = [], TASKS["text"]()

    def draw(generator: Any, batch: int, part: Part | None) -> Any:
        drawn.append(batch)
        return small.draw(generator, batch, part)

    monkeypatch.setitem(TASKS, "text", lambda: replace(small, draw=draw))
    by_default = measure(replace(TINY, batch=8, small=4, steps=4))
    assert sorted(drawn) == [2, 2, 2, 2, 8, 8, 8, 8]
    differ = [measure(replace(run, batch=8, small=4, steps=4)) for run in OTHER_WEIGHTS]
    assert len({outcome.digest for outcome in (by_default, *differ)}) == 3
    alike = [measure(run) for run in (TINY, *OTHER_WEIGHTS)]
    assert len({outcome.digest for outcome in alike}) == 1
    drawn.clear()
    measure(replace(baseline(PARALLEL, 3), batch=8, small=4, steps=1))
    assert drawn == [8, 2, 2]


def test_learners_may_have_parts_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data parallel has all parts, and a model apart from the others has that of the first."""
    drawn, small = [], TASKS["text"]()

    def draw(generator: Any, batch: int, part: Part | None) -> Any:
        drawn.append(part)
        return small.draw(generator, batch, part)

    def parts(run: Run) -> list[tuple[int, int, float]]:
        drawn.clear()
        measure(replace(run, skew=75, steps=1))
        return sorted((part.index, part.of, part.share) for part in drawn)

    monkeypatch.setitem(TASKS, "text", lambda: replace(small, draw=draw))
    assert parts(TINY) == parts(baseline(PARALLEL, 2)) == [(0, 2, 0.75), (1, 2, 0.75)]
    assert parts(baseline(APART, 2)) == [(0, 2, 0.75)]
    words = "--tasks text --members 2 --skew 75 --cells 20:5 --seeds 0 --arms alone apart new"
    chosen = selections(parse_arguments([*words.split(), PARALLEL]))[0]
    runs = plan(chosen)
    assert {run.arm for run in runs if not run.skew} == {ALONE}
    told = report([Record(run=run, outcome=outcome(4.0, 3.0, 2.0, run.rate)) for run in runs])
    assert "| H 20, τ 5, 75 % of the samples from parts of their own |" in told


@given(of=st.integers(1, 5), share=st.sampled_from([0.0, 0.5, 1.0]), seed=st.integers(0, 99))
def test_a_share_of_the_samples_is_of_the_part(of: int, share: float, seed: int) -> None:
    parts = [torch.arange(100)[index * 20 : index * 20 + 20] for index in range(of)]
    for index, own in enumerate(parts):
        generator = torch.Generator().manual_seed(seed)
        part = Part(index=index, of=of, share=share)
        chosen = part.choose(generator, 400, own, 100)
        inside = ((chosen >= own[0]) & (chosen <= own[-1])).float().mean().item()
        assert chosen.min() >= 0
        assert chosen.max() < 100
        assert inside == pytest.approx(share + (1 - share) / 5, abs=0.15 if share < 1 else 0)


def test_a_part_without_examples_is_refused() -> None:
    with pytest.raises(ValueError, match="part 2 of 3 has no examples; take fewer learners"):
        Part(index=2, of=3, share=1.0).choose(torch.Generator(), 8, torch.arange(0), 100)


HALVES = [Part(index=i, of=2, share=1.0) for i in range(2)]


def test_parts_of_the_text_are_disjoint() -> None:
    draws = torch.Generator().manual_seed(0)
    (first, _), (second, _) = (text_task().draw(draws, 64, part) for part in HALVES)
    assert not {tuple(x) for x in first.tolist()} & {tuple(x) for x in second.tolist()}


def test_parts_of_the_images_are_of_other_digits() -> None:
    if reason := ABSENT["images"]():
        pytest.skip(reason)
    draws = torch.Generator().manual_seed(0)
    (_, low), (_, high) = (images_task().draw(draws, 64, part) for part in HALVES)
    assert set(low.tolist()) == {0, 1, 2, 3, 4}
    assert set(high.tolist()) == {5, 6, 7, 8, 9}


def test_baselines_have_the_batches_of_their_cells() -> None:
    words = "--tasks text --members 1 2 --small 4 --cells 20:5 --seeds 0"
    runs = [run for chosen in selections(parse_arguments(words.split())) for run in plan(chosen)]
    assert {run.arm for run in runs if run.small == 1} == {ALONE}
    told = report([Record(run=run, outcome=outcome(4.0, 3.0, 2.0, run.rate)) for run in runs])
    assert "| H 20, τ 5, the others' batches 4 times smaller |" in told


def test_slow_learners_run_freely() -> None:
    words = "--tasks text --members 1 2 --slow 4 --cells 20free:5 20:0 --seeds 0"
    runs = [run for chosen in selections(parse_arguments(words.split())) for run in plan(chosen)]
    assert {run.slow for run in runs if run.arm != ALONE} == {4}
    assert {run.period for run in runs if run.arm == "new"} == {"20free"}
    assert [str(run).count("4 times slower") for run in runs if run.arm == ALONE] == [0]


def test_refused_offers_are_told() -> None:
    refused = replace(outcome(1.0, 1.0, 1.0, 1.0), outsized=2)
    told = [replace(r, outcome=refused) if r.run.arm == "new" else r for r in records(1.5)]
    assert "2 offers refused" in report(told)


def test_learners_see_the_batches_of_data_parallel() -> None:
    """The first loss of both is that of equal weights on equal data."""
    merged, parallel = measure(TINY), measure(baseline(PARALLEL, 2))
    assert merged.training[0] == parallel.training[0]


def test_images_run_where_scikit_learn_is() -> None:
    pytest.importorskip("sklearn")
    run = replace(TINY, task="images", rate=0.04)
    assert math.isfinite(measure(run).held_out[-1])


def test_a_task_that_cannot_run_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(learning.ABSENT, "images", lambda: "no digits here")
    assert learning.present(["text", "images"]) == ["text"]
    assert capsys.readouterr().err == "learning, images: skipped: no digits here\n"


def test_what_is_in_the_file_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs.jsonl"
    taken: list[Run] = []

    def fake(runs: list[Run], jobs: int, device: str) -> list[Record]:
        taken.extend(runs)
        return [Record(run=run, outcome=outcome(4.0, 3.0, 2.0, 1.0)) for run in runs[:2]]

    monkeypatch.setattr(learning, "measure_all", fake)
    words = ["--tasks", "text", "--cells", "2:2", "--arms", ALONE, "new", "--out", str(out)]
    assert main(words) == 1, "four of six runs failed"
    assert main(words) == 1
    assert [len(taken), len(set(taken)), len(read(out))] == [6 + 4, 6, 4]


def test_a_run_that_fails_does_not_stop_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    tiny = baseline(ALONE, 1)
    (found,) = learning.measure_all([replace(TINY, period="never"), tiny], jobs=2)
    assert found.run == tiny
    assert "H never, τ 2" in capsys.readouterr().err


# ── the plan ──────────────────────────────────────────────────────────────────────────────────────


def test_a_plan_has_each_run_once() -> None:
    chosen = Selection(cells=cells([1, 2], [2, 20], [0]), arms=[ALONE, PARALLEL, "new"], seeds=[7])
    runs = plan(chosen)
    assert len(runs) == len(set(runs))
    per_task = 1 + 1 + 4  # alone; data parallel of two; the new rules in four cells
    assert len(runs) == per_task * sum(map(len, RATES.values()))


def test_cells_are_late_by_one_period_at_most() -> None:
    found = cells([2], [2, 5, "auto"], [0, 1, 5, "H-1"])
    pairs = [(cell.period, cell.late) for cell in found]
    fixed = [(2, 0), (2, 1), (5, 0), (5, 1), (5, 5), (5, 4)]
    assert pairs == [*fixed, ("auto", 0), ("auto", 1), ("auto", 5)]


def test_the_full_grid() -> None:
    arguments = parse_arguments(["--full", "--tasks", "text", "--steps", "10000"])
    (chosen,) = selections(arguments)
    assert (chosen.steps, chosen.batches, chosen.rates) == ([10000], [8, 64], ())
    assert {cell.members for cell in chosen.cells} == {1, 2, 4, 8}
    assert max(cell.late for cell in chosen.cells) == 99


# ── the file ──────────────────────────────────────────────────────────────────────────────────────


def test_a_record_survives_its_line(tmp_path: Path) -> None:
    kept = Record(run=TINY, outcome=outcome(3.0, math.inf, math.inf, math.inf))
    out = tmp_path / "runs.jsonl"
    append(out, kept)
    assert read(out) == [kept]
    told = json.loads(out.read_text())
    assert told["held_out"] == [3.0, None, None, None]
    del told["chosen"], told["outsized"]  # as in files from before they were kept
    out.write_text(json.dumps(told))
    assert read(out) == [kept]


def test_a_torn_last_line_is_passed_over(tmp_path: Path) -> None:
    whole = line(records(1.5)[0])
    out = tmp_path / "runs.jsonl"
    out.write_text(f"{whole}\n{whole[:50]}")
    assert len(read(out)) == 1
    append(out, records(1.5)[1])  # on a line of its own
    assert len(read(out)) == 2


# ── the report ────────────────────────────────────────────────────────────────────────────────────


def test_the_gap_that_is_closed() -> None:
    found = comparisons([*records(1.5), *records(1.2, seed=1)])
    (comparison,) = found
    assert comparison.closed == pytest.approx([0.5, 0.8])
    text = report([*records(1.5), *records(1.2, seed=1)])
    assert "| H 2, τ 2 | 65 % (50 to 80, 2) |" in text
    behind = "1 of 1 (1, 500.0 mnat) | 0 of 1 | 0 of 1 | 0 of 1 |"
    assert f"| new, the model in hand | {behind}" in text
    assert f"| new, the anchor | {behind}" in text
    assert "quarter 1: +500.0 mnat (+500.0 to +500.0)" in text


def test_before_the_end_a_user_has_the_learners_own_weights() -> None:
    found = outcome(4.5, 3.0, 2.5, 1.5, own=(3.9, 2.8, 2.4, 1.8))
    assert found.in_hand == (3.9, 2.8, 2.4, 1.5)
    baselines = [each for each in records(1.5) if each.run.arm in (ALONE, PARALLEL)]
    text = report([*baselines, Record(run=TINY, outcome=found)])
    assert "| new, the model in hand | 0 of 1 |" in text
    assert "| new, the anchor | 1 of 1 (1, 500.0 mnat) |" in text


def test_the_report_tells_the_periods_that_were_chosen() -> None:
    baselines = [r for seed in (0, 1) for r in records(1.5, seed=seed) if r.run.arm != "new"]
    chosen = [
        Record(
            run=replace(TINY, period="auto", seed=seed),
            outcome=replace(outcome(4.0, 3.0, 2.0, 1.5), chosen=period),
        )
        for seed, period in enumerate((3, 5))
    ]
    expected = "| H auto, offers late by 2 | 50 % (50 to 50, 2), H 3 to 5 |"
    assert expected in report([*baselines, *chosen])


def test_the_report_compares_a_choice_with_the_same_link_of_fixed_periods() -> None:
    baselines = [r for seed in range(3) for r in records(1.5, seed=seed) if r.run.arm != "new"]
    ends = {"auto": (1.2, 1.4, 1.3), "5free": (1.3, 1.3, 1.3), "8free": (1.6, 1.6)}
    ran = [
        Record(
            run=replace(TINY, period=period, late=late, seed=seed),
            outcome=outcome(4.0, 3.0, 2.0, end),
        )
        for period, late in (("auto", 2), ("5free", 2), ("8free", 2), ("5free", 1), (2, 2))
        for seed, end in enumerate(ends.get(str(period), (1.5, 1.5, 1.5)))
    ]
    text = report([*baselines, *ran])
    found = [line.split(" | ")[1:] for line in text.splitlines() if "H auto" in line]
    compared = [columns for columns in found if "±" in columns[-1]]
    assert compared == [
        ["H 5free, offers late by 2", "+0.0 ± 5.8 (3) |"],
        ["H 8free, offers late by 2", "+30.0 ± 10.0 (2) |"],
    ]


def test_each_arm_has_its_best_rate() -> None:
    slow = [
        Record(run=replace(r.run, rate=1e-3), outcome=outcome(5.0, 5.0, 5.0, 3.0))
        for r in records(1.5)
        if r.run.arm != "new"
    ]
    better = [Record(run=replace(TINY, rate=4e-3), outcome=outcome(4.0, 3.0, 2.0, 1.25))]
    (comparison,) = comparisons([*slow, *records(1.5), *better])
    assert (comparison.alone.rate, comparison.own.rate) == (2e-3, 4e-3)
    assert comparison.closed == pytest.approx([0.75])
    assert "75 % (75 to 75, 1) at rate 0.004" in report([*slow, *records(1.5), *better])


def test_a_rate_with_fewer_seeds_is_not_chosen() -> None:
    lucky = Record(run=replace(TINY, rate=4e-3), outcome=outcome(1.0, 1.0, 1.0, 1.0))
    (comparison,) = comparisons([*records(1.5), *records(1.5, seed=1), lucky])
    assert comparison.own.rate == 2e-3


def test_where_data_parallel_is_no_better_there_is_no_share() -> None:
    equal = [
        Record(
            run=r.run, outcome=outcome(4.0, 3.0, 2.5, 2.0) if r.run.arm == PARALLEL else r.outcome
        )
        for r in records(1.5)
    ]
    assert "| H 2, τ 2 | -500.0 mnat (-500.0 to -500.0) to alone |" in report(equal)
    assert [result.what.split(": ")[1] for result in results(equal)] == [
        "held-out loss after the worst quarter over alone's"
    ]


def test_a_run_that_diverged_says_so() -> None:
    assert "| 0.7/0.9 |" in report(records(math.inf, arm="0.7/0.9"))


def test_lines_of_the_bench_have_the_goals() -> None:
    share, quarter = results(records(1.5))
    assert (share.ratio, share.goal, share.met) == (0.5, ">= 0", True)
    assert (quarter.ratio, quarter.goal, quarter.met) == (4.5 / 4.0, "<= 1", False)


def test_the_bench_has_a_line_for_every_share_and_every_worst_quarter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fake(runs: list[Run], jobs: int, device: str = "cpu") -> list[Record]:
        ends = {ALONE: 2.0, PARALLEL: 1.0}
        return [
            Record(run=run, outcome=outcome(4.0, 3.0, 2.5, ends.get(run.arm, 1.5))) for run in runs
        ]

    monkeypatch.setattr(learning, "measure_all", fake)
    monkeypatch.setitem(learning.ABSENT, "images", lambda: "not here")
    lines = list(learning.run())
    assert len(lines) == len(learning.CELLS) * (3 + 1), "three arms; a worst quarter of one of them"
    assert sum(result.goal is not None for result in lines) == 2 * len(learning.CELLS)


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (Cell(members=2, period=2, late=1), ">= 0.7"),
        (Cell(members=2, period=20, late=0), ">= 0.38"),
        (Cell(members=4, period=20, late=1), ">= 0.3"),
        (Cell(members=2, period=20, late=19), ">= 0.2"),
        (Cell(members=2, period=20, late=3), ">= 0"),
        (Cell(members=2, period="auto", late=0), ">= 0"),
    ],
)
def test_goals(cell: Cell, expected: str) -> None:
    assert goal(cell) == expected


def test_pictures_are_drawn_where_matplotlib_is(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from bench.cluster.curves import draw

    (path,) = draw(comparisons(records(1.5)), tmp_path)
    assert path.name == "text-m2-steps8-batch2.png"
    assert path.stat().st_size > 10_000
