"""Limits that the operator of an aggregator sets: every bound that keeps one peer from holding
memory, time or the others' privacy."""

from __future__ import annotations

from dataclasses import dataclass

from fedrec.federation.report_batches import MAX_EVENTS_PER_USER


@dataclass(frozen=True)
class Limits:
    """Bounds of one aggregator. Raises ValueError where one is not positive.

    min_cohort: users that must have reported before anything is released. max_users_per_sender:
    users one client may enrol. max_users_per_batch, max_events_per_user, max_batch_bytes: of one
    batch; checking it takes about ten times its bytes for as long as it is checked. max_round_s:
    how long reports are taken at most, whatever the server asks for. max_accumulator_bytes: sums of
    all open rounds together; releasing a round takes about five times its sums for a moment.
    max_shares_bytes: of one of three aggregators, shares of all open rounds together, until all
    three agree on the users; on disk. allow_not_established: whether to serve plans that only
    reproduce a paper (`Guarantee.established` is False).
    """

    min_cohort: int = 100
    max_users_per_sender: int = 100_000
    max_users_per_batch: int = 4_096
    max_events_per_user: int = MAX_EVENTS_PER_USER
    max_batch_bytes: int = 16 * 2**20
    max_round_s: float = 3_600.0
    max_accumulator_bytes: int = 2**29
    max_shares_bytes: int = 2**34
    allow_not_established: bool = False

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, bool) and not value > 0:
                raise ValueError(f"{name} must be positive, found {value!r}")
