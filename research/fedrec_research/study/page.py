"""research/docs/study.md and its figures, made from the kept results and from nothing else."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import get_args

from fedrec.data.kinds import KINDS
from fedrec.report import wording
from fedrec.storage import read_json, write_bytes
from fedrec_research.drawing import table
from fedrec_research.papers import page as kept
from fedrec_research.study import claims, inventory
from fedrec_research.study.claims import Claim
from fedrec_research.study.judging import OUTCOMES, Outcome, Verdict
from fedrec_research.study.measured import shown
from fedrec_research.study.of_figures import Figures
from fedrec_research.study.one_model import one_model
from fedrec_research.study.results import Study
from fedrec_research.study.systems import LIKES, OTHERS, Group, Origin
from fedrec_research.study.whole_systems import section
from fedrec_research.trials import Row

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
INTRODUCTION = """Our default and what we built after four papers, on the same splits and under the
same guarantee; settings chosen on validation, test read once. Sections *on one model* compare the
papers' algorithms alone. Claims are judged only by these sections, or by a kept figure whose lines
share one model and one search. Each algorithm is tested as printed and made sound; where the two
disagree, the claim held in part. In the other sections the lines are not one model. A
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
is another unit: its tables are in [quality.md](quality.md), its figures in
[figures.md](figures.md), and its ε does not compare with those here."""
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
What stands beside a re-made figure, `fedrec research figures PAPER/FIGURE`, is what the text prints:

- Ada-DPALS: orders of methods (Section 5, D.2, D.3), the least gains by bucket (D.2), the share of
  the most frequent tenth. Of its neighbours, Tables 3 and 4, what it concludes.
- AM-SSP: orders (4.2, 4.3, E.1 to E.3), its lead on DP-CMF at ε = 1 and 20 (4.2), ratios of seconds
  (4.3, E.2), Recall@20 of DP-SGD (E.1).
- DP-CMF: orders (4.2), the share of the gap that sides close (4.2), shares by popularity (4.2.1).
- Fast DP matrix factorisation: seconds by dimension (6.1), speed-ups (6.3), two sentences on what ε
  costs (6.5, 6.6).
- PrivateRec: Tables 1 and 2 whole, with their deviations; of its figures one AUC (4.1) and the best
  p and B.

Missing in the re-made figures are these curves and panels:

| figure | not drawn | why |
| --- | --- | --- |
| Ada-DPALS 1, 2 | in the panels of descent: tail-biased and uniform sampling, and descent without privacy | descent here takes all of a user's items in every step |
| Ada-DPALS 7, 8 | the panels of the Million Song Data | not at hand |
| AM-SSP 1, 2 | DP-CMF | on ratings DP-CMF's own Figure 1 has it on the same divisions; on clicks the section *on one model* has it on MovieLens 1M |
| AM-SSP 2 | descent with ids alone | the section *on one model* has it on MovieLens 1M as Ada-DPGD |
| PrivateRec 4 | PrivateRec trained without noise | its rows are trained at ε = 1, 10 and 20 per click |

AM-DPSGD in AM-SSP's Figures 1, 3 and 9 has item biases and users' own means, which its paper's
model has not; the lines named so in the sections *on one model* have none. *AM-SSP as printed
(Theorem 2)* in Figures 1 and 2 has the printed weights and calibration, and descends by Adam as the
other lines do; plain descent is in the lines *as printed* on one model.

Each figure took 4 seconds to 13 minutes on two processor cores that did other work too, those of
AM-SSP after each other so that they share rows. PrivateRec's are made by one command; its
trainings of Tables 1 and 2, of Figure 4 and of Figure 6 take more than 15 minutes one after another
(41, 16 and 37 at most). Full results of the figures that are linked below are kept, with charts, on
[a page of their own](figures.md). Of the others each command makes its own, on the data that it is
given."""  # noqa: E501
INVENTORY = """Every figure and table of the five papers. The papers' data are not at hand; what
stands in for them is named, so that a re-made figure can show an order and not a value."""
_ENDS: dict[Group, str] = {"alone": "", "one model": "-one-model", "people": "-people"}
"""Of result files, by group."""


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
            parts += section(study, "alone", target, simple=_simple(results))
        if study.systems("one model", *OTHERS):
            parts += [f"### {study.name}, on one model", *one_model(study)]
        if study.systems("people", *OTHERS):
            parts += [
                f"### {study.name}, where half of the people are public",
                *section(study, "people", target),
            ]
    figures = kept.figures(results)
    parts += [_linked(part, figures) for part in _claims(studies, figures)]
    parts += ["## Published curves", CURVES]
    parts += [
        "## Figures and tables of the papers",
        INVENTORY,
        inventory.markdown(figures),
    ]
    parts += ["## Not measured, and why", inventory.OPEN]
    parts += ["## Claims about privacy", PROOFS, "## How it was made", _made(studies, results)]
    write_bytes(target, ("\n\n".join(parts) + "\n").encode())


