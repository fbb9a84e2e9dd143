"""Hidden verb `fedrec docs`: pages that are made from the code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(rich_markup_mode=None)


@app.command(hidden=True)
def docs(
    target: Annotated[Path, typer.Argument(metavar="FILE", help="Markdown file to write.")],
    run_folder: Annotated[
        Path | None,
        typer.Option(
            "--run",
            metavar="FOLDER",
            help="Also draw img/curve.svg beside it from this run's result.",
        ),
    ] = None,
) -> None:
    """Write the reference pages from the code: every verb, every scenario key, formats and exit
    codes; and beside it api.md."""
    from fedrec.cli.commands import api_reference
    from fedrec.cli.commands.reference import draw_curve, write

    write(target)
    api_reference.write(target.parent / "api.md")
    if run_folder:
        draw_curve(run_folder, target.parent / "img" / "curve.svg")
