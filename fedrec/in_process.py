"""Transport in process: all users in one loop with one aggregator, with three, or with a trusted
curator, and the same messages as over a network."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.arrays import UInt64s
from fedrec.data.interactions import Interactions
from fedrec.federation.messages import (
    ClientStep,
    Curated,
    Question,
    Release,
    Reports,
    Shared,
)
from fedrec.federation.releases import (
    Charge,
    charged,
    in_real_units,
    parties,
    party_noise,
    release,
)
from fedrec.federation.reports import ExactSums, within_radius
from fedrec.privacy.accounting import Ledger
from fedrec.privacy.calibration import Plan
from fedrec.randomness import Noise
from fedrec.sharing.layout import CheckedRow, plain_numbers, plan_layout, with_own_noise
from fedrec.sharing.record import upload_bytes
from fedrec.sharing.servers import ShareSums, accepted, coin_term, opening, projection, total
from fedrec.sharing.shares import SEED_BYTES, fresh_seeds, share

_BATCH_BYTES = 2**26
"""Of plain numbers at a time; two shares are each as large."""


@dataclass
class Loopback:
    """All users and the aggregator in this process; the same messages as over a network.

    The ledger is charged before noise is drawn, and refuses what the plan does not hold. `bytes_up`
    counts what all devices have sent so far. Where the plan has three aggregators, three noises are
    added to plain sums, and bytes are those of shares, which are not made: the releases are
    `in_process.ThreeAggregators`'s.
    """

    interactions: Shared
    steps: Mapping[str, ClientStep]
    plan: Plan
    noise: Noise
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
        """What leaves the devices, in batches of consecutive users; sums are exact, so that their
        sizes do not show."""
        numbers = sum(spec.folds * spec.width for spec in question.blocks)
        most = max(1, min(self.users_per_batch, _BATCH_BYTES // max(numbers, 1)))
        for start in range(0, self.interactions.num_users, most):
            users = np.arange(start, min(start + most, self.interactions.num_users))
            yield self.steps[question.step](question, self.interactions.users_subset(users))


@dataclass
class ThreeAggregators:
    """Three aggregators, and the devices, plan and ledger of `devices`.

    Every report is shared, and each aggregator sums, noises and masks what it holds; the server
    adds three outputs. The releases are those of `Loopback` with the same plan, which adds the same
    three noises to plain sums, byte for byte. It is a simulation, which protects nobody from
    whoever runs it.
    """

    devices: Loopback

    def answer(self, question: Question) -> Release:
        """One round: share, check, sum, charge, noise, publish. Raises BudgetExceededError before
        any noise is drawn.

        Raises AssertionError where an honest report is refused.
        """
        shape = plan_layout(question, self.devices.plan)
        devices = self.devices
        keys = [os.urandom(SEED_BYTES) for _ in range(3)]
        ticket = str(question.round).encode()
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
    first = int(reports.user_ptr[start])
    last = int(reports.user_ptr[stop])
    blocks = tuple(
        part.part(
            part.coefficients[start:stop] if spec.rows == 1 else part.coefficients[first:last],
            slice(start * spec.folds, stop * spec.folds),
        )
        for spec, part in zip(question.blocks, reports.blocks, strict=True)
    )
    return Reports(reports.user_ptr[start : stop + 1] - first, reports.items[first:last], blocks)


@dataclass
class Curator:
    """A link like `Loopback`, whose sums are computed from the data itself by `curated`; noise and
    ledger are those of any release.

    `bytes_up` counts the data that was collected: four bytes each for user, item and value.
    """

    interactions: Interactions
    curated: Curated
    plan: Plan
    noise: Noise
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
