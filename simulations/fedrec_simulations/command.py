"""The `fedrec` command: verbs, flags and exit codes. Verbs import what they run only when they run."""

from __future__ import annotations

import json
import os
import sys
import traceback
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from click import ClickException, NoSuchOption

from fedrec import __version__
from fedrec.errors import FedRecError, RunError, SettingsError
from fedrec_simulations.bench.command import app as bench_app
from fedrec_simulations.demo.verbs import app as demo_app
from fedrec_simulations.flags import Json, Overrides, Scenario, one_blas_thread
from fedrec_simulations.ledger_verbs import app as ledger_app
from fedrec_simulations.parties import app as parties_app

EXIT_CODES = {
    0: "done",
    1: "whoever read stdout went away",
    2: "a flag or a scenario key is wrong",
    3: "data that cannot be read",
    4: "a split that leaks",
    5: "a privacy limit refuses",
    6: "a run folder or a file that cannot be used",
    7: "another party refused, or could not be reached",
    70: "a defect of fedrec",
    130: "interrupted",
}

_WRAPPED = {"max_content_width": 100, "help_option_names": ["-h", "--help"]}

typer.core.HAS_RICH = False  # help is plain text; with rich installed typer escapes the brackets of defaults for it all the same

app = typer.Typer(
    name="fedrec",
    context_settings=_WRAPPED,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
    help="Recommenders trained on what people rated or clicked, under a privacy guarantee for every person.\n\n"
    "Start with `fedrec simulate`: it needs no data and no network. Every verb has its own --help; "
    "docs/reference.md lists every scenario key.",
    epilog="Exit codes: " + "; ".join(f"{code} {words}" for code, words in EXIT_CODES.items()) + ".",
)
data_app = typer.Typer(rich_markup_mode=None, help="Look at data, list formats, make planted data.")
app.add_typer(data_app, name="data", short_help="Look at data, list formats, make planted data.")


@app.callback(invoke_without_command=True)
def _fedrec(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False
) -> None:
    if version:
        from fedrec.federation.versions import PROTOCOL

        typer.echo(f"fedrec {__version__}, messages of version {PROTOCOL}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())
    elif context.invoked_subcommand != "bench":  # which decides for itself
        one_blas_thread()


@data_app.callback(invoke_without_command=True)
def _data(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


class Runtimes(StrEnum):
    """Who carries a simulation's rounds."""

    loopback = "loopback"
    flower = "flower"
    processes = "processes"


class Backends(StrEnum):
    """What plays the nodes of Flower."""

    grid = "grid"
    ray = "ray"


@app.command(short_help="Train, evaluate and report on this machine.")
def simulate(
    scenario: Scenario = None,
    overrides: Overrides = None,
    as_json: Json = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue an interrupted run of this scenario from its last kept round; what comes after it is drawn, and charged, anew.",
        ),
    ] = False,
    runtime: Annotated[
        Runtimes,
        typer.Option("--runtime", metavar="NAME", show_choices=False, help="Who carries the rounds: loopback, flower or processes."),
    ] = Runtimes.loopback,
    clients: Annotated[int, typer.Option("--clients", metavar="N", min=1, help="Clients that share the users; not for loopback.")] = 2,
    backend: Annotated[
        Backends,
        typer.Option("--backend", metavar="NAME", show_choices=False, help="What plays the nodes of --runtime flower: grid or ray."),
    ] = Backends.grid,
) -> None:
    """Train, evaluate and report on this machine: every user a client, one aggregator and one server.

    --runtime loopback does all of it in one process. flower runs the real parties in one process over Flower's messages;
    processes starts each as a process of its own, with certificates, ledgers and all. With seeded noise the model is the same.
    flower's nodes are played by a grid in this process, or with --backend ray by Flower's own simulation engine, on Ray's
    actors: pip install 'fedrec[ray]'.

    Without a scenario it trains on planted data at epsilon 5. The run folder, named after the scenario, is made in
    run.directory and keeps the resolved settings, the guarantee by three accountants, the metrics, a checkpoint after
    every round, the released model and report.html. Running a scenario again replaces its folder, with fresh noise.
    privacy.noise=seeded makes an experiment: the same bytes every time, and noise that whoever knows the seed can remove.

    Examples:

    \b
      fedrec simulate planted
      fedrec simulate ml1m --set data.path=ml-1m
      fedrec simulate --set data.preset=small --set privacy.epsilon=1 --json
    """
    from fedrec.settings import load
    from fedrec_simulations.runtimes import Cast

    settings, name = load(scenario, overrides or ()), scenario.stem if scenario else "run"
    if settings.recipe == "privaterec":
        from fedrec_simulations.simulate_news import run
    else:
        from fedrec_simulations.simulate import run
    cast = Cast(runtime.value, clients, backend.value)
    result = run(settings, name=name, resume=resume, quiet=as_json, cast=cast)
    if as_json:
        typer.echo(json.dumps(result))


