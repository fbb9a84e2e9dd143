"""Chances of faults for parties in one process: what happens to messages, disks and processes by a
seed, or at one moment, and a count of it over many runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from fedrec_simulations.faults.machine import Fate
from fedrec_simulations.faults.script import Kind, Operation, Script, Setup


class ServerEndsError(Exception):
    """The server's process ends here."""


@dataclass
class Tally:
    """What came of many runs."""

    runs: int = 0
    released: int = 0
    stopped: list[int] = field(default_factory=list)
    struck: Counter[str] = field(default_factory=Counter)


class Chances(Fate):
    """Faults by chance at every step of a party, until `repaired`."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(Script(Setup(), ()))
        self.rng, self.repaired, self.counts = rng, False, Counter[str]()
        self.loss, self.crash = (
            float(rng.choice(rates)) for rates in ([0.0, 0.02, 0.1], [0.0, 0.01, 0.05])
        )
        self.full, self.end = (
            float(rng.choice(rates)) for rates in ([0.0, 0.0, 0.01], [0.0, 0.01])
        )
        self.silent = float(rng.choice([0.0, 0.0, 0.1]))
        self.kill = float(rng.choice([0.0, 0.0, 0.002, 0.01]))

    def happens(self, what: str, rate: float) -> bool:
        """One draw."""
        if self.repaired or self.rng.random() >= rate:
            return False
        self.counts[what] += 1
        return True

    def ends(self, where: str) -> bool:
        """Whether an aggregator's process ends before or after an answer."""
        return self.happens("kill", self.kill)

    def next(self, where: str) -> list[Operation]:
        """At a step of an aggregator's disk."""
        if self.happens("crash", self.crash):
            return [Operation(where, 0, Kind.CRASH, float(self.rng.integers(6)))]
        return [Operation(where, 0, Kind.FULL, 1.0)] if self.happens("full disk", self.full) else []


class OneKill(Chances):
    """No fault but one: the process of `party` ends at its moment number `at`. moments: how many it
    had."""

    def __init__(self, party: str, at: int) -> None:
        super().__init__(np.random.default_rng(0))
        self.loss = self.crash = self.full = self.end = self.silent = self.kill = 0.0
        self.party, self.at, self.moments = party, at, 0

    def ends(self, where: str) -> bool:
        """At that moment."""
        self.moments += where == self.party
        if now := where == self.party and self.moments == self.at:
            self.counts["kill"] += 1
        return now

    def next(self, where: str) -> list[Operation]:
        """At a step of an aggregator's disk."""
        return [Operation(where, 0, Kind.CRASH, 0.0)] if self.ends(where) else []
