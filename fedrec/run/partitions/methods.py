"""Methods under evaluation, baselines without privacy, and rounds of training, from sums over
parts.

Methods are values that cross to other machines: predictions of ratings and scores for lists of a
part's users.

Baselines: item counts, means, item and user biases. Sums are integers on a grid of 2^-20 of a
rating, so that they are the same in any order; biases are then off by less than one millionth.

Rounds: devices of a part report (map), reports are summed (merge), the ledger is charged and noise
is drawn once (answer).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s, Int64s
from fedrec.data.interactions import Interactions
from fedrec.data.kinds import Kind
from fedrec.data.splits import Fold
from fedrec.errors import RunError
from fedrec.evaluation.als import FewPeople, ItemItem
from fedrec.evaluation.toplists import Scores, dot_product, of_another_user, same_for_everyone
from fedrec.factorization.rankers import Model, predictor, ranker_of
from fedrec.federation.messages import Question, Release
from fedrec.federation.releases import Charge, Limits, release, with_limits
from fedrec.federation.reports import ExactSums
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger
from fedrec.privacy.calibration import Plan
from fedrec.randomness import Noise, SystemStreams
from fedrec.recipes import client_recipe, client_steps
from fedrec.run.job import Carried, Job, Runtime, rounds_of
from fedrec.run.partitions.parts import Engine, PartSplit, Told, on_grid

_BITS = 20
RIDGE = 5.0
DAMPING = 5.0
SWEEPS = 10
"""As in `evaluation.baselines`."""


class PartitionedMethod(Protocol):
    """One line of a comparison."""

    def predictions(self, fold: Fold) -> Float64s | None:
        """(n,) predicted values of the fold's targets; None where the method predicts none."""

    def scores(self, history: Interactions) -> Scores | None:
        """Scores of the whole catalogue for each user; None where the method makes no lists."""


