"""Two hundred light devices over HTTP, a site, an aggregator and a server, all of them processes that
are killed in the middle of rounds: the bytes of a loopback, everybody counted and charged once."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrec.cli.supervisor import Supervisor
from fedrec.factorization.facts import public_facts
from fedrec.recipes import prepare
from fedrec.run.data.datasets import load_dataset, load_split
from fedrec.run.job import Job
from fedrec.run.shards import Shard
from fedrec.settings import load
from fedrec_client.device.ledger import DeviceLedger
from tests.hidden import hidden_words, logs_with
from tests.ports import free_port
from tests.processes.conftest import Play, StageFiles
from tests.waiting import HANG_S

pytestmark = pytest.mark.processes

DEVICES = 200
EACH = 20
"""Devices of one process, each with its ledger and its connections."""
SEED = 4
PARTIES = ("aggregator", "server", "client-1")
_PROGRAM = """
import json, sys, time
from pathlib import Path
from fedrec.errors import RefusedError, UnreachableError
from fedrec_client.device import Device, History, Limit, Service
told = json.loads(Path(sys.argv[1]).read_text())
devices = [
    Device(
        Path(told["folder"]) / user, History(tuple(items), tuple(values)),
        limit=Limit(*told["limit"]), service=Service(told["address"]), user=user,
    )
    for user, items, values in told["people"]
]
while True:
    for device in devices:
        try:
            device.take_part()
        except (UnreachableError, RefusedError):
            pass
    time.sleep(.5)
"""


@dataclass
class Crowd:
    """Devices by process, and who is killed in which round: one process of devices in each, in the
    middle of its reports, and parties in turn. The first process stays away in round 1, until all
    others have reported."""

    folder: Path
    users: range
    commands: list[list[str]] = field(default_factory=list)
    running: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    killed: list[str] = field(default_factory=list)
    waited: bool = False
    _rng: random.Random = field(default_factory=lambda: random.Random(SEED))
    _victims: list[str] = field(default_factory=list)
    _round: int = -1

    def charged(self, number: int, round: int) -> int:
        """Devices of a process whose ledgers have this round."""
        mine = self.users[EACH * number : EACH * (number + 1)]
        files = [self.folder / str(user) / "ledger.jsonl" for user in mine]
        return sum(path.read_bytes().count(b"\n") > round for path in files if path.exists())

    def look(self, run: Any) -> None:
        """Start whoever has died, and kill whose turn it is."""
        round = len(run.said("aggregator", "released"))
        for number, command in enumerate(self.commands):
            if self._stays_away(number, round, run):
                continue
            process = self.running.get(number)
            if process is None or process.poll() is not None:
                assert process is None or process.returncode == -signal.SIGKILL
                with (self.folder / "said.log").open("ab") as log:
                    self.running[number] = subprocess.Popen(command, stdout=log, stderr=log)
        if round > self._round:
            self._round = round
            self._victims = [str(self._rng.randrange(1, len(self.commands)))]
            self._victims += [PARTIES[round % 4]] if round % 4 < 3 else []
            self._victims += ["0"] if round == 1 else []
        for name in [name for name in self._victims if self._is_at_it(name, round, run)]:
            self._victims.remove(name)
            self.killed.append(name)
            if name.isdigit():
                self.running[int(name)].kill()
                self.running[int(name)].wait(HANG_S)
            else:
                run.kill(name)

    def _is_at_it(self, name: str, round: int, run: Any) -> bool:
        """Whether some have reported in this round; a process of devices, its own."""
        mine = [int(name)] if name.isdigit() else range(len(self.commands))
        return any(self.charged(number, round) for number in mine)

    def _stays_away(self, number: int, round: int, run: Any) -> bool:
        if number or round != 1 or "0" not in self.killed or self.waited:
            return False
        others = range(1, len(self.commands))
        self.waited = all(self.charged(other, round) == EACH for other in others)
        return not self.waited

    def stop(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait(HANG_S)


class Company(Supervisor):
    """Parties that are looked after together with the devices."""

    def __init__(self) -> None:
        super().__init__(most_starts=sys.maxsize)
        self.look_after: Callable[[], None] = lambda: None

    def rest(self) -> None:
        super().rest()
        self.look_after()


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[Crowd]:
    made = Crowd(tmp_path / "devices", range(0))
    try:
        yield made
    finally:
        made.stop()


def test_devices_and_parties_killed_in_the_middle_of_rounds_change_no_byte(
    stage: Callable[..., Any], crowd: Crowd, tmp_path: Path
) -> None:
    scenario = load(None, ["data.preset=small", "privacy.noise=seeded"])
    dataset = load_dataset(scenario)
    split = load_split(scenario, dataset)
    facts = public_facts(scenario.seed, dataset, split)
    job = Job(scenario, facts, split.train, prepare(scenario, facts), tmp_path / "nothing")
    users = job.data.num_users
    at_the_site = job.data.users_subset(np.arange(users - DEVICES))
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    folder = str(tmp_path / "published")
    more = {
        "aggregator": {"devices": {"listen": address, "content": folder, "any_device": True}},
        "server": {"devices": {"folder": folder, "users": DEVICES, "window_s": HANG_S}},
    }

    def files(made: Job, holdings: Any, **options: Any) -> StageFiles:
        site = Shard("client-1", 0, at_the_site)
        return StageFiles(made, replace(holdings, shards=[site]), **options)

    company = Company()
    run = stage(news=job, files=files, company=company, more=more)
    crowd.users = range(users - DEVICES, users)
    crowd.commands += _commands(crowd, run.files.job, dataset.catalogue.item_ids, address)
    run.start()
    company.look_after = lambda: crowd.look(run)
    assert list(run.states()) == Play(run.files.job, dataset.catalogue).states
    lines = run.rounds()
    assert [line["reported"] for line in lines] == [users] * len(lines)
    assert crowd.waited
    assert {name for name in crowd.killed if not name.isdigit()} == set(PARTIES)
    assert len(crowd.killed) > len(lines)
    crowd.stop()
    run.company.stop()
    assert run.charges() == [name for line in lines for name in line["releases"]]
    for user in crowd.users:
        limit = run.files.job.limit
        with closing(
            DeviceLedger(crowd.folder / str(user), epsilon=limit.epsilon, delta=limit.delta)
        ) as ledger:
            assert [entry.round for entry in ledger.entries] == list(range(len(lines)))
    hidden = hidden_words(run.files.root, crowd.folder) | set(dataset.catalogue.titles or ())
    assert len(hidden) > 3 * users
    assert not logs_with(run.files.root, hidden)
    assert not logs_with(crowd.folder, hidden)


def _commands(crowd: Crowd, job: Job, ids: Any, address: str) -> Iterator[list[str]]:
    """A program for so many devices each, in the order of their users."""
    data = job.data
    crowd.folder.mkdir()
    for start in range(crowd.users.start, crowd.users.stop, EACH):
        people = []
        for user in range(start, start + EACH):
            own = slice(int(data.user_ptr[user]), int(data.user_ptr[user + 1]))
            items = [ids[j] for j in data.items[own]]
            people.append((str(user), items, list(map(float, data.values[own]))))
        told = {
            "folder": str(crowd.folder),
            "limit": (job.limit.epsilon, job.limit.delta),
            "address": f"http://{address}",
            "people": people,
        }
        file = crowd.folder / f"{start}.json"
        file.write_text(json.dumps(told))
        yield [sys.executable, "-c", _PROGRAM, str(file)]
