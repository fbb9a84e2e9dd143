"""Questions that a server may put to all who hold clicks, whoever carries them: one process,
Flower, or real processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fedrec.arrays import Int64s
from fedrec.data.impressions import Impressions
from fedrec.federation.messages import Link
from fedrec.news.reports_training import Collected
from fedrec.news.rounds import Course, FedAdam
from fedrec.privacy.bounded_mean import TopicTable
from fedrec.privacy.calibration import Plan
from fedrec.privacy.click_accounting import TrainingPlan


class NewsClients(Protocol):
    """All users of a training, numbered from 0."""

    @property
    def num_users(self) -> int:
        """How many there are: public."""

    def reports(self, topics: TopicTable, plan: TrainingPlan) -> Collected:
        """`additive`: every user's one report, noised on its device.

        Raises BudgetExceededError or ProtocolError where none comes."""

    def step(self, course: Course, users: Int64s, rule: FedAdam) -> tuple[Course, float]:
        """In rounds: see `rounds.Step`."""

    def link(self, plan: Plan, released: Sequence[str]) -> Link:
        """`central`: the way through the aggregator, which has released these before."""

    def data(self) -> Impressions:
        """`centralized`: everybody's clicks. Raises SettingsError where they stay on devices."""
