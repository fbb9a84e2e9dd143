"""Result of asking: what leaves a device, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass

from fedrec.arrays import Float32s, Float64s
from fedrec.privacy.mixtures import Event


@dataclass(frozen=True)
class Asked:
    """n queries. sent (n, B) float32 leaves; raw (n, B) is the release; noise_std: of each of its
    entries; event: the price of one row."""

    sent: Float32s
    raw: Float64s
    noise_std: float
    event: Event
