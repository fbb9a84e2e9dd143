"""ServerApp of the Flower app: a whole run in Flower's simulation, or the server of a deployment.

Without `settings` in the run config it plays all other parties here, an aggregator among them, and
gives each node a part of the data: what `fedrec simulate` does, over Flower's grid. With `settings`
it is `fedrec server` at the operator's own SuperLink; aggregator and clients stand beside Flower.
"""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Context, UserConfig
from flwr.serverapp import Grid, ServerApp
from threadpoolctl import threadpool_limits

from fedrec.cli.supervisor import Supervisor
from fedrec.data.interactions import Catalogue
from fedrec.errors import RunError
from fedrec.run import simulate
from fedrec.run.job import AnyJob, Runtime, RuntimeChoice, loopback
from fedrec.settings import Scenario, load
from fedrec.shipped import scenario_path
from fedrec.storage import write_json
from fedrec_app.client_app import note_of
from fedrec_server import main as server_process
from fedrec_server import settings as server_settings
from fedrec_server.broadcast import ClientBroadcast
from fedrec_server.flower import GridPost
from fedrec_simulations.runtimes.deployment_files import SLOWEST_ROUND_S, PartyFiles
from fedrec_simulations.runtimes.in_process import parties_of
from fedrec_simulations.runtimes.processes import (
    rounds,
    settings_of_clients,
    start_aggregator_for,
)

_LOOK_S = 0.5
_NODES_S = 120.0
"""SuperNodes that start with this app are there in seconds; two looks that find the same ones are
taken for all."""

log = logging.getLogger("flwr")
"""What `flwr log` shows."""

app = ServerApp()
"""What pyproject.toml names."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run what the run config says."""
    config = context.run_config
    scenario = scenario_of(config)
    with threadpool_limits(limits=1, user_api="blas"):  # more would give other bytes
        if settings := str(config["settings"]):
            server_process.run(
                scenario,
                server_settings.load(Path(settings)),
                connection=GivenSuperLink(GridPost(grid)),
                again=True,
                say=log.info,
            )
            return
        note = note_of(config, context.run_id)
        try:
            simulate.run(
                scenario,
                name=f"flwr-{context.run_id}",
                choice=OverGrid("flower", len(nodes_of(grid)), grid=grid, note=note),
            )
        finally:
            note.unlink(missing_ok=True)


def scenario_of(config: UserConfig) -> Scenario:
    """The scenario of a run config: `scenario`, a file or a shipped one's name, with `epsilon`,
    `data`, `folder` and the words of `set` over it. Raises SettingsError."""
    path = scenario_path(Path(str(config["scenario"])))
    chosen = [f"privacy.epsilon={config['epsilon']}", f"run.directory={_home(config, 'folder')}"]
    if config["data"]:
        chosen.append(f"data.path={_home(config, 'data')}")
    return load(path, [*chosen, *shlex.split(str(config["set"]))])


def _home(config: UserConfig, key: str) -> Path:
    return Path(str(config[key])).expanduser()


def nodes_of(
    grid: Grid,
    *,
    sleep: Callable[[float], None] = time.sleep,
    most_s: float = _NODES_S,
) -> list[int]:
    """All nodes: Flower registers them one by one while this app runs already.

    Raises RunError where there is none after `most_s` seconds."""
    before = list[int]()
    for _ in range(int(most_s / _LOOK_S)):
        nodes = list(grid.get_node_ids())
        if nodes and nodes == before:
            return nodes
        before = nodes
        sleep(_LOOK_S)  # Flower tells nobody that a node came
    raise RunError(f"after {most_s:g} s no node has come", "Start SuperNodes, or a simulation.")


@dataclass(frozen=True)
class OverGrid(RuntimeChoice):
    """The runtime `flower` over a grid that is there already. note: where clients' settings files
    are listed."""

    grid: Grid | None = None
    note: Path = Path()

    def carrier(
        self, catalogue: Catalogue | None, alone: Callable[[Any], Any] = loopback
    ) -> Runtime[Any, Any]:
        """See `RuntimeChoice`."""
        assert self.grid is not None
        grid = self.grid

        def carry(job: AnyJob) -> Generator[Any, None, None]:
            parties = parties_of(job, catalogue, self.clients)
            parties.check()
            files = PartyFiles(job, parties.holdings)
            kept = parties.kept(files.state("server"))
            company = Supervisor()

            def sleep(seconds: float) -> None:
                company.look()  # an aggregator that died is started again
                time.sleep(seconds)  # so long as whoever gathers says

            clients = ClientBroadcast(GridPost(grid), SLOWEST_ROUND_S, sleep=sleep)
            try:
                start_aggregator_for(files, company)
                write_json(self.note, {"clients": [*map(str, settings_of_clients(files))]})
                settings = server_settings.load(files.settings("server"))
                for number, _ in enumerate(rounds(job.scenario, settings, clients, sleep)):
                    log.info("round %d is done", number)
                    yield from kept()
            finally:
                company.stop()
            yield from parties.finished(files.state("server"))

        return carry


@dataclass(frozen=True)
class GivenSuperLink:
    """The SuperLink that this app runs at, which belongs to its operator (`main.Connection`)."""

    post: GridPost
    address: str = ""

    def __enter__(self) -> GivenSuperLink:
        """Nothing is started here."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Nothing is ended here."""
