"""Verbs that play all parties on this machine: `fedrec demo`, and the engine of
`simulate --backend ray`."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
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
    seed: Annotated[
        int | None,
        option("--seed", "N", "With --deployment: who is killed, and when; 0 unless given.", min=0),
    ] = None,
) -> None:
    """See it work on invented data, in any folder and without a network.

    Alone it is `fedrec simulate` with the scenario planted: training in one process at three
    epsilons, a table of errors beside guarantees, and report.html in ./runs.

    --deployment makes certificates and starts an aggregator, a server, two sites and a serving
    process on free ports, with TLS between them as docs/deploy.md says. It trains, asks for a
    recommendation as a person, lets more ratings arrive, trains again from the last model, and asks
    again. On the way it kills one party with kill -9 in the middle of a round, chosen by --seed.
    Then it prints what each party saw, and what training and serving have spent. It ends with 0
    only where everything held.

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

        content = run_deployment(tuple(overrides or ()), seed=seed or 0, keep=keep, quiet=as_json)
        if as_json:
            typer.echo(json.dumps(content))
        return
    if keep is not None or seed is not None:
        given = "--keep" if keep is not None else "--seed"
        raise SettingsError(
            f"{given} has no effect without --deployment",
            "Add --deployment, or use --set run.directory=DIR.",
        )
    from fedrec.run.simulate import run
    from fedrec.settings import load
    from fedrec.shipped import path_of

    result = run(load(path_of("planted"), overrides or ()), name="planted", quiet=as_json)
    if as_json:
        typer.echo(json.dumps(result))


@app.command(hidden=True)
def engine(
    clients: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Settings files of the clients, one for each node."),
    ],
    scenario: Annotated[
        Path, typer.Option("--scenario", metavar="FILE", help="Scenario file (TOML).")
    ],
    settings: Annotated[
        Path, typer.Option("--settings", metavar="FILE", help="Settings file of the server (TOML).")
    ],
    ray: Annotated[
        Path,
        typer.Option(
            "--ray",
            metavar="FOLDER",
            help="Folder for Ray's sockets and logs; its path must be short.",
        ),
    ],
) -> None:
    """Run the server and all clients' nodes in Flower's simulation engine: a part of simulate
    --backend ray."""
    from fedrec.settings import load
    from fedrec_server.settings import load as load_server
    from fedrec_simulations.runtimes.ray_engine import serve

    # SIGTERM ends it at once: Ray's own processes see it gone, and the rounds go on after the last
    # checkpoint. In the main thread, Ray would answer it by waiting for its other threads
    with ThreadPoolExecutor(1) as thread:
        thread.submit(serve, load(scenario, ()), load_server(settings), clients, ray).result()
