"""The verb `fedrec bench`: which benchmark, on which data, and where its result goes."""

from __future__ import annotations

import json
import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from fedrec.errors import SettingsError
from fedrec_cli.flags import Json, one_blas_thread

app = typer.Typer(rich_markup_mode=None)


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
    serving = "serving"
    serving_basis = "serving-basis"
    serving_lists = "serving-lists"
    serving_news = "serving-news"
    linkage = "linkage"
    sizes = "sizes"
    simple = "simple"
    cluster = "cluster"
    sums = "sums"
    submit = "submit"
    leaderboard = "leaderboard"
    light_device = "light-device"


_OF = {
    "--endurance": (Bench.serving, Bench.nodes),
    "--jobs": (Bench.paper, Bench.study, Bench.sizes, Bench.simple, Bench.runtimes),
    "--only": (Bench.study,),
    "--seeds": (Bench.study, Bench.sizes, Bench.simple),
    "--users": (Bench.sizes, Bench.simple),
    "--items": (Bench.sizes, Bench.simple),
    "--epsilons": (Bench.sizes, Bench.simple),
    "--set": (Bench.paper, Bench.simple),
    "--html": (Bench.paper,),
    "--protocol": (Bench.submit,),
    "--system": (Bench.submit,),
}
"""What a flag is for; the others are for all."""
_SEEDS = {Bench.study: 5}
_OTHER_SEEDS = 3
_NAMED = {
    Bench.paper: ("the name of a paper", "fedrec bench paper dp-cmf/figure1 --data PATH"),
    Bench.submit: ("run folders", "fedrec bench submit runs/a runs/b"),
    Bench.leaderboard: ("folders of rows", "fedrec bench leaderboard leaderboard"),
}
"""What takes names, what they are, and an example."""
ROWS = Path("leaderboard")
"""Where `submit` writes, and `leaderboard` reads, unless told."""


def _sizes(text: str) -> list[int]:
    parts = text.split(",") if text else []
    if not all(part.isdigit() and int(part) for part in parts):
        raise SettingsError(f"sizes are whole numbers with commas between, found {text!r}", "For example --users 2000,20000.")
    return [int(part) for part in parts]


