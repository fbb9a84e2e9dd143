"""`python -m tests.simulation`: the protocol through seeded faults, and what must hold after each
run: lost, late, repeated, reordered and damaged messages, restarts at every durable step, full
disks, jumping clocks.

--kill starts deployments of real processes instead, trains twice in each, serves and asks, and ends
random processes with kill -9 meanwhile. Each model must be, byte for byte, what one process makes
of the same data, everybody be counted in every round, and every release and answer be charged once.
A hundred kills take some minutes to an hour, depending on the machine. --stop sends SIGTERM instead.
--starve and --cut end nobody: random processes may open no further file or connection for a while;
all connections are slow and stall, and random parties are cut off for a while.

--three-party runs three aggregators through lost, late and repeated messages, restarts, full disks
and jumping clocks. What leaves three must be the exact sum of its users and three noises, charged
once by each. With --kill and the like, the deployments of real processes have three aggregators, which check clients. --each-moment
ends each aggregator at each step of a training, in turn.

    python -m tests.simulation --runs 10000
    python -m tests.simulation --kill 200
    python -m tests.simulation --stop 60
    python -m tests.simulation --starve 60
    python -m tests.simulation --cut 60
    python -m tests.simulation --three-party --runs 1000
    python -m tests.simulation --three-party --each-moment
"""

from __future__ import annotations

import argparse
import sys

from fedrec.errors import FedRecError
from tests.simulation import kills, many
from tests.simulation.script import Setup, Topology


def run(arguments: list[str]) -> str:
    """What came of it, in words. Raises ProtocolError where a rule does not hold."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=1_000, metavar="N", help="how many seeded runs")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the first run")
    parser.add_argument("--show", action="store_true", help="print the first run too")
    for kind, (words, _) in kills.FAULTS.items():
        parser.add_argument(f"--{kind}", type=int, metavar="N", help=f"instead: N {words}")
    parser.add_argument("--three-party", action="store_true", help="three aggregators, not one")
    parser.add_argument("--each-moment", action="store_true", help="each end of an aggregator")
    asked = parser.parse_args(arguments)
    faults = {kind: count for kind in kills.FAULTS if (count := getattr(asked, kind))}
    if faults and (asked.show or asked.each_moment or len(faults) > 1):
        each = ", ".join(f"--{kind}" for kind in kills.FAULTS)
        parser.error(f"{each}: one alone, and of the others --seed and --three-party")
    for kind, count in faults.items():
        return kills.run(
            faults=count,
            kind=kind,
            seed=asked.seed,
            three_party=asked.three_party,
            tell=lambda words: print(words, file=sys.stderr),
        )
    topology = Topology(3 if asked.three_party else 1)
    if asked.each_moment:
        return many.at_each_step(Setup(min_cohort=2, topology=topology, checked=asked.three_party))
    return many.run(runs=asked.runs, seed=asked.seed, topology=topology, show=asked.show)


if __name__ == "__main__":
    try:
        print(run(sys.argv[1:]))
    except FedRecError as failure:
        sys.exit(f"{failure.cause}\n{failure.remedy}")
