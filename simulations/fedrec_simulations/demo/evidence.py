"""Evidence of what each party of a deployment received, kept and spent, read from its own folder
and log after the fact."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrec.cli.disclosure.aggregator import aggregator as inspect_aggregator
from fedrec.cli.disclosure.client import client as inspect_client
from fedrec.serving.bundle import FILE
from fedrec_client.serving_ledger import read_answers
from fedrec_simulations.demo.parties import SERVER, SERVING, Deployment, said


@dataclass(frozen=True)
class Seen:
    """One party: what it received and kept, in words, bytes that it took in and gave out, and what
    it cannot know."""

    party: str
    received: str
    kept: str
    bytes_in: int
    bytes_out: int
    cannot_know: str


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


def spent_on_training(there: Deployment) -> dict[str, Any]:
    """Return what every person spent, over all trainings, by the ledger of every aggregator and of
    each site: they must say the same."""
    aggregator, *others = [
        inspect_aggregator(there.files.state(party), None)["spent"]
        for party in there.files.aggregators
    ]
    sites = {
        shard.name: inspect_client(there.files.state(shard.name), None)["spent"]
        for shard in there.files.shards
    }
    [(unit, spent)] = aggregator.items()
    agree = all(ledger == aggregator for ledger in (*others, *sites.values()))
    limit = there.files.job.limit.epsilon
    return {
        "unit": f"per {unit}",
        **spent,
        "limit": limit,
        "trainings": len(there.runs),
        "ledgers_agree": agree,
    }


def seen(
    there: Deployment, answers: Sequence[Mapping[str, Any]], lines: Sequence[Mapping[str, Any]]
) -> list[Seen]:
    """Every party. answers: as `recommend.as_dict` says of each question; lines: of all rounds, as
    the server kept them."""
    return [
        *_sites(there, lines),
        *(_aggregator(there, party) for party in there.files.aggregators),
        _server(there, lines),
        _serving(there, answers),
        _person(there, answers),
    ]


def _sites(there: Deployment, lines: Sequence[Mapping[str, Any]]) -> Iterator[Seen]:
    for shard in there.files.shards:
        state = there.files.state(shard.name)
        found = inspect_client(state, None)
        out = sum(int(one["bytes_sent"]) for one in found["rounds"])
        into = sum(int(run["bytes"]) for run in found["runs"]) + sum(
            int(line["bytes_down"]) for line in lines
        )
        held = (
            f"the ratings of its {shard.events.num_users:,} people; a ledger of "
            f"{len(found['charges'])} charges"
        )
        yield Seen(
            shard.name,
            "the model in training",
            held,
            into,
            out,
            "anything of the other site's people",
        )


def _aggregator(there: Deployment, party: str) -> Seen:
    state = there.files.state(party)
    reports = said(there.files.log(party), event="report")
    users = sum(int(line["accepted"]) for line in reports)
    into = sum(int(line.get("bytes_in", 0)) for line in reports)
    found = inspect_aggregator(state, None)
    out = sum(int(one["release"].get("bytes", 0)) for one in found["rounds"])
    if there.files.of_three:
        kept = (
            f"{len(found['rounds'])} masked parts of sums; a ledger of {len(found['charges'])} "
            "charges; no share"
        )
        received = (
            f"shares of {users:,} reports: under a pseudonym, numbers that say nothing to it alone"
        )
        return Seen(
            party,
            received,
            kept,
            into,
            out,
            "names; a report, unless it works with another aggregator",
        )
    kept = (
        f"{len(found['rounds'])} noised sums; a ledger of {len(found['charges'])} charges; no "
        "report"
    )
    received = f"{users:,} reports: under a pseudonym, which items and how liked"
    return Seen(party, received, kept, into, out, "names; what is asked of serving")


def _server(there: Deployment, lines: Sequence[Mapping[str, Any]]) -> Seen:
    into = sum(int(line["release_bytes"]) for line in lines)
    out = sum(int(line["bytes_down"]) * len(there.files.shards) for line in lines)
    kept = f"{len(there.runs)} models with their bundles, checkpoints"
    return Seen(
        SERVER,
        f"{len(lines)} sums with noise; how many people each site has",
        kept,
        into,
        out,
        "a report, a sum without noise",
    )


def _serving(there: Deployment, answers: Sequence[Mapping[str, Any]]) -> Seen:
    """Its bytes are the device's: it keeps none."""
    paid = read_answers(there.files.root / "person" / "state" / "ledger.sqlite")
    received = (
        f"{len(paid)} questions, {sum(len(answer.sent) for answer in paid)} noised numbers together"
    )
    device = _person(there, answers)
    return Seen(
        SERVING,
        received,
        "nothing of a person",
        device.bytes_out,
        device.bytes_in,
        "a history, a taste",
    )


def _person(there: Deployment, answers: Sequence[Mapping[str, Any]]) -> Seen:
    into = sum(
        (there.folder(number) / FILE).stat().st_size
        for number, run in enumerate(there.runs)
        if run.version
    )
    out = sum(int(one["bytes_left"]) for one in answers)
    lists = f"{len(answers)} lists; {len(there.runs)} public bundles"
    return Seen(
        "the person's device",
        lists,
        "the history; a ledger of its answers",
        into,
        out,
        "anything of other people",
    )


def tail(log: Path, *, lines: int = 12) -> list[str]:
    """The last lines of a log, those of JSON in short."""
    if not log.exists():
        return ["(it wrote no log)"]
    found = [text for text in log.read_text(errors="replace").splitlines() if text.strip()]
    return [_short(text) for text in found[-lines:]]


def _short(text: str) -> str:
    try:
        line = json.loads(text)
        rest = {
            name: value
            for name, value in line.items()
            if name not in ("time", "level", "party", "event")
        }
        return (
            f"{line['time'][11:19]} {line['level']:7} {line['event']} "
            f"{json.dumps(rest) if rest else ''}"
        ).rstrip()
    except (ValueError, KeyError, TypeError, AttributeError):
        return text[:300]
