"""A `Link` with three aggregators in this process: a simulation, which protects nobody from whoever runs it.

Every report is shared, and each aggregator sums, noises and masks what it holds; the server adds three outputs. The releases are those of
`in_process.loopback.Loopback` with the same plan, which adds the same three noises to plain sums, byte for byte.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from fedrec.federation.messages import BlockReports, Question, Release, Reports
from fedrec.federation.releases import charged, in_real_units, parties, party_noise
from fedrec.in_process.loopback import Loopback
from fedrec.sharing.layout import layout, plain_numbers
from fedrec.sharing.ring import SEED_BYTES
from fedrec.sharing.servers import ShareSums, total
from fedrec.sharing.shares import fresh_seeds, share

_BATCH_BYTES = 2**26
"""Of plain numbers at a time; two shares are each as large."""


@dataclass
class ThreeAggregators:
    """Three aggregators, and the devices, plan and ledger of `devices`."""

    devices: Loopback

    def answer(self, question: Question) -> Release:
        """One round: share, sum, charge, noise, publish. Raises BudgetExceededError before any noise is drawn."""
        shape, devices = layout(question), self.devices
        keys = [os.urandom(SEED_BYTES) for _ in range(3)]
        aggregators = [ShareSums(shape) for _ in keys]
        few = max(1, _BATCH_BYTES // (8 * shape.length))
        for reports in devices.checked(question):
            for start in range(0, reports.num_users, few):
                some = _consecutive(reports, question, start, min(start + few, reports.num_users))
                sent = share(plain_numbers(some, shape), fresh_seeds(some.num_users))
                for number, aggregator in enumerate(aggregators):
                    aggregator.add(*sent.held_by(number))
        devices.ledger = charged(question, devices.plan, devices.ledger, charge=devices.charge)
        outputs = [
            aggregator.output(party_noise(question, devices.plan, source), (keys[i], keys[(i + 1) % 3]), str(question.round).encode())
            for i, (aggregator, source) in enumerate(zip(aggregators, parties(devices.noise, devices.plan), strict=True))
        ]
        return in_real_units(question, total(outputs), devices.plan)


def _consecutive(reports: Reports, question: Question, start: int, stop: int) -> Reports:
    """The reports of users start..stop, so that all users' numbers never lie in memory together."""
    first, last = int(reports.user_ptr[start]), int(reports.user_ptr[stop])
    blocks = tuple(
        BlockReports(
            part.coefficients[start:stop] if spec.rows == 1 else part.coefficients[first:last],
            part.vectors[start * spec.folds : stop * spec.folds],
        )
        for spec, part in zip(question.blocks, reports.blocks, strict=True)
    )
    return Reports(reports.user_ptr[start : stop + 1] - first, reports.items[first:last], blocks)
