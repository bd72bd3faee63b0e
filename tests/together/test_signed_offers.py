"""Learners that sign their offers merge as they do without. Nobody among them can invent, change or
repeat a member of a round, or offer the work of another, and their ledgers prove who took part."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mend_optim import Credentials, MendOptimizer
from mend_optim.cli.command import main
from mend_optim.engine.effects import PASS_ON, Done, Merge
from mend_optim.engine.policies import weights
from mend_optim.engine.round import Round
from mend_optim.membership.graves import LEFT
from mend_optim.protocol.lineage import Claim, Entry, PeerId
from mend_optim.protocol.messages import PROOFS, SIZES, Beat, Message, Offer, Rumor, Seal
from mend_optim.protocol.proofs import Notary, Proof, proofs_in, signed
from mend_optim.protocol.statement import decode, encode, pack
from mend_optim.transport.security.issuing import Authority
from mend_optim.worker.offer_sizes import Judged, sizes_packet
from mend_optim.worker.seal_payload import payload_digest
from tests.support.certificates import files_of, new_authority
from tests.support.learners import (
    LOCKSTEP,
    LOOPBACK,
    Watch,
    cluster,
    descent,
    drive,
    parameters,
    same,
    settle,
    step,
    together,
    until,
    wave,
)

from tests.support.unproven import unproven  # isort: skip - needs the extra

pytestmark = pytest.mark.usefixtures("no_environment")


def each_signed(
    folder: Path, names: str, signed: bool = True, authority: Authority | None = None
) -> list[dict[str, Any]]:
    """The options of learners with these names, each with a certificate."""
    authority = authority or new_authority()
    folder.mkdir(exist_ok=True)
    return [
        {"credentials": Credentials.files(files_of(folder / name, authority, name), signed=signed)}
        for name in names
    ]


def trained(each: list[dict[str, Any]], **options: Any) -> list[MendOptimizer]:
    """Learners that have trained together for six steps, closed."""
    inners = [descent(1.0, 2.0) for _ in each]
    common = {**LOCKSTEP, "quorum": len(each), **options}
    with cluster(*inners, each=each, **common) as learners:
        drive(learners, 6, wave)
        settle(learners)
        assert all(not optimizer.status().refused for optimizer in learners)
        assert all(optimizer.status().rounds_adopted for optimizer in learners)
    return learners


@pytest.mark.parametrize("codec", ["none", "int8"])
def test_learners_that_sign_train_the_same_model(codec: str, tmp_path: Path) -> None:
    signed = trained(each_signed(tmp_path / "with", "abc"), codec=codec)
    unsigned = trained(each_signed(tmp_path / "without", "abc", False), codec=codec)
    for one, other in zip(signed, unsigned, strict=True):
        assert same(parameters(one), parameters(other))


def test_the_ledger_proves_who_took_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = new_authority()
    each = each_signed(tmp_path / "pki", "ab", authority=authority)
    each[1]["ledger"] = tmp_path / "ledger.jsonl"
    trained(each)
    lines = each[1]["ledger"].read_text(encoding="utf-8").splitlines()
    rounds = [i for i, line in enumerate(lines) if json.loads(line)["members"]]
    assert len(rounds) >= 6
    assert list(unproven(lines, authority.pem)) == []
    at = rounds[2]
    lie = json.loads(lines[at])
    lie["members"][0]["tokens"] += 1
    changed = [*lines[:at], json.dumps(lie), *lines[at + 1 :]]
    ((number, why),) = unproven(changed, authority.pem)
    assert (number, why) == (
        at + 1,
        "member 'a' is not proven: it has signed something else",
    )
    assert len(list(unproven(lines, new_authority().pem))) == len(rounds)
    status, told = said_by_the_command(each[1]["ledger"], authority, capsys)
    assert status == 0
    assert f"the signatures of {len(rounds)} rounds in these ledgers hold" in told
    each[1]["ledger"].write_text("\n".join(changed), encoding="utf-8")
    status, told = said_by_the_command(each[1]["ledger"], authority, capsys)
    assert status == 1
    assert f"ledger.jsonl:{number}: version {lie['version']} is not proven: {why}" in told
    assert main(["ledger", str(each[1]["ledger"])]) == 1
    assert "have signatures, which were not checked" in capsys.readouterr().out


def said_by_the_command(
    ledger: Path, authority: Authority, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    """The status and the output of the command in docs/security.md."""
    ca = ledger.with_name("ca.pem")
    ca.write_bytes(authority.pem)
    status = main(["ledger", str(ledger), "--ca", str(ca)])
    return status, capsys.readouterr().out


def test_all_learners_sign_or_none(tmp_path: Path) -> None:
    authority = new_authority()
    (one,) = each_signed(tmp_path / "pki", "a", authority=authority)
    (two,) = each_signed(tmp_path / "pki", "b", False, authority=authority)
    watch = Watch()
    with (
        closing(MendOptimizer(descent(1.0), name="a", listen=LOOPBACK, **one)) as a,
        closing(
            MendOptimizer(
                descent(1.0),
                name="b",
                listen=LOOPBACK,
                peers=[a.status().address],
                on_event=watch,
                **two,
            )
        ),
    ):
        (refused,) = watch.until("refused")
        assert "credentials.signed: here absent, there True" in refused.facts["reason"]


def test_a_checkpoint_of_another_learner_brings_its_anchors_alone(tmp_path: Path) -> None:
    """Only the learner that trained may offer its work; a second one from its checkpoint drops it,
    and the rounds go on."""
    authority = new_authority()
    names = "abc"
    each = each_signed(tmp_path / "pki", names, authority=authority)
    told: dict[str, Any] = {"sync_every": 4, "merge": "mean"}
    with cluster(descent(1.0), descent(1.0), each=each[:2], **told) as both:
        drive(both, 6, wave)
        saved = both[0].state_dict()
        unmerged = both[0].status().unmerged_tokens
        weights_then = [p.clone() for p in parameters(both[0])]
    assert unmerged > 0
    watch = Watch()
    each[1] |= {"on_event": watch}
    with cluster(descent(1.0), descent(1.0), each=each[:2], started=False, **told) as both:
        for optimizer in both:
            optimizer.load_state_dict(saved)
            for parameter, value in zip(parameters(optimizer), weights_then, strict=True):
                parameter.copy_(value)
        drive(both, 6, wave)
        settle(both)
        assert [o.status().refused for o in both] == [(), ()]
        assert len({o.status().fragments[0].digest for o in both}) == 1
        assert both[0].status().dropped_tokens == 0
        assert both[1].status().dropped_tokens == unmerged
        (restored,) = watch.until("restored")
        assert "a checkpoint of a, which alone may offer its work" in restored.text


# ── an insider that seals ─────────────────────────────────────────────────────────────────────────

Told = tuple[tuple[Entry, ...], list[Proof]]
PHANTOM = PeerId("phantom", 1)


def change_tokens(members: tuple[Entry, ...], proofs: list[Proof], at: int, _: Notary) -> Told:
    changed = members[at]._replace(tokens=members[at].tokens + 1)
    return (*members[:at], changed, *members[at + 1 :]), proofs


def sign_for_another(
    members: tuple[Entry, ...], proofs: list[Proof], at: int, notary: Notary
) -> Told:
    """An offer has other tokens, and the sealer has signed that in the author's name."""
    told = decode(proofs[at].statement)
    forged = notary.sign(encode(told._replace(tokens=told.tokens + 1)))
    changed, _ = change_tokens(members, proofs, at, notary)
    return changed, [*proofs[:at], forged, *proofs[at + 1 :]]


