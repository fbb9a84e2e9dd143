"""PrivateRec's attention through a real server, at the B and p of the paper's Figures 5 and 7: AUC
over test impressions beside evaluation.

Protocol: that of `fedrec research measure serving-news`, of `local` trained at epsilon 10 per click
with PLM-NR, one seed. A device encodes its history, hides each click with probability p behind the
anonymous news, clips and noises its attention on B basis vectors and sends these B numbers
(`serving.attention_form`). p is that of training too. Epsilons are per click (replace), of one
query.
"""

from __future__ import annotations

from fedrec.storage import finite
from fedrec_research.news import Method
from fedrec_research.news_paper import BASES, FIGURE_5, PADDINGS
from fedrec_research.quality import serving_news
from fedrec_research.trials import Asked, Row, paragraph

POINTS = tuple(
    dict.fromkeys([*((B, p) for B in FIGURE_5 for p in PADDINGS), *((B, 0.0) for B in BASES)])
)
"""(B, p): Figure 5's, then those that Figure 7 adds."""


def _method(basis: int, padding: float) -> Method:
    more = {"padding": padding} if padding else {}
    return Method("local", 10.0, {"model": "plm-nr", "basis": basis, **more}, seeds=(1,))


def run(asked: Asked) -> Row:
    """Every point; of a small part one with padding; data "planted" is the small planted set."""
    found = [
        {"padding": p} | serving_news.summary([serving_news.one_model(asked, _method(B, p), 1)])
        for B, p in (((3, 0.2),) if asked.quick else POINTS)
    ]
    furthest = max(row["most_score_difference"] for row in found)
    about = {"protocol": paragraph(__doc__), "most_score_difference": furthest}
    return dict(finite(about | {"points": found}))
