"""Sections of the study's page on whole systems: who is ahead, by how much, and in what two lines
differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from fedrec.data.kinds import KINDS
from fedrec.evaluation.intervals import Interval
from fedrec.report import wording
from fedrec.report.figures import standalone
from fedrec.storage import write_bytes
from fedrec_research.drawing import table
from fedrec_research.study import chart
from fedrec_research.study.judging import margin
from fedrec_research.study.measured import about, cell, shown, with_interval
from fedrec_research.study.results import Study
from fedrec_research.study.systems import OTHERS, Group, Origin, System, tried
from fedrec_research.trials import Row

UNLIKE = (
    "The lines differ in model, public data and search (the second table): the order is of whole "
    "systems, and ranks no algorithm of a paper."
)
DESIGNS: dict[Origin, str] = {
    "ours": "ours",
    "published": "the paper's",
    "adapted": "the paper's algorithm, with a model or start of ours",
    "own": "ours, after the paper",
    "printed": "the paper's",
    "not private": "reference",
}
ON_CLICKS = """Of the papers' systems only DPALS, with two ways of sampling, and Ada-DPALS stand
here, and DP-CMF where people are public: no item features come with these clicks. All of them run
on clicks in the sections *on one model*, on likes of MovieLens. So does Ada-DPGD, which needs no
features, and was not run here. Convex SSP is our own design after
AM-SSP Alg. 7: it starts from our default's private tastes, and its paper evaluates nothing of
it.{more}"""
MET_TEST = """ The first settings tried for it at ε = 1 on amazon-book had met the test clicks,
before validation replaced them."""


def section(study: Study, group: Group, target: Path, *, simple: Sequence[Row] = ()) -> list[str]:
    """A headline, the leads, the figure and the table of one group of systems. simple: cells of
    `fedrec research measure simple`, whose recipes are no lines here."""
    picture = (
        target.parent / "img" / f"study-{study.name}{'-people' if group == 'people' else ''}.svg"
    )
    write_bytes(picture, standalone(str(chart.drawing(study, group, name=picture.stem))).encode())
    drawn = f"![{study.metric} against ε](img/{picture.name})"
    parts = [about(study, group), *(f"**Note.** {note}" for note in study.notes)]
    if not KINDS[study.kind].rated and group == "alone":
        parts.append(ON_CLICKS.format(more=MET_TEST if study.name == "amazon-book" else ""))
    parts += [
        " ".join([_headline(study, group), *_simple_ahead(study, simple)]),
        _leads(study, group),
        drawn,
        *_left_out(study, group),
        _values(study, group),
        _lines(study, group),
    ]
    return [*parts, *_missing(study, group)]


def _missing(study: Study, group: Group) -> list[str]:
    names = [
        study.system(name).label for name in study.missing if study.system(name).group == group
    ]
    return [f"Not built: {', '.join(names)}."] if names else []


def _headline(study: Study, group: Group) -> str:
    """Whether our default is ahead of every other system with a guarantee, at every epsilon."""
    ours = study.systems(group, "ours")[0]
    rivals = study.systems(group, *OTHERS)
    closest = {e: leads[0] for e in study.epsilons if (leads := study.leads(ours.name, rivals, e))}
    if not closest:
        return "There is nothing to compare yet."
    if study.seeds[group] == 1:
        return "**One seed has no intervals: no system is told apart from another.**"
    others = "every other system measured here, each in the form of its line,"
    short = {
        e: (rival, gain)
        for e, (rival, gain) in closest.items()
        if not all(g.above for _, g in study.leads(ours.name, rivals, e))
    }
    if not short:
        epsilon, (rival, gain) = min(closest.items(), key=lambda pair: pair[1][1].mean)
        closest_one = f"The closest is {rival.label} at ε = {shown(epsilon)}, by {margin(gain)}."
        return f"**The {ours.label} is ahead of {others} at every ε.** {closest_one} {UNLIKE}"
    listed = "; ".join(
        f"ε = {shown(e)} ({rival.label}: {_side(gain)})" for e, (rival, gain) in short.items()
    )
    return f"**The {ours.label} is not ahead of {others} by more than its interval at {listed}.**"


def _simple_ahead(study: Study, simple: Sequence[Row]) -> list[str]:
    """Where a simple recipe of ours, which is no line here, is ahead of the default."""
    cells = [
        cell
        for cell in simple
        if cell["data"] == study.name and cell["metric"] == study.metric and cell["best_simple"]
    ]
    ahead = [
        cell
        for cell in cells
        if (cell["means"]["default"] > cell["means"][cell["best_simple"]]) == study.lower_is_better
    ]
    if not ahead:
        return []
    names = ", ".join(dict.fromkeys(f"`{cell['best_simple']}`" for cell in ahead))
    over = [cell for cell in ahead if cell["behind"]]
    more = f", by more than that page's bar at {_at(over)}" if over else ""
    return [
        f"Our own {names} is no line of this table. In "
        "[quality.md](quality.md#the-default-recipe-beside-simple-private-methods), on "
        f"another division of the same data, its mean is ahead of the default's at {_at(ahead)}"
        f"{more}."
    ]


def _at(cells: Sequence[Row]) -> str:
    """ε = 1, 5."""
    return f"ε = {', '.join(shown(float(cell['epsilon'])) for cell in cells)}"


def _left_out(study: Study, group: Group) -> list[str]:
    """Which points the figure leaves out, and why."""
    found = chart.left_out(study, group)
    if not found:
        return []
    said = "; ".join(f"{label} at ε = {', '.join(map(shown, at))}" for label, at in found.items())
    return [
        "The chart leaves out errors that are more than 1% above the worst reference and all of "
        f"ours; the table has them: {said}."
    ]


def _side(gain: Interval) -> str:
    return f"{'behind' if gain.mean < 0 else 'ahead'} by {margin(gain)}"


def _leads(study: Study, group: Group) -> str:
    """Each of our lines against the best other line that knows nothing which ours does not."""
    lines = []
    for ours in study.systems(group, "ours"):
        rivals = [s for s in study.systems(group, *OTHERS) if s.knows <= ours.knows]
        for epsilon in study.epsilons:
            if leads := study.leads(ours.name, rivals, epsilon):
                rival, gain = leads[0]
                lines.append([shown(epsilon), ours.label, rival.label, with_interval(gain, "+.4f")])
    head = (f"ε {wording.unit(study.promise)}", "ours", "best other", "we are better by")
    return _by_epsilon(head, lines)


def _by_epsilon(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """One line an epsilon, our systems side by side."""
    names = list(dict.fromkeys(line[1] for line in lines))
    epsilons = list(dict.fromkeys(line[0] for line in lines))
    cells = {(line[0], line[1]): f"{line[3]} ({line[2]})" for line in lines}
    return table(
        (head[0], *(f"{name}: ahead by" for name in names)),
        [[e, *(cells.get((e, name), "–") for name in names)] for e in epsilons],
    )


def _values(study: Study, group: Group) -> str:
    lines = [_line(study, system) for system in study.systems(group, "ours", *OTHERS, "printed")]
    lines += [_reference(study, system) for system in study.systems(group, "not private")]
    head = (
        f"test {study.metric.upper()} at ε {wording.unit(study.promise)}",
        "public data",
        *map(shown, study.epsilons),
    )
    return table(head, lines)


def _line(study: Study, system: System) -> list[str]:
    cells = [cell(study.mean(system.name, epsilon)) for epsilon in study.epsilons]
    label = f"**{system.label}**" if system.origin == "ours" else system.label
    return [
        f"{label}: NOT ESTABLISHED" if system.origin == "printed" else label,
        system.public,
        *cells,
    ]


def _lines(study: Study, group: Group) -> str:
    """Whose design each line is, what it fits, and how many settings were tried."""
    head = (
        "line",
        "design",
        "item vectors",
        "item biases",
        "users' own means",
        "start",
        "settings tried for each ε",
    )
    systems = [s for s in study.systems(group, "ours", *OTHERS, "printed") if s.model is not None]
    words = {True: "with", False: "without"}
    rows = []
    for system in systems:
        model = system.model
        assert model is not None
        biases = (words[model.biases], words[model.user_means] if KINDS[study.kind].rated else "–")
        rows.append(
            [
                system.label,
                DESIGNS[system.origin],
                model.item_vectors,
                *biases,
                model.start,
                tried(system),
            ]
        )
    return table(head, rows, text=True)


def _reference(study: Study, system: System) -> list[str]:
    return [
        f"*{system.label}*",
        system.public,
        *("" for _ in study.epsilons[1:]),
        cell(study.mean(system.name, math.inf)),
    ]
