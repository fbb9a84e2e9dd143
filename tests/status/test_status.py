"""`fedrec status`: all parties of some settings, up or down, and nothing secret."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedrec.cli.main import app
from fedrec.cli.status import overview
from fedrec.cli.status.states import Measured
from fedrec.errors import SettingsError
from fedrec.operations.metrics import Metrics
from fedrec.operations.party_state import Awaited, Doing
from fedrec.operations.settings_files import kind_of
from fedrec.privacy.calibration import calibrate
from fedrec.privacy.guarantee import Guarantee
from fedrec.storage import write_json
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_client.ledger import ClientLedger
from tests.threads import saying, web

SECRET = "a-token-that-nobody-may-read"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Settings of one party each; the aggregator's address is one where nobody listens."""
    (tmp_path / "token").write_text(SECRET)
    (tmp_path / "ratings.csv").write_text("user,item,rating\nfirst,a,5\nsecond,b,1\n")
    files = {
        "aggregator": 'listen = "127.0.0.1:1"\nstate = "a"\ninsecure = true\n[privacy]\nmax_epsilon = 5.0\n',
        "server": 'state = "s"\npublic = { path = "p" }\naggregator = { address = "127.0.0.1:1", insecure '
        "= true }\n"
        "link = { insecure = true }\n",
        "client": 'name = "library"\nstate = "c"\ndata = { path = "ratings.csv", rating_range = [1, 5] }\n'
        'aggregator = { address = "127.0.0.1:1", insecure = true }\nserver = { address = '
        '"127.0.0.1:2", insecure = true }\n',
        "serving": 'http = "127.0.0.1:3"\ngrpc = ""\n',
    }
    for name, content in files.items():
        (tmp_path / f"{name}.toml").write_text(content)
    return tmp_path


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def rows(folder: Path, *names: str) -> dict[str, overview.PartyStanding]:
    return {one.party: one for one in overview.asked([folder / f"{name}.toml" for name in names])}


def running(folder: Path, name: str, stack: ExitStack, **told: object) -> Metrics:
    """A party as others see it: this process's id in its file, and metrics on a free port."""
    metrics = Metrics("server", "9.9")
    endpoint = stack.enter_context(metrics.serve("127.0.0.1", 0))
    (folder / name).parent.mkdir(exist_ok=True)
    write_json(folder / name, {"pid": os.getpid(), "metrics": f"127.0.0.1:{endpoint.port}", **told})
    return metrics


def test_a_files_party_is_told_by_its_keys(folder: Path) -> None:
    for name in ("aggregator", "server", "client", "serving"):
        assert kind_of(folder / f"{name}.toml") == name
    (folder / "other.toml").write_text("seed = 3\n")
    for wrong in ("other.toml", "absent.toml", "token"):
        with pytest.raises(SettingsError):
            kind_of(folder / wrong)


def test_everything_down_ends_with_7_and_says_why_of_each(folder: Path) -> None:
    paths = [str(folder / f"{name}.toml") for name in ("server", "client", "serving", "aggregator")]
    result = CliRunner().invoke(app, ["status", *paths, "--json"])
    assert result.exit_code == 7
    told = json.loads(result.stdout)
    assert told["exit_code"] == 7
    assert [(one["party"], one["up"]) for one in told["parties"]] == [
        *[("server", False), ("client library", False), ("serving", False), ("aggregator", False)],
        ("server", False),  # as the client's settings name it
    ]
    assert all(one["why"] for one in told["parties"])


def test_three_aggregators_of_one_port_are_three_rows(folder: Path) -> None:
    keys = 'aggregator = { address = "127.0.0.1:1", insecure = true }'
    each = [f'{{ address = "127.0.0.{place}:1", insecure = true }}' for place in (1, 2, 3)]
    content = (folder / "server.toml").read_text()
    assert keys in content
    (folder / "server.toml").write_text(content.replace(keys, f"aggregators = [{', '.join(each)}]"))
    found = overview.asked([folder / "server.toml", folder / "aggregator.toml"])
    told = sorted(one.address for one in found if one.party == "aggregator")
    assert told == [f"127.0.0.{place}:1" for place in (1, 2, 3)]


