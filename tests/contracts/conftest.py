"""One small federation over every transport: an aggregator, three clients with ledgers, and what a
server needs to reach them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fedrec import recipes
from fedrec.data.interactions import Interactions
from fedrec.data.planted import PlantedShape, planted
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.messages import Link, Question, RoundDone, train
from fedrec.federation.protocol import (
    Answer,
    Broadcast,
    Invitation,
    Opening,
    ReleaseEndpoint,
    ReportEndpoint,
    Terms,
)
from fedrec.federation.round_driver import AggregatedLink, Patience
from fedrec.federation.round_messages import FIELD, PROTOCOL
from fedrec.federation.wire import pack_release, question_digest, question_header
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec.run.shards import Shard, shards
from fedrec.settings import load
from fedrec.transport.aggregator_client import RemoteReleaseEndpoint, RemoteReportEndpoint, Retry
from fedrec.transport.channel import Access
from fedrec_aggregator import calls
from fedrec_aggregator.core import Aggregator, Limits
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.main import run as serve
from fedrec_aggregator.settings import validated
from fedrec_client.answering import AnswerBounds
from fedrec_client.ledger import ClientLedger
from fedrec_client.participant import Participant
from fedrec_client.requests import Requests
from fedrec_client.store import LocalUsers
from fedrec_server.broadcast import ClientBroadcast
from tests.threads import serving

if TYPE_CHECKING:
    from flwr.app import Context, Message, RecordDict

    from tests.flower_grid import App

SEED = 7
MIN_COHORT = 15
CLIENTS = 3
PROMISE = Guarantee(5.0, 1e-5)
ITEMS = tuple(f"item-{j}" for j in range(20))
PUBLISHED = ("recipe=published", "model.steps=1", "model.encoder=id", "model.dimension=2")
TOO_SMALL = AnswerBounds(batch_bytes=1)
TRANSPORTS = (
    "core",
    "flower",
    "grpc",
    "flower and grpc",
    "flower and grpc between versions",
)


@dataclass
class Called:
    """A broadcast without a transport: participants that are called."""

    participants: Sequence[Participant]

    def join(self, terms: Terms) -> Sequence[Answer]:
        return [participant.join(terms) for participant in self.participants]

    def ask(self, invitation: Invitation) -> Sequence[Answer]:
        return [participant.answer(invitation) for participant in self.participants]


@dataclass
class Prepared:
    """A run of `terms`. `data` is everybody's, for the loopback that it is compared with."""

    data: Interactions
    prepared: recipes.Prepared
    terms: Terms

    @property
    def first(self) -> Question:
        question = self.prepared.recipe.ask(self.prepared.recipe.begin())
        assert question is not None
        return question

    @property
    def loopback(self) -> Loopback:
        return Loopback(
            self.data, self.prepared.steps, self.prepared.plan, Streams(SEED), Ledger(PROMISE)
        )

    def invitation(self, question: Question) -> Invitation:
        return Invitation(self.terms.run, self.prepared.plan, question)

    def opening(self, question: Question, **choices: int) -> Opening:
        header = question_header(question, run=self.terms.run, plan=self.prepared.plan.digest())
        digest = question_digest(header)
        return Opening(self.terms.run, question.round, header, digest, timeout_s=600.0, **choices)

    def trained_over(self, link: Link) -> list[RoundDone]:
        """A whole training: every release is the loopback's to the byte."""
        recipe = self.prepared.recipe
        ours = list(train(recipe, link, recipe.begin()))
        theirs = train(recipe, self.loopback, recipe.begin())
        assert [pack_release(done.answer) for done in ours] == [
            pack_release(done.answer) for done in theirs
        ]
        return ours


@dataclass
class Federation(Prepared):
    """What the tests of a transport may use."""

    endpoint: ReleaseEndpoint
    clients: Broadcast

    @property
    def link(self) -> AggregatedLink:
        return AggregatedLink(
            self.terms,
            self.prepared.plan,
            self.endpoint,
            self.clients,
            Patience(attempts=1, pause_s=0.01),
        )

    def opened(self) -> Question:
        """The first question, which is open."""
        question = self.first
        self.endpoint.open_run(self.terms.run, self.prepared.plan)
        self.endpoint.open_round(self.opening(question))
        return question


Found = Callable[..., Federation]


def events(*, changed_user: int | None = None) -> Interactions:
    """Ratings of 24 users, or the same with the ratings of one user turned around."""
    data = planted(
        PlantedShape(users=24, items=len(ITEMS), events=130, least_events=3), seed=SEED
    ).interactions
    if changed_user is None:
        return data
    low, high = data.value_range
    turned = data.values.copy()
    mine = slice(data.user_ptr[changed_user], data.user_ptr[changed_user + 1])
    turned[mine] = low + high - turned[mine]
    return replace(data, values=turned)


