"""Evaluation of a released model by people: a last question about rows that no report of the
training has seen.

Who has at least `LEAST_ROWS` rows holds one out: the newest where rows have times, of several the
one with the smallest keyed hash of its user's and item's ids, and that one of all where there are
none. It depends on nobody else. Every other report of the version is made without it (`kept`). At
the end each of these people asks the model with the other rows, on the device, and reports a few
numbers:

    clicks    (1, v - 1/2, v^2 - 1/2, e - 1/2, h - 1/2, g - 1/2): v NDCG@20 and h hit@20 of the held
              out item in the model's list without what is known already, e and g the same of the
              list for a person without history
    ratings   (1, v - 1/2, v^2 - 1/2, e - 1/2): v the squared error of the model, over that of half
              the scale and at most 1, e the same of its prediction for a person without history

and, where a model serves already, (d, d^2 - 1/2) with d how much better the new one does, v less
its v of clicks, the reverse of ratings. Who holds nothing out reports zeros.

Guarantee (user, add/remove): all centred entries lie in [-1/2, 1/2], the first and d in [-1, 1], so
that a person's numbers have L2 norm at most b = sqrt(1 + c / 4) of c centred entries, and of d
beside it sqrt(b^2 + 1 + 1/4). They are sent divided by that, scaled down to norm 1 where a false
array makes them longer (`federation.reports.bounded`); removing the person removes that report and
nothing else. Sensitivity 1. Which row is held out is decided by the person's own rows and ids, so
that all other reports depend on the person alone, too. The release is one of the plan: its share of
mu^2 is taken from the others', and the composition is exactly the guarantee.

What it says is `evaluation.estimates`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s
from fedrec.data.interactions import Interactions
from fedrec.evaluation.estimates import Estimate, estimate
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.rankers import Model, predictor, predictor_of, ranker_of
from fedrec.federation.messages import (
    ClientStep,
    Question,
    Release,
    ReleaseSpec,
    Reports,
    State,
)
from fedrec.federation.reports import RealBlock, block, bounded
from fedrec.numerics.segments import tie_keys
from fedrec.privacy.calibration import Plan
from fedrec.registry import kind_of, model_class

RELEASE = "evaluation"
STEP = "held-out/evaluation"
LEAST_ROWS = 5
"""Fewer rows are all needed to know a person by: of two, one would be half."""
LISTED = 20  # items of the list that is judged: NDCG@20
_KEY = b"which row is held out"
_OF_HEAD = ("left", "right")
"""Arrays with a row for each item of `head`: sent with a row for each of all, so that no array can
be shorter than the catalogue where compiled code reads it."""
_RANGE = "value_range"  # two numbers, sent one by one
Arrays = Mapping[str, npt.NDArray[np.generic]]


def held_out(mine: Interactions) -> npt.NDArray[np.bool_]:
    """(n,) which events are held out, one of each user who has enough."""
    draws = mine.draws(_KEY)
    when = np.zeros(len(mine), np.int64) if mine.times is None else -mine.times
    first = np.lexsort((draws, when, mine.users))[mine.user_ptr[:-1][_able(mine)]]
    chosen = np.zeros(len(mine), np.bool_)
    chosen[first] = True
    return chosen


def _able(mine: Interactions) -> npt.NDArray[np.bool_]:
    return np.asarray(np.diff(mine.user_ptr) >= LEAST_ROWS)


def evaluated_steps(steps: Mapping[str, ClientStep]) -> dict[str, ClientStep]:
    """These steps without what is held out, and the one that asks of it."""

    def kept(step: ClientStep) -> ClientStep:
        return lambda question, mine: step(question, mine.select(~held_out(mine)))

    return {name: kept(step) for name, step in steps.items()} | {STEP: report_evaluation}


def sent(model: Model, *, name: str) -> dict[str, npt.NDArray[np.generic]]:
    """The model as public arrays, each one number or with a row for each item: `sent_model` reads
    them. name: of what it is, before each array's own.

    Infinite numbers become the largest."""
    place = f"{name}.{kind_of(model)}."
    told = dict(model.arrays())
    for end, number in enumerate(np.asarray(told.pop(_RANGE, np.zeros(0))).tolist()):
        told[f"{_RANGE}.{end}"] = np.array(number)
    if "head" in told:
        head = np.asarray(told.pop("head"), np.int64)
        items = len(np.asarray(model.item_vectors))
        told["head"] = np.zeros(items)
        told["head"][head] = 1
        for array in _OF_HEAD:
            rows = np.zeros((items, told[array].shape[1]), np.float32)
            rows[head] = told[array]
            told[array] = rows
    return {f"{place}{array}": np.nan_to_num(numbers) for array, numbers in told.items()}


def sent_model(public: Arrays, *, name: str) -> Model:
    """The model that `sent` put into a question.

    Raises StopIteration where there is none: a client's rehearsal fails, and it refuses."""
    told = {array.removeprefix(f"{name}."): numbers for array, numbers in public.items()
            if array.startswith(f"{name}.")}  # fmt: skip
    kind = next(iter(told)).partition(".")[0]
    arrays = {array.removeprefix(f"{kind}."): numbers for array, numbers in told.items()}
    if f"{_RANGE}.0" in arrays:
        arrays[_RANGE] = np.array([float(arrays.pop(f"{_RANGE}.{end}")) for end in range(2)])
    if "head" in arrays:
        arrays["head"] = np.flatnonzero(arrays["head"])
        arrays |= {array: arrays[array][arrays["head"]] for array in _OF_HEAD}
    model: Model = model_class(kind).of_arrays(arrays)
    return model


