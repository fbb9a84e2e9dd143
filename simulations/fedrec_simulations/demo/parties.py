"""A deployment on this machine: started, trained by, served from, and with its parties killed, each
a process of its own.

It is what `fedrec simulate --runtime processes` starts (`party_files`, `processes`) and a serving
process beside it. A party that dies is started again at the same address, as a supervisor would.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrec.cli.supervisor import Supervisor
from fedrec.errors import RunError
from fedrec.operations.certificates import pins
from fedrec.run.job import Carried
from fedrec.storage import read_json, write_bytes
from fedrec_client.serving_link import Trust
from fedrec_client.worker import MAIN
from fedrec_server.runs import Runs, TrainingRun, run_folder
from fedrec_server.schedule import ask_standing
from fedrec_simulations.runtimes import processes
from fedrec_simulations.runtimes.deployment_files import ANY_PORT, PartyFiles, toml
from fedrec_simulations.runtimes.ratings import kept_rounds

SERVING = "serving"
SERVER = "server"
_LONG_S = 600.0
"""For what a busy machine makes slow; a guard against waiting for ever."""


@dataclass
class Deployment:
    """An aggregator or three, a server, clients and a serving process, in the folders of
    `files`."""

    files: PartyFiles
    company: Supervisor

    @property
    def parties(self) -> tuple[str, ...]:
        """Names of all that train."""
        return (*self.files.aggregators, SERVER, *(shard.name for shard in self.files.shards))

    @property
    def server(self) -> Path:
        """The server's state folder."""
        return self.files.state(SERVER)

    @property
    def runs(self) -> Sequence[TrainingRun]:
        """All trainings, oldest first."""
        return Runs(self.server).entries

    # --- training ---

    def start(self) -> None:
        """Everything but serving; the first training begins. The server stays up after it."""
        processes.start(self.files, self.company, server=["--every", "3650d"])

    def train_again(self, files: PartyFiles) -> None:
        """Ask the server for another training, with what the sites hold by `files`; returns when it
        has begun."""
        before = len(self.runs)
        self.files = files
        files.write_shards()
        self._wait(self._asked, "server that stands")
        self._wait(lambda: len(self.runs) > before, "further training")

    def _asked(self) -> bool:
        with suppress(RunError):  # it is just being started
            return ask_standing(self.server) > 0
        return False

    def rounds(self) -> Iterator[Carried]:
        """Every round of the newest training when the server has kept it, until it has finished.

        Raises RunError."""
        number = 0
        while True:
            # first: what is kept by then is everything
            finished = self.runs and self.runs[-1].finished_s
            for carried in kept_rounds(self.server, after=number):
                number = carried.round + 1
                yield carried
            if finished:
                return
            self.company.look()
            self.company.rest()

    def lines(self, training: int = -1) -> list[dict[str, Any]]:
        """What the server keeps of each round of a training, the newest unless another is named."""
        path = self.folder(training) / "rounds.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def folder(self, training: int = -1) -> Path:
        """Where the server keeps a training."""
        return self.server / "runs" / self.runs[training].run

    # --- faults ---

    def pid(self, name: str) -> int:
        """Return the process id of a party, or of a client's worker ("client-1/worker"); 0 for
        none."""
        party, _, worker = name.partition("/")
        pid = self.company.pid(party)
        return _child(pid, MAIN) if worker else pid

    def kill(self, name: str) -> bool:
        """With -9, by the id of its process; False where there is none."""
        if not (pid := self.pid(name)):
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return True
        return False

    def kill_in_round(self, victim: str, round: int) -> None:
        """Kill a party when one site's reports of a round are in and the other site is held up, so
        that the round cannot be over.

        Call it when the round before is kept. Returns when another process plays the party.
        """
        first, *others = [shard.name for shard in self.files.shards]
        run = run_folder(self.server).name
        before = self.pid(victim)
        with self._held(others):
            self._wait(
                lambda: self._reported(run, round) >= {first} or self._finished(run),
                f"report of {first} in round {round}",
            )
            self.kill(victim)
        self._wait(lambda: self.pid(victim) != before, f"new {victim}")

    def _finished(self, run: str) -> bool:
        return any(entry.run == run and entry.finished_s for entry in self.runs)

    def _reported(self, run: str, round: int) -> set[str]:
        """Clients whose reports the aggregator has counted, by its log; of three, the last one that
        gets them."""
        lines = said(
            self.files.log(self.files.aggregators[-1]), event="report", run=run, round=round
        )
        return {line["sender"] for line in lines if line["accepted"]}

    @contextmanager
    def _held(self, names: list[str]) -> Iterator[None]:
        """Some parties' processes are stopped for a while, as if their machines slept."""
        pids = [self.pid(name) for name in names]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        self.company.wait_for(lambda: condition() or None, what=what, timeout_s=_LONG_S)

    # --- serving ---

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
        self._wait(
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
        [_line(text) for text in log.read_text(errors="replace").splitlines()]
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


def _line(text: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except ValueError:
        return {}
    return line if isinstance(line, dict) else {}
