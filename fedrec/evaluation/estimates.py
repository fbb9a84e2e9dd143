"""Estimate of a model's quality from one noised sum over people, with its interval.

Of n people, each of whom has a value v in [0, 1] of the model, what is summed is (1, v - 1/2, v^2 -
1/2, ...), and each sum carries independent noise of std s. With N and S the first two noised sums,
the mean is 1/2 + S / N. To first order in 1 / n it is off by (e_S - (mean - 1/2) e_N) / n for the
noise, so that

    variance = V / N + s^2 (1 + (mean - 1/2)^2) / N^2,

V the variance of people, from the noised second moment, held to [0, mean (1 - mean)]: no variable
in [0, 1] varies by more (Bhatia, Davis 2000). The noise of V is about s / n, and adds s / n^2 to a
variance that has s^2 / n^2 already: little, as s is far above 1 wherever noise counts. The interval
is the mean and 1.96 roots of that variance to both sides: people are a sample of those whom the
model is for. Where N is below `LEAST_TOLD` s the first order says nothing, and the interval is all
of [0, 1].

Guarantee: none needed, post-processing of a release.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from fedrec.arrays import Float64s

LEAST_TOLD = 5.0
"""People over the noise's std, below which nothing is told: the interval would be as wide."""
WIDTH = 1.959964  # standard deviations on either side of 95% of a normal distribution


@dataclass(frozen=True)
class Interval:
    """A value in its own units and its 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        told = (f"{x:.3f}".removeprefix("0") for x in (self.value, self.low, self.high))
        return "{}, 95% interval {} to {}".format(*told)


@dataclass(frozen=True)
class Estimate:
    """What an evaluation says. Errors have the units of ratings, everything else lies in [0, 1].

    metric: "NDCG@20", or "RMSE". everybody: the same of what the model says to a person of whom it
    knows nothing. hit, everybody_hit: share of people whose row is among the first 20, 0 of
    ratings. gain: of people's own differences to the model that serves, positive where this one is
    better, on the scale of [-1, 1]; None where none serves.
    """

    metric: str
    model: Interval
    everybody: float
    people: int
    hit: float = 0.0
    everybody_hit: float = 0.0
    gain: Interval | None = None

    @property
    def words(self) -> str:
        """One line, for a person."""
        listed = "prediction" if self.metric == "RMSE" else "list"
        everybody = f"{self.everybody:.3f}".removeprefix("0")
        return (
            f"{self.metric} {self.model}, everybody's {listed} {everybody}, "
            f"of {self.people:,} people"
        )

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON, the words among them."""
        return {**asdict(self), "words": self.words}


def estimate(sums: Float64s, *, noise_std: float, unit: float = 0.0) -> Estimate:
    """From noised sums over people: their number, the model's value and its square, everybody's,
    and of lists hits of both; then, where a model serves, the paired gain and its square.

    noise_std: of each sum, in the same units. unit: of ratings, the error that counts as 1; 0 of
    lists."""
    people = float(sums[0])
    rated = bool(unit)
    own = 4 if rated else 6  # what stands before the gain
    told = people >= max(LEAST_TOLD * noise_std, 1.0)

    def mean(place: int) -> float:
        # noise leads past the ends
        return min(max(0.5 + float(sums[place]) / people, 0.0), 1.0) if told else 0.5

    def between(value: float, second: float, low: float, centre: float) -> Interval:
        if not told:
            return Interval(value, low, 1.0)
        most = (value - low) * (1 - value)
        varied = min(max(second - value**2, 0.0), most)
        noise = noise_std**2 * (1 + (value - centre) ** 2)
        half = WIDTH * math.sqrt(varied / people + noise / people**2)
        return Interval(value, max(value - half, low), min(value + half, 1.0))

    model = between(mean(1), mean(2), 0.0, 0.5)
    gain = None
    if len(sums) > own:
        paired = min(max(float(sums[own]) / people, -1.0), 1.0) if told else 0.0
        gain = between(paired, mean(own + 1), -1.0, 0.0)
    count = round(max(people, 0.0))  # noised, and printed as a number of people
    if rated:
        ends = (unit * math.sqrt(x) for x in (model.value, model.low, model.high))
        return Estimate("RMSE", Interval(*ends), unit * math.sqrt(mean(3)), count, gain=gain)
    return Estimate("NDCG@20", model, mean(3), count, mean(4), mean(5), gain)
