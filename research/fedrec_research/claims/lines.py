"""Claims that the study's lines decide: that one system beats another at each epsilon, by the 95%
interval of the paired difference.

Judged by the lines on one model (`study.forms`), made sound and as printed, and in part where these
disagree; lines with our additions judge nothing. Two lines that differ in more than their
algorithms and what the claim is about (`systems.differences`), the search for their settings
included, are not comparable, and the verdict says in what they differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from fedrec.data.kinds import Kind
from fedrec_research.claims.claim import Evidence, Test
from fedrec_research.study.forms import JUDGED, METHODS, line
from fedrec_research.study.judging import Outcome, Point, Verdict, judged
from fedrec_research.study.results import Study
from fedrec_research.study.systems import SYSTEMS, System, differences

COMMAND = "fedrec research study"
VECTORS = frozenset({"item_vectors"})
FEATURES = VECTORS | {"public"}


def ahead(better: str, worse: str, *, about: frozenset[str] = frozenset()) -> Test:
    """`better` beats `worse` at every finite epsilon of every study that has both; not tested where
    the two are not comparable. about: what the claim varies on purpose
    (`systems.differences`)."""

    def judge(evidence: Evidence) -> Verdict:
        return _of_two(better, worse, evidence.studies, about)

    return Test((COMMAND,), f"{better} and {worse}", judge, by_study=True)


def on_one_model(
    better: str,
    worse: str,
    *,
    about: frozenset[str] = frozenset(),
    kinds: Sequence[Kind] = ("ratings", "clicks"),
) -> Test:
    """`better` beats `worse`, methods of `forms`, on the kinds of data that the claim is about:
    judged made sound, and as printed where both have that form.

    One search with few trials may miss what another line of the same model reaches. Where a study
    has such a line and it is better (`_best`), the claim is judged with it too. Where not all of
    these decide alike, the claim held in part."""

    def judge(evidence: Evidence) -> Verdict:
        studies = [study for study in evidence.studies if study.kind in kinds]
        found = {
            form: _of_two(line(better, form), line(worse, form), studies, about)
            for form in JUDGED
            if form in METHODS[better].forms and form in METHODS[worse].forms
        }
        sound = found["made sound"]
        if not sound.found or sound.outcome == "not tested":
            return sound
        forms = {"Made sound": sound, "As printed": found.get("as printed")}
        forms["Made sound, longest searches"] = _with_the_best(better, worse, studies)
        decided = {
            form: verdict
            for form, verdict in forms.items()
            if verdict and verdict.found and verdict.outcome != "not tested"
        }
        outcomes = {verdict.outcome for verdict in decided.values()}
        outcome: Outcome = sound.outcome if len(outcomes) == 1 else "in part"
        return Verdict(outcome, ". ".join(f"{form}: {v.found}" for form, v in decided.items()))

    rows = f"{better} and {worse} on one model, {' and '.join(kinds)}"
    return Test((COMMAND,), rows, judge, by_study=True)


def _of_two(better: str, worse: str, studies: Sequence[Study], about: frozenset[str]) -> Verdict:
    if reasons := _reasons(better, worse, about):
        return Verdict("not tested", f"not comparable: {'; '.join(reasons)}")
    gains = [
        (s.name, e, s.gain(better, worse, e))
        for s in studies
        for e in filter(math.isfinite, s.epsilons)
    ]
    return judged([Point(name, e, gain) for name, e, gain in gains if gain is not None])


def _with_the_best(better: str, worse: str, studies: Sequence[Study]) -> Verdict | None:
    """Compare each side by its best line of one model, in words for the studies where that is
    another line; None where there is none."""
    points = list[Point]()
    others = set[str]()
    for study in studies:
        for epsilon in filter(math.isfinite, study.epsilons):
            sides = [_best(study, method, epsilon) for method in (better, worse)]
            gain = study.gain(sides[0], sides[1], epsilon)
            if gain is not None:
                points.append(Point(study.name, epsilon, gain))
                if sides != [line(better, "made sound"), line(worse, "made sound")]:
                    others.add(study.name)
    if not others:
        return None
    told = judged([point for point in points if point.study in others])
    return replace(judged(points), found=told.found)


def _best(study: Study, method: str, epsilon: float) -> str:
    """The made sound line of a method, or the main table's of the same model where its mean is
    better: settings were chosen on validation for both."""
    searched = line(method, "made sound")
    table = SYSTEMS[study.kind]
    if method not in table or searched not in table or not _alike(table[method], table[searched]):
        return searched
    gain = study.gain(method, searched, epsilon)
    return method if gain is not None and gain.mean > 0 else searched


def _alike(first: System, second: System) -> bool:
    """Whether two lines are of one model and one public knowledge, whatever was tried for them."""
    return first.model == second.model and first.knows == second.knows


def _reasons(better: str, worse: str, about: frozenset[str]) -> list[str]:
    pairs = [
        (table[better], table[worse])
        for table in SYSTEMS.values()
        if better in table and worse in table
    ]
    return list(
        dict.fromkeys(reason for pair in pairs for reason in differences(*pair, about=about))
    )
