"""The verb `fedrec demo`."""

from __future__ import annotations

import json

import typer

from fedrec_simulations.flags import Json, Overrides

app = typer.Typer(rich_markup_mode=None)


@app.command(short_help="See it work on invented data.")
def demo(overrides: Overrides = None, as_json: Json = False) -> None:
    """See it work on invented data, in any folder and without a network.

    It is `fedrec simulate` with the scenario planted: training in one process at three epsilons, a table of errors beside guarantees,
    and report.html in ./runs.

    Example:

    \b
      fedrec demo
    """
    from fedrec.settings import load
    from fedrec_simulations.shipped import path_of
    from fedrec_simulations.simulate import run

    result = run(load(path_of("planted"), overrides or ()), name="planted", quiet=as_json)
    if as_json:
        typer.echo(json.dumps(result))
