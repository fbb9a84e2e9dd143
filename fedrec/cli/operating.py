"""Verbs of operators: certificates, checks before a run, health, and what a round disclosed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fedrec.cli.flags import option, scenario_option
from fedrec.errors import SettingsError

app = typer.Typer(rich_markup_mode=None)


class _Certs(TyperGroup):
    """`fedrec certs FOLDER` is `fedrec certs trial FOLDER`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, "--help"}:
            args = ["trial", *args]
        return super().parse_args(ctx, args)


certs_app = typer.Typer(rich_markup_mode=None, cls=_Certs)
app.add_typer(certs_app, name="certs", short_help="Make, request, sign and renew certificates.")


@certs_app.callback(invoke_without_command=True)
def _certs(context: typer.Context) -> None:
    """Make certificates for a trial; or let each party make its own key, and sign its request.

    \b
      fedrec certs FOLDER      the same as fedrec certs trial FOLDER
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


Days = Annotated[
    int, typer.Option("--days", metavar="N", min=1, max=825, help="How long they are valid.")
]
PartyName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The party: aggregator, server, serving, client-hospital."),
]


@certs_app.command(short_help="Make a party's own key, and a request for its certificate.")
def request(
    name: PartyName,
    folder: Annotated[Path, option("--folder", "DIR", "Where the key lies, or will.")] = Path(),
) -> None:
    """Make the key of a party on its own machine, unless it is there, and a request for its
    certificate. The key goes nowhere; the request goes to the authority.

    Example:

    \b
      fedrec certs request client-hospital
    """
    from fedrec.operations.certificate_requests import request as requested

    for path in requested(folder, name):
        typer.echo(str(path))


@certs_app.command(short_help="Sign a party's request, where the authority's key is.")
def sign(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of the authority, made if need be.")
    ],
    path: Annotated[Path, typer.Argument(metavar="REQUEST", help="What the party sent.")],
    name: Annotated[
        str, option("--for", "NAME", "The party that sent it: client-hospital or aggregator.")
    ],
    hosts: Annotated[
        list[str] | None,
        option("--host", "NAME", "Name or address of the party; may be repeated."),
    ] = None,
    days: Days = 90,
    new_key: Annotated[
        bool, typer.Option("--new-key", help="Take another key than it had: pins change.")
    ] = False,
) -> None:
    """Sign a request for the party that you name, and write the pins anew. Signing again renews; a
    request for another party, or with another key than before, is refused.

    Example:

    \b
      fedrec certs sign certificates client-hospital.csr --for client-hospital
    """
    from fedrec.operations.certificate_requests import sign as signed
    from fedrec.operations.pins import write_pins

    typer.echo(str(signed(folder, path, name, hosts=hosts or (), days=days, new_key=new_key)))
    typer.echo(str(write_pins(folder)))


@certs_app.command(short_help="Make certificates for a trial, or renew them.")
def trial(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="Folder for the certificates and keys; existing ones are kept."
        ),
    ],
    clients: Annotated[
        list[str] | None,
        option("--client", "NAME", "A client; may be repeated."),
    ] = None,
    aggregator_hosts: Annotated[
        list[str] | None,
        option("--aggregator-host", "NAME", "Name or address of the aggregator; may be repeated."),
    ] = None,
    server_hosts: Annotated[
        list[str] | None,
        option("--server-host", "NAME", "Name or address of the server; may be repeated."),
    ] = None,
    serving_hosts: Annotated[
        list[str] | None,
        option(
            "--serving-host",
            "NAME",
            "Name or address of serving, else the server's; may be repeated.",
        ),
    ] = None,
    three_party: Annotated[
        bool,
        typer.Option(
            "--three-party", help="Three aggregators in place of one (docs/three-party.md)."
        ),
    ] = False,
    days: Days = 90,
    renew: Annotated[
        list[str] | None,
        option("--renew", "NAME", "Renew NAME.pem, as client-hospital or ca; may be repeated."),
    ] = None,
    new_key: Annotated[
        bool,
        typer.Option(
            "--new-key", help="With --renew: a new key too; every party then needs the new pins."
        ),
    ] = False,
) -> None:
    """Make a development certificate authority, certificates for an aggregator, a server,
    serving and clients, and their pins.

    Each says its holder's role and name, and the hosts of its role alone; without hosts this
    machine's own. pins.toml holds the SHA-256 of every key: parties whose settings name it accept
    no other keys. For a trial: where it matters, use your own authority and keep its key off these
    machines (docs/deploy.md).

    Example:

    \b
      fedrec certs trial certificates --client hospital --client library
      fedrec certs trial certificates --three-party --client hospital
      fedrec certs trial certificates --renew aggregator --days 90
    """
    from fedrec.operations.certificates import write_development_certificates
    from fedrec.operations.pins import write_pins
    from fedrec.operations.renewal import renew as renewed

    if new_key and not renew:
        raise SettingsError(
            "--new-key is given without --renew", "Say whose: --renew aggregator --new-key."
        )
    if renew:
        for path in [
            *(renewed(folder, name, days=days, new_key=new_key) for name in renew),
            write_pins(folder),
        ]:
            typer.echo(str(path))
        return
    made = write_development_certificates(
        folder,
        clients=clients or ["client"],
        aggregator_hosts=aggregator_hosts or [],
        server_hosts=server_hosts or [],
        serving_hosts=serving_hosts or [],
        days=days,
        three_aggregators=three_party,
    )
    for path in [*made, write_pins(folder)]:
        typer.echo(str(path))


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
