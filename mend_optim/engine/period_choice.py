"""The sealer's choice of the run's next period, by what all learners tell."""

from __future__ import annotations

from mend_optim.engine.effects import Done, Merge
from mend_optim.engine.round_volumes import RoundVolumes
from mend_optim.engine.state import EngineState
from mend_optim.engine.stragglers import Stragglers
from mend_optim.protocol.messages import nbytes


class PeriodChoice:
    """Chooses the period that the seals of fragment 0 tell."""

    def __init__(self, state: EngineState, stragglers: Stragglers) -> None:
        self.state = state
        self.stragglers = stragglers
        self.volumes = RoundVolumes()

    def next(self, job: Merge, done: Done) -> int:
        """The period of the run after this round; 0 if it is fixed."""
        state = self.state
        if state.policies.auto is None:
            return 0
        # The sealer's own rounds are quicker than the others': one of few does not speak for them.
        told = [state.latency.median, *(beat.latency for beat in state.beats())]
        known = [latency for latency in told if latency]
        if 2 * len(known) <= len(told):
            return state.schedule.sync_every
        # The first learner at its boundary begins a round.
        fastest_s = self.stragglers.least_step_s(offer.peer for offer in job.offers if offer.steps)
        volume = self._volume(job, done)
        return state.policies.auto.next(state.schedule.sync_every, known, volume, fastest_s)

    def _volume(self, job: Merge, done: Done) -> float:
        """The bytes of the busiest learner while the whole model is merged once."""
        state = self.state
        # Buffers are few beside the parameters.
        parts = [f.fragment for f in state.fragments if not state.is_buffers(f.fragment)]
        up = max(nbytes(offer.sections) for offer in job.offers)
        by_fragment = state.sealers()
        sealers = {p: by_fragment[p] for p in parts}
        return self.volumes.of_busiest(sealers, len(job.offers), up + nbytes(done.sections))
