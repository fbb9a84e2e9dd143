"""docs/study.md and its figures, made from the kept results and from nothing else."""

from __future__ import annotations

import math
import shlex
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import get_args

from fedrec.data.kinds import KINDS, Kind
from fedrec.storage import read_json, write_bytes
from fedrec_simulations.experiments.intervals import Interval
from fedrec_simulations.experiments.papers import kept
from fedrec_simulations.experiments.rows import Row, table
from fedrec_simulations.experiments.study import chart, claims, inventory
from fedrec_simulations.experiments.study.claims import Claim
from fedrec_simulations.experiments.study.forms import (
    FORMS,
    METHODS,
    NOT_ON_CLICKS,
    TRIALS,
    Form,
    line,
)
from fedrec_simulations.experiments.study.judging import OUTCOMES, Outcome, Verdict, margin
from fedrec_simulations.experiments.study.of_figures import Figures
from fedrec_simulations.experiments.study.results import Study
from fedrec_simulations.experiments.study.systems import LIKES, OTHERS, Group, Origin, System, tried
from fedrec_simulations.report import wording
from fedrec_simulations.report.standalone import standalone

TITLES: dict[Outcome, str] = {
    "held": "What held",
    "in part": "What held in part",
    "did not hold": "What did not hold",
    "withdrawn": "Withdrawn",
    "not measured": "What this study cannot say",
}
WITHDRAWN = """An earlier version of this page gave a verdict on each of these. The two sides
differed in more than what the claim is about, so the rows gave no ground for it, whichever way it
went. No lines on one model are here that could judge it."""
ONE_MODEL = """What claims are judged by. All lines have item and user vectors alone, from a random
start. The settings of each were found by the same search, `fedrec bench search`: {trials} settings
for every line and ε, from a stated space, judged on validation {kind} of the first split. Space
and trials are kept beside the code of the study (`forms.py`, `searched/{data}.json`). All are
priced exactly. *As printed* has the paper's own weights, pseudo-inverse, plain descent and clipped
examples (AM-SSP Alg. 6) where the code has them, and reads misprints as they are meant. Its noise
is that of the exact accounting all the same. *Made sound* is the paper's algorithm as it runs
here. AM-SSP gives all algorithms the weights n^-1/4; AM-DPSGD has them as printed, and made sound
weighs items alike.{more}

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
UNLIKE = (
    "The lines differ in model, public data and search (the second table): the order is of whole "
    "systems, and ranks no algorithm of a paper."
)
ADDITIONS = """What our additions are worth, line by line, at ε = {epsilons}: {gains}."""
INTRODUCTION = """Our default and what we built after four papers, on the same splits and under the
same guarantee; settings chosen on validation, test read once. Sections *on one model* compare the
papers' algorithms alone. Published claims are judged by these, or by points of one model and one
search in a kept figure, and by nothing else. In the other sections the lines are not one model. A
table in each says whose design a line is, whether it has item biases and users' own means, where
its item vectors start, and how many settings were tried for it. A difference between two such lines
is a difference of all of that, and ranks no algorithm. Settings that are *not counted* were chosen
while the code was written, by trials on validation that nobody counted; our default surely had more
of them than any line with a count.

An earlier version of this page judged claims by lines that were not one model. Noisy descent had
item biases and users' own means, and sufficient statistics had neither. One search had three times
the trials of another. One line started from public data. Several of those verdicts were wrong. Each
claim below says what the page said of it, and why that was wrong.

A verdict is of the data sets that it names, at the number of settings that were tried, and of no
others. Each point is judged by itself at 95%: of forty points of two lines that are equal, one
would be said to be ahead by chance, and one behind. *Not told apart* does not mean equal: with
three seeds a difference must be 2.5 times its standard deviation over seeds to be seen. A claim
that a paper makes of ratings alone, or of clicks alone, is judged on those alone. MovieLens 100K
has 943 users; the papers evaluate on data with far more, where the same noise is small beside an
item's sums. Its item features are genres, years and words of titles; those of AM-SSP and DP-CMF
name casts and finer genres too, and may well help more.

