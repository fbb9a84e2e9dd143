"""Three parties' settings, certificates and folders as an operator would have them; each test
spoils one thing."""

import re
import shutil
import sqlite3
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedrec.cli.doctor import parties
from fedrec.cli.doctor.machine import judged
from fedrec.cli.doctor.preflight import Found, diagnose, preflight, table
from fedrec.data.features import PublicFeatures
from fedrec.data.planted import PlantedShape, planted
from fedrec.data.planted_news import PlantedNewsShape, planted_news
from fedrec.errors import FedRecError
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.protocol import LedgerHead
from fedrec.news.topics import public_vectors
from fedrec.news.trained import Catalogue
from fedrec.operations.certificates import (
    KeyPair,
    issue,
    make_ca,
    pins,
    write_development_certificates,
)
from fedrec.operations.pins import write_pins
from fedrec.operations.renewal import renew
from fedrec.privacy.accounting import GaussianEvent, mu_for
from fedrec.privacy.calibration import calibrate
from fedrec.privacy.click_accounting import Costs
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.selection import PureEvent
from fedrec.public_data import write_public
from fedrec.randomness import Streams
from fedrec.settings import load
from fedrec_aggregator import main as aggregator_main
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.settings import load as load_aggregator
from fedrec_client.click_ledger import ClickLedger
from fedrec_client.ledger import ClientLedger
from fedrec_client.serving_ledger import Drawn, ServingLedger, ServingQuestion, event_of
from fedrec_client.store import write_shard
from fedrec_server.public_news import write_public_news
from fedrec_server.round_service import RoundService
from fedrec_server.settings_tables import LinkTable
from fedrec_server.watching import SeenLedger
from tests.threads import serving
from tests.waiting import HANG_S

DAY_S = 86_400.0

AGGREGATOR = """
listen = "127.0.0.1:0"
state = "aggregator"
any_client = true
[tls]
certificate = "certificates/aggregator.pem"
key = "certificates/aggregator-key.pem"
client_ca = "certificates/ca.pem"
[privacy]
max_epsilon = 7.0
"""
CLIENT = """
name = "library"
state = "client"
[data]
path = "data.safetensors"
[aggregator]
address = "{aggregator}"
ca = "certificates/ca.pem"
certificate = "certificates/client-library.pem"
key = "certificates/client-library-key.pem"
[server]
address = "127.0.0.1:1"
ca = "certificates/ca.pem"
certificate = "certificates/client-library.pem"
key = "certificates/client-library-key.pem"
"""
SERVER = """
state = "{folder}/server"
[public]
path = "{folder}/public"
[aggregator]
address = "{aggregator}"
ca = "{folder}/certificates/ca.pem"
certificate = "{folder}/certificates/server.pem"
key = "{folder}/certificates/server-key.pem"
[link]
certificate = "{folder}/certificates/server.pem"
key = "{folder}/certificates/server-key.pem"
client_ca = "{folder}/certificates/ca.pem"
"""
SCENARIO = "[privacy]\nepsilon = 5.0\n"


@dataclass
class Site:
    """One folder with everything; `write` replaces a settings file with some words changed."""

    folder: Path
    aggregator: str = "127.0.0.1:1"

    def write(self, changes: dict[str, str] | None = None) -> None:
        for name, content in (
            ("aggregator", AGGREGATOR),
            ("client", CLIENT),
            ("server", SERVER),
            ("scenario", SCENARIO),
        ):
            text = content.replace("{folder}", str(self.folder)).replace(
                "{aggregator}", self.aggregator
            )
            for old, new in (changes or {}).items():
                text = text.replace(old, new)
            (self.folder / f"{name}.toml").write_text(text)

    def examine(self, *, reach: bool = False, now_s: float | None = None, **only: bool) -> Found:
        names = [
            name
            for name in ("aggregator", "client", "server", "scenario")
            if only.get(name, not only)
        ]
        clock: Callable[[], float] = time.time if now_s is None else lambda: now_s
        return diagnose(
            **{name: self.folder / f"{name}.toml" for name in names}, reach=reach, clock=clock
        )  # type: ignore[arg-type]


