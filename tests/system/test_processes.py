"""The library's promises, kept by real processes that are killed, slow, late, cut off, mismatched
or interrupted."""

from __future__ import annotations

import json
import signal
from collections import defaultdict
from pathlib import Path

import pytest

from tests.support.addresses import free_addresses
from tests.system.processes import PATIENCE_S, Facts, Learner, Relay, Supervisor, lineages, members

DISTANT = {"beat_s": 0.5, "evict_after_s": 60.0}  # nobody is evicted in such a test


def loss(text: str) -> float:
    return float.fromhex(text)


def await_common_seals(supervisor: Supervisor, learners: list[Learner], more: int) -> None:
    """Wait until each of them has adopted so many more seals that merged the work of all of
    them."""
    names = [learner.name for learner in learners]
    goals = {learner: learner.seals_with(*names) + more for learner in learners}
    supervisor.until(
        lambda: all(x.seals_with(*names) >= goal for x, goal in goals.items()),
        f"{more} seals of all",
    )


def assert_one_model(reports: list[Facts]) -> None:
    assert len({lineages(report) for report in reports}) == 1
    assert len({(report["genesis"], report["anchors"]) for report in reports}) == 1


# ── joining and coming back ───────────────────────────────────────────────────────────────────────


def test_a_killed_learner_comes_back_from_nothing_and_takes_the_trained_weights(
    supervisor: Supervisor,
) -> None:
    a, b, c = supervisor.start_all("abc")
    await_common_seals(supervisor, [a, b, c], 2)
    genesis = a.report()["genesis"]
    c.kill()
    killed = {x: len(x.order_of_events) for x in (a, b)}
    for x in (a, b):
        x.await_event("evicted")
    await_common_seals(supervisor, [a, b], 2)
    trained = min(x.rounds[-1]["tokens"] for x in (a, b))
    again = supervisor.start("c", seed=99, listen=c.address, peers=[a.address, b.address])
    again.await_event("took over")
    supervisor.until(lambda: bool(again.rounds), "the record of it")
    assert again.rounds[0]["tokens"] >= trained
    await_common_seals(supervisor, [a, b, again], 2)
    reports = supervisor.settle(a, b, again)
    assert_one_model(reports)
    assert reports[0]["genesis"] == genesis
    for x, mark in killed.items():
        since = x.order_of_events[mark:]
        assert since[: since.index("evicted")].count("step") > 20, (
            f"{x.name} must step on while {c.name} is dead"
        )
        later = x.rounds[x.order_of_events[:mark].count("round") :]
        assert [r["tokens"] for r in later] == sorted(r["tokens"] for r in later)
        assert not any(r["superseded"] or r["dropped_tokens"] for r in later)


def test_a_killed_learner_whose_clock_was_set_back_comes_back_when_it_is_given_up(
    supervisor: Supervisor,
) -> None:
    a, b, c = supervisor.start_all("abc")
    await_common_seals(supervisor, [a, b, c], 2)
    c.kill()
    peers = [a.address, b.address]
    again = supervisor.start("c", seed=99, listen=c.address, peers=peers, clock_behind_s=3600.0)
    supervisor.until(
        lambda: any("is not yet given up" in event["text"] for event in again.events["waiting"]),
        "what it waits for",
    )
    again.await_event("renewed")
    supervisor.until(lambda: any(x.events["evicted"] for x in (a, b)), "that it is given up")
    again.await_event("took over")
    assert not again.events["alone"]
    await_common_seals(supervisor, [a, b, again], 2)
    assert_one_model(supervisor.settle(a, b, again))
    assert len({event["after"] for event in again.events["renewed"]}) == 1


