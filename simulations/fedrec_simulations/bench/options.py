"""Arguments and options of `fedrec bench`, and its help."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Bench(StrEnum):
    """What can be measured."""

    ablation = "ablation"
    quality = "quality"
    clicks = "clicks"
    news = "news"
    news_paper = "news-paper"
    cohorts = "cohorts"
    sharing = "sharing"
    paper = "paper"
    study = "study"
    search = "search"
    serving_basis = "serving-basis"
    serving_lists = "serving-lists"
    serving_news = "serving-news"
    serving_attention = "serving-attention"
    linkage = "linkage"
    sizes = "sizes"
    simple = "simple"
    submit = "submit"
    leaderboard = "leaderboard"


HELP = """Measure quality as means over seeds; print one JSON object.

Quality: quality, ablation, news and news-paper read MovieLens 1M; clicks reads a folder of click
lists with train and test. cohorts measures what it costs the model to ask a share of the users in
every round, sharing what three aggregators cost beside a trusted one. sizes trains the default
recipe on planted ratings of many sizes, and looks for sizes at which it is worse than item biases,
a smaller epsilon or fewer users. simple compares it with
simple private methods on the data given, or on ten planted shapes (--data planted).

Serving: serving-basis, serving-lists, serving-news and
serving-attention measure what private queries lose on MovieLens 1M. linkage measures how often two
noised answers of one person are matched.

Papers: paper makes the figures of a paper again from the scenarios in simulations/, beside what was
published. --set figure.seeds=[1,2] and --set figure.epsilons=[1,5] choose others. Figures that show
seconds make one row at a time whatever --jobs says. study trains every system at every epsilon with
five seeds on one data set; docs/study.md is made of its output. search tries the same number of
settings, on validation ratings, for every line of the study on one model.

Interrupted, paper, study, search, news-paper, sizes and simple go on from their
finished rows when the same command is given again.

Examples:

\b
  fedrec bench paper ada-dpals/figure5
  fedrec bench paper dp-cmf/figure1 --data ml-1m --jobs 2 --html figure1.html
  fedrec bench study --data ml-1m --jobs 2 --output study-ml-1m.json
  fedrec bench news-paper --data ml-1m --only naml --seeds 3
  fedrec bench sizes --users 2000,20000 --jobs 2 --output sizes.json
  fedrec bench simple --data ml-1m --users 300,1000 --output simple.json
  fedrec bench submit runs/ml1m-* --output leaderboard
  fedrec bench leaderboard leaderboard --output leaderboard.html
"""

What = Annotated[
    Bench,
    typer.Argument(
        metavar="WHAT",
        show_choices=False,
        help="Quality: ablation, quality, clicks, news, news-paper, paper, "
        "study, search, serving-basis, serving-lists, serving-news, serving-attention, linkage, "
        "sizes, simple, cohorts, sharing. Leaderboard: submit, leaderboard.",
    ),
]
Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME...",
        show_default=False,
        help="Of paper: ada-dpals, am-ssp, convex-ssp, dp-cmf, fast-dpmf, privaterec; or one "
        "figure, dp-cmf/figure1. Of submit: run folders that differ in their seed alone. Of "
        "leaderboard: folders of rows.",
    ),
]
Data = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATH",
        show_default=False,
        help=("MovieLens 1M, or click lists; of simple, may be repeated."),
    ),
]
Quick = Annotated[
    bool,
    typer.Option("--quick", help="Smaller shapes and fewer repeats: a smoke test, not a figure."),
]
Jobs = Annotated[
    int,
    typer.Option(
        min=1,
        metavar="N",
        help=(
            "Of paper, study, search, sizes, simple: rows at a time, in processes "
            "that share the cores."
        ),
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SYSTEM",
        show_default=False,
        help="Of study and search: this system; of a study that --output holds the others stay. "
        "Of news-paper: runs of this variant, encoder or point, as naml or 'local, epsilon 5'. May "
        "be repeated.",
    ),
]
Likes = Annotated[
    bool,
    typer.Option(
        "--likes", help="Of study and search: ratings of 4 or more as clicks, divided at random."
    ),
]
Seeds = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        show_default=False,
        help="Seeds 1 to N, of splits and noise: of study 5, of sizes and simple 3. Of news-paper "
        "1, of noise and initial values.",
    ),
]
Users = Annotated[
    str,
    typer.Option(
        metavar="N,N",
        show_default=False,
        help=("Of sizes: the users of the grid. Of simple: also on so many users."),
    ),
]
Items = Annotated[
    str,
    typer.Option(
        metavar="M,M",
        show_default=False,
        help=("Of sizes: the items of the grid. Of simple: also on so many most rated items."),
    ),
]
Epsilons = Annotated[
    str,
    typer.Option(
        metavar="E,E",
        show_default=False,
        help="Of sizes and simple: epsilons of the grid, e.g. 1,5,inf.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        show_default=False,
        help="Of paper and simple: override a key of the scenarios; may be repeated.",
    ),
]
Protocol = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        show_default=False,
        help="Of submit: the protocol; unsaid, the one that has the run's split.",
    ),
]
System = Annotated[
    str,
    typer.Option(
        metavar="NAME", show_default=False, help="Of submit: the row's name; unsaid, the recipe."
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help=(
            "Also write the result to this file; of submit: the folder of rows; of leaderboard: "
            ".html, .md, .csv or .json."
        ),
    ),
]
Html = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", show_default=False, help="Of paper: also write a page with charts."
    ),
]
