import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import generate_latest

from fedrec.errors import DataError, RunError, SettingsError
from fedrec.federation.protocol import Answer, Refusal
from fedrec.federation.round_messages import RoundMessage, said
from fedrec.ledgers.file_lock import FileLock
from fedrec.operations.metrics import Metrics
from fedrec_client import main, worker_main
from fedrec_client.settings import validated
from fedrec_client.worker import Worker
from tests.waiting import until

pytestmark = pytest.mark.processes


class Ledger:
    """Of a client that has spent a part of its limit."""

    epsilon = 1.5
    epsilon_left = 3.5


class Site:
    name = "library"
    ledger = Ledger()
    users = SimpleNamespace(num_users=5)

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def answer(self, _invitation: Any) -> Answer:
        return self._answer


def shown(metrics: Metrics) -> set[str]:
    return set(generate_latest(metrics.registry).decode().splitlines())


def test_answers_refusals_and_the_budget_are_counted() -> None:
    metrics = Metrics("client", "0")
    answer = Answer("library", users=5, accepted=3, rejected={"busy": 2})
    question: Any = SimpleNamespace(run="run", question=SimpleNamespace(round=3))
    assert worker_main.Counted(Site(answer), metrics, Path()).answer(question) == answer  # type: ignore[arg-type]
    assert shown(metrics) >= {
        'fedrec_waiting{reason="server"} 1.0',
        'fedrec_phase{phase="idle"} 1.0',
    }
    worker_main.Counted(Site(Answer("library", 5, refusal=Refusal.BUDGET)), metrics, Path()).answer(
        question
    )  # type: ignore[arg-type]
    assert shown(metrics) >= {
        "fedrec_users_enrolled 5.0",
        "fedrec_round 3.0",
        'fedrec_waiting{reason="server"} 0.0',
        'fedrec_waiting{reason="budget"} 1.0',
        'fedrec_reports_total{result="accepted"} 3.0',
        'fedrec_reports_rejected_total{reason="busy"} 2.0',
        'fedrec_requests_refused_total{reason="budget"} 1.0',
        'fedrec_rounds_total{phase="answered"} 1.0',
        'fedrec_rounds_total{phase="refused"} 1.0',
        "fedrec_budget_epsilon_spent 1.5",
        "fedrec_budget_epsilon_left 3.5",
    }


def settings(tmp_path: Path, **changed: object) -> Any:
    content = {
        "name": "library",
        "state": str(tmp_path / "state"),
        "data": {"path": str(tmp_path / "ratings.csv"), "rating_range": [1, 5]},
        "aggregator": {"address": "127.0.0.1:1", "insecure": True},
        "server": {"address": "127.0.0.1:1", "insecure": True},
    }
    (tmp_path / "ratings.csv").write_text("user,item,rating\nfirst,a,5\nsecond,b,1\n")
    return validated(content | changed, source="test")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"metrics": "9464"}, "metrics: an address is"),
        (
            {"server": {"address": "server.example.org:1", "insecure": True}},
            "server.insecure",
        ),
        (
            {"aggregator": {"address": "aggregator.example.org:1", "insecure": True}},
            "aggregator.insecure",
        ),
    ],
)
def test_a_client_that_cannot_run_says_so_and_leaves_nothing_running_or_locked(
    tmp_path: Path, changed: dict[str, object], said: str
) -> None:
    for _ in range(2):  # the second would find the first one's ledger locked
        with pytest.raises(SettingsError, match=said):
            main.run(settings(tmp_path, **changed))
    assert not (tmp_path / "state" / "client.json").exists()


def test_a_client_at_rest_loads_nothing_that_only_answering_needs() -> None:
    code = (
        "import sys, fedrec_client.main; print(*({'scipy', 'numba', 'polars', 'dp_accounting', "
        "'torch', 'flwr'} & set(sys.modules)))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == ""
    )


def test_a_worker_ends_when_nothing_is_asked_and_another_answers_the_next_message(
    tmp_path: Path, post: Any
) -> None:
    metrics = Metrics("client", "0")
    with Worker(settings(tmp_path, idle_s=0), metrics) as worker:
        assert worker.begin() == 2
        assert "fedrec_users_enrolled 2.0" in shown(metrics)
        for _ in range(2):
            reply = worker.answer(RoundMessage(said(), kind="join"))
            assert post.answer(reply).refusal == Refusal.MALFORMED
            until(lambda: worker.pid == 0, "it ends by itself")


def test_what_a_worker_cannot_open_is_raised_here_with_its_exit_code(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    (tmp_path / "ratings.csv").write_text("user,item,rating\nfirst,a,9\n")
    with (
        Worker(chosen, Metrics("client", "0")) as worker,
        pytest.raises(DataError, match="line 2") as found,
    ):
        worker.begin()
    assert found.value.exit_code == DataError.exit_code


def test_a_client_at_rest_keeps_its_folder_to_itself(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    with (
        FileLock(tmp_path / "state" / "client.lock", "", ""),
        pytest.raises(RunError, match="in use by another process"),
    ):
        main.run(settings(tmp_path, server={"address": "server.example.org:1", "insecure": True}))


def test_a_client_calls_a_server_and_nobody_else(tmp_path: Path) -> None:
    called = settings(tmp_path).server.called_by("library")
    assert (called["party"], called["name"]) == ("server", "library")
