"""Trusted curator in process: one party that is sent everybody's data as it is, for recipes that
no sum of reports can train."""

from __future__ import annotations

from dataclasses import dataclass

from fedrec.data.interactions import Interactions
from fedrec.federation.messages import Curated, Question, Release
from fedrec.federation.releases import Charge, release
from fedrec.privacy.calibration import Plan
from fedrec.privacy.ledger import Ledger
from fedrec.randomness import Streams, SystemStreams


@dataclass
class Curator:
    """A link like `Loopback`, whose sums are computed from the data itself by `curated`; noise and
    ledger are those of any release.

    `bytes_up` counts the data that was collected: four bytes each for user, item and value.
    """

    interactions: Interactions
    curated: Curated
    plan: Plan
    noise: Streams | SystemStreams
    ledger: Ledger
    charge: Charge | None = None
    bytes_up: int = 0

    def answer(self, question: Question) -> Release:
        """The question's blocks, as the curator releases them.

        Raises BudgetExceededError where the ledger refuses."""
        self.bytes_up = 12 * len(self.interactions)
        sums = self.curated(question, self.interactions, self.noise)
        answer, self.ledger = release(
            question, sums, self.plan, self.ledger, noise=self.noise, charge=self.charge
        )
        return answer
