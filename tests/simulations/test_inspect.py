"""Three parties run in one process on their own folders; what `fedrec inspect` says is compared
with what they really exchanged."""

import json
import math
import shutil
import sqlite3
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrec.cli.disclosure.overview import inspected, text
from fedrec.data.planted import PlantedShape, planted
from fedrec.errors import RunError
from fedrec.federation.protocol import Receipt
from fedrec.federation.round_driver import Patience
from fedrec.privacy.accounting import GaussianEvent, epsilon_of, mu_for
from fedrec.privacy.click_accounting import Costs
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.selection import PureEvent
from fedrec.public_data import PublicData
from fedrec.randomness import Streams
from fedrec.settings import load
from fedrec.storage import write_arrays, write_json
from fedrec_aggregator.core import Aggregator, Limits
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_client.click_ledger import ClickLedger
from fedrec_client.ledger import ClientLedger
from fedrec_client.participant import Participant
from fedrec_client.serving_ledger import Drawn, ServingLedger, ServingQuestion, event_of
from fedrec_client.store import LocalUsers
from fedrec_server.gathering import Gathering
from fedrec_server.rounds import run_rounds
from fedrec_server.run_record import FORMAT
from fedrec_server.run_settings import RunSettings
from tests.contracts.conftest import Called
from tests.waiting import HANG_S

USERS = 24
BOUNDARY = 10


@dataclass
class Endpoint:
    """The aggregator's endpoint for one client, and a list of the messages that crossed it."""

    endpoint: Any
    crossed: list[bytes] = field(default_factory=list)

    def __getattr__(self, call: str) -> Any:
        return getattr(self.endpoint, call)

    def report(self, run: str, round: int, batch: bytes) -> Receipt:
        self.crossed.append(batch)
        receipt: Receipt = self.endpoint.report(run, round, batch)
        return receipt


@dataclass(frozen=True)
class Done:
    folder: Path
    messages: dict[str, list[bytes]]
    dataset: Any


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("run")
    dataset = planted(PlantedShape(users=USERS, items=40, events=260), seed=4)
    events = dataset.interactions
    ids = dataset.catalogue
    with ExitStack() as stack:
        release_ledger = stack.enter_context(
            closing(ReleaseLedger(folder / "aggregator", limit=None, clock=lambda: 1e9))
        )
        core = Aggregator(release_ledger, Limits(min_cohort=USERS), noise=Streams(1))
        endpoints = dict[str, Endpoint]()
        participants = list[Participant]()
        for name, start, end in (("hospital", 0, BOUNDARY), ("library", BOUNDARY, USERS)):
            ledger = ClientLedger(
                folder / name / "ledger.sqlite", limit=Guarantee(5.0, 1e-5), clock=lambda: 1e9
            )
            stack.enter_context(closing(ledger))
            users = LocalUsers(
                events.users_subset(np.arange(start, end)), ids.item_ids, ids.user_ids[start:end]
            )
            endpoints[name] = Endpoint(core.client_endpoint(name))
            options = {"users_per_batch": 6, "keep_sent": name == "hospital"}
            participants.append(
                Participant(name, users, ledger, endpoints[name], folder / name, **options)
            )
        public = PublicData(ids.item_ids, events.kind, events.value_range, dataset.features)
        gathering = Gathering(expected_users=USERS, min_clients=2, timeout_s=HANG_S)
        list(
            run_rounds(
                load(None),
                public,
                core,
                Called(participants),
                folder / "server",
                RunSettings(gathering, Patience(), run="run-1"),
            )
        )
    return Done(folder, {name: endpoint.crossed for name, endpoint in endpoints.items()}, dataset)


def sent(done: Done, round: int) -> list[dict[str, Any]]:
    hospital = next(
        c for c in inspected(done.folder, round=round)["clients"] if c["folder"] == "hospital"
    )
    return list(hospital["rounds"][0]["kept"])


def test_every_party_under_a_folder_is_found_and_nothing_else(done: Done) -> None:
    found = inspected(done.folder)
    assert [c["folder"] for c in found["clients"]] == ["hospital", "library"]
    assert [p["folder"] for p in found["aggregators"] + found["servers"]] == [
        "aggregator",
        "server",
    ]


def test_every_byte_of_a_message_belongs_to_one_field_and_messages_are_those_that_crossed(
    done: Done,
) -> None:
    numbers = [line["round"] for line in inspected(done.folder)["servers"][0]["rounds"]]
    shown = [message for number in numbers for message in sent(done, number)]
    assert sorted(m["bytes"] for m in shown) == sorted(
        len(data) for data in done.messages["hospital"]
    )
    for message in shown:
        ends = [f["offset"] + f["bytes"] for f in message["fields"]]
        assert [0, *ends[:-1]] == [f["offset"] for f in message["fields"]]
        assert ends[-1] == message["bytes"]


