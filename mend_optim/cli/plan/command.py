"""`mend plan` at the shell."""

from __future__ import annotations

import argparse
import math
import re

from mend_optim.cli.plan.model import Setup
from mend_optim.cli.plan.quantities import PARAMETERS, RATE, ROUND_TRIP, STEP
from mend_optim.cli.plan.text import plan_of
from mend_optim.errors import UsageError, require

DESCRIPTION = (
    "Say what a run on a link would be like, and suggest a codec and a number of fragments."
)
EPILOG = """\
  mend plan --params 1.3e9 --link 50mbit --rtt 40ms --step 0.8s --learners 4

  mend plan --params 350M --link 1gbit --step 0.8s --zones 4,4 --site-link 50mbit

--link is what each learner can send, and receive at the same time. If your link is slower one way,
give the slower one. A small b is a bit, and a capital B a byte: 50Mb/s and 50Mbps are 50mbit, and
6MB/s are 48mbit. --step is the time of an inner step on your machine, as your script shows it.
--zones are the learners at each site, all of which have the same zone=; a learner in no zone is a
site of one. The plan then says what crosses between the sites, with zone= set and without.
--site-link is what all learners of a site share to send to the other sites, and to receive.
"""
MOST = 256
AS_MANY = f"an int from 2 to {MOST}"
AS_RANKS = "processes on one machine or a fast network can be ranks of one learner"
LEAVE_OUT = "--zones says how many there are; leave --learners out"
ZONES = re.compile(r"\s*[0-9]{1,4}\s*(,\s*[0-9]{1,4}\s*)+")


def configure(parser: argparse.ArgumentParser) -> None:
    """Give the parser this command's arguments."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    add = parser.add_argument
    add("--params", required=True, metavar="N", help="parameters of the model: 1.3e9, 350M")
    add("--link", required=True, metavar="RATE", help="of each learner: 50mbit, 1gbit, 6MB/s")
    add("--rtt", default="40ms", metavar="TIME", help="there and back; default: 40ms")
    add("--step", required=True, metavar="TIME", help="of an inner step: 0.8s, 250ms")
    add("--learners", type=int, metavar="N", help="how many there will be; or give --zones")
    add("--zones", metavar="N,N", help="how many each site has, if sites are zones: 4,4")
    add("--site-link", metavar="RATE", help="of each site to the others; default: no limit")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Print the plan. Returns the exit status."""
    sites = _sites(given.zones) if given.zones is not None else ()
    learners = sum(sites) if given.learners is None and sites else given.learners
    if learners is None:
        raise UsageError(f"--learners is missing; give {AS_MANY}, or --zones")
    require(learners >= 2, "--learners", learners, AS_MANY, "a learner alone sends nothing")
    require(learners <= MOST, "--learners", learners, AS_MANY, AS_RANKS)
    require(not sites or sum(sites) == learners, "--learners", learners, f"{sum(sites)}", LEAVE_OUT)
    site_link = given.site_link
    is_apart = site_link is None or bool(sites)
    require(is_apart, "--site-link", site_link, "given with --zones", "give --zones, too")
    setup = Setup(
        params=PARAMETERS.read("--params", given.params),
        bits_per_s=RATE.read("--link", given.link),
        rtt_s=ROUND_TRIP.read("--rtt", given.rtt),
        step_s=STEP.read("--step", given.step),
        learners=learners,
        sites=sites,
        site_bits_per_s=math.inf if site_link is None else RATE.read("--site-link", site_link),
        zoned=bool(sites),
    )
    print(plan_of(setup))
    return 0


def _sites(words: str) -> tuple[int, ...]:
    """How many learners each site has."""
    sites = tuple(map(int, words.split(","))) if ZONES.fullmatch(words) else ()
    is_good = bool(sites) and min(sites) >= 1 and sum(sites) <= MOST
    bound = f"the learners at each of two sites or more, such as 4,4, of {MOST} at most"
    require(is_good, "--zones", words, bound)
    return sites