@dataclass(frozen=True)
class ModelMethod:
    """A model. exchanged: every user gets another's vector, of the same part: the control of what a
    history is worth.

    Of a part with one user that is its own.
    """

    model: Model
    exchanged: bool = False

    def predictions(self, fold: Fold) -> Float64s | None:
        """See `PartitionedMethod`."""
        users = fold.targets.users
        n = fold.history.num_users
        if not fold.targets.rated:
            return None
        if self.exchanged:
            users = ((users.astype(np.int64) + n // 2) % n).astype(np.int32)
        return predictor(self.model, fold.history)(users, fold.targets.items)

    def scores(self, history: Interactions) -> Scores | None:
        """See `PartitionedMethod`."""
        ranker = ranker_of(self.model)
        found = dot_product(
            np.asarray(ranker.user_vectors(history), np.float32),
            np.asarray(ranker.item_vectors, np.float32),
        )
        return of_another_user(found, history.num_users) if self.exchanged else found


@dataclass(frozen=True)
class BiasMethod:
    """mean + b_j + c_k within the scale, c_k solved from the user's own history; user_ridge None
    for no c_k."""

    mean: float
    item_bias: Float64s
    user_ridge: float | None
    value_range: tuple[float, float]

    def user_biases(self, history: Interactions) -> Float64s:
        """(num_users,) ridge regression of each user's residuals."""
        if self.user_ridge is None:
            return np.zeros(history.num_users)
        residuals = history.values.astype(np.float64) - self.mean - self.item_bias[history.items]
        n = np.diff(history.user_ptr)
        return np.bincount(history.users, weights=residuals, minlength=history.num_users) / (
            n + self.user_ridge
        )

    def predictions(self, fold: Fold) -> Float64s | None:
        """See `PartitionedMethod`."""
        own = self.user_biases(fold.history)
        return np.clip(
            self.mean + self.item_bias[fold.targets.items] + own[fold.targets.users],
            *self.value_range,
        )

    def scores(self, history: Interactions) -> Scores | None:
        """See `PartitionedMethod`."""
        return None


@dataclass(frozen=True)
class PopularityMethod:
    """One list for everybody, by popularity, less their history. counts: (m,) train events of each
    item."""

    counts: npt.NDArray[np.int64]

    def predictions(self, fold: Fold) -> Float64s | None:
        """See `PartitionedMethod`."""
        return None

    def scores(self, history: Interactions) -> Scores | None:
        """See `PartitionedMethod`."""
        return same_for_everyone(self.counts)


@dataclass(frozen=True)
class ItemItemMethod:
    """Item-item similarities without privacy."""

    model: ItemItem | FewPeople

    def predictions(self, fold: Fold) -> Float64s | None:
        """See `PartitionedMethod`."""
        return None

    def scores(self, history: Interactions) -> Scores | None:
        """See `PartitionedMethod`."""
        return self.model.scores(history)


@dataclass
class Sizes:
    """users: of train. events: of train, validation and test. able: users with test events. counts
    (m,): train events of each item.

    totals (m,): sums of values by item, in units of 2^-20.
    """

    users: int
    train: int
    validation: int
    test: int
    able: int
    counts: Int64s
    totals: Int64s

    def merge(self, other: Sizes) -> None:
        """Add what other parts hold."""
        for name in ("users", "train", "validation", "test", "able"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.counts = self.counts + other.counts
        self.totals = self.totals + other.totals

    @property
    def mean(self) -> float:
        """Mean of the values of train."""
        return float(int(self.totals.sum()) / 2**_BITS / max(self.train, 1))


@dataclass(frozen=True)
class CountTask:
    """Counts everything that is counted once."""

    def map(self, part: PartSplit) -> Sizes:
        """See `protocol.Task`."""
        split = part.split
        train = part.split.train
        able = int(np.count_nonzero(np.diff(split.test.targets.user_ptr)))
        validation = len(split.validation.targets)
        test = len(split.test.targets)
        counts = np.bincount(train.items, minlength=train.num_items)
        totals = _by_item(train, train.values.astype(np.float64))
        return Sizes(train.num_users, len(train), validation, test, able, counts, totals)


@dataclass
class ItemTotals:
    """(m,) sums by item, in units of 2^-20."""

    totals: Int64s

    def merge(self, other: ItemTotals) -> None:
        """Add what other parts hold."""
        self.totals = self.totals + other.totals


@dataclass(frozen=True)
class SweepTask:
    """What the mean and users' biases, solved from the items' biases, leave of each item."""

    method: BiasMethod

    def map(self, part: PartSplit) -> ItemTotals:
        """See `protocol.Task`."""
        train = part.split.train
        own = self.method.user_biases(train)
        return ItemTotals(
            _by_item(train, train.values.astype(np.float64) - self.method.mean - own[train.users])
        )


def bias_methods(
    engine: Engine, sizes: Sizes, value_range: tuple[float, float], told: Told
) -> Iterator[tuple[str, BiasMethod]]:
    """Global mean, item mean and item + user bias, as `evaluation.baselines` defines them; the last
    takes nine passes over all parts."""
    mean = sizes.mean
    nothing = np.zeros(len(sizes.counts))
    flat = BiasMethod(mean, nothing, None, value_range)
    yield "global mean", flat
    residuals = sizes.totals / 2**_BITS - mean * sizes.counts
    yield "item mean", replace(flat, item_bias=residuals / (sizes.counts + DAMPING))
    full = replace(flat, item_bias=residuals / (sizes.counts + RIDGE), user_ridge=RIDGE)
    for _ in range(SWEEPS - 1):
        swept: ItemTotals = engine.reduce(SweepTask(full), told)
        full = replace(full, item_bias=swept.totals / 2**_BITS / (sizes.counts + RIDGE))
    yield "item + user bias", full


def _by_item(events: Interactions, values: npt.NDArray[np.float64]) -> Int64s:
    totals = np.zeros(events.num_items, np.int64)
    np.add.at(totals, events.items, on_grid(values, _BITS))
    return totals


@dataclass
class RoundSums:
    """Integer sums of reports, and the bytes that these devices have sent."""

    sums: ExactSums
    bytes_up: int

    def merge(self, other: RoundSums) -> None:
        """Add what other parts hold."""
        self.sums.merge(other.sums)
        self.bytes_up += other.bytes_up


@dataclass(frozen=True)
class RoundTask:
    """A question to the devices of a part. recipe: what `recipes.client_steps` reads. limits: of
    users who announced their own (`federation.releases`)."""

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
    noise: Noise
    ledger: Ledger
    charge: Charge | None
    told: Told
    limits: Limits
    users: int
    bytes_up: int = 0

    def answer(self, question: Question) -> Release:
        """One round over all parts.

        Raises RunError where a worker's sums are no sums of bounded reports of so many users."""
        task = RoundTask(self.recipe, self.kind, question, self.plan, self.limits)
        sums = self.engine.reduce(task, self.told)
        _require_possible(sums.sums.blocks, question, users=self.users)
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


def _require_possible(blocks: Sequence[Any], question: Question, *, users: int) -> None:
    """RunError on sums of another form, or longer than so many radii: a process of the cluster has
    made them. A user who is counted twice, or left out, does not show."""
    radii = [release.radius for release in question.releases for _ in release.blocks]
    for block, spec, radius in zip_longest(blocks, question.blocks, radii):
        sound = (
            isinstance(block, np.ndarray)
            and spec is not None
            and (block.dtype, block.shape) == (np.int64, (spec.rows, spec.columns))
        )
        # sums of rounded numbers: floats round below a part in 10^9
        if not sound or np.abs(block * spec.step).max(initial=0) > users * radius * (1 + 1e-9):
            raise RunError(
                f"a worker's sums of round {question.round} cannot be those of {users} users",
                "Look at the machines of the cluster: each must run this version, unchanged.",
            )


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
                job.facts.num_users,
            ),
        )

    return carry
