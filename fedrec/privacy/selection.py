"""One of K symbols in, a few of them out: randomised response and subset selection, exactly
epsilon-private.

Mechanism. Of K symbols, report a set S of w: one that holds the truth x with weight e^epsilon, one
that does not with weight 1 (Ye & Barg 2018, eq. 9). w = 1 is K-ary randomised response (Kairouz,
Oh, Viswanath 2014), which tells the truth with probability e^epsilon / (e^epsilon + K - 1).

Guarantee: (epsilon, 0)-DP; unit "click", neighbours "replace": the symbol exchanged for another.
Proof: for every x the weights of all S add up to the same Z = C(K-1, w-1) e^epsilon + C(K-1, w), so
P_x(S) is e^epsilon / Z or 1 / Z and no two inputs differ by more than a factor e^epsilon. Hence for
inputs drawn at random, too: mixtures of the P_x stay within [1/Z, e^epsilon/Z], whatever the two
laws of x. The coin that leaves the truth out is rounded up (`uniform.coins`), so that the factor is
never larger; `largest_log_ratio(output_table(...))` shows it by enumeration.

Use. P(S) = (1 + (e^epsilon - 1) sum_{j in S} pi_j) / Z when x ~ pi: the likelihood that training
maximises.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s, Int64s
from fedrec.privacy import keystream
from fedrec.privacy.guarantee import Neighbours, Unit
from fedrec.privacy.keystream import derive


@dataclass(frozen=True)
class PureEvent:
    """One (epsilon, 0)-private release, infinite without privacy.

    Between the two worst inputs the privacy loss is +epsilon with probability `told`, -epsilon with
    `told` e^-epsilon, else zero. Without `told` it is that of a coin, e^epsilon / (e^epsilon + 1),
    which dominates every epsilon-private release (Kairouz, Oh, Viswanath 2017, Thm 3.1).
    """

    name: str
    epsilon: float
    told: float | None = None
    unit: Unit = "click"
    neighbours: Neighbours = "replace"

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise ValueError(
                f"a release has epsilon > 0 (inf without noise), found {self.epsilon!r}"
            )
        # but for the rounding of `exp` and of what computed `told`
        if self.told is not None and not 0 <= self.told <= 1 / (1 + math.exp(-self.epsilon)) * (
            1 + 1e-12
        ):
            raise ValueError(
                f"told is a probability, at most that of a coin of epsilon {self.epsilon!r}; "
                f"found {self.told!r}"
            )

    @property
    def losses(self) -> tuple[tuple[float, float], ...]:
        """(privacy loss, its probability), for the worst two inputs."""
        told = 1 / (1 + math.exp(-self.epsilon)) if self.told is None else self.told
        lied = told * math.exp(-self.epsilon)
        return (self.epsilon, told), (-self.epsilon, lied), (0.0, max(0.0, 1 - told - lied))


@dataclass(frozen=True)
class Selection:
    """Report `size` of `symbols`, favouring the truth by e^epsilon.

    Infinite epsilon: the truth is always among them."""

    symbols: int
    size: int
    epsilon: float

    def __post_init__(self) -> None:
        if not 1 <= self.size <= self.symbols or not self.epsilon > 0:
            raise ValueError(f"need 1 <= size <= symbols and epsilon > 0, found {self}")

    @property
    def keep(self) -> float:
        """Probability that the truth is reported."""
        return 1 - self.omit

    @property
    def omit(self) -> float:
        """Probability that it is not, (K - w) / (w e^epsilon + K - w): to full precision however
        small."""
        others = (self.symbols - self.size) * math.exp(-self.epsilon)
        return others / (self.size + others)

    @property
    def information(self) -> float:
        """Chi-squared information about one of K equally likely symbols: w (K - w) (e - 1)^2 / (w e
        + K - w)^2, e = e^epsilon."""
        K = self.symbols
        w = self.size
        inverse = math.exp(-self.epsilon)
        return w * (K - w) * ((1 - inverse) / (w + (K - w) * inverse)) ** 2

    def event(self, name: str) -> PureEvent:
        """Its price.

        For inputs x, x' the loss is +epsilon where S holds x and not x': w (K - w) / (K - 1) / (w +
        (K - w) e^-epsilon)."""
        K = self.symbols
        w = self.size
        told = w * (K - w) / max(K - 1, 1) / (w + (K - w) * math.exp(-self.epsilon))
        return PureEvent(name, self.epsilon, told)


def randomised_response(symbols: int, epsilon: float) -> Selection:
    """Report one symbol: best for large epsilon."""
    return Selection(symbols, 1, epsilon)


def subset_selection(symbols: int, epsilon: float) -> Selection:
    """Report the number of symbols with the largest `information`: next to K / (e^epsilon + 1) (Ye
    & Barg 2018, Prop. III.3)."""
    ideal = symbols * math.exp(-epsilon) / (1 + math.exp(-epsilon))
    sizes = {min(max(size, 1), symbols) for size in (math.floor(ideal), math.ceil(ideal))}  # both
    return max(
        (Selection(symbols, size, epsilon) for size in sorted(sizes)), key=lambda s: s.information
    )


def draw(
    truth: npt.NDArray[np.integer], mechanism: Selection, *, name: str, key: bytes
) -> tuple[Int64s, PureEvent]:
    """(n, size) reported symbols, ascending, for (n,) true ones; and the price of one row.

    Raises ValueError on a symbol outside 0 .. symbols - 1.
    """
    x = np.asarray(truth, np.int64)
    if len(x) and not 0 <= x.min() <= x.max() < mechanism.symbols:
        raise ValueError(f"symbols are 0 .. {mechanism.symbols - 1}, found {x.min()} .. {x.max()}")
    lies = keystream.coins(len(x), probability=mechanism.omit, key=derive(key, "lies"))
    K = mechanism.symbols
    w = mechanism.size
    others = (
        keystream.subsets(len(x), members=min(w, K - 1), of=K - 1, key=derive(key, "others"))
        if K > 1
        else np.empty((len(x), 0), np.int64)
    )
    others += others >= x[:, None]  # the K - 1 symbols that are not the truth
    reported = others if w < K else np.concatenate([others, x[:, None]], 1)
    reported[~lies, -1] = x[~lies]
    return np.sort(reported, 1), mechanism.event(name)


def output_table(mechanism: Selection) -> Float64s:
    """(K, C(K, w)) probabilities of every set, in the order of `itertools.combinations`, for every
    truth."""
    K = mechanism.symbols
    w = mechanism.size
    holds = np.array([[x in S for S in itertools.combinations(range(K), w)] for x in range(K)])
    within = mechanism.keep / math.comb(K - 1, w - 1)
    without = mechanism.omit / max(math.comb(K - 1, w), 1)
    return np.where(holds, within, without)


def largest_log_ratio(table: npt.NDArray[np.floating]) -> float:
    """The exact epsilon of (inputs, outputs) probabilities: max log P_x(o) / P_x'(o); infinite
    where a support tells inputs apart."""
    possible = table[:, table.max(0) > 0]
    low = possible.min(0)
    high = possible.max(0)
    return math.inf if (low == 0).any() else float(np.log(high / low).max())
