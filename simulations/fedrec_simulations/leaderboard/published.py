"""Published results as rows: printed in a paper, with the unit that the paper protects; never
ranked."""

from __future__ import annotations

import math

from fedrec.report.news import TABLES, PublishedRow
from fedrec_simulations.leaderboard.protocol import Protocol
from fedrec_simulations.leaderboard.rows import FORMAT, Row

_NOT_ESTABLISHED = "nominal, per round: fedrec/NOTATION.md says why it does not hold"
_NEWS = (
    "Liu et al. 2022 (PrivateRec), Tables 1 and 2: printed, of their own runs on MIND-small; "
    "Laplace noise, δ = 0, charged per round"
)


def published_rows(known: dict[str, Protocol]) -> list[Row]:
    """Of the protocols that are known: PrivateRec's tables on MIND-small, and the one number that
    AM-SSP prints of MovieLens 20M."""
    rows = [_of_news(row) for row in TABLES] if "mind-small" in known else []
    return rows + ([_dp_sgd()] if "ml-20m" in known else [])


def _of_news(row: PublishedRow) -> Row:
    named = {"AUC": "auc", "MRR": "mrr", "nDCG@5": "ndcg@5", "nDCG@10": "ndcg@10"}
    private = math.isfinite(row.training)
    return Row.model_validate(
        {
            "format": FORMAT,
            "source": "published",
            "protocol": "mind-small",
            "system": f"{row.method}, {row.model.upper()}",
            "data": {"name": "MIND-small"},
            "split": {"kind": "given"},
            "guarantee": {
                "unit": "click", "neighbours": "replace", "epsilon": row.training, "delta": 0.0,
                "established": not private,
                "note": _NOT_ESTABLISHED if private else "",
            },
            "serving_epsilon": row.serving,
            "metrics": {named[name]: [value] for name, value in row.metrics.items()},
            "reference": _NEWS,
        }
    )  # fmt: skip


def _dp_sgd() -> Row:
    return Row.model_validate(
        {
            "format": FORMAT,
            "source": "published",
            "protocol": "ml-20m",
            "system": "DP-SGD on the whole model",
            "data": {"name": "MovieLens 20M"},
            "split": {"kind": "held-out-users"},
            "guarantee": {
                "unit": "user",
                "neighbours": "add/remove",
                "epsilon": 20.0,
                "delta": 8e-6,
                "established": True,
            },
            "metrics": {"recall_capped@20": [0.206]},
            "reference": (
                "Krichene et al. 2024 (AM-SSP), E.1: printed in the text, of their own split; a "
                "trusted curator holds all ratings"
            ),
        }
    )
