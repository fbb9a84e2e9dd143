"""Verbs on data: `fedrec data formats`, `describe`, `texts`, `split`, `plant` and `partition`."""

from __future__ import annotations

import json
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from fedrec.cli.flags import Json, Overrides, option

app = typer.Typer(
    name="data",
    rich_markup_mode=None,
    help="Look at data, list formats, make planted data.",
    short_help="Look at data, list formats, make planted data.",
)


@app.callback(invoke_without_command=True)
def _data(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("formats", short_help="List the formats that data.format may name.")
def data_formats(as_json: Json = False) -> None:
    """List the formats that data.format may name.

    With data.format=auto, the contents of the path decide."""
    from fedrec.data.read import formats as readers
    from fedrec.run.data.describing import formats

    typer.echo(
        json.dumps({name: reader.summary for name, reader in readers().items()})
        if as_json
        else formats()
    )


@app.command("describe", short_help="Read a data set and print its sizes.")
def data_describe(
    path: Annotated[str, typer.Argument(metavar="PATH", help="File or folder of the data.")],
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Read a data set and print its sizes, scale, sparsity and public features: a first check
    before a run.

    The figures are for whoever holds the data: they carry no noise.

    Examples:

    \b
      fedrec data describe ml-1m
      fedrec data describe log.csv --set data.columns.user=who
      fedrec data describe MINDsmall
      fedrec data describe ml-1m --set data.format=click-log
    """
    from fedrec.run.data.describing import describe, keys_of_news, table
    from fedrec.settings import load

    words = [
        f"data.path={json.dumps(path, ensure_ascii=False)}",
        *keys_of_news(path, overrides or ()),
        *(overrides or ()),
    ]
    described = describe(load(None, words))
    if as_json:
        typer.echo(json.dumps(described))
        return
    more = "".join(f" --set {quote(override)}" for override in overrides or ())
    typer.echo(f"{table(described)}\n{'next':>24}  fedrec train {quote(path)}{more} -o model")


@app.command("texts", short_help="Encode the texts of items as public vectors.")
def data_texts(
    items: Annotated[Path, typer.Argument(metavar="ITEMS", help="Table of items.")],
    language_model: Annotated[
        Path,
        typer.Option(
            "--language-model", metavar="FOLDER", help="Folder of a Hugging Face encoder."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Parquet of vectors; what it holds is not encoded again.",
        ),
    ],
    column: Annotated[
        list[str] | None,
        option(
            "--column",
            "NAME",
            "Column of text, as often as needed; else title, plot, description and the like.",
        ),
    ] = None,
) -> None:
    """Encode the texts of items by a sentence encoder in a local folder; nothing is fetched.

    Recipes learn from the file as data.item_vectors, and fedrec export --item-vectors ranks items
    by it that came after training.

    Example:

    \b
      fedrec data texts items.csv --language-model minilm --output texts.parquet
    """
    from fedrec.run.data.texts import text_vectors

    found = text_vectors(items, language_model=language_model, columns=column, file=output)
    typer.echo(f"{output}  vectors of {len(found):,} items")


@app.command("split", short_help="Write training, validation and test data as files.")
def data_split(
    path: Annotated[str, typer.Argument(metavar="DATA", help="File or folder of the data.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Folder for the three files, new or empty."
        ),
    ],
    overrides: Overrides = None,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Write in the place of files that were divided before."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Divide a data set as a run with these settings would, and write train.parquet,
    validation.parquet and test.parquet.

    Columns: user and item, ids as in the data; rating and timestamp where there are any; for
    split.kind=held-out-users, target (to be predicted, or shown beforehand). split.json says what
    was done and what no guarantee covers. The files hold personal data: protect them as you protect
    the data.

    Examples:

    \b
      fedrec data split ml-1m --output parts
      fedrec data split ml-1m --output parts --set split.kind=held-out-users
    """
    from fedrec.run.data.describing import keys_of_news
    from fedrec.run.data.split_files import write_split
    from fedrec.settings import load
    from fedrec.storage import read_json

    words = [
        f"data.path={json.dumps(path, ensure_ascii=False)}",
        *keys_of_news(path, overrides or ()),
        *(overrides or ()),
    ]
    told = write_split(load(None, words), output, overwrite=overwrite)
    typer.echo(
        json.dumps({"folder": str(output), **read_json(output / "split.json")}) if as_json else told
    )


@app.command("plant", short_help="Write a planted data set.")
def data_plant(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="Folder for the events, in Parquet parts, and items.csv."
        ),
    ],
    preset: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="Size: small, demo, skewed, ml10m, ml10m_x10, ml20m; demo where nothing is said.",
        ),
    ] = "",
    users: Annotated[
        int, typer.Option(metavar="N", min=0, max=5_000_000, help="Users, instead of a preset.")
    ] = 0,
    items: Annotated[
        int, typer.Option(metavar="N", min=0, max=1_000_000, help="Items, with --users.")
    ] = 0,
    events: Annotated[
        int, typer.Option(metavar="N", min=0, max=2_000_000_000, help="Ratings, with --users.")
    ] = 0,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the generator, 0 or more.")] = 1,
    as_json: Json = False,
) -> None:
    """Write a planted data set with a long tail and public features, piece by piece, in bounded
    memory.

    Example:

    \b
      fedrec data plant planted --preset small
      fedrec data plant planted --users 20000 --items 2000 --events 500000
    """
    from fedrec.run.data.describing import plant

    files = plant(folder, preset, seed, users=users, items=items, events=events)
    typer.echo(json.dumps({"files": files}) if as_json else "\n".join(files))


@app.command("partition", short_help="Write a data set as partitions by user.")
def data_partition(
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="New or empty folder, or a URL such as s3://bucket/data.",
        ),
    ],
    path: Annotated[
        str,
        typer.Argument(
            metavar="DATA", help="File or folder of the data; planted data where nothing is said."
        ),
    ] = "",
    parts: Annotated[
        int,
        typer.Option(
            "--parts", metavar="N", min=1, max=100_000, help="Partitions, each a Parquet file."
        ),
    ] = 16,
    overrides: Overrides = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Finish what an interrupted command began.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a data set as partitions by user: Parquet files that any machine reads on its own, and
    a manifest with their digests.

    A user lies in one part, by a hash of the id. Tables are read in batches and planted data is
    drawn in chunks, so that memory is bounded by a part; other formats are read whole. Every
    command takes the folder as data.path. The files hold personal data: protect them as you protect
    the data.

    Examples:

    \b
      fedrec data partition ml-1m --output parts --parts 16
      fedrec data partition --set data.preset=ml10m --output planted --parts 32
      fedrec data partition log.parquet --output s3://bucket/log --parts 400
    """
    from rich.console import Console

    from fedrec.run.data.describing import partition
    from fedrec.run.progress import progress_bar
    from fedrec.settings import load

    words = [f"data.path={json.dumps(path, ensure_ascii=False)}"] if path else []
    with progress_bar(Console(stderr=True, quiet=as_json)) as progress:
        task = progress.add_task("partitions", total=parts)
        made = partition(
            load(None, [*words, *(overrides or ())]), output, parts=parts, resume=resume,
            told=lambda done, total: progress.update(task, completed=done, total=total),
        )  # fmt: skip
    said = (
        f"{output}: {made['parts']} parts, {made['events']:,} events of {made['users']:,} users "
        f"on {made['items']:,} items"
    )
    lines = [
        said,
        *(f"not covered by a guarantee for training: {what}" for what in made["not_covered"]),
    ]
    typer.echo(json.dumps(made) if as_json else "\n".join(lines))
