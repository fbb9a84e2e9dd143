"""Settings of the published recipe, and how its budget is divided over releases."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fedrec.data.kinds import KINDS, Kind
from fedrec.factorization.am_ssp import gradient

WeightRule = Literal["printed", "normalised", "clipped", "uniform", "constant"]


@dataclass(frozen=True)
class PublishedSettings:
    """The papers' hyper-parameters. `user_radius` is Gamma_u, `target_radius` Gamma_y (after
    centring, in rating units).

    `encoder` None is the id-only model. `weights`: "printed" is AM-SSP App. E, "clipped" Ada-DPALS
    eq. 12 and 16, "constant" 1 / sqrt(max_items) on every item that is kept: DPALS (Ada-DPALS Rem.
    3.5).
    `example_share` below 1 gives each resample a fresh batch of examples (mini-batch SSP1, Alg. 4),
    charged without amplification. `click_weight` is alpha of Hu et al.; `max_items` 0 keeps all
    items of a user. `own_means`, which no paper has: item vectors are (v_j, b_j / Gamma_u), users
    (u_k, Gamma_u), and a device takes its own mean off its ratings first (`local_stage`).
    `pseudo_inverse`: Ada-DPALS Alg. 1 l. 7 to the letter.
    """

    dimension: int
    steps: int
    user_ridge: float
    item_ridge: float
    weights: WeightRule
    weight_exponent: float
    descent: gradient.Descent
    resamples: int = 1
    example_share: float = 1.0
    user_radius: float = 1.0
    target_radius: float = 1.0
    count_limit: int = 50
    click_weight: float = 10.0
    max_items: int = 0
    sampling: Literal["uniform", "tail"] = "uniform"
    unit: Literal["user", "example"] = "user"
    own_means: bool = False
    pseudo_inverse: bool = False

    @property
    def width(self) -> int:
        """d, or d + 1 where an item's last coordinate is its bias."""
        return self.dimension + self.own_means

    @property
    def report_radius(self) -> float:
        """Gamma_u, or the norm of (u, Gamma_u) where u is longest: a vector and what biases are
        learnt by are then heard alike."""
        return self.user_radius * (math.sqrt(2) if self.own_means else 1.0)


def shares(settings: PublishedSettings, kind: Kind, *, count_share: float) -> dict[str, float]:
    """Shares of mu^2: counts, mean, then the outer steps equally, A and b of a step equally (the
    papers' choice)."""
    rest = 1 - count_share - 0.01
    names = _release_names(settings, kind)
    return {"counts": count_share, "mean": 0.01} | {name: rest / len(names) for name in names}


def _release_names(settings: PublishedSettings, kind: Kind) -> list[str]:
    names = [
        f"{part}/{s}/{r}"
        for s in range(settings.steps)
        for r in range(settings.resamples)
        for part in ("gram", "moment")
    ]
    return names + [f"gramian/{s}" for s in range(settings.steps) if not KINDS[kind].rated]


def half_range(value_range: tuple[float, float]) -> float:
    """Half the scale: the most that a value lies from its middle."""
    return (value_range[1] - value_range[0]) / 2
