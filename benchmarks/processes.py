"""Separate processes.

One training by loopback, and the same by an aggregator, a server and two clients as processes of
their own on this machine. Both are timed from the first line of `Training.run` to its last,
validation and checkpoints included. Allowed are the loopback's time, ten seconds a round, most of
which Flower sleeps between polls, and thirty to start. `--data` names the ratings; unsaid, the
small planted ones.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.results import Row, Tables
from fedrec.factorization.facts import public_facts
from fedrec.run.data.datasets import load_dataset, load_split
from fedrec.run.job import LOOPBACK, RuntimeChoice
from fedrec.run.training import Training
from fedrec.settings import validated

CLIENTS = 2
A_ROUND_S = 10.0
A_START_S = 30.0


def run(*, quick: bool, data: Sequence[str] = ()) -> Tables:
    """Both trainings; `quick`: the papers' recipe with one step."""
    content: dict[str, Any] = {"data": {"path": data[0]} if data else {"preset": "small"}}
    # the runtimes' bytes are compared
    content["privacy"] = {"noise": "seeded"}
    if quick:
        content |= {"recipe": "published", "model": {"steps": 1}}
    scenario = validated(content, source="the processes benchmark")
    dataset = load_dataset(scenario)
    split = load_split(scenario, dataset)
    rows = list[Row]()
    models = list[dict[str, bytes]]()
    for choice in (LOOPBACK, RuntimeChoice("processes", CLIENTS)):
        facts = public_facts(scenario.seed, dataset, split)
        carrier = choice.carrier(dataset.catalogue)
        with TemporaryDirectory(prefix="fedrec-processes-") as folder:
            folds = split.train, split.validation
            training = Training(scenario, facts, *folds, Path(folder), runtime=carrier)
            started = time.perf_counter()
            ends = [time.perf_counter() - started for _ in training.run()]
            seconds = time.perf_counter() - started
        done = training.result
        models.append({name: each.tobytes() for name, each in done.model.arrays().items()})
        alone_s = rows[0]["seconds"] if rows else seconds
        rows.append(
            {
                "runtime": choice.runtime,
                "users": split.train.num_users,
                "items": split.train.num_items,
                "rounds": len(ends),
                "seconds": seconds,
                "over_loopback": seconds / alone_s,
                "s_allowed": alone_s + A_ROUND_S * len(ends) + A_START_S,
                "s_a_round": sum(each.seconds for each in done.rounds) / len(ends),
                "s_to_start": ends[0] - done.rounds[0].seconds,
                "bytes_a_user_and_round": sum(each.bytes_up for each in done.rounds) / len(ends),
                "same_bytes": models[0] == models[-1],
            }
        )
    return {"One training": rows}
