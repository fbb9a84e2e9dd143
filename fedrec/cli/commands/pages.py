"""Hidden verb `fedrec docs`: pages that are made from code and from kept results."""

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
    results: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Also write benchmarks.md, study.md, figures.md and the rows of leaderboard.md "
            "beside it from these results.",
        ),
    ] = None,
) -> None:
    """Write the reference pages from the code: every verb, every scenario key, formats and exit
    codes; and beside it api.md."""
    from fedrec.cli.commands import api_reference
    from fedrec.cli.commands.reference import draw_curve, write
    from fedrec_simulations.bench import page
    from fedrec_simulations.experiments.papers import kept
    from fedrec_simulations.experiments.study import page as study_page
    from fedrec_simulations.leaderboard import drawing

    write(target)
    api_reference.write(target.parent / "api.md")
    if results:
        page.write(target.parent / "benchmarks.md", results)
        study_page.write(target.parent / "study.md", results)
        kept.write(target.parent / kept.PAGE, results)
        drawing.write_between(target.parent / "leaderboard.md", results / "leaderboard")
    if run_folder:
        draw_curve(run_folder, target.parent / "img" / "curve.svg")
