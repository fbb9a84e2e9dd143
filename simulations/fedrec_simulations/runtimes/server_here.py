"""Rounds of a server in this process with an aggregator in a child, and clients that a node opens
for each message: what runs where Flower's own engine plays the nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from flwr.app import Message

from fedrec import __version__
from fedrec.cli.supervisor import Supervisor
from fedrec.operations import logs
from fedrec.operations.metrics import Metrics
from fedrec.settings import Scenario
from fedrec.transport.aggregator_client import Retry
from fedrec_client import settings as client_settings
from fedrec_client.flower import answered
from fedrec_client.last_arrays import HELD, HeldArrays
from fedrec_client.opened import open_participant
from fedrec_client.requests import Requests
from fedrec_server.aggregation import aggregation_of
from fedrec_server.broadcast import ClientBroadcast
from fedrec_server.settings import ServerSettings
from fedrec_server.workload import workload_of
from fedrec_simulations.runtimes.deployment_files import ANY_PORT, PartyFiles
from fedrec_simulations.runtimes.processes import start_aggregator

NO_SERVER = ""
"""Where clients would connect: Flower carries their messages."""


def start_aggregator_for(files: PartyFiles, company: Supervisor) -> None:
    """Write all settings, those of server and clients when it is known where the aggregator
    listens; some news needs none."""
    files.prepare()
    address = start_aggregator(files, company) if files.holdings.aggregated else ""
    files.write_server(listen=ANY_PORT, aggregator=address)
    for shard in files.shards:
        files.write_client(shard, server=NO_SERVER, aggregator=address)


def settings_of_clients(files: PartyFiles) -> list[Path]:
    """Their settings files, in the order of their nodes."""
    return [files.settings(shard.name) for shard in files.shards]


def rounds(
    scenario: Scenario,
    settings: ServerSettings,
    clients: ClientBroadcast,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[object]:
    """Every step of a training, as `fedrec server` would keep it in its state folder. Raises
    FedRecError where the run cannot begin or go on."""
    with ExitStack() as stack:
        aggregation = aggregation_of(
            scenario.privacy, settings, Metrics("server", __version__), Retry(sleep=sleep), stack
        )
        yield from workload_of(scenario, settings.public).steps(
            aggregation.endpoint,
            clients,
            Path(settings.state),
            gathering=replace(settings.whom_to_wait_for(), sleep=sleep),
            patience=replace(settings.patience(), sleep=sleep),
            run=settings.run or None,
            statements=aggregation.statements,
        )


def answer_once(settings: Path, message: Message) -> Message:
    """The reply of the client with these settings, which is opened for it and closed again. Raises
    FedRecError where it cannot be opened."""
    chosen = client_settings.load(settings)
    folder = Path(chosen.state)
    with ExitStack() as stack:
        stack.callback(logs.close, logs.configure("client", file=folder / "process.log"))
        participant = open_participant(chosen, folder, stack)
        return answered(Requests(participant, held=HeldArrays(folder / HELD)), message)
