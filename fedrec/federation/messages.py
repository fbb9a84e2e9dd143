"""Messages and rounds of a federated training: reports of clients and releases of an aggregator as
integers on a public grid, and the one loop in which a server asks and learns.

A report is a list of blocks. A block of a user with n rated items is n integer coefficients and one
integer vector x of length `width`; it stands for the rows `c_j * x` ("linear") or the packed
symmetric matrices `c_j * x x'` ("outer") of those n items, and for zero elsewhere. A dense vector
is a block with one row, whose coefficient is 1. A block with `folds` > 1 has so many vectors a
user, and item j stands for `c_j * x_(j mod folds)`: what a user's other folds say of an item. Item
statistics (A_j, b_j) of AM-SSP eq. 5, item counts, residual sums and taste Grams have one fold,
cross-fitted residuals several.

Integers make sums exact: the order of arrival, the sharding and the process do not show in the
sum. `step` maps them to real units: real = integer * step.

A recipe is a pure state machine, so a run continues from any checkpoint to the same bytes, and the
same recipe runs in one process, in many, and over Flower: only the `Link` differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Int32s, Int64s
from fedrec.federation.block_kinds import BlockKind, kind_named

if TYPE_CHECKING:  # it brings scipy, which a light device does without
    from fedrec.privacy.calibration import Plan


COEFFICIENT_BITS = 15
VECTOR_BITS = 15
"""Magnitude bits of coefficients and of vector entries. An outer product then has 45 bits, so that
256 of them add up exactly in float64, and 2^17 users in int64."""
LEVELS = frozenset({"counts", "mean", "population", "moments", "gramian"})
"""Blocks that recipes divide by the number of users of the run, or expect in sums of later rounds:
how often an item is rated, the mean rating, second moments of users' vectors. Taken as they are,
sums of 85% of the users are a mean that is 15% too near the middle."""
State = Mapping[str, npt.NDArray[np.generic]]
"""Everything the server knows between rounds: named public arrays, ready for a checkpoint.

`round` counts answers."""


@dataclass(frozen=True)
class BlockSpec:
    """Public shape and grid of one block: `rows` items (1 if dense), vectors of `width` entries,
    steps in real units.

    folds: vectors of a user; the row of item j is made of number j mod folds. 1 where the block is
    dense.
    """

    name: str
    kind: str
    rows: int
    width: int
    coefficient_step: float
    vector_step: float
    folds: int = 1

    @property
    def form(self) -> BlockKind:
        """How coefficients and vectors make rows.

        Raises ValueError on a kind that is not known here."""
        return kind_named(self.kind)

    @property
    def columns(self) -> int:
        """Numbers per row: `width`, or the upper triangle of width x width in `numpy.triu_indices`
        order."""
        return self.form.columns(self.width)

    @property
    def step(self) -> float:
        """Real value of one unit of the accumulated integers."""
        return self.coefficient_step * self.vector_step**self.degree

    @property
    def degree(self) -> int:
        """How often a vector enters a row: twice in a symmetric matrix."""
        return self.form.degree

    def owners(self, user_ptr: Int64s, items: Int32s) -> Int64s:
        """(n,) which of the (num_users * folds,) vectors each event's row is made of."""
        users = np.repeat(np.arange(len(user_ptr) - 1, dtype=np.int64), np.diff(user_ptr))
        return users * self.folds + items % self.folds


@dataclass(frozen=True)
class ReleaseSpec:
    """Blocks that are noised together: one user's contribution to all of them has joint L2 norm at
    most `radius`.

    The norm of an outer block is the Frobenius norm of its matrices. `isometric` noise on outer
    blocks has std / sqrt(2) off the diagonal (svec is an isometry); without it the papers' iid
    upper triangle is drawn, for reproduction.

    Args:
        name: As in the plan.
        blocks: What is summed.
        radius: The largest joint L2 norm of one user's contribution, in real units.
        isometric: Whether noise off the diagonal of an outer block is smaller.
        week: Of a stream, from 1; 0 where the plan has no horizon.
    """

    name: str
    blocks: tuple[BlockSpec, ...]
    radius: float = 1.0
    isometric: bool = True
    week: int = 0

    @property
    def charged(self) -> bool:
        """Whether it is paid for: a stream is, as a whole, with its first week."""
        return self.week <= 1


@dataclass(frozen=True)
class Question:
    """What the server broadcasts in a round: public arrays, the client step that answers, and what
    will be released.

    Args:
        round: From 0.
        step: Name of the function that makes a device's report.
        public: Arrays that the step reads, by name.
        releases: What reports are summed for.
    """

    round: int
    step: str
    public: Mapping[str, npt.NDArray[np.generic]]
    releases: tuple[ReleaseSpec, ...]

    @property
    def blocks(self) -> tuple[BlockSpec, ...]:
        """All blocks of all releases, in report order."""
        return tuple(block for release in self.releases for block in release.blocks)


@dataclass(frozen=True)
class Release:
    """What the aggregator returns: noised sums in real units, (rows, columns) float64 by block
    name, and each block's noise std.

    For an outer block the std is that of the diagonal.

    Args:
        values: Noised sums by the block's name.
        noise_std: Standard deviation of their noise by the block's name.
    """

    values: Mapping[str, npt.NDArray[np.float64]]
    noise_std: Mapping[str, float]

    def standing_for(self, users: int, *, reported: int) -> Release:
        """`LEVELS` as of all `users` of a run, from the sums of so many who reported: unbiased
        where nobody is missing for their tastes.

        Noise grows by the same factor. Other blocks stay as they are: they are read beside levels,
        so what is missing is read as less evidence, and a step goes less far. With everybody there
        it is this release.

        Args:
            users: Of the run.
            reported: Of these, how many are in the sums.

        Returns:
            A new release.
        """
        if reported == users or reported <= 0 or users <= 0:
            return self
        factor = {name: users / reported if name in LEVELS else 1.0 for name in self.values}
        values = {name: array * factor[name] for name, array in self.values.items()}
        return Release(values, {name: std * factor[name] for name, std in self.noise_std.items()})