@app.command(short_help="Print the privacy plan of a scenario without running it.")
def account(
    scenario: Scenario = None,
    overrides: Overrides = None,
    as_json: Json = False,
    users: Annotated[int, typer.Option(metavar="N", show_default=False, help="Users, to plan before there is data.")] = 0,
    items: Annotated[int, typer.Option(metavar="N", show_default=False, help="Items, to plan before there is data.")] = 0,
) -> None:
    """Print the privacy plan of a scenario without running it: every release, its share, its noise, three accountants.

    A plan depends on the scenario and on three public facts of the training data: how many users, how many items, ratings
    or clicks. They are read from the data; with --users and --items no data is touched. What this prints is what a run
    of the same scenario writes to plan.json. For news: what each release costs whom, the total of training by unit, and
    what 1 to 100 fresh answers of serving cost; data is read, or --users asked for, only where news.rounds is given.

    Examples:

    \b
      fedrec account planted --set privacy.epsilon=1
      fedrec account --set recipe=published --users 100000 --items 20000
    """
    from fedrec.settings import load
    from fedrec_simulations.account import describe, table

    plan = describe(load(scenario, overrides or ()), users=users, items=items)
    typer.echo(json.dumps(plan) if as_json else table(plan))


@app.command(short_help="Attack a scenario and compare what was found with what is claimed.")
def audit(
    scenario: Scenario = None,
    overrides: Overrides = None,
    as_json: Json = False,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer draws: weaker lower bounds, sooner.")] = False,
    whole: Annotated[
        bool, typer.Option("--whole", help="Attack everything from the input file on, with one person and without, on planted files.")
    ] = False,
) -> None:
    """Attack a scenario's mechanisms and print, for each attack, a lower bound of epsilon beside the claimed one.

    Ends with 5 where a bound is above its claim: then the claim is false, or one of a hundred honest audits has failed.

    Examples:

    \b
      fedrec audit privaterec_planted
      fedrec audit --set data.preset=small --set privacy.epsilon=1 --json
      fedrec audit --whole --set recipe=default --set data.kind=clicks
    """
    from fedrec.settings import load
    from fedrec_simulations.audit.command import run

    found = run(load(scenario, overrides or ()), quick=quick, whole=whole)
    typer.echo(json.dumps(found.rows()) if as_json else found.table())
    raise typer.Exit(found.exit_code)


@data_app.command("formats", short_help="List the formats that data.format may name.")
def data_formats() -> None:
    """List the formats that data.format may name. With data.format=auto, the contents of the path decide."""
    from fedrec_simulations.data_verbs import formats

    typer.echo(formats())


