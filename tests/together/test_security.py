"""Learners with credentials train one model, and nobody else trains with them. Nothing secret
leaves the memory of a process."""

from __future__ import annotations

import copy
import io
import logging
import pickle
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from mend_optim import Credentials, MendOptimizer, Timing, UsageError
from mend_optim.security import INSECURE, LOCAL
from mend_optim.transport.security.loading import CredentialFiles
from mend_optim.transport.security.shared_secret import SECRET_BYTES
from tests.support.certificates import DAY, files_of, new_authority, secret_in
from tests.support.learners import (
    LOCKSTEP,
    LOOPBACK,
    PATIENCE_S,
    Watch,
    cluster,
    descent,
    drive,
    parameters,
    same,
    settle,
    wave,
)

pytestmark = pytest.mark.usefixtures("no_environment")

HASTY = Timing(beat_s=0.1, join_timeout_s=1.0, round_timeout_s=30.0, evict_after_s=30.0)


def each_with_files(folder: Path, names: str = "ab", signed: bool = False) -> list[dict[str, Any]]:
    authority = new_authority()
    return [
        {"credentials": Credentials.files(files_of(folder / name, authority, name), signed=signed)}
        for name in names
    ]


def each_that_signs(folder: Path, names: str = "ab") -> list[dict[str, Any]]:
    return each_with_files(folder, names, signed=True)


def each_with_secret(folder: Path, names: str = "ab") -> list[dict[str, Any]]:
    file = secret_in(folder)
    return [{"credentials": Credentials.secret(file)} for _ in names]


@pytest.mark.parametrize("made", [each_with_files, each_with_secret])
def test_learners_with_credentials_train_one_model(made: Any, tmp_path: Path) -> None:
    with cluster(
        descent(1.0, 2.0), descent(3.0, 4.0), descent(5.0, 6.0), each=made(tmp_path, "abc")
    ) as three:
        drive(three, 6, wave)
        settle(three)
        statuses = [optimizer.status() for optimizer in three]
        assert len({status.fragments[0].digest for status in statuses}) == 1
        assert statuses[0].rounds_adopted > 0
        with three[0].global_weights(), three[1].global_weights(), three[2].global_weights():
            assert same(parameters(three[0]), parameters(three[1]))
            assert same(parameters(three[0]), parameters(three[2]))
        kind = three[0]._run.settings.place.security.credentials.source.value  # type: ignore[union-attr]
        assert all(s.security.startswith(f"mutual TLS ({kind}), cert") for s in statuses)
        assert f"security  mutual TLS ({kind})" in str(statuses[0])


def test_files_that_hang_do_not_keep_the_process_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials may be on a disk of the net. The interpreter waits for threads that are no
    daemons, and for those of asyncio's executor."""
    (given,) = each_with_files(tmp_path, "a")
    readers = []
    monkeypatch.setattr(
        CredentialFiles, "read_again", lambda _: readers.append(threading.current_thread())
    )
    with closing(
        MendOptimizer(descent(1.0), name="a", listen=LOOPBACK, timing=HASTY, **given)
    ) as optimizer:
        network = optimizer._learner.network
        network.loop.run(network.transport._renewal.look(), PATIENCE_S)
    assert [(each.name, each.daemon) for each in readers] == [("mend-credentials", True)]


def looks_for(seed: str, **options: Any) -> Watch:
    """What a learner is told that looks for another there, until it trains alone."""
    watch = Watch()
    told = {"listen": LOOPBACK, "timing": HASTY, "on_event": watch, "name": "c", **options}
    with closing(MendOptimizer(descent(0.0), peers=[seed], **told)) as optimizer:
        optimizer.join()
        assert optimizer.status().roster == ()
        watch.until("alone")
    return watch


@pytest.mark.parametrize("stranger", ["another secret", "plaintext", "files", "insecure"])
def test_a_learner_without_the_secret_trains_alone(stranger: str, tmp_path: Path) -> None:
    authority = new_authority()
    told: dict[str, Any] = {
        "another secret": {"credentials": Credentials.secret(secret_in(tmp_path, "other"))},
        "plaintext": {},
        "files": {"credentials": Credentials.files(files_of(tmp_path / "c", authority, "c"))},
        "insecure": {"insecure": True},
    }[stranger]
    watch = Watch()
    each = each_with_secret(tmp_path)
    each[0]["on_event"] = watch
    with cluster(descent(1.0), descent(1.0), each=each, **LOCKSTEP) as both:
        looks_for(both[0].status().address, **told)
        drive(both, 2, lambda i, s: 1.0)
        settle(both)
        assert [p.name for p in both[0].status().roster] == ["b"]
        assert [event.facts["peer"] for event in watch.of("met")] == ["b"]
        assert watch.of("refused") == []


