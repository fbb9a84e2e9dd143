"""The runtime `flower` on Flower's own simulation engine: clients' nodes are played by Ray's
actors, which are processes.

    server's rounds (a child) --Flower's messages, through Ray--> actor: participant --gRPC, TLS-->
        aggregator (a child)

Settings, certificates and state folders are those of `processes`; there is no SuperLink and no
SuperNode. Any actor may get any node's next message, so it keeps nothing in between: it opens the
node's client in its state folder, answers, and closes it. Ray changes the process that it runs in,
hence the child: its environment, its signals, and files that it leaves open.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Sequence
from concurrent.futures import CancelledError
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

from flwr.app import ConfigRecordValues, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.supercore import telemetry

from fedrec.cli.supervisor import Supervisor
from fedrec.data.interactions import Catalogue
from fedrec.errors import RunError, require
from fedrec.federation.round_messages import KINDS
from fedrec.run.job import AnyJob, Runtime
from fedrec.settings import Scenario
from fedrec_server.broadcast import ClientBroadcast
from fedrec_server.flower import GridPost
from fedrec_server.settings import ServerSettings
from fedrec_simulations.runtimes.deployment_files import SLOWEST_ROUND_S, PartyFiles
from fedrec_simulations.runtimes.in_process import parties_of
from fedrec_simulations.runtimes.processes import (
    answer_once,
    follow,
    rounds,
    settings_of_clients,
    start_aggregator_for,
)

_QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # or it warns that its next release will behave so
}

Options = dict[str, ConfigRecordValues]


def ray(catalogue: Catalogue | None, *, clients: int) -> Runtime[AnyJob, Any]:
    """Carries a job by `clients` nodes on Ray's actors, of which there are as many as this machine
    has cores, or fewer."""

    def carry(job: AnyJob) -> Generator[Any, None, None]:
        parties = parties_of(job, catalogue, clients)
        parties.check()
        files = PartyFiles(job, parties.holdings)
        company = Supervisor()
        with rays_folder() as folder:  # cleaned here: whoever is killed leaves it
            try:
                start_aggregator_for(files, company)
                start_server(files, company, folder)
                yield from follow(parties, files, company)
            finally:
                company.stop()
        yield from parties.finished(files.state("server"))

    return carry


def rays_folder() -> TemporaryDirectory[str]:
    """Where Ray keeps sockets and logs.

    Not in a run's folder: a socket's path has at most 107 bytes."""
    return TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)


def start_server(files: PartyFiles, company: Supervisor, folder: str) -> None:
    """The child in which Ray runs, with the server's rounds and all clients' nodes; `folder` is
    Ray's."""
    chosen = {
        "--scenario": files.settings("scenario"),
        "--settings": files.settings("server"),
        "--ray": folder,
    }
    verb = [
        "engine",
        *(str(word) for pair in chosen.items() for word in pair),
        *map(str, settings_of_clients(files)),
    ]
    company.start("server", verb, log=files.log("server"), ends=True)


# --- the server's process ---


def serve(
    scenario: Scenario, settings: ServerSettings, clients: Sequence[Path], folder: Path
) -> None:
    """Train to the end, as `fedrec server` would, with a node for each of these clients' settings
    files; `folder` is Ray's.

    Changes the process it runs in for good. Raises FedRecError where the run cannot begin or go on.
    """
    over = Event()

    def sleep(seconds: float) -> None:
        if over.wait(seconds):
            raise CancelledError

    app = ServerApp()

    @app.main()
    def main(grid: Grid, _context: Context) -> None:
        # Nothing is lost between threads of one process: who is silent works, and a second question
        # would find the ledger in use.
        clients = ClientBroadcast(GridPost(grid), SLOWEST_ROUND_S, sleep=sleep)
        for _ in rounds(scenario, settings, clients, sleep):
            pass  # whoever follows reads them in the folder

    try:
        play(
            app,
            answering(clients),
            folder,
            num_nodes=len(clients),
            actors=min(len(clients), os.cpu_count() or 1),
        )
    finally:
        over.set()  # where the engine gave up, the rounds still wait for it


def play(server: ServerApp, nodes: ClientApp, folder: Path, *, num_nodes: int, actors: int) -> None:
    """Run a ServerApp with `num_nodes` nodes on `actors` of Ray's actors, to its end; `folder` is
    Flower's and Ray's, and short.

    Changes the process it runs in for good. Raises what the ServerApp raises, RunError where the
    engine gives up, SettingsError without Ray.
    """
    require("ray", "--backend ray")
    telemetry.FLWR_TELEMETRY_ENABLED = "0"  # was read from the environment when Flower was imported
    logging.getLogger("flwr").setLevel(logging.ERROR)
    os.environ |= _QUIET | {"FLWR_HOME": str(folder)}
    from flwr.simulation import run_simulation

    quiet: Options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    one: Options = {"num_cpus": 1, "num_gpus": 0.0}
    config = {
        "init_args": quiet | {"num_cpus": actors, "_temp_dir": str(folder)},
        "client_resources": one,
    }
    try:
        run_simulation(server, nodes, num_nodes, backend_config=config)
    except RuntimeError as failure:
        remedy = (
            "If memory is short, give it more, or fewer --clients. Without --backend, no Ray is "
            "needed."
        )
        raise RunError(
            f"Flower's simulation engine gave up: {_first(failure)}", remedy
        ) from failure


def _first(failure: BaseException) -> BaseException:
    """What it all began with."""
    return _first(failure.__cause__) if failure.__cause__ else failure


# --- on an actor ---


def answering(clients: Sequence[Path]) -> ClientApp:
    """The app of all nodes: node number n answers for the client whose settings file is the
    n-th."""
    installed = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        return answer_once(clients[int(context.node_config["partition-id"])], message)

    for kind in KINDS:
        installed.query(kind)(answer)
    return installed
