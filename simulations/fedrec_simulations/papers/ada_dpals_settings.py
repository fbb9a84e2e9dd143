"""Settings of DPALS and Ada-DPALS by kind of data, method and epsilon, read from the scenarios of Figures 1 and 2.

They were chosen on the validation part of MovieLens 1M's first split; the paper names none in its text. Found by moves along one setting
at a time from a common start (for ratings at epsilon 5 after ten random draws); then every method tried the best two of each. That is
13-36 settings a line, each judged by the mean of two noise seeds, or of one before the last comparison of clicks. Nothing was chosen by
test. An epsilon that is not here takes the nearest one's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedrec_simulations.papers.starts import Start

DELTA = 1e-5
STARTS = {"ratings": "ada_dpals_figure1", "clicks": "ada_dpals_figure2"}
"""Scenarios that have a line for every method and epsilon."""

TUNED: Mapping[tuple[str, str, float], Mapping[str, Any]] = {
    (kind, line.curve, line.epsilon): line.model.model_dump(exclude_unset=True)
    for kind, name in STARTS.items()
    for line in Start(name).figure.settings
}