def verdicts(found: Found, verdict: str) -> list[tuple[str, str]]:
    return [(check.party, check.name) for check in found.checks if check.verdict == verdict]


def words(found: Found, party: str, name: str) -> str:
    check = next(check for check in found.checks if (check.party, check.name) == (party, name))
    return f"{check.words} {check.remedy}"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    dataset = planted(PlantedShape(users=6, items=20, events=20, least_events=2), seed=1)
    events = dataset.interactions
    catalogue = dataset.catalogue
    write_development_certificates(tmp_path / "certificates", clients=["library"])
    write_shard(
        tmp_path / "data.safetensors", events, catalogue.item_ids, [f"person-{k}" for k in range(6)]
    )
    write_public(
        tmp_path / "public",
        catalogue,
        PublicFacts(6, 20, events.kind, events.value_range, dataset.features, Streams(1)),
    )
    site = Site(tmp_path)
    site.write()
    return site


@contextmanager
def _aggregator(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The aggregator at work, whose address the settings of the others then have."""
    monkeypatch.setattr(parties, "_TIMEOUT_S", HANG_S)
    settings = load_aggregator(site.folder / "aggregator.toml")
    with serving(aggregator_main.run, settings) as address:
        site.aggregator = str(address)
        site.write()
        yield


@pytest.fixture
def running(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """The same with the aggregator at work."""
    with _aggregator(site, monkeypatch):
        yield site


def test_a_site_as_it_should_be_passes_and_preflight_lets_it_start(site: Site) -> None:
    found = site.examine()
    assert verdicts(found, "failure") == verdicts(found, "doubt") == []
    assert found.exit_code == 0
    preflight(
        **{
            name: site.folder / f"{name}.toml"
            for name in ("aggregator", "client", "server", "scenario")
        }
    )


def test_without_settings_the_machine_alone_is_examined() -> None:
    found = diagnose()
    assert {check.party for check in found.checks} == {"machine"}
    assert found.exit_code == 0


def test_every_failure_has_a_cause_a_remedy_and_an_exit_code_and_the_first_decides(
    site: Site,
) -> None:
    (site.folder / "certificates" / "aggregator.pem").unlink()
    (site.folder / "client.toml").write_text("nonsense = 1")
    found = site.examine()
    assert verdicts(found, "failure")[0] == ("aggregator", "certificate")
    assert ("client", "settings") in verdicts(found, "failure")
    assert found.exit_code == 2
    for check in found.checks:
        assert bool(check.remedy and check.exit_code) == (check.verdict == "failure")
    with pytest.raises(FedRecError, match="aggregator, certificate") as caught:
        preflight(aggregator=site.folder / "aggregator.toml")
    assert caught.value.exit_code == 2


def test_the_text_shows_what_to_do(site: Site) -> None:
    site.write({"max_epsilon = 7.0": "max_epsilon = 4.0"})
    said = table(site.examine())
    assert "FAILS" in said
    assert "->" in said
    assert "1 of" in said.splitlines()[-1]
    assert max(len(line) for line in said.splitlines()) <= 100


def test_an_expired_and_a_soon_expiring_certificate_are_told_apart(site: Site) -> None:
    soon = site.examine(now_s=time.time() + 80 * DAY_S)
    late = site.examine(now_s=time.time() + 91 * DAY_S)
    assert ("client", "certificate") in verdicts(soon, "doubt")
    assert soon.exit_code == 0
    assert ("client", "certificate") in verdicts(late, "failure")
    assert "expired" in words(late, "server", "authority")
    assert "valid from" in words(
        site.examine(now_s=time.time() - 2 * DAY_S), "aggregator", "certificate"
    )


@pytest.mark.parametrize(
    ("changes", "check", "said"),
    [
        ({"client-library-key.pem": "server-key.pem"}, "certificate", "is not the key of"),
        ({"client-library": "server"}, "certificate", "fedrec:server:server"),
        ({'state = "client"': 'state = "data.safetensors/client"'}, "disk", "cannot be written"),
    ],
)
def test_what_a_clients_settings_name_wrongly_is_named(
    site: Site, changes: dict[str, str], check: str, said: str
) -> None:
    site.write(changes)
    found = site.examine(client=True)
    assert ("client", check) in verdicts(found, "failure")
    assert said in words(found, "client", check)


def test_a_certificate_of_another_name_than_the_settings_is_named_and_the_client_does_not_start(
    site: Site,
) -> None:
    site.write({'name = "library"': 'name = "hospital"'})
    found = site.examine(client=True)
    assert verdicts(found, "failure") == [
        ("client", "certificate"),
        ("client", "certificate for the server"),
    ]
    assert "client-library.pem is of 'library', the settings are of 'hospital'" in words(
        found, "client", "certificate"
    )
    with pytest.raises(FedRecError, match="the settings are of 'hospital'"):
        preflight(client=site.folder / "client.toml")


def test_a_certificate_renewed_with_its_key_keeps_its_pin_and_one_with_a_new_key_is_named_on_its_own_machine(
    site: Site,
) -> None:
    """Others would refuse it: who renews finds out at home. With new pins all is well again."""
    certificates = site.folder / "certificates"
    write_pins(certificates)
    site.write(
        {
            "any_client = true": 'pins = "certificates/pins.toml"',
            "max_epsilon = 7.0": 'max_epsilon = 7.0\n[[clients]]\nname = "library"',
        }
    )
    for new_key, failing in ((False, []), (True, [("aggregator", "certificate")])):
        renew(certificates, "aggregator", days=200, new_key=new_key)
        found = site.examine(aggregator=True)
        assert verdicts(found, "failure") == failing
    assert "Renew with the same key" in words(found, "aggregator", "certificate")
    write_pins(certificates)
    assert not verdicts(site.examine(aggregator=True), "failure")


def test_a_certificate_of_another_authority_is_named(site: Site) -> None:
    other = make_ca(site.folder / "other", days=9)
    pair: KeyPair = issue(other, "aggregator", "aggregator", days=9)
    site.write({"certificates/aggregator": f"other/{pair.certificate.stem}"})
    assert "not vouched for" in words(site.examine(aggregator=True), "aggregator", "certificate")


@pytest.mark.parametrize(
    ("folder", "mode", "verdict"),
    [
        (0o755, 0o604, "failure"),
        (0o755, 0o640, "doubt"),
        (0o755, 0o600, "ok"),
        (0o700, 0o644, "ok"),
    ],
)
def test_a_key_that_others_may_read_is_seen_unless_its_folder_is_closed(
    site: Site, folder: int, mode: int, verdict: str
) -> None:
    (site.folder / "certificates" / "client-library-key.pem").chmod(mode)
    (site.folder / "certificates").chmod(folder)
    assert ("client", "private files") in verdicts(site.examine(client=True), verdict)


def test_a_taken_port_is_named_unless_the_party_says_it_is_its_own(running: Site) -> None:
    running.write({'listen = "127.0.0.1:0"': f'listen = "{running.aggregator}"'})
    assert ("aggregator", "port") in verdicts(running.examine(aggregator=True), "doubt")
    running.write(
        {
            'listen = "127.0.0.1:0"': f'listen = "{running.aggregator}"',
            'state = "aggregator"': 'state = "elsewhere"',
        }
    )
    assert ("aggregator", "port") in verdicts(running.examine(aggregator=True), "failure")


def test_data_that_cannot_be_read_is_named(site: Site) -> None:
    (site.folder / "data.safetensors").write_bytes(b"nothing")
    assert ("client", "data") in verdicts(site.examine(client=True), "failure")


def test_a_scenario_that_passes_a_limit_is_named_before_it_runs(site: Site) -> None:
    site.write({"epsilon = 5.0": "epsilon = 5.5"})
    found = site.examine()
    assert verdicts(found, "failure") == [("client", "limit")]
    assert found.exit_code == 5
    assert "the limit is epsilon 5" in words(found, "client", "limit")


def test_what_was_spent_before_counts_against_the_limits(site: Site) -> None:
    plan = calibrate(Guarantee(3.0, 1e-5), {"first": 1.0})
    ledger = ClientLedger(site.folder / "client" / "ledger.sqlite", limit=Guarantee(5.0, 1e-5))
    ledger.charge("run-0", 0, "0" * 64, plan, ["first"])
    ledger.close()
    releases = ReleaseLedger(site.folder / "aggregator", limit=Guarantee(7.0, 1e-5))
    releases.keep_plan("run-0", plan)
    releases.charge("run-0", 0, plan, ["first"])
    releases.close()
    site.write({"epsilon = 5.0": "epsilon = 4.9"})
    found = site.examine()
    assert verdicts(found, "failure") == [("client", "limit")]
    assert "epsilon 3 per user (add/remove, number of users public) spent" in words(
        found, "client", "ledger"
    )
    assert "epsilon 3 per user (add/remove, number of users public) released" in words(
        found, "aggregator", "ledger"
    )
    assert re.search(
        r"epsilon 6\.\d+ per user \(add/remove, number of users public\) after it",
        words(found, "aggregator", "limit"),
    )


def test_what_clicks_have_cost_in_trainings_of_news_is_said_in_their_unit(site: Site) -> None:
    site.write(
        {
            '"data.safetensors"': (
                '"data.safetensors"\nformat = "news-shard"\n[privacy]\nunit = '
                '"click"\nmax_epsilon = 9.0'
            )
        }
    )
    assert "begins" in words(site.examine(client=True), "client", "ledger")
    ledger = ClickLedger(
        site.folder / "client" / "clicks.sqlite", limit=Guarantee(9.0, 1e-5, "click", "replace")
    )
    ledger.charge(
        "run-0",
        Costs(
            (GaussianEvent("report", mu_for(3.0, 1e-5), "click", "replace"),),
            (PureEvent("label", 2.0),),
        ),
    )
    ledger.close()
    assert "1 runs, unbroken; epsilon 3 per click (replace) spent so far, limit 9" in words(
        site.examine(client=True), "client", "ledger"
    )
    spoil(site.folder / "client" / "clicks.sqlite", "UPDATE entries SET run = 'run-1'")
    assert ("client", "ledger") in verdicts(site.examine(client=True), "failure")


def test_what_a_device_has_spent_on_recommendations_is_said_in_its_unit(tmp_path: Path) -> None:
    assert "begins" in words(diagnose(device=tmp_path), "device", "ledger")
    paid_answer(tmp_path / "ledger.sqlite")
    found = diagnose(device=tmp_path)
    assert "1 answers, unbroken; epsilon 5 per click (replace) at delta 1e-05 spent" in words(
        found, "device", "ledger"
    )
    assert found.exit_code == 0
    spoil(tmp_path / "ledger.sqlite", "UPDATE answers SET mu = '0x0p+0'")
    assert verdicts(diagnose(device=tmp_path), "failure") == [("device", "ledger")]


def paid_answer(path: Path) -> None:
    limit = Guarantee(5.0, 1e-5, "click", "replace")
    price = event_of(mu_for(5.0, 1e-5))
    ledger = ServingLedger(path, limit=limit)
    ledger.answer(
        ServingQuestion("0" * 16, "rows", "history", limit, price),
        lambda: Drawn(np.ones(4), np.ones(4, np.float32), 0.5, price),
    )
    ledger.close()


def spoil(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(statement)


@pytest.mark.parametrize(
    ("choice", "more"),
    [('accountant = "am-ssp"', set()), ('unit = "example"', {("server", "public data")})],
)
def test_a_scenario_whose_guarantee_is_not_established_or_that_parties_cannot_run_is_named(
    site: Site, choice: str, more: set[tuple[str, str]]
) -> None:
    (site.folder / "scenario.toml").write_text(f'recipe = "published"\n[privacy]\n{choice}\n')
    found = site.examine()
    assert {("client", "limit"), ("aggregator", "limit")} | more <= set(verdicts(found, "failure"))
    assert "NOT ESTABLISHED" in words(found, "client", "limit")


@pytest.mark.parametrize(
    ("aggregators", "words"), [((1, 2, 3), "500 items, news"), ((), "needs an aggregator")]
)
def test_news_that_is_summed_needs_an_aggregator_or_three(
    tmp_path: Path, aggregators: tuple[int, ...], words: str
) -> None:
    news = planted_news(
        PlantedNewsShape(
            users=10, news=500, history_mean=10, impressions_mean=3, candidates=6, strength=3.0
        ),
        seed=2,
    ).news
    write_public_news(
        tmp_path, Catalogue(news, public_vectors(news, PublicFeatures({}), seed=2, dimension=8))
    )
    public = SimpleNamespace(path=str(tmp_path), format="news")
    settings = SimpleNamespace(public=public, aggregator=None, aggregators=aggregators)
    keys = [
        "recipe=privaterec",
        "news.variant=additive",
        "data.format=planted-news",
        "news.variant=central",
        "privacy.unit=user",
    ]
    scenario = load(None, [*keys, "privacy.aggregation=three-party"])
    check = judged("server", "public data", lambda: parties._public(settings, scenario))  # type: ignore[arg-type]
    assert words in check.words


def test_a_damaged_ledger_is_named(site: Site) -> None:
    for name in ("client", "aggregator"):
        (site.folder / name).mkdir()
        (site.folder / name / "ledger.sqlite").write_bytes(b"this is no ledger at all")
        (site.folder / name / "ledger.sqlite").chmod(0o600)
    assert verdicts(site.examine(), "failure") == [
        ("aggregator", "ledger"),
        ("aggregator", "limit"),
        ("client", "ledger"),
        ("client", "limit"),
    ]


def test_a_clock_behind_the_ledger_is_named(site: Site) -> None:
    plan = calibrate(Guarantee(1.0, 1e-5), {"first": 1.0})
    ledger = ClientLedger(
        site.folder / "client" / "ledger.sqlite",
        limit=Guarantee(5.0, 1e-5),
        clock=lambda: time.time() + 2 * DAY_S,
    )
    ledger.charge("run-0", 0, "0" * 64, plan, ["first"])
    ledger.close()
    assert "clock" in words(site.examine(client=True), "client", "ledger")


def test_an_aggregator_at_work_is_reached_by_client_and_server(running: Site) -> None:
    found = running.examine(reach=True, client=True, server=True)
    assert "serves" in words(found, "client", "aggregator")
    assert "serves" in words(found, "server", "aggregator")


def test_a_client_that_the_running_aggregator_does_not_list_is_told_so(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.write({"any_client = true": '[[clients]]\nname = "hospital"'})
    with _aggregator(site, monkeypatch):
        found = site.examine(reach=True, client=True, server=True)
    assert ("client", "aggregator") in verdicts(found, "failure")
    assert "'library' is not listed" in words(found, "client", "aggregator")
    assert ("server", "aggregator") in verdicts(found, "ok")


def test_a_key_that_the_running_aggregator_does_not_know_is_told_so(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's own pins are new; the aggregator's are those of its start."""
    write_pins(site.folder / "certificates")
    pinned = 'pins = "certificates/pins.toml"\n[[clients]]\nname = "library"'
    site.write({"any_client = true": pinned})
    with _aggregator(site, monkeypatch):
        assert ("client", "aggregator") in verdicts(site.examine(reach=True, client=True), "ok")
        renew(site.folder / "certificates", "client-library", days=90, new_key=True)
        write_pins(site.folder / "certificates")
        found = site.examine(reach=True, client=True)
    assert ("client", "aggregator") in verdicts(found, "failure")
    assert "bring its pins up to date" in words(found, "client", "aggregator")


def test_serving_with_a_key_of_the_training_is_doubted(site: Site) -> None:
    for name, verdict in (("serving", "ok"), ("server", "doubt")):
        (site.folder / "serving.toml").write_text(
            'grpc = "127.0.0.1:0"\nhttp = ""\n[tls]\n'
            f'certificate = "certificates/{name}.pem"\nkey = "certificates/{name}-key.pem"\n'
        )
        found = diagnose(serving=site.folder / "serving.toml", reach=False)
        assert ("serving", "certificate") in verdicts(found, verdict)


def test_a_pin_of_another_certificate_is_named(running: Site) -> None:
    right = pins((running.folder / "certificates" / "aggregator.pem").read_bytes()).certificate
    for pin, verdict in ((right, "ok"), ("0" * 64, "failure")):
        running.write({"[server]": f'pin = "{pin}"\n[server]'})
        assert ("client", "aggregator") in verdicts(
            running.examine(reach=True, client=True), verdict
        )


@pytest.mark.parametrize(("ahead_s", "verdict"), [(0.0, "ok"), (-3600.0, "doubt")])
def test_a_clock_apart_from_the_servers_is_seen_where_it_answers(
    site: Site, ahead_s: float, verdict: str
) -> None:
    certificates = site.folder / "certificates"
    now_s = time.time()
    files = {"certificate": "server.pem", "key": "server-key.pem", "client_ca": "ca.pem"}
    table = LinkTable(**{name: str(certificates / file) for name, file in files.items()})
    with RoundService(table) as link:
        site.write({"127.0.0.1:1": link.address})
        found = site.examine(reach=True, now_s=now_s + ahead_s, client=True)
    assert ("client", "server") in verdicts(found, verdict)


def test_parties_that_are_not_there_are_named(site: Site) -> None:
    found = site.examine(reach=True)
    assert verdicts(found, "failure") == [
        ("client", "aggregator"),
        ("client", "server"),
        ("server", "aggregator"),
    ]
    assert found.exit_code == 7
    assert "correct server.address" in table(found)


def test_no_user_is_named(site: Site) -> None:
    said = table(site.examine())
    assert "6 users" in said
    assert "person-" not in said


def test_a_run_that_the_aggregators_limit_does_not_leave_is_named_at_the_server(
    running: Site,
) -> None:
    (running.folder / "scenario.toml").write_text("[privacy]\nepsilon = 8.0\n")
    found = running.examine(reach=True, server=True, scenario=True)
    assert verdicts(found, "failure") == [("server", "aggregator")]
    assert "epsilon 8 does not fit the aggregator's limit of epsilon 7" in words(
        found, "server", "aggregator"
    )


def test_a_ledger_on_either_side_that_went_back_is_named_by_both_and_looking_keeps_nothing(
    running: Site,
) -> None:
    """The aggregator's: less than client and server have seen of it. The client's: less than the
    aggregator has seen."""
    seen = LedgerHead(3, "ab" * 32)
    path = running.folder / "client" / "ledger.sqlite"
    ledger = ClientLedger(path, limit=Guarantee(5.0, 1e-5))
    ledger.keep_ledger_head(seen)
    ledger.close()
    memory = SeenLedger(running.folder / "server" / "aggregator-ledger.json")
    memory.path.parent.mkdir()
    memory.keep_ledger_head(seen)
    for _ in range(2):
        found = running.examine(reach=True, client=True, server=True)
        for party in ("client", "server"):
            assert "does not hold the 3 entries" in words(found, party, "aggregator")
    shutil.rmtree(path.parent)
    ledger = ClientLedger(path, limit=Guarantee(5.0, 1e-5))
    ledger.charge("run-0", 0, "0" * 64, calibrate(Guarantee(1.0, 1e-5), {"first": 1.0}), ["first"])
    ledger.close()
    assert ("client", "aggregator") in verdicts(running.examine(reach=True, client=True), "ok")
    shutil.rmtree(path.parent)
    found = running.examine(reach=True, client=True)
    assert "has 0 entries, it had 1" in words(found, "client", "aggregator")


def test_a_port_that_speaks_https_is_named_before_its_owner_is_blamed(site: Site) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificates = site.folder / "certificates"
    context.load_cert_chain(certificates / "server.pem", certificates / "server-key.pem")
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as web:
        web.socket = context.wrap_socket(web.socket, server_side=True)
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        site.write({"127.0.0.1:1": f"127.0.0.1:{web.server_port}"})
        found = site.examine(reach=True, client=True)
        web.shutdown()
        thread.join()
    assert "speaks no gRPC" in words(found, "client", "server")
    assert "https port" in words(found, "client", "server")
