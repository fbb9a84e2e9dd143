"""Verbs that train or plan a training: `train`, `simulate`, `account`, `plan` and `audit`."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedrec.cli.flags import (
    ClicksFrom,
    Decimal,
    DeltaFlag,
    EpsilonFlag,
    Item,
    Items,
    Json,
    Overrides,
    Rating,
    Scale,
    ScenarioFile,
    Time,
    TimeFormat,
    User,
    option,
    own_data,
)

app = typer.Typer(rich_markup_mode=None)
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help=(
            "Continue an interrupted run of the same data and settings from its last kept round; "
            "what comes after it is drawn, and charged, anew."
        ),
    ),
]
Verdicts = Annotated[
    bool,
    typer.Option("--verdicts", help="Also print each comparison, and what no guarantee covers."),
]


class Runtimes(StrEnum):
    """Who carries a simulation's rounds."""

    loopback = "loopback"
    parties = "parties"
    processes = "processes"
    partitions = "partitions"
    ray = "ray"


@app.command(short_help="Train a private model on your own table.")
def train(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Your data: CSV, TSV, JSON lines, Parquet, or what fedrec data formats lists.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="MODEL", help="New folder for the model.")
    ],
    user: User = "",
    item: Item = "",
    rating: Rating = "",
    scale: Scale = None,
    clicks_from: ClicksFrom = None,
    time: Time = "",
    decimal: Decimal = "",
    time_format: TimeFormat = "",
    items: Items = "",
    epsilon: EpsilonFlag = None,
    delta: DeltaFlag = None,
    overrides: Overrides = None,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Train anew where MODEL is one; epsilon is spent again."),
    ] = False,
    resume: Resume = False,
    verdicts: Verdicts = False,
    as_json: Json = False,
) -> None:
    """Train a private model on your own table, and say what it is worth.

    One row is one click of one person on one item, or one rating with --scale. A random tenth of
    the rows is kept for the test. MODEL is a folder with the model, report.html and what fedrec
    serve serves; it is private data but for model/ and serving.safetensors.

    Examples:

    \b
      fedrec train clicks.csv -o model
      fedrec train log.parquet --user who --item what --epsilon 1 -o model
      fedrec train rated.tsv --rating stars --scale 1 5 --items films.csv -o model
    """
    from fedrec.run.data.describing import keys_of_news
    from fedrec.run.simulate import run
    from fedrec.settings import load
    from fedrec.shipped import require_data

    require_data(file)
    said = overrides or ()
    own = own_data(
        str(file),
        user=user,
        item=item,
        rating=rating,
        scale=scale,
        clicks_from=clicks_from,
        time=time,
        decimal=decimal,
        time_format=time_format,
        items=items,
        epsilon=epsilon,
        delta=delta,
        overrides=overrides or (),
    )
    result = run(
        load(None, [*keys_of_news(str(file), said), *own, *said]),
        name=output.name,
        at=output,
        overwrite=overwrite,
        resume=resume,
        quiet=as_json,
        details=verdicts,
    )
    if as_json:
        typer.echo(json.dumps(result))


