"""Verbs of certificates: requests, signatures, renewals and trials."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fedrec.cli.flags import option
from fedrec.errors import SettingsError


class _Certs(TyperGroup):
    """`fedrec certs FOLDER` is `fedrec certs trial FOLDER`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, "--help"}:
            args = ["trial", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(rich_markup_mode=None)
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
