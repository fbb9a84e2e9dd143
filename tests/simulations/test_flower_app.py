"""The Flower app: `flwr run` in Flower's simulation and at a stock SuperLink gives loopback's
bytes."""

from __future__ import annotations

import ast
import inspect
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict

import fedrec_app
from fedrec.cli.supervisor import Supervisor
from fedrec.data.interactions import Catalogue
from fedrec.errors import RunError, SettingsError
from fedrec.factorization.facts import public_facts
from fedrec.run import simulate
from fedrec.run.data.datasets import load_dataset, load_split
from fedrec.run.job import Carried, Job, Runtime
from fedrec.run.training import Training
from fedrec.settings import Scenario, load
from fedrec.torch_modules.contract import FILES
from fedrec_app import client_app, server_app
from fedrec_simulations.runtimes.deployment_files import PartyFiles
from fedrec_simulations.runtimes.in_process import parties_of
from fedrec_simulations.runtimes.processes import settings_of_clients, start_aggregator_for
from tests.flower_grid import FIRST_NODE, RUN_ID, InProcessGrid
from tests.ports import free_port
from tests.waiting import HANG_S, until

ROOT = Path(__file__).parents[2]
APP = Path(fedrec_app.__file__).with_name("pyproject.toml")
CLIENTS = 2
SHORT = ("data.preset=small", "recipe=published", "model.steps=1", "privacy.noise=seeded")
MODEL = "model/model.safetensors"
PUBLIC = ("flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy")
on_ray = pytest.mark.skipif(
    find_spec("ray") is None, reason="Ray is not installed: pip install 'fedrec[ray]'"
)


def config(folder: Path, **more: str | float) -> dict[str, Any]:
    """The run config of the app as it is shipped, but for this."""
    shipped = tomllib.loads(APP.read_text())["tool"]["flwr"]["app"]["config"]
    return shipped | {"folder": str(folder), "set": " ".join(SHORT)} | more


def loopback(folder: Path, *more: str, short: Sequence[str] = SHORT) -> bytes:
    """The released model's file, of the scenario that `config` names."""
    words = [f"run.directory={folder}", "privacy.epsilon=5.0", *short, *more]
    simulate.run(load(ROOT / "simulations" / "planted.toml", words), name="alone", quiet=True)
    (model,) = folder.glob(f"alone-*/{MODEL}")
    return model.read_bytes()


def test_the_product_uses_public_interfaces_of_flower_alone_but_where_it_plays_nodes() -> None:
    rooms = "fedrec", "server", "client", "aggregator", "simulations"
    files = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    texts = {path: path.read_text() for path in files if path.parent.name != "runtimes"}
    for path, text in ((path, text) for path, text in texts.items() if "flwr" in text):
        for node in ast.walk(ast.parse(text)):
            named = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [named]
            for name in names:
                assert not name.startswith("flwr") or name in PUBLIC, f"{path.name}: {name}"


def test_the_run_config_is_a_scenario_with_somebodys_own_data(tmp_path: Path) -> None:
    words = "data.format=table privacy.delta=1e-6"
    chosen = config(tmp_path, epsilon=2.0, data="~/ratings.csv", set=words)
    scenario = server_app.scenario_of(chosen)
    assert (scenario.privacy.epsilon, scenario.privacy.delta) == (2.0, 1e-6)
    assert scenario.data.path == str(Path.home() / "ratings.csv")
    assert scenario.run.directory == str(tmp_path)
    with pytest.raises(SettingsError, match="no scenario of this name"):
        server_app.scenario_of(chosen | {"scenario": "nothing"})


def test_without_nodes_the_app_says_so() -> None:
    pauses = list[float]()
    with pytest.raises(RunError, match="no node has come"):
        server_app.nodes_of(InProcessGrid({}), sleep=pauses.append)
    assert sum(pauses) == 120


def test_nodes_that_come_one_by_one_are_waited_for() -> None:
    grid = InProcessGrid({})

    def sleep(_: float) -> None:
        if len(grid._apps) < 3:
            grid._apps[2 + len(grid._apps)] = client_app.app

    assert server_app.nodes_of(grid, sleep=sleep) == [2, 3, 4]


def test_a_supernode_that_does_not_say_whose_client_it_is_hears_how() -> None:
    context = Context(RUN_ID, 2, {}, RecordDict(), config(Path()))
    InProcessGrid({})
    message = Message(RecordDict(), 2, "query.join")
    with pytest.raises(SettingsError, match="whose client") as caught:
        client_app.app(message, context)
    assert "--node-config" in caught.value.remedy


