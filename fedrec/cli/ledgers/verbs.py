"""The verbs `fedrec ledger`, `fedrec backup` and `fedrec restore`: words, flags and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.cli.flags import Json

if TYPE_CHECKING:
    from fedrec.cli.ledgers.backup import Backup

app = typer.Typer(rich_markup_mode=None)
ledger_app = typer.Typer(
    rich_markup_mode=None,
    help="Show and verify the ledgers of an aggregator and of clients.",
)
app.add_typer(
    ledger_app,
    name="ledger",
    short_help="Show and verify the ledgers of an aggregator and of clients.",
)

Settings = Annotated[
    Path, typer.Argument(metavar="SETTINGS", help="Settings file (TOML) of the party.")
]
SeveralSettings = Annotated[
    list[Path],
    typer.Argument(metavar="SETTINGS...", help="Settings files (TOML), of any party but serving."),
]


@ledger_app.callback(invoke_without_command=True)
def _ledger(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@ledger_app.command(
    short_help="Print what ledgers hold: entries, head, what is spent, jumps of the clock."
)
def show(settings: SeveralSettings, as_json: Json = False) -> None:
    """Print what each ledger holds: how many entries, its head, what is spent, the rounds of each
    run, and jumps of the clock.

    Also while the party runs. Of a server: how far it has seen the aggregator's ledger.

    Example:

    \b
      fedrec ledger show aggregator.toml
    """
    from fedrec.cli.ledgers import inventory
    from fedrec.storage import finite

    found = [inventory.shown(path) for path in settings]
    if as_json:
        typer.echo(json.dumps(finite({"ledgers": [inventory.as_dict(each) for each in found]})))
    else:
        typer.echo("\n\n".join(inventory.text(each) for each in found))


@ledger_app.command(short_help="Check that ledgers are whole and fit each other.")
def verify(settings: SeveralSettings, as_json: Json = False) -> None:
    """Check that each ledger's chain is whole, that it is not older than the file beside it, and
    that releases are as recorded.

    With the aggregator's settings and those of clients or the server: that the aggregator's ledger
    holds all that they have seen of it. Ends with 0 where everything is in order, else with the
    exit code of the first finding.

    Example:

    \b
      fedrec ledger verify aggregator.toml server.toml
    """
    from dataclasses import asdict

    from fedrec.cli.ledgers import verification

    found = verification.verified(settings)
    code = next((each.exit_code for each in found if each.wrong), 0)
    if as_json:
        typer.echo(json.dumps({"exit_code": code, "findings": [asdict(each) for each in found]}))
    for each in () if as_json else found:
        typer.echo(f"{'FAILS' if each.wrong else 'ok':5}  {each.party}: {each.what}")
        if each.wrong:
            typer.echo(f"       {each.wrong}\n       -> {each.remedy}")
    raise typer.Exit(code)


@app.command(short_help="Write a party's state to one file, also while it runs.")
def backup(
    settings: Settings,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to write it; an older backup there is replaced.",
        ),
    ],
    as_json: Json = False,
) -> None:
    """Write the state of an aggregator, a server or a client to one file, also while it runs;
    examine what was written.

    The file is as secret as the state folder. Keep the newest: an older one does not know what was
    released or spent since, and the other parties refuse it.

    Example:

    \b
      fedrec backup aggregator.toml --output /backup/aggregator.tar
    """
    from fedrec.cli.ledgers.backup import backup as write
    from fedrec.cli.ledgers.restoring import contents

    write(settings, output)
    typer.echo(_words(output, contents(output), as_json=as_json))


@app.command(short_help="Put a backup back into an empty state folder.")
def restore(
    settings: Settings,
    archive: Annotated[
        Path, typer.Option("--input", metavar="FILE", help="A file that `fedrec backup` wrote.")
    ],
    as_json: Json = False,
) -> None:
    """Put a backup back into the state folder that the settings name, which must hold nothing of a
    party; the party must not be running.

    Only the newest backup: `fedrec ledger verify` with the other parties' settings tells whether it
    is older than what they have seen.

    Example:

    \b
      fedrec restore aggregator.toml --input /backup/aggregator.tar
    """
    from fedrec.cli.ledgers.restoring import restore as put_back

    typer.echo(_words(archive, put_back(settings, archive), as_json=as_json))


def _words(path: Path, found: Backup, *, as_json: bool) -> str:
    if as_json:
        about = {
            "party": found.party,
            "name": found.name,
            "files": len(found.files),
            "entries": found.entries,
            "head": found.head,
        }
        return json.dumps({"backup": str(path), **about})
    ledger = f", ledger of {found.entries:,} entries, head {found.head}" if found.head else ""
    return f"{path}: {found.party} {found.name}".rstrip() + f", {len(found.files):,} files{ledger}"
