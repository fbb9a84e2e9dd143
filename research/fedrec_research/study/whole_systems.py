"""Sections of the study's page on whole systems: whether the default is ahead of the others, a
chart, and every mean."""

from __future__ import annotations

import math
from pathlib import Path

from fedrec.evaluation.intervals import Interval
from fedrec.report.figures import standalone
from fedrec.storage import write_bytes
from fedrec_research.drawing import table
from fedrec_research.study import chart
from fedrec_research.study.judging import margin
from fedrec_research.study.measured import about, cell, shown
from fedrec_research.study.results import Study
from fedrec_research.study.systems import OTHERS, Group, System


def section(study: Study, group: Group, target: Path) -> list[str]:
    """A headline, the figure and the table of one group of systems."""
    picture = (
        target.parent / "img" / f"study-{study.name}{'-people' if group == 'people' else ''}.svg"
    )
    write_bytes(picture, standalone(str(chart.drawing(study, group, name=picture.stem))).encode())
    return [
        about(study, group),
        *(f"**Note.** {note}" for note in study.notes),
        " ".join([_headline(study, group), *_left_out(study, group), *_missing(study, group)]),
        f"![{study.metric} against ε](img/{picture.name})",
        _values(study, group),
    ]


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
        return f"**The {ours.label} is ahead of {others} at every ε.** {closest_one}"
    told = "; ".join(
        f"ε = {shown(e)} ({rival.label}: {_side(gain)})" for e, (rival, gain) in short.items()
    )
    return f"**The {ours.label} is not ahead of {others} by more than its interval at {told}.**"


def _left_out(study: Study, group: Group) -> list[str]:
    """Which points the figure leaves out, and why."""
    found = chart.left_out(study, group)
    if not found:
        return []
    said = "; ".join(f"{label} at ε = {', '.join(map(shown, at))}" for label, at in found.items())
    return [
        "The chart leaves out errors that are more than 1% above the worst reference and all of "
        f"ours: {said}."
    ]


def _side(gain: Interval) -> str:
    return f"{'behind' if gain.mean < 0 else 'ahead'} by {margin(gain)}"


def _values(study: Study, group: Group) -> str:
    lines = [_line(study, system) for system in study.systems(group, "ours", *OTHERS, "printed")]
    lines += [_reference(study, system) for system in study.systems(group, "not private")]
    head = (f"test {study.metric.upper()}", "public data", *map(shown, study.epsilons))
    return table(head, lines)


def _line(study: Study, system: System) -> list[str]:
    cells = [cell(study.mean(system.name, epsilon)) for epsilon in study.epsilons]
    label = f"**{system.label}**" if system.origin == "ours" else system.label
    return [
        f"{label}: NOT ESTABLISHED" if system.origin == "printed" else label,
        system.public,
        *cells,
    ]


def _reference(study: Study, system: System) -> list[str]:
    return [
        f"*{system.label}*",
        system.public,
        *("" for _ in study.epsilons[1:]),
        cell(study.mean(system.name, math.inf)),
    ]