def test_the_first_users_part_is_in_the_message_byte_for_byte(done: Done) -> None:
    message = sent(done, 0)[0]
    data = done.messages["hospital"][0]
    assert {f["field"] for f in message["one_user"]} >= {"report id", "pseudonym", "items"}
    for one in message["one_user"]:
        assert bytes.fromhex(one["hex"]) in data
    items = next(f["values"] for f in message["one_user"] if f["field"] == "items")
    mine = done.dataset.interactions
    assert items == sorted(mine.items[: mine.user_ptr[1]].tolist())


def test_numbers_are_shown_in_real_units_on_their_grid(done: Done) -> None:
    for one in sent(done, 0)[0]["one_user"]:
        if "coefficients" in one["field"]:
            integers = np.frombuffer(bytes.fromhex(one["hex"]), "<i2")
            ratios = np.array(one["values"])[integers != 0] / integers[integers != 0]
            assert len(set(ratios.tolist())) == 1
            return
    pytest.fail("no coefficients are shown")


def test_the_bytes_that_clients_sent_are_those_that_reached_the_aggregator(done: Done) -> None:
    found = inspected(done.folder)
    for line in found["servers"][0]["rounds"]:
        up = [
            r["bytes_sent"]
            for c in found["clients"]
            for r in c["rounds"]
            if r["round"] == line["round"]
        ]
        arrived = next(r for r in found["aggregators"][0]["rounds"] if r["round"] == line["round"])
        assert sum(up) == arrived["bytes_in"]
        assert arrived["reported"] == USERS
        assert arrived["release"] == line["release"]
        assert line["release"]["as_recorded"]


def test_charges_of_clients_and_aggregator_name_the_same_releases(done: Done) -> None:
    found = inspected(done.folder)
    charged = {(c["round"], c["release"]): c["mu"] for c in found["aggregators"][0]["charges"]}
    for client in found["clients"]:
        assert {
            (c["round"], name): mu for c in client["charges"] for name, mu in c["releases"].items()
        } == charged
    assert found["aggregators"][0]["spent"]["user (add/remove, number of users public)"][
        "epsilon"
    ] == pytest.approx(5.0, abs=1e-3)


def test_what_a_client_spent_is_what_the_aggregator_was_charged_in_its_unit(done: Done) -> None:
    found = inspected(done.folder)
    assert all(client["spent"] == found["aggregators"][0]["spent"] for client in found["clients"])


@pytest.fixture
def click_ledgers(tmp_path: Path) -> Path:
    """A client of news that took part in two runs, and a device that paid for two answers."""
    limit = Guarantee(9.0, 1e-5, "click", "replace")
    with closing(
        ClickLedger(tmp_path / "site" / "clicks.sqlite", limit=limit, clock=lambda: 1e9)
    ) as ledger:
        for run, epsilon in (("run-1", 2.0), ("run-2", 3.0)):
            report = GaussianEvent("report", mu_for(epsilon, 1e-5), "click", "replace")
            ledger.charge(run, Costs((report,), (PureEvent("label", epsilon),)))
        for round in (1, 2):
            ledger.answer("run-2", round, f"{round}" * 64, np.ones(1, bool), most=2)
    with closing(
        ServingLedger(tmp_path / "phone" / "ledger.sqlite", limit=limit, clock=lambda: 1e9)
    ) as ledger:
        for history in "ab":
            price = event_of(mu_for(4.0, 1e-5))
            asked = ServingQuestion(
                "f" * 16, "rows", history, Guarantee(4.0, 1e-5, "click", "replace"), price
            )
            ledger.answer(
                asked, lambda price=price: Drawn(np.ones(3), np.full(3, 2, np.float32), 0.5, price)
            )  # type: ignore[misc]
    return tmp_path


def test_ledgers_of_clicks_show_what_was_paid_for_and_all_of_it_composed(
    click_ledgers: Path,
) -> None:
    """Against the formulas: reports compose as Gaussians, both labels fall to the same click at
    worst, and it pays 2 + 3."""
    found = inspected(click_ledgers)
    (site,), (phone,) = found["news_clients"], found["devices"]
    assert [
        (c["run"], c["history"][0]["epsilon"], c["labels"][0]["epsilon"]) for c in site["charges"]
    ] == [
        ("run-1", pytest.approx(2), 2.0),
        ("run-2", pytest.approx(3), 3.0),
    ]
    assert [charge["rounds"] for charge in site["charges"]] == [[], [1, 2]]
    reports = epsilon_of(math.hypot(mu_for(2.0, 1e-5), mu_for(3.0, 1e-5)), 1e-5)
    assert reports < site["spent"]["click (replace)"]["epsilon"] == pytest.approx(5, abs=1e-3)
    assert [(a["epsilon"], a["sent"], a["kept_bytes"]) for a in phone["answers"]] == [
        (pytest.approx(4), [2.0] * 3, 36)
    ] * 2
    spent = epsilon_of(math.sqrt(2) * mu_for(4.0, 1e-5), 1e-5)
    assert phone["spent"] == {"click (replace)": {"epsilon": pytest.approx(spent), "delta": 1e-5}}
    assert inspected(click_ledgers, round=2)["news_clients"][0]["charges"][1]["rounds"] == [2]