def test_a_newcomer_starts_from_the_weights_of_a_learner_that_trained_alone(
    supervisor: Supervisor,
) -> None:
    a = supervisor.start("a", pace_s=0, steps=500, sync_every=100_000)
    supervisor.until(lambda: a.step == 500, "500 steps alone")
    a.order("run", pace_s=0.01)
    b = supervisor.start("b", seed=1, steps=0, peers=[a.address], sync_every=100_000)
    assert b.ask("synchronize", "synchronized", timeout=10)["done"]
    reports = [a.report(), b.report()]
    assert_one_model(reports)
    assert reports[1]["fragments"][0]["tokens"] >= 500
    b.order("run")
    b.await_steps(1)
    random, trained = loss(a.losses[0]), loss(a.losses[-1])
    assert abs(loss(b.losses[0]) - trained) < 0.2 * (random - trained)
    assert_one_model(supervisor.settle(a, b))


def test_two_learners_that_start_together_start_from_one_set_of_weights(
    supervisor: Supervisor,
) -> None:
    learners = supervisor.start_all("ab")
    own = [x.await_event("open")["weights"] for x in learners]
    first = [x.await_event("first")["weights"] for x in learners]
    assert own[0] != own[1]
    assert first[0] == first[1]
    assert first[0] in own
    takers = [x for x in learners if x.events["took over"]]
    assert [x.events["took over"] for x in takers] == [[{"weights": first[0]}]]


def test_a_learner_that_finds_nobody_trains_alone_and_joins_when_somebody_comes(
    supervisor: Supervisor,
) -> None:
    own, other = free_addresses(2)
    a = supervisor.start("a", listen=own, peers=[other], timing={"join_timeout_s": 0.5})
    a.await_event("alone")
    a.await_steps(20)
    b = supervisor.start("b", seed=1, listen=other, peers=[own])
    await_common_seals(supervisor, [a, b], 2)
    assert len(a.events["alone"]) == 1
    assert a.events["alone"][0]["missing"] == [other]
    assert not b.events["alone"]
    assert_one_model(supervisor.settle(a, b))


# ── checkpoints ───────────────────────────────────────────────────────────────────────────────────


