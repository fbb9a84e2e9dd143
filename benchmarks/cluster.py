"""A training on a Ray cluster.

Whether it gives the model of one process, byte for byte, on 1, 2 and 4 nodes of this machine as
`ray start` starts them; a worker killed, a node lost, a node that joins. Each node has one core of
Ray's, however many the machine has: seconds say what several nodes cost here, not how fast a
cluster is. `--data` adds data sets to planted data.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.results import Row, Tables
from fedrec.data.splits import Fold
from fedrec.errors import require
from fedrec.factorization.facts import PublicFacts, public_facts
from fedrec.randomness import Streams
from fedrec.run.data.datasets import load_dataset, load_split
from fedrec.run.data.describing import partition
from fedrec.run.partitions.methods import CountTask, Sizes, over
from fedrec.run.partitions.on_ray import OnRay
from fedrec.run.partitions.parts import Parts
from fedrec.run.training import Training
from fedrec.settings import Scenario, load


@dataclass(frozen=True)
class Trial:
    """nodes: at the beginning. killed, lost, joins: whether a worker is killed, a node is lost, or
    one joins, within the second round."""

    nodes: int
    killed: bool = False
    lost: bool = False
    joins: bool = False

    @property
    def words(self) -> str:
        """Words for a table."""
        happens = {
            ", a worker killed": self.killed,
            ", one lost": self.lost,
            ", one joins": self.joins,
        }
        return f"{self.nodes}{''.join(words for words, true in happens.items() if true)}"


TRIALS = (
    Trial(1),
    Trial(2),
    Trial(4),
    Trial(2, killed=True),
    Trial(2, lost=True),
    Trial(1, joins=True),
)


def run(*, quick: bool, data: Sequence[str] = ()) -> Tables:
    """Digests of models on each cluster beside the loopback's."""
    require("cluster", "the cluster benchmark")
    worlds = {"planted": [f"data.preset={'small' if quick else 'demo'}"]}
    for path in data:
        given = ["split.kind=given"] if (Path(path) / "test.txt").exists() else []
        worlds[Path(path).name] = [f'data.path="{path}"', *given]
    trials = TRIALS[3:5] if quick else TRIALS
    return {
        "Trainings": [
            {"data": name, **row, "same_model": row["sha256"] == rows[0]["sha256"]}
            for name, words in worlds.items()
            for rows in [list(_world(load(None, [*words, "privacy.noise=seeded"]), trials))]
            for row in rows
        ]
    }


def _world(scenario: Scenario, trials: Sequence[Trial]) -> Iterator[Row]:
    with TemporaryDirectory(prefix="fedrec-cluster-") as folder:
        root = Path(folder)
        parts = str(root / "parts")
        partition(scenario, parts, parts=16, resume=False)
        source = scenario.data.model_copy(update={"path": parts, "preset": None})
        divided = scenario.model_copy(update={"data": source})
        dataset = load_dataset(scenario)
        split = load_split(scenario, dataset)
        facts = public_facts(scenario.seed, dataset, split)
        alone = Training(scenario, facts, split.train, split.validation, root / "loopback")
        yield {"nodes": "loopback", **_timed(alone), "workers": 0, "happened": ""}
        for trial in trials:
            yield {"nodes": trial.words, **_tried(trial, divided, root / trial.words)}


def _tried(trial: Trial, scenario: Scenario, folder: Path) -> Row:
    with ExitStack() as stack:
        cluster = import_module("ray.cluster_utils").Cluster(
            initialize_head=True, head_node_args={"num_cpus": 1}
        )
        stack.callback(cluster.shutdown)
        for _ in range(trial.nodes - 1):
            cluster.add_node(num_cpus=1)
        parts = Parts(scenario)
        engine = OnRay.start(parts, cluster.address)
        stack.callback(engine.close)
        sizes: Sizes = engine.reduce(CountTask(), lambda done, of: None)
        public = parts.public()
        events = public.interactions
        features = public.features if public.features.bags else None
        known = events.num_items, events.kind, events.value_range, features
        facts = PublicFacts(sizes.users, *known, Streams(scenario.seed))
        happened = list[str]()
        training = Training(
            scenario,
            facts,
            events,
            Fold(events, events),
            folder,
            runtime=over(engine, _trouble(trial, engine, cluster, happened)),
            validate=lambda model: 0.0,
        )
        timed = _timed(training)
        return {**timed, "workers": engine.started, "happened": "".join(happened)}


def _trouble(
    trial: Trial, engine: OnRay, cluster: Any, happened: list[str]
) -> Callable[[int, int], None]:
    """Called as parts are done: what happens a third of the way through the second round."""
    passes = [0]

    def told(done: int, of: int) -> None:
        passes[0] += done == of
        if passes[0] != 1 or done != max(of // 3, 1) or happened:
            return
        if trial.killed:
            os.kill(engine.process_ids()[0], signal.SIGKILL)
            happened.append(f"a worker killed after {done} of {of} parts")
        if trial.lost:
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
            happened.append(f"a node lost after {done} of {of} parts")
        if trial.joins:
            cluster.add_node(num_cpus=1)
            happened.append(f"a node joined after {done} of {of} parts")

    return told


def _timed(training: Training) -> Row:
    started = time.perf_counter()
    for _ in training.run():
        pass
    seconds = time.perf_counter() - started
    found = hashlib.sha256()
    for name, array in sorted(training.result.model.arrays().items()):
        found.update(name.encode() + array.tobytes())
    return {"seconds": seconds, "sha256": found.hexdigest()[:16]}
