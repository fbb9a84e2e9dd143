"""Result of asking: what leaves a device, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.privacy.mixtures import Event

Float32s = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Asked:
    """n queries. sent (n, B) float32 leaves; raw (n, B) is the release; noise_std: of each of its entries; event: the price of one row."""

    sent: Float32s
    raw: Floats
    noise_std: float
    event: Event
