"""The arguments of the constructor: refused by name, value and bound; filled in from the
environment; and the settings that two learners must have in common."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import Parameter
from torch.optim import SGD, AdamW, Optimizer

from mend_optim import (
    Adoption,
    AutoPeriod,
    Credentials,
    FailSlow,
    Grace,
    Guard,
    Int4,
    Limits,
    Moment,
    MomentSchedule,
    Nesterov,
    PeerError,
    PowerSGD,
    Quorum,
    Timing,
    UsageError,
)
from mend_optim.engine.period import read_period
from mend_optim.engine.schedule import Schedule
from mend_optim.model.layout import Layout
from mend_optim.protocol.proofs import proofs_nbytes
from mend_optim.settings import MOST_MOMENTS, Settings, read_settings
from mend_optim.worker.joint import counts_nbytes, norms_nbytes

pytestmark = pytest.mark.usefixtures("no_environment")

PEER = "127.0.0.1:9"
DEFAULTS: dict[str, Any] = {
    "name": "a",
    "listen": None,
    "peers": (),
    "schedule": Schedule(),
    "quorum": Quorum(),
    "grace": Grace(),
    "adoption": "auto",
    "weighting": "tokens",
    "merge": "mean",
    "outer": Nesterov(),
    "codec": "none",
    "moments": "auto",
    "guard": Guard(),
    "failslow": FailSlow(),
    "tokens_per_step": None,
    "timing": Timing(),
    "limits": Limits(),
    "group": "auto",
    "advertise": None,
    "ledger": None,
    "on_event": None,
    "credentials": None,
    "insecure": True,
}


def parameters() -> list[Parameter]:
    return [Parameter(torch.ones(3, 4)), Parameter(torch.ones(5))]


def read(inner: Optimizer | None = None, **told: Any) -> Settings:
    return read_settings(inner or AdamW(parameters()), **{**DEFAULTS, **told})


class Unknown(Optimizer):
    """An optimizer whose moments nobody knows."""

    def __init__(self) -> None:
        super().__init__(parameters(), {"lr": 0.1})


# Refused values, one argument at a time: (argument, value, the rule that the error states).

REFUSED: list[tuple[str, Any, str]] = [
    ("name", "", "name must be a printable text of 1 to 200 bytes"),
    ("name", "ä" * 101, "name must be a printable text of 1 to 200 bytes"),
    ("name", "a\tb", "name must be a printable text of 1 to 200 bytes"),
    ("name", 7, "name must be a printable text of 1 to 200 bytes"),
    ("name", "b\udcfc", "name must be a printable text of 1 to 200 bytes"),
    ("peers", 5, "peers must be None or addresses 'host:port' of other learners"),
    ("peers", "here", "peers must be an address 'host:port'"),
    ("credentials", "pki", "credentials must be a Credentials.secret(…) or a Credentials.files(…)"),
    ("insecure", 1, "insecure must be True or False"),
    ("limits", 256, "limits must be a Limits(learners=…)"),
    ("quorum", 0, "quorum.minimum must be None or an int >= 1"),
    ("quorum", 1.5, "quorum.minimum must be None or an int >= 1"),
    ("grace", -1, "grace.max_s must be a number of seconds >= 0"),
    ("grace", None, "grace.max_s must be a number of seconds >= 0"),
    ("adoption", 0.5, "adoption must be 'auto' or an Adoption(gain=…)"),
    ("adoption", "off", "adoption must be 'auto' or an Adoption(gain=…)"),
    ("adoption", None, "adoption must be 'auto' or an Adoption(gain=…)"),
    ("weighting", "loss", "weighting must be one of ('tokens_and_batch', 'tokens', 'throughput',"),
    ("merge", "max", "merge must be one of ('norm_preserving', 'mean', 'rda', 'trimmed_mean',"),
    ("outer", 0.7, "outer must be a Nesterov(gain=…) or a DiLoCoNesterov(lr=…)"),
    ("codec", "zip", "codec must be one of ['bf16', 'float4', 'int4', 'int8', 'none', 'powersgd',"),
    ("moments", 3, "moments must be 'auto', None or a MomentSchedule(first=…, second=…)"),
    ("guard", 8.0, "guard must be None or a Guard(norm=…)"),
    ("failslow", 1.2, "failslow must be None or a FailSlow(threshold=…, …)"),
    ("tokens_per_step", 0, "tokens_per_step must be None or an int >= 1"),
    ("tokens_per_step", True, "tokens_per_step must be None or an int >= 1"),
    ("tokens_per_step", 8.0, "tokens_per_step must be None or an int >= 1"),
    ("timing", 30, "timing must be a Timing(beat_s=…, …)"),
    ("advertise", PEER, "advertise must be None without listen"),
    ("group", "world", "group must be 'auto', None or a ProcessGroup, got 'world'"),
    ("ledger", "", "ledger must be None or the path of a file"),
    ("ledger", 5, "ledger must be None or the path of a file"),
    ("ledger", os.curdir, "ledger must be None or the path of a file"),
    ("ledger", "a\0b", "ledger must be None or the path of a file"),
    ("on_event", "print", "on_event must be None or a function of an Event"),
    ("on_event", lambda: None, "on_event must be None or a function of an Event"),
]


@pytest.mark.parametrize(
    ("argument", "value", "bound"), REFUSED, ids=[f"{a}-{v!r:.20}" for a, v, _ in REFUSED]
)
def test_a_wrong_argument_is_refused_by_name_bound_and_value(
    argument: str, value: Any, bound: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read(**{argument: value})
    assert str(caught.value).startswith(bound)
    assert f"got {value!r}" in str(caught.value)


def test_what_is_not_an_optimizer_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^inner must be a torch.optim.Optimizer, got 'list'$"):
        read_settings([], **DEFAULTS)  # type: ignore[arg-type]


def test_a_quorum_without_peers_is_refused_unless_it_is_one() -> None:
    with pytest.raises(
        UsageError, match=r"quorum.minimum must be 1 without listen or peers, got 2"
    ):
        read(quorum=2)
    assert read(quorum=1).place is None
    assert read(quorum=2, peers=PEER).policies.quorum == Quorum(minimum=2)


def test_every_argument_but_those_of_other_policies_is_refused_somewhere() -> None:
    # A Schedule refuses on its own, and the transport refuses an address to listen on.
    elsewhere = {"schedule", "listen"}
    assert {argument for argument, _, _ in REFUSED} == set(DEFAULTS) - elsewhere


# The meaning of the short forms.


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"quorum": 1}, {"quorum": Quorum(minimum=1)}),
        ({"grace": 2.5}, {"grace": Grace(max_s=2.5)}),
        ({"grace": Grace(fraction=0.5)}, {"grace": Grace(fraction=0.5)}),
        ({"adoption": "auto"}, {"adoption": Adoption()}),
        ({"adoption": Adoption(gain=0.5)}, {"adoption": Adoption(gain=0.5)}),
        ({"failslow": None}, {"failslow": None}),
        ({"weighting": "uniform"}, {"weighting": "uniform"}),
    ],
)
def test_policies(told: dict[str, Any], expected: dict[str, Any]) -> None:
    policies = read(**told).policies
    assert {name: getattr(policies, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("codec", "moments", "averaged"),
    [
        ("none", "auto", True),
        ("bf16", "auto", True),
        ("int8", "auto", False),
        (PowerSGD(rank=2), "auto", False),
        ("int8", MomentSchedule(), True),
        ("none", None, False),
    ],
)
def test_auto_averages_moments_where_deltas_travel_as_floats(
    codec: Any, moments: Any, averaged: bool
) -> None:
    policies = read(codec=codec, moments=moments).policies
    assert [m.name for m in policies.moments] == (["exp_avg", "exp_avg_sq"] if averaged else [])
    assert (policies.periods is not None) is averaged


def test_half_lives_are_resolved_into_rounds() -> None:
    schedule = MomentSchedule(first="half_life", second="half_life")
    settings = read(moments=schedule, schedule=Schedule(sync_every=100))
    assert settings.policies.periods is not None
    assert settings.policies.periods.rounds == (("first", 1), ("second", 7))


def test_half_lives_do_not_follow_the_first_of_the_automatic_periods() -> None:
    schedule = MomentSchedule(first="half_life", second="half_life")
    settings = read(moments=schedule, schedule=Schedule(sync_every=1), auto=AutoPeriod())
    assert settings.policies.periods is not None
    assert settings.policies.periods.rounds == (("first", 1), ("second", 35))


def test_an_optimizer_whose_moments_nobody_knows_is_named() -> None:
    assert read(Unknown()).policies.unknown_optimizer == "Unknown"
    assert read(Unknown(), moments=None).policies.unknown_optimizer == ""
    named = MomentSchedule(states=(Moment(name="m", order="first", decay=0.9),))
    assert read(Unknown(), moments=named).policies.unknown_optimizer == ""
    assert read(SGD(parameters(), lr=0.1)).policies.unknown_optimizer == ""


@pytest.mark.parametrize(
    ("codec", "merge", "stays", "unflushed"),
    [
        ("powersgd", "mean", True, ""),
        ("powersgd", "rda", True, ""),
        ("powersgd", "median", False, "median"),
        ("int8", "median", False, ""),
    ],
)
def test_what_stays_in_the_weights_can_be_flushed_by_a_merge_of_shares(
    codec: str, merge: str, stays: bool, unflushed: str
) -> None:
    policies = read(codec=codec, merge=merge).policies
    assert (policies.residual_in_weights, policies.unflushed_merge) == (stays, unflushed)


@pytest.mark.parametrize(
    ("weighting", "merge", "weighs"),
    [
        ("tokens", "norm_preserving", True),
        ("throughput", "rda", True),
        ("uniform", "mean", False),
        ("tokens", "median", False),
        ("tokens", "trimmed_mean", False),
        ("tokens", "centered_clip", False),
    ],
)
def test_a_merge_weighs_work_unless_all_members_weigh_the_same(
    weighting: str, merge: str, weighs: bool
) -> None:
    assert read(weighting=weighting, merge=merge).policies.weighs_work is weighs


# The environment fills in what was not told.


def test_the_environment_names_the_learner_and_its_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEND_NAME", "from-the-environment")
    monkeypatch.setenv("MEND_LISTEN", "127.0.0.1:0")
    monkeypatch.setenv("MEND_PEERS", " b:1, ,c:2 ")
    settings = read(name=None)
    assert settings.name == "from-the-environment"
    assert settings.place is not None
    assert (settings.place.listen, settings.place.peers.seeds) == ("127.0.0.1:0", ("b:1", "c:2"))


@pytest.mark.parametrize("peers", [None, (), []])
def test_peers_that_are_none_are_not_given(peers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(peers=peers).place is None
    monkeypatch.setenv("MEND_PEERS", "b:1")
    place = read(peers=peers).place
    assert place is not None
    assert place.peers.seeds == ("b:1",)


@pytest.mark.parametrize("peers", [5, torch.tensor(5)])
def test_peers_that_cannot_be_listed_are_refused(peers: Any) -> None:
    with pytest.raises(UsageError, match=r"^peers must be None or addresses 'host:port' .*5"):
        read(peers=peers)


def test_an_argument_beats_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEND_NAME", "from-the-environment")
    monkeypatch.setenv("MEND_LISTEN", "127.0.0.1:1")
    monkeypatch.setenv("MEND_PEERS", "b:1")
    settings = read(name="told", listen="127.0.0.1:2", peers=["c:2"])
    assert settings.name == "told"
    assert settings.place is not None
    assert (settings.place.listen, settings.place.peers.seeds) == ("127.0.0.1:2", ("c:2",))


@pytest.mark.parametrize("name", ["MEND_NAME", "MEND_LISTEN", "MEND_PEERS"])
def test_an_empty_variable_says_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "")
    settings = read(name=None)
    assert settings.name.startswith(f"{socket.gethostname()}-{os.getpid()}")
    assert settings.place is None


@pytest.mark.parametrize(
    ("variable", "value", "error"),
    [
        ("MEND_PEERS", "b:1,here", "MEND_PEERS must be an address 'host:port', got 'here'"),
        ("MEND_NAME", "a\tb", r"MEND_NAME must be a printable text .*, got 'a\\tb'"),
        ("MEND_ZONE", "a\tb", r"MEND_ZONE must be a printable text .*, got 'a\\tb'"),
        ("MEND_ZONE", "z\udcfc", r"MEND_ZONE must be a printable text .*, got 'z\\udcfc'"),
    ],
)
def test_an_error_names_the_variable_that_the_value_came_from(
    variable: str, value: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError, match=f"^{error}"):
        read(name=None)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("nowhere", "MEND_LISTEN must be an address 'host:port', got 'nowhere'"),
        ("192.0.2.1:0", "MEND_LISTEN must be an address of this machine with a free port, got "),
    ],
)
def test_a_place_to_listen_in_the_environment_is_named(
    value: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEND_LISTEN", value)
    layout = Layout(["w", "b"], parameters(), 1)

    def connect() -> None:
        settings = read()
        settings.connect(settings, lambda _: layout)

    with pytest.raises(UsageError, match=f"^{error}"):
        connect()


def test_peers_may_be_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "peers").write_text("127.0.0.1:3\n")
    place = read(peers="file:peers, 127.0.0.1:2", insecure=False).place
    assert place is not None
    monkeypatch.chdir("/")
    assert place.peers.seeds == ("127.0.0.1:2",)
    (file,) = place.lists()
    assert file.name == f"file:{tmp_path}/peers"
    (tmp_path / "peers").write_text("10.0.0.5:3\n")
    bound = (
        "line 1 of .*/peers must be loopback addresses, .* without credentials, got '10.0.0.5:3'"
    )
    with pytest.raises(PeerError, match=bound):
        asyncio.run(file.read(""))


@pytest.mark.parametrize(
    ("peers", "words"),
    [
        ("file:", "peers must be a path after 'file:', got 'file:'"),
        ("file:absent", r"peers must be the path of a file that can be read \(No such file"),
        ("env://", "peers must be addresses, or 'env://' in a process of torchrun"),
        ("env:/", "peers must be an address 'host:port'"),
    ],
)
def test_lists_of_peers_are_checked_at_once(
    peers: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=words):
        read(peers=peers)


def test_an_error_in_a_file_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "peers").write_text("127.0.0.1:3\n10.0.0.5:3\n")
    monkeypatch.setenv("MEND_PEERS", f"file:{tmp_path}/peers")
    with pytest.raises(UsageError, match=r"^MEND_PEERS: line 2 of .*/peers must be loopback"):
        read(insecure=False)


WORLD = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "RANK": "1", "WORLD_SIZE": "3"}


def test_a_learner_of_torchrun_listens_without_being_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in WORLD.items():
        monkeypatch.setenv(name, value)
    place = read(peers="env://").place
    assert place is not None
    assert place.listen == "127.0.0.1:0"
    assert [each.name for each in place.lists()] == ["env://"]
    told = read(peers="env://", listen="127.0.0.1:2").place
    assert told is not None
    assert told.listen == "127.0.0.1:2"
    assert place.peers.number != told.peers.number
    monkeypatch.setenv("MASTER_ADDR", "trainer.example")
    with pytest.raises(UsageError, match=r"listen must be a loopback .* got '0.0.0.0:0'"):
        read(peers="env://", insecure=False)


def test_a_learner_of_ranks_is_found_by_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in WORLD.items():
        monkeypatch.setenv(name, value)
    settings = read(peers="env://", group="auto").of_ranks([1, 2])
    assert settings.place is not None
    assert settings.place.peers.world is not None
    assert settings.place.peers.world.ranks == (1, 2)
    assert settings.group is None
    assert read().of_ranks([1, 2]).place is None


def test_peers_may_be_one_text() -> None:
    place = read(peers="b:1, c:2").place
    assert place is not None
    assert place.peers.seeds == ("b:1", "c:2")


@pytest.mark.parametrize(
    ("argument", "policy"),
    [
        ("quorum", Quorum),
        ("grace", Grace),
        ("adoption", Adoption),
        ("outer", Nesterov),
        ("codec", Int4),
        ("moments", MomentSchedule),
        ("failslow", FailSlow),
        ("timing", Timing),
        ("limits", Limits),
    ],
)
def test_a_class_in_place_of_its_instance_is_refused(argument: str, policy: type) -> None:
    with pytest.raises(UsageError) as caught:
        read(**{argument: policy})
    written = (
        f"{argument} must be an instance, got {policy!r}; write {argument}={policy.__name__}()"
    )
    assert str(caught.value) == written


def test_a_ledger_must_not_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "ledger").symlink_to(tmp_path / "other")
    remedy = "ledger must be no symbolic link, .*; it is a symbolic link; give the path of the file"
    with pytest.raises(UsageError, match=remedy):
        read(peers=PEER, ledger=tmp_path / "ledger")


def test_a_ledger_that_the_disk_refuses_to_look_up_stops_nothing(tmp_path: Path) -> None:
    unreadable = tmp_path / ("n" * 300)
    place = read(peers=PEER, ledger=unreadable).place
    assert place is not None
    assert place.ledger == unreadable


def test_a_ledger_stays_where_it_was_when_the_script_changes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = read(peers=PEER, ledger="ledger.jsonl").place
    monkeypatch.chdir("/")
    assert place is not None
    assert place.ledger == tmp_path / "ledger.jsonl"


def test_a_class_of_periods_is_refused() -> None:
    with pytest.raises(UsageError, match=r"sync_every must be .*; write sync_every=AutoPeriod\(\)"):
        read_period(AutoPeriod, 1, None)  # type: ignore[arg-type]


def test_learners_of_one_process_that_nobody_named_have_different_names() -> None:
    assert read(name=None).name != read(name=None).name


# Settings that two learners must have in common.


def test_one_peer_may_be_told_by_itself() -> None:
    settings = read(peers=PEER, ledger="rounds.jsonl", on_event=print)
    assert settings.place is not None
    assert settings.place.peers.seeds == (PEER,)
    assert settings.place.ledger == Path("rounds.jsonl").absolute()
    assert settings.place.on_event is print


def test_the_policy_of_the_defaults() -> None:
    assert dict(read().policy()) == {
        "sync_every": "128",
        "fragments": "1",
        "adopt_after": "None",
        "quorum": "majority",
        "weighting": "tokens",
        "merge": "mean",
        "outer": "Nesterov(gain=1.0, momentum=0.0)",
        "codec": "none",
        "moments": "first 3, second 6",
    }


@pytest.mark.parametrize(
    ("told", "field", "text"),
    [
        ({"schedule": Schedule(sync_every=64)}, "sync_every", "64"),
        ({"schedule": Schedule(fragments=2)}, "fragments", "2"),
        ({"schedule": Schedule(adopt_after=0)}, "adopt_after", "0"),
        ({"quorum": 1}, "quorum", "1"),
        ({"weighting": "uniform"}, "weighting", "uniform"),
        ({"merge": "rda"}, "merge", "rda"),
        ({"merge": "norm_preserving"}, "merge", "norm_preserving"),
        ({"outer": Nesterov(gain=0.7)}, "outer", "Nesterov(gain=0.7, momentum=0.0)"),
        ({"codec": "bf16"}, "codec", "bf16"),
        ({"moments": None}, "moments", "never"),
        ({"moments": MomentSchedule(first=1, second=2)}, "moments", "first 1, second 2"),
    ],
)
def test_each_field_of_the_policy_tells_of_one_argument(
    told: dict[str, Any], field: str, text: str
) -> None:
    before, after = dict(read().policy()), dict(read(**told).policy())
    assert after == {**before, field: text}


def test_learners_that_sign_tell_so_and_others_say_nothing() -> None:
    """So learners of former releases, which sign nothing, agree with those that don't."""
    unsigned, signed = (
        read(peers=PEER, insecure=False, credentials=Credentials.files("pki", signed=signed))
        for signed in (False, True)
    )
    assert unsigned.policy() == read(peers=PEER).policy()
    assert dict(signed.policy()) == {**dict(unsigned.policy()), "credentials.signed": "True"}
    assert (unsigned.policies.signed, signed.policies.signed) == (False, True)
    # Of the ranks of a learner, only the lead needs credentials.
    assert signed.of_all_ranks(3) == unsigned.of_all_ranks(3)
    assert dict(signed.of_all_ranks(3)) == {**dict(unsigned.policy()), "fragments": "3"}


