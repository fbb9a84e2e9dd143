"""What the papers claim, and whether these studies found it: every verdict is computed from rows, none is written down.

A claim that one system beats another is judged at each epsilon by the 95% interval of the paired difference. It held where that is above
zero at all of them, in part where at some, and not where at none. `because` adds our explanation, and shows with its outcome only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fedrec_simulations.bench.intervals import Interval
from fedrec_simulations.study.results import Study
from fedrec_simulations.study.systems import System

Outcome = Literal["held", "in part", "did not hold", "not measured"]
OUTCOMES: tuple[Outcome, ...] = ("held", "in part", "did not hold", "not measured")
ADA, AM, CMF, FAST, OURS = "Ada-DPALS", "AM-SSP", "DP-CMF", "fast DPMF", "fedrec"


@dataclass(frozen=True)
class Verdict:
    """What the rows say, with the figures it rests on."""

    outcome: Outcome
    found: str


@dataclass(frozen=True)
class Claim:
    """`paper` and `where` say who claims it; `test` reads all studies."""

    paper: str
    where: str
    words: str
    test: Callable[[Sequence[Study]], Verdict]
    because: Mapping[Outcome, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Point:
    """A difference at one epsilon of one study; above zero where the claim says it is."""

    study: str
    epsilon: float
    gain: Interval


def ahead(better: str, worse: str, *, only: Callable[[float], bool] = math.isfinite) -> Callable[[Sequence[Study]], Verdict]:
    """`better` beats `worse` at every epsilon that `only` keeps, in every study that has both."""

    def test(studies: Sequence[Study]) -> Verdict:
        gains = [(s.name, e, s.gain(better, worse, e)) for s in studies for e in s.epsilons if only(e)]
        return _judged([_Point(name, e, gain) for name, e, gain in gains if gain is not None])

    return test


def ahead_of_all(ours: str, keep: Callable[[System], bool]) -> Callable[[Sequence[Study]], Verdict]:
    """`ours` beats every published system of its group that `keep` keeps, at every epsilon and without privacy: the hardest one decides."""

    def test(studies: Sequence[Study]) -> Verdict:
        points = []
        for study in (s for s in studies if any(name == ours for name, _ in s.cells)):
            rivals = [system for system in study.systems(study.system(ours).group, "published") if keep(system)]
            gains = [(e, [gain for _, gain in study.leads(ours, rivals, e)]) for e in study.epsilons]
            points += [_Point(study.name, e, min(found, key=_worst_first)) for e, found in gains if found]
        return _judged(points)

    return test


def gap_closed(sides: str, plain: str, ceiling: str, *, at_most: float) -> Callable[[Sequence[Study]], Verdict]:
    """Public sides close some of the gap between `plain` and `ceiling` at every finite epsilon, and this share of it at most."""

    def test(studies: Sequence[Study]) -> Verdict:
        shares = dict[tuple[str, float], float]()
        for study in studies:
            for e in filter(math.isfinite, study.epsilons):
                means = [found.mean for name in (sides, plain, ceiling) if (found := study.mean(name, e)) is not None]
                if len(means) == 3:
                    shares[study.name, e] = (means[1] - means[0]) / (means[1] - means[2])
        if not shares:
            return Verdict("not measured", "")
        name, most = max(shares.items(), key=lambda pair: pair[1])
        outcome: Outcome = "held" if min(shares.values()) > 0 and most <= at_most * 1.05 else "in part" if most > 0 else "did not hold"
        return Verdict(outcome, f"{name[0]}: from {min(shares.values()):.0%} to {most:.0%} of the gap, most at ε = {name[1]:g}")

    return test


def faster(quick: str, slow: str, *, times: float) -> Callable[[Sequence[Study]], Verdict]:
    """Seconds of a training of `slow` are at least `times` those of `quick`, on average over epsilons."""

    def test(studies: Sequence[Study]) -> Verdict:
        taken = [[cell["train_seconds"] for s in studies for (n, _), cell in s.cells.items() if n == name] for name in (quick, slow)]
        if not all(taken):
            return Verdict("not measured", "")
        first, second = (sum(map(sum, each)) / sum(map(len, each)) for each in taken)
        outcome: Outcome = "held" if second >= times * first else "in part" if second > first else "did not hold"
        return Verdict(outcome, f"{first:.1f} against {second:.1f} seconds a training, {second / first:.1f} times as long")

    return test


def elsewhere(command: str) -> Callable[[Sequence[Study]], Verdict]:
    """Nothing here can say; another command does."""
    return lambda studies: Verdict("not measured", f"`{command}` does")


def _worst_first(gain: Interval) -> tuple[bool, bool, float]:
    """Behind, then not told apart, then ahead: of several rivals at one epsilon the hardest decides."""
    return gain.above, not gain.below, gain.mean


def _judged(points: Sequence[_Point]) -> Verdict:
    if not points:
        return Verdict("not measured", "")
    won = sum(point.gain.above for point in points)
    outcome: Outcome = "held" if won == len(points) else "in part" if won else "did not hold"
    names = dict.fromkeys(point.study for point in points)
    return Verdict(outcome, "; ".join(f"{name}: {_words([p for p in points if p.study == name])}" for name in names))


def _words(points: Sequence[_Point]) -> str:
    """ "ahead at ε = 1, 5, least by 0.0031 ± 0.0011; not told apart at ε = 0.5"."""
    kinds = {
        "ahead": [p for p in points if p.gain.above],
        "behind": [p for p in points if p.gain.below],
        "not told apart": [p for p in points if not (p.gain.above or p.gain.below)],
    }
    said = []
    for kind, chosen in kinds.items():
        if chosen:
            near = min(chosen, key=lambda p: p.gain.mean)
            by = "" if kind == "not told apart" else f", {'least' if kind == 'ahead' else 'most'} by {margin(near.gain)}"
            said.append(f"{kind} at ε = {', '.join(f'{e:g}' for e in dict.fromkeys(p.epsilon for p in chosen))}{by}")
    return ", ".join(said)


def margin(gain: Interval) -> str:
    """0.0031 ± 0.0011, without its sign."""
    half = f" ± {gain.half:.4f}" if math.isfinite(gain.half) else ""
    return f"{abs(gain.mean):.4f}{half}"


def _any(system: System) -> bool:
    return True


CLAIMS = (
    Claim(OURS, "the aim of this study", "the default beats every published system, made sound", ahead_of_all("default", _any)),
    Claim(
        OURS,
        "the aim of this study",
        "without item features it beats every published system that has none either",
        ahead_of_all("default-plain", lambda system: system.public == "nothing"),
    ),
    Claim(
        OURS, "the aim of this study", "with public people it beats DP-CMF with the same people", ahead_of_all("default-people", _any)
    ),
    Claim(
        ADA,
        "Fig. 1, 2, top",
        "adaptive weights beat tail-biased sampling",
        ahead("ada-dpals", "dpals-tail"),
        {"held": "a user's whole budget is spent on what it rated, and less of it on what everybody rates"},
    ),
    Claim(
        ADA,
        "Fig. 1, 2; Chien et al. 2021",
        "tail-biased sampling beats uniform sampling",
        ahead("dpals-tail", "dpals-uniform"),
        {"in part": "where the best limit keeps most items of most users, there is little left to bias"},
    ),
    Claim(ADA, "Fig. 1, 2, top against bottom", "sufficient statistics beat noisy gradient descent", ahead("ada-dpals", "dp-gd")),
    Claim(
        AM,
        "Fig. 1",
        "item features help: AM-SSP beats the same without features",
        ahead("am-ssp", "ada-dpals"),
        {"in part": "a linear encoder shares strength between rare items, and cannot tell items with the same features apart"},
    ),
    Claim(AM, "Fig. 1", "AM-SSP beats DP-CMF with the same features", ahead("am-ssp", "dp-cmf-metadata")),
    Claim(AM, "Fig. 1", "AM-SSP beats AM-DPSGD", ahead("am-ssp", "am-dpsgd")),
    Claim(AM, "Fig. 1", "item features help there too: AM-DPSGD beats DPALS with ids alone", ahead("am-dpsgd", "ada-dpals")),
    Claim(AM, "Fig. 3", "AM-SSP trains a hundred times faster than AM-DPSGD", faster("am-ssp", "am-dpsgd", times=100)),
    Claim(AM, "E.1", "DP-SGD on the whole model is the worst: AM-DPSGD beats it", ahead("am-dpsgd", "dp-sgd")),
    Claim(AM, "E.1", "and so does DPALS with ids alone", ahead("ada-dpals", "dp-sgd")),
    Claim(AM, "Alg. 7, no evaluation", "a logistic loss beats the quadratic one on clicks", ahead("convex-logistic", "convex-quadratic")),
    Claim(AM, "Fig. 4", "noising once (SSP2) beats noising in every step (SSP1)", elsewhere("fedrec bench paper am-ssp/figure4")),
    Claim(CMF, "Fig. 1", "item metadata helps", ahead("dp-cmf-metadata", "ada-dpals")),
    Claim(CMF, "Fig. 1", "public users help", ahead("dp-cmf-users", "ada-dpals-half")),
    Claim(CMF, "Fig. 1", "all sides together beat public users alone as a side", ahead("dp-cmf-all", "dp-cmf-users")),
    Claim(
        CMF,
        "4.2",
        "sides close up to 60% of the gap to non-private ALS",
        gap_closed("dp-cmf-all", "ada-dpals-half", "als-half", at_most=0.6),
        {"in part": "our public users come from the same site as the private ones, and are as many"},
    ),
    Claim(
        CMF,
        "left out there",
        "private ratings add to what public users teach without any privacy cost",
        ahead("dp-cmf-all", "public-users-alone"),
    ),
    Claim(CMF, "Fig. 5", "1,000 public users do what the best metadata does", elsewhere("fedrec bench paper dp-cmf/figure5")),
    Claim(
        FAST,
        "Fig. 5",
        "the posterior sampler beats what can be proved: noisy gradient descent at the same ε",
        ahead("sgld", "fast-dpmf"),
        {"held": "at an ε that its proof does not give: the sampler's guarantee is not established"},
    ),
    Claim(FAST, "6.5", "almost no loss at ε = 250", elsewhere("fedrec bench paper fast-dpmf/figure5")),
    Claim(
        "Ada-DPALS",
        "taken for granted",
        "the published models beat item means: Ada-DPALS does at ε = 1",
        ahead("ada-dpals", "item-mean", only=lambda e: e == 1),
        {"did not hold": "without a private item bias and centred users, the noise of factors costs more than factors bring"},
    ),
)  # fmt: skip
"""In the page's order."""


def verdicts(studies: Sequence[Study]) -> list[tuple[Claim, Verdict]]:
    """Every claim with what the studies say."""
    return [(claim, claim.test(studies)) for claim in CLAIMS]