def test_the_text_of_ledgers_of_clicks_has_the_unit_beside_every_epsilon(
    click_ledgers: Path,
) -> None:
    words = text(inspected(click_ledgers))
    assert max(len(line) for line in words.splitlines()) <= 80
    flat = " ".join(words.split())
    assert flat.count("click (replace)") == flat.count("charged in all") == 2
    assert "epsilon" in flat
    assert "per click" in flat


def test_a_server_of_news_that_devices_answer_says_what_they_told_it_and_claims_no_aggregator(
    tmp_path: Path,
) -> None:
    chosen = {"news": {"variant": "additive"}, "privacy": {"unit": "click"}}
    write_json(
        tmp_path / "run.json",
        {
            "format": FORMAT,
            "run": "r",
            "num_users": 0,
            "plan": None,
            "trains": {"news": json.dumps(chosen)},
        },
    )
    write_json(tmp_path / "clients.json", {"client-1": 48, "client-2": 25})
    write_arrays(tmp_path / "reports.safetensors", {"coefficients": np.zeros((73, 8))})
    (server,) = inspected(tmp_path)["servers"]
    assert server["num_users"] == 73
    assert server["news"]["reports"] == {"coefficients": [73, 8]}
    assert "aggregator" not in " ".join(server["never_sees"])
    words = text(inspected(tmp_path))
    assert "73 x 8" in words
    assert max(len(line) for line in words.splitlines()) <= 80


def test_a_damaged_ledger_of_clicks_is_named(click_ledgers: Path) -> None:
    for path, table in (
        (click_ledgers / "site" / "clicks.sqlite", "entries"),
        (click_ledgers / "phone" / "ledger.sqlite", "answers"),
    ):
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(f"UPDATE {table} SET time_s = 'never' WHERE number = 2")
        with pytest.raises(RunError, match="damaged: entry 2"):
            inspected(path.parent)


def test_one_round_can_be_chosen(done: Done) -> None:
    found = inspected(done.folder, round=1)
    parties = [*found["clients"], *found["aggregators"], *found["servers"]]
    assert {r["round"] for p in parties for r in p["rounds"]} == {1}


def test_a_client_that_kept_nothing_says_how_to(done: Done) -> None:
    assert "keep_sent = true" in text(inspected(done.folder / "library"))
    assert "keep_sent" not in text(inspected(done.folder / "hospital"))


def test_the_text_has_80_columns_and_names_what_the_server_never_sees(done: Done) -> None:
    words = text(inspected(done.folder))
    assert max(len(line) for line in words.splitlines()) <= 80
    assert all(
        " ".join(never.split()) in " ".join(words.split())
        for never in inspected(done.folder)["servers"][0]["never_sees"]
    )


def test_the_content_is_json(done: Done) -> None:
    assert json.loads(json.dumps(inspected(done.folder), allow_nan=False))["clients"]


def test_partial_folders_are_enough(done: Done, tmp_path: Path) -> None:
    shutil.copytree(done.folder / "server", tmp_path / "server")
    shutil.rmtree(tmp_path / "server" / "releases")
    (tmp_path / "server" / "rounds.jsonl").unlink()
    assert inspected(tmp_path)["servers"][0]["rounds"] == []
    shutil.copytree(done.folder / "aggregator", tmp_path / "aggregator")
    shutil.rmtree(tmp_path / "aggregator" / "releases")
    assert all(r["release"]["missing"] for r in inspected(tmp_path)["aggregators"][0]["rounds"])
    text(inspected(tmp_path))


def test_a_changed_release_is_seen(done: Done, tmp_path: Path) -> None:
    shutil.copytree(done.folder / "server", tmp_path / "server")
    path = tmp_path / "server" / "releases" / "round-000.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert "NOT WHAT WAS RECORDED" in " ".join(text(inspected(tmp_path, round=0)).split())


def test_a_damaged_message_is_named(done: Done, tmp_path: Path) -> None:
    shutil.copytree(done.folder / "hospital", tmp_path / "hospital")
    path = min((tmp_path / "hospital" / "sent").rglob("*.frr"))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RunError, match=path.name):
        inspected(tmp_path)


def test_a_folder_without_a_party_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(RunError, match="holds no state"):
            inspected(folder)