def _epsilons(text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")] if text else []
    except ValueError:
        found = [math.nan]
    if not all(value > 0 for value in found):
        raise SettingsError(f"epsilons are positive numbers or inf with commas between, found {text!r}", "For example --epsilons 1,5,inf.")
    return found


@app.command(short_help="Measure speed and quality; print one JSON object.")
def bench(
    what: Annotated[
        Bench,
        typer.Argument(
            metavar="WHAT",
            show_choices=False,
            help="Speed: kernels, als, encoder, readers, intake, enrolment, nodes, device, processes, runtimes, grid, sgld, serving, "
            "sharing-intake, cluster, sums, light-device. "
            "Quality: ablation, quality, clicks, news, news-paper, paper, study, serving-basis, serving-lists, serving-news, linkage, "
            "sizes, simple, cohorts, sharing. "
            "Leaderboard: submit, leaderboard.",
        ),
    ],
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME...",
            show_default=False,
            help="Of paper: ada-dpals, am-ssp, convex-ssp, dp-cmf, fast-dpmf, privaterec; or one figure, dp-cmf/figure1. "
            "Of submit: run folders that differ in their seed alone. Of leaderboard: folders of rows.",
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            show_default=False,
            help="Data of the quality benchmarks: MovieLens 1M, or click lists; of simple, may be repeated.",
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller shapes and fewer repeats: a smoke test, not a figure.")] = False,
    endurance: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="SECONDS",
            show_default=False,
            help="Of serving: swaps, cuts and bad messages under load instead. Of nodes: between rounds, 300 where not given.",
        ),
    ] = 0.0,
    jobs: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Of paper, study, sizes, simple, runtimes: rows at a time, in processes that share the cores.",
        ),
    ] = 1,
    only: Annotated[
        list[str] | None, typer.Option(metavar="SYSTEM", show_default=False, help="Of study: this system; may be repeated.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", show_default=False, help="Seeds 1 to N, of splits and noise: of study 5, of sizes and simple 3."),
    ] = None,
    users: Annotated[
        str,
        typer.Option(metavar="N,N", show_default=False, help="Of sizes: the users of the grid. Of simple: also on so many users."),
    ] = "",
    items: Annotated[
        str,
        typer.Option(
            metavar="M,M", show_default=False, help="Of sizes: the items of the grid. Of simple: also on so many most rated items."
        ),
    ] = "",
    epsilons: Annotated[
        str, typer.Option(metavar="E,E", show_default=False, help="Of sizes and simple: epsilons of the grid, e.g. 1,5,inf.")
    ] = "",
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", show_default=False, help="Of paper and simple: override a key of the scenarios; may be repeated."
        ),
    ] = None,
    protocol: Annotated[
        str, typer.Option(metavar="NAME", show_default=False, help="Of submit: the protocol; unsaid, the one that has the run's split.")
    ] = "",
    system: Annotated[str, typer.Option(metavar="NAME", show_default=False, help="Of submit: the row's name; unsaid, the recipe.")] = "",
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="Also write the result to this file; of submit: the folder of rows; of leaderboard: .html, .csv or .json.",
        ),
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", show_default=False, help="Of paper: also write a page with charts.")] = None,
    as_json: Json = False,
) -> None:
    """Measure speed as ratios to a reference in the same run, quality as means over seeds; print one JSON object.

    kernels, als, encoder and readers need the optional packages, `pip install 'fedrec[bench]'`. quality, ablation, news, news-paper and
    processes read MovieLens 1M, clicks reads a folder of click lists with train and test. intake measures the
    aggregator's service with two client processes. enrolment measures what a user more costs it where a million are
    enrolled, nodes what a thousand idle clients cost the server. device measures what one idle client holds itself,
    cohorts what it costs the model to ask a share of the users in every round. sharing measures what three
    aggregators cost beside one that is trusted, sharing-intake how many users a second three of them take in.
    processes times a whole training by separate processes beside the loopback's. runtimes times every shipped
    scenario on every runtime, grid the messages of Flower's nodes in this process beside those on Ray's actors, where
    `fedrec[ray]` is installed. cluster times a training on 1, 2 and 4 nodes of Ray with a worker killed and a node
    that joins. sums times the sums of a round over partitions with Dask, Ray Data and Spark, where these are
    installed. light-device times a round of one. serving puts load on a real `fedrec serve`; serving-basis,
    serving-lists and serving-news tell what private queries lose on MovieLens 1M, linkage how many people are known
    again by their noised answers. paper re-makes the figures of a paper from the scenarios in simulations/, beside
    what was published; stopped, the same command goes on from its finished rows. --set figure.seeds=[1,2] and --set
    figure.epsilons=[1,5] ask for others. Figures that show seconds make one row at a time whatever --jobs says. study
    trains every system at every epsilon and five seeds on one data set, MovieLens 1M or a folder of click lists.
    Stopped, the same command goes on, and docs/study.md is made of what it writes. sizes trains the default on
    planted ratings of many sizes and asks whether it is ever above item biases, a smaller epsilon or fewer users.
    simple sets it beside the simple private methods on the data given. These two and runtimes write --output after
    every row and go on from it.

    Examples:

    \b
      fedrec bench kernels --quick
      fedrec bench serving --endurance 60
      fedrec bench paper ada-dpals/figure5
      fedrec bench paper dp-cmf/figure1 --data ml-1m --jobs 2 --html figure1.html
      fedrec bench study --data ml-1m --jobs 2 --output study-ml-1m.json
      fedrec bench sizes --users 2000,20000 --jobs 2 --output sizes.json
      fedrec bench simple --data ml-1m --users 300,1000 --output simple.json
      fedrec bench submit runs/ml1m-* --output leaderboard
      fedrec bench leaderboard leaderboard --output leaderboard.html
    """
    if what in _NAMED and not names and what is not Bench.leaderboard:
        raise SettingsError(f"{what.value} needs {_NAMED[what][0]}", _NAMED[what][1])
    if names and (what not in _NAMED or (what is Bench.paper and len(names) > 1)):
        one = "one name" if what is Bench.paper else "no names"
        raise SettingsError(f"{what.value} takes {one}, found {' '.join(names)}", "; ".join(example for _, example in _NAMED.values()))
    told: dict[str, object] = {"--endurance": endurance, "--jobs": jobs > 1, "--only": only, "--set": overrides, "--html": html}
    told |= {"--protocol": protocol, "--system": system}
    told |= {"--seeds": seeds, "--users": users, "--items": items, "--epsilons": epsilons}
    for flag in (flag for flag, given in told.items() if given and what not in _OF[flag]):
        raise SettingsError(f"{flag} is not for {what.value}", f"It is for: {', '.join(_OF[flag])}.")
    if len(folders := data or []) > 1 and what is not Bench.simple:
        raise SettingsError(f"{what.value} takes one --data, found {len(folders)}", "Measure one at a time.")
    if what in {Bench.submit, Bench.leaderboard}:
        if data or quick:
            raise SettingsError(f"--data and --quick are not for {what.value}", "It reads finished runs, or their rows.")
        folders_of = [Path(name) for name in names or ()]
        typer.echo(
            _submit(folders_of, output, protocol, system) if what is Bench.submit else _leaderboard(folders_of, output, as_json=as_json)
        )
        return
    if what not in {Bench.kernels, Bench.als, Bench.encoder}:  # these compare against BLAS on all cores
        one_blas_thread()
    from fedrec.storage import finite, write_json
    from fedrec_simulations.bench.verbs import endure, paper, run, runtimes, simple, sizes, study

    path = "".join(folders[:1])
    chosen: dict[str, Any] = {"users": _sizes(users), "items": _sizes(items), "epsilons": _epsilons(epsilons)}
    shared: dict[str, Any] = {"quick": quick, "jobs": jobs, "seeds": seeds or _SEEDS.get(what, _OTHER_SEEDS), "silent": as_json}
    if what is Bench.paper:
        result = paper((names or [""])[0], data=path, quick=quick, jobs=jobs, overrides=overrides or (), html=html, silent=as_json)
    elif what is Bench.study:
        result = study(path, only=only or (), **shared)
    elif what is Bench.sizes:
        result = sizes(output=output, **chosen, **shared)
    elif what is Bench.runtimes:
        result = runtimes(quick=quick, jobs=jobs, output=output, silent=as_json)
    elif what is Bench.simple:
        result = simple(folders, overrides=overrides or (), output=output, **chosen, **shared)
    else:
        result = endure(what.value, endurance, quick=quick) if endurance else run(what.value, data=path, quick=quick)
    if output:
        write_json(output, result)
    typer.echo(json.dumps(finite(result), indent=None if as_json else 2))


def _submit(runs: list[Path], output: Path | None, protocol: str, system: str) -> str:
    from fedrec_simulations.leaderboard.submitting import submit

    return "\n".join(map(str, submit(runs, output or ROWS, protocol=protocol, system=system)))


def _leaderboard(folders: list[Path], output: Path | None, *, as_json: bool) -> str:
    from fedrec_simulations.leaderboard import drawing
    from fedrec_simulations.leaderboard.board import sections
    from fedrec_simulations.leaderboard.protocol import protocols
    from fedrec_simulations.leaderboard.published import published_rows
    from fedrec_simulations.leaderboard.rows import read_rows

    known, rows = protocols(folders), read_rows(folders)
    found = sections([*rows, *published_rows(known)], known)
    if output is not None:
        drawing.write(output, found)
    return json.dumps(drawing.as_json(found)) if as_json else drawing.as_text(found)
