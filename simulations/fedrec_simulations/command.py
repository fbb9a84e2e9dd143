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

from fedrec import __version__
from fedrec.errors import FedRecError, SettingsError

EXIT_CODES = """
Exit codes: 0 done; 2 wrong flag or scenario key; 3 data that cannot be read; 4 a split that leaks; 5 a privacy limit;
6 a run folder that cannot be used; 70 a defect of fedrec; 130 interrupted.
"""

app = typer.Typer(
    name="fedrec",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
    help="Train and query recommenders without anyone but the person learning what they read, watched or rated.\n" + EXIT_CODES,
)
data_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at data sets and make planted ones.")
app.add_typer(data_app, name="data")

Overrides = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one scenario key; may be repeated.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")]


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        typer.echo(f"fedrec {__version__}")
        raise typer.Exit


@app.command()
def simulate(
    scenario: Annotated[Path | None, typer.Argument(help="Scenario file (TOML). Without one: the default recipe on planted data.")] = None,
    overrides: Overrides = None,
    as_json: Json = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the interrupted run of this scenario to the same bytes.")] = False,
) -> None:
    """Train, evaluate and report on this machine: every user a client, one aggregator, one server, in one process.

    A run folder under run.directory keeps the resolved settings, the guarantee by three accountants, metrics as JSON
    lines, a checkpoint after every round, the released model and report.html. The same scenario and seed give the same
    bytes. For example:

      fedrec simulate simulations/planted.toml

      fedrec simulate simulations/ml1m_ssp2.toml --set data.path=ml-1m --set privacy.epsilon=1 --json
    """
    from fedrec.settings import load
    from fedrec_simulations.simulate import run

    result = run(load(scenario, overrides or ()), name=scenario.stem if scenario else "planted", resume=resume, quiet=as_json)
    if as_json:
        typer.echo(json.dumps(result))


@app.command()
def account(
    scenario: Annotated[Path | None, typer.Argument(help="Scenario file (TOML).")] = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Print the privacy plan of a scenario without running it: every release, its share, its noise, three accountants.

    Nothing private is read: the plan is a function of the scenario alone.
    """
    from fedrec.settings import load
    from fedrec_simulations.account import describe, table

    plan = describe(load(scenario, overrides or ()))
    typer.echo(json.dumps(plan) if as_json else table(plan))


@data_app.command("formats")
def data_formats() -> None:
    """List the formats that data.format may name."""
    from fedrec_simulations.data_verbs import formats

    typer.echo(formats())


@data_app.command("describe")
def data_describe(
    path: Annotated[str, typer.Argument(help="File or folder of the data.")],
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Read a data set and print its size, scale, sparsity and public features; a first check before a run."""
    from fedrec.settings import load
    from fedrec_simulations.data_verbs import describe

    described = describe(load(None, [f"data.path={json.dumps(path)}", *(overrides or ())]))
    typer.echo(json.dumps(described) if as_json else "\n".join(f"{key:>24}  {value}" for key, value in described.items()))


@data_app.command("plant")
def data_plant(
    folder: Annotated[Path, typer.Argument(help="Folder to write ratings.parquet and items.parquet to.")],
    preset: Annotated[str, typer.Option(help="small, demo, ml10m or ml10m-x10.")] = "demo",
    seed: Annotated[int, typer.Option(help="Seed of the generator.")] = 1,
) -> None:
    """Write a planted data set with a long tail and public features, chunk by chunk, in bounded memory."""
    from fedrec_simulations.data_verbs import plant

    typer.echo(plant(folder, preset, seed))


class Bench(StrEnum):
    """What can be measured."""

    kernels = "kernels"
    als = "als"
    encoder = "encoder"
    readers = "readers"
    ablation = "ablation"
    quality = "quality"
    clicks = "clicks"


@app.command()
def bench(
    what: Annotated[Bench, typer.Argument(help="Speed: kernels, als, encoder, readers. Quality: ablation, quality, clicks.")],
    data: Annotated[str, typer.Option(help="Data folder of the quality benchmarks.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Smaller shapes and fewer repeats: a smoke test, not a figure.")] = False,
    output: Annotated[Path | None, typer.Option(help="Also write the result to this JSON file.")] = None,
) -> None:
    """Measure: speed as ratios to a reference in the same run, quality as means over seeds. Prints one JSON object.

    kernels, als, encoder and readers need `pip install 'fedrec[bench]'`; quality and ablation read MovieLens 1M, clicks
    reads a folder of click lists with train and test.
    """
    from fedrec_simulations.bench.verbs import run

    result = run(what.value, data=data, quick=quick)
    if output:
        from fedrec.checkpoint import write_json

        write_json(output, result)
    typer.echo(json.dumps(result, indent=2))


@app.command(hidden=True)
def docs(target: Annotated[Path, typer.Argument(help="Markdown file to write.")]) -> None:
    """Write the reference page from the code: every verb's help and every scenario key."""
    from fedrec_simulations.reference import write

    write(target)


def main() -> None:
    """Entry point: one line of cause, one of remedy, a documented exit code; a traceback is a defect."""
    sys.exit(_guarded(sys.argv[1:]))


def _guarded(arguments: list[str]) -> int:
    try:
        app(arguments, prog_name="fedrec")
    except SystemExit as done:
        return int(done.code or 0)
    except FedRecError as failure:
        return _say(failure.cause, failure.remedy, failure.exit_code)
    except KeyboardInterrupt:
        return _say("interrupted", "The same command with --resume continues a simulation from its last round.", 130)
    except ImportError as failure:
        return _say(f"{failure}", "Install the optional packages: pip install 'fedrec[bench]'.", SettingsError.exit_code)
    except MemoryError:
        return _say("out of memory", "Use a smaller model.dimension or a machine with more memory.", 70)
    except Exception as failure:
        if os.environ.get("FEDREC_TRACEBACK"):
            traceback.print_exc()
        return _say(f"{type(failure).__name__}: {failure}", "This is a defect of fedrec: report it with FEDREC_TRACEBACK=1 set.", 70)
    return 0


def _say(cause: str, remedy: str, code: int) -> int:
    sys.stderr.write(f"error: {' '.join(cause.split())}\nremedy: {remedy}\n")
    return code
