"""Verbs of serving: a bundle made of a trained model, a server that answers queries, and a device
that asks."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Annotated, Literal

import typer

from fedrec.cli.flags import Json, option
from fedrec.errors import SettingsError
from fedrec.operations import descriptors, lost_streams

app = typer.Typer(rich_markup_mode=None)


@app.command(short_help="Make the serving bundle of a trained model.")
def export(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE", help="Run folder, state folder of a server, or model folder."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where the bundle is written, replaced in one step.",
        ),
    ],
    items: Annotated[
        Path | None,
        option(
            "--items",
            "FILE",
            "Today's table of items: known items, and new ones, which the bundle ranks by what is "
            "public.",
        ),
    ] = None,
    similar_items: Annotated[
        Path | None,
        option("--similar-items", "FILE", "With --items: public pairs, as data.similar_items."),
    ] = None,
    item_vectors: Annotated[
        Path | None,
        option("--item-vectors", "FILE", "With --items: public vectors, as data.item_vectors."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make the serving bundle of a trained model: one public file that fedrec serve serves, with
    the guarantee of training in it.

    For a model of ratings or clicks its folder is enough, without data. For news, the bundle that
    training wrote is checked and copied, or gets today's articles. Items that came after training
    need no new training.

    Example:

    \b
      fedrec export runs/books --items today.csv --output books.safetensors
      fedrec serve books.safetensors
    """
    from fedrec.data.added_items import added_items
    from fedrec.serving.bundle import sha256_of
    from fedrec.serving.model_bundles import export as write_export

    if items is None and (similar_items or item_vectors):
        raise SettingsError(
            "--similar-items and --item-vectors are of new items", "Name their table: --items."
        )
    today = partial(
        added_items, today=items, similar_items=similar_items, item_vectors=item_vectors
    )
    about = write_export(source, output, None if items is None else today)
    version = sha256_of(output)[:16]
    if as_json:
        typer.echo(
            json.dumps({"bundle": str(output), "version": version, **about.model_dump(mode="json")})
        )
        return
    typer.echo(f"bundle   {output}, version {version}")
    typer.echo(f"training {about.trained}")
    typer.echo(f"next     fedrec serve {quote(str(output))} --page")


@app.command(short_help="Serve released models to private queries.")
def serve(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help=(
                "What fedrec train wrote; also run, model and state folders, bundles, or "
                "https://host:port of a server."
            ),
        ),
    ],
    settings: Annotated[
        Path | None,
        option("--settings", "FILE", "Settings file (TOML), as in docs/serving.md."),
    ] = None,
    grpc: Annotated[
        str | None,
        option("--grpc", "HOST:PORT", "Where gRPC listens; port 0 takes a free one."),
    ] = None,
    http: Annotated[
        str | None,
        option("--http", "HOST:PORT", "Where HTTP listens; port 0 takes a free one."),
    ] = None,
    page: Annotated[
        bool,
        typer.Option(
            "--page", help="Also serve a web page that makes private queries in the browser."
        ),
    ] = False,
    demo: Annotated[
        bool,
        typer.Option(
            "--demo", help="Serve experiments too: models trained with seeded noise, and say so."
        ),
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Where there is no model yet, wait for the first one.")
    ] = False,
) -> None:
    """Serve released models over gRPC and HTTP to queries that carry a few noised coefficients, and
    nothing else of a person.

    A new bundle in one of the folders takes over without a failed request; the one before answers
    until it is retired. From the address of a server that trains elsewhere (its publish table) new
    bundles are fetched with a token, checked, and kept in the state folder of the settings (table
    fetch). SIGTERM finishes what is running, SIGHUP looks for new bundles at once.

    A model that was trained with seeded noise is refused without --demo: whoever knows the seed can
    remove the noise. Of each model, standard error, log, fedrec status and the page say whether it
    follows from a certificate (fedrec verify).

    Examples:

    \b
      fedrec serve model --page
      fedrec serve /var/lib/fedrec/server --wait
      fedrec serve https://server.example.org:7003 --settings serving.toml --wait
    """
    from fedrec.serving.bundle import FILE
    from fedrec.settings_tables import TABLES
    from fedrec_server.serving.main import Serving, run
    from fedrec_server.serving.settings import load, overridden

    for source in runs:
        if set(Path(source).suffixes) & TABLES:
            raise SettingsError(
                f"{source} is data, not a model", f"Train one: fedrec train {source} -o model."
            )
        if Path(source).is_dir() and not Path(source, FILE).exists():
            _made_bundle(Path(source))

    def told(serving: Serving) -> None:
        typer.echo(f"training {serving.training}", err=True)
        lines = [
            f"model {serving.newest}",
            f"grpc  {serving.grpc or '-'}",
            f"http  {serving.http or '-'}",
        ]
        if page and serving.http:
            lines.append(f"page  {serving.http}/")
        address = serving.http or f"grpc://{serving.grpc}"
        lines += [
            "next  write item ids into read.txt, one a line; in another terminal:",
            f"      fedrec recommend --server {address} --history read.txt",
        ]
        typer.echo("\n".join(lines))
        sys.stdout.flush()

    lost_streams.keep_on_without_streams()
    descriptors.raise_limit()
    run(
        runs,
        overridden(load(settings) if settings else None, grpc=grpc, http=http),
        page=page,
        demo=demo,
        wait=wait,
        verify=_verified,
        ready=told,
    )


