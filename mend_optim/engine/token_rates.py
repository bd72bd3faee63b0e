"""Whether learners count their tokens alike.

Work is weighed by its tokens, and by default by its batch, too. If one learner counts the bytes of
its batches, and another one nothing but steps, then the work of the latter weighs next to nothing.
No error shows that: both go on, and one of the two has trained for nothing."""

from __future__ import annotations

from mend_optim.engine.ledger import Event
from mend_optim.engine.policies import FACTORS
from mend_optim.engine.state import EngineState
from mend_optim.protocol.messages import Beat

#: Steps after which a learner's tokens per step are compared.
FEWEST_STEPS = 10
#: A step of one learner may weigh so many times as much as one of another: machines differ.
MOST = 1000
UNEVEN = (
    "{} counts {:.4g} tokens per step, and this learner {:.4g}: work is weighed by its tokens, so "
    "that of one of the two counts for next to nothing; call count_tokens() on all learners or on "
    'none, or pass weighting="uniform" to all'
)


class TokenRates:
    """Tells the user of a peer whose step weighs more than `MOST` times as much as one of this
    learner, or less than a `MOST`-th. By tokens and batch, that is 100 times as many tokens."""

    def __init__(self, state: EngineState) -> None:
        self.state = state
        #: Whether the user was told, and there is still such a peer. Beside one learner that counts
        #: in another way, all others are news.
        self._is_told = False

    def look(self) -> None:
        """At every beat: compare the tokens that the peers have told."""
        state = self.state
        own = _rate(state.totals.tokens, state.totals.step)
        factor = FACTORS.get(state.policies.weighting)
        if not own or factor is None or not state.policies.weighs_work:
            return
        ratios = ((beat, _ratio(own, _rate_of(beat))) for beat in state.live_beats())
        uneven = [beat for beat, ratio in ratios if ratio * factor(ratio) > MOST]
        if uneven and not self._is_told:
            most = max(uneven, key=lambda beat: (_ratio(own, _rate_of(beat)), beat.peer))
            self._tell(most, own)
        self._is_told = bool(uneven)

    def _tell(self, beat: Beat, own: float) -> None:
        peer, theirs = beat.peer, _rate_of(beat)
        facts = {"peer": peer.name, "incarnation": peer.incarnation, "theirs": theirs, "own": own}
        self.state.emit(Event("uneven", UNEVEN.format(peer.name, theirs, own), facts))


def _rate(tokens: int, steps: int) -> float:
    """Tokens per step; 0 if that cannot be compared."""
    return tokens / steps if steps >= FEWEST_STEPS else 0.0


def _rate_of(beat: Beat) -> float:
    return _rate(beat.tokens, beat.step)


def _ratio(one: float, other: float) -> float:
    """How many times one rate is the other; 1 if one of them cannot be compared."""
    return max(one / other, other / one) if one and other else 1.0
