"""Named sources of randomness: seeded streams for experiments, the operating system or its kept
secret for deployed noise.

`streams.numpy("split")` and `streams.key("noise", round=3)` depend on the seed, the name and the
round alone, so a stream is the same in one process, in many, and after a resumption.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np


@dataclass(frozen=True)
class Streams:
    """Randomness derived from one seed. Reproducible, therefore not for deployed noise.

    Args:
        seed: Public, or a secret of whoever repeats an experiment.
    """

    seed: int

    def key(self, name: str, *, round: int = 0) -> bytes:
        """32 bytes that belong to (seed, name, round).

        Args:
            name: Of the stream.
            round: Of the training.

        Returns:
            The key.
        """
        return hashlib.sha256(f"fedrec/1/{self.seed}/{name}/{round}".encode()).digest()

    def numpy(self, name: str, *, round: int = 0) -> np.random.Generator:
        """A NumPy generator that belongs to (seed, name, round).

        Args:
            name: Of the stream.
            round: Of the training.

        Returns:
            A new generator at the stream's beginning.
        """
        return generator_of(self.key(name, round=round))


def generator_of(key: bytes) -> np.random.Generator:
    """The NumPy generator of a stream's key, which tells nothing of its seed's other streams."""
    return np.random.Generator(np.random.Philox(key=np.frombuffer(key[:16], dtype=np.uint64)))


@dataclass(frozen=True)
class SystemStreams:
    """Randomness of the operating system: every call is fresh, nothing can be replayed."""

    def key(self, name: str, *, round: int = 0) -> bytes:
        """32 fresh bytes, whatever the name."""
        return os.urandom(32)


def noise_from(source: Literal["seeded", "system"], seed: int) -> Streams | SystemStreams:
    """Where noise comes from, by the value of `privacy.noise`."""
    return Streams(seed) if source == "seeded" else SystemStreams()


@dataclass(frozen=True)
class SecretStreams:
    """Randomness derived from 32 secret bytes: a device that keeps them draws the same again, and
    nobody else can."""

    secret: bytes = field(repr=False)

    def key(self, name: str, *, round: int = 0) -> bytes:
        """32 bytes that belong to (secret, name, round)."""
        return hmac.digest(self.secret, f"fedrec/1/{name}/{round}".encode(), "sha256")


@dataclass(frozen=True)
class WeekStreams:
    """Randomness of a stream's weeks, each derived from 32 secret bytes of its own, which an
    aggregator keeps."""

    weeks: Mapping[int, bytes] = field(repr=False)

    def key(self, name: str, *, round: int = 0) -> bytes:
        """32 bytes that belong to (secret of the week `round`, name). Raises KeyError on another
        week."""
        return SecretStreams(self.weeks[round]).key(name, round=round)


Noise = Streams | SystemStreams | SecretStreams | WeekStreams
"""Where an aggregator's noise comes from: of a stream, never fresh."""