def _made_bundle(source: Path) -> None:
    """The bundle of a model folder that has none yet, made by a process of its own: what training
    loads would stay in the memory of the one that serves. Ends the command as that one ended."""
    from fedrec.serving.bundle import FACTS, FILE

    if (source / FACTS).exists():
        command = [
            sys.executable,
            "-m",
            "fedrec.cli",
            "export",
            str(source),
            "-o",
            str(source / FILE),
        ]
        if code := subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
            raise typer.Exit(code)


def _verified(source: Path) -> str:
    """Whether model and bundle follow from a certificate, also said on standard error.

    By a process of its own: what it loads would stay in the memory of the one that serves."""
    command = [sys.executable, "-m", "fedrec.cli", "verify", str(source)]
    made = subprocess.run(
        [*command, "--up-to-rounding", "--json"], capture_output=True, text=True, check=False
    )
    if made.returncode < 0:  # a signal: what serves is told to stop as well
        return ""
    if made.returncode:
        said = f"not verified: {made.stderr.partition(chr(10))[0].removeprefix('error: ')}"
    else:
        found = json.loads(made.stdout)
        whole = "verified" if found["bundle"] else "verified without its bundle"
        said = f"{whole}, certificate sha256 {found['sha256']}"
    typer.echo(f"{source}: {said}", err=True)
    return said


