"""A training in which some people have light devices and others are at sites: questions that a
server publishes, reports to an aggregator."""

from __future__ import annotations

import hashlib
import json
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from fedrec.data.interactions import Interactions
from fedrec.errors import SettingsError
from fedrec.factorization.facts import public_facts
from fedrec.federation.messages import train
from fedrec.federation.protocol import Answer, Invitation, Opening, Terms
from fedrec.federation.round_driver import AggregatedLink, Patience
from fedrec.federation.wire import pack_release, question_digest, question_header
from fedrec.in_process import Loopback
from fedrec.preparing import Prepared, prepare
from fedrec.privacy.accounting import Ledger
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec.recipes import client_recipe
from fedrec.run.data.datasets import load_dataset, load_split
from fedrec.settings import load
from fedrec.transport.aggregator_client import RemoteReleaseEndpoint
from fedrec.transport.channel import Access
from fedrec_aggregator import main
from fedrec_aggregator.core import Aggregator, Limits
from fedrec_aggregator.device_server import DeviceIntake, PublishedContent, at_address, in_folder
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.settings import validated
from fedrec_client.device import Device, History, Limit, Service
from fedrec_client.ledger import ClientLedger
from fedrec_client.participant import Participant
from fedrec_client.store import LocalUsers
from fedrec_server.workload import NAME, DeviceClients, Publication
from tests.contracts.conftest import Called
from tests.device.test_light_device import InProcess
from tests.threads import serving

SEED = 1
RUN = "with-devices"
DEVICES = 6
LIMIT = Limit(100.0, 1e-5)


@dataclass
class Small:
    """A training of the default recipe on planted ratings, made short."""

    prepared: Prepared = field(init=False)
    data: Interactions = field(init=False)
    terms: Terms = field(init=False)

    def __post_init__(self) -> None:
        scenario = load(None, ["data.preset=small", "privacy.noise=seeded"])
        dataset = load_dataset(scenario)
        split = load_split(scenario, dataset)
        self.prepared = prepare(scenario, public_facts(scenario.seed, dataset, split))
        self.data = split.train
        ids = dataset.catalogue.item_ids
        self.terms = Terms(RUN, client_recipe(scenario), self.data.kind, self.data.value_range, ids)

    def history(self, user: int) -> History:
        own = slice(int(self.data.user_ptr[user]), int(self.data.user_ptr[user + 1]))
        return History(
            tuple(self.terms.items[j] for j in self.data.items[own]),
            tuple(map(float, self.data.values[own])),
        )

    @property
    def loopback(self) -> Loopback:
        return Loopback(
            self.data,
            self.prepared.steps,
            self.prepared.plan,
            Streams(SEED),
            Ledger(self.prepared.plan.guarantee),
        )


@pytest.mark.slow
def test_light_devices_and_a_site_give_the_bytes_of_a_loopback(tmp_path: Path) -> None:
    small = Small()
    users = small.data.num_users
    with ExitStack() as stack:
        ledger = ReleaseLedger(tmp_path / "aggregator", limit=small.prepared.plan.guarantee)
        stack.callback(ledger.close)
        aggregator = Aggregator(ledger, Limits(min_cohort=5), noise=Streams(SEED))
        content = PublishedContent(in_folder(tmp_path / "published"))
        intake = InProcess(DeviceIntake(aggregator, content))
        devices = [
            Device(
                tmp_path / f"device-{user}",
                small.history(user),
                limit=LIMIT,
                service=intake,
                user=str(user),
            )
            for user in range(users - DEVICES, users)
        ]
        for device in devices:
            stack.callback(device.ledger.close)
            assert not device.take_part()  # no round is open: it makes itself known
        own = stack.enter_context(
            closing(ClientLedger(tmp_path / "site" / "ledger.sqlite", limit=Guarantee(100.0, 1e-5)))
        )
        at_site = LocalUsers(
            small.data.users_subset(np.arange(users - DEVICES)),
            small.terms.items,
            tuple(map(str, range(users - DEVICES))),
        )
        endpoint = aggregator.client_endpoint("site")
        site = Called([Participant("site", at_site, own, endpoint, tmp_path / "site")])
        looked = list[bool]()

        def look(_: float) -> None:
            """While the server waits, devices look whether there is something to answer."""
            looked.extend(device.take_part() for device in devices)

        everybody = DeviceClients(
            site, aggregator, Publication(tmp_path / "published"), DEVICES, 1e6, sleep=look
        )
        assert [(answer.client, answer.users) for answer in everybody.join(small.terms)] == [
            ("site", users - DEVICES),
            (NAME, DEVICES),
        ]
        link = AggregatedLink(
            small.terms,
            small.prepared.plan,
            aggregator,
            everybody,
            Patience(attempts=1),
            num_users=users,
        )
        recipe = small.prepared.recipe
        reference = small.loopback
        for number, (ours, theirs) in enumerate(
            zip(
                train(recipe, link, recipe.begin()),
                train(recipe, reference, recipe.begin()),
                strict=True,
            )
        ):
            assert pack_release(ours.answer) == pack_release(theirs.answer), number
        assert all(looked)
        assert len(looked) == DEVICES * (number + 1)


