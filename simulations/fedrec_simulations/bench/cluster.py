"""Does a Ray cluster give the model of one process? Nodes of this machine, as `ray start` starts
them; a worker killed, a node that joins.

Each node has one core of Ray's, however many the machine has: seconds say what several nodes cost
here, not how fast a cluster is.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedrec.data.splits import Fold
from fedrec.extras import require
from fedrec.factorization.facts import PublicFacts
from fedrec.randomness import Streams
from fedrec.run.data.datasets import load_dataset, load_split, public_facts
from fedrec.run.data.partitioning import partition
from fedrec.run.partitions.baselines import CountTask, Sizes
from fedrec.run.partitions.on_ray import OnRay
from fedrec.run.partitions.parts import Parts
from fedrec.run.partitions.rounds import over
from fedrec.run.training import Training
from fedrec.settings import Scenario, load
from fedrec_simulations.experiments.progress import Progress, Tell
from fedrec_simulations.experiments.rows import peak_rss_mb, table

PARTS = 16


@dataclass(frozen=True)
class Trial:
    """nodes: at the beginning. killed: whether a worker is killed within the second round. joins:
    whether a node joins within it."""

    nodes: int
    killed: bool = False
    joins: bool = False

    @property
    def words(self) -> str:
        """For a table."""
        return (
            f"{self.nodes}"
            + (", a worker killed" if self.killed else "")
            + (", one joins" if self.joins else "")
        )


TRIALS = (Trial(1), Trial(2), Trial(4), Trial(2, killed=True), Trial(1, joins=True))


def run(data: Sequence[str], *, quick: bool, tell: Tell) -> dict[str, Any]:
    """Model digests on each cluster beside the loopback's. data: data sets beside planted data."""
    require("cluster", "fedrec bench cluster")
    worlds = {"planted": ["data.preset=small" if quick else "data.preset=demo"]}
    for path in data:
        split = ["split.kind=given"] if (Path(path) / "test.txt").exists() else []
        worlds[Path(path).name] = [f'data.path="{path}"', *split]
    rows = list[dict[str, Any]]()
    trials = TRIALS[1:4:2] if quick else TRIALS
    for name, words in worlds.items():
        for row in _world(name, load(None, [*words, "privacy.noise=seeded"]), trials):
            rows.append(row)
            tell(Progress(f"{name}, {row['nodes']}", len(rows), len(worlds) * (len(trials) + 1)))
    shown = [
        [
            r["data"],
            r["nodes"],
            f"{r['seconds']:.1f}",
            f"{r['workers']}",
            "the same" if r["same"] else "ANOTHER MODEL",
        ]
        for r in rows
    ]
    return {
        "rows": rows,
        "table": table(["data", "nodes", "seconds", "workers", "model"], shown),
        "driver_peak_rss_mb": peak_rss_mb(),
    }


def _world(name: str, scenario: Scenario, trials: Sequence[Trial]) -> Iterator[dict[str, Any]]:
    with TemporaryDirectory(prefix="fedrec-cluster-") as folder:
        root = Path(folder)
        partition(scenario, str(root / "parts"), parts=PARTS, resume=False)
        divided = scenario.model_copy(
            update={
                "data": scenario.data.model_copy(
                    update={"path": str(root / "parts"), "preset": None}
                )
            }
        )
        dataset = load_dataset(scenario)
        split = load_split(scenario, dataset)
        started = time.perf_counter()
        expected = _digest(
            Training(
                scenario,
                public_facts(scenario, dataset, split),
                split.train,
                split.validation,
                root / "loopback",
            )
        )
        yield {
            "data": name,
            "nodes": "loopback",
            "seconds": time.perf_counter() - started,
            "workers": 0,
            "same": True,
            "sha256": expected,
        }
        for trial in trials:
            tried = _tried(trial, divided, root / trial.words, expected)
            yield {"data": name, "nodes": trial.words, **tried}


def _tried(trial: Trial, scenario: Scenario, folder: Path, expected: str) -> dict[str, Any]:
    cluster = import_module("ray.cluster_utils").Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1}
    )
    try:
        for _ in range(trial.nodes - 1):
            cluster.add_node(num_cpus=1)
        parts = Parts(scenario)
        engine = OnRay.start(parts, cluster.address)
        try:
            sizes: Sizes = engine.reduce(CountTask(), lambda done, of: None)
            public, started = parts.public(), time.perf_counter()
            events, features = (
                public.interactions,
                public.features if public.features.bags else None,
            )
            facts = PublicFacts(
                sizes.users,
                events.num_items,
                events.kind,
                events.value_range,
                features,
                Streams(scenario.seed),
            )
            happened = list[str]()
            told = _trouble(trial, engine, cluster, happened)
            way = over(engine, told)
            training = Training(
                scenario,
                facts,
                events,
                Fold(events, events),
                folder,
                runtime=way,
                validate=lambda model: 0.0,
            )
            found, seconds = _digest(training), time.perf_counter() - started
            return {
                "seconds": seconds,
                "workers": engine.started,
                "happened": happened,
                "same": found == expected,
                "sha256": found,
            }
        finally:
            engine.close()
    finally:
        cluster.shutdown()


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
            process = engine.process_ids()[0]
            os.kill(process, signal.SIGKILL)
            happened.append(f"worker {process} killed after {done} of {of} parts")
        if trial.joins:
            cluster.add_node(num_cpus=1)
            happened.append(f"a node joined after {done} of {of} parts")

    return told


def _digest(training: Training) -> str:
    for _ in training.run():
        pass
    found = hashlib.sha256()
    for name, array in sorted(training.result.model.arrays().items()):
        found.update(name.encode() + array.tobytes())
    return found.hexdigest()
