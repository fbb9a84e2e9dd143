"""Verbs `fedrec research`: figures of papers, the study, measurements of quality, and the pages
that show what is kept of them.

fedrec joins them by the entry point `fedrec.commands`; each imports what it runs when it runs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from fedrec.cli.flags import Json
from fedrec.errors import SettingsError

HOME = Path(__file__).parents[1]
"""The folder research/, where results and pages are kept."""
MEASUREMENTS: Mapping[str, tuple[str, str]] = {
    "quality": ("quality.quality", "seeds"),
    "ablation": ("quality.ablation", "seeds"),
    "clicks": ("quality.clicks", "seeds epsilons overrides"),
    "simple": ("quality.simple", "seeds users items epsilons overrides"),
    "sizes": ("quality.sizes", "seeds users items epsilons"),
    "year": ("quality.year", "seeds"),
    "public-prior": ("quality.public_prior", "seeds epsilons overrides"),
    "cohorts": ("quality.cohorts", "seeds"),
    "sharing": ("quality.sharing", "seeds"),
    "news": ("news", ""),
    "news-paper": ("news_paper", "seeds only"),
    "news-noise": ("news_noise", "seeds overrides only users"),
    "names": ("papers.names", "only"),
    "posterior": ("quality.posterior", "users items epsilons"),
    "linkage": ("quality.linkage", ""),
    "serving-basis": ("quality.serving_utility", ""),
    "serving-lists": ("quality.serving_lists", ""),
    "serving-news": ("quality.serving_news", ""),
    "new-news": ("quality.new_news", ""),
    "serving-attention": ("quality.serving_attention", ""),
}
"""By name: the module whose `run` it is, and the flags that it takes beside those of all."""

app = typer.Typer(
    name="research",
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Figures of papers, the study and measurements of quality, made again, and their pages.",
    short_help="Make figures of papers and quality again.",
)
Quick = Annotated[
    bool, typer.Option("--quick", help="A small part: a test of the wiring, and no result.")
]
Jobs = Annotated[
    int, typer.Option(min=1, metavar="N", help="Rows at a time, in processes that share the cores.")
]
Output = Annotated[
    Path | None,
    typer.Option(metavar="FILE", show_default=False, help="Also write the result to this file."),
]
Only = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", show_default=False, help="These lines only; may be repeated."),
]
Likes = Annotated[
    bool, typer.Option("--likes", help="Ratings of 4 or more as clicks, divided at random.")
]
Seeds = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", show_default=False, help="Seeds 1 to N, of splits and of noise."
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        show_default=False,
        help="Override a key of the scenarios; may be repeated.",
    ),
]


def _data(words: str) -> Any:
    return typer.Option(metavar="PATH", show_default=False, help=words)


Epsilons = Annotated[str, _data("Epsilons, as 1,5,inf.")]


@app.command(short_help="Make figures of a paper again.")
def figures(
    name: Annotated[
        str, typer.Argument(metavar="PAPER[/FIGURE]", help="A paper, or one of its figures.")
    ],
    data: Annotated[str, _data("Folder of the data, or 'planted'.")] = "",
    quick: Quick = False,
    jobs: Jobs = 1,
    overrides: Overrides = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Make the figures of ada-dpals, am-ssp, convex-ssp, dp-cmf, fast-dpmf or privaterec again,
    from the scenarios in research/scenarios, beside what was published.

    --set figure.seeds=[1,2] and --set figure.epsilons=[1,5] choose others. Figures that show
    seconds make one row at a time whatever --jobs says. A run that was interrupted goes on from its
    finished rows.

    Examples:

    \b
      fedrec research figures ada-dpals/figure5
      fedrec research figures dp-cmf/figure1 --data ml-1m --jobs 2
    """
    from fedrec_research.papers.figures import run
    from fedrec_research.trials import shown

    told = tuple(overrides or ())
    with shown(silent=as_json) as tell:
        result = run(name, data, quick=quick, jobs=jobs, overrides=told, tell=tell)
    _end(result, output, as_json)


