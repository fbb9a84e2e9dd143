"""The verbs of the parties: one process each, on one machine or on many. docs/deploy.md starts all three."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(rich_markup_mode=None)

Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", show_default=False, help="Override one scenario key; may be repeated."),
]


def _settings(example: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option("--settings", metavar="FILE", help=f"Settings file (TOML), as in {example}.")
    return option


@app.command(short_help="Run the aggregator: take reports, release noised sums.")
def aggregator(settings: Annotated[Path, _settings("docs/deploy.md")]) -> None:
    """Run the aggregator: take one bounded report per user and round over gRPC, and release each round's sum once, with noise.

    It keeps a ledger of everything it has released, refuses past its operator's limit, and never writes a report to
    disk. SIGTERM finishes what is running; after a crash the same command goes on.

    Example:

    \b
      fedrec aggregator --settings aggregator.toml
    """
    from fedrec_aggregator.main import run
    from fedrec_aggregator.settings import load

    run(load(settings))  # no preflight: this process imports little, and opens its ledger, port and certificates before all else


@app.command(short_help="Run a client: hold people's data, answer rounds within their limit.")
def client(settings: Annotated[Path, _settings("docs/deploy.md")]) -> None:
    """Run a client: the data of one person, or of a site where each person is a unit of privacy of its own.

    It joins the server's rounds through Flower, but runs only the code installed here. Before a report leaves, its
    ledger is charged; a plan, a round or an aggregator that it must not trust is refused with a reason.

    Example:

    \b
      fedrec client --settings client.toml
    """
    from fedrec_client.main import run
    from fedrec_client.settings import load
    from fedrec_simulations.doctor import preflight

    preflight(client=settings)
    run(load(settings))


@app.command(short_help="Run the server: train a scenario with clients and an aggregator elsewhere.")
def server(
    settings: Annotated[Path, _settings("docs/deploy.md")],
    scenario: Annotated[Path, typer.Option("--scenario", metavar="FILE", help="What to train: a scenario file (TOML).")],
    overrides: Overrides = None,
) -> None:
    """Run the server: train a scenario with clients and an aggregator that run elsewhere, and keep the released model.

    It sees who took part and noised sums, nothing else. A checkpoint is kept after every round; the same command goes
    on where it stopped.

    Example:

    \b
      fedrec server --scenario simulations/planted.toml --settings server.toml
    """
    from fedrec.settings import load as load_scenario
    from fedrec_server.main import run
    from fedrec_server.settings import load
    from fedrec_simulations.doctor import preflight

    preflight(server=settings, scenario=scenario)
    run(load_scenario(scenario, overrides or ()), load(settings))


@app.command(short_help="Make certificates for a trial.")
def certs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder for the certificates and keys; existing ones are kept.")],
    clients: Annotated[
        list[str] | None, typer.Option("--client", metavar="NAME", show_default=False, help="A client; may be repeated.")
    ] = None,
    hosts: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME", show_default=False, help="A name or address of the aggregator and server; may be repeated."),
    ] = None,
    days: Annotated[int, typer.Option("--days", metavar="N", min=1, max=825, help="How long they are valid.")] = 90,
) -> None:
    """Make a development certificate authority and certificates for an aggregator, a server and clients.

    For a trial. Where it matters, use your own authority and keep its key off these machines: docs/deploy.md.

    Example:

    \b
      fedrec certs certificates --client hospital --client library
    """
    from fedrec.operations.certificates import write_development_certificates

    for path in write_development_certificates(folder, clients=clients or ["client"], hosts=hosts or [], days=days):
        typer.echo(str(path))


@app.command(short_help="Check settings, certificates, ledgers and connections before a run.")
def doctor(
    aggregator: Annotated[Path | None, typer.Option(metavar="FILE", show_default=False, help="Settings of an aggregator.")] = None,
    client: Annotated[Path | None, typer.Option(metavar="FILE", show_default=False, help="Settings of a client.")] = None,
    server: Annotated[Path | None, typer.Option(metavar="FILE", show_default=False, help="Settings of a server.")] = None,
    scenario: Annotated[Path | None, typer.Option(metavar="FILE", show_default=False, help="The scenario to be trained.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check versions, ports, certificates, clock, disk, ledgers, the plan and connections; say what is wrong and what to do.

    Ends with 0 where a run can start, with the exit code of the first failure otherwise.

    Example:

    \b
      fedrec doctor --client client.toml --scenario simulations/planted.toml
    """
    from fedrec_simulations.doctor import diagnose, table

    found = diagnose(aggregator=aggregator, client=client, server=server, scenario=scenario)
    typer.echo(json.dumps(found.as_dict()) if as_json else table(found))
    raise typer.Exit(found.exit_code)


@app.command(short_help="Print every field and byte of a round, from the folders of the parties.")
def inspect(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="State folder of a party, or a run folder that holds several.")],
    round: Annotated[int | None, typer.Option("--round", metavar="N", show_default=False, help="One round only.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print every field and byte that left a client, reached the aggregator and reached the server in a round.

    A client's own reports are there only if it keeps them (keep_sent in its settings).

    Example:

    \b
      fedrec inspect runs/planted-0123456789 --round 2
    """
    from fedrec_simulations.inspect import inspected, text

    found = inspected(folder, round=round)
    typer.echo(json.dumps(found) if as_json else text(found))


@app.command(short_help="Run the protocol through seeded faults and check what must hold.")
def faults(
    runs: Annotated[int, typer.Option("--runs", metavar="N", min=1, help="How many seeded runs.")] = 1_000,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed of the first run.")] = 0,
    show: Annotated[bool, typer.Option("--show", help="Print the operations of the first run too.")] = False,
) -> None:
    """Run the protocol through seeded faults and check after each run what must hold: lost, late, repeated, reordered and
    damaged messages, restarts at every durable step, full disks, jumping clocks.

    Example:

    \b
      fedrec faults --runs 10000
    """
    from fedrec_simulations.faults.command import run

    typer.echo(run(runs=runs, seed=seed, show=show))