@app.command(short_help="Get recommendations without telling a server what you read.")
def recommend(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN_DIR", show_default=False, help="With --demo: the run to serve."
        ),
    ] = None,
    history: Annotated[
        Path | None,
        option(
            "--history",
            "FILE",
            "Item ids, oldest first, or CSV or Parquet: item, rating, timestamp.",
        ),
    ] = None,
    server: Annotated[
        str,
        option("--server", "URL", "grpc(s)://host:port or http(s)://host:port."),
    ] = "",
    k: Annotated[int, typer.Option("-k", metavar="N", min=1, help="How many to recommend.")] = 10,
    epsilon: Annotated[
        float,
        typer.Option(
            metavar="E", help="Epsilon of a new answer, per click (replace); inf adds no noise."
        ),
    ] = 5.0,
    limit: Annotated[
        float,
        typer.Option(
            metavar="E",
            help=(
                "Total epsilon of all answers, per click (replace); new queries are refused "
                "beyond it."
            ),
        ),
    ] = 20.0,
    delta: Annotated[float, typer.Option(metavar="D", help="Delta of both epsilons.")] = 1e-5,
    renew_every: Annotated[
        float | None,
        option(
            "--renew-every",
            "DAYS",
            "Count only the answers of the last DAYS days against the limit.",
        ),
    ] = None,
    max_user_epsilon: Annotated[
        float,
        typer.Option(
            "--max-user-epsilon",
            metavar="E",
            help="Limit of the same total for all your clicks together, per user (replace).",
        ),
    ] = float("inf"),
    state: Annotated[
        Path | None,
        option(
            "--state",
            "DIR",
            "Folder of ledger and models; default ~/.local/state/fedrec/recommend.",
        ),
    ] = None,
    categories: Annotated[
        list[str] | None,
        option("--category", "NAME", "Only items in it; may be repeated."),
    ] = None,
    candidates: Annotated[
        int | None,
        option(
            "--candidates",
            "N",
            "Items to request, at least k plus the length of a history; read ones "
            "are removed here.",
            min=1,
        ),
    ] = None,
    via: Annotated[
        Literal["auto", "device", "server"],
        typer.Option(
            help=(
                "Who ranks. device: exact, nothing is sent or spent. server: from a noised query. "
                "auto: the device, up to --device-mb."
            )
        ),
    ] = "auto",
    device_mb: Annotated[
        float,
        typer.Option(
            "--device-mb", metavar="MB", min=0, help="Largest public model ranked on this device."
        ),
    ] = 20.0,
    items: Annotated[
        Path | None,
        option("--items", "FILE", "Rank these ids alone, one a line; always on this device."),
    ] = None,
    seen: Annotated[
        Literal["drop", "keep"],
        typer.Option(help="Whether what was read already may be in the list."),
    ] = "drop",
    last: Annotated[
        bool,
        typer.Option(
            "--last",
            help="Send the last query again, free of charge, even if the history has changed.",
        ),
    ] = False,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Print every byte that was sent, and what was not sent."),
    ] = False,
    demo: Annotated[
        bool,
        typer.Option(
            "--demo",
            help=(
                "Serve RUN_DIR, or the newest run in ./runs, and ask on behalf of a made-up reader."
            ),
        ),
    ] = False,
    ca: Annotated[
        str,
        option("--ca", "FILE", "Certificate authority of the server (PEM)."),
    ] = "",
    pin: Annotated[
        str,
        option("--pin", "HEX", "SHA-256 of the server's certificate; any other is refused."),
    ] = "",
    certificate: Annotated[
        str,
        option("--certificate", "FILE", "Your certificate, where the server asks for one (PEM)."),
    ] = "",
    key: Annotated[
        str,
        option("--key", "FILE", "Private key of your certificate (PEM)."),
    ] = "",
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="Seconds to wait for an answer.")
    ] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Get recommendations without telling a server what you read.

    A public model of at most 20 MB (--device-mb) is fetched as everybody fetches it, and ranked on
    this device: exact, nothing is sent, nothing is spent. A larger one, or --via server, is asked.
    The query has a few noised numbers, made on this device from the latest clicks. Until the
    history changes the same numbers are sent again, which costs nothing. A ledger is charged
    before anything is sent; queries beyond the limit are refused.

    Examples:

    \b
      fedrec recommend --demo
      fedrec recommend --history read.txt --server grpcs://example.org:7443
    """
    from fedrec.cli import recommend as asking
    from fedrec.cli import recommend_demo
    from fedrec_client.serving_link import Trust

    if run and not demo:
        raise SettingsError(
            f"{run} is given without --demo",
            "To ask a running server: --server URL --history FILE.",
        )
    trust = Trust(ca, pin, certificate, key)
    device = asking.DeviceOptions(
        server,
        state or asking.default_state(),
        epsilon,
        limit,
        delta,
        renew_every,
        max_user_epsilon,
        trust,
        timeout,
        via,
        device_mb,
    )
    choices = asking.Choices(
        k, tuple(categories or ()), candidates, last, explain, items, seen == "keep"
    )
    words, content = (
        recommend_demo.run(run, device, choices) if demo else asking.run(history, device, choices)
    )
    typer.echo(json.dumps(content) if as_json else words)
