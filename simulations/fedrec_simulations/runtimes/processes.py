"""The runtime `processes`: an aggregator, a server and clients as processes of their own on this
machine, followed from outside.

The parent writes what an operator would write, starts the commands an operator would start, and
reads what they keep. It takes part in no message: the model comes from the server's checkpoints. A
party that dies is started again at the same address.

Where Flower's own engine plays the nodes, rounds of a server run in this process, with an
aggregator in a child, and clients that a node opens for each message.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedrec import __version__
from fedrec.cli.supervisor import Supervisor
from fedrec.data.interactions import Catalogue
from fedrec.errors import RunError
from fedrec.operations.metrics import Metrics
from fedrec.run.job import AnyJob, Runtime
from fedrec.settings import Scenario
from fedrec.storage import read_json
from fedrec.transport.aggregator_client import Retry
from fedrec_server.aggregation import aggregation_of
from fedrec_server.broadcast import ClientBroadcast
from fedrec_server.run_settings import RunSettings
from fedrec_server.settings import ServerSettings
from fedrec_server.workload import workload_of
from fedrec_simulations.runtimes.deployment_files import ANY_PORT, Parties, PartyFiles
from fedrec_simulations.runtimes.in_process import parties_of

_UP_S = 120.0
"""How long a party may take to listen, on a machine that is busy with others."""


def processes(catalogue: Catalogue | None, *, clients: int) -> Runtime[AnyJob, Any]:
    """Carries a job by a server, `clients` clients and, where reports are summed, an aggregator."""

    def carry(job: AnyJob) -> Generator[Any, None, None]:
        parties = parties_of(job, catalogue, clients)
        parties.check()
        files = PartyFiles(job, parties.holdings)
        company = Supervisor()
        try:
            start(files, company)
            yield from follow(parties, files, company)
        finally:
            company.stop()
        yield from parties.finished(files.state("server"))

    return carry


def start(files: PartyFiles, company: Supervisor, *, server: Sequence[str] = ()) -> None:
    """Start all parties, each when it can be told where the others are; a party keeps the port it
    got, so that it is found again.

    server: further words of the server's command.
    """
    files.prepare()
    aggregator = start_aggregator(files, company) if files.holdings.aggregated else ""
    files.write_server(listen=ANY_PORT, aggregator=aggregator)
    verb = [
        "server",
        "--settings",
        str(files.settings("server")),
        "--scenario",
        str(files.settings("scenario")),
        *server,
    ]
    server = _listening(
        files, company, "server", verb, files.state("server") / "server.json", "link"
    )
    files.write_server(listen=server, aggregator=aggregator)
    for shard in files.shards:
        files.write_client(shard, server=server, aggregator=aggregator)
        company.start(
            shard.name,
            ["client", "--settings", str(files.settings(shard.name))],
            log=files.log(shard.name),
        )


def start_aggregator(files: PartyFiles, company: Supervisor) -> str:
    """The address where it listens, and listens again when it is started again; of three, with
    commas between them."""
    if files.of_three:
        return ",".join(_start_three(files, company))
    files.write_aggregator(listen=ANY_PORT)
    told = files.state("aggregator") / "address.json"
    address = _listening(
        files,
        company,
        "aggregator",
        ["aggregator", "--settings", str(files.settings("aggregator"))],
        told,
        "address",
    )
    files.write_aggregator(listen=address)
    return address


def _start_three(files: PartyFiles, company: Supervisor) -> list[str]:
    """Each must know where the others are before any listens, so that their ports are chosen
    here."""
    addresses = free_addresses(len(files.aggregators))
    files.write_three(addresses)
    for party in files.aggregators:
        (files.state(party) / "address.json").unlink(missing_ok=True)
        company.start(
            party, ["aggregator", "--settings", str(files.settings(party))], log=files.log(party)
        )
    for party in files.aggregators:
        told = files.state(party) / "address.json"
        company.wait_for(
            lambda told=told: _address(told, "address"),  # type: ignore[misc]
            what=f"{party} that listens",
            timeout_s=_UP_S,
        )
    return addresses


def free_addresses(count: int) -> list[str]:
    """Ports of loopback that nobody uses now.

    Another program may take one before it is used: whoever finds it taken ends, and says so."""
    with ExitStack() as stack:
        lines = [stack.enter_context(socket.socket()) for _ in range(count)]
        for line in lines:
            line.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{line.getsockname()[1]}" for line in lines]


def follow(parties: Parties, files: PartyFiles, company: Supervisor) -> Iterator[Any]:
    """Every further step when the server has kept it, until it has finished.

    Raises RunError as `Supervisor.look` does."""
    kept = parties.kept(files.state("server"))
    while True:
        finished = company.has_finished("server")  # first: what is kept by then is everything
        yield from kept()
        if finished:
            return
        company.look()
        company.rest()


def _listening(
    files: PartyFiles,
    company: Supervisor,
    party: str,
    verb: Sequence[str],
    told: Path,
    key: str,
) -> str:
    """The address that a party writes into `told` when it listens."""
    told.unlink(missing_ok=True)
    company.start(party, verb, log=files.log(party), ends=party == "server")
    return company.wait_for(
        lambda: _address(told, key), what=f"{party} that listens", timeout_s=_UP_S
    )


def _address(told: Path, key: str) -> str | None:
    try:
        address = read_json(told).get(key)
    except RunError:
        return None
    return address if isinstance(address, str) and address else None


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
            RunSettings(
                replace(settings.whom_to_wait_for(), sleep=sleep),
                replace(settings.patience(), sleep=sleep),
                run=settings.run or None,
                statements=aggregation.statements,
            ),
        )
