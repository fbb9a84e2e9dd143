"""What each party of a deployment kept of a training, read from its own folder after the fact."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedrec.cli.disclosure.aggregator import aggregator as inspect_aggregator
from fedrec.cli.disclosure.client import client as inspect_client
from fedrec_simulations.demo.parties import Deployment


@dataclass(frozen=True)
class Training:
    """One training as its parties kept it: rounds, users enrolled and the fewest that were counted
    in a round, attempts of all rounds.

    faults: what of it does not hold, in words: a round without somebody, a charge too many or too
    few, a release that is not as recorded.
    """

    run: str
    rounds: int
    enrolled: int
    counted: int
    attempts: int
    faults: tuple[str, ...]


def training(there: Deployment, number: int) -> Training:
    """Return the evidence of a training, counted from 0. The parties may be running."""
    run = there.runs[number].run
    lines = there.lines(number)
    people = there.files.holdings.num_users
    counted = min((line["reported"] for line in lines), default=0)
    attempts = sum(line["attempt"] for line in lines)
    return Training(
        run, len(lines), people, counted, attempts, tuple(_faults(there, run, lines, people))
    )


def _faults(
    there: Deployment, run: str, lines: Sequence[Mapping[str, Any]], people: int
) -> Iterator[str]:
    released = [name for line in lines for name in line["releases"]]
    if small := [line["round"] for line in lines if line["reported"] != people]:
        yield f"rounds {small} of {run} were released without somebody"
    for party in there.files.aggregators:
        yield from _faults_of(
            party,
            inspect_aggregator(there.files.state(party), None),
            run,
            lines,
            released,
            alone=not there.files.of_three,
        )
    for shard in there.files.shards:
        charges = [
            one
            for one in inspect_client(there.files.state(shard.name), None)["charges"]
            if one["run"] == run
        ]
        if [(one["round"], name) for one in charges for name in one["releases"]] != [
            (line["round"], name) for line in lines for name in line["releases"]
        ]:
            yield (
                f"{shard.name} charged {[name for one in charges for name in one['releases']]} "
                f"in {run}, released were {released}"
            )


def _faults_of(
    party: str,
    found: Mapping[str, Any],
    run: str,
    lines: Sequence[Mapping[str, Any]],
    released: Sequence[str],
    *,
    alone: bool,
) -> Iterator[str]:
    """Yield the faults of one aggregator. alone: what it keeps is what the server fetched, and not
    one of three parts of it."""
    charged = [charge["release"] for charge in found["charges"] if charge["run"] == run]
    if charged != released:
        yield f"the {party} charged {charged} in {run}, released were {released}"
    kept = [
        (one["round"], one["reported"], one["release_sha256"] if alone else "")
        for one in found["rounds"]
        if one["run"] == run
    ]
    if kept != [(line["round"], line["reported"], line["release_sha256"]) for line in lines]:
        yield f"the {party}'s releases of {run} are not those that the server keeps"
    if not all(one["release"]["as_recorded"] for one in found["rounds"] if one["run"] == run):
        yield f"a release of {run} is not as the {party}'s ledger says"
