"""What the server's metrics say while it gathers, asks, waits for the aggregator, lacks users."""

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import generate_latest

from fedrec.errors import RefusedError, UnreachableError
from fedrec.federation.protocol import Answer, Phase, RoundStatus
from fedrec.operations import logs
from fedrec.operations.metrics import Metrics
from fedrec.operations.party_state import Awaited, noting
from fedrec_server.gathering import Gathering, gather
from fedrec_server.watched_clients import WatchedClients
from fedrec_server.watching import WatchedEndpoint


def values(metrics: Metrics) -> dict[str, float]:
    lines = generate_latest(metrics.registry).decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))
    }


def doing(metrics: Metrics) -> tuple[str, str]:
    """Phase, and what is waited for."""
    ones = [name for name, value in values(metrics).items() if value == 1.0]
    [phase] = [
        name[len('fedrec_phase{phase="') : -2] for name in ones if name.startswith("fedrec_phase")
    ]
    [reason] = [
        name[len('fedrec_waiting{reason="') : -2]
        for name in ones
        if name.startswith("fedrec_waiting{")
    ]
    return phase, reason


@dataclass
class World:
    """An endpoint and a broadcast that note what the metrics say while they are called."""

    metrics: Metrics = field(default_factory=lambda: Metrics("server", "1"))
    during: dict[str, tuple[str, str]] = field(default_factory=dict)
    users: int = 40
    phase: Phase = Phase.RELEASED
    failure: Exception | None = None
    clients: list[Answer] = field(default_factory=lambda: [Answer("a", 30), Answer("b", 10)])

    def _noted(self, name: str) -> None:
        self.during[name] = doing(self.metrics)
        if self.failure:
            raise self.failure

    def enrolled(self) -> int:
        self._noted("enrolled")
        return self.users

    def open_run(self, run: str, plan: Any) -> None:
        self._noted("open_run")

    def open_round(self, opening: Any) -> RoundStatus:
        self._noted("open_round")
        return RoundStatus("r", 2, "d", Phase.OPEN, enrolled=self.users)

    def close(self, run: str, round: int) -> RoundStatus:
        self._noted("close")
        return RoundStatus("r", 2, "d", self.phase, enrolled=self.users, reported=38)

    def release(self, run: str, round: int) -> bytes:
        self._noted("release")
        return b""

    def join(self, terms: Any) -> Sequence[Answer]:
        self.during["join"] = doing(self.metrics)
        return self.clients

    def ask(self, invitation: Any) -> Sequence[Answer]:
        self.during["ask"] = doing(self.metrics)
        return self.clients


QUESTION: Any = SimpleNamespace(run="r", question=SimpleNamespace(round=2))
OPENING: Any = SimpleNamespace(run="r", round=2)


def wired(world: World, **choices: Any) -> tuple[WatchedEndpoint, WatchedClients]:
    both: Any = world
    return WatchedEndpoint(both, world.metrics), WatchedClients(both, world.metrics, **choices)


def test_every_phase_of_a_round_shows_while_it_lasts() -> None:
    world = World()
    endpoint, clients = wired(world, connected=lambda: 3.0)
    assert gather(SimpleNamespace(run="r"), endpoint, clients, Gathering()) == 40  # type: ignore[arg-type]
    endpoint.open_run("r", None)  # type: ignore[arg-type]
    endpoint.open_round(OPENING)
    world.clients[1] = Answer("b", 0, refusal="unreachable")
    clients.ask(QUESTION)
    endpoint.close("r", 2)
    endpoint.release("r", 2)
    assert world.during == {
        "join": ("gathering", "clients"),
        "enrolled": ("gathering", "clients"),
        "open_run": ("gathering", "nothing"),
        "open_round": ("collecting", "nothing"),
        "ask": ("collecting", "reports"),
        "close": ("releasing", "nothing"),
        "release": ("releasing", "nothing"),
    }
    assert doing(world.metrics) == ("learning", "nothing")
    told = values(world.metrics)
    assert told['fedrec_clients{state="connected"}'] == 3
    assert (told['fedrec_clients{state="joined"}'], told['fedrec_clients{state="absent"}']) == (
        2,
        1,
    )
    assert (told["fedrec_users_enrolled"], told["fedrec_quorum_users"], told["fedrec_round"]) == (
        40,
        38,
        2,
    )
    assert not any(name.startswith("fedrec_budget") for name in told)


@pytest.mark.parametrize(
    ("there", "expected"),
    [([], "clients"), ([Answer("a", 3)], "clients"), ([Answer("a", 3), Answer("b", 2)], "users")],
)
def test_gathering_says_whether_clients_or_users_are_missing_and_how_long_it_waited_at_the_end(
    there: list[Answer], expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(clients=there, users=5)
    endpoint, clients = wired(world, min_clients=2)
    said = list[str]()
    pause = clients.pausing(lambda _: said.append(doing(world.metrics)[1]))
    time_s = iter(range(100))
    plan = Gathering(
        expected_users=40,
        min_clients=2,
        timeout_s=3,
        sleep=pause,
        clock=lambda: float(next(time_s)),
    )
    with pytest.raises(UnreachableError, match="40 users; waited 3 s"):
        gather(SimpleNamespace(run="r"), endpoint, clients, plan)  # type: ignore[arg-type]
    assert set(said) == {expected}
    (line,) = (str(vars(record)) for record in caplog.records if "needed" in str(vars(record)))
    assert "waited" not in line  # it had only begun to


def test_a_short_round_and_a_failed_one_are_counted_once_each() -> None:
    world = World(phase=Phase.SHORT)
    endpoint, _ = wired(world)
    endpoint.open_round(OPENING)
    endpoint.close("r", 2)
    endpoint.close("r", 2)
    assert doing(world.metrics)[1] == "quorum"
    world.failure = RefusedError("budget", "the limit is passed", "Ask.")
    for call in (lambda: endpoint.open_round(OPENING), lambda: endpoint.close("r", 2)):
        with pytest.raises(RefusedError):
            call()
    told = values(world.metrics)
    assert {
        name: told[f'fedrec_rounds_total{{phase="{name}"}}']
        for name in ("released", "short", "failed")
    } == {
        "released": 0,
        "short": 1,
        "failed": 1,
    }


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    made = logs.configure("server", file=tmp_path / "log")
    yield tmp_path / "log"
    logs.close(made)


def test_an_aggregator_that_is_away_shows_at_the_first_pause_and_until_it_answers(
    log: Path,
) -> None:
    world = World(failure=UnreachableError("no answer", "Check."))
    endpoint, _ = wired(world)
    log_of_server = logging.getLogger("fedrec_server")
    note = noting(world.metrics.state, Awaited.AGGREGATOR, log_of_server)
    note(world.failure)
    note(world.failure)
    note(RefusedError("busy", "its database is away", "Wait."))
    assert doing(world.metrics)[1] == "aggregator"
    with pytest.raises(UnreachableError):
        endpoint.enrolled()
    assert doing(world.metrics)[1] == "aggregator"  # patience ended, and it is still away
    world.failure = None
    endpoint.enrolled()
    assert doing(world.metrics)[1] == "nothing"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["event"], line.get("code"), line.get("cause")) for line in lines] == [
        ("waiting", "aggregator", "no answer"),
        ("waiting", "aggregator", "its database is away"),
        ("aggregator-answers", None, None),
    ]
