"""A `Link` with three aggregators in this process: a simulation, which protects nobody from whoever
runs it.

Every report is shared, and each aggregator sums, noises and masks what it holds; the server adds
three outputs. The releases are those of `in_process.loopback.Loopback` with the same plan, which
adds the same three noises to plain sums, byte for byte.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.arrays import UInt64s
from fedrec.federation.messages import BlockReports, Question, Release, Reports
from fedrec.federation.releases import charged, in_real_units, parties, party_noise
from fedrec.in_process.loopback import Loopback
from fedrec.sharing.checks import accepted, coin_term, opening, projection
from fedrec.sharing.layout import CheckedRow, plain_numbers, plan_layout, with_own_noise
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
        """One round: share, check, sum, charge, noise, publish. Raises BudgetExceededError before
        any noise is drawn.

        Raises AssertionError where an honest report is refused.
        """
        shape, devices = plan_layout(question, self.devices.plan), self.devices
        keys, ticket = [os.urandom(SEED_BYTES) for _ in range(3)], str(question.round).encode()
        aggregators = [ShareSums(shape) for _ in keys]
        few = max(1, _BATCH_BYTES // (8 * shape.length))
        for batch, reports in enumerate(devices.checked(question)):
            for start in range(0, reports.num_users, few):
                some = _consecutive(reports, question, start, min(start + few, reports.num_users))
                seeds = fresh_seeds(some.num_users)
                numbers = with_own_noise(
                    plain_numbers(some, shape), shape, [os.urandom(SEED_BYTES) for _ in seeds]
                )
                held = [share(numbers, seeds).held_by(number) for number in range(3)]
                if (
                    shape.checked
                    and not _accepted(
                        held, shape.checked, keys, ticket + f"/{batch}/{start}".encode()
                    ).all()
                ):
                    raise AssertionError(
                        f"client step {question.step!r} made a report that aggregators refuse"
                    )
                for aggregator, pair in zip(aggregators, held, strict=True):
                    aggregator.add(*pair)
        devices.ledger = charged(question, devices.plan, devices.ledger, charge=devices.charge)
        outputs = [
            aggregator.output(
                party_noise(question, devices.plan, source), (keys[i], keys[(i + 1) % 3]), ticket
            )
            for i, (aggregator, source) in enumerate(
                zip(aggregators, parties(devices.noise, devices.plan), strict=True)
            )
        ]
        return in_real_units(question, total(outputs), devices.plan)


def _accepted(
    held: Sequence[tuple[UInt64s, UInt64s]],
    checked: CheckedRow,
    keys: Sequence[bytes],
    batch: bytes,
) -> npt.NDArray[np.bool_]:
    """(n,) whom three aggregators accept, by what each holds."""
    C = projection([coin_term(key, batch, b"") for key in keys], checked.data.stop)
    return accepted(
        [
            opening(*pair, checked, C, i, (keys[i], keys[(i + 1) % 3]), batch)
            for i, pair in enumerate(held)
        ],
        checked,
    )


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