def test_the_largest_message_has_room_for_the_proofs_of_all() -> None:
    fragment = Layout(["w", "b"], parameters(), 1).fragments[0]
    some = [
        read(
            peers=PEER,
            insecure=False,
            limits=Limits(learners=7),
            credentials=Credentials.files("pki", signed=signed),
        )._limit(fragment)
        for signed in (False, True)
    ]
    assert some[1] - some[0] == proofs_nbytes(7)


def test_the_largest_message_has_room_for_norms_and_counts_of_a_joint_offer() -> None:
    fragment = Layout(["w", "b"], parameters(), 1).fragments[0]
    alone, joint = (read(codec=c, limits=Limits(learners=7)) for c in ("bf16", "none"))
    assert (alone.policies.joins, joint.policies.joins) == (False, True)
    more = joint._limit(fragment) - alone._limit(fragment)
    assert more == norms_nbytes(2, 7) + counts_nbytes(2, MOST_MOMENTS)
    assert (norms_nbytes(2, 7), counts_nbytes(2, 4)) == (4 * 2 * 7, 4 * 2 * 4)
    assert norms_nbytes(2, 4096) == 4 * 2 * 256


def test_a_guard_that_clips_leaves_a_relay_free_to_join() -> None:
    """Its sealer may have another guard."""
    for guard, clips in ((None, False), (Guard(), False), (Guard(clip=True), True)):
        policies = read(codec="none", guard=guard).policies
        assert (policies.joins, policies.clips) == (True, clips)