def test_what_a_party_does_is_read_off_its_metrics(folder: Path, stack: ExitStack) -> None:
    metrics = running(folder, "s/server.json", stack, version="9.9", link="127.0.0.1:7002")
    metrics.state.doing(Doing.COLLECTING)
    metrics.state.waiting(Awaited.REPORTS)
    metrics.state.round(3, "run-1")
    metrics.state.enrolled(50)
    metrics.state.quorum(needed=40, there=12)
    server = rows(folder, "server")["server"]
    assert (server.up, server.address, server.version, server.phase) == (
        True,
        "127.0.0.1:7002",
        "9.9",
        "collecting",
    )
    assert (server.round, server.users, server.quorum, server.waiting_for) == (
        3,
        50,
        "12/40",
        "reports",
    )
    assert server.epsilon_left is None  # a server does not know it
    assert server.last_success_s is None
    assert server.since_s == pytest.approx(time.time(), abs=600)
    words = overview.table([server], now_s=time.time())
    assert "12/40" in words
    assert "0.0" not in words.replace("127.0.0.1", "")


def test_a_process_that_is_gone_or_whose_number_another_has_is_down(
    folder: Path, stack: ExitStack
) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    running(folder, "s/server.json", stack)
    write_json(folder / "s/server.json", {"pid": gone.pid, "metrics": ""})
    assert "gone" in rows(folder, "server")["server"].why
    write_json(folder / "s/server.json", {"pid": os.getpid(), "metrics": ""})
    os.utime(folder / "s/server.json", (1_000.0, 1_000.0))  # written long before this process began
    assert not rows(folder, "server")["server"].up


def test_ledgers_and_notes_say_how_far_a_party_came_that_is_down(folder: Path) -> None:
    limit = Guarantee(5.0, 1e-5)
    plan = calibrate(Guarantee(2.0, 1e-5), {"x": 1.0})
    aggregator = ReleaseLedger(folder / "a", limit=limit)
    aggregator.enroll("library", [bytes(16), bytes([1] * 16)])
    aggregator.charge("run", 0, plan, ["x"])
    aggregator.close()
    client = ClientLedger(folder / "c" / "ledger.sqlite", limit=limit)
    client.charge("run", 0, "digest", plan, ["x"])
    left = client.epsilon_left
    client.close()
    (folder / "s").mkdir()
    (folder / "s" / "rounds.jsonl").write_text('{"round": 4, "enrolled": 44}\n')
    found = rows(folder, "aggregator", "client", "server")
    assert (found["aggregator"].users, found["aggregator"].epsilon_left) == (2, pytest.approx(left))
    assert (found["client library"].round, found["client library"].epsilon_left) == (
        0,
        pytest.approx(left),
    )
    kept = next(one for one in overview.asked([folder / "server.toml"]) if one.party == "server")
    assert (kept.round, kept.users, kept.up) == (4, 44, False)


def test_a_server_that_ended_because_it_is_done_is_not_said_never_to_have_started(
    folder: Path,
) -> None:
    (folder / "s" / "model").mkdir(parents=True)
    assert "never started" in rows(folder, "server")["server"].why
    (folder / "s" / "model" / "manifest.json").write_text("{}")
    (folder / "s" / "rounds.jsonl").write_text('{"round": 4, "enrolled": 44}\n')
    done = rows(folder, "server")["server"]
    assert (done.up, done.phase, done.round) == (False, "finished", 4)
    assert "its training is finished" in done.why


def test_no_secret_and_no_path_to_one_is_printed(folder: Path, stack: ExitStack) -> None:
    running(folder, "c/client.json", stack)
    text = (
        (folder / "client.toml")
        .read_text()
        .replace(
            '"127.0.0.1:1", insecure = true',
            '"127.0.0.1:1", token = "token", pin = "' + "0" * 64 + '"',
        )
    )
    (folder / "client.toml").write_text(text)
    for extra in ([], ["--json"]):
        result = CliRunner().invoke(
            app, ["status", str(folder / "client.toml"), str(folder / "aggregator.toml"), *extra]
        )
        assert result.exit_code == 7
        assert SECRET not in result.output
        assert "token" not in result.output


def test_metrics_that_are_none_cost_nothing_but_themselves(folder: Path, stack: ExitStack) -> None:
    address = stack.enter_context(web(saying(b"\xff{{{ fedrec_info 1\n")))
    running(folder, "s/server.json", stack)
    write_json(folder / "s/server.json", {"pid": os.getpid(), "metrics": address})
    server = rows(folder, "server")["server"]
    assert server.up
    assert "do not answer" in server.why


def test_dashboard_and_alerts_are_printed(folder: Path) -> None:
    board = CliRunner().invoke(app, ["status", "--dashboard"])
    assert json.loads(board.stdout)["title"] == "fedrec"
    assert "FedrecPartyDown" in CliRunner().invoke(app, ["status", "--alerts"]).stdout


def test_a_gauge_without_a_one_says_nothing() -> None:
    told = Measured(
        {"fedrec_phase": [({"phase": "idle"}, 0.0)], "fedrec_round": [({}, float("nan"))]}
    )
    assert told.label("fedrec_phase", "phase") == ""
    assert told.number("fedrec_round") is None