def invent(members: tuple[Entry, ...], proofs: list[Proof], at: int, notary: Notary) -> Told:
    """A learner that nobody knows took part, too."""
    told = decode(proofs[at].statement)
    statement = told._replace(sender=PHANTOM, claim=Claim(PHANTOM, 0))
    phantom = members[at]._replace(peer=PHANTOM, seq=statement.seq)
    return (*members, phantom), [*proofs, notary.sign(encode(statement))]


def double(members: tuple[Entry, ...], proofs: list[Proof], at: int, notary: Notary) -> Told:
    """Each learner counts once more, with nothing."""
    return (*members, *(Entry(m.peer, 0, 0, 0) for m in members)), [*proofs, *proofs]


LIES = {
    change_tokens: "is not proven: it has signed something else",
    sign_for_another: "an offer of …",
    invent: "an offer of …",
    double: "it has two members of one learner",
}


def lie_about(optimizer: MendOptimizer, lie: Callable[..., Told]) -> None:
    """From here on, each seal of this learner tells that of its members, and is right otherwise."""
    learner = optimizer._learner
    assert learner is not None
    notary, sealer = learner.network.transport.notary, learner.engine.sealer
    honest = sealer._seal

    def lying(job: Merge, done: Done, round: Round) -> Seal:
        seal = honest(job, done, round)
        others = [i for i, m in enumerate(seal.members) if m.steps and m.peer != learner.me]
        if not others:
            return seal
        proofs = proofs_in(seal.sections[PROOFS].data, len(seal.members))
        members, proofs = lie(seal.members, proofs, others[0], notary)
        packet = replace(
            seal.sections[PROOFS], data=memoryview(pack(proof.packed() for proof in proofs))
        )
        weighed = tuple(weights(learner.engine.state.policies.weighting, members))
        sizes = sizes_packet([Judged(0.0) for _ in members], {})
        sections = {**done.sections, SIZES: sizes, PROOFS: packet}
        payload = payload_digest({k: v for k, v in sections.items() if k != PROOFS}, weighed)
        return replace(
            seal,
            key=job.base.seal(members, payload).key,
            members=members,
            weights=weighed,
            payload=payload,
            sections=sections,
        )

    with learner.mutex:
        sealer._seal = lying  # type: ignore[method-assign]


