"""Sections of the study's page on lines of one model, by which published claims are judged."""

from __future__ import annotations

from collections.abc import Sequence

from fedrec.data.kinds import KINDS
from fedrec_research.drawing import table
from fedrec_research.study.forms import JUDGED, METHODS, TRIALS, line
from fedrec_research.study.judging import margin
from fedrec_research.study.measured import about, cell, shown
from fedrec_research.study.results import Study
from fedrec_research.study.systems import OTHERS

ONE_MODEL = f"""All lines have item and user vectors alone, from a random start. The settings of
each were found by the same search, `fedrec research search`: {TRIALS} settings for every line
and ε, from the space that `forms.py` states, judged on validation rows of the first split
(`searched/`). A larger space is searched more coarsely, so that its line may be further from its
best. *As printed* has the paper's own weights, pseudo-inverse, plain descent and clipped
examples where the code has them, reads misprints as they are meant, and has the noise of the
exact accounting all the same. *Made sound* is the paper's algorithm as it runs here. AM-SSP
gives all algorithms the weights n^-1/4. Ada-DPGD has no line as printed: Alg. 2 clips the sum
over users, which bounds none of them. Clicks are ratings of 4 or more, as Ada-DPALS and AM-SSP
make them; the other click sets come without the item features that AM-SSP and DP-CMF need. What
`forms.NOT_ON_CLICKS` names has no line on clicks."""


def one_model(study: Study) -> list[str]:
    """The lines that claims are judged by: a row a line, its forms one below the other."""
    epsilons = sorted(
        {epsilon for name, epsilon in study.cells if study.system(name).group == "one model"}
    )
    head = (f"test {study.metric.upper()}", "form", *map(shown, epsilons))
    lines = [
        [
            s.label.removesuffix(f", {form}"),
            form,
            *(cell(study.mean(s.name, e)) for e in epsilons),
        ]
        for form in JUDGED
        for s in study.systems("one model", *OTHERS)
        if s.form == form
    ]
    waiting = [
        method.label if form == "made sound" else f"{method.label}, {form}"
        for name, method in METHODS.items()
        for form in method.forms_of(study.kind)
        if form in JUDGED and (line(name, form), epsilons[0]) not in study.cells
    ]
    told = [f"Not measured on these data: {'; '.join(waiting)}."] if waiting else []
    return [
        about(study, "one model"),
        table(head, lines),
        " ".join(
            [*told, *_ended_early(study), *_additions(study, epsilons), *_default_ahead(study)]
        ),
    ]


def _ended_early(study: Study) -> list[str]:
    """Lines that have no model of some seed, and why."""
    found = [
        f"{study.system(name).label}: {why}"
        for name, why in study.missing.items()
        if study.system(name).group == "one model"
    ]
    return (
        [f"Of one seed, as training ended early at the others: {'; '.join(found)}."]
        if found
        else []
    )


def _default_ahead(study: Study) -> list[str]:
    """Whether our default, which is no line of this model, is ahead of every line, in every
    form."""
    leads = [
        (rival, epsilon, gain)
        for epsilon in study.epsilons
        for rival, gain in study.leads("default", study.systems("one model", *OTHERS), epsilon)
    ]
    if not leads or not all(gain.above for _, _, gain in leads):
        return []
    rival, epsilon, gain = min(leads, key=lambda found: found[2].mean)
    return [
        "Our default, another model, is ahead of all these lines, in every form, at every ε, by "
        "more than its interval; the closest is "
        f"{rival.label} at ε = {shown(epsilon)}, by {margin(gain)}."
    ]


def _additions(study: Study, epsilons: Sequence[float]) -> list[str]:
    """By how much each method is better with item biases and users' own means than made sound: no
    claim is judged by these."""
    if not KINDS[study.kind].rated:
        return []
    found = []
    for name, method in METHODS.items():
        gains = [
            study.gain(line(name, "with our additions"), line(name, "made sound"), e)
            for e in epsilons
        ]
        if all(gain is not None for gain in gains):
            said = ", ".join(f"{gain.mean:+.4f}" for gain in gains if gain is not None)
            found.append(f"{method.label} {said}")
    return (
        [
            "Item biases and users' own means, which no paper here has, would add at these ε: "
            f"{'; '.join(found)}."
        ]
        if found
        else []
    )
