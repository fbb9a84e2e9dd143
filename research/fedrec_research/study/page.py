"""research/docs/study.md and its figures, made from the kept results and from nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedrec.report import wording
from fedrec.storage import write_bytes
from fedrec_research.claims import listed
from fedrec_research.claims.listed import Judged
from fedrec_research.drawing import table
from fedrec_research.papers.figures import paper
from fedrec_research.papers.page import PAGE, anchor
from fedrec_research.study import inventory
from fedrec_research.study.one_model import ONE_MODEL, one_model
from fedrec_research.study.results import Study
from fedrec_research.study.systems import LIKES, OTHERS, Group
from fedrec_research.study.whole_systems import section

INTRODUCTION = """Our default and what we built after four papers, on the same splits and under the
same guarantee; settings chosen on validation, test read once. Sections *on one model* compare the
papers' algorithms alone, and claims are judged by these sections, or by a figure of
[figures.md](figures.md) whose lines share one model and one search. Elsewhere the lines are whole
systems: they differ in item biases, users' own means, start, public data and search, and their
order ranks no algorithm. `systems.py` says what each line has and how many settings were tried for
it; our default surely had more of them than any line with a count.

A verdict is of the data sets that it names and of no others. Each point is judged by itself at 95%:
of forty points of two equal lines one is said to be ahead by chance, and one behind. *Level*, not
told apart, does not mean equal: with three seeds a difference must be 2.5 times its standard
deviation over seeds to be seen. The papers evaluate on data with far more users, where the same
noise is small beside an item's sums. Our item features are genres, years and words of titles; those
of AM-SSP and DP-CMF name casts and finer genres too.

Systems are *made sound*: every user's whole report is bounded, everything released is charged,
and composition is exact (`fedrec/NOTATION.md` lists what the papers print). Values are means
over {seeds} seeds with 95% intervals (Student's t); differences are paired by seed. The
guarantee is {promise}. PrivateRec protects one click, another unit: its figures are in
[figures.md](figures.md)."""
CLAIMED = """Of {count} claims of the five papers {counts}. {inferred} are judged by the figure
that they are read from, and stand beside it in [figures.md](figures.md). These are judged by the
study's lines, by a proof, or by nothing, with the reason. Made sound and as printed, and the
best settings of longer searches where there are such lines, must decide alike: otherwise a claim
held in part. In brackets is the least lead, or the largest lag."""
UNDRAWN = """The papers were at hand as text, so that no curve was read off its axes. Figures and
tables that are not made again:"""
LACKING = """Missing in figures that are made: in Ada-DPALS 1 and 2 sampling and no privacy for
descent, in AM-SSP 1 and 2 DP-CMF (it stands on one model), in PrivateRec 4 training without
noise. The lines *AM-DPSGD* of AM-SSP's figures are our own rewrite; those on one model are
Algorithm 6."""
_ENDS: dict[Group, str] = {"alone": "", "one model": "-one-model", "people": "-people"}
"""Of result files, by group."""


def write(target: Path, results: Path) -> None:
    """Write the page, and img/study-*.svg beside it, from study-*.json in `results`; nothing where
    there is none."""
    found = listed.evidence(results)
    if not found.studies:
        return
    parts = [
        "# The study: our default beside what we built after four papers",
        _introduction(found.studies),
        "## Claims",
        *_claims(listed.verdicts(found)),
        "## Lines on one model",
        ONE_MODEL,
    ]
    for study in found.studies:
        if study.systems("one model", *OTHERS):
            parts += [f"### {study.name}, on one model", *one_model(study)]
    for study in found.studies:
        if study.systems("alone", "ours"):
            parts += [f"## {study.name}: {study.kind}", *section(study, "alone", target)]
        if study.systems("people", *OTHERS):
            title = f"### {study.name}, where half of the people are public"
            parts += [title, *section(study, "people", target)]
    parts += ["## Not made again, and why", UNDRAWN, inventory.markdown(), LACKING, inventory.OPEN]
    parts += ["## How it was made", _made(found.studies, results)]
    write_bytes(target, ("\n\n".join(parts) + "\n").encode())


def _introduction(studies: Sequence[Study]) -> str:
    promise = studies[0].promise
    words = f"ε {wording.unit(promise)} at δ = {wording.power(promise.delta)}"
    seeds = " or ".join(
        str(n) for n in sorted({n for study in studies for n in study.seeds.values()})
    )
    return INTRODUCTION.format(seeds=seeds, promise=words)


def _claims(judged: Judged) -> list[str]:
    """Those that no figure decides, by paper; the others are in figures.md."""
    here = [one for one in judged if one[0].test.by_study or not one[0].figure]
    rows = [
        [
            f"{paper(claim.paper).name}, {_place(claim.paper, claim.figure, claim.where)}",
            claim.words,
            verdict.found.replace("= inf", "= ∞"),
            f"**{verdict.outcome}**",
        ]
        for claim, verdict in here
    ]
    told = CLAIMED.format(
        count=len(judged), counts=listed.counts(judged), inferred=len(judged) - len(here)
    )
    return [told, table(("of", "claim", "what we found", "verdict"), rows, text=True)]


def _place(name: str, figure: str, where: str) -> str:
    return f"[{where}]({anchor(f'{name}/{figure}')})" if figure else where


def _made(studies: Sequence[Study], results: Path) -> str:
    commands = "\n".join(line for study in studies for line in _asked(study, results))
    hours = sum(study.seconds for study in studies) / 3600
    return (
        f"```sh\n{commands}\n```\n\nLINE stands for each line of a table. The rows took "
        f"{hours:.0f} hours one after another. `fedrec research pages` makes this page and "
        f"[{PAGE}]({PAGE}) from what is kept."
    )


def _asked(study: Study, results: Path) -> Iterator[str]:
    """One command a group: their seeds are not the same. A group without a file of its own is kept
    in that of the first; LINE stands for each of its lines in the tables."""
    planted = study.name.startswith("planted")
    place = study.name if planted else f"PATH/{study.name.removesuffix(LIKES)}"
    start = f"fedrec research study --data {place}{' --likes' if study.likes else ''}"
    end = f"--output research/results/study-{study.name}"
    for group, count in sorted(study.seeds.items()):
        own = (results / f"study-{study.name}{_ENDS[group]}.json").exists()
        yield f"{start} --seeds {count} --only LINE {end}{_ENDS[group] if own else ''}.json"
