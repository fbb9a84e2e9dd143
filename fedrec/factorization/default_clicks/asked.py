"""Number of items that a report may ask of, from what is public."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedrec.factorization.default_clicks.model import ClickModel, PublicPriorModel
from fedrec.federation.coding import rounded_numbers, rounded_rows

ASKED_BITS = 0
"""Of numbers of the private model in the question (`coding.rounded_rows`). On 1,892 listeners x
17,632 artists at epsilon 1 and 5 the same blends are chosen as from float32."""


def asked_of(model: PublicPriorModel) -> dict[str, npt.NDArray[np.generic]]:
    """The public arrays that `report_worth` needs, rounded: numbers, and arrays with a row for each
    item."""
    private = model.private
    arrays: dict[str, npt.NDArray[np.generic]] = {"counts": rounded_numbers(private.counts)}
    arrays |= {f"public.{q}": P for q, P in enumerate(model.directions)}
    if isinstance(private, ClickModel):
        numbers = {"ridge": private.ridge, "confidence": private.confidence, "blend": private.blend}
        arrays |= {"vectors": private.vectors}
        arrays |= {name: np.array(number) for name, number in numbers.items()}
    if private.similar is not None:
        known = np.zeros(len(private.counts))
        known[private.similar.head] = 1
        for name, rows in (("left", private.similar.left), ("right", private.similar.right)):
            arrays[name] = np.zeros((len(known), rows.shape[1]), np.float32)
            arrays[name][private.similar.head] = rounded_rows(rows, bits=ASKED_BITS)
        arrays |= {"known": known, "spread": np.array(private.similar.spread)}
    return arrays
