"""What `fedrec bench NAME` runs: a table from names to functions, imported only when asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

READER_ROWS = 10_000_000
"""MovieLens-10M's number of ratings; a tenth of a percent of it where it is only a smoke test."""


def run(what: str, *, data: str, quick: bool) -> dict[str, Any]:
    """One JSON object. Raises KeyError on an unknown name, ImportError where the `bench` extra is missing."""
    return BENCHES[what](data, quick)


def _kernels(data: str, quick: bool) -> dict[str, Any]:
    from fedrec_simulations.bench import kernels

    return dict(kernels.run(quick=quick))


def _als(data: str, quick: bool) -> dict[str, Any]:
    from fedrec_simulations.bench import als

    return dict(als.run(quick=quick))


def _encoder(data: str, quick: bool) -> dict[str, Any]:
    from fedrec_simulations.bench import encoder

    return dict(encoder.run(quick=quick))


def _readers(data: str, quick: bool) -> dict[str, Any]:
    from fedrec_simulations.bench import readers

    return dict(readers.run(READER_ROWS // 1000 if quick else READER_ROWS))


def _ablation(data: str, quick: bool) -> dict[str, Any]:
    from fedrec_simulations.bench import ablation

    return ablation.run(data, quick=quick)


def _quality(data: str, quick: bool) -> dict[str, Any]:
    from fedrec_simulations.bench import quality

    return quality.run(data, quick=quick)


def _clicks(data: str, quick: bool) -> dict[str, Any]:
    from fedrec_simulations.bench import clicks

    return dict(clicks.run(data, quick=quick))


def _news_paper(data: str, quick: bool) -> dict[str, Any]:
    from fedrec_simulations.experiments import news_paper

    return news_paper.run(data, quick=quick)


def _intake(data: str, quick: bool) -> dict[str, Any]:
    from fedrec_simulations.bench import intake

    return intake.run(quick=quick)


def _enrolment(data: str, quick: bool) -> dict[str, Any]:
    from fedrec_simulations.bench import enrolment

    return enrolment.run(quick=quick)


def _nodes(data: str, quick: bool) -> dict[str, Any]:
    from fedrec_simulations.bench import nodes

    return nodes.run(quick=quick)


def _device(data: str, quick: bool) -> dict[str, Any]:
    from fedrec_simulations.bench import device

    return device.run(quick=quick)


def _cluster(data: str, quick: bool) -> dict[str, Any]:
    from fedrec_simulations.bench import cluster

    return cluster.run(data, quick=quick)


def _light_device(data: str, quick: bool) -> dict[str, Any]:
    from fedrec_simulations.bench import light_device

    return light_device.run(quick=quick)


def _sums(data: str, quick: bool) -> dict[str, Any]:
    from fedrec_simulations.bench import sums

    return sums.run(data, quick=quick)


def _cohorts(data: str, quick: bool) -> dict[str, Any]:
    from fedrec_simulations.bench import cohorts

    return cohorts.run(quick=quick)


def _sharing(data: str, quick: bool) -> dict[str, Any]:
    from fedrec_simulations.bench import sharing

    return sharing.run(data, quick=quick)


def _sharing_intake(data: str, quick: bool) -> dict[str, Any]:
    from fedrec_simulations.bench import sharing_intake

    return sharing_intake.run(quick=quick)


def _processes(data: str, quick: bool) -> dict[str, Any]:
    from fedrec_simulations.bench import processes

    return processes.run(data, quick=quick)


def _grid(data: str, quick: bool) -> dict[str, Any]:
    from fedrec_simulations.bench import grid

    return grid.run(quick=quick)


def _news(data: str, quick: bool) -> dict[str, Any]:
    from fedrec_simulations.experiments import news

    return news.run(data, quick=quick)


def _serving(data: str, quick: bool) -> dict[str, Any]:
    from fedrec_simulations.bench import serving

    return serving.run(quick=quick)


def _serving_basis(data: str, quick: bool) -> dict[str, Any]:
    from fedrec_simulations.bench import serving_utility

    return serving_utility.run(data, quick=quick)


def _serving_lists(data: str, quick: bool) -> dict[str, Any]:
    from fedrec_simulations.bench import serving_lists

    return serving_lists.run(data, quick=quick)


def _serving_news(data: str, quick: bool) -> dict[str, Any]:
    from fedrec_simulations.bench import serving_news

    return serving_news.run(data, quick=quick)


def _linkage(data: str, quick: bool) -> dict[str, Any]:
    from fedrec_simulations.bench import linkage

    return linkage.run(data, quick=quick)


def _sgld(data: str, quick: bool) -> dict[str, Any]:
    from fedrec_simulations.bench import sgld

    return sgld.run(quick=quick)


def endure(what: str, seconds: float, *, quick: bool) -> dict[str, Any]:
    """`fedrec bench serving --endurance SECONDS`, or of nodes: one JSON object."""
    if what == "nodes":
        from fedrec_simulations.bench import nodes

        return nodes.run(seconds=seconds, quick=quick)
    from fedrec_simulations.bench import serving_endurance

    return serving_endurance.run(seconds, quick=quick)


def paper(
    name: str, *, data: str, quick: bool, jobs: int = 1, overrides: Sequence[str] = (), html: Path | None = None, silent: bool = True
) -> dict[str, Any]:
    """`fedrec bench paper NAME`: one JSON object; a page beside it where `html` names a file."""
    from fedrec_simulations.experiments.papers import figures, page
    from fedrec_simulations.experiments.progress import shown

    with shown(silent=silent) as tell:
        result = figures.run(name, data, quick=quick, jobs=jobs, overrides=overrides, tell=tell)
    if html:
        said = [*(f"--data {Path(data).name}" for _ in data[:1]), *(f"--set {said}" for said in overrides), *(["--quick"] if quick else [])]
        page.write(html, result, command=" ".join(["fedrec bench paper", name, *said]))
    return result


def study(data: str, *, quick: bool, jobs: int, only: Sequence[str], seeds: int, silent: bool) -> dict[str, Any]:
    """`fedrec bench study`: one JSON object."""
    from fedrec_simulations.experiments.progress import shown
    from fedrec_simulations.experiments.study import measure

    with shown(silent=silent) as tell:
        return measure.run(data, quick=quick, jobs=jobs, only=only, seeds=seeds, tell=tell)


def runtimes(*, silent: bool, **chosen: Any) -> dict[str, Any]:
    """`fedrec bench runtimes`: one JSON object; the rest as `runtimes.run`."""
    from fedrec_simulations.bench import runtimes
    from fedrec_simulations.experiments.progress import shown

    with shown(silent=silent) as tell:
        return runtimes.run(tell=tell, **chosen)


def sizes(*, silent: bool, **chosen: Any) -> dict[str, Any]:
    """`fedrec bench sizes`: one JSON object; the rest as `sizes.run`."""
    from fedrec_simulations.bench import sizes
    from fedrec_simulations.experiments.progress import shown

    with shown(silent=silent) as tell:
        return sizes.run(**chosen, tell=tell)


def simple(data: Sequence[str], *, silent: bool, **chosen: Any) -> dict[str, Any]:
    """`fedrec bench simple`: one JSON object; the rest as `simple.run`."""
    from fedrec_simulations.bench import simple
    from fedrec_simulations.experiments.progress import shown

    with shown(silent=silent) as tell:
        return simple.run(data, **chosen, tell=tell)


BENCHES: dict[str, Callable[[str, bool], dict[str, Any]]] = {
    "kernels": _kernels,
    "cluster": _cluster,
    "sums": _sums,
    "light-device": _light_device,
    "als": _als,
    "encoder": _encoder,
    "readers": _readers,
    "ablation": _ablation,
    "quality": _quality,
    "clicks": _clicks,
    "news": _news,
    "news-paper": _news_paper,
    "intake": _intake,
    "enrolment": _enrolment,
    "nodes": _nodes,
    "device": _device,
    "cohorts": _cohorts,
    "sharing": _sharing,
    "sharing-intake": _sharing_intake,
    "processes": _processes,
    "grid": _grid,
    "sgld": _sgld,
    "serving": _serving,
    "serving-basis": _serving_basis,
    "serving-lists": _serving_lists,
    "serving-news": _serving_news,
    "linkage": _linkage,
}