@data_app.command("describe", short_help="Read a data set and print its sizes.")
def data_describe(
    path: Annotated[str, typer.Argument(metavar="PATH", help="File or folder of the data.")],
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Read a data set and print its sizes, scale, sparsity and public features: a first check before a run.

    The figures are for whoever holds the data: they carry no noise.

    Examples:

    \b
      fedrec data describe ml-1m
      fedrec data describe log.csv --set data.columns.user=who
      fedrec data describe MINDsmall
      fedrec data describe ml-1m --set data.format=click-log
    """
    from fedrec.settings import load
    from fedrec_simulations.data_verbs import describe, keys_of_news, table

    words = [f"data.path={json.dumps(path, ensure_ascii=False)}", *keys_of_news(path, overrides or ()), *(overrides or ())]
    described = describe(load(None, words))
    typer.echo(json.dumps(described) if as_json else table(described))


@data_app.command("split", short_help="Write training, validation and test data as files.")
def data_split(
    path: Annotated[str, typer.Argument(metavar="DATA", help="File or folder of the data.")],
    output: Annotated[Path, typer.Option("--output", metavar="DIR", help="Folder for the three files, new or empty.")],
    overrides: Overrides = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write into a folder that holds something already.")] = False,
) -> None:
    """Divide a data set as a run with these settings would, and write train.parquet, validation.parquet and test.parquet.

    Columns: user and item, ids as in the data; rating and timestamp where there are any; for split.kind=held-out-users, target (to be
    predicted, or shown beforehand). split.json says what was done and what no guarantee covers. Rows are those of people: keep them
    as you keep the data.

    Examples:

    \b
      fedrec data split ml-1m --output parts
      fedrec data split ml-1m --output parts --set split.kind=held-out-users
    """
    from fedrec.settings import load
    from fedrec_simulations.data_verbs import keys_of_news
    from fedrec_simulations.split_files import write_split

    words = [f"data.path={json.dumps(path, ensure_ascii=False)}", *keys_of_news(path, overrides or ()), *(overrides or ())]
    typer.echo(write_split(load(None, words), output, overwrite=overwrite))


@data_app.command("plant", short_help="Write a planted data set.")
def data_plant(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder for the events, in Parquet parts, and items.csv.")],
    preset: Annotated[str, typer.Option(metavar="SIZE", help="Size: small, demo, ml10m or ml10m_x10; demo where nothing is said.")] = "",
    users: Annotated[int, typer.Option(metavar="N", min=0, max=5_000_000, help="Users, instead of a preset.")] = 0,
    items: Annotated[int, typer.Option(metavar="N", min=0, max=1_000_000, help="Items, with --users.")] = 0,
    events: Annotated[int, typer.Option(metavar="N", min=0, max=2_000_000_000, help="Ratings, with --users.")] = 0,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the generator, 0 or more.")] = 1,
) -> None:
    """Write a planted data set with a long tail and public features, piece by piece, in bounded memory.

    Example:

    \b
      fedrec data plant planted --preset small
      fedrec data plant planted --users 20000 --items 2000 --events 500000
    """
    from fedrec_simulations.data_verbs import plant

    typer.echo(plant(folder, preset, seed, users=users, items=items, events=events))


app.add_typer(demo_app)
app.add_typer(parties_app)
app.add_typer(ledger_app)
app.add_typer(bench_app)


@app.command(hidden=True)
def engine(
    clients: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Settings files of the clients, one for each node.")],
    scenario: Annotated[Path, typer.Option("--scenario", metavar="FILE", help="Scenario file (TOML).")],
    settings: Annotated[Path, typer.Option("--settings", metavar="FILE", help="Settings file of the server (TOML).")],
    ray: Annotated[Path, typer.Option("--ray", metavar="FOLDER", help="Folder for Ray's sockets and logs; its path must be short.")],
) -> None:
    """Run the server and all clients' nodes in Flower's simulation engine: a part of simulate --backend ray."""
    from fedrec.settings import load
    from fedrec_server.settings import load as load_server
    from fedrec_simulations.ray_engine import run

    run(load(scenario, ()), load_server(settings), clients, ray)


@app.command(hidden=True)
def docs(
    target: Annotated[Path, typer.Argument(metavar="FILE", help="Markdown file to write.")],
    run_folder: Annotated[
        Path | None, typer.Option("--run", metavar="FOLDER", help="Also draw img/curve.svg beside it from this run's result.")
    ] = None,
    results: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also write benchmarks.md and study.md beside it from these results.")
    ] = None,
) -> None:
    """Write the reference page from the code: every verb, every scenario key, formats and exit codes."""
    from fedrec_simulations.bench import page
    from fedrec_simulations.reference import draw_curve, write
    from fedrec_simulations.study import page as study_page

    write(target)
    if results:
        page.write(target.parent / "benchmarks.md", results)
        study_page.write(target.parent / "study.md", results)
    if run_folder:
        draw_curve(run_folder, target.parent / "img" / "curve.svg")


def main() -> None:
    """Entry point: one line of cause, one of remedy, a documented exit code; a traceback is a defect."""
    sys.exit(_guarded(sys.argv[1:]))


def _guarded(arguments: list[str]) -> int:
    try:
        code = int(app(arguments, prog_name="fedrec", standalone_mode=False) or 0)
    except FedRecError as failure:
        return _say(failure.cause, failure.remedy, failure.exit_code)
    except ClickException as failure:
        return _say(failure.format_message().rstrip(".").replace("Value error, ", ""), _help_of(failure), SettingsError.exit_code)
    except KeyboardInterrupt:
        code = 130  # typer makes the same of it where it can
    except OSError as failure:
        where = f"{failure.filename}: " if failure.filename else ""
        return _say(f"{where}{failure.strerror or failure}", "Check the path, its permissions and the free space.", RunError.exit_code)
    except MemoryError:
        return _say("out of memory", "Use a smaller model.dimension or a machine with more memory.", 70)
    except Exception as failure:
        return _defect_or_missing_package(failure)
    return _interrupted() if code == 130 else code


def _help_of(failure: ClickException) -> str:
    context = getattr(failure, "ctx", None)
    if isinstance(failure, NoSuchOption):
        from fedrec.settings import nearest_keys

        if keys := nearest_keys(failure.option_name.lstrip("-").replace("-", "_")):
            return f"A scenario key is set with --set, for example --set {keys[0]}=VALUE; see fedrec simulate --help."
    return f"See {context.command_path if context else 'fedrec'} --help."


def _interrupted() -> int:
    return _say("interrupted", "The same command with --resume continues a simulation from its last round.", 130)


def _defect_or_missing_package(failure: Exception) -> int:
    if isinstance(failure, ModuleNotFoundError) and not (failure.name or "").startswith("fedrec"):
        return _say(f"{failure.name} is not installed", "Install the optional packages: pip install 'fedrec[bench,news]'.", 2)
    if os.environ.get("FEDREC_TRACEBACK"):
        traceback.print_exc()
    return _say(f"{type(failure).__name__}: {failure}", "This is a defect of fedrec: report it with FEDREC_TRACEBACK=1 set.", 70)


def _say(cause: str, remedy: str, code: int) -> int:
    sys.stderr.write(f"error: {' '.join(cause.split())}\nremedy: {' '.join(remedy.split())}\n")
    return code