Published systems are *made sound*: every user's whole report is bounded, everything that is
released is charged, and composition is exact (`fedrec/NOTATION.md` lists what their papers print).
Values are means over {seeds} seeds with 95% intervals (Student's t); differences are paired by
seed. One kind of guarantee stands in these tables: {promise}. PrivateRec protects one click, which
is another unit: its tables are in [benchmarks.md](benchmarks.md), its figures in
[figures.md](figures.md), and its ε does not compare with those here."""
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
on clicks in the sections *on one model*, on likes of MovieLens. Convex SSP is our own design after
AM-SSP Alg. 7: it starts from our default's private tastes, and its paper evaluates nothing of
it.{more}"""
MET_TEST = """ The first settings tried for it at ε = 1 on amazon-book had met the test clicks,
before validation replaced them."""
PROOFS = """Privacy claims are settled by proof, and no row can confirm them. What we could not keep
as printed, and what runs here instead:

| claim | why not | here |
| --- | --- | --- |
| AM-SSP Thm 1, 2: the noise of one item update | the theorems need ε < log 1/δ, and a run has many updates; the experiments compose them (App. E), by bounds | every release is charged, exactly |
| AM-SSP Section 3.5: batches of examples amplify | per example they do; they sample no users, so that per user nothing is gained | charged without amplification |
| Ada-DPALS Alg. 1: λ inside the weighted sum | the weights are private, and so is λ then; the proof and the public code leave it out | λ outside, public |
| Ada-DPALS Alg. 2: clip the sum of gradients | harmless where losses are Γ-Lipschitz, as Thm 3.11 assumes; as the only clip it bounds the sum, not a user | each user is clipped |
| DP-CMF Alg. 1: max(norm, Γ), and min(M, Γ) | misprints: one stretches vectors, the other clips from above only | both bounded on both sides |
| fast DPMF Thm 1: the sampler is ε-DP | an exact posterior sample is, no finite chain | shown as *not established*, ranked nowhere |"""  # noqa: E501


CURVES = """The papers were at hand as text, without their figures. So no curve was read off its
axes, no point on this page is such a reading, and there is no uncertainty of a reading to state.
What stands beside a re-made figure, `fedrec bench paper PAPER/FIGURE`, is what the text prints:

- Ada-DPALS: orders of methods (Section 5, D.2, D.3), the least gains by bucket (D.2), the share of
  the most frequent tenth. Of its neighbours, Tables 3 and 4, what it concludes.
- AM-SSP: orders (4.2, 4.3, E.1 to E.3), its lead on DP-CMF at ε = 1 and 20 (4.2), ratios of seconds
  (4.3, E.2), Recall@20 of DP-SGD (E.1).
- DP-CMF: orders (4.2), the share of the gap that sides close (4.2), shares by popularity (4.2.1).
- Fast DP matrix factorisation: seconds by dimension (6.1), speed-ups (6.3), two sentences on what ε
  costs (6.5, 6.6).
- PrivateRec: Tables 1 and 2 whole, with their deviations; of its figures one AUC (4.1) and the best
  p and B.

Missing in the re-made figures are two curves of the descent panels of Ada-DPALS (Figures 1 and 2):
items sampled within a user, and descent without privacy. Full results of the figures that are
linked below are kept, with charts, on [a page of their own](figures.md). Of the others each command
makes its own, on the data that it is given."""
INVENTORY = """Every figure and table of the five papers. The papers' data are not at hand; what
stands in for them is named, so that a re-made figure can show an order and not a value."""


def write(target: Path, results: Path) -> None:
    """Write the page, and img/study-*.svg beside it, from study-*.json in `results`; nothing where
    there is none."""
    parts_of = defaultdict[str, list[Row]](list)
    for content in map(read_json, sorted(results.glob("study-*.json"))):
        parts_of[content["data"]["name"]].append(dict(content))
    studies = [Study.of(*parts) for parts in parts_of.values()]
    studies.sort(key=lambda study: (not KINDS[study.kind].rated, study.name))
    if not studies:
        return
    parts = [
        "# The study: our default beside what we built after four papers",
        _introduction(studies),
    ]
    for study in studies:
        parts.append(f"## {study.name}: {study.kind}")
        if study.systems("alone", "ours"):
            parts += _section(study, "alone", target)
        if study.systems("one model", *OTHERS):
            parts += [f"### {study.name}, on one model", *_one_model(study)]
        if study.systems("people", *OTHERS):
            parts += [
                f"### {study.name}, where half of the people are public",
                *_section(study, "people", target),
            ]
    shown = kept.figures(results)
    parts += [_linked(part, shown) for part in _claims(studies, shown)]
    parts += ["## Published curves", CURVES]
    parts += [
        "## Figures and tables of the papers",
        INVENTORY,
        inventory.markdown(shown),
    ]
    parts += ["## Not measured, and why", inventory.OPEN]
    parts += ["## Claims about privacy", PROOFS, "## How it was made", _made(studies)]
    write_bytes(target, ("\n\n".join(parts) + "\n").encode())


def _introduction(studies: Sequence[Study]) -> str:
    promise = studies[0].promise
    words = f"ε {wording.unit(promise)} at δ = {wording.power(promise.delta)}"
    seeds = " or ".join(
        str(n) for n in sorted({n for study in studies for n in study.seeds.values()})
    )
    return INTRODUCTION.format(seeds=seeds, promise=words)


def _section(study: Study, group: Group, target: Path) -> list[str]:
    """A headline, the leads, the figure and the table of one group of systems."""
    picture = (
        target.parent / "img" / f"study-{study.name}{'-people' if group == 'people' else ''}.svg"
    )
    write_bytes(picture, standalone(str(chart.drawing(study, group, name=picture.stem))).encode())
    shown = f"![{study.metric} against ε](img/{picture.name})"
    parts = [_about(study, group), *(f"**Note.** {note}" for note in study.notes)]
    if not KINDS[study.kind].rated and group == "alone":
        parts.append(ON_CLICKS.format(more=MET_TEST if study.name == "amazon-book" else ""))
    parts += [
        _headline(study, group),
        _leads(study, group),
        shown,
        _values(study, group),
        _lines(study, group),
    ]
    return [*parts, *_missing(study, group)]


def _one_model(study: Study) -> list[str]:
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
    parts = [_about(study, "one model"), *([ON_LIKES] if study.likes else []), words]
    for form in FORMS:
        systems = [s for s in study.systems("one model", *OTHERS) if s.form == form]
        if systems:
            head = (
                f"{form}: test {study.metric.upper()} at ε {wording.unit(study.promise)}",
                "item vectors",
                *map(_shown, epsilons),
            )
            lines = [
                [
                    s.label.removesuffix(f", {form}"),
                    s.model.item_vectors if s.model else "",
                    *(_cell(study.mean(s.name, e)) for e in epsilons),
                ]
                for s in systems
            ]
            parts.append(table(head, lines))
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
    return [*parts, *_additions(study, epsilons)]


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
        [ADDITIONS.format(epsilons=", ".join(map(_shown, epsilons)), gains="; ".join(found))]
        if found
        else []
    )