def is_sealer(optimizer: MendOptimizer) -> bool:
    assert optimizer._learner is not None
    state = optimizer._learner.engine.state
    return state.roster.sealer(0) == state.me


def refusals(optimizer: MendOptimizer, peer: str) -> list[str]:
    """Why this learner has refused something of that peer."""
    assert optimizer._learner is not None
    counted = optimizer._learner.engine.state.refusals.counted()
    return [refused.reason for refused in counted if refused.peer == peer]


@pytest.mark.parametrize("lie", LIES)
def test_m4_a_sealer_that_lies_about_its_members_is_refused_and_named(
    lie: Callable[..., Told], tmp_path: Path
) -> None:
    each = each_signed(tmp_path / "pki", "abc")
    inners = [descent(1.0, 2.0) for _ in each]
    with cluster(*inners, each=each, merge="mean", sync_every=2, quorum=3) as three:
        (liar,) = filter(is_sealer, three)
        name = liar._run.settings.name
        lie_about(liar, lie)
        drive(three, 4, wave)
        settle(three)
        told = [refusals(optimizer, name) for optimizer in three if optimizer is not liar]
        assert all(told)
        assert any(LIES[lie] in reason for reasons in told for reason in reasons)
        # The liar's merge still reached them as a whole anchor, which proves nothing.
        assert len({optimizer.status().fragments[0].digest for optimizer in three}) == 1


# ── an insider that offers ────────────────────────────────────────────────────────────────────────


def offer_as(optimizer: MendOptimizer, change: Callable[[Offer], Offer]) -> None:
    """From here on, this learner signs and sends its offers with that change."""
    learner = optimizer._learner
    assert learner is not None
    transport = learner.network.transport
    send = transport.send

    def lying(to: PeerId, message: Message, reply: str) -> None:
        if isinstance(message, Offer) and message.steps:
            message = change(message)
        send(to, message, reply)

    transport.send = lying  # type: ignore[method-assign]


