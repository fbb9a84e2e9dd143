"""The verb `fedrec bench`: which benchmark, on which data, and where its result goes."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedrec.errors import SettingsError
from fedrec_simulations.flags import Json, one_blas_thread

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
    processes = "processes"
    grid = "grid"
    sgld = "sgld"
    paper = "paper"
    study = "study"
    serving = "serving"
    serving_basis = "serving-basis"
    serving_news = "serving-news"
    linkage = "linkage"


_OF = {
    "--endurance": (Bench.serving,),
    "--jobs": (Bench.paper, Bench.study),
    "--only": (Bench.study,),
    "--seeds": (Bench.study,),
    "--set": (Bench.paper,),
    "--html": (Bench.paper,),
}
"""What a flag is for; the others are for all."""


@app.command(short_help="Measure speed and quality; print one JSON object.")
def bench(
    what: Annotated[
        Bench,
        typer.Argument(
            metavar="WHAT",
            show_choices=False,
            help="Speed: kernels, als, encoder, readers, intake, processes, grid, sgld, serving. Quality: ablation, quality, clicks, news, "
            "news-paper, paper, study, serving-basis, serving-news, linkage.",
        ),
    ],
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            show_default=False,
            help="Of paper: ada-dpals, am-ssp, convex-ssp, dp-cmf, fast-dpmf, privaterec; or one figure, dp-cmf/figure1.",
        ),
    ] = "",
    data: Annotated[
        str, typer.Option(metavar="PATH", show_default=False, help="Data of the quality benchmarks: MovieLens 1M, or click lists.")
    ] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Smaller shapes and fewer repeats: a smoke test, not a figure.")] = False,
    endurance: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", show_default=False, help="Of serving: swaps, cuts and bad messages under load instead."),
    ] = 0.0,
    jobs: Annotated[
        int, typer.Option(min=1, metavar="N", help="Of paper and study: rows at a time, in processes with one BLAS thread each.")
    ] = 1,
    only: Annotated[
        list[str] | None, typer.Option(metavar="SYSTEM", show_default=False, help="Of study: this system; may be repeated.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Of study: seeds 1 to N, of splits and noise.")] = 5,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", show_default=False, help="Of paper: override a key of the figures' scenarios; may be repeated."
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE", show_default=False, help="Also write the result to this file.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", show_default=False, help="Of paper: also write a page with charts.")] = None,
    as_json: Json = False,
) -> None:
    """Measure speed as ratios to a reference in the same run, quality as means over seeds; print one JSON object.

    kernels, als, encoder and readers need the optional packages, `pip install 'fedrec[bench]'`. quality, ablation, news,
    news-paper and processes read MovieLens 1M, clicks reads a folder of click lists with train and test. intake measures the
    aggregator's service with two client processes, processes a whole training by separate processes beside the loopback's,
    grid the messages of Flower's nodes in this process beside those on Ray's actors, where `fedrec[ray]` is installed.
    serving puts load on a real `fedrec serve`; serving-basis and serving-news tell what private queries lose on MovieLens 1M,
    linkage how many people are known again by their noised answers.
    paper re-makes the figures of a paper from the scenarios in simulations/, beside what was published; stopped, the same command
    goes on from its finished rows. --set figure.seeds=[1,2] and --set figure.epsilons=[1,5] ask for others. Figures that show seconds
    make one row at a time whatever --jobs says.
    study trains every system at every epsilon and five seeds on one data set, MovieLens 1M or a folder of click lists; stopped,
    the same command goes on, and docs/study.md is made of what it writes.

    Examples:

    \b
      fedrec bench kernels --quick
      fedrec bench serving --endurance 60
      fedrec bench paper ada-dpals/figure5
      fedrec bench paper dp-cmf/figure1 --data ml-1m --jobs 2 --html figure1.html
      fedrec bench study --data ml-1m --jobs 2 --output study-ml-1m.json
    """
    if (what is Bench.paper) != bool(name):
        raise SettingsError("paper needs the name of a paper, and nothing else takes one", "fedrec bench paper dp-cmf/figure1 --data PATH")
    told = {"--endurance": endurance, "--jobs": jobs > 1, "--only": only, "--seeds": seeds != 5, "--set": overrides, "--html": html}
    for flag in (flag for flag, given in told.items() if given and what not in _OF[flag]):
        raise SettingsError(f"{flag} is not for {what.value}", f"It is for: {', '.join(_OF[flag])}.")
    if what not in {Bench.kernels, Bench.als, Bench.encoder}:  # these compare against BLAS on all cores
        one_blas_thread()
    from fedrec.checkpoint import finite, write_json
    from fedrec_simulations.bench.verbs import endure, paper, run, study

    if what is Bench.paper:
        result = paper(name, data=data, quick=quick, jobs=jobs, overrides=overrides or (), html=html, silent=as_json)
    elif what is Bench.study:
        result = study(data, quick=quick, jobs=jobs, only=only or (), seeds=seeds, silent=as_json)
    else:
        result = endure(endurance, quick=quick) if endurance else run(what.value, data=data, quick=quick)
    if output:
        write_json(output, result)
    typer.echo(json.dumps(finite(result), indent=None if as_json else 2))