@app.command(short_help="Train, evaluate and report on this machine.")
def simulate(
    scenario: ScenarioFile = None,
    data: Annotated[
        str,
        option("--data", "PATH", "File or folder of data."),
    ] = "",
    user: User = "",
    item: Item = "",
    rating: Rating = "",
    scale: Scale = None,
    clicks_from: ClicksFrom = None,
    time: Time = "",
    decimal: Decimal = "",
    time_format: TimeFormat = "",
    items: Items = "",
    epsilon: EpsilonFlag = None,
    delta: DeltaFlag = None,
    overrides: Overrides = None,
    verdicts: Verdicts = False,
    as_json: Json = False,
    resume: Resume = False,
    runtime: Annotated[
        Runtimes,
        typer.Option(
            "--runtime",
            metavar="NAME",
            show_choices=False,
            help="Runtime: loopback, parties, processes, partitions or ray.",
        ),
    ] = Runtimes.loopback,
    clients: Annotated[
        int,
        typer.Option(
            "--clients", metavar="N", min=1, help="Clients that share the users; not for loopback."
        ),
    ] = 2,
    seeds: Annotated[
        int,
        typer.Option(
            "--seeds",
            metavar="N",
            min=1,
            help="Run with N seeds, from the scenario's own on; print means with 95% intervals.",
        ),
    ] = 1,
    address: Annotated[
        str,
        typer.Option(
            "--address",
            metavar="ADDRESS",
            help="Ray cluster of --runtime ray; without it Ray is started here.",
        ),
    ] = "",
    ship: Annotated[
        bool,
        typer.Option(
            "--ship-package", help="Send this fedrec to Ray's nodes instead of using theirs."
        ),
    ] = False,
) -> None:
    """Train, evaluate and report on this machine: every user a client, one aggregator and one
    server.

    --runtime loopback does all of it in one process. parties runs the real parties, with ledgers,
    in one process; processes starts each as a process of its own, with certificates too. With
    seeded noise the model is the same. flwr run plays the same over Flower (docs/flower.md).

    partitions and ray take a folder of fedrec data partition as data.path, and give the same model.
    partitions reads one part after another in this process, in bounded memory. ray asks actors of a
    Ray cluster, each of which keeps the parts that it has read; a worker that is lost is replaced,
    a node that joins is used. Evaluation and comparisons run the same way.

    Without a scenario it trains on planted data at epsilon 5. The run folder, named after the
    scenario, is made in run.directory and keeps the resolved settings, the guarantee by three
    accountants, the metrics, a checkpoint after every round, the released model and report.html.
    Running a scenario again replaces its folder, with fresh noise. privacy.noise=seeded makes an
    experiment: the same bytes every time, and noise that whoever knows the seed can remove.

    --seeds N makes N runs that differ in their seed alone, and beside their folders one with
    report.html, seeds.json and seeds.csv: the mean of every metric and its 95% interval. Every run
    releases models of its own, and spends its own epsilon.

    Examples:

    \b
      fedrec simulate planted
      fedrec simulate ml1m --data ml-1m
      fedrec simulate --set data.preset=small --epsilon 1 --json
      fedrec simulate planted --seeds 3
    """
    from fedrec.errors import SettingsError
    from fedrec.run.job import RuntimeChoice
    from fedrec.settings import load

    own = own_data(
        data,
        user=user,
        item=item,
        rating=rating,
        scale=scale,
        clicks_from=clicks_from,
        time=time,
        decimal=decimal,
        time_format=time_format,
        items=items,
        epsilon=epsilon,
        delta=delta,
        overrides=overrides or (),
    )
    settings = load(scenario, [*own, *(overrides or ())])
    name = scenario.stem if scenario else "run"
    choice = RuntimeChoice(runtime.value, clients, address, ship)
    if seeds > 1 and choice.partitioned:
        raise SettingsError(
            f"--seeds is not for --runtime {choice.runtime}", "Leave one of the two out."
        )
    if seeds > 1:
        from fedrec.run.comparing import run as run_seeds

        if resume:
            raise SettingsError(
                "--resume continues one run, and --seeds makes several", "Leave one of the two out."
            )
        result = run_seeds(settings, seeds=seeds, name=name, quiet=as_json, choice=choice)
    elif choice.partitioned:
        from fedrec.run.partitions.run import run as run_over_partitions

        result = run_over_partitions(
            settings, name=name, resume=resume, quiet=as_json, choice=choice
        )
    else:
        from fedrec.run.simulate import run

        result = run(
            settings, name=name, resume=resume, quiet=as_json, choice=choice, details=verdicts
        )
    if as_json:
        typer.echo(json.dumps(result))