@app.command(short_help="Train every system of the study at every epsilon.")
def study(
    data: Annotated[str, _data("Folder of the data.")] = "",
    only: Only = None,
    likes: Likes = False,
    seeds: Seeds = None,
    epsilons: Epsilons = "",
    quick: Quick = False,
    jobs: Jobs = 1,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Train every system of the study at every epsilon with five seeds on one data set, and test
    each once.

    With --only, the other systems that --output holds stay.
    """
    from fedrec_research.study.measure import run

    flags = {"only": only, "seeds": seeds, "epsilons": _numbers(epsilons, float)}
    _made(run, [data], quick, jobs, flags, output, as_json, likes=likes, kept_in=output)


@app.command(short_help="Search the settings of the study's lines on one model.")
def search(
    data: Annotated[str, _data("Folder of the data.")] = "",
    only: Only = None,
    likes: Likes = False,
    jobs: Jobs = 1,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Try the same number of settings, on validation ratings, for every line of the study on one
    model; other lines that --output holds stay."""
    from fedrec_research.study.search import run

    _made(run, [data], False, jobs, {"only": only}, output, as_json, likes=likes, kept_in=output)


@app.command(short_help="Measure one part of quality.")
def measure(
    what: Annotated[str, typer.Argument(metavar="WHAT", help=f"{', '.join(MEASUREMENTS)}.")],
    data: Annotated[
        list[str] | None, _data("Folder of the data; of simple and names, several.")
    ] = None,
    quick: Quick = False,
    jobs: Jobs = 1,
    seeds: Seeds = None,
    only: Only = None,
    users: Annotated[
        str,
        _data(
            "Of simple and sizes: numbers of users, as 300,1000; of news-noise readers who train."
        ),
    ] = "",
    items: Annotated[str, _data("Of simple and sizes: numbers of items.")] = "",
    epsilons: Epsilons = "",
    overrides: Overrides = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Measure one part of quality; research/docs/quality.md says what each is, and its command.

    quality, ablation, simple and sizes are of the default recipe; clicks of recipes for clicks;
    news, news-paper and news-noise of PrivateRec; posterior of Fast DPMF's sampler; linkage of two
    noised answers of one person; the serving ones of private queries; cohorts of sampled users;
    sharing of three aggregators; year of weekly models under one guarantee.
    """
    if what not in MEASUREMENTS:
        raise SettingsError(f"there is no measurement {what!r}", f"Use: {', '.join(MEASUREMENTS)}.")
    module, takes = MEASUREMENTS[what]
    flags: dict[str, Any] = {
        "seeds": seeds,
        "only": only,
        "users": _numbers(users, int),
        "items": _numbers(items, int),
        "epsilons": _numbers(epsilons, float),
        "overrides": overrides,
    }
    if others := {name for name, value in flags.items() if value} - set(takes.split()):
        raise SettingsError(f"{what} takes no --{min(others)}", "Leave it out.")
    run = import_module(f"fedrec_research.{module}").run
    _made(run, data or [], quick, jobs, flags, output, as_json)


@app.command(short_help="Write the pages of research/docs from the results that are kept.")
def pages(
    results: Annotated[Path, typer.Option(metavar="FOLDER", help="Results that are kept.")] = HOME
    / "results",
    docs: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the pages go.")] = HOME
    / "docs",
) -> None:
    """Write papers.md, quality.md, study.md, figures.md and leaderboard.md, and their pictures."""
    from fedrec.storage import read_json
    from fedrec_research import drawing
    from fedrec_research.papers import page as figures_page
    from fedrec_research.papers import summary
    from fedrec_research.quality import page
    from fedrec_research.study import page as study_page

    page.write(docs / "quality.md", results)
    study_page.write(docs / "study.md", results)
    figures_page.write(docs / figures_page.PAGE, results)
    summary.write(docs / "papers.md", results)
    drawing.write(docs / "leaderboard.md", "leaderboard", **read_json(results / "leaderboard.json"))


def _numbers(text: str, kind: type[int] | type[float]) -> list[Any]:
    try:
        found = [kind(part) for part in text.split(",")] if text else []
    except ValueError:
        found = [kind(0)]
    if not all(value > 0 and not math.isnan(value) for value in found):
        raise SettingsError(
            f"expected positive numbers with commas between, found {text!r}",
            "For example 300,1000.",
        )
    return found


def _made(
    run: Callable[..., dict[str, Any]],
    data: Sequence[str],
    quick: bool,
    jobs: int,
    flags: Mapping[str, Any],
    output: Path | None,
    as_json: bool,
    **more: Any,
) -> None:
    from fedrec_research.trials import Asked, shown

    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in flags.items()
        if value
    }
    with shown(silent=as_json) as tell:
        places = tuple(filter(None, data))
        result = run(Asked(places, quick=quick, jobs=jobs, tell=tell, **given), **more)
    _end(result, output, as_json)


def _end(result: Mapping[str, Any], output: Path | None, as_json: bool) -> None:
    from fedrec.storage import finite, write_json

    if output:
        write_json(output, result)
    typer.echo(json.dumps(finite(result), indent=None if as_json else 2))
