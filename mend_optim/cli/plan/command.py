"""`mend plan` at the shell."""

from __future__ import annotations

import argparse

from mend_optim.cli.plan.model import Setup
from mend_optim.cli.plan.quantities import count_given, rate_given, seconds_given
from mend_optim.cli.plan.text import plan_of
from mend_optim.errors import require

DESCRIPTION = (
    "Say what a run on a link would be like, and suggest a codec and a number of fragments."
)
EPILOG = """\
  mend plan --params 1.3e9 --link 50mbit --rtt 40ms --step 0.8s --learners 4

--link is what each learner can send, and receive at the same time. If your link is slower one way,
give the slower one. --step is the time of an inner step on your machine, as your script shows it.
"""
MOST = 256


def configure(parser: argparse.ArgumentParser) -> None:
    """Give the parser this command's arguments."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    add = parser.add_argument
    add("--params", required=True, metavar="N", help="parameters of the model: 1.3e9, 350M")
    add("--link", required=True, metavar="RATE", help="of each learner: 50mbit, 1gbit, 6MB/s")
    add("--rtt", default="40ms", metavar="TIME", help="there and back; default: 40ms")
    add("--step", required=True, metavar="TIME", help="of an inner step: 0.8s, 250ms")
    add("--learners", type=int, required=True, metavar="N", help="how many there will be")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Print the plan. Returns the exit status."""
    require(2 <= given.learners <= MOST, "--learners", given.learners, f"an int from 2 to {MOST}")
    setup = Setup(
        params=count_given("--params", given.params),
        bits_per_s=rate_given("--link", given.link),
        rtt_s=seconds_given("--rtt", given.rtt),
        step_s=seconds_given("--step", given.step),
        learners=given.learners,
    )
    print(plan_of(setup))
    return 0