@app.command(short_help="Print the privacy plan of a scenario without running it.")
def account(
    scenario: ScenarioFile = None,
    overrides: Overrides = None,
    as_json: Json = False,
    users: Annotated[
        int,
        option("--users", "N", "Users, to plan before there is data."),
    ] = 0,
    items: Annotated[
        int,
        option("--items", "N", "Items, to plan before there is data."),
    ] = 0,
    traffic: Annotated[
        bool, typer.Option("--bytes", help="Also what a person sends and receives in a training.")
    ] = False,
    person: Annotated[
        list[Path] | None,
        option(
            "--person", "LEDGER", "Instead: what one person paid by this ledger; may be repeated."
        ),
    ] = None,
    clicks: Annotated[
        int | None,
        option("--clicks", "N", "With --person: clicks of its history.", min=0),
    ] = None,
    delta: Annotated[
        float | None,
        option(
            "--delta",
            "DELTA",
            "With --person: at which epsilon is stated; 1e-5 where it is not given.",
        ),
    ] = None,
) -> None:
    """Print the privacy plan of a scenario without running it: every release, its share, its noise,
    three accountants.

    A plan depends on the scenario and on three public facts of the training data: how many users,
    how many items, ratings or clicks. They are read from the data; with --users and --items no data
    is touched. What this prints is what a run of the same scenario writes to plan.json. For news:
    the cost of each release, the total of training by unit, and the cost of 1 to 100 fresh answers
    of serving; data is read, or --users asked for, only where news.rounds is given. --bytes trains
    the recipe on planted people, of ratings or clicks.

    Examples:

    \b
      fedrec account planted --set privacy.epsilon=1
      fedrec account --set recipe=published --users 100000 --items 20000 --bytes
      fedrec account --person client/ledger.sqlite --person answers.sqlite
    """
    if person:
        from fedrec.api.persons import account_of_person

        found = account_of_person(*person, clicks=clicks, delta=1e-5 if delta is None else delta)
        typer.echo(json.dumps(found.as_dict()) if as_json else found.words)
        return
    from fedrec.errors import SettingsError

    if clicks is not None or delta is not None:
        raise SettingsError(
            f"--{'delta' if clicks is None else 'clicks'} belongs to --person",
            "A plan takes its delta from the scenario: --set privacy.delta=VALUE.",
        )
    from fedrec.run.account import describe, table
    from fedrec.settings import load

    plan = describe(load(scenario, overrides or ()), users=users, items=items, traffic=traffic)
    typer.echo(json.dumps(plan) if as_json else table(plan))


@app.command(short_help="Attack a scenario and compare what was found with what is claimed.")
def audit(
    scenario: ScenarioFile = None,
    overrides: Overrides = None,
    as_json: Json = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer draws: weaker lower bounds, sooner.")
    ] = False,
    whole: Annotated[
        bool,
        typer.Option(
            "--whole",
            help=(
                "Attack everything from the input file on, with one person and without, on "
                "planted files."
            ),
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Also write the findings as a page, FILE.html."
        ),
    ] = None,
) -> None:
    """Attack a scenario's mechanisms and print, for each attack, a lower bound of epsilon beside
    the claimed one.

    Exit code 5: a bound is above its claim. Then the claim is false, or this is the one audit in a
    hundred that fails by chance.

    Examples:

    \b
      fedrec audit privaterec_planted
      fedrec audit --set data.preset=small --set privacy.epsilon=1 --json
      fedrec audit --whole --set recipe=default --set data.kind=clicks
      fedrec audit --quick planted --output audit.html
    """
    from fedrec.auditing.command import run
    from fedrec.errors import SettingsError
    from fedrec.settings import load
    from fedrec.storage import write_bytes

    if output is not None and output.suffix != ".html":
        raise SettingsError(
            f"{output}: an audit is written as a page, found the suffix {output.suffix!r}",
            "Name a file that ends in .html.",
        )
    found = run(load(scenario, overrides or ()), quick=quick, whole=whole)
    if output is not None:
        write_bytes(output, found.page(scenario.stem if scenario else "the defaults").encode())
    typer.echo(json.dumps(found.rows()) if as_json else found.table())
    raise typer.Exit(found.exit_code)
