"""Light devices.

A round of one: memory of its process and seconds, for every step of the default recipe, of
MovieLens 1M's number of items on planted ratings; the device is a process of its own that finds
questions in a folder, not at an aggregator. Its bytes are compared with those of the full client's
step. Least of three.

A round of ten thousand: each fetches the question over HTTP, charges its ledger on disk, and posts
its report. Planted people, one device each, all in this process and eight at a time, against an
aggregator's real endpoint on loopback. The first round of the default recipe is released with
seeded noise and compared with the loopback's: equal, and every device was counted once.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.parties import Asked
from benchmarks.results import Row, Tables
from fedrec.data.interactions import Dataset
from fedrec.data.planted import planted, shape_of_sizes
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.messages import Question, train
from fedrec.federation.protocol import Invitation, Phase, Terms
from fedrec.federation.report_batches import Batch, pack_reports
from fedrec.federation.wire import pack_release, pack_terms, report_digest
from fedrec.in_process import Loopback
from fedrec.preparing import Prepared
from fedrec.privacy.accounting import Ledger
from fedrec.randomness import Streams
from fedrec.recipes import client_recipe, prepare
from fedrec.settings import load
from fedrec_aggregator.core import Aggregator, Limits
from fedrec_aggregator.device_server import device_endpoint
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.settings_tables import DevicesTable
from fedrec_client.device import Device, History, Limit, Service
from fedrec_server.workload import Publication

_SCRIPT = """
import hashlib, json, sys, time
from pathlib import Path
from benchmarks.measuring import memory_mb
from fedrec_client.device import Device, History, Limit
from fedrec_client.device.questions import read_header, read_terms
folder, header = Path(sys.argv[1]), sys.argv[2]
class Folder:
    def content(self, sha256):
        return (folder / sha256).read_bytes()
told = json.loads((folder / "history.json").read_text())
started = time.perf_counter()
mine = History(tuple(told["items"]), tuple(told["values"]))
device = Device(folder / "me", mine, limit=Limit(100.0, 1e-5), service=Folder())
terms = read_terms((folder / told["terms"]).read_bytes())
batch = device.answered(read_header((folder / header).read_bytes()), terms, 0)
seconds = time.perf_counter() - started
body = hashlib.sha256(batch[76:]).hexdigest()
print(json.dumps({"seconds": seconds, "peak_mb": memory_mb(peak=True), "body": body}))
"""
_SCENARIO = load(None, ["privacy.noise=seeded"])


@dataclass(frozen=True)
class People:
    """Planted ratings, a training of the default recipe on them, and what a server tells of it.
    announced: the number of users that the plan is told, where there are more."""

    users: int
    items: int
    each: int
    announced: int = 0

    @cached_property
    def dataset(self) -> Dataset:
        """What is planted."""
        events = self.users * self.each
        ratings = {"value_range": (1.0, 5.0), "step": 1.0}
        return planted(shape_of_sizes(self.users, self.items, events, **ratings), seed=1)  # type: ignore[arg-type]

    @cached_property
    def prepared(self) -> Prepared:
        """Preparation of the default recipe."""
        data = self.dataset.interactions
        count = self.announced or self.users
        known = self.items, data.kind, data.value_range, self.dataset.features
        return prepare(_SCENARIO, PublicFacts(count, *known, Streams(1)))

    @cached_property
    def terms(self) -> Terms:
        """Terms of the run."""
        data = self.dataset.interactions
        items = self.dataset.catalogue.item_ids
        recipe = client_recipe(_SCENARIO)
        return Terms(_SCENARIO.run_id(), recipe, data.kind, data.value_range, items)

    def loopback(self) -> Loopback:
        """All of them in one process."""
        made = self.prepared
        ledger = Ledger(made.plan.guarantee)
        return Loopback(self.dataset.interactions, made.steps, made.plan, Streams(1), ledger)

    def asked(self, question: Question) -> Asked:
        """Return the question as the server opens it."""
        return Asked(self.terms.run, question, self.prepared.plan)


def run(*, quick: bool) -> Tables:
    """A row for each step, and one of the round of many; quick: of forty."""
    one = People(100, 300, 60, 6_040) if quick else People(400, 3_883, 132, 6_040)
    many = People(40 if quick else 10_000, 300, 20)
    return {"A round of one": _steps(one), "A round of many": [_round(many)]}


def _steps(people: People) -> list[Row]:
    data = people.dataset.interactions
    recipe = people.prepared.recipe
    asked = {
        done.question.step: done.question
        for done in train(recipe, people.loopback(), recipe.begin())
    }
    # of the person with the most
    mine = data.users_subset(np.array([int(np.argmax(np.diff(data.user_ptr)))]))
    nobody = np.zeros((1, 16), np.uint8)
    rows = list[Row]()
    with TemporaryDirectory(prefix="fedrec-device-") as name:
        folder = Path(name)
        told = {
            "items": [people.terms.items[j] for j in mine.items],
            "values": [float(v) for v in mine.values],
            "terms": _kept(folder, pack_terms(people.terms)),
        }
        (folder / "history.json").write_text(json.dumps(told))
        for step, question in asked.items():
            opening = people.asked(question).opening
            for array in question.public.values():
                _kept(folder, array.tobytes())
            found = _measured(folder, _kept(folder, opening.header))
            batch = Batch(nobody, nobody, people.prepared.steps[step](question, mine))
            whole = pack_reports(batch, report_digest(opening.digest, 0))
            rows.append(
                {
                    "step": step,
                    "items": people.items,
                    "ratings": len(mine),
                    "download_bytes": sum(array.nbytes for array in question.public.values()),
                    "report_bytes": len(whole),
                    "same_bytes": hashlib.sha256(whole[76:]).hexdigest() == found.pop("body"),
                    **found,
                }
            )
    return rows


def _kept(folder: Path, content: bytes) -> str:
    name = hashlib.sha256(content).hexdigest()
    (folder / name).write_bytes(content)
    return name


def _measured(folder: Path, header: str) -> Row:
    """The least time of three processes."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _SCRIPT, str(folder), header]
    done = [
        subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
        for _ in range(3)
    ]
    return dict(min(map(json.loads, done), key=lambda row: float(row["seconds"])))


