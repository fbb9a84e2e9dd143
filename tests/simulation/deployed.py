"""A demonstration's deployment that also serves, and the person who asks it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from fedrec.operations.certificates import pins
from fedrec.storage import read_json, write_bytes
from fedrec_client.serving_link import Trust
from fedrec_client.worker import MAIN
from fedrec_simulations.demo.parties import SERVER, Deployment
from fedrec_simulations.demo.trial import Trial
from fedrec_simulations.runtimes.deployment_files import ANY_PORT, toml

SERVING = "serving"
_LONG_S = 600.0
"""For what a busy machine makes slow; a guard against waiting for ever."""
_ACTIVE = 0.75
"""The person who asks is the first who has more events than this share of all."""


def rated_by_the_person(trial: Trial, training: int) -> list[tuple[str, float]]:
    """Item ids and ratings of the person who asks at a training, oldest first."""
    counts = np.diff(trial.events(0).user_ptr)
    person = int(np.argmax(counts >= np.quantile(counts, _ACTIVE)))
    one = trial.events(training).users_subset(np.array([person]))
    assert one.times is not None
    ids = trial.dataset.catalogue.item_ids
    order = np.argsort(one.times, kind="stable")
    return [(ids[int(one.items[row])], float(one.values[row])) for row in order]


def history(trial: Trial, training: int) -> Path:
    """The file that the person asks with at a training."""
    path = trial.folder / "person" / "history.csv"
    lines = [f"{item},{rating:g}\n" for item, rating in rated_by_the_person(trial, training)]
    write_bytes(path, ("item,rating\n" + "".join(lines)).encode())
    return path


class Deployed(Deployment):
    """Parties and a serving process."""

    @property
    def parties(self) -> tuple[str, ...]:
        """Names of all that train."""
        return (*self.files.aggregators, SERVER, *(shard.name for shard in self.files.shards))

    def pid(self, name: str) -> int:
        """Return the process id of a party, or of a client's worker ("client-1/worker"); 0 for
        none."""
        party, _, worker = name.partition("/")
        pid = self.company.pid(party)
        return _child(pid, MAIN) if worker else pid

    def serve(self) -> str:
        """Start serving from the server's folder with TLS; its gRPC address, where it listens again
        when it is started again."""
        told = self.files.state(SERVING) / "serving.json"
        told.unlink(missing_ok=True)
        self._write_serving(ANY_PORT)
        verb = [
            SERVING.removesuffix("ing") + "e",
            str(self.server),
            "--settings",
            str(self.files.settings(SERVING)),
        ]
        seeded = self.files.job.scenario.privacy.noise == "seeded"
        self.company.start(
            SERVING, [*verb, *(["--demo"] if seeded else [])], log=self.files.log(SERVING)
        )
        where: str = self.company.wait_for(
            lambda: read_json(told)["grpc"] if told.exists() else None,
            what="serving process that listens",
            timeout_s=_LONG_S,
        )
        self._write_serving(where)
        return f"grpcs://{where}"

    @property
    def trust(self) -> Trust:
        """How a person knows the serving process: by the authority and its own key.

        A person shows no certificate."""
        folder = self.files.root / "certificates"
        own = pins((folder / "serving.pem").read_bytes())
        return Trust(ca=str(folder / "ca.pem"), pin=own.public_key)

    def wait_until_served(self, version: str) -> None:
        """Until the serving process has taken this version over."""
        log = self.files.log(SERVING)
        self.wait(
            lambda: bool(said(log, event="model", version=version)),
            f"model {version} at the serving process",
        )

    def _write_serving(self, address: str) -> None:
        folder = self.files.root / "certificates"
        content: Mapping[str, Any] = {
            "grpc": address,
            "http": "",
            "state": str(self.files.state(SERVING)),
            "tls": {
                "certificate": str(folder / "serving.pem"),
                "key": str(folder / "serving-key.pem"),
            },
            "models": {"watch_s": 0.2},
        }
        write_bytes(self.files.settings(SERVING), toml(content).encode())


def said(log: Path, **fields: Any) -> list[dict[str, Any]]:
    """Lines of a party's log that have these fields."""
    lines = (
        [line_of(text) for text in log.read_text(errors="replace").splitlines()]
        if log.exists()
        else []
    )
    return [line for line in lines if fields.items() <= line.items()]


def _child(parent: int, program: str) -> int:
    """The child of a process that runs this Python module, as Linux tells; 0 for none."""
    with suppress(OSError):
        for task in Path(f"/proc/{parent}/task").iterdir():
            for pid in (task / "children").read_text().split():
                with suppress(OSError):
                    if program in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
                        return int(pid)
    return 0


def line_of(text: str) -> dict[str, Any]:
    """A line of a log; nothing where it is no JSON, as while it is written."""
    try:
        line = json.loads(text)
    except ValueError:
        return {}
    return line if isinstance(line, dict) else {}