def test_all_killed_and_restored_they_train_to_the_same_bits(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    """One run takes 60 steps; another takes 30 steps, SIGKILL to both learners, and the other 30.
    Every loss and every anchor is the same."""
    straight = in_lockstep(supervisor, 60)
    expected = [(x.losses, x.report()["anchors"]) for x in straight]
    leave_together(straight)
    first = in_lockstep(supervisor, 30)
    files = {x: tmp_path / f"{i}.pt" for i, x in enumerate(first)}
    for x, file in files.items():
        assert x.ask("save", "saved", path=str(file)) == {"step": 30}
    for x in first:
        x.kill()
    second = in_lockstep(supervisor, 60, restore=list(files.values()))
    assert [x.await_event("restored")["intact"] for x in second] == [True, True]
    for x, y, (losses, anchors) in zip(first, second, expected, strict=True):
        assert x.losses + y.losses == losses
        assert (y.report()["anchors"], y.report()["step"]) == (anchors, 60)
    leave_together(second)


def in_lockstep(
    supervisor: Supervisor, steps: int, restore: list[Path] | None = None
) -> list[Learner]:
    own: dict[str, Facts] = {
        name: {"restore": path} for name, path in zip("ab", restore or [], strict=False)
    }
    options: Facts = {
        "sync_every": 7,
        "adopt_after": 3,
        "grace": 60.0,
        "timing": DISTANT,
        "pace_s": 0.001,
    }
    pair = supervisor.start_all("ab", own, steps=steps, **options)
    goal = steps - 30 if restore else steps
    supervisor.until(lambda: all(x.step == goal for x in pair), f"step {steps}")
    supervisor.until(
        lambda: all(len(x.rounds) >= (4 if goal == 30 else 8) for x in pair), "the last round"
    )
    return pair


def leave_together(learners: list[Learner]) -> None:
    for x in learners:
        assert x.leave() == 0


def test_a_learner_restored_from_an_old_file_counts_no_token_twice(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    # On a busy machine, a process may say nothing for a second. Were it suspected, there might be
    # two branches, and an offer in a seal of each.
    timing = {"beat_s": 1.0, "evict_after_s": 6.0}
    a, b, c = supervisor.start_all("abc", timing=timing)
    await_common_seals(supervisor, [a, b, c], 2)
    c.ask("save", "saved", path=str(tmp_path / "c.pt"))
    await_common_seals(supervisor, [a, b, c], 2)
    c.kill()
    for x in (a, b):
        x.await_event("evicted")
    await_common_seals(supervisor, [a, b], 2)
    again = supervisor.start(
        "c",
        seed=9,
        listen=c.address,
        peers=[a.address, b.address],
        restore=tmp_path / "c.pt",
        timing=timing,
    )
    facts = again.await_event("restored")
    assert facts["intact"]
    assert facts["step"] == c.events["saved"][0]["step"] == facts["tokens"]
    await_common_seals(supervisor, [a, b, again], 2)
    reports = supervisor.settle(a, b, again)
    assert_one_model(reports)
    seals = {r["digest"]: r for x in (a, b, c, again) for r in x.rounds if r["members"]}.values()
    sealed_in = defaultdict(list)
    for r in seals:
        for m in r["members"]:
            if m["steps"]:
                sealed_in[m["name"], m["incarnation"], m["seq"]].append(r)
    twice = {entry: found for entry, found in sealed_in.items() if len(found) > 1}
    assert not twice, "no offer is merged twice"
    assert merged_tokens(list(seals), "a") == a.step
    assert merged_tokens(list(seals), "b") == b.step
    of_c = sum(m["tokens"] for r in seals for m in r["members"] if m["name"] == "c")
    dropped = reports[2]["dropped_tokens"]
    assert reports[0]["fragments"][0]["tokens"] == a.step + b.step + of_c
    # what it had is merged or dropped, what it did is merged
    assert of_c + dropped >= facts["tokens"] + again.step
    assert of_c <= c.step + again.step
    assert dropped <= facts["unmerged_tokens"]


def test_a_file_cut_in_half_is_refused_and_the_cluster_adopted(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    a, b = supervisor.start_all("ab")
    await_common_seals(supervisor, [a, b], 2)
    whole, cut = tmp_path / "whole.pt", tmp_path / "cut.pt"
    b.ask("save", "saved", path=str(whole))
    content = whole.read_bytes()
    cut.write_bytes(content[: len(content) // 2])
    b.kill()
    again = supervisor.start("b", seed=9, listen=b.address, peers=[a.address], restore=cut)
    again.await_event("unreadable")
    again.await_event("took over")
    await_common_seals(supervisor, [a, again], 1)
    assert not again.events["restored"]
    assert_one_model(supervisor.settle(a, again))


# ── rounds ────────────────────────────────────────────────────────────────────────────────────────


def test_a_learner_three_times_slower_takes_part_in_most_rounds_with_fewer_tokens(
    supervisor: Supervisor,
) -> None:
    learners = supervisor.start_all("abc", {"c": {"pace_s": 0.015}}, seed=0, timing=DISTANT)
    learners[0].await_rounds(25)
    supervisor.settle(*learners)
    seals = list({r["digest"]: r for x in learners for r in x.rounds if r["members"]}.values())
    # All of them on an idle machine. Beside other work an offer may come after the grace.
    assert sum("c" in members(r) for r in seals) >= 0.75 * len(seals)
    tokens = {x.name: merged_tokens(seals, x.name) for x in learners}
    assert tokens == {x.name: x.step for x in learners}
    assert tokens["c"] < max(tokens["a"], tokens["b"])  # one of them may be short of a core, too


def merged_tokens(rounds: list[Facts], name: str, fragment: int = 0) -> int:
    """The tokens of one learner that these rounds merged."""
    entries = [m for r in rounds if r["fragment"] == fragment for m in r["members"]]
    return sum(m["tokens"] for m in entries if m["name"] == name)


def test_fixed_overlap_trains_to_the_same_bits_on_a_slow_network(supervisor: Supervisor) -> None:
    assert losses_over(supervisor, delay_s=0.0) == losses_over(supervisor, delay_s=0.2)


def losses_over(supervisor: Supervisor, delay_s: float) -> list[list[str]]:
    """All losses of two learners that reach each other only over slow relays, for five rounds."""
    timing = {"beat_s": 0.5, "round_timeout_s": 60.0, "evict_after_s": 60.0}
    own = free_addresses(2)
    relays = [Relay(address, delay_s) for address in own]
    try:
        pair = [
            supervisor.start(
                name,
                listen=own[i],
                advertise=relays[i].address,
                peers=[relays[1 - i].address],
                timing=timing,
                steps=44,
                seed=i,
                sync_every=8,
                adopt_after=4,
                grace=60.0,
            )
            for i, name in enumerate("ab")
        ]
        supervisor.until(lambda: all(x.step == 44 for x in pair), "44 steps")
        for x in pair:
            assert x.leave() == 0
            assert [(r["reason"], r["mine"]) for r in x.rounds if r["members"]] == [
                ("all_present", True)
            ] * 5
        assert len({x.events["first"][0]["weights"] for x in pair}) == 1
        assert all(relay.held >= 5 for relay in relays), "everything must have gone over the relays"
        return [x.losses for x in pair]
    finally:
        for relay in relays:
            relay.close()


def test_fixed_overlap_trains_to_the_same_bits_whoever_starts_last(supervisor: Supervisor) -> None:
    assert losses_of_starts(supervisor, "abc") == losses_of_starts(supervisor, "cba")


def losses_of_starts(supervisor: Supervisor, names: str) -> dict[str, list[str]]:
    """All losses of three learners, for five rounds. Each is told of the others, and starts once
    the one before waits for it."""
    own = dict(zip(sorted(names), free_addresses(3), strict=True))
    started: dict[str, Learner] = {}
    for name in names:
        supervisor.until(
            lambda: all(": waiting up to" in x.complaints for x in started.values()),
            f"all to wait for {name}",
        )
        started[name] = supervisor.start(
            name,
            listen=own[name],
            peers=[address for other, address in own.items() if other != name],
            timing={**DISTANT, "join_timeout_s": PATIENCE_S, "round_timeout_s": 60.0},
            steps=44,
            seed=ord(name),
            sync_every=8,
            adopt_after=4,
            grace=60.0,
        )
    supervisor.until(lambda: all(x.step == 44 for x in started.values()), "44 steps")
    for x in started.values():
        assert x.leave() == 0
        assert x.seals_with(*names) == 5
    return {name: x.losses for name, x in started.items()}


def test_no_token_is_lost_or_counted_twice(supervisor: Supervisor, tmp_path: Path) -> None:
    own = {name: {"data_seed": i, "ledger": str(tmp_path / name)} for i, name in enumerate("abc")}
    learners = supervisor.start_all("abc", own, seed=0, fragments=2, tokens=(1, 9), timing=DISTANT)
    await_common_seals(supervisor, learners, 12)
    for x in learners:
        x.ask("pause", "paused")
    under_way = supervisor.agree(*learners)
    assert sum(r["unmerged_tokens"] for r in under_way) > 0
    assert_conserved(under_way, tmp_path)
    reports = supervisor.settle(*learners)
    assert sum(r["unmerged_tokens"] for r in reports) == 0
    assert_conserved(reports, tmp_path)
    assert_one_model(reports)


def assert_conserved(reports: list[Facts], ledgers: Path) -> None:
    """Law 5, from the reports of the learners and the union of their ledgers."""
    lines = [
        json.loads(line) for ledger in ledgers.iterdir() for line in ledger.read_text().splitlines()
    ]
    seals = {(r["fragment"], r["version"], r["digest"]): r for r in lines if r["members"]}
    for fragment in range(2):
        held, version = (reports[0]["fragments"][fragment][what] for what in ("tokens", "version"))
        unmerged = {r["name"]: r["fragments"][fragment]["unmerged_tokens"] for r in reports}
        assert held + sum(unmerged.values()) == sum(r["tokens"] for r in reports)
        # as reported
        ledger = [
            r for r in seals.values() if r["fragment"] == fragment and r["version"] <= version
        ]
        assert len({r["version"] for r in ledger}) == len(ledger), (
            "there must be one seal a version"
        )
        for r in reports:
            assert merged_tokens(ledger, r["name"], fragment) == r["tokens"] - unmerged[r["name"]]
        assert held == sum(merged_tokens(ledger, r["name"], fragment) for r in reports)
    assert all(r["tokens"] > r["step"] and not r["dropped_tokens"] for r in reports)


def test_a_learner_that_nobody_can_dial_takes_part_and_keeps_the_weights_for_the_others(
    supervisor: Supervisor,
) -> None:
    (address,) = free_addresses(1)
    a = supervisor.start("a", listen=address)
    b = supervisor.start("b", seed=1, listen=None, peers=[address])
    await_common_seals(supervisor, [a, b], 3)
    assert b.await_event("open")["address"] == ""
    supervisor.until(lambda: a.step > 300 and b.step > 300, "some training")
    kept = b.report()
    a.kill()
    again = supervisor.start("a", seed=2, pace_s=0.03, listen=address)
    supervisor.until(
        lambda: any(r["reason"] == "pulled" for r in again.rounds),
        "the restarted learner to take the weights",
    )
    await_common_seals(supervisor, [again, b], 3)
    reports = supervisor.settle(again, b)
    assert_one_model(reports)
    assert reports[0]["genesis"] == kept["genesis"]
    # How much of the killed learner's last work is lost depends on the load.
    assert reports[0]["fragments"][0]["tokens"] > kept["fragments"][0]["tokens"] > 0


# ── the sealer dies ───────────────────────────────────────────────────────────────────────────────


def test_learners_end_on_one_lineage_whenever_the_sealer_dies(supervisor: Supervisor) -> None:
    running = {x.name: x for x in supervisor.start_all("abc")}
    sealer = ""
    for reached in (0, 1, 2, None):
        await_common_seals(supervisor, list(running.values()), 2)
        sealer = next(iter(running.values())).rounds[-1]["sealer"]
        victim = running.pop(sealer)
        kill_around_a_seal(victim, reached)
        survivors = list(running.values())
        await_common_seals(supervisor, survivors, 2)
        assert_one_model(supervisor.settle(*survivors))
        for x in survivors:
            assert x.rounds[-1]["sealer"] in running
            x.order("run")
        peers = [x.address for x in survivors]
        running[sealer] = supervisor.start(sealer, seed=50, listen=victim.address, peers=peers)
    await_common_seals(supervisor, list(running.values()), 1)
    assert_one_model(supervisor.settle(*running.values()))


def kill_around_a_seal(victim: Learner, reached: int | None) -> None:
    """Let it die when its next seal has reached so many peers; None: as many as have it at that
    moment."""
    if reached is None:
        victim.await_rounds(1)
        victim.kill()
        return
    victim.may_end = True
    victim.order("cut", reached=reached)
    assert victim.await_end() == -signal.SIGKILL
    assert victim.events["cut"] == [{"reached": reached}]


# ── leaving ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def stayer(supervisor: Supervisor) -> Learner:
    return supervisor.start("stayer", timing=DISTANT)


@pytest.mark.parametrize("how", ["close", "plain", "Ctrl-C"])
def test_whoever_leaves_says_so(supervisor: Supervisor, stayer: Learner, how: str) -> None:
    leaver = supervisor.start("leaver", seed=1, peers=[stayer.address], timing=DISTANT)
    await_common_seals(supervisor, [stayer, leaver], 2)
    status = leaver.interrupt() if how == "Ctrl-C" else leaver.leave(how)
    if how == "plain":
        # Whether it says how much is lost depends on the moment.
        assert status == 0
        assert all("leaves without finish()" in line for line in leaver.real_complaints)
    else:
        assert_clean_end(leaver, status, interrupted=how == "Ctrl-C")
    assert stayer.await_event("left")["peer"] == "leaver"
    assert not stayer.events["evicted"]
    assert [peer["name"] for peer in stayer.report()["roster"]] == []


def test_the_end_of_a_script_tells_what_the_others_do_not_get(
    supervisor: Supervisor, stayer: Learner
) -> None:
    """Two steps after the last boundary are in no offer."""
    leaver = supervisor.start("leaver", seed=1, peers=[stayer.address], timing=DISTANT, steps=22)
    supervisor.until(lambda: leaver.step == 22, "the last step")
    assert leaver.leave("plain") == 0
    (line,) = leaver.real_complaints
    assert line.startswith("leaver: leaves without finish(), and ")
    assert stayer.await_event("left")["peer"] == "leaver"


def assert_clean_end(learner: Learner, status: int, interrupted: bool) -> None:
    complaints = learner.complaints
    if not interrupted:
        assert (status, learner.real_complaints) == (0, [])
        return
    assert status == -signal.SIGINT
    assert complaints.count("Traceback") == 1
    assert complaints.splitlines()[-1] == "KeyboardInterrupt"
    assert "ignored" not in complaints


def test_ctrl_c_ends_a_learner_that_waits_for_peers(supervisor: Supervisor) -> None:
    (nowhere,) = free_addresses(1)
    learner = supervisor.start("a", peers=[nowhere], timing={"join_timeout_s": 300.0})
    learner.await_event("open")
    assert_clean_end(learner, learner.interrupt(), interrupted=True)
    assert not learner.step


def test_ctrl_c_ends_a_learner_that_waits_for_a_round(supervisor: Supervisor) -> None:
    timing = {**DISTANT, "round_timeout_s": 300.0}
    waiting, paused = supervisor.start_all(
        "ab", {"b": {"steps": 5}}, seed=0, adopt_after=0, timing=timing
    )
    supervisor.until(
        lambda: (waiting.step, paused.step) == (9, 5),
        "a step that waits for the other learner's offer",
    )
    assert_clean_end(waiting, waiting.interrupt(), interrupted=True)
    assert waiting.step == 9
    paused.await_event("left")


# ── misfits and forks ─────────────────────────────────────────────────────────────────────────────


def test_another_model_or_policy_is_refused_on_both_sides_and_training_goes_on(
    supervisor: Supervisor,
) -> None:
    a = supervisor.start("a")
    model = supervisor.start("model", peers=[a.address], width=32)
    policy = supervisor.start("policy", peers=[a.address], sync_every=16)
    model.await_event("refused")
    policy.await_event("refused")
    supervisor.until(lambda: len(a.events["refused"]) >= 2, "both refusals")
    other_model = (
        "parameter 0: here [{}, 16] torch.float32, there [{}, 16] torch.float32; "
        "build the same model on both"
    )
    other_policy = "sync_every: here {}, there {}; pass the same sync_every to both"
    assert reasons(a) == {other_model.format(48, 32), other_policy.format(10, 16)}
    assert reasons(model) == {other_model.format(32, 48)}
    assert reasons(policy) == {other_policy.format(16, 10)}
    for learner in (a, model, policy):
        learner.await_steps(20)
        assert not learner.rounds


def reasons(learner: Learner) -> set[str]:
    return {event["reason"] for event in learner.events["refused"]}


def test_data_loaders_may_fork_beside_live_rounds(supervisor: Supervisor) -> None:
    a, b = supervisor.start_all("ab", workers=2, pace_s=0.002, sync_every=8, timing=DISTANT)
    await_common_seals(supervisor, [a, b], 10)
    supervisor.until(lambda: min(a.step, b.step) > 3 * 32, "three epochs")
    for learner in (a, b):
        assert_clean_end(learner, learner.leave("close"), interrupted=False)
