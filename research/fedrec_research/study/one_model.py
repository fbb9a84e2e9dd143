"""Sections of the study's page on lines of one model, by which published claims are judged."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedrec.data.kinds import KINDS, Kind
from fedrec.report import wording
from fedrec_research.drawing import table
from fedrec_research.study.forms import (
    FORMS,
    METHODS,
    NOT_ON_CLICKS,
    TRIALS,
    Form,
    line,
)
from fedrec_research.study.judging import margin
from fedrec_research.study.measured import about, cell, shown
from fedrec_research.study.results import Study
from fedrec_research.study.systems import OTHERS

ONE_MODEL = """What claims are judged by. All lines have item and user vectors alone, from a random
start. The settings of each were found by the same search, `fedrec research search`: {trials}
settings for every line and ε, from a stated space, judged on validation {kind} of the first split.
Space and trials are kept beside the code of the study (`forms.py`, `searched/{data}.json`). All are
priced exactly. *As printed* has the paper's own weights, pseudo-inverse, plain descent and clipped
examples (AM-SSP Alg. 6) where the code has them, and reads misprints as they are meant. Its noise
is that of the exact accounting all the same. *Made sound* is the paper's algorithm as it runs here.
AM-SSP gives all algorithms the weights n^-1/4; AM-DPSGD has them as printed, and made sound weighs
items alike.{more}

As many trials are no equal search: a larger space is searched more coarsely, and its line may be
further from its best. Made sound, the lines choose among: {spaces}. Divisions of other seeds
overlap the first: some of their test {kind} took part in the choice of settings, for all lines
alike."""
WITH_ADDITIONS = """ *With our additions* has item biases and users' own means besides, which
no paper here has, for every method alike: no claim is judged by it."""
ON_LIKES = """Clicks are ratings of 4 or more, as Ada-DPALS and AM-SSP make them of MovieLens
20M. The other click sets of this page come without item features, which AM-SSP, AM-DPSGD and
DP-CMF's metadata need. Descent on clicks has the papers' loss in full, and charges the
Gramian that what was not clicked needs (`factorization/click_descent.py`). AM-SSP as printed
descends plainly. At the rates of its space on ratings all 45 trials on clicks diverged: the
loss is steeper by what was not clicked. Its rates there are 3·10⁻⁸ to 3·10⁻⁶, by validation."""
NOT_PRINTED = """Ada-DPGD has no line as printed: Ada-DPALS Alg. 2 clips the sum over users, which
bounds none of them."""
NO_ADDITIONS = """There is no table *with our additions* on clicks: users have no means of
clicks."""
ADDITIONS = """What our additions are worth, line by line, at ε = {epsilons}: {gains}."""


def one_model(study: Study) -> list[str]:
    """The lines that claims are judged by: one table a form, so that no eye runs from one form to
    another."""
    epsilons = sorted(
        {epsilon for name, epsilon in study.cells if study.system(name).group == "one model"}
    )
    ratings = KINDS[study.kind].rated
    words = ONE_MODEL.format(
        trials=TRIALS,
        data=study.name,
        kind=study.kind,
        more=WITH_ADDITIONS if ratings else "",
        spaces=_spaces(study.kind),
    )
    parts = [about(study, "one model"), *([ON_LIKES] if study.likes else []), words]
    for form in FORMS:
        systems = [s for s in study.systems("one model", *OTHERS) if s.form == form]
        if systems:
            head = (
                f"{form}: test {study.metric.upper()} at ε {wording.unit(study.promise)}",
                "item vectors",
                *map(shown, epsilons),
            )
            lines = [
                [
                    s.label.removesuffix(f", {form}"),
                    s.model.item_vectors if s.model else "",
                    *(cell(study.mean(s.name, e)) for e in epsilons),
                ]
                for s in systems
            ]
            parts.append(table(head, lines))
    parts.append(NOT_PRINTED if ratings else NO_ADDITIONS)
    measured = {name for name, _ in study.cells}
    for form in FORMS:
        waiting = [
            method.label
            for name, method in METHODS.items()
            if form in method.forms_of(study.kind) and line(name, form) not in measured
        ]
        if waiting:
            parts.append(f"Built and not measured on these data, {form}: {'; '.join(waiting)}.")
    if not ratings:
        without = [[name, why] for name, why in NOT_ON_CLICKS.items()]
        parts.append(table(("no line on clicks", "because"), without, text=True))
    return [*parts, *_ended_early(study), *_additions(study, epsilons), *_default_ahead(study)]


def _ended_early(study: Study) -> list[str]:
    """Lines that have no model of some seed, and why."""
    found = [
        f"{study.system(name).label}: {why}"
        for name, why in study.missing.items()
        if study.system(name).group == "one model"
    ]
    told = "Values without an interval are of one seed; at the others the training ended early."
    return [f"{told} {'; '.join(found)}."] if found else []


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
        "Our default, which is another model, is ahead of all these lines, in every form, at every "
        f"ε, by more than its interval. The closest is {rival.label} at ε = {shown(epsilon)}, by "
        f"{margin(gain)}."
    ]


def _spaces(kind: Kind) -> str:
    """How many settings each line has to choose, made sound, and how many combinations they
    have."""
    form: Form = "made sound"
    spaces = {
        method.label: method.choices(form, kind)
        for method in METHODS.values()
        if form in method.forms_of(kind)
    }
    return "; ".join(
        f"{label} {len(space)} settings, {math.prod(map(len, space.values())):,} combinations"
        for label, space in spaces.items()
    )


def _additions(study: Study, epsilons: Sequence[float]) -> list[str]:
    """By how much each method is better with our additions than made sound."""
    found = []
    for name, method in METHODS.items():
        gains = [
            study.gain(line(name, "with our additions"), line(name, "made sound"), e)
            for e in epsilons
        ]
        if all(gain is not None for gain in gains):
            found.append(
                f"{method.label} "
                f"{', '.join(f'{gain.mean:+.4f}' for gain in gains if gain is not None)}"
            )
    return (
        [ADDITIONS.format(epsilons=", ".join(map(shown, epsilons)), gains="; ".join(found))]
        if found
        else []
    )
