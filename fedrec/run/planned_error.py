"""The error that a training will have, from what is public or may be guessed: users, epsilon, the
spread of ratings, and the error that a factorisation reaches without privacy.

A person's report has a bounded norm, so that what a training hears of everything at once is mu
times a power of the number of users, whatever a person rated. Let f be the RMSE without privacy and
s the standard deviation of ratings, which is the RMSE of one number for all. Privacy then takes
away a share of what learning gains, log(s / f), on a logarithmic scale:

    log(rmse / f) = log(s / f) * a * log(1 + exp(b) / (mu n^c))

mu is that of the guarantee (Dong, Roth, Su 2022). a, b and c are fitted to kept runs of the default
recipe (`python -m benchmarks plan`, benchmarks/results/plan.json), which are all of one kind of
data: ratings of films, with public features of films. How far off it was for a data set that it had
not been fitted to is `OFF`. Without features the same form was off by .024, so that nothing is said
of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from fedrec.arrays import Float64s
from fedrec.privacy.accounting import mu_for


@dataclass(frozen=True)
class Law:
    """a, b, c of the formula."""

    a: float
    b: float
    c: float

    def rmse(self, *, users: int, mu: float, spread: float, without_privacy: float) -> float:
        """At most the spread: that of one number for everything."""
        gain = math.log(spread / without_privacy)
        if math.isinf(mu):
            return without_privacy
        lost = self.a * float(np.logaddexp(0.0, self.b - math.log(mu) - self.c * math.log(users)))
        return without_privacy * math.exp(gain * min(lost, 1.0))


LAW = Law(a=0.1575, b=2.73, c=0.3557)
OFF = 0.013
"""On a scale of 1 to 5, for a source that it had not seen: the largest of the kept runs."""
FLOOR_SHARE = 0.80
FLOOR_OFF = 0.05
"""The error without privacy in spreads: the middle of the kept runs, and how far these lie from
it."""
SPREAD_SHARE = 0.275
"""The spread as a share of the scale: that of ratings of films."""


@dataclass(frozen=True)
class Expected:
    """An RMSE and how far off it may be, either way; in words what it rests on."""

    rmse: float
    off: float
    from_what: str


def expected(
    *,
    users: int,
    epsilon: float,
    delta: float,
    value_range: tuple[float, float],
    spread: float = 0.0,
    without_privacy: float = 0.0,
) -> Expected:
    """What test error to expect. spread and without_privacy: 0 where nobody knows them.

    Raises ValueError where the error without privacy is not below the spread."""
    low, high = value_range
    s = spread or SPREAD_SHARE * (high - low)
    f = without_privacy or FLOOR_SHARE * s
    if not 0 < f < s:
        raise ValueError(f"an error without privacy of {f:g} is not below the spread {s:g}")
    mu = mu_for(epsilon, delta) if math.isfinite(epsilon) else math.inf
    found = LAW.rmse(users=users, mu=mu, spread=s, without_privacy=f)
    unit = (high - low) / 4  # of the runs that it was fitted to
    off = OFF * unit
    words = ["" if without_privacy else "an error without privacy guessed from the spread"]
    words += ["" if spread else "a spread guessed from the scale"]
    if not without_privacy:
        off += FLOOR_OFF * s
    return Expected(found, off, " and ".join(filter(None, words)) or "what was given")


def fitted(rows: Sequence[Mapping[str, Any]]) -> Law:
    """By least squares of log(rmse): rows have users, mu, spread, without_privacy and rmse."""
    start = np.array([0.16, 2.8, 0.36])

    def misfit(parameters: Float64s) -> Float64s:
        law = Law(*map(float, parameters))
        return np.array([math.log(_of(law, row) / row["rmse"]) for row in rows])

    return Law(*map(float, least_squares(misfit, start, x_scale=start).x))


def left_out(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return, for each row, what a law fitted to the rows of the other sources says less what was
    found."""
    laws = {
        source: fitted([row for row in rows if row["source"] != source])
        for source in {row["source"] for row in rows}
    }
    return [_of(laws[row["source"]], row) - row["rmse"] for row in rows]


def _of(law: Law, row: Mapping[str, Any]) -> float:
    return law.rmse(
        users=row["users"],
        mu=row["mu"],
        spread=row["spread"],
        without_privacy=row["without_privacy"],
    )
