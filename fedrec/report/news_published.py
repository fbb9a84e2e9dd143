"""What the PrivateRec paper prints for MIND (Liu et al. 2022, Tables 1 and 2), in shares of 1
instead of percent.

Its promises are nominal: Laplace noise, one round, a sensitivity and a gradient whose errata are in
fedrec/NOTATION.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedrec.news.variant import require
from fedrec.privacy.guarantee import Guarantee, non_private


@dataclass(frozen=True)
class PublishedRow:
    """One row: epsilons of training and serving, and the four metrics."""

    model: str
    method: str
    training: float
    serving: float
    metrics: dict[str, float]

    @property
    def name(self) -> str:
        """For a table of methods."""
        return f"paper, on MIND: {self.method}, {self.model.upper()}"

    @property
    def note(self) -> str:
        """How it was served."""
        return (
            "served without noise"
            if math.isinf(self.serving)
            else f"served at nominal ε = {self.serving:g}"
        )

    def guarantee(self, delta: float) -> Guarantee:
        """What the paper claims."""
        if math.isinf(self.training):
            return non_private(delta, "click", "replace")
        return Guarantee(
            self.training, delta, "click", "replace", established=False, note="published, per round"
        )


def published_rows(data: str, variant: str, model: str) -> tuple[PublishedRow, ...]:
    """Rows of Tables 1 and 2 for MIND: beside any run on MIND, and beside the paper's own variants
    on other data too."""
    beside = data == "MIND" or require(variant).encoders
    return tuple(row for row in TABLES if row.model == model) if beside else ()


def _row(model: str, method: str, training: float, serving: float, *percent: float) -> PublishedRow:
    names = ("AUC", "MRR", "nDCG@5", "nDCG@10")
    return PublishedRow(
        model, method, training, serving, {n: p / 100 for n, p in zip(names, percent, strict=True)}
    )


_FREE = math.inf
TABLES = (
    _row("naml", "centralized", _FREE, _FREE, 65.35, 31.36, 33.82, 39.55),
    _row("naml", "FedRec", _FREE, _FREE, 63.04, 29.93, 32.08, 37.75),
    _row("naml", "DP-FedRec", 10, _FREE, 55.31, 24.88, 25.91, 31.52),
    _row("naml", "PrivateRec", 10, _FREE, 57.51, 26.27, 27.76, 33.34),
    _row("naml", "FedRec", _FREE, 10, 50.32, 22.75, 23.41, 28.94),
    _row("naml", "DP-FedRec", 10, 10, 50.11, 22.69, 23.31, 28.83),
    _row("naml", "PrivateRec", 10, 10, 57.52, 26.39, 27.88, 33.45),
    _row("nrms", "centralized", _FREE, _FREE, 65.82, 31.68, 34.29, 39.99),
    _row("nrms", "FedRec", _FREE, _FREE, 62.80, 29.59, 31.66, 37.32),
    _row("nrms", "DP-FedRec", 10, _FREE, 54.59, 24.75, 25.64, 31.28),
    _row("nrms", "PrivateRec", 10, _FREE, 58.32, 26.56, 27.93, 33.67),
    _row("nrms", "FedRec", _FREE, 10, 50.23, 22.79, 23.44, 28.98),
    _row("nrms", "DP-FedRec", 10, 10, 50.19, 22.71, 23.34, 28.87),
    _row("nrms", "PrivateRec", 10, 10, 57.00, 26.15, 27.49, 32.74),
    _row("plm-nr", "centralized", _FREE, _FREE, 67.08, 32.49, 35.21, 40.94),
    _row("plm-nr", "FedRec", _FREE, _FREE, 66.05, 31.72, 34.28, 40.05),
    _row("plm-nr", "DP-FedRec", 10, _FREE, 54.87, 24.45, 25.51, 31.18),
    _row("plm-nr", "PrivateRec", 10, _FREE, 58.75, 26.70, 28.22, 33.90),
    _row("plm-nr", "FedRec", _FREE, 10, 50.59, 22.61, 23.18, 28.78),
    _row("plm-nr", "DP-FedRec", 10, 10, 50.03, 22.17, 22.70, 28.26),
    _row("plm-nr", "PrivateRec", 10, 10, 58.69, 26.37, 27.75, 33.57),
)
"""All rows for MIND. FedRec is the paper's DP-FedRec at infinite epsilon."""
