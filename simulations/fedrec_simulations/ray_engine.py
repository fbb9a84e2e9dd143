"""The runtime `flower` on Flower's own simulation engine: each client's node is played by one of Ray's actors, which are processes.

    server's rounds (a thread here) --Flower's messages, through Ray--> actor: participant --gRPC, TLS--> aggregator (a child)

The aggregator and the clients' files are those of `processes`; a SuperLink and SuperNodes there are none. Any actor may get any
node's next message, so it keeps nothing in between: it opens the node's client in its state folder, answers, and closes it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.common.constant import PARTITION_ID_KEY
from flwr.serverapp import ServerApp
from flwr.supercore import telemetry

from fedrec.data.dataset import Catalogue
from fedrec.errors import RunError, SettingsError
from fedrec.federation.link import Patience
from fedrec.federation.protocol import Broadcast
from fedrec.federation.rounds import State
from fedrec.operations import logs
from fedrec_aggregator.remote import RemoteReleaseDesk, Retry
from fedrec_client import settings as client_settings
from fedrec_client.flower import ASK, JOIN, client_app
from fedrec_client.main import open_participant
from fedrec_server import settings as server_settings
from fedrec_server.flower import server_app
from fedrec_server.gathering import Gathering
from fedrec_server.main import access
from fedrec_server.public import PublicData
from fedrec_server.rounds import check, run_rounds
from fedrec_simulations.in_process import SLOWEST_ROUND_S
from fedrec_simulations.party_files import ANY_PORT, PartyFiles
from fedrec_simulations.processes import follow, start_aggregator
from fedrec_simulations.runtimes import Carried, Job, Runtime
from fedrec_simulations.supervision import Company

NO_GATE = ""
"""Where a SuperNode would connect: there is none."""

_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # or it warns that its next release will behave so
}

_GATHERING_S = 60.0
"""How long clients may refuse to join before the run ends; Ray's own start does not count."""


def require_ray() -> None:
    """Raises SettingsError where Ray is not installed."""
    if find_spec("ray") is None:
        raise SettingsError("--backend ray: Ray is not installed", "pip install 'fedrec[ray]', or leave --backend out.")


def ray(catalogue: Catalogue, *, clients: int) -> Runtime:
    """Carries a job by `clients` nodes on Ray's actors, of which there are as many as this machine has cores."""

    def carry(job: Job, state: State, released: Sequence[str]) -> Generator[Carried, None, None]:
        public = PublicData(catalogue.item_ids, job.facts.kind, job.facts.value_range, job.facts.features)
        check(job.scenario, public)
        files, company = PartyFiles(job, catalogue, clients), Company()
        try:
            _start(files, company)
            with _rounds(files, public) as running:
                yield from follow(files, company, after=int(state["round"]), has_finished=running.done)
                running.result()
        finally:
            company.stop()

    return carry


def play(server: ServerApp, nodes: ClientApp, *, num_nodes: int, actors: int) -> None:
    """Run a ServerApp with `num_nodes` nodes on `actors` of Ray's actors, to its end.

    Raises what the ServerApp raises, RunError where the engine gives up, SettingsError without Ray.
    """
    require_ray()
    with TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder, _environment(folder):
        from flwr.simulation import run_simulation

        resources = {"num_cpus": 1, "num_gpus": 0.0}
        init = {"num_cpus": actors, "include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR", "_temp_dir": folder}
        try:
            run_simulation(server, nodes, num_nodes, backend_config={"init_args": init, "client_resources": resources})
        except RuntimeError as failure:
            cause = failure.__cause__ and failure.__cause__.__cause__ or failure
            raise RunError(f"Flower's simulation engine gave up: {cause}", "Run without --backend; --resume goes on from here.") from failure


# --- the server's side ---


def _start(files: PartyFiles, company: Company) -> None:
    """Start the aggregator and tell everybody where it listens."""
    files.prepare()
    address = start_aggregator(files, company)
    files.write_server(listen=ANY_PORT, aggregator=address)
    for shard in files.shards:
        files.write_client(shard, gate=NO_GATE, aggregator=address)


@contextmanager
def _rounds(files: PartyFiles, public: PublicData) -> Iterator[Future[None]]:
    """The server's rounds in a thread, which ends when they are done or the context ends."""
    told = Event()

    def sleep(seconds: float) -> None:
        if told.wait(seconds):
            raise CancelledError

    # Nothing is lost between threads of one process: who is silent works, and a second question would find the ledger in use.
    server = server_app(_serving(files, public, sleep), timeout_s=SLOWEST_ROUND_S, again_s=2 * SLOWEST_ROUND_S, sleep=sleep)
    nodes = answering([files.settings(shard.name) for shard in files.shards])

    def run() -> None:
        try:
            play(server, nodes, num_nodes=files.clients, actors=min(files.clients, os.cpu_count() or 1))
        finally:
            told.set()  # where the engine gave up, the rounds still wait for it

    with ThreadPoolExecutor(1) as thread:
        try:
            yield thread.submit(run)
        finally:
            told.set()


def _serving(files: PartyFiles, public: PublicData, sleep: Callable[[float], None]) -> Callable[[Broadcast], None]:
    job, aggregator = files.job, access(server_settings.load(files.settings("server")).aggregator)
    gathering = Gathering(expected_users=job.data.num_users, min_clients=files.clients, timeout_s=_GATHERING_S, sleep=sleep)
    patience = Patience(SLOWEST_ROUND_S, sleep=sleep)

    def serve(clients: Broadcast) -> None:
        with RemoteReleaseDesk(aggregator, retry=Retry(sleep=sleep)) as desk:
            folder = files.state("server")
            for _ in run_rounds(job.scenario, public, desk, clients, folder, gathering=gathering, patience=patience, run=job.run):
                pass  # `follow` reads them in the folder

    return serve


@contextmanager
def _environment(folder: str) -> Iterator[None]:
    """What Ray and Flower must not do: call home, write into the user's folders, talk. PYTHONPATH, which the engine sets, is put back."""
    before = {name: os.environ.get(name) for name in (*_ENVIRONMENT, "FLWR_HOME", "PYTHONPATH")}
    flower = logging.getLogger("flwr")
    telling, level = telemetry.FLWR_TELEMETRY_ENABLED, flower.level
    os.environ |= _ENVIRONMENT | {"FLWR_HOME": folder}
    telemetry.FLWR_TELEMETRY_ENABLED = "0"  # read from the environment when Flower was imported
    flower.setLevel(logging.CRITICAL)  # what it has to say is raised too
    try:
        yield
    finally:
        flower.setLevel(level)
        telemetry.FLWR_TELEMETRY_ENABLED = telling
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


# --- on an actor ---


def answering(settings: Sequence[Path]) -> ClientApp:
    """The app of all nodes: node number n answers for the client whose settings file is the n-th."""
    installed = ClientApp()

    @installed.query(JOIN)
    def join(message: Message, context: Context) -> Message:
        return _answered(settings, message, context)

    @installed.query(ASK)
    def ask(message: Message, context: Context) -> Message:
        return _answered(settings, message, context)

    return installed


def _answered(settings: Sequence[Path], message: Message, context: Context) -> Message:
    chosen = client_settings.load(settings[int(context.node_config[PARTITION_ID_KEY])])
    folder = Path(chosen.state)
    with ExitStack() as stack:
        stack.callback(logs.close, logs.configure("client", file=folder / "process.log"))
        return client_app(open_participant(chosen, folder, stack))(message, context)
