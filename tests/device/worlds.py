"""A training on small planted data that devices take part in: its questions, an aggregator with one
round open, and that aggregator over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import BaseRoute

from fedrec.data.interactions import Interactions
from fedrec.factorization.facts import public_facts
from fedrec.federation.messages import Question, train
from fedrec.federation.protocol import Invitation, Opening, Terms
from fedrec.federation.wire import (
    described,
    question_digest,
    question_header,
)
from fedrec.in_process import Loopback
from fedrec.preparing import Prepared
from fedrec.privacy.accounting import Ledger
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec.recipes import client_recipe
from fedrec.run.data.datasets import load_dataset, load_split
from fedrec.settings import load
from fedrec_aggregator.core import Aggregator, Limits
from fedrec_aggregator.device_server import DeviceIntake, PublishedContent, application
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_client.device import History
from tests.waiting import HANG_S, until


@dataclass(frozen=True)
class World:
    """A training on small planted data: every question of it, and the terms."""

    prepared: Prepared
    data: Interactions
    terms: Terms
    questions: tuple[Question, ...]

    def invitation(self, number: int, quorum: int = 0) -> Invitation:
        return Invitation(self.terms.run, self.prepared.plan, self.questions[number], quorum=quorum)

    def history(self, user: int) -> History:
        own = slice(int(self.data.user_ptr[user]), int(self.data.user_ptr[user + 1]))
        return History(
            tuple(self.terms.items[j] for j in self.data.items[own]),
            tuple(map(float, self.data.values[own])),
        )


@pytest.fixture(scope="module")
def world() -> World:
    from fedrec.preparing import prepare

    scenario = load(None, ["data.preset=small", "privacy.noise=seeded"])
    dataset = load_dataset(scenario)
    split = load_split(scenario, dataset)
    prepared = prepare(scenario, public_facts(scenario.seed, dataset, split))
    link = Loopback(
        split.train, prepared.steps, prepared.plan, Streams(1), Ledger(prepared.plan.guarantee)
    )
    questions = tuple(
        done.question for done in train(prepared.recipe, link, prepared.recipe.begin())
    )
    data = split.train
    terms = Terms(
        scenario.run_id(),
        client_recipe(scenario),
        data.kind,
        data.value_range,
        dataset.catalogue.item_ids,
    )
    return World(prepared, data, terms, questions)


class Intake(DeviceIntake):
    """An intake of what the test publishes."""

    def __init__(self, aggregator: Any, **more: Any) -> None:
        super().__init__(aggregator, PublishedContent(self._file), **more)
        self._files = dict[str, bytes]()

    def _file(self, name: str) -> bytes:
        if name not in self._files:
            raise FileNotFoundError(name)
        return self._files[name]

    def publish(self, terms: Terms, invitation: Invitation) -> None:
        content, told = described(terms, invitation)
        self._files = {f"v1/content/{sha256}": data for sha256, data in content.items()}
        self._files["v1/round"] = told

    def withdraw(self) -> None:
        self._files = {}


class InProcess:
    """An aggregator of devices, without HTTP."""

    def __init__(self, intake: DeviceIntake) -> None:
        self._intake = intake

    def round(self) -> dict[str, Any]:
        return dict(json.loads(self._intake.source.told()))

    def content(self, sha256: str) -> bytes:
        found = self._intake.source.content(sha256)
        assert found is not None
        return found

    def enroll(self, token: bytes, secret: str) -> None:
        self._intake.enroll(token, secret)

    def report(self, run: str, round: int, batch: bytes, secret: str) -> dict[str, int]:
        return dict(self._intake.report(run, round, batch, secret).rejected)


@dataclass(frozen=True)
class Open:
    """An aggregator that collects one round."""

    aggregator: Aggregator
    intake: Intake
    endpoint: InProcess


def opened(world: World, folder: Path, number: int, *, quorum: int = 0) -> Open:
    guarantee = world.prepared.plan.guarantee
    (folder / "aggregator").mkdir(parents=True)
    ledger = ReleaseLedger(
        folder / "aggregator", limit=Guarantee(guarantee.epsilon, guarantee.delta)
    )
    aggregator = Aggregator(ledger, Limits(min_cohort=1), noise=Streams(1))
    # who never reports, so that the round stays open
    aggregator.enroll("somebody else", [b"0" * 16])
    aggregator.open_run(world.terms.run, world.prepared.plan)
    question = world.questions[number]
    header = question_header(question, run=world.terms.run, plan=world.prepared.plan.digest())
    aggregator.open_round(
        Opening(
            world.terms.run, question.round, header, question_digest(header), 600.0, quorum=quorum
        )
    )
    intake = Intake(aggregator)
    intake.publish(world.terms, world.invitation(number, quorum))
    OPENED.append(ledger)
    return Open(aggregator, intake, InProcess(intake))


OPENED: list[ReleaseLedger] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().close()


@contextmanager
def listening(intake: DeviceIntake, *beside: BaseRoute, body_s: float = HANG_S) -> Iterator[str]:
    """beside: what else the same site serves."""
    uvicorn = pytest.importorskip("uvicorn")
    served = application(intake, body_s=body_s)
    served.routes.extend(beside)
    server = uvicorn.Server(uvicorn.Config(served, port=0, log_level="error", ws="none"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        until(lambda: server.started or not thread.is_alive(), "a server that listens")
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
