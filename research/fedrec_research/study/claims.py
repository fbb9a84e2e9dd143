"""Claims of the papers, and whether these studies found them to hold: every verdict is computed
from rows, none is written down.

A claim that one system beats another is judged at each epsilon by the 95% interval of the paired
difference. It held where that is above zero at all of them, in part where at some, and not where at
none. It is judged by the lines on one model (`forms`), made sound and as printed, and held in part
where these disagree; lines with our additions judge nothing. Two lines that differ in more than
their algorithms and what the claim is about (`systems.differences`), the search for their settings
included, are not comparable, and the claim says in what they differ. What this page once said is
kept with each claim; where nothing comparable was run the verdict is withdrawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fedrec.data.kinds import Kind
from fedrec_research.study.forms import JUDGED, METHODS, Form, line
from fedrec_research.study.judging import Outcome, Point, Verdict, judged
from fedrec_research.study.of_figures import (
    Figures,
    as_good_as_metadata,
    lost_by_the_sampler,
    noised_once,
)
from fedrec_research.study.results import Study
from fedrec_research.study.systems import SYSTEMS, System, agreement, differences

ADA = "Ada-DPALS"
AM = "AM-SSP"
CMF = "DP-CMF"
FAST = "fast DPMF"
OURS = "fedrec"
_UNLIKE = (
    "lines with item biases and users' own means were set beside lines without; the tables say "
    "which line has what"
)
_BIASED = "noisy descent had item biases and users' own means, sufficient statistics had neither"
_EFFORT = "the search for one line's settings had more trials than the other's"
_PUBLIC = "one line started from public data, the other at random"
_FEATURES = frozenset({"item_vectors", "public"})
_VECTORS = frozenset({"item_vectors"})


@dataclass(frozen=True)
class Claim:
    """`paper` and `where` say who claims it; `test` reads all studies, `shown` the kept figures
    where these decide it.

    `stood`: what this page said before, and `why` it was wrong."""

    paper: str
    where: str
    words: str
    test: Callable[[Sequence[Study]], Verdict]
    stood: str = ""
    why: str = ""
    shown: Callable[[Figures], Verdict | None] = lambda figures: None


def ahead(
    better: str, worse: str, *, about: frozenset[str] = frozenset(), ours: bool = False
) -> Callable[[Sequence[Study]], Verdict]:
    """`better` beats `worse` at every finite epsilon of every study that has both; withdrawn where
    the two are not comparable.

    about: what the claim varies on purpose (`systems.differences`). ours: both designs are ours,
    and no paper's claim is judged.
    """

    def test(studies: Sequence[Study]) -> Verdict:
        if reasons := _reasons(better, worse, about, ours):
            return Verdict("withdrawn", f"not comparable: {'; '.join(reasons)}")
        gains = [
            (s.name, e, s.gain(better, worse, e))
            for s in studies
            for e in filter(math.isfinite, s.epsilons)
        ]
        verdict = judged([Point(name, e, gain) for name, e, gain in gains if gain is not None])
        return (
            replace(verdict, found=f"{verdict.found}. Both lines: {_common(better, worse)}")
            if verdict.found
            else verdict
        )

    return test


def on_one_model(
    better: str,
    worse: str,
    *,
    about: frozenset[str] = frozenset(),
    kinds: Sequence[Kind] = ("ratings", "clicks"),
) -> Callable[[Sequence[Study]], Verdict]:
    """`better` beats `worse`, methods of `forms`, on the kinds of data that the claim is about:
    judged made sound, and as printed where both have that form.

    One search with few trials may miss what another line of the same model reaches. Where a study
    has such a line and it is better (`_best`), the claim is judged with it too. Where not all of
    these decide alike, the claim held in part."""

    def test(every: Sequence[Study]) -> Verdict:
        studies = [study for study in every if study.kind in kinds]
        found = {
            form: ahead(line(better, form), line(worse, form), about=about)(studies)
            for form in JUDGED
            if form in METHODS[better].forms and form in METHODS[worse].forms
        }
        sound = found["made sound"]
        if not sound.found or sound.outcome == "withdrawn":
            return sound
        printed = found.get("as printed")
        beside = (
            f" As printed: {printed.found.partition('. Both lines')[0]}."
            if printed and printed.found
            else _without(better, worse)
        )
        known = _with_the_best(better, worse, studies)
        longer = (
            f" With the best settings known here, of longer searches of unequal lengths: "
            f"{known.found}."
            if known
            else ""
        )
        decided = {
            verdict.outcome
            for verdict in (sound, printed, known)
            if verdict and verdict.found and verdict.outcome != "withdrawn"
        }
        outcome: Outcome = sound.outcome if len(decided) == 1 else "in part"
        return Verdict(outcome, f"Made sound: {sound.found}.{longer}{beside}")

    return test


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


def _without(better: str, worse: str) -> str:
    """Why no printed lines stand beside."""
    form: Form = "as printed"
    missing = [METHODS[name].label for name in (better, worse) if form not in METHODS[name].forms]
    return f" No printed form of {' and '.join(missing)} could be charged." if missing else ""


def _common(better: str, worse: str) -> str:
    """On what model both stand; `differences` has found nothing that the claim is not about."""
    table = next(table for table in SYSTEMS.values() if better in table and worse in table)
    return agreement(table[better], table[worse])


def _reasons(better: str, worse: str, about: frozenset[str], ours: bool) -> list[str]:
    pairs = [
        (table[better], table[worse])
        for table in SYSTEMS.values()
        if better in table and worse in table
    ]
    if ours:
        about |= {"origin"}
    return list(
        dict.fromkeys(reason for pair in pairs for reason in differences(*pair, about=about))
    )


def withdrawn(why: str) -> Callable[[Sequence[Study]], Verdict]:
    """No two lines here can judge it."""
    return lambda studies: Verdict("withdrawn", why)


def elsewhere(command: str) -> Callable[[Sequence[Study]], Verdict]:
    """Nothing here can say; another command does."""
    return lambda studies: Verdict("not measured", f"`{command}` does")


CLAIMS = (
    Claim(ADA, "Fig. 1, 2, top", "adaptive weights beat tail-biased sampling",
    on_one_model("ada-dpals", "dpals-tail"),
        "held in part", f"{_EFFORT}. At ε = 0.5 and 1 its adaptive line had a weight exponent "
        "of 0, by which all items weigh alike: that is a line of its own now"),
    Claim(ADA, "Fig. 1, 2, D.2; Chien et al. 2021", "tail-biased sampling beats uniform sampling",
        on_one_model("dpals-tail", "dpals-uniform"), "held in part", _EFFORT),
    Claim(OURS, "no paper's claim",
    "sufficient statistics beat noisy gradient descent: Ada-DPALS beats Ada-DPGD",
        on_one_model("ada-dpals", "ada-dpgd"), "did not hold, as a claim of Ada-DPALS",
        f"{_BIASED}. Nor is it a claim of that paper's, which draws the two in panels of their own "
        "and found noisy descent to perform well with full batches"),
    Claim(AM, "Fig. 1", "on ratings AM-SSP beats AM-DPSGD",
        on_one_model("am-ssp", "am-dpsgd", kinds=("ratings",)), "did not hold",
        "the line was descent on one layer with its users scaled; it is Algorithm 6 now"),
    Claim(AM, "Fig. 2", "on clicks AM-SSP beats AM-DPSGD, of which one layer stands in here",
        on_one_model("am-ssp", "encoder-descent", kinds=("clicks",))),
    Claim(AM, "Fig. 1, 2", "AM-SSP beats DP-CMF with the same features", on_one_model("am-ssp",
    "dp-cmf", about=_VECTORS),
        "did not hold", _PUBLIC),
    Claim(AM, "Fig. 1, 2", "item features help: AM-SSP beats the same without features",
        on_one_model("am-ssp", "ada-dpals", about=_FEATURES), "held", _EFFORT),
    Claim(AM, "Fig. 1",
    "on ratings item features help there too: AM-DPSGD beats DPALS with ids alone",
        on_one_model("am-dpsgd", "dpals-uniform", about=_FEATURES, kinds=("ratings",)),
        "held, later held in part, then held again",
        f"{_BIASED}. Later it was judged on clicks too, of which Fig. 2 says the opposite, and "
        "then by the lines made sound alone; those as printed say otherwise"),
    Claim(AM, "Fig. 2",
    "on clicks item features harm noisy descent: the same with ids alone beats AM-DPSGD",
        on_one_model("ada-dpgd", "encoder-descent", about=_FEATURES, kinds=("clicks",))),
    Claim(
        AM,
        "Fig. 3",
        "AM-SSP trains a hundred times faster than AM-DPSGD",
        withdrawn(
            "the benchmark `encoder` extrapolates an epoch of per-example gradients by Opacus; the "
            "paper's Alg. 6 shares an item's passes, which Opacus cannot, and "
            "`fedrec research figures am-ssp/figure6` times our own of it"
        ),
        "held in part: 3.5 times",
        (
            "the line timed as AM-DPSGD was our own rewrite: a linear encoder, one gradient a "
            "user, full batches"
        ),
    ),
    Claim(AM, "E.1", "DP-SGD on the whole model is the worst: descent on an encoder beats it",
    ahead("encoder-descent", "dp-sgd"), "held in part", _UNLIKE),
    Claim(AM, "E.1", "and so does DPALS with ids alone", ahead("ada-dpals", "dp-sgd"),
    "did not hold", _BIASED),
    Claim(AM, "Fig. 4", "noising once (SSP2) beats noising in every step (SSP1)",
    elsewhere("fedrec research figures am-ssp/figure4"), shown=noised_once),
    Claim(CMF, "Fig. 1", "all sides together beat public users alone as a side",
        ahead("dp-cmf-all", "dp-cmf-users", about=_FEATURES), "held", _EFFORT),
    Claim(CMF, "Fig. 1", "on ratings item metadata helps", on_one_model("dp-cmf", "ada-dpals",
    about=_FEATURES, kinds=("ratings",)), "held, later held in part, then held again",
        f"{_PUBLIC}. Later it was judged on clicks too, of which the paper says nothing, and "
        "then by the lines made sound alone; those as printed say otherwise"),
    Claim(CMF, "Fig. 1", "public users help", ahead("dp-cmf-users", "ada-dpals-half",
    about=_FEATURES), "held", _PUBLIC),
    Claim(
        CMF,
        "4.2",
        "sides close up to 60% of the gap to non-private ALS",
        withdrawn(
            "the ALS of this page has item and user biases, and neither end of the gap that is "
            "closed has any"
        ),
        "held in part: more than the whole gap",
        _UNLIKE,
    ),
    Claim(
        CMF,
        "no paper's claim",
        "private ratings add to what public users teach without any privacy cost",
        withdrawn("one line knew item features besides, the other did not"),
        "held",
        "the two lines knew different public data",
    ),
    Claim(CMF, "Fig. 5", "1,000 public users do what the best metadata does",
    elsewhere("fedrec research figures dp-cmf/figure5"), shown=as_good_as_metadata),
    Claim(
        FAST,
        "Fig. 5",
        "the posterior sampler beats what can be proved: noisy gradient descent at the same ε",
        ahead("sgld", "fast-dpmf"),
        "did not hold",
        "noisy descent was a design of our own with item biases",
    ),
    Claim(
        FAST,
        "6.6, of Fig. 5",
        "almost no accuracy is lost at ε < 1 per rating, which is ε < 200 per user of at most 200 "
        "ratings",
        elsewhere("fedrec research figures fast-dpmf/figure5"),
        shown=lost_by_the_sampler,
    ),
    Claim(OURS, "found here, of convex SSP as we built it",
    "a logistic loss beats the quadratic one on clicks",
        ahead("convex-logistic", "convex-quadratic", ours=True), "held in part", _EFFORT),
    Claim(OURS, "the aim of this study", "the default beats every published system, made sound",
    withdrawn(_UNLIKE), "held", f"{_UNLIKE}. On clicks the published systems were DPALS, Ada-DPALS "
    "and convex SSP, which is a design of our own and started from our own tastes"),
    Claim(OURS, "the aim of this study",
    "without item features it beats every published system that has none either",
        withdrawn(_UNLIKE), "held", _UNLIKE),
    Claim(
        OURS,
        "the aim of this study",
        "with public people it beats DP-CMF with the same people",
        withdrawn(
            f"on ratings {_UNLIKE}; on clicks the default starts from private tastes and DP-CMF "
            "at random"
        ),
        "held",
        _UNLIKE,
    ),
    Claim(
        ADA,
        "no paper's claim",
        "the published models beat item means: Ada-DPALS does at ε = 1",
        withdrawn("no paper says it; the tables show both lines"),
        "did not hold",
        "no paper claims it",
    ),
)  # fmt: skip
"""In the page's order."""


def verdicts(
    studies: Sequence[Study], figures: Figures | None = None
) -> list[tuple[Claim, Verdict]]:
    """Every claim with what the kept figures say of it, or else the studies."""
    return [(claim, claim.shown(figures or {}) or claim.test(studies)) for claim in CLAIMS]
