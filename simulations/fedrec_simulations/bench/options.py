"""Arguments and options of `fedrec bench`, and its help."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Bench(StrEnum):
    """What can be measured."""

    kernels = "kernels"
    als = "als"
    encoder = "encoder"
    readers = "readers"
    ablation = "ablation"
    quality = "quality"
    clicks = "clicks"
    news = "news"
    news_paper = "news-paper"
    intake = "intake"
    enrolment = "enrolment"
    nodes = "nodes"
    device = "device"
    cohorts = "cohorts"
    sharing = "sharing"
    sharing_intake = "sharing-intake"
    processes = "processes"
    runtimes = "runtimes"
    grid = "grid"
    sgld = "sgld"
    paper = "paper"
    study = "study"
    search = "search"
    serving = "serving"
    serving_basis = "serving-basis"
    serving_lists = "serving-lists"
    serving_news = "serving-news"
    serving_attention = "serving-attention"
    linkage = "linkage"
    sizes = "sizes"
    simple = "simple"
    plan = "plan"
    cluster = "cluster"
    scale = "scale"
    sums = "sums"
    leaves = "leaves"
    submit = "submit"
    leaderboard = "leaderboard"
    light_device = "light-device"
    light_devices = "light-devices"


HELP = """Measure speed as ratios to a reference in the same run, quality as means over seeds; print
one JSON object.

Kernels and readers: kernels, als, encoder and readers need `pip install 'fedrec[bench]'`. sgld
compares blocked SGD and SGLD with LIBMF.

Parties: intake measures the aggregator's service with two client processes. enrolment measures the
cost of enrolling a user where a million are enrolled. nodes measures what a thousand idle clients
cost the server, device what one idle client costs its own machine. sharing measures what three
aggregators cost beside a trusted one, sharing-intake how many users a second they take. leaves
measures the intake of 1, 2 and 10 leaf aggregators, and kills a leaf and the root. light-device
times a round of one light device, light-devices a round of ten thousand.

Runtimes: processes times a whole training in separate processes beside the loopback. runtimes times
every shipped scenario on every runtime. grid times Flower's messages in this process, and on Ray's
actors where `fedrec[ray]` is installed. cluster times a training on 1, 2 and 4 nodes of Ray, kills
a worker and adds a node. scale says what a training on a billion planted ratings takes, from a
sample of their parts. sums compares the sums of a round with Dask, Ray Data and Spark, where
these are installed.

Quality: quality, ablation, news and news-paper read MovieLens 1M; clicks reads a folder of click
lists with train and test. cohorts measures what it costs the model to ask a share of the users in
every round. sizes trains the default recipe on planted ratings of many sizes, and looks for sizes
at which it is worse than item biases, a smaller epsilon or fewer users. simple compares it with
simple private methods on the data given, or on ten planted shapes (--data planted). plan compares
what `fedrec plan` predicts with trainings on the data given.

Serving: serving puts load on a real `fedrec serve`. serving-basis, serving-lists, serving-news and
serving-attention measure what private queries lose on MovieLens 1M. linkage measures how often two
noised answers of one person are matched.

Papers: paper makes the figures of a paper again from the scenarios in simulations/, beside what was
published. --set figure.seeds=[1,2] and --set figure.epsilons=[1,5] choose others. Figures that show
seconds make one row at a time whatever --jobs says. study trains every system at every epsilon with
five seeds on one data set; docs/study.md is made of its output. search tries the same number of
settings, on validation ratings, for every line of the study on one model.

Interrupted, paper, study, search, news-paper, sizes, simple, plan and runtimes go on from their
finished rows when the same command is given again.

Examples:

\b
  fedrec bench kernels --quick
  fedrec bench serving --endurance 60
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
        help="Speed: kernels, als, encoder, readers, intake, enrolment, nodes, device, processes, "
        "runtimes, grid, sgld, serving, sharing-intake, cluster, scale, sums, leaves, "
        "light-device, light-devices. Quality: ablation, quality, clicks, news, news-paper, paper, "
        "study, search, serving-basis, serving-lists, serving-news, serving-attention, linkage, "
        "sizes, simple, plan, "
        "cohorts, sharing. Leaderboard: submit, leaderboard.",
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
        help=(
            "Data of the quality benchmarks: MovieLens 1M, or click lists; of simple, plan and "
            "cluster, may be repeated."
        ),
    ),
]
Quick = Annotated[
    bool,
    typer.Option("--quick", help="Smaller shapes and fewer repeats: a smoke test, not a figure."),
]
Endurance = Annotated[
    float,
    typer.Option(
        min=0,
        metavar="SECONDS",
        show_default=False,
        help=(
            "Of serving: swaps, cuts and bad messages under load instead. Of nodes: between "
            "rounds, 300 where not given."
        ),
    ),
]
Jobs = Annotated[
    int,
    typer.Option(
        min=1,
        metavar="N",
        help=(
            "Of paper, study, search, sizes, simple, plan, runtimes: rows at a time, in processes "
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
        help=(
            "Of sizes: the users of the grid. Of simple and plan: also on so many users. Of scale: "
            "people."
        ),
    ),
]
Items = Annotated[
    str,
    typer.Option(
        metavar="M,M",
        show_default=False,
        help=(
            "Of sizes: the items of the grid. Of simple and plan: also on so many most rated items."
        ),
    ),
]
Epsilons = Annotated[
    str,
    typer.Option(
        metavar="E,E",
        show_default=False,
        help="Of sizes, simple and plan: epsilons of the grid, e.g. 1,5,inf.",
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