def _about(study: Study, group: Group) -> str:
    sizes, ratings = study.sizes[group], KINDS[study.kind].rated
    split = (
        "random 80/10/10, divided and noised by the seed"
        if ratings or study.likes
        else "the given split, noised by the seed"
    )
    whose = "private users (the others' events are public)" if group == "people" else "users"
    better = "lower is better" if study.lower_is_better else "higher is better"
    size = (
        f"{sizes['users']:,} {whose}, {sizes['items']:,} items, {sizes['train']:,} {study.kind} "
        "in train"
    )
    seeds = study.seeds[group]
    return (
        f"{size}; {split}, {seeds} seed{'s' if seeds != 1 else ''}. Test {study.metric.upper()}, "
        f"{better}. {_codes(study, group)}"
    )


def _codes(study: Study, group: Group) -> str:
    """Which code made which rows."""
    made = defaultdict[str, list[str]](list)
    for (name, _), cell in study.cells.items():
        system = study.system(name)
        label = system.label.removesuffix(f", {system.form}")
        if system.group == group and label not in made[code := cell.get("code", "")]:
            made[code].append(label)
    known = [
        f"`{code}` made {'; '.join(labels)}."
        for code, labels in sorted(made.items(), key=lambda found: found[1])
        if code and labels
    ]
    earlier = made[""]
    if not known:
        return "All rows are of earlier code."
    told = [f"Digests of the code that made the rows: {' '.join(known)}"]
    return " ".join([*told, *([f"Of earlier code: {'; '.join(earlier)}."] if earlier else [])])


def _headline(study: Study, group: Group) -> str:
    """Whether our default is ahead of every other system with a guarantee, at every epsilon."""
    ours, rivals = study.systems(group, "ours")[0], study.systems(group, *OTHERS)
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
        closest_one = f"The closest is {rival.label} at ε = {_shown(epsilon)}, by {margin(gain)}."
        return f"**The {ours.label} is ahead of {others} at every ε.** {closest_one} {UNLIKE}"
    listed = "; ".join(
        f"ε = {_shown(e)} ({rival.label}: {_side(gain)})" for e, (rival, gain) in short.items()
    )
    return f"**The {ours.label} is not ahead of {others} by more than its interval at {listed}.**"


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
                lines.append(
                    [_shown(epsilon), ours.label, rival.label, _with_interval(gain, "+.4f")]
                )
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
        *map(_shown, study.epsilons),
    )
    return table(head, lines)


