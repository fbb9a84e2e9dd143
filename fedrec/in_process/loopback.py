"""Transport in process: all users and the aggregator in one loop, with the same messages as over a
network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from fedrec.federation.messages import ClientStep, Question, Release, Reports, Shared
from fedrec.federation.releases import Charge, release
from fedrec.federation.reports import within_radius
from fedrec.federation.sums import ExactSums
from fedrec.privacy.calibration import Plan
from fedrec.privacy.ledger import Ledger
from fedrec.randomness import Streams, SystemStreams
from fedrec.sharing.layout import plan_layout
from fedrec.sharing.record import upload_bytes


@dataclass
class Loopback:
    """All users and the aggregator in this process; the same messages as over a network.

    The ledger is charged before noise is drawn, and refuses what the plan does not hold. `bytes_up`
    counts what all devices have sent so far. Where the plan has three aggregators, three noises are
    added to plain sums, and bytes are those of shares, which are not made: the releases are
    `in_process.three_aggregators.ThreeAggregators`'s.
    """

    interactions: Shared
    steps: Mapping[str, ClientStep]
    plan: Plan
    noise: Streams | SystemStreams
    ledger: Ledger
    users_per_batch: int = 16_384
    bytes_up: int = 0
    charge: Charge | None = None

    def answer(self, question: Question) -> Release:
        """One round over all users, batch by batch, in bounded memory."""
        sums = ExactSums(question.blocks)
        for reports in self.checked(question):
            sums.add(reports)
        answer, self.ledger = release(
            question, sums.blocks, self.plan, self.ledger, noise=self.noise, charge=self.charge
        )
        return answer

    def checked(self, question: Question) -> Iterator[Reports]:
        """What leaves the devices, held to its radius and counted."""
        shared = (
            None if self.plan.aggregation == "trusted" else plan_layout(question, self.plan).length
        )
        for reports in self.reports(question):
            if not within_radius(reports, question.releases).all():
                raise AssertionError(
                    f"client step {question.step!r} made a report larger than its radius"
                )
            self.bytes_up += (
                reports.wire_bytes if shared is None else reports.num_users * upload_bytes(shared)
            )
            yield reports

    def reports(self, question: Question) -> Iterator[Reports]:
        """What leaves the devices, in batches of consecutive users."""
        for start in range(0, self.interactions.num_users, self.users_per_batch):
            users = np.arange(start, min(start + self.users_per_batch, self.interactions.num_users))
            yield self.steps[question.step](question, self.interactions.users_subset(users))
