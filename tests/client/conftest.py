"""A site in one process: planted users, a ledger on disk, and an aggregator that is real or only
writes down what it gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from fedrec.data.interactions import Interactions
from fedrec.data.keyed_hash import id_words
from fedrec.data.planted import PlantedShape, planted
from fedrec.errors import UnreachableError
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.messages import Question, RoundDone, train
from fedrec.federation.protocol import (
    Invitation,
    LedgerGrowth,
    LedgerHead,
    OwnLedger,
    Receipt,
    Refusal,
    Terms,
)
from fedrec.federation.report_batches import Batch, unpack_reports
from fedrec.federation.wire import question_digest, question_header
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec.recipes import Prepared, client_recipe, prepare
from fedrec.settings import Scenario, load
from fedrec_client.ledger import ClientLedger
from fedrec_client.participant import Participant
from fedrec_client.store import LocalUsers


@dataclass
class Endpoint:
    """Counts every report id once, as an aggregator does, and keeps the bytes.

    `lost` messages never arrive; `turned_away` gives codes."""

    enrolled: set[bytes] = field(default_factory=set)
    batches: list[bytes] = field(default_factory=list)
    counted: set[bytes] = field(default_factory=set)
    lost: Iterator[bool] | None = None
    turned_away: Callable[[bytes], Refusal | None] = lambda batch: None
    grow: Callable[[LedgerHead, OwnLedger], LedgerGrowth] = lambda since, own: LedgerGrowth(since)

    def enroll(self, tokens: Sequence[bytes]) -> int:
        self.enrolled |= set(tokens)
        return len(self.enrolled)

    def growth(self, since: LedgerHead, own: OwnLedger) -> LedgerGrowth:
        return self.grow(since, own)

    def report(self, run: str, round: int, batch: bytes) -> Receipt:
        if self.lost is not None and next(self.lost, False):
            raise UnreachableError("no answer", "Send it again.")
        self.batches.append(batch)
        users = int.from_bytes(batch[36:40], "little")
        if (code := self.turned_away(batch)) is not None:
            return Receipt(0, {code.value: users})
        ids = {batch[44 + 16 * k : 60 + 16 * k] for k in range(users)}
        new = ids - self.counted
        self.counted |= ids
        return Receipt(len(new), {Refusal.REPLAYED.value: len(ids) - len(new)})


@dataclass
class Site:
    """A client on `folder` that can be stopped and started again; `participant` is the running
    one."""

    folder: Path
    users: LocalUsers
    endpoint: Any = field(default_factory=Endpoint)
    limit: Guarantee = field(default_factory=lambda: Guarantee(5.0, 1e-5))
    clock: Callable[[], float] = lambda: 1_000_000.0
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        ledger = ClientLedger(self.folder / "ledger.sqlite", limit=self.limit, clock=self.clock)
        self.participant = Participant(
            "site", self.users, ledger, self.endpoint, self.folder, **self.options
        )

    def restart(self) -> None:
        """As after a kill: only the folder is left."""
        self.participant.ledger.close()
        self.start()


@dataclass
class Run:
    """A prepared run over planted users, its terms, and every round of it in one process."""

    scenario: Scenario
    events: Interactions
    features: Any = None
    name: str = "run-1"
    population: int = 0

    def __post_init__(self) -> None:
        self.item_ids = tuple(f"item {j}" for j in range(self.events.num_items))
        words = id_words([f"user {k}" for k in range(self.events.num_users)])
        self.events = e = replace(self.events, user_words=words, item_words=id_words(self.item_ids))
        facts = PublicFacts(
            self.population or e.num_users,
            e.num_items,
            e.kind,
            e.value_range,
            self.features,
            Streams(1),
        )
        self.prepared: Prepared = prepare(self.scenario, facts)
        self.terms = Terms(
            self.name, client_recipe(self.scenario), e.kind, e.value_range, self.item_ids
        )

    @property
    def users(self) -> LocalUsers:
        return LocalUsers(
            self.events, self.item_ids, tuple(f"user {k}" for k in range(self.events.num_users))
        )

    @cached_property
    def _rounds(self) -> tuple[RoundDone, ...]:
        link = Loopback(
            self.events,
            self.prepared.steps,
            self.prepared.plan,
            Streams(1),
            Ledger(self.prepared.plan.guarantee),
        )
        return tuple(train(self.prepared.recipe, link, self.prepared.recipe.begin()))

    def rounds(self) -> list[RoundDone]:
        """Of one training, the same at every call: it depends on nothing that a test changes."""
        return list(self._rounds)

    def questions(self) -> list[Question]:
        return [done.question for done in self.rounds()]

    def invitation(self, question: Question) -> Invitation:
        return Invitation(self.name, self.prepared.plan, question)

    def digest(self, question: Question) -> str:
        return question_digest(
            question_header(question, run=self.name, plan=self.prepared.plan.digest())
        )

    def decoded(
        self, question: Question, batches: Sequence[bytes], *, most: int = 10_000
    ) -> list[Batch]:
        digest = self.digest(question)
        kept = [batch for batch in batches if batch[4:36].hex() == digest]
        return [
            unpack_reports(
                batch, question.blocks, digest, max_users=10_000, max_events_per_user=most
            )
            for batch in kept
        ]


def small_run(
    *overrides: str, kind: str = "ratings", name: str = "run-1", features: bool = True
) -> Run:
    dataset = planted(PlantedShape(users=30, items=50, events=360, kind=kind), seed=3)  # type: ignore[arg-type]
    return Run(
        load(None, list(overrides)),
        dataset.interactions,
        dataset.features if features else None,
        name,
    )


@pytest.fixture(scope="session")
def make_run() -> Callable[..., Run]:
    """A run of the default recipe on planted ratings, or of what its overrides say."""
    return small_run


@pytest.fixture(scope="session")
def run() -> Run:
    return small_run()


@pytest.fixture
def make_site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Sites on folders of their own, closed after the test."""
    made = list[Site]()

    def make(users: LocalUsers, folder: str = "site", **arguments: Any) -> Site:
        made.append(Site(tmp_path / folder, users, **arguments))
        return made[-1]

    yield make
    for site in made:
        site.participant.ledger.close()


@pytest.fixture
def site(make_site: Callable[..., Site], run: Run) -> Site:
    return make_site(run.users)
