"""Hidden verb `fedrec docs`: pages that are made from the code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(rich_markup_mode=None)


@app.command(hidden=True)
def docs(
    target: Annotated[Path, typer.Argument(metavar="FILE", help="Markdown file to write.")],
) -> None:
    """Write the reference pages from the code: every verb, every scenario key, formats and exit
    codes; and beside it api.md."""
    from fedrec.cli.commands import api_reference
    from fedrec.cli.commands.reference import write

    write(target)
    api_reference.write(target.parent / "api.md")
