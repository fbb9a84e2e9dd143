"""One round: devices of a part report (map), reports are summed (merge), the ledger is charged and
noise is drawn once (answer)."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

from fedrec.data.kinds import Kind
from fedrec.federation.messages import Question, Release
from fedrec.federation.personal import Limits, with_limits
from fedrec.federation.releases import Charge, release
from fedrec.federation.sums import ExactSums
from fedrec.in_process.loopback import Loopback
from fedrec.privacy.calibration import Plan
from fedrec.privacy.ledger import Ledger
from fedrec.randomness import Streams, SystemStreams
from fedrec.recipes import client_recipe, client_steps
from fedrec.run.job import Carried, Job, Runtime, rounds_of
from fedrec.run.partitions.parts import PartSplit
from fedrec.run.partitions.protocol import Engine, Told


@dataclass
class RoundSums:
    """Integer sums of reports, and the bytes that these devices have sent."""

    sums: ExactSums
    bytes_up: int

    def merge(self, other: RoundSums) -> None:
        """See `protocol.Sums`."""
        self.sums.merge(other.sums)
        self.bytes_up += other.bytes_up


@dataclass(frozen=True)
class RoundTask:
    """A question to the devices of a part. recipe: what `recipes.client_steps` reads. limits: of
    users who announced their own (`federation.personal`)."""

    recipe: str
    kind: Kind
    question: Question
    plan: Plan
    limits: Limits = field(default_factory=dict)

    def map(self, part: PartSplit) -> RoundSums:
        """Each user's bounded report, checked against its radius as an aggregator does, and
        summed."""
        steps = client_steps(self.recipe, self.kind)
        if self.limits:
            promised = self.plan.guarantee
            steps = {n: with_limits(s, self.limits, promised) for n, s in steps.items()}
        # which draws nothing here
        devices = Loopback(
            part.split.train, steps, self.plan, SystemStreams(), Ledger(self.plan.guarantee)
        )
        sums = ExactSums(self.question.blocks)
        for reports in devices.checked(self.question):
            sums.add(reports)
        return RoundSums(sums, devices.bytes_up)


@dataclass
class EngineLink:
    """A way to all devices of a partitioned data set, as `federation.messages.Link`."""

    engine: Engine
    recipe: str
    kind: Kind
    plan: Plan
    noise: Streams | SystemStreams
    ledger: Ledger
    charge: Charge | None
    told: Told
    limits: Limits
    bytes_up: int = 0

    def answer(self, question: Question) -> Release:
        """One round over all parts."""
        task = RoundTask(self.recipe, self.kind, question, self.plan, self.limits)
        sums = self.engine.reduce(task, self.told)
        # charged, then drawn once for the sums of all parts
        answer, self.ledger = release(
            question,
            sums.sums.blocks,
            self.plan,
            self.ledger,
            noise=self.noise,
            charge=self.charge,
        )
        self.bytes_up += sums.bytes_up
        return answer


def over(engine: Engine, told: Told) -> Runtime[Job, Carried]:
    """The runtime of a partitioned data set: the same state machine, messages and noise as
    `job.loopback`."""

    def carry(job: Job) -> Generator[Carried, None, None]:
        recipe = client_recipe(job.scenario)
        limits = job.scenario.privacy.limits
        yield from rounds_of(
            job,
            EngineLink(
                engine,
                recipe,
                job.facts.kind,
                job.prepared.plan,
                job.noise,
                job.ledger,
                job.charge,
                told,
                limits,
            ),
        )

    return carry