def test_a_round_waits_for_devices_no_longer_than_its_window(tmp_path: Path) -> None:
    """Devices that stay away are counted as asked and not as accepted."""

    small = Small()
    slept = list[float]()
    with closing(ReleaseLedger(tmp_path / "aggregator", limit=None)) as ledger:
        aggregator = Aggregator(ledger, Limits(), noise=Streams(SEED))
        aggregator.enroll("device-1", [bytes(16)])
        clients = DeviceClients(
            Called([]),
            aggregator,
            Publication(tmp_path / "p"),
            5,
            3.0,
            sleep=slept.append,
            clock=lambda: float(len(slept)),
        )
        assert clients.join(small.terms) == [Answer(NAME, 1)]
        question = small.prepared.recipe.ask(small.prepared.recipe.begin())
        assert question is not None
        link = AggregatedLink(
            small.terms,
            small.prepared.plan,
            aggregator,
            clients,
            Patience(attempts=1, short_attempts=1, sleep=lambda _: None),
        )
        with pytest.raises(Exception, match="too few"):
            link.answer(question)
        assert len(slept) == 3


def test_a_publication_holds_what_a_device_asks_for_and_forgets_rounds_before_the_last(
    tmp_path: Path,
) -> None:
    small = Small()
    publication = Publication(tmp_path)
    recipe = small.prepared.recipe
    questions = [done.question for done in train(recipe, small.loopback, recipe.begin())][:3]
    for question in questions:
        publication.publish(small.terms, Invitation(RUN, small.prepared.plan, question))
    files = {path.name: path.read_bytes() for path in (tmp_path / "v1" / "content").iterdir()}
    assert all(hashlib.sha256(content).hexdigest() == name for name, content in files.items())
    held = {
        hashlib.sha256(array.tobytes()).hexdigest()
        for question in questions[1:]
        for array in question.public.values()
    }
    assert held <= files.keys()
    content = PublishedContent(in_folder(tmp_path))
    assert content.told() == (tmp_path / "v1" / "round").read_bytes()
    assert content.content("../round") is None
    publication.withdraw()
    assert content.told() == b"{}"


def test_content_from_afar_is_taken_by_its_digest_alone_and_fetched_once() -> None:
    asked = list[str]()
    good = hashlib.sha256(b"array").hexdigest()

    def get(name: str) -> bytes:
        asked.append(name)
        return b"array"

    content = PublishedContent(get)
    assert content.content(good) == content.content(good) == b"array"
    assert asked == [f"v1/content/{good}"]
    assert content.content("0" * 64) is None
    assert content.content("../../round") is None
    with pytest.raises(SettingsError, match="no https address"):
        at_address("http://server.example")


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"listen": "0.0.0.0:0", "content": "x", "any_device": True}, "need TLS"),
        ({"listen": "127.0.0.1:0", "content": "x"}, "any_device"),
        (
            {"listen": "127.0.0.1:0", "content": "x", "any_device": True, "certificate": "a.pem"},
            "come together",
        ),
    ],
)
def test_an_endpoint_of_devices_that_is_not_safe_does_not_start(
    table: dict[str, object], words: str
) -> None:
    content = {
        "listen": "127.0.0.1:0",
        "state": "x",
        "insecure": True,
        "privacy": {"max_epsilon": 1.0},
        "devices": table,
    }
    with pytest.raises(SettingsError, match=words):
        validated(content)


def test_an_aggregator_s_process_answers_devices_from_the_published_folder(tmp_path: Path) -> None:
    small = Small()
    question = small.prepared.recipe.ask(small.prepared.recipe.begin())
    assert question is not None
    Publication(tmp_path / "p").publish(small.terms, Invitation(RUN, small.prepared.plan, question))
    guarantee = small.prepared.plan.guarantee
    settings = validated(
        {
            "listen": "127.0.0.1:0",
            "state": str(tmp_path / "aggregator"),
            "log": str(tmp_path / "log.jsonl"),
            "insecure": True,
            "privacy": {"max_epsilon": guarantee.epsilon, "delta": guarantee.delta},
            "limits": {"min_cohort": 1},
            "devices": {
                "listen": "127.0.0.1:0",
                "content": str(tmp_path / "p"),
                "any_device": True,
            },
        }
    )
    with serving(main.run, settings):
        told = json.loads((tmp_path / "aggregator" / "address.json").read_text())
        with (
            RemoteReleaseEndpoint(Access(told["address"], "server", insecure=True)) as endpoint,
            ExitStack() as stack,
        ):
            endpoint.open_run(RUN, small.prepared.plan)
            header = question_header(question, run=RUN, plan=small.prepared.plan.digest())
            endpoint.open_round(
                Opening(RUN, question.round, header, question_digest(header), 600.0)
            )
            me = Device(
                tmp_path / "me",
                small.history(3),
                limit=LIMIT,
                service=Service(f"http://{told['devices']}"),
            )
            stack.callback(me.ledger.close)
            assert me.take_part()
            assert endpoint.status(RUN, question.round).reported == 1
