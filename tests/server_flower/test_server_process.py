"""The server as a process: what it starts, and what it leaves behind."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedrec.data.interactions import Catalogue
from fedrec.errors import SettingsError
from fedrec.factorization.facts import PublicFacts
from fedrec.public_data import write_public
from fedrec.randomness import Streams
from fedrec.settings import Scenario
from fedrec_aggregator import main as aggregator_main
from fedrec_aggregator.settings import load as load_aggregator
from fedrec_server import main as server_main
from fedrec_server.settings import ServerSettings, load
from fedrec_server.stopping import Stopped
from tests.threads import serving
from tests.waiting import HANG_S

pytestmark = pytest.mark.processes

SERVER = """
import sys
from pathlib import Path
from fedrec.settings import Scenario
from fedrec_server.main import run
from fedrec_server.settings import load
run(Scenario(), load(Path(sys.argv[1])))
"""


@pytest.fixture
def aggregator(tmp_path: Path) -> Iterator[str]:
    settings = tmp_path / "aggregator.toml"
    settings.write_text(
        f'listen = "127.0.0.1:0"\nstate = "{tmp_path / "aggregator"}"\nlog = '
        f'"{tmp_path / "aggregator.log"}"\n'
        "insecure = true\nany_client = true\n[privacy]\nmax_epsilon = 5.0\n"
    )
    with serving(aggregator_main.run, load_aggregator(settings)) as address:
        yield str(address)


def settings_file(folder: Path, aggregator: str, link: str, *, timeout_s: float = 600.0) -> Path:
    items = ("a", "b", "c")
    facts = PublicFacts(1, len(items), "ratings", (1.0, 5.0), None, Streams(1))
    write_public(folder / "public", Catalogue(items, None, ("nobody",)), facts)
    path = folder / "server.toml"
    path.write_text(f"""
state = "{folder / "server"}"
log = "{folder / "server.log"}"
metrics = "127.0.0.1:0"
public = {{ path = "{folder / "public"}" }}
gathering = {{ timeout_s = {timeout_s} }}
aggregator = {{ address = "{aggregator}", insecure = true }}
link = {{ {link} }}
""")
    return path


def test_it_ends_when_it_is_told_and_says_that_it_is_gone(
    tmp_path: Path, aggregator: str, until: Callable[..., None]
) -> None:
    settings = settings_file(tmp_path, aggregator, "insecure = true")
    status = tmp_path / "server" / "server.json"
    for number, expected in (
        (signal.SIGTERM, 128 + signal.SIGTERM),
        (signal.SIGINT, 128 + signal.SIGINT),
        (signal.SIGKILL, -signal.SIGKILL),
    ):
        server = subprocess.Popen([sys.executable, "-c", SERVER, str(settings)])
        until(
            lambda pid=server.pid: status.exists() and json.loads(status.read_text())["pid"] == pid,
            "the server's status",
        )
        told = json.loads(status.read_text())
        assert all(told[key].startswith("127.0.0.1:") for key in ("link", "metrics"))
        server.send_signal(number)
        assert server.wait(HANG_S) == expected
        assert status.exists() == (number == signal.SIGKILL)
    events = [
        json.loads(line)["event"] for line in (tmp_path / "server.log").read_text().splitlines()
    ]
    assert "server-started" in events


def test_a_stop_from_another_thread_ends_it(tmp_path: Path, aggregator: str) -> None:
    settings = load(settings_file(tmp_path, aggregator, "insecure = true"))
    stop = threading.Event()
    with pytest.raises(Stopped):
        server_main.run(Scenario(), settings, ready=lambda _status: stop.set(), stop=stop)


def _settings(tmp_path: Path, link: str) -> ServerSettings:
    return load(settings_file(tmp_path, "127.0.0.1:1", link))


@pytest.mark.parametrize(
    ("link", "words"),
    [
        ('listen = "nowhere", insecure = true', "link.listen"),
        ('listen = "0.0.0.0:0", insecure = true', "without TLS"),
        ('certificate = "/does/not/exist", key = "/does/not/exist"', "certificate"),
    ],
)
def test_what_cannot_work_is_said_before_anything_runs(
    tmp_path: Path, link: str, words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        server_main.run(Scenario(), _settings(tmp_path, link))