def _round(people: People) -> Row:
    made = people.prepared
    question = made.recipe.ask(made.recipe.begin())
    assert question is not None
    expected = pack_release(people.loopback().answer(question))
    guarantee = made.plan.guarantee
    opening = replace(people.asked(question).opening, quorum=people.users)
    data = people.dataset.interactions
    terms = people.terms
    with (
        TemporaryDirectory(prefix="fedrec-devices-") as name,
        closing(ReleaseLedger(Path(name) / "ledger", limit=guarantee)) as ledger,
    ):
        folder = Path(name)
        core = Aggregator(ledger, Limits(min_cohort=1), noise=Streams(1))
        core.open_run(terms.run, made.plan)
        invitation = Invitation(terms.run, made.plan, question, quorum=people.users)
        published = folder / "published"
        Publication(published).publish(terms, invitation)
        core.open_round(opening)
        table = DevicesTable(listen="127.0.0.1:0", content=str(published), any_device=True)
        limit = Limit(guarantee.epsilon, guarantee.delta)
        with device_endpoint(core, table) as address, ThreadPoolExecutor(8) as devices:

            def take_part(user: int) -> bool:
                own = slice(int(data.user_ptr[user]), int(data.user_ptr[user + 1]))
                items = tuple(terms.items[j] for j in data.items[own])
                history = History(items, tuple(map(float, data.values[own])))
                service = Service(f"http://{address}")
                device = Device(folder / f"device-{user}", history, limit=limit, service=service)
                try:
                    return device.take_part()
                finally:
                    device.ledger.close()

            started = time.perf_counter()
            took_part = sum(devices.map(take_part, range(people.users)))
            seconds = time.perf_counter() - started
        status = core.close(terms.run, question.round)
        released = status.phase is Phase.RELEASED
        same = released and core.release(terms.run, question.round) == expected
    return {
        "devices": people.users,
        "took_part": took_part,
        "counted": status.reported,
        "same_release": same,
        "seconds": seconds,
        "devices_a_second": people.users / seconds,
    }
