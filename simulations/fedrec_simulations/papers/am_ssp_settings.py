"""Settings of AM-SSP with public features by epsilon, read from the scenarios of Figures 1 and 2.

They were chosen on the validation part of MovieLens 1M's first split; the paper prints none. Found for each epsilon by random draws and
moves of one to three settings at a time from the best so far and from the next epsilons' best: 58-193 settings for ratings, 9-29 for
clicks, the leaders judged by the mean of three noise seeds. Statistics were summed in float32 for that, without the integers of reports.
Nothing was chosen by test. An epsilon that is not here takes the nearest one's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedrec_simulations.papers.starts import Start

STARTS = {"ratings": "am_ssp_figure1", "clicks": "am_ssp_figure2"}
"""Scenarios that have a line for every epsilon."""


def _lines(name: str) -> Mapping[float, Mapping[str, Any]]:
    return {line.epsilon: line.model.model_dump(exclude_unset=True) for line in Start(name).figure.settings if line.curve == "AM-SSP"}


TUNED, TUNED_CLICKS = (_lines(name) for name in STARTS.values())
"""[model] by epsilon, of ratings (validation RMSE) and of clicks made of ratings of at least 4 (Recall@20 of held-out users)."""
