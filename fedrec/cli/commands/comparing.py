"""Verbs on what there is: `fedrec compare` of finished runs, `fedrec verify` of a model, `fedrec
figures`, `fedrec scenarios`, and `fedrec schema` for editors.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from fedrec.cli.flags import Json, option

app = typer.Typer(rich_markup_mode=None)


@app.command(short_help="Recompute a model and its price from its noised releases.")
def verify(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="Folder of a model, or of its run.")
    ],
    up_to_rounding: Annotated[
        bool,
        typer.Option(
            "--up-to-rounding",
            help="Accept other last digits: another processor or BLAS may round differently. What "
            "is hidden in last digits is not seen then.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Verify a model by its certificate: no byte was changed, the model follows from its noised
    releases and public inputs, these cost what is promised, and ledgers and signatures of
    aggregators agree.

    Nobody of the training is asked, and neither Flower nor gRPC is needed. Says what is proved, and
    what still rests on trust. Exit code 6 where it does not hold.

    Examples:

    \b
      fedrec verify runs/planted-0123456789
      fedrec verify path/to/model --json
    """
    from fedrec.certificates.verifying import verify as verified

    found = verified(model, up_to_rounding=up_to_rounding)
    typer.echo(json.dumps(found.as_dict()) if as_json else found.words)


@app.command(short_help="Compare finished runs in one table, as a page, a CSV or a figure.")
def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN_DIR...", help="Run folders of fedrec simulate.")
    ],
    metric: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Order by this metric, and draw it; empty takes rmse, or NDCG."
        ),
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Also write compare.html, .csv or .svg, by the file's suffix.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare finished runs in one table: a row for each run and method, every epsilon with its
    unit.

    Runs that differ in seeds alone are one line of a figure, with intervals. Runs on different data
    are shown in one table, with a warning. Folders of unfinished runs are left out.

    Examples:

    \b
      fedrec compare runs/a runs/b
      fedrec compare runs/a runs/b --metric rmse --output compare.svg
    """
    from fedrec.report.comparison import different_data, metric_of, table, write
    from fedrec.run.comparison_frame import compare as frame_of
    from fedrec.run.run_folder import RESULT

    finished = [run for run in runs if (run / RESULT).is_file()]
    for run in runs if finished else ():
        if run not in finished:
            typer.echo(f"note: {run} holds no finished run and is left out", err=True)
    frame = frame_of(*(finished or runs))
    chosen = metric_of(frame, metric)
    if output is not None:
        write(frame, chosen, output)
    if warning := different_data(frame):
        typer.echo(f"note: {warning}", err=True)
    typer.echo(
        json.dumps(frame.to_dicts(), default=str).replace("Infinity", '"inf"')
        if as_json
        else table(frame, chosen)
    )


@app.command(short_help="List the scenarios that come with fedrec.")
def scenarios(
    everything: Annotated[
        bool, typer.Option("--all", help="Also those that another verb trains, as a demonstration.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the scenarios to start from, each with the first sentence of its file.

    Example:

    \b
      fedrec scenarios
    """
    from fedrec.shipped import shipped

    first = {
        name: re.split(r"[.] (?=[A-Z])", path.read_text("utf-8").splitlines()[0].lstrip("# "))[0]
        for name, path in shipped().items()
        if everything or name != "deployment"
    }
    typer.echo(
        json.dumps(first)
        if as_json
        else "\n".join(f"{name:24} {words}" for name, words in first.items())
    )


@app.command(short_help="Explain the keys of scenarios, or print their JSON schema for editors.")
def schema(
    common: Annotated[
        bool, typer.Option("--common", help="Explain the fifteen keys that most runs need.")
    ] = False,
    search: Annotated[
        str,
        option("--search", "WORD", "Explain every key with this word in its name or its meaning."),
    ] = "",
) -> None:
    """Explain keys of scenarios, which --set takes. Without a flag: print the JSON schema, with
    which an editor completes keys and marks wrong values.

    Examples:

    \b
      fedrec schema --common
      fedrec schema --search epsilon
      fedrec schema
    """
    from fedrec.cli.scenario_keys import COMMON, keys
    from fedrec.errors import SettingsError
    from fedrec.settings import Scenario, nearest_keys

    if common or search:
        word = search.lower()
        found = [
            (name, default, meaning)
            for name, default, meaning in keys()
            if (name in COMMON if common else word in f"{name} {meaning}".lower())
        ]
        if not found:
            near = nearest_keys(search)
            meant = f"Did you mean {near[0]}? " if near else ""
            raise SettingsError(
                f"no key has {search!r} in its name or meaning", f"{meant}Try another word."
            )
        lines = [f"{name} = {default}\n    {meaning}" for name, default, meaning in found]
        typer.echo("\n".join(lines))
        return
    made = Scenario.model_json_schema()
    typer.echo(
        json.dumps(
            {"$schema": "https://json-schema.org/draft/2020-12/schema", **made},
            indent=2,
            default=str,
        )
    )
