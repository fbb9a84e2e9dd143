"""The verb that plays all parties on this machine: `fedrec demo`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedrec.cli.flags import Json, Overrides, option
from fedrec.errors import SettingsError

app = typer.Typer(rich_markup_mode=None)


@app.command(short_help="See it work on invented data: a training, or a whole deployment.")
def demo(
    deployment: Annotated[
        bool,
        typer.Option(
            "--deployment",
            help="Start every party of a deployment as a process of its own, on this machine.",
        ),
    ] = False,
    overrides: Overrides = None,
    as_json: Json = False,
    keep: Annotated[
        Path | None,
        option("--keep", "DIR", "With --deployment: keep all folders and logs here, a new folder."),
    ] = None,
) -> None:
    """See it work on invented data, in any folder and without a network.

    Alone it is `fedrec simulate` with the scenario planted: training in one process at three
    epsilons, a table of errors beside guarantees, and report.html in ./runs.

    --deployment makes certificates and starts an aggregator, a server and two sites on free ports,
    with TLS between them as docs/deploy.md says. It trains, kills the aggregator with kill -9 on
    the way, lets more ratings arrive, and trains again from the last model. Then it prints what
    training has spent, and whether everybody was counted and all ledgers say the same. It ends
    with 0 only where everything held.

    The people are invented, so the noise of training is seeded: an experiment, whose models can be
    compared byte for byte with those that one process trains without any fault ("same_bytes"). With
    --set privacy.noise=system the noise is a deployment's, and nothing can be compared:
    "same_bytes" is null then.

    Examples:

    \b
      fedrec demo
      fedrec demo --deployment --keep deployment
    """
    if deployment:
        from fedrec_simulations.demo.deployment import run as run_deployment

        content = run_deployment(tuple(overrides or ()), keep=keep, quiet=as_json)
        if as_json:
            typer.echo(json.dumps(content))
        return
    if keep is not None:
        raise SettingsError(
            "--keep has no effect without --deployment",
            "Add --deployment, or use --set run.directory=DIR.",
        )
    from fedrec.run.simulate import run
    from fedrec.settings import load
    from fedrec.shipped import path_of

    result = run(load(path_of("planted"), overrides or ()), name="planted", quiet=as_json)
    if as_json:
        typer.echo(json.dumps(result))