@pytest.fixture(params=TRANSPORTS)
def found(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Found]:
    """Founds federations over one transport.

    `unwilling`: numbers of clients that enrol, then refuse every question."""
    with ExitStack() as stack:
        count = iter(range(100))

        def make(
            *,
            changed_user: int | None = None,
            unwilling: Collection[int] = (),
            joined: bool = True,
        ) -> Federation:
            data = events(changed_user=changed_user)
            if "versions" in request.param:
                monkeypatch.setattr(calls, "PROTOCOL", PROTOCOL - 1)
            founded = stack.enter_context(
                _federation(request.param, tmp_path / str(next(count)), data, unwilling)
            )
            if joined:
                founded.clients.join(founded.terms)
            return founded

        yield make


def prepared_for(data: Interactions, *words: str, run: str = "contract") -> Prepared:
    """A run of a scenario, by default of a recipe of one step."""
    scenario = load(None, [f"seed={SEED}", *(words or PUBLISHED)])
    facts = PublicFacts(
        data.num_users, data.num_items, data.kind, data.value_range, None, Streams(SEED)
    )
    terms = Terms(run, recipes.client_recipe(scenario), data.kind, data.value_range, ITEMS)
    return Prepared(data, recipes.prepare(scenario, facts), terms)


@contextmanager
def _federation(
    transport: str, folder: Path, data: Interactions, unwilling: Collection[int]
) -> Iterator[Federation]:
    made = prepared_for(data)
    with ExitStack() as stack:
        endpoints = _over_grpc(folder) if "grpc" in transport else _at_hand(folder)
        endpoint, endpoint_of = stack.enter_context(endpoints)
        participants = [
            participant(
                shard,
                folder,
                endpoint_of(shard.name),
                stack,
                bounds=TOO_SMALL if number in unwilling else AnswerBounds(),
            )
            for number, shard in enumerate(shards(data, CLIENTS))
        ]
        clients = (
            _over_flower(transport, participants) if "flower" in transport else Called(participants)
        )
        yield Federation(**vars(made), endpoint=endpoint, clients=clients)


def _over_flower(transport: str, participants: Sequence[Participant]) -> Broadcast:
    from fedrec_server.flower import GridPost
    from tests.flower_grid import InProcessGrid, client_app

    nodes: dict[int, App] = {
        node: client_app(Requests(participant))
        for node, participant in enumerate(participants, start=2)
    }
    if "versions" in transport:
        nodes = {node: _of_the_version_before(app) for node, app in nodes.items()}
    return ClientBroadcast(GridPost(InProcessGrid(nodes)), 60.0)


def _of_the_version_before(app: App) -> App:
    """Each side takes the other for one of the version before."""
    from flwr.app import ConfigRecord

    from fedrec_client.flower import SAID

    def older(content: RecordDict) -> None:
        said = content[SAID]
        assert isinstance(said, ConfigRecord)
        assert said[FIELD] == PROTOCOL
        said[FIELD] = PROTOCOL - 1

    def called(message: Message, context: Context) -> Message:
        older(message.content)
        reply = app(message, context)
        older(reply.content)
        return reply

    return called


def participant(
    shard: Shard,
    folder: Path,
    endpoint: Any,
    stack: ExitStack,
    *,
    bounds: AnswerBounds | None = None,
) -> Participant:
    """A client of these users in a folder of its own."""
    own = folder / shard.name
    ledger = stack.enter_context(closing(ClientLedger(own / "ledger.sqlite", limit=PROMISE)))
    users = LocalUsers(shard.events, ITEMS, shard.user_ids)
    bounds = bounds or AnswerBounds()
    return Participant(shard.name, users, ledger, endpoint, own, users_per_batch=3, bounds=bounds)


Endpoints = tuple[ReleaseEndpoint, Callable[[str], ReportEndpoint]]


@contextmanager
def _at_hand(folder: Path) -> Iterator[Endpoints]:
    with closing(ReleaseLedger(folder / "aggregator", limit=PROMISE)) as ledger:
        aggregator = Aggregator(ledger, Limits(min_cohort=MIN_COHORT), noise=Streams(SEED))
        yield aggregator, aggregator.client_endpoint


@contextmanager
def _over_grpc(folder: Path) -> Iterator[Endpoints]:
    """A real service on a free port, in a thread."""
    settings = validated(
        {
            "listen": "127.0.0.1:0",
            "state": str(folder / "aggregator"),
            "log": str(folder / "aggregator.jsonl"),
            "insecure": True,
            "simulation": True,
            "any_client": True,
            "privacy": {
                "max_epsilon": PROMISE.epsilon,
                "delta": PROMISE.delta,
                "noise": "seeded",
                "seed": SEED,
            },
            "limits": {"min_cohort": MIN_COHORT},
        }
    )
    with serving(serve, settings) as address, ExitStack() as stack:

        def access(name: str) -> Access:
            return Access(str(address), name, insecure=True)

        yield (
            stack.enter_context(
                RemoteReleaseEndpoint(access("server"), retry=Retry(patience_s=2.0))
            ),
            lambda name: stack.enter_context(RemoteReportEndpoint(access(name))),
        )
