"""The tensor side of a learner: the anchors of all fragments, and the engine's jobs on them.

The engine decides, in plain data. The merge worker performs the engine's jobs on an `Anchors`, one
at a time and in order, and reports the results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from torch import Tensor

from mend_optim.codecs.buffers import Buffers
from mend_optim.codecs.packing import as_bytes
from mend_optim.codecs.registry import Codec
from mend_optim.engine.effects import (
    Advance,
    Agree,
    Attest,
    Done,
    Export,
    Extend,
    Found,
    Inspect,
    Install,
    Job,
    Join,
    Merge,
    Prepare,
    Reoffer,
    Retake,
    SealResidual,
)
from mend_optim.engine.moment_schedule import Moment
from mend_optim.errors import PeerError, unreachable
from mend_optim.model.layout import BufferFragment, Fragment, Layout
from mend_optim.protocol.lineage import content_digest, first_genesis
from mend_optim.protocol.messages import Offer, State
from mend_optim.worker.attesting import check_content, content_of
from mend_optim.worker.buffer_anchor import BufferAnchor
from mend_optim.worker.correction import Correction
from mend_optim.worker.fragment_anchor import FragmentAnchor
from mend_optim.worker.hashing import Hashing
from mend_optim.worker.offer_sizes import Guard, outsized_in
from mend_optim.worker.outer import Outer
from mend_optim.worker.signing import Signing


class Anchors:
    """The anchors of every fragment, used by one thread at a time.

    Args:
        layout: the fragments.
        weights: the first anchor of each fragment: flat float32, or the bytes of the buffers; owned
            by this object from now on.
        codec: encodes offers and, if it says so, merged deltas.
        outer: the outer optimizer.
        scheme: how offers are merged, one of `MERGES`.
        buffers: the pool for all other tensors.
        moments: the inner optimizer's moments.
        guard: when an offer is too large to be merged.
    """

    def __init__(
        self,
        layout: Layout,
        weights: Sequence[Tensor],
        *,
        codec: Codec,
        outer: Outer,
        scheme: str,
        buffers: Buffers,
        moments: Sequence[Moment] = (),
        guard: Guard | None = None,
    ) -> None:
        self.layout = layout
        self.codec = codec
        self.outer = outer
        self.scheme = scheme
        self.buffers = buffers
        self.moments = moments
        self.guard = guard
        #: Signs offers and checks signatures; None: they are not signed. Set before the first job.
        self.signing: Signing | None = None
        #: Brings a new correction to where the parameters are. Set before the first job, too.
        self.bring: Callable[[Correction], Correction] = lambda correction: correction
        #: Whether the weights are first weights that an optimizer has trained before.
        self.were_trained = False
        #: Hashes the bytes of all messages.
        self.hashing = Hashing()
        self.fragments: list[FragmentAnchor | BufferAnchor] = []
        #: The fragments of which the engine has not heard what residual came with a checkpoint.
        self._loaded: set[int] = set()
        for fragment, anchor in zip(layout.fragments, weights, strict=True):
            self._add(fragment, anchor)

    def _add(self, fragment: Fragment, weights: Tensor) -> None:
        if isinstance(fragment, BufferFragment):
            self.fragments.append(BufferAnchor(fragment, weights, self.buffers))
            return
        self.fragments.append(
            FragmentAnchor(
                fragment,
                weights,
                codec=self.codec,
                outer=self.outer,
                scheme=self.scheme,
                buffers=self.buffers,
                moments=self.moments,
                guard=self.guard,
                hashing=self.hashing,
            )
        )

    def genesis(self) -> bytes:
        """The genesis of the weights, if they are first weights."""
        return first_genesis(self.digest(), self.were_trained)

    def digest(self) -> bytes:
        """The digest of all anchors' bytes."""
        return content_digest(*(as_bytes(fragment.theta) for fragment in self.fragments))

    def perform(self, job: Job) -> tuple[Done, tuple[Correction, ...]]:
        """Do one job. Returns the result for the engine, and the corrections for the training
        thread. A peer's garbage becomes a `fault`, never an exception."""
        try:
            match job:
                case Advance():
                    if self.signing:
                        self.signing.advance(job)
                    correction = self.fragments[job.seal.fragment].advance(job)
                    told = self._seal_residuals([job.seal.fragment])
                    done = Done(outsized=outsized_in(job.seal), seal_residuals=told)
                    return done, (correction,)
                case Install():
                    return self._install(job)
                case Agree():
                    return Done(), (self.fragments[job.fragment].agree(),)
                case Retake():
                    return Done(), (self.fragments[job.fragment].retake(),)
                case _:
                    return self._make(job), ()
        except PeerError as error:
            return Done(fault=str(error)), ()

    def _make(
        self, job: Prepare | Reoffer | Extend | Inspect | Join | Merge | Found | Export | Attest
    ) -> Done:
        """Do a job that changes nothing for the training thread."""
        match job:
            case Prepare():
                return self._prepared(self.fragments[job.fragment].prepare(job))
            case Reoffer():
                return self._prepared(self.fragments[job.fragment].reoffer(job))
            case Extend():
                self.layout = job.layout
                self._add(job.layout.fragments[-1], job.tensor)
                return Done(digest=content_digest(as_bytes(job.tensor)))
            case Inspect():
                return self._inspect(job.offer)
            case Join():
                fragment = self.fragments[job.fragment]
                assert isinstance(fragment, FragmentAnchor)
                return fragment.join(job)
            case Merge():
                done = self.fragments[job.fragment].merge(job)
                return self.signing.merged(job, done) if self.signing else done
            case Found():
                return self._found(job)
            case Export():
                return self.fragments[job.fragment].export()
            case Attest():
                attested = self.fragments[job.fragment].attested()
                return Done(digest=content_of(attested, self.hashing))
            case _:
                unreachable(job)

    def _prepared(self, done: Done) -> Done:
        return self.signing.prepared(done) if self.signing else done

    def _inspect(self, offer: Offer) -> Done:
        if self.signing:
            self.signing.inspect(offer)
            if not offer.steps:
                return Done()
        return self.fragments[offer.fragment].inspect(offer)

    def _install(self, job: Install) -> tuple[Done, tuple[Correction, ...]]:
        """Take whole anchors: all of them, or none if one is bad."""
        for i, state in enumerate(job.states):
            try:
                self._verify(state, job.contents[i] if job.contents else b"")
            except PeerError as error:
                return Done(fault=str(error), refused=i), ()
        corrections = tuple(self.fragments[s.fragment].install(s, job) for s in job.states)
        told = self._seal_residuals([state.fragment for state in job.states])
        return Done(seal_residuals=told), corrections

    def _verify(self, state: State, expected: bytes) -> None:
        """Raise `PeerError` unless a whole anchor is what it says, and what others expect it to be,
        if they do."""
        fragment = self.fragments[state.fragment]
        fragment.verify(state)
        if expected:
            check_content(state, fragment.attested(), expected, self.hashing)

    def _found(self, job: Found) -> Done:
        # A group may have been added since the copies were made.
        for fragment, weights in zip(self.fragments, job.tensors, strict=False):
            fragment.refuse_strange(weights)
        for p, weights in enumerate(job.tensors):
            self.fragments[p].found(weights, job.moments[p] if job.moments else None)
        told = self._seal_residuals(range(len(job.tensors)))
        return Done(digest=self.digest(), seal_residuals=told)

    def _seal_residuals(self, changed: Iterable[int]) -> dict[int, SealResidual]:
        """The accounts of the fragments that have changed, and of those that were loaded."""
        told = {}
        for p in sorted({*changed, *self._loaded}):
            fragment = self.fragments[p]
            if isinstance(fragment, FragmentAnchor):
                told[p] = SealResidual(fragment.payload.held, fragment.payload.dropped)
        self._loaded.clear()
        return told

    def save(self, p: int) -> dict[str, Tensor]:
        """Copies of all tensors of fragment `p`, by the names they have in a checkpoint."""
        return self.fragments[p].save()

    def load(self, p: int, tensors: Mapping[str, Tensor], given_up: Tensor | None = None) -> None:
        """Take copies of what `save` returned. `given_up`: a residual of seals that is left out."""
        fragment = self.fragments[p]
        fragment.load(tensors)
        if given_up is not None and isinstance(fragment, FragmentAnchor):
            fragment.payload.give_up(given_up)
        self._loaded.add(p)

    def copies(self) -> list[Tensor]:
        """Copies of all anchors."""
        return [fragment.copy() for fragment in self.fragments]