def test_the_guard_may_differ_and_is_told() -> None:
    one, other = read(guard=None), read(guard=Guard(norm=20, clip=True))
    assert one.policy() == other.policy()
    assert one.may_differ() == (("guard", "None"),)
    assert other.may_differ() == (("guard", "Guard(norm=20.0, clip=True)"),)


def test_a_codec_with_the_options_of_a_named_one_is_that_one() -> None:
    assert dict(read(codec=Int4()).policy())["codec"] == "int4"
    assert dict(read(codec=PowerSGD(rank=9)).policy())["codec"].startswith("PowerSGD(rank=9")


@pytest.mark.parametrize(
    "told",
    [
        {"grace": 1.0},
        {"adoption": Adoption(gain=0.5)},
        {"failslow": None},
        {"timing": Timing(beat_s=0.5)},
        {"tokens_per_step": 7},
        {"name": "b"},
    ],
)
def test_the_rest_may_differ_between_learners(told: dict[str, Any]) -> None:
    assert read(**told).policy() == read().policy()


def test_offline_settings_are_the_same_without_peers() -> None:
    settings = read(peers=PEER, codec="int8")
    offline = settings.offline()
    assert offline.place is None
    assert (offline.name, offline.policy()) == (settings.name, settings.policy())
    assert offline.connect(offline, lambda _: pytest.fail("nobody asks for the layout")) is None


@pytest.mark.parametrize("moments", [0, 4, 6])
def test_the_largest_message_holds_anchor_velocity_and_moments(moments: int) -> None:
    """Also those of a peer that keeps more moments than this learner: four, of any optimizer that
    is known here."""
    states = tuple(Moment(name=f"m{i}", order="first", decay=0.9) for i in range(moments))
    settings = read(moments=MomentSchedule(states=states) if states else None)
    fragment = Layout(["w", "b"], parameters(), 1).fragments[0]
    scale, sizes, norms = 4 * 2, 4 * 2 * 256, 4 * 2 * 256
    least = 4 * fragment.numel * (2 + max(4, moments)) + scale + sizes + norms
    assert least <= settings._limit(fragment) <= least + 1000


def test_a_callback_may_be_anything_that_takes_an_event() -> None:
    class Watch:
        def __call__(self, event: object) -> None: ...

    def optional(event: object, more: int = 0) -> None: ...

    callbacks: list[Callable[..., Any]] = [print, Watch(), optional, lambda *args: None, [].append]
    for callback in callbacks:
        settings = read(peers=PEER, on_event=callback)
        assert settings.place is not None
        assert settings.place.on_event is callback
