"""Clients that hold clicks, as a server may ask all of them, whoever carries it: one process for
everybody here; Flower and real processes elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fedrec.arrays import Int64s
from fedrec.data.impressions import Impressions
from fedrec.encoders.news_model import NewsModel
from fedrec.federation.messages import Link
from fedrec.in_process import Loopback, ThreeAggregators
from fedrec.news.checkpoints import NOTHING, DeviceNoise, Kept
from fedrec.news.reports_training import Collected, collect
from fedrec.news.rounds import Course, FedAdam, LocalUpdate
from fedrec.news.trained import Catalogue
from fedrec.news.variant import of, rounds_of, schedule_of
from fedrec.privacy.accounting import Ledger
from fedrec.privacy.bounded_mean import TopicTable
from fedrec.privacy.calibration import Plan
from fedrec.privacy.click_accounting import TrainingPlan
from fedrec.randomness import Streams, SystemStreams, noise_from
from fedrec.settings import NewsScenario


@dataclass(frozen=True)
class LocalClients:
    """Everybody's clicks in this process: the same messages' content, without messages. kept: where
    answers are that are given once, whatever stops the training."""

    scenario: NewsScenario
    catalogue: Catalogue
    train: Impressions
    kept: Kept = NOTHING

    @property
    def num_users(self) -> int:
        """See `NewsClients`."""
        return self.train.num_users

    def reports(self, topics: TopicTable, plan: TrainingPlan) -> Collected:
        """See `NewsClients`."""
        return collect(
            self.train, topics, plan, history=self.scenario.news.history, noise=self._noise
        )

    def step(self, course: Course, users: Int64s, rule: FedAdam) -> tuple[Course, float]:
        """See `rounds.Step`: FedAdam as Flower has it."""
        model, update = self._device
        model.load_vector(course.parameters)
        gradient, loss = update(model, users, course.moments.rounds + 1)
        return course.moved(gradient.astype("f8"), rule), loss

    def link(self, plan: Plan, released: Sequence[str]) -> Link:
        """See `NewsClients`."""
        summed = of(self.scenario).summed
        assert summed is not None  # a variant without sums asks no aggregator
        ledger = Ledger(plan.guarantee, tuple(plan.event(name) for name in released))
        devices = Loopback(
            self.train,
            summed.steps(self.scenario),
            plan,
            self._source,
            ledger,
        )
        return ThreeAggregators(devices) if self.scenario.privacy.shares == "real" else devices

    def data(self) -> Impressions:
        """See `NewsClients`."""
        return self.train

    @cached_property
    def _device(self) -> tuple[NewsModel, LocalUpdate]:
        from fedrec.news.models import news_model

        form = rounds_of(self.scenario)
        passes = schedule_of(self.scenario, self.num_users).passes
        model = news_model(
            self.scenario,
            self.catalogue.news,
            self.catalogue.vectors,
            basis=form.basis(self.scenario),
        )
        return model, form.device(self.scenario, self.train, passes, self._noise)

    @property
    def _source(self) -> Streams | SystemStreams:
        return noise_from(self.scenario.privacy.noise, self.scenario.seed)

    @property
    def _noise(self) -> DeviceNoise:
        """Noise of users who are named by their numbers."""
        noise = DeviceNoise.numbered(self._source, self.num_users)
        return replace(noise, kept=self.kept)