def _line(study: Study, system: System) -> list[str]:
    cells = [_cell(study.mean(system.name, epsilon)) for epsilon in study.epsilons]
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
    shown = [s for s in study.systems(group, "ours", *OTHERS, "printed") if s.model is not None]
    words = {True: "with", False: "without"}
    rows = []
    for system in shown:
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
        _cell(study.mean(system.name, math.inf)),
    ]


def _cell(found: Interval | None) -> str:
    if found is None:
        return "–"
    return _with_interval(found, ".4f")


def _shown(epsilon: float) -> str:
    return f"{epsilon:g}" if math.isfinite(epsilon) else "∞"


def _missing(study: Study, group: Group) -> list[str]:
    names = [
        study.system(name).label for name in study.missing if study.system(name).group == group
    ]
    return [f"Not built: {', '.join(names)}."] if names else []


def _claims(studies: Sequence[Study], figures: Figures) -> list[str]:
    """A section for every outcome that some claim has; claims about systems that no study has are
    left out."""
    judged, parts = claims.verdicts(studies, figures), list[str]()
    for outcome in OUTCOMES:
        found = [
            (claim, verdict)
            for claim, verdict in judged
            if verdict.outcome == outcome and verdict.found
        ]
        if found and outcome == "withdrawn":
            parts += [f"## {TITLES[outcome]}", WITHDRAWN, _withdrawn(found)]
        elif found:
            parts += [
                f"## {TITLES[outcome]}",
                "\n".join(_claim(claim, verdict) for claim, verdict in found),
            ]
    return parts


def _linked(text: str, kept_figures: Collection[str]) -> str:
    """With a link to its full result wherever a kept figure is named."""
    for name in kept_figures:
        said = f"`fedrec bench paper {name}`"
        text = text.replace(said, f"[{said}]({kept.anchor(name)})")
    return text


def _withdrawn(found: Sequence[tuple[Claim, Verdict]]) -> str:
    rows = [
        [f"**{claim.paper}** ({claim.where}): {claim.words}", claim.stood, verdict.found]
        for claim, verdict in found
    ]
    return table(("claim", "stood here", "why it is withdrawn"), rows, text=True)


def _claim(claim: Claim, verdict: Verdict) -> str:
    found = verdict.found.replace("= inf", "= ∞").replace(", inf", ", ∞").removesuffix(".")
    before = (
        f" This page said: {claim.stood}. That was wrong as a comparison: {claim.why}."
        if claim.stood
        else ""
    )
    return f"- **{claim.paper}** ({claim.where}): {claim.words}. *{found}*.{before}"


def _made(studies: Sequence[Study]) -> str:
    again = (
        "`fedrec docs docs/reference.md --results docs/results` makes this page and its figures "
        "from those files."
    )
    words = (
        "A row is a whole training and one test; rows that are done are kept in "
        f"`runs/bench-study`. {again}"
    )
    return "\n\n".join([*map(_command, studies), words])


def _command(study: Study) -> str:
    seconds, name, epsilon = max(
        (max(cell["seconds"]), name, epsilon) for (name, epsilon), cell in study.cells.items()
    )
    slowest = (
        f"the slowest took {_long(seconds)} ({study.system(name).label}, ε = {_shown(epsilon)})"
    )
    commands = "\n".join(_asked(study))
    return (
        f"```sh\n{commands}\n```\n\nIts rows took {_long(study.seconds)} one after another; "
        f"{slowest}."
    )


def _long(seconds: float) -> str:
    """In the largest unit that there is a whole one of."""
    unit, length = next(
        (unit, length)
        for unit, length in (("hours", 3600), ("minutes", 60), ("seconds", 1))
        if seconds >= length or length == 1
    )
    return f"{seconds / length:.1f} {unit}"


def _asked(study: Study) -> Iterator[str]:
    """One command for all, or one a group where their seeds are not the same."""
    start, end = (
        f"fedrec bench study --data PATH/{study.name.removesuffix(LIKES)} --jobs 2"
        f"{' --likes' if study.likes else ''}",
        f"--output docs/results/study-{study.name}",
    )
    if len(set(study.seeds.values())) == 1 and "one model" not in study.seeds:
        yield f"{start} {end}.json"
        return
    for group, count in sorted(study.seeds.items()):
        only = " ".join(
            f"--only {shlex.quote(s.name)}" for s in study.systems(group, *get_args(Origin))
        )
        yield f"{start} --seeds {count} {only} {end}{_ENDS[group]}.json"


_ENDS: dict[Group, str] = {"alone": "", "one model": "-one-model", "people": "-people"}
"""Of result files, by group."""


def _with_interval(found: Interval, form: str) -> str:
    """One seed has no interval."""
    return f"{found.mean:{form}}" + (f" ± {found.half:.4f}" if math.isfinite(found.half) else "")