def _introduction(studies: Sequence[Study]) -> str:
    promise = studies[0].promise
    words = f"ε {wording.unit(promise)} at δ = {wording.power(promise.delta)}"
    seeds = " or ".join(
        str(n) for n in sorted({n for study in studies for n in study.seeds.values()})
    )
    return INTRODUCTION.format(seeds=seeds, promise=words)


def _claims(studies: Sequence[Study], figures: Figures) -> list[str]:
    """A section for every outcome that some claim has; claims about systems that no study has are
    left out."""
    judged = claims.verdicts(studies, figures)
    parts = list[str]()
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
        said = f"`fedrec research figures {name}`"
        text = text.replace(said, f"[{said}]({kept.anchor(name)})")
    return text


def _withdrawn(found: Sequence[tuple[Claim, Verdict]]) -> str:
    rows = [
        [
            f"**{claim.paper}** ({claim.where}): {claim.words}",
            claim.stood,
            claim.why,
            "the same" if verdict.found in claim.why else verdict.found,
        ]
        for claim, verdict in found
    ]
    header = ("claim", "stood here", "why that was wrong", "why there is no verdict")
    return table(header, rows, text=True)


def _claim(claim: Claim, verdict: Verdict) -> str:
    found = verdict.found.replace("= inf", "= ∞").replace(", inf", ", ∞").removesuffix(".")
    before = (
        f" This page said: {claim.stood}. That was wrong as a comparison: {claim.why}."
        if claim.stood
        else ""
    )
    return f"- **{claim.paper}** ({claim.where}): {claim.words}. *{found}*.{before}"


def _simple(results: Path) -> Sequence[Row]:
    """Cells of the benchmark of simple recipes, where it is kept."""
    kept_in = results / "simple.json"
    return read_json(kept_in)["cells"] if kept_in.exists() else ()


def _made(studies: Sequence[Study], results: Path) -> str:
    again = "`fedrec research pages` makes this page and its figures from those files."
    words = (
        "A row is a whole training and one test; rows that are done are kept in "
        f"`runs/bench-study`. {again}"
    )
    return "\n\n".join([*(_command(study, results) for study in studies), words])


def _command(study: Study, results: Path) -> str:
    seconds, name, epsilon = max(
        (max(cell["seconds"]), name, epsilon) for (name, epsilon), cell in study.cells.items()
    )
    slowest = (
        f"the slowest took {_long(seconds)} ({study.system(name).label}, ε = {shown(epsilon)})"
    )
    commands = "\n".join(_asked(study, results))
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


def _asked(study: Study, results: Path) -> Iterator[str]:
    """One command for all, or one a group where their seeds are not the same; a group without a
    file of its own is kept in that of the first."""
    planted = study.name.startswith("planted")
    place = study.name if planted else f"PATH/{study.name.removesuffix(LIKES)}"
    start = f"fedrec research study --data {place} --jobs 2{' --likes' if study.likes else ''}"
    end = f"--output research/results/study-{study.name}"
    if len(set(study.seeds.values())) == 1 and "one model" not in study.seeds:
        yield f"{start} {end}.json"
        return
    for group, count in sorted(study.seeds.items()):
        only = " ".join(
            f"--only {shlex.quote(s.name)}" for s in study.systems(group, *get_args(Origin))
        )
        own = (results / f"study-{study.name}{_ENDS[group]}.json").exists()
        yield f"{start} --seeds {count} {only} {end}{_ENDS[group] if own else ''}.json"