@pytest.mark.processes
def test_a_pytorch_module_is_trained_by_the_app_as_by_loopback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Server and clients find it in the file that the environment names."""
    monkeypatch.setenv(FILES, str(ROOT / "tests" / "torch_modules" / "outside_module.py"))
    torch = ["data.kind=clicks", "recipe=torch", "own.module=outside_module:Mean", "own.rounds=1"]
    words = [*torch, "compare.epsilons=[]", "data.preset=small", "privacy.noise=seeded"]
    chosen = config(tmp_path / "runs", set=" ".join(words))
    nodes = {
        FIRST_NODE + n: partial(
            lambda placed, message, _: client_app.app(message, placed),
            Context(RUN_ID, 0, {"partition-id": n}, RecordDict(), chosen),
        )
        for n in range(CLIENTS)
    }
    server_app.app(InProcessGrid(nodes), Context(RUN_ID, 1, {}, RecordDict(), chosen))
    (model,) = (tmp_path / "runs").glob(f"flwr-{RUN_ID}-*/{MODEL}")
    assert model.read_bytes() == loopback(tmp_path, short=words)


@pytest.mark.processes
@pytest.mark.parametrize("killed", [False, True], ids=["whole", "killed"])
def test_the_app_over_a_grid_gives_the_loopback_s_bytes(
    killed: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All of `flwr run . local-simulation` but Flower's engine. Its stream has a line a round."""
    caplog.set_level(logging.INFO, "flwr")
    chosen = config(tmp_path / "runs")
    ended = list[int]()

    def node(number: int) -> Callable[[Message, Context], Message]:
        placed = Context(RUN_ID, 0, {"partition-id": number}, RecordDict(), chosen)

        def answer(message: Message, _: Context) -> Message:
            reply = client_app.app(message, placed)
            if killed and not ended and message.metadata.message_type == "query.ask":
                ended.extend(aggregators(tmp_path))
                for pid in ended:
                    os.kill(pid, signal.SIGKILL)
            return reply

        return answer

    grid = InProcessGrid({FIRST_NODE + number: node(number) for number in range(CLIENTS)})
    if killed:  # a client's call waits for the aggregator, which this process's server starts again
        grid = InProcessGrid({FIRST_NODE: node(0)})
    server_app.app(grid, Context(RUN_ID, 1, {}, RecordDict(), chosen))
    said = [record.getMessage() for record in caplog.records]
    rounds = [line for line in said if line.startswith("round ")]
    assert rounds == ["round 0 is done", "round 1 is done"] * 3  # of three epsilons
    (model,) = (tmp_path / "runs").glob(f"flwr-{RUN_ID}-*/{MODEL}")
    assert model.read_bytes() == loopback(tmp_path, "compare.epsilons=[]")
    assert not client_app.note_of(chosen, RUN_ID).exists()
    assert bool(ended) == killed


def aggregators(folder: Path) -> list[int]:
    """Processes of aggregators whose settings lie in this folder."""
    found = list[int]()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(folder) in line and " aggregator " in line:
                found.append(int(entry.name))
    return found


# --- Flower's own programs ---


