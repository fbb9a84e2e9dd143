"""PrivateRec's attention through a real server, at the B and p of the paper's Figures 5 and 7: AUC
over test impressions beside evaluation.

Protocol: that of `fedrec bench serving-news`, of `local` trained at epsilon 10 per click with
PLM-NR, one seed. A device encodes its history, hides each click with probability p behind the
anonymous news, clips and noises its attention on B basis vectors and sends these B numbers
(`serving.attention_form`). p is that of training too. Epsilons are per click (replace), of one
query.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedrec.errors import SettingsError
from fedrec.storage import finite
from fedrec_simulations.bench import serving_news
from fedrec_simulations.experiments.news import SERVED, Method
from fedrec_simulations.experiments.news_paper import BASES, FIGURE_5, PADDINGS
from fedrec_simulations.experiments.rows import Row, table

SHOWN = tuple(f"{epsilon}" for epsilon in SERVED)
"""Epsilons that evaluation has too."""


def _method(basis: int, padding: float) -> Method:
    more = {"padding": padding} if padding else {}
    return Method("local", 10.0, {"model": "plm-nr", "basis": basis, **more}, seeds=(1,))


POINTS = tuple(
    dict.fromkeys([*((B, p) for B in FIGURE_5 for p in PADDINGS), *((B, 0.0) for B in BASES)])
)
"""(B, p): Figure 5's, then those that Figure 7 adds."""


def run(
    data: str, *, quick: bool = False, folder: Path = Path("runs/bench-news")
) -> dict[str, Any]:
    """Every point as a JSON-able dict; `quick`: one with padding.

    Data "planted" is the small planted set. Raises SettingsError without data."""
    if not data:
        raise SettingsError(
            "the serving-attention benchmark needs a data folder",
            "Give MovieLens 1M: --data PATH/ml-1m.",
        )
    found = [
        {"padding": p}
        | serving_news.summary([serving_news.one_model(folder, data, _method(B, p), 1)])
        for B, p in (((3, 0.2),) if quick else POINTS)
    ]
    protocol = " ".join((__doc__ or "").split("\n\n")[1].split())
    furthest = max(row["most_score_difference"] for row in found)
    return dict(finite({"protocol": protocol, "points": found, "most_score_difference": furthest}))


def markdown(result: Row) -> str:
    """AUC through the server, with evaluation's in brackets."""
    points = result["points"]
    lines = [
        [
            f"{point['coefficients']}",
            f"{point['padding']:g}",
            *(_cell(point["served"][epsilon]) for epsilon in SHOWN),
        ]
        for point in points
    ]
    first = points[0]
    return (
        f"{table(('B', 'p', *(f'ε = {float(e):g}' for e in SHOWN)), lines)}\n\nAUC through the "
        f"server (in evaluation). {first['users']:,} test users, {first['impressions']:,} "
        f"impressions; the server's scores differ from the device's own arithmetic by at most "
        f"{result['most_score_difference']:.0e}."
    )


def _cell(row: Row) -> str:
    server, evaluation = row["server"]["mean"], row["evaluation"]["mean"]
    return f"{100 * server:.1f} ({100 * evaluation:.1f})"
