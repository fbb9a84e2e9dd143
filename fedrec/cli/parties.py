"""Verbs of the parties of a training, aggregator, client and server: one process each, on one
machine or on many (docs/deploy.md)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.cli.flags import Overrides, option, scenario_option
from fedrec.errors import SettingsError
from fedrec.operations import descriptors, logs, lost_streams

if TYPE_CHECKING:
    from fedrec.operations.party_settings import LoggedTable

app = typer.Typer(rich_markup_mode=None)
NewLedger = Annotated[
    bool,
    typer.Option(
        "--new-aggregator-ledger",
        help=(
            "Accept another ledger of the aggregator, after its operator has said why the"
            " old one is gone."
        ),
    ),
]


def _settings(example: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        "--settings", metavar="FILE", help=f"Settings file (TOML), as in {example}."
    )
    return option


def _failures_logged(
    party: str, file: str, settings: LoggedTable
) -> AbstractContextManager[object]:
    """What fails before a party starts stands in its log file too, where it has one; without one
    the terminal says it."""
    return (
        logs.party_log(
            party, file=Path(file), max_bytes=settings.log_max_bytes, kept=settings.log_files
        )
        if file
        else nullcontext()
    )


@app.command(short_help="Run the aggregator: take reports, release noised sums.")
def aggregator(settings: Annotated[Path, _settings("docs/deploy.md")]) -> None:
    """Run the aggregator: take one bounded report per user and round over gRPC, and release each
    round's sum once, with noise.

    It keeps a ledger of everything it has released, refuses past its operator's limit, and never
    writes a report to disk. SIGTERM finishes what is running; after a crash the same command goes
    on.

    Example:

    \b
      fedrec aggregator --settings aggregator.toml
    """
    from fedrec_aggregator.main import run
    from fedrec_aggregator.settings import load

    # no preflight: this process imports little, and opens its ledger, port and certificates before
    # all else
    lost_streams.keep_on_without_streams()
    descriptors.raise_limit()
    run(load(settings), source=settings)


def _examined(client: Path) -> None:
    """In the client's worker, which reads the data anyhow."""
    from fedrec.cli.doctor.preflight import preflight

    preflight(client=client)


@app.command(short_help="Run a client: hold people's data, answer rounds within their limit.")
def client(
    settings: Annotated[Path, _settings("docs/deploy.md")], new_aggregator_ledger: NewLedger = False
) -> None:
    """Run a client: the data of one person, or of a site where each person is a unit of privacy of
    its own.

    It joins the rounds of the server and runs only the code installed here. Before a
    report leaves, its ledger is charged; a plan, a round or an aggregator that it must not trust is
    refused with a reason.

    Example:

    \b
      fedrec client --settings client.toml
    """
    from fedrec_client.main import run
    from fedrec_client.settings import load

    lost_streams.keep_on_without_streams()
    descriptors.raise_limit()
    run(
        load(settings),
        new_aggregator_ledger=new_aggregator_ledger,
        check=partial(_examined, settings),
    )


@app.command(short_help="Let people of a client leave: nothing new of theirs is reported.")
def forget(
    settings: Annotated[Path, _settings("docs/deploy.md")],
    user: Annotated[
        list[str] | None,
        option("--user", "ID", "Who leaves, as the client's data names them; may be repeated."),
    ] = None,
    everybody: Annotated[
        bool, typer.Option("--everybody", help="All people of the client.")
    ] = False,
    check: Annotated[
        Path | None, option("--check", "FILE", "Only check statements that were kept.")
    ] = None,
) -> None:
    """Let people of a client leave, for good: from the next round on nothing of theirs is reported,
    and the aggregator counts nothing of theirs.

    The client must be stopped. Its ledger stays. What the aggregator states of each, signed with
    its key, is kept in the state folder: since when, and how much the models before hold of this
    person at most. What was released stays released.

    Example:

    \b
      fedrec forget --settings client.toml --user 4711
    """
    from fedrec_client.forgetting import forgotten, kept
    from fedrec_client.settings import load

    chosen = load(settings)
    if (check is not None) + bool(user) + everybody != 1:
        raise SettingsError("say who leaves", "Give --user ID, --everybody or --check FILE.")
    found = {check: kept(chosen, check)} if check else forgotten(chosen, user or None)
    for path, stated in found.items():
        typer.echo("\n".join([str(path), *(each.words for each in stated)]))


@app.command(
    short_help="Run the server: train a scenario with clients and an aggregator elsewhere."
)
def server(
    settings: Annotated[Path, _settings("docs/deploy.md")],
    scenario: Annotated[Path, scenario_option()],
    overrides: Overrides = None,
    new_aggregator_ledger: NewLedger = False,
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help=(
                "Train once more where the folder's training is finished; a server that "
                "is up there is asked to."
            ),
        ),
    ] = False,
    drop: Annotated[
        bool,
        typer.Option(
            "--drop-unfinished",
            help="Abandon a training that cannot go on; its whole epsilon stays counted.",
        ),
    ] = False,
    every: Annotated[
        str,
        option("--every", "DURATION", "Stay up, and train whenever the model is so old: 12h, 7d."),
    ] = "",
) -> None:
    """Run the server: train a scenario with clients and an aggregator that run elsewhere, and keep
    the released model.

    It sees who took part and noised sums, nothing else. A checkpoint is kept after every round; the
    same command goes on where it stopped. A finished training leaves model and serving bundle in
    the state folder, which fedrec serve serves.

    Started again on a finished folder it says so, and trains no more. --again trains once more:
    what devices hold then, by a new run that is charged on top of all before. --every 7d stays up
    and does so by itself; --again then asks that server. What was spent, and what the training will
    cost, is printed before anybody is asked.

    Examples:

    \b
      fedrec server --scenario planted --settings server.toml
      fedrec server --scenario planted --settings server.toml --every 7d
    """
    from fedrec.cli.doctor.preflight import preflight
    from fedrec.settings import load as load_scenario
    from fedrec_server.main import run
    from fedrec_server.schedule import ask_standing, duration_s
    from fedrec_server.settings import load

    every_s = duration_s(every) if every else 0.0
    lost_streams.keep_on_without_streams()
    descriptors.raise_limit()
    chosen = load(settings)
    if again and (standing := ask_standing(Path(chosen.state))):
        typer.echo(f"asked the server that stands there (process {standing}) to train again")
        return
    with _failures_logged("server", chosen.log, chosen):
        preflight(server=settings, scenario=scenario)
    planned = load_scenario(scenario, overrides or ())
    run(
        planned,
        chosen,
        source=settings,
        new_aggregator_ledger=new_aggregator_ledger,
        again=again,
        drop=drop,
        every_s=every_s,
        say=typer.echo,
    )