def measured(mine: Interactions, model: Model, serving: Model | None = None) -> Float64s:
    """(num_users, c) the numbers of each user, undivided; zeros of who holds nothing out."""
    held = held_out(mine)
    who = np.flatnonzero(_able(mine))
    shown = mine.select(~held).users_subset(who)
    wanted = mine.items[held]
    one = _errors if mine.rated else _lists
    targets = np.asarray(mine.values[held], np.float64)
    own, *others = one(model, shown, wanted, targets)
    columns = [own - 0.5, own**2 - 0.5, *(other - 0.5 for other in others)]
    if serving is not None:
        gain = np.asarray(own - one(serving, shown, wanted, targets)[0], np.float64)
        gain = -gain if mine.rated else gain
        columns += [gain, gain**2 - 0.5]
    rows = np.zeros((mine.num_users, 1 + len(columns)))
    rows[who] = np.column_stack([np.ones(len(who)), *columns])
    return rows


def _nobody(like: Interactions) -> Interactions:
    """One user without events."""
    none = like.select(np.zeros(len(like), np.bool_))
    return replace(none, user_ptr=np.zeros(2, np.int64), user_words=np.zeros(1, np.uint64))


def _errors(
    model: Model, shown: Interactions, wanted: npt.NDArray[np.integer], targets: Float64s
) -> list[Float64s]:
    """Squared errors of the model and of its prediction for a person without history."""
    unit = _unit(shown.value_range)
    users = np.arange(shown.num_users)
    nobody = _nobody(shown)
    everybody = predictor_of(model, model.user_vectors(nobody), nobody)
    both = predictor(model, shown)(users, wanted), everybody(np.zeros_like(users), wanted)
    return [np.minimum(((targets - p) / unit) ** 2, 1.0) for p in both]


def _lists(
    model: Model, shown: Interactions, wanted: npt.NDArray[np.integer], targets: Float64s
) -> list[Float64s]:
    """NDCG of the model and of everybody's list, then hits of both."""
    ranker = ranker_of(model)
    V = np.ascontiguousarray(ranker.item_vectors, np.float64)
    U = np.asarray(ranker.user_vectors(shown), np.float64)
    everybody = V @ np.asarray(ranker.user_vectors(_nobody(shown)), np.float64)[0]
    keys = tie_keys(np.arange(len(V)))
    ranks = np.empty((2, shown.num_users))
    for k, item in enumerate(wanted):
        seen = shown.items[shown.user_ptr[k] : shown.user_ptr[k + 1]]
        # user by user: a report does not depend on the batch
        for way, scores in enumerate((V @ U[k], everybody.copy())):
            scores[seen] = -np.inf
            own = scores[item]
            # of equal scores as lists have them (`evaluation.toplists`)
            alike = (scores == own) & (keys < keys[item])
            ahead = np.count_nonzero((scores > own) | alike)
            ranks[way, k] = 1 + ahead if np.isfinite(own) else np.inf
    found = ranks <= LISTED
    gains = np.where(found, 1 / np.log2(1 + ranks), 0.0)
    return [*gains, *found.astype(np.float64)]