def test_a_learner_in_plaintext_lets_nobody_with_credentials_in(tmp_path: Path) -> None:
    with cluster(descent(1.0), descent(1.0), **LOCKSTEP) as both:
        looks_for(both[0].status().address, credentials=Credentials.secret(secret_in(tmp_path)))
        assert [p.name for p in both[0].status().roster] == ["b"]
        assert both[0].status().security == LOCAL


def test_wrong_files_raise_before_anything_starts(tmp_path: Path) -> None:
    directory = files_of(tmp_path / "a", new_authority(), "a", begin=-9 * DAY, end=-DAY)
    with pytest.raises(UsageError, match=r"credentials must be valid now, got .* expired on 20"):
        MendOptimizer(
            descent(1.0), name="a", listen=LOOPBACK, credentials=Credentials.files(directory)
        )


def test_without_peers_no_file_is_read() -> None:
    inner = descent(1.0)
    optimizer = MendOptimizer(inner, name="a", credentials=Credentials.secret("nowhere"))
    assert optimizer.status().security == ""


def test_the_environment_secures_a_learner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEND_SECRET_FILE", str(secret_in(tmp_path)))
    with cluster(descent(1.0), descent(1.0), **LOCKSTEP) as both:
        drive(both, 1, lambda i, s: 1.0)
        assert both[0].status().security.startswith("mutual TLS (secret)")


def test_going_without_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    with closing(MendOptimizer(descent(1.0), name="a", listen="0.0.0.0:0", insecure=True)) as bare:
        assert bare.status().security == INSECURE
    said = [r.getMessage() for r in caplog.records if "insecure" in r.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("a: insecure=True: links are neither encrypted nor authenticated")


class Everything:
    """All bytes that a run shows or leaves behind."""

    def __init__(self) -> None:
        self.bytes = b""

    def add(self, shown: object) -> None:
        self.bytes += shown if isinstance(shown, bytes) else str(shown).encode()


@pytest.mark.parametrize("made", [each_with_files, each_that_signs, each_with_secret])
def test_no_secret_is_in_a_repr_log_pickle_state_ledger_or_event(
    made: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    each, watches = made(tmp_path), [Watch(), Watch()]
    shown = Everything()
    ledger = tmp_path / "ledger.jsonl"
    each[0] |= {"ledger": ledger, "on_event": watches[0]}
    each[1] |= {"on_event": watches[1]}
    with (
        caplog.at_level(logging.DEBUG),
        cluster(descent(1.0), descent(2.0), each=each, **LOCKSTEP) as both,
    ):
        looks_for(both[0].status().address)
        drive(both, 3, wave)
        settle(both)
        a = both[0]
        learner = a._learner
        assert learner is not None
        transport = learner.network.transport
        identity = transport._security._identity  # type: ignore[attr-defined]
        notary = transport.notary
        shown_things = (a, a._run, a._run.settings, learner, transport, transport._security)
        for thing in (*shown_things, notary, getattr(notary, "_keys", None)):
            shown.add(repr(thing))
            shown.add(vars(thing) if hasattr(thing, "__dict__") else "")
        saved = io.BytesIO()
        torch.save(a.state_dict(), saved)
        shown.add(saved.getvalue())
        saved = io.BytesIO()
        torch.save(a, saved)
        shown.add(saved.getvalue())
        shown.add(pickle.dumps(a))
        shown.add(pickle.dumps(copy.deepcopy(a)))
        shown.add(repr(a.status()))
        shown.add(repr(transport._hello()))
    assert watches[0].events
    for watch in watches:
        shown.add([(event, event.facts) for event in watch.events])
    shown.add(ledger.read_bytes())
    shown.add(caplog.text)
    assert b"mutual TLS" in shown.bytes
    secrets = [identity.key.splitlines()[1]]
    credentials = each[0]["credentials"]
    if credentials.path.is_file():
        text = credentials.path.read_bytes().strip().partition(b":")[2]
        secrets += [text, text[: SECRET_BYTES // 2]]
    assert [secret for secret in secrets if secret in shown.bytes] == []


def test_a_pickle_has_no_path_of_credentials_either(tmp_path: Path) -> None:
    file = secret_in(tmp_path)
    with closing(
        MendOptimizer(descent(1.0), listen=LOOPBACK, credentials=Credentials.secret(file))
    ) as optimizer:
        assert str(file) in repr(optimizer._run.settings)
        assert str(file).encode() not in pickle.dumps(optimizer)
        copied = copy.deepcopy(optimizer)
        assert copied._run.settings.place is None


def test_a_class_of_wrapped_optimizers_takes_credentials(tmp_path: Path) -> None:
    credentials = Credentials.secret(secret_in(tmp_path))
    made = MendOptimizer.of(torch.optim.SGD, listen=LOOPBACK, credentials=credentials)
    again = pickle.loads(pickle.dumps(made))
    with closing(again([torch.nn.Parameter(torch.ones(2))], lr=0.1)) as optimizer:
        assert optimizer.status().security.startswith("mutual TLS (secret)")
