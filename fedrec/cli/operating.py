"""Verbs of operators: checks before a run, health, and what a round disclosed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedrec.cli.flags import option, scenario_option

app = typer.Typer(rich_markup_mode=None)


@app.command(short_help="Check settings, certificates, ledgers and connections before a run.")
def doctor(
    aggregator: Annotated[
        Path | None,
        option("--aggregator", "FILE", "Settings of an aggregator."),
    ] = None,
    client: Annotated[Path | None, option("--client", "FILE", "Settings of a client.")] = None,
    server: Annotated[Path | None, option("--server", "FILE", "Settings of a server.")] = None,
    serving: Annotated[
        Path | None,
        option("--serving", "FILE", "Settings of a serving process."),
    ] = None,
    device: Annotated[
        Path | None,
        option("--device", "DIR", "State folder of fedrec recommend."),
    ] = None,
    scenario: Annotated[Path | None, scenario_option()] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check versions, ports, certificates, clock, disk, ledgers, the plan and connections; say what
    is wrong and what to do.

    Ends with 0 where a run can start, with the exit code of the first failure otherwise.

    Example:

    \b
      fedrec doctor --client client.toml --scenario planted
    """
    from fedrec.cli.doctor.preflight import diagnose, table

    found = diagnose(
        aggregator=aggregator,
        client=client,
        server=server,
        serving=serving,
        device=device,
        scenario=scenario,
    )
    typer.echo(json.dumps(found.as_dict()) if as_json else table(found))
    raise typer.Exit(found.exit_code)


@app.command(
    short_help="Ask all parties of some settings files whether they are up and what they do."
)
def status(
    settings: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="SETTINGS...", show_default=False, help="Settings files (TOML), of any party."
        ),
    ] = None,
    own: Annotated[
        bool,
        typer.Option(
            "--own",
            help="Only the parties whose settings these are: a health check of this machine.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Print a Grafana dashboard (JSON) instead.")
    ] = False,
    alerts: Annotated[
        bool, typer.Option("--alerts", help="Print Prometheus alert rules (YAML) instead.")
    ] = False,
) -> None:
    """Ask every party that the settings name, and print one table: up or not, phase, round, what it
    waits for, users, budget, last success.

    A party of this machine is asked by its state folder and its metrics; the others by their
    addresses, with the certificate of the settings that name them. Ends with 0 where all are up,
    with 7 otherwise; no key, token or user is printed.

    Examples:

    \b
      fedrec status server.toml
      fedrec status aggregator.toml client.toml --json
      fedrec status --alerts > /etc/prometheus/rules/fedrec.yaml
    """
    import time

    from fedrec.cli.status import overview as asking
    from fedrec.storage import finite

    if dashboard or alerts:
        from fedrec.operations.monitoring import ALERTS, DASHBOARD

        typer.echo((DASHBOARD if dashboard else ALERTS).read_text(encoding="utf-8"), nl=False)
        return
    parties = asking.asked(settings or (), own_only=own)
    typer.echo(
        json.dumps(finite(asking.as_dict(parties)))
        if as_json
        else asking.table(parties, now_s=time.time())
    )
    raise typer.Exit(asking.exit_code(parties))


@app.command(short_help="Print every field and byte of a round, from the folders of the parties.")
def inspect(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="State folder of a party or device, or one that holds several."
        ),
    ],
    round: Annotated[int | None, option("--round", "N", "One round only.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print every field and byte that left a client, reached the aggregator and reached the server
    in a round, and every ledger.

    A client's own reports are there only if it keeps them (keep_sent in its settings).

    Example:

    \b
      fedrec inspect runs/planted-0123456789 --round 2
    """
    from fedrec.cli.disclosure.overview import inspected, text

    found = inspected(folder, round=round)
    typer.echo(json.dumps(found) if as_json else text(found))