def _unit(value_range: tuple[float, float]) -> float:
    """The error of a rating that counts as 1: larger ones count as 1, too."""
    return (value_range[1] - value_range[0]) / 2


def longest(columns: int, *, paired: bool) -> float:
    """The largest norm of a person's numbers, so many in all."""
    centred = columns - 1 - paired
    return math.sqrt(1 + paired + centred / 4)


def _paired(question: Question) -> bool:
    return any(name.startswith("serving.") for name in question.public)


def reports_of(question: Question, rows: Float64s) -> Reports:
    """A bounded report for each row of numbers."""
    divided = rows / longest(rows.shape[1], paired=_paired(question))
    pointer = np.zeros(len(rows) + 1, np.int64)
    blocks = [RealBlock(np.ones(len(rows)), divided)]
    return bounded(pointer, np.zeros(0, np.int32), blocks, question.releases, scaling="clip")


def report_evaluation(question: Question, mine: Interactions) -> Reports:
    """Block "evaluation": the numbers of each user."""
    model = sent_model(question.public, name="model")
    serving = sent_model(question.public, name="serving") if _paired(question) else None
    with np.errstate(all="ignore"):  # of arrays that a false server made up
        return reports_of(question, measured(mine, model, serving))


@dataclass(frozen=True)
class EvaluatedRecipe:
    """A recipe with one more question after its last; else the recipe itself. serving: the model
    that the new one is compared with, None where there is none."""

    recipe: Any
    plan: Plan
    facts: PublicFacts
    serving: Model | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.recipe, name)

    def ask(self, state: State) -> Question | None:
        """The recipe's, then how well its model does."""
        if RELEASE in state:
            return None
        question: Question | None = self.recipe.ask(state)
        if question is not None:
            return question
        public = sent(self.recipe.model(state), name="model")
        if self.serving is not None:
            public |= sent(self.serving, name="serving")
        width = 4 if self.facts.rated else 6
        width += 0 if self.serving is None else 2
        release = ReleaseSpec(RELEASE, (block(RELEASE, "linear", rows=1, width=width),))
        return Question(int(state["round"]), STEP, public, (release,))

    def tell(self, state: State, question: Question, answer: Release) -> State:
        """The recipe's, or what was said of its model."""
        if question.step != STEP:
            told: State = self.recipe.tell(state, question, answer)
            return told
        found = {
            RELEASE: answer.values[RELEASE][0],
            f"{RELEASE}_std": np.array(answer.noise_std[RELEASE]),
        }
        return {**state, **found, "round": np.array(question.round + 1)}

    def model(self, state: State) -> Model:
        """The recipe's: what is asked of a model does not change it."""
        if RELEASE in state:
            left = {name: told for name, told in state.items() if not name.startswith(RELEASE)}
            state = {**left, "round": np.array(int(state["round"]) - 1)}
        model: Model = self.recipe.model(state)
        return model

    def evaluated(self, state: State) -> Estimate | None:
        """What people said of the model; None before they were asked."""
        if RELEASE not in state:
            return None
        sums = np.asarray(state[RELEASE], np.float64)
        length = longest(len(sums), paired=self.serving is not None)
        return self._told(sums * length, noise_std=float(state[f"{RELEASE}_std"]) * length)

    def exactly(self, state: State, mine: Interactions) -> Estimate:
        """What these people would say without noise: for a simulation."""
        return self._told(measured(mine, self.model(state), self.serving).sum(axis=0))

    def _told(self, sums: Float64s, *, noise_std: float = 0.0) -> Estimate:
        unit = _unit(self.facts.value_range) if self.facts.rated else 0.0
        return estimate(sums, noise_std=noise_std, unit=unit)


def evaluation_of(recipe: object, state: State) -> Estimate | None:
    """What people said of the model of a state; None where they are not asked."""
    evaluated: Callable[[State], Estimate | None] | None = getattr(recipe, "evaluated", None)
    return None if evaluated is None else evaluated(state)