class Flower:
    """Flower's commands beside this interpreter, with a folder and a port of their own."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.port = free_port("127.0.0.1")
        self._stack = stack
        for name in ("flwr", "app"):
            (folder / name).mkdir(parents=True)
        shutil.copy(APP, folder / "app")
        programs = Path(sys.executable).parent
        self.environment = {
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(self.port),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_raylet_start_wait_time_s": f"{HANG_S:g}",  # a busy machine
        }

    def connection(self, name: str, **keys: str) -> None:
        """What docs/flower.md has people write into config.toml."""
        lines = [f"[superlink.{name}]", *(f'{key} = "{word}"' for key, word in keys.items())]
        (self.folder / "flwr" / "config.toml").write_text("\n".join(lines))

    def do(self, *words: str) -> dict[str, Any]:
        """One `flwr` command's JSON."""
        done = subprocess.run(
            ["flwr", *words, "--format", "json"],
            cwd=self.folder / "app",
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
        return found

    def run(self, where: str, chosen: dict[str, Any]) -> str:
        """`flwr run`, to its end; what `flwr log` shows of it."""
        words = " ".join(f"{key}={json.dumps(word)}" for key, word in chosen.items())
        run_id = self.do("run", ".", where, "-c", words)["run-id"]
        # each look starts a program, which takes two seconds of a processor from the run
        until(lambda: self.status(where, run_id).startswith("finished"), "the run", pause_s=6)
        log = subprocess.run(
            ["flwr", "log", run_id, where, "--show"],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert self.status(where, run_id) == "finished:completed", log.stdout + log.stderr
        return log.stdout

    def status(self, where: str, run_id: str) -> str:
        (run,) = self.do("list", where, "--run-id", run_id)["runs"]
        return str(run["status"])

    def start(self, name: str, *words: str) -> None:
        """One of Flower's programs, until the test ends."""
        log = self._stack.enter_context((self.folder / f"{name}.log").open("wb"))
        child = subprocess.Popen(
            words, env=self.environment, stdout=log, stderr=log, start_new_session=True
        )
        self._stack.callback(self._end, child)

    @staticmethod
    def _end(child: subprocess.Popen[bytes]) -> None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            child.wait(HANG_S)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()

    def end_local(self) -> None:
        """The SuperLink that `flwr run` started, and left running."""
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if str(self.port).encode() in words:
                    os.killpg(int(entry.name), signal.SIGKILL)


@contextmanager
def flower(folder: Path) -> Iterator[Flower]:
    with ExitStack() as stack:
        yield Flower(folder, stack)


@on_ray
@pytest.mark.processes
def test_flwr_run_in_flowers_simulation_gives_the_loopback_s_bytes(tmp_path: Path) -> None:
    with flower(tmp_path / "flower") as here:
        here.connection("local-simulation", address=":local:")
        try:
            here.run("local-simulation", config(tmp_path / "runs"))
        finally:
            here.end_local()
    (model,) = (tmp_path / "runs").glob(f"flwr-*/{MODEL}")
    assert model.read_bytes() == loopback(tmp_path, "compare.epsilons=[]")


@pytest.mark.processes
def test_flwr_run_at_a_stock_superlink_gives_the_loopback_s_bytes(tmp_path: Path) -> None:
    """TLS, node authentication, stock SuperNodes; aggregator and ledgers beside Flower."""
    chosen = load(None, SHORT)
    catalogue = load_dataset(chosen).catalogue
    deployed = training(chosen, tmp_path / "deployed", at_superlink(catalogue, tmp_path))
    alone = training(chosen, tmp_path / "loopback", None)
    for each in (deployed, alone):
        assert [done.round for done in each.run()] == [0, 1]
    assert [array.tobytes() for array in deployed.result.model.arrays().values()] == [
        array.tobytes() for array in alone.result.model.arrays().values()
    ]


def training(chosen: Scenario, folder: Path, runtime: Runtime[Job, Carried] | None) -> Training:
    dataset = load_dataset(chosen)
    split = load_split(chosen, dataset)
    facts = public_facts(chosen.seed, dataset, split)
    more = {} if runtime is None else {"runtime": runtime}
    return Training(chosen, facts, split.train, split.validation, folder, **more)  # type: ignore[arg-type]


def at_superlink(catalogue: Catalogue, folder: Path) -> Runtime[Job, Carried]:
    def carry(job: Job) -> Generator[Carried, None, None]:
        parties = parties_of(job, catalogue, CLIENTS)
        files = PartyFiles(job, parties.holdings)
        company = Supervisor()
        with flower(folder / "flower") as here:
            try:
                start_aggregator_for(files, company)
                operate(here, files)
                shown = here.run(
                    "deployment",
                    config(folder / "runs")
                    | {
                        "scenario": str(files.settings("scenario")),
                        "settings": str(files.settings("server")),
                        "set": "privacy.noise=seeded",
                    },
                )
                assert shown.count('"event":"round-released"') == 2
                assert f"promise  epsilon {job.prepared.plan.guarantee.epsilon:g}" in shown
                yield from parties.kept(files.state("server"))()
            finally:
                company.stop()

    return carry


def operate(here: Flower, files: PartyFiles) -> None:
    """A SuperLink and its SuperNodes, as docs/flower.md starts them."""
    tls = files.root / "certificates"
    address = f"127.0.0.1:{here.port}"
    ca = str(tls / "ca.pem")
    words = ["--host", "127.0.0.1", "--port", str(here.port), "--ssl-ca-certfile", ca]
    words += [
        "--ssl-certfile",
        str(tls / "server.pem"),
        "--ssl-keyfile",
        str(tls / "server-key.pem"),
    ]
    words += ["--enable-supernode-auth", "--database", str(here.folder / "state.db")]
    here.start("superlink", "flower-superlink", *words)
    here.connection("deployment", **{"address": address, "root-certificates": ca})
    until(lambda: listening(here.port) != b"", "the SuperLink", pause_s=0.2)
    for number, settings in enumerate(settings_of_clients(files)):
        key = here.folder / f"node-{number}"
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(key)], check=True
        )
        here.do("supernode", "register", f"{key}.pub", "deployment")
        own = free_port("127.0.0.1")
        here.start(
            f"supernode-{number}",
            "flower-supernode",
            *("--superlink", address, "--root-certificates", ca),
            *("--host", "127.0.0.1", "--port", str(own)),
            *("--auth-supernode-private-key", str(key)),
            *("--node-config", f'settings="{settings}"'),
        )


def test_the_page_starts_flower_with_the_flags_of_this_file() -> None:
    """But for ports, which others may have. A SuperLink without --host is heard on its own machine
    alone."""
    page = (ROOT / "docs" / "flower.md").read_text()
    own = {"--port", "--database"}
    used = {*re.findall(r"--[a-z][a-z-]+", inspect.getsource(operate))} - own
    lines = [line for line in page.splitlines() if line.startswith("flower-super")]
    assert len(lines) == 2
    assert used == {flag for line in lines for flag in re.findall(r"--[a-z][a-z-]+", line)}


def listening(port: int) -> bytes:
    """Line of the socket that listens at this port of loopback, empty for none."""
    for line in Path("/proc/net/tcp").read_bytes().splitlines():
        if f"0100007F:{port:04X} 00000000:0000 0A".encode() in line:
            return line
    return b""
