"""A bad argument of the local user is refused at once. The error names it, its value, the bound and
the remedy, and nothing is left behind."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from fractions import Fraction
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import SGD

from mend_optim import (
    Adoption,
    AutoPeriod,
    ClosedError,
    DiLoCoNesterov,
    FailSlow,
    Grace,
    Guard,
    Int8,
    Limits,
    MendOptimizer,
    MomentSchedule,
    Nesterov,
    PowerSGD,
    Quorum,
    Sparse,
    Timing,
    UsageError,
)
from tests.support.learners import (
    LOCKSTEP,
    LOOPBACK,
    TIMING,
    cluster,
    descent,
    read,
    step,
    together,
    weights,
)
from tests.support.older_torch import needs_names

pytestmark = pytest.mark.usefixtures("no_environment")

NAN, INF = float("nan"), float("inf")
POLICIES = [Quorum, Grace, Nesterov, DiLoCoNesterov, Timing, FailSlow, MomentSchedule]
PEER = "127.0.0.1:9"  # nobody is ever there
NAMES = "['bf16', 'float4', 'int4', 'int8', 'none', 'powersgd', 'sparse']"
CODEC = f"codec must be one of {NAMES} or a codec such as PowerSGD(rank=4), got {{}}"
WEIGHTINGS = "('tokens_and_batch', 'tokens', 'throughput', 'uniform')"
MERGES = "('norm_preserving', 'mean', 'rda', 'trimmed_mean', 'median', 'centered_clip')"
MERGE = f"merge must be one of {MERGES}, got {{}}"

# Refused values, and the beginning of each message; {} stands for the value.
ALWAYS: list[tuple[str, Any, str]] = [
    (
        "sync_every",
        0,
        "sync_every must be an int >= 1, 'auto' or an AutoPeriod(least=…, …), got {}",
    ),
    (
        "sync_every",
        -3,
        "sync_every must be an int >= 1, 'auto' or an AutoPeriod(least=…, …), got {}",
    ),
    (
        "sync_every",
        2.5,
        "sync_every must be an int >= 1, 'auto' or an AutoPeriod(least=…, …), got {}",
    ),
    (
        "sync_every",
        True,
        "sync_every must be an int >= 1, 'auto' or an AutoPeriod(least=…, …), got {}",
    ),
    (
        "sync_every",
        None,
        "sync_every must be an int >= 1, 'auto' or an AutoPeriod(least=…, …), got {}",
    ),
    ("fragments", 0, "fragments must be an int >= 1 or 'auto', got {}"),
    ("fragments", "2", "fragments must be an int >= 1 or 'auto', got {}"),
    (
        "fragments",
        200,
        "fragments must be at most sync_every=128, got {}; each fragment needs an inner step",
    ),
    (
        "adopt_after",
        -1,
        "adopt_after must be None or an int in [0, sync_every=128], got {}; an anchor",
    ),
    ("adopt_after", 129, "adopt_after must be None or an int in [0, sync_every=128], got {}"),
    ("adopt_after", 1.0, "adopt_after must be None or an int in [0, sync_every=128], got {}"),
    ("adopt_after", False, "adopt_after must be None or an int in [0, sync_every=128], got {}"),
    ("quorum", 0, "quorum.minimum must be None or an int >= 1, got {}"),
    ("quorum", "x", "quorum.minimum must be None or an int >= 1, got {}"),
    ("quorum", 2.0, "quorum.minimum must be None or an int >= 1, got {}"),
    ("quorum", True, "quorum.minimum must be None or an int >= 1, got {}"),
    ("grace", -0.5, "grace.max_s must be a number of seconds >= 0, got {}"),
    ("grace", NAN, "grace.max_s must be a number of seconds >= 0, got {}"),
    ("grace", "x", "grace.max_s must be a number of seconds >= 0, got {}"),
    ("grace", None, "grace.max_s must be a number of seconds >= 0, got {}"),
    ("weighting", "loss", f"weighting must be one of {WEIGHTINGS}, got {{}}"),
    ("weighting", None, f"weighting must be one of {WEIGHTINGS}, got {{}}"),
    (
        "merge",
        "avg",
        MERGE,
    ),
    (
        "merge",
        ["mean"],
        MERGE,
    ),
    ("outer", None, "outer must be a Nesterov(gain=…) or a DiLoCoNesterov(lr=…), got {}"),
    ("outer", 0.7, "outer must be a Nesterov(gain=…) or a DiLoCoNesterov(lr=…), got {}"),
    ("outer", Nesterov, "outer must be an instance, got {}; write outer=Nesterov()"),
    ("codec", "fp8", CODEC),
    ("codec", None, CODEC),
    ("codec", [], CODEC),
    ("moments", 3, "moments must be 'auto', None or a MomentSchedule(first=…, second=…), got {}"),
    (
        "moments",
        "never",
        "moments must be 'auto', None or a MomentSchedule(first=…, second=…), got {}",
    ),
    ("failslow", 1.2, "failslow must be None or a FailSlow(threshold=…, …), got {}"),
    ("tokens_per_step", 0, "tokens_per_step must be None or an int >= 1, got {}"),
    ("tokens_per_step", -1, "tokens_per_step must be None or an int >= 1, got {}"),
    ("tokens_per_step", 1.5, "tokens_per_step must be None or an int >= 1, got {}"),
    ("tokens_per_step", True, "tokens_per_step must be None or an int >= 1, got {}"),
    ("tokens_per_step", 2**40 + 1, "tokens_per_step must be at most 2**40, got {}; count in"),
    ("timing", None, "timing must be a Timing(beat_s=…, …), got {}"),
    ("timing", 1.0, "timing must be a Timing(beat_s=…, …), got {}"),
    ("name", "", "name must be a printable text of 1 to 200 bytes, got {}"),
    ("name", "x" * 201, "name must be a printable text of 1 to 200 bytes, got {}"),
    ("name", "a\n", "name must be a printable text of 1 to 200 bytes, got {}"),
    ("name", 7, "name must be a printable text of 1 to 200 bytes, got {}"),
    ("name", 0, "name must be a printable text of 1 to 200 bytes, got {}"),
    ("ledger", 5, "ledger must be None or the path of a file, got {}"),
    ("ledger", "", "ledger must be None or the path of a file, got {}"),
    ("ledger", os.curdir, "ledger must be None or the path of a file, got {}"),
    ("on_event", "print", "on_event must be None or a function of an Event, got {}"),
    ("on_event", threading.main_thread, "on_event must be None or a function of an Event, got {}"),
]

ADDRESSES: list[tuple[str, Any, str]] = [
    ("listen", 5, "listen must be an address 'host:port', got {}; write '10.0.0.5:29600'"),
    ("listen", "", "listen must be an address 'host:port', got {}"),
    ("listen", "localhost", "listen must be an address 'host:port', got {}"),
    ("listen", "host:port", "listen must be an address 'host:port', got {}"),
    ("listen", "::1:29600", "listen must be an address 'host:port', got {}"),
    ("listen", "http://a:29600", "listen must be an address 'host:port', got {}"),
    ("listen", "127.0.0.1:65536", "listen must be an address with a port of at most 65535, got {}"),
    ("listen", "192.0.2.1:0", "listen must be an address of this machine with a free port, got {}"),
    ("peers", 5, "peers must be None or addresses 'host:port' of other learners, got {}"),
    ("peers", "b", "peers must be an address 'host:port', got {}"),
]

ONE_PEER: list[tuple[Any, str]] = [
    (5, "peers must be an address 'host:port', got {}"),
    (["b:1"], "peers must be an address 'host:port', got {}"),
    (
        "b:0",
        "peers must be an address with a port >= 1, got {}; give the host and port that the other",
    ),
    ("0.0.0.0:29600", "peers must be an address with the host to dial, got {}"),
    (":29600", "peers must be an address with the host to dial, got {}"),
]

ADVERTISED: list[tuple[Any, str]] = [
    ("here", "advertise must be an address 'host:port', got {}"),
    ("10.0.0.5:0", "advertise must be an address with a port >= 1, got {}"),
    (5, "advertise must be an address 'host:port', got {}"),
]


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    yield
    assert [t.name for t in threading.enumerate() if t.name.startswith("mend-")] == []


def refused(message: str, value: Any, *, inner: Any = None, **arguments: Any) -> None:
    """Construction raises `UsageError` with that message, and it can be caught as ValueError
    too."""
    with pytest.raises(UsageError) as error:
        MendOptimizer(descent(1.0, 2.0) if inner is None else inner, **arguments)
    assert isinstance(error.value, ValueError)
    assert str(error.value).startswith(message.replace("{}", repr(value)))


# ── at construction ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("argument", "value", "message"), ALWAYS)
@pytest.mark.parametrize(
    "place", [{}, {"listen": LOOPBACK, "peers": [PEER]}], ids=["alone", "with peers"]
)
def test_a_bad_argument_is_refused(
    place: dict[str, Any], argument: str, value: Any, message: str
) -> None:
    refused(message, value, **{"sync_every": 128, **place, argument: value})


@pytest.mark.parametrize(("argument", "value", "message"), ADDRESSES)
def test_a_bad_address_is_refused(argument: str, value: Any, message: str) -> None:
    refused(message, value, **{argument: value}, insecure=True)


@pytest.mark.parametrize(("peer", "message"), ONE_PEER)
def test_one_bad_peer_is_refused(peer: Any, message: str) -> None:
    refused(message, peer, listen=LOOPBACK, peers=[PEER, peer])


@pytest.mark.parametrize(("value", "message"), ADVERTISED)
def test_a_bad_advertised_address_is_refused(value: Any, message: str) -> None:
    refused(message, value, listen=LOOPBACK, advertise=value)


def test_one_peer_may_be_given_as_plain_text() -> None:
    with closing(MendOptimizer(descent(1.0), peers=PEER, timing=TIMING)) as optimizer:
        assert optimizer._learner is not None
        assert optimizer._learner.engine.state.seeds.missing == [PEER]


def test_an_advertised_address_needs_one_to_listen_on() -> None:
    message = (
        "advertise must be None without listen, got {}; a learner nobody can dial has no address"
    )
    refused(message, "10.0.0.5:29600", peers=[PEER], advertise="10.0.0.5:29600")


def test_a_port_in_use_is_refused_and_stays_free_for_its_owner() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        message = "listen must be an address of this machine with a free port, got {}; "
        message += "another process may use the port"
        refused(message, address, listen=address)
    with closing(MendOptimizer(descent(1.0), listen=address, timing=TIMING)) as optimizer:
        assert optimizer.status().address == address


def test_two_learners_cannot_share_a_port() -> None:
    with closing(MendOptimizer(descent(1.0), listen=LOOPBACK, timing=TIMING)) as optimizer:
        address = optimizer.status().address
        refused(
            "listen must be an address of this machine with a free port, got {}",
            address,
            listen=address,
        )


def test_a_failed_construction_frees_its_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    refused("advertise must be an address", "nowhere", listen=address, advertise="nowhere")
    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))):
        pass


@pytest.mark.parametrize("quorum", [2, Quorum(minimum=3)])
def test_a_quorum_that_a_learner_alone_can_never_reach(quorum: Any) -> None:
    minimum = quorum if isinstance(quorum, int) else quorum.minimum
    message = (
        "quorum.minimum must be 1 without listen or peers, got {}; nobody else can ever take part"
    )
    refused(message, minimum, quorum=quorum)


@pytest.mark.parametrize("environment", ["MEND_LISTEN", "MEND_PEERS"])
def test_the_environment_is_checked_alike(
    environment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment, "nowhere")
    refused(f"{environment} must be an address 'host:port', got {{}}", "nowhere")


# ── the policies ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("field", ["beat_s", "round_timeout_s", "evict_after_s"])
@pytest.mark.parametrize("value", [0, -1.0, NAN, "1", None, True])
def test_timing_is_checked(field: str, value: Any) -> None:
    with pytest.raises(UsageError) as error:
        Timing(**{field: value})
    assert str(error.value) == f"timing.{field} must be a number of seconds > 0, got {value!r}"


def test_nobody_is_evicted_before_being_suspected() -> None:
    with pytest.raises(
        UsageError, match=r"timing.evict_after_s must be more than three beats \(6.0 s\), got 5; a"
    ):
        Timing(beat_s=2.0, evict_after_s=5)


@pytest.mark.parametrize("value", [0.0, -0.1, 10.5, NAN, INF, "1", None, True])
@pytest.mark.parametrize(("policy", "name"), [(Nesterov, "gain"), (DiLoCoNesterov, "lr")])
def test_the_outer_factor_is_checked(policy: Any, name: str, value: Any) -> None:
    with pytest.raises(UsageError) as error:
        policy(**{name: value})
    assert str(error.value) == f"outer.{name} must be in (0, 10], got {value!r}"


@pytest.mark.parametrize("value", [-0.1, 1.0, NAN, "0.9", None])
@pytest.mark.parametrize("policy", [Nesterov, DiLoCoNesterov])
def test_the_outer_momentum_is_checked(policy: Any, value: Any) -> None:
    with pytest.raises(UsageError) as error:
        policy(momentum=value)
    assert str(error.value) == f"outer.momentum must be in [0, 1), got {value!r}"


@pytest.mark.parametrize("policy", POLICIES)
def test_policies_are_given_by_name(policy: Any) -> None:
    with pytest.raises(TypeError, match="positional"):
        policy(1)


# ── the inner optimizer ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("inner", [object(), None, SGD, weights(1.0), torch.nn.Linear(1, 1)])
def test_the_inner_optimizer_must_be_one(inner: Any) -> None:
    with pytest.raises(UsageError, match=r"inner must be a torch.optim.Optimizer, got '\w+'"):
        MendOptimizer(inner)


def test_wrapping_twice_is_refused() -> None:
    refused(
        "inner must be a plain optimizer, got {}; wrap once",
        "MendOptimizer",
        inner=MendOptimizer(descent(1.0)),
    )


def test_more_fragments_than_tensors_are_refused() -> None:
    message = "fragments must be at most the number of parameter tensors (2), got {}; a fragment"
    refused(message, 3, fragments=3, listen=LOOPBACK)


def test_an_optimizer_without_parameters_is_refused() -> None:
    message = "inner must be an optimizer with at least one parameter, got {}"
    empty = SGD([{"params": []}], lr=1.0)
    refused(message, "an optimizer without parameters", inner=empty, listen=LOOPBACK)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool])
def test_frozen_integers_stay_out(dtype: torch.dtype) -> None:
    whole = Parameter(torch.ones(3, dtype=dtype), requires_grad=False)
    inners = [SGD([*weights(1.0), whole.clone()], lr=1.0) for _ in range(2)]
    with cluster(*inners, **LOCKSTEP) as made:
        assert made[0]._run.model.layout().numel == 3
        for optimizer in made:
            optimizer.param_groups[0]["params"][0].grad = torch.ones(3)
        together(*(optimizer.step for optimizer in made))
        assert [read(optimizer) for optimizer in made] == [[0.0, 1]] * 2


@needs_names
def test_a_parameter_is_named_as_its_optimizer_names_it() -> None:
    named = [
        ("weight", weights(1.0)[0]),
        ("table", torch.eye(3).to_sparse().requires_grad_()),
    ]
    words = "parameter table must be a dense tensor of floating point or complex numbers"
    refused(words, None, inner=SGD(named, lr=1.0), listen=LOOPBACK)


def test_parameters_that_share_memory_are_refused() -> None:
    (first,) = weights(1.0)
    second = Parameter(first.detach())
    message = (
        "parameter 1 must have memory of its own, got that of parameter 0; what others learned"
    )
    refused(message, None, inner=SGD([first, second], lr=1.0), listen=LOOPBACK)


# ── later ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("n", [-1, 1.5, True, "3", None, torch.tensor(1.5), torch.tensor([1, 2])])
def test_tokens_are_counted_in_whole_numbers(n: Any) -> None:
    optimizer = MendOptimizer(descent(1.0))
    with pytest.raises(UsageError) as error:
        optimizer.count_tokens(n)
    assert str(error.value) == f"n must be an int >= 0, got {n!r}"


def test_no_more_tokens_are_counted_than_an_offer_may_have() -> None:
    optimizer = MendOptimizer(descent(1.0), tokens_per_step=2**40)
    optimizer.count_tokens(2**40)
    with pytest.raises(UsageError, match=r"n must be at most 2\*\*40, got 1099511627777; count in"):
        optimizer.count_tokens(2**40 + 1)
    step(optimizer, 1.0)
    assert optimizer.status().tokens == 2**40


@pytest.mark.parametrize("n", [3, torch.tensor(3), numpy.int64(3)])
def test_numbers_of_other_libraries_are_counted(n: Any) -> None:
    optimizer = MendOptimizer(descent(1.0))
    optimizer.count_tokens(n)
    step(optimizer, 1.0)
    assert optimizer.status().tokens == 3


@pytest.mark.parametrize("whole", [numpy.int64, numpy.uint8, torch.tensor])
def test_whole_numbers_of_other_libraries_are_those_of_python(whole: Any) -> None:
    """Learners compare the text of their settings."""
    arguments = {"sync_every": 4, "fragments": 1, "adopt_after": 2, "tokens_per_step": 8}
    policies = {
        "quorum": lambda n: Quorum(minimum=n(1)),
        "limits": lambda n: Limits(learners=n(4), receive_bytes=None),
        "failslow": lambda n: FailSlow(patience=n(2)),
        "moments": lambda n: MomentSchedule(first=n(2), second=n(4)),
        "codec": lambda n: PowerSGD(rank=n(4), bits=n(8), seed=n(1)),
    }

    def settings(kind: Any) -> Any:
        plain = {name: kind(value) for name, value in arguments.items()}
        made = {name: make(kind) for name, make in policies.items()}
        return MendOptimizer(descent(1.0), name="a", **plain, **made)._run.settings

    assert repr(settings(whole)) == repr(settings(int))
    assert repr(AutoPeriod(least=whole(2), most=whole(9))) == repr(AutoPeriod(least=2, most=9))
    assert repr(Int8(block=whole(64))) == repr(Int8(block=64))
    assert repr(settings_of(quorum=whole(1))) == repr(settings_of(quorum=1))


@pytest.mark.parametrize("fraction", [numpy.float64, numpy.float32, Fraction])
def test_fractions_of_other_libraries_are_those_of_python(fraction: Any) -> None:
    half, two = fraction(0.5), fraction(2)
    pairs = [
        (Grace(max_s=two, fraction=half), Grace(max_s=2.0, fraction=0.5)),
        (Timing(beat_s=half), Timing(beat_s=0.5)),
        (Nesterov(gain=two, momentum=half), Nesterov(gain=2.0, momentum=0.5)),
        (AutoPeriod(bytes_per_s=two), AutoPeriod(bytes_per_s=2.0)),
        (FailSlow(threshold=two), FailSlow(threshold=2.0)),
        (Adoption(gain=half), Adoption(gain=0.5)),
        (Guard(norm=two), Guard(norm=2.0)),
        (Sparse(density=half), Sparse(density=0.5)),
        (settings_of(grace=two), settings_of(grace=2.0)),
    ]
    for theirs, plain in pairs:
        assert repr(theirs) == repr(plain)


@pytest.mark.parametrize("value", [numpy.float64(2), torch.tensor(2.0), numpy.bool_(True), "2"])
def test_what_is_no_whole_number_of_another_library_is_refused(value: Any) -> None:
    for argument in ("sync_every", "fragments", "tokens_per_step", "quorum"):
        with pytest.raises(UsageError, match=f"{argument}[a-z.]* must be .*an int >= 1"):
            settings_of(**{argument: value})


def settings_of(**arguments: Any) -> Any:
    return MendOptimizer(descent(1.0), name="a", **arguments)._run.settings


def test_zero_tokens_may_be_counted() -> None:
    optimizer = MendOptimizer(descent(1.0))
    optimizer.count_tokens(0)
    step(optimizer, 1.0)
    assert optimizer.status().tokens == 1


@pytest.mark.parametrize("timeout", [-1, NAN, "x", True, 10**400])
def test_a_timeout_is_a_number_of_seconds(timeout: Any) -> None:
    with pytest.raises(UsageError, match="timeout must be None or a number of seconds >= 0, got "):
        MendOptimizer(descent(1.0)).synchronize(timeout)


def test_a_model_changed_before_the_first_step_is_refused_then() -> None:
    with closing(MendOptimizer(descent(1.0), listen=LOOPBACK, timing=TIMING)) as optimizer:
        optimizer.param_groups[0]["params"][0].data = torch.zeros(2, 2)
        with pytest.raises(
            UsageError, match=r"parameter 0 must keep its shape \[3\] .*, got \[2, 2\] .*; close"
        ):
            step(optimizer, 1.0)


def test_a_parameter_that_never_gets_values_is_refused_with_the_remedy() -> None:
    """`to_empty()` gives the module other parameters than those of the optimizer."""
    module = torch.nn.Linear(2, 1, device="meta")
    with closing(MendOptimizer(SGD(module.parameters(), lr=1.0), listen=LOOPBACK)) as optimizer:
        module.to_empty(device="cpu")
        with pytest.raises(UsageError, match=r"values yet; make the optimizer after to_empty\(\)"):
            optimizer.step()


def masked(value: float) -> tuple[SGD, Parameter]:
    """An optimizer of one parameter that trains, and of a frozen one with such an element."""
    mask = Parameter(torch.zeros(2, 2), requires_grad=False)
    mask[0, 1] = value
    return SGD([{"params": [Parameter(torch.zeros(2))]}, {"params": [mask]}], lr=0.1), mask


@pytest.mark.parametrize("value", [NAN, -INF])
def test_a_frozen_parameter_that_is_not_finite_is_refused_at_the_first_step(value: float) -> None:
    """Learners would train on, and merge nothing."""
    inner, _ = masked(value)
    alone = Timing(beat_s=0.05, join_timeout_s=0.05)
    optimizer = MendOptimizer(inner, listen=LOOPBACK, timing=alone)
    told = r"parameter 1 must be finite.*make a mask a buffer"
    with closing(optimizer):
        for _ in range(2):  # again for a script that catches errors and goes on
            with pytest.raises(UsageError, match=told):
                optimizer.step()
    optimizer.step()  # closed, it trains on alone


def test_a_learner_is_closed_if_its_end_is_refused() -> None:
    inner, _ = masked(0.0)
    alone = Timing(beat_s=0.05, join_timeout_s=0.05)
    optimizer = MendOptimizer(inner, listen=LOOPBACK, timing=alone)
    swapped = optimizer.global_weights()
    with pytest.raises(UsageError, match="global_weights"), optimizer:  # noqa: PT012
        optimizer.step()
        swapped.__enter__()
    swapped.__exit__(None, None, None)
    with pytest.raises(ClosedError):
        optimizer.synchronize()


def test_a_newcomer_may_have_any_values_in_a_frozen_parameter() -> None:
    """It takes over those of the others."""
    (old, _), (new, mask) = masked(1.0), masked(NAN)
    joined = threading.Event()

    def step_on(optimizer: MendOptimizer) -> None:
        while not joined.is_set():
            step(optimizer, 1.0)

    def join(optimizer: MendOptimizer) -> None:
        try:
            optimizer.join()
        finally:
            joined.set()

    with cluster(old, new, started=False) as (first, second):
        step(first, 1.0)
        together(lambda: step_on(first), lambda: join(second))
        assert bool(mask.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_frozen_parameter_may_have_a_sum_beyond_its_dtype(dtype: torch.dtype) -> None:
    large = torch.full((4,), torch.finfo(dtype).max, dtype=dtype)
    frozen = Parameter(large, requires_grad=False)
    inner = SGD([Parameter(torch.zeros(2)), frozen], lr=0.1)
    alone = Timing(beat_s=0.05, join_timeout_s=0.05)
    with closing(MendOptimizer(inner, listen=LOOPBACK, timing=alone)) as optimizer:
        optimizer.join()


@pytest.mark.parametrize("view", [torch.ones(1).expand(4), torch.ones(8).unfold(0, 4, 1)])
def test_a_parameter_that_overlaps_itself_is_refused(view: Tensor) -> None:
    """Its elements share memory: no correction could be added to it."""
    inner = SGD([Parameter(view)], lr=0.1)
    with pytest.raises(UsageError, match=r"parameter 0 must have memory .*, got one that shares"):
        MendOptimizer(inner, listen=LOOPBACK, timing=TIMING)
    assert MendOptimizer(inner).join().step == 0  # without peers


def test_a_bad_group_is_refused() -> None:
    table = torch.eye(3).to_sparse().requires_grad_()
    with closing(MendOptimizer(descent(1.0), listen=LOOPBACK, timing=TIMING)) as optimizer:
        with pytest.raises(UsageError, match="parameter 1 must be a dense tensor"):
            optimizer.add_param_group({"params": [table]})
        assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("other", [torch.tensor(True), torch.empty((), device="meta"), numpy.True_])
def test_a_truth_value_or_a_tensor_without_data_is_no_number(other: Any) -> None:
    with pytest.raises(UsageError, match="sync_every must be"):
        MendOptimizer(descent(1.0), sync_every=other)
