"""Claims that kept figures decide (`papers.page`): differences of two of their points, paired by
seed.

Both points are of one model, one split and the same private users, and their settings were chosen
by the same search on validation ratings, which the scenario of the figure states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedrec.evaluation.intervals import Interval, paired
from fedrec_research.study.judging import Outcome, Point, Verdict, judged
from fedrec_research.trials import Row

Figures = Mapping[str, Sequence[Row]]
"""Rows of the kept figures by name, "dp-cmf/figure5"."""
RESAMPLED = {
    "all examples (Alg. 2)": "on all examples",
    "batches (Alg. 4)": "on batches, which amplify nothing per user",
}
"""Figure 4's two forms of SSP1, and their words."""


@dataclass(frozen=True)
class Spot:
    """One point of a figure; the metric is RMSE."""

    figure: str
    series: str
    x: float | str

    def by_seed(self, figures: Figures) -> dict[int, float]:
        """Values; none where the figure has no such point."""
        return {
            seed: value
            for row in figures[self.figure]
            if (row["metric"], row["series"], row["x"]) == ("rmse", self.series, self.x)
            for seed, value in zip(row["seeds"], row["each"], strict=True)
        }


def noised_once(figures: Figures) -> Verdict | None:
    """AM-SSP Section 4.4: noise drawn once (SSP2) gives a smaller RMSE than noise drawn in each of
    16 steps (SSP1), in both forms of SSP1; None where the figure is not kept."""
    name = "am-ssp/figure4"
    if name not in figures:
        return None
    points = [
        Point(words, epsilon, gain)
        for form, words in RESAMPLED.items()
        for epsilon in (1, 5, 20)
        if (
            gain := _gain(
                figures, *(Spot(name, f"epsilon = {epsilon}, {form}", n) for n in (1, 16))
            )
        )
    ]
    verdict = judged(points)
    return replace(
        verdict,
        found=f"Of `fedrec research figures {name}`, one item update on ml-1m, SSP2 against SSP1 "
        f"{verdict.found}. Both: 16 steps, learning rate of each point chosen on validation, the "
        "other settings AM-SSP's with noise drawn once",
    )


def as_good_as_metadata(figures: Figures) -> Verdict | None:
    """DP-CMF Section 4.2.2: with the ratings of 1,000 public users RMSE is not above that with all
    metadata; None where a figure is not kept.

    The paper says "comparable", so being not told apart is no loss: the claim held where 1,000
    users are behind at no epsilon, and in part where they are behind at some.
    """
    people = "dp-cmf/figure5"
    films = "dp-cmf/figure1"
    if not {people, films} <= figures.keys():
        return None
    points = [
        Point("1,000 public users against all metadata on ml-1m", epsilon, gain)
        for epsilon in (1, 5, 10, 20)
        if (
            gain := _gain(
                figures,
                Spot(people, "public users, raw, 1000", epsilon),
                Spot(films, "metadata", epsilon),
            )
        )
    ]
    lost = sum(point.gain.below for point in points)
    outcome: Outcome = "held" if not lost else "in part" if lost < len(points) else "did not hold"
    unseen = max(point.gain.half - point.gain.mean for point in points)
    power = f"; three seeds would not show a loss of up to {unseen:.4f}" if unseen > 0 else ""
    return Verdict(
        outcome,
        f"Of `fedrec research figures {people}` and `fedrec research figures {films}`, "
        f"{judged(points).found}. The paper says comparable, so behind at no ε is judged as "
        f"held{power}. Both: the same private users, "
        "α and λ' of 12 pairs by validation, no item biases or users' own means, start random",
    )


def lost_by_the_sampler(figures: Figures) -> Verdict | None:
    """Fast DPMF Section 6.6: what the sampler loses at ε = 100 and 250 per user, without a verdict;
    None where the figure is not kept."""
    name = "fast-dpmf/figure5"
    if name not in figures:
        return None
    said = []
    for way, words in (("printed", "as printed"), ("add/remove", "for add/remove")):
        series = f"SGLD, {way} conversion"
        free = Spot(name, series, "inf")
        lost = {e: _gain(figures, free, Spot(name, series, e)) for e in (100.0, 250.0)}
        said += [
            f"{gain.mean:+.4f} ± {gain.half:.4f} at ε = {e:g} {words}"
            for e, gain in lost.items()
            if gain
        ]
    return Verdict(
        "not measured",
        f"By `fedrec research figures {name}` on ml-1m, RMSE differs from that without a limit by "
        f"{'; '.join(said)} (ε per user). The paper has 33 and 100 times as many ratings, and says "
        "no margin for almost none; no finite chain has the guarantee: no verdict",
    )


def _gain(figures: Figures, better: Spot, worse: Spot) -> Interval | None:
    """By how much the RMSE of `better` is smaller, over the seeds that both have."""
    first = better.by_seed(figures)
    second = worse.by_seed(figures)
    shared = sorted(first.keys() & second.keys())
    return paired([second[s] for s in shared], [first[s] for s in shared]) if shared else None