def test_m5_the_work_of_another_is_claimed_by_nobody(tmp_path: Path) -> None:
    """An offer in its name would make a learner believe that its own was merged."""
    each = each_signed(tmp_path / "pki", "abc")
    inners = [descent(1.0, 2.0) for _ in each]
    with cluster(*inners, each=each, merge="mean", sync_every=2, quorum=2, grace=0.2) as three:
        (sealer,) = filter(is_sealer, three)
        victim, thief = (optimizer for optimizer in three if optimizer is not sealer)
        theirs = victim._learner.me  # type: ignore[union-attr]
        name = thief._run.settings.name
        offer_as(
            thief,
            lambda offer: replace(
                offer, seq=2**40, tokens=0, inherited=Claim(theirs, offer.follows)
            ),
        )
        drive(three, 6, wave)
        until(sealer, lambda: refusals(sealer, name))
        assert refusals(sealer, name) == ["offer refused: it has the work of …"]
        assert all(together(sealer.synchronize, victim.synchronize))
        for optimizer in (sealer, victim):
            status = optimizer.status()
            assert (status.unmerged_tokens, status.dropped_tokens) == (0, 0)


def test_an_offer_in_the_name_of_one_that_left_is_refused_of_its_bearer(tmp_path: Path) -> None:
    """Nothing but its own signature shows that it made an offer."""
    each = each_signed(tmp_path / "pki", "abc")
    inners = [descent(1.0, 2.0) for _ in each]
    with cluster(*inners, each=each, merge="mean", sync_every=2, quorum=2, grace=0.2) as three:
        (sealer,) = filter(is_sealer, three)
        gone, bearer = (optimizer for optimizer in three if optimizer is not sealer)
        drive(three, 2, wave)
        settle(three)
        state = sealer._learner.engine.state  # type: ignore[union-attr]
        left = gone._learner.me  # type: ignore[union-attr]
        gone.close()
        until(sealer, lambda: left not in state.roster.peers)
        learner = bearer._learner
        assert learner is not None
        transport = learner.network.transport
        forged = Offer(
            peer=left,
            fragment=0,
            seq=state.fragments[0].lineage.last_merged(left) + 1,
            tokens=9,
            steps=1,
            genesis=state.genesis,
            key=state.fragments[0].lineage.key,
            due=True,
            follows=state.fragments[0].lineage.last_merged(left),
        )
        assert transport.notary is not None
        whole = signed(forged, transport.notary)
        learner.network.loop.soon(lambda: transport.send(state.me, whole, PASS_ON))
        until(sealer, lambda: refusals(sealer, learner.me.name))
        assert refusals(sealer, learner.me.name) == ["offer refused: an offer of …"]
        drive([sealer, bearer], 2, wave)
        settle([sealer, bearer])


def train_until_joined(learners: list[MendOptimizer]) -> None:
    """The first learner trains on until the others have its weights, and have stepped."""
    joined = threading.Event()

    def join() -> None:
        together(*(lambda o=o: step(o, 1.0) for o in learners[1:]))
        joined.set()

    def train() -> None:
        while not joined.is_set():
            step(learners[0], 1.0)

    together(join, train)


@pytest.mark.parametrize("is_signed", [True, False])
def test_nobody_says_goodbye_for_a_learner_that_cannot_be_reached(
    tmp_path: Path, is_signed: bool
) -> None:
    """Nobody can dial b and c, so each hears of the other from the hub alone."""
    watch = Watch()
    each = each_signed(tmp_path / "pki", "abc", is_signed)
    each[1] |= {"listen": None, "on_event": watch}
    each[2] |= {"listen": None}
    inners = [descent(1.0, 2.0) for _ in each]
    with cluster(*inners, each=each, started=False, sync_every=100) as three:
        train_until_joined(three)
        hub, b, c = (optimizer._learner for optimizer in three)
        assert hub is not None
        assert b is not None
        assert c is not None
        peers = b.engine.state.roster.peers
        until(three[1], lambda: {"a", "c"} <= set(peers))
        lies: list[Beat] = []

        def lie() -> None:
            """On the network loop: the hub's next beat says that c has left."""
            with hub.mutex:
                told = hub.engine.beats.make()
            lies.append(replace(told, roster=(Rumor(c.me, "", LEFT, left=True),)))
            hub.network.transport.send(b.me, lies[0], "")

        hub.network.loop.soon(lie)
        until(
            three[1],
            lambda: lies and (beat := peers["a"].beat) and beat.count >= lies[0].count,
        )
        assert ("c" in peers) is is_signed
        three[2].close()
        (left,) = watch.until("left")
        assert left.facts["peer"] == "c"
