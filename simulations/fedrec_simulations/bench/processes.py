"""What separate processes cost: one training by loopback, and the same by an aggregator, a server
and two clients on this machine.

Both are timed from the first line of `Training.run` to its last, validation and checkpoints
included. The bound is ten seconds a round, most of which Flower sleeps between polls, and thirty to
start.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrec.errors import SettingsError
from fedrec.federation.report_batches import batch_bytes
from fedrec.recipes import Prepared
from fedrec.run.data.datasets import load_dataset, load_split, public_facts
from fedrec.run.runtime_choice import RuntimeChoice
from fedrec.run.training import RoundRecord, Trained, Training
from fedrec.settings import Scenario, validated
from fedrec.storage import Checkpoints

CLIENTS = 2
RATINGS = 143
"""Of the user whose bytes are stated: MovieLens 10M has 10,000,054 ratings of 69,878 users."""

A_ROUND_S, A_START_S = 10.0, 30.0


@dataclass(frozen=True)
class Timed:
    """A finished training: seconds in all, until its first round was over, and from its last round
    to its end."""

    trained: Trained
    seconds: float
    until_first_s: float
    after_last_s: float

    @property
    def rounds(self) -> Sequence[RoundRecord]:
        """All of them."""
        return self.trained.rounds

    @property
    def seconds_a_round(self) -> float:
        """Mean, as the server saw it."""
        return sum(done.seconds for done in self.rounds) / len(self.rounds)


def run(
    data: str, *, quick: bool = False, folder: Path = Path("runs/bench-processes")
) -> dict[str, Any]:
    """Both trainings; `quick`: the papers' recipe with one step. Data "planted" is the small
    planted set.

    Raises SettingsError without a data folder, DataError on bad data, RunError where a party gives
    up.
    """
    if not data:
        raise SettingsError(
            "the processes benchmark needs a data folder", "Give one, e.g. --data PATH/ml-1m."
        )
    scenario = _scenario(data, quick)
    shutil.rmtree(folder, ignore_errors=True)
    dataset = load_dataset(scenario)
    split = load_split(scenario, dataset)

    def timed(choice: RuntimeChoice) -> Timed:
        facts, kept = public_facts(scenario, dataset, split), folder / choice.runtime
        return _timed(
            Training(
                scenario,
                facts,
                split.train,
                split.validation,
                kept,
                runtime=choice.carrier(dataset.catalogue),
            )
        )

    alone, apart = timed(RuntimeChoice("loopback")), timed(RuntimeChoice("processes", CLIENTS))
    one = _bytes_of_one(apart.trained.prepared, Checkpoints(folder / "processes" / "checkpoints"))
    allowed_s = alone.seconds + A_ROUND_S * len(apart.rounds) + A_START_S
    return {
        "clients": CLIENTS,
        "users": split.train.num_users,
        "items": split.train.num_items,
        "rounds": len(apart.rounds),
        "loopback_seconds": alone.seconds,
        "processes_seconds": apart.seconds,
        "allowed_seconds": allowed_s,
        "within": apart.seconds <= allowed_s,
        "start_seconds": apart.until_first_s - apart.rounds[0].seconds,
        "stop_seconds": apart.after_last_s,
        "seconds_a_round": apart.seconds_a_round,
        "seconds_a_round_above_loopback": apart.seconds_a_round - alone.seconds_a_round,
        "longest_round_seconds": max(done.seconds for done in apart.rounds),
        "bytes_up_per_user_and_round": sum(done.bytes_up for done in apart.rounds)
        / len(apart.rounds),
        f"most_bytes_up_of_{RATINGS}_ratings_in_a_round": max(one),
        "same_bytes": _model(alone) == _model(apart),
    }


def _scenario(data: str, quick: bool) -> Scenario:
    source = {"path": data} if data != "planted" else {"preset": "small"}
    # the runtimes' bytes are compared
    content: dict[str, Any] = {"data": source, "privacy": {"noise": "seeded"}}
    return validated(
        content | ({"recipe": "published", "model": {"steps": 1}} if quick else {}),
        source="the processes benchmark",
    )


def _timed(training: Training) -> Timed:
    started, ends = time.perf_counter(), list[float]()
    for _ in training.run():
        ends.append(time.perf_counter() - started)
    seconds = time.perf_counter() - started
    return Timed(training.result, seconds, ends[0], seconds - ends[-1])


def _bytes_of_one(prepared: Prepared, checkpoints: Checkpoints) -> Iterator[int]:
    """Of every round: the message of one user who names all of their items, alone in a batch."""
    for state in [prepared.recipe.begin(), *checkpoints.all()]:
        question = prepared.recipe.ask(state)
        if question is not None:
            yield batch_bytes(question.blocks, users=1, events=RATINGS)


def _model(timed: Timed) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in timed.trained.model.arrays().items()}