@dataclass(frozen=True)
class BlockReports:
    """One block of the reports of consecutive users.

    coefficients: (n,) int32 aligned with the reports' items, or (num_users,) for a dense block
    (rows = 1; 0 = silent). vectors: (num_users * folds, width) int32, user by user.
    """

    coefficients: Int32s
    vectors: Int32s

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of `vectors`."""
        return (len(self.vectors), self.vectors.shape[1])

    @property
    def told(self) -> Int32s:
        """All numbers of `vectors` that are not zero, in any shape, and zeros maybe."""
        return self.vectors

    def part(self, coefficients: Int32s, rows: slice = slice(None)) -> BlockReports:
        """Some of the vectors, or all, with other coefficients."""
        return BlockReports(coefficients, self.vectors[rows])


@dataclass(frozen=True)
class Reports:
    """Reports of consecutive users: user k names `items[user_ptr[k]:user_ptr[k + 1]]`; one entry of
    `blocks` per BlockSpec."""

    user_ptr: Int64s
    items: Int32s
    blocks: tuple[BlockReports, ...]

    @property
    def num_users(self) -> int:
        """Users in this batch."""
        return len(self.user_ptr) - 1

    @property
    def wire_bytes(self) -> int:
        """4 an item id, 2 a coefficient or vector entry (15 bits and a sign), 64 a user for report
        id, plan hash and round."""
        numbers = sum(len(block.coefficients) + math.prod(block.shape) for block in self.blocks)
        return 4 * len(self.items) + 2 * numbers + 64 * self.num_users


def quantise(
    values: npt.NDArray[np.floating], step: float | npt.NDArray[np.floating], *, bits: int
) -> Int32s:
    """Towards zero on the grid of `step`: a rounded number is never larger than the number, so no
    norm ever grows.

    Raises ValueError where a magnitude would need more than `bits` bits or is not a number.
    """
    grid = np.asarray(values, np.float64) / step
    # false for what is not a number
    if grid.size and not (float(grid.min()) > -(2.0**bits) and float(grid.max()) < 2.0**bits):
        raise ValueError(
            f"values up to {float(np.max(np.abs(values))):g} do not fit {bits} bits of step "
            f"{step!r}"
        )
    return grid.astype(np.int32)  # cuts towards zero


def triangle(width: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Row and column of each packed entry of a symmetric width x width matrix."""
    return np.triu_indices(width)


def step_for(bound: float, *, bits: int) -> float:
    """The finest power-of-two step that holds magnitudes up to `bound` > 0 in `bits` bits."""
    # a power of two: integers times a step are exact
    return 2.0 ** (math.floor(math.log2(bound)) + 1 - bits)


ClientStep = Callable[[Question, Any], Reports]
"""What runs on a device: a question and the device's own users' data (interactions, or impressions
of news) give bounded reports. A user's report depends on that user alone: on its data, and where a
step draws, on its id."""


Curated = Callable[[Question, Any, Any], Sequence[npt.NDArray[np.int64]]]
"""What a trusted curator computes of everybody's data for a question, with a source of noise of its
own: a sum for each block, in units of its grid, that moves by the release's radius at most when a
user leaves; or of a release of infinite mu, what is released."""


class Shared(Protocol):
    """Private data of users: interactions, or impressions of news."""

    @property
    def num_users(self) -> int:
        """Users, with or without data."""

    def users_subset(self, users: npt.NDArray[np.integer]) -> Any:
        """The given users' alone."""


class Recipe(Protocol):
    """A federated algorithm on the server's side: public data and releases in, questions and a
    model out."""

    @property
    def plan(self) -> Plan:
        """What the run promises, divided over its releases."""

    def begin(self) -> State:
        """The state before the first round: public data only."""

    def ask(self, state: State) -> Question | None:
        """The next question, or None when the model is trained."""

    def tell(self, state: State, question: Question, answer: Release) -> State:
        """The state after a release: post-processing only."""


class Link(Protocol):
    """A way to the clients and the aggregator."""

    def answer(self, question: Question) -> Release:
        """Broadcast, collect, sum, noise once.

        Raises BudgetExceededError where the ledger refuses."""


@dataclass(frozen=True)
class RoundDone:
    """Progress: the question just answered, what came back, and the state it led to."""

    question: Question
    answer: Release
    state: State


def told_before(
    recipe: Recipe, state: State, kept: Callable[[int], State | None]
) -> Mapping[str, npt.NDArray[np.generic]]:
    """Public arrays of the question whose answer led to `state`: what devices have when a run goes
    on.

    kept: the state after so many answers. {} before the first question, and where its state is not
    kept.
    """
    answers = int(state["round"])
    before = None if answers == 0 else recipe.begin() if answers == 1 else kept(answers - 1)
    question = None if before is None else recipe.ask(before)
    return {} if question is None else question.public


def train(recipe: Recipe, link: Link, state: State) -> Iterator[RoundDone]:
    """Run `recipe` over `link` from `state` to its end, yielding after every round.

    Keep the last state as the model."""
    while (question := recipe.ask(state)) is not None:
        answer = link.answer(question)
        state = recipe.tell(state, question, answer)
        yield RoundDone(question, answer, state)
