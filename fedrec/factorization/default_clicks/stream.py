"""A year of counts and pairs under one guarantee: in each of T weeks a model of all weeks so far,
by prefix sums with correlated noise (`privacy.correlated`).

Each week has two rounds. "counts": the items that are new to a person. "tastes": rows of the Gram z
z', those of items that are new to it and among the Gram's, each beside all that it has clicked so
far. Row j of either is thus in one report of a person in the year, that of the week in which it
clicked j, or in which j became one of the Gram's. A pair that came in one week is in both its rows,
any other in one of them. The server adds up the weeks, halves the Gram and its transpose, and
learns from both sums as `recipe.ClickRecipe` does.

The Gram has K places for the whole year. Half are given to the most clicked items of the first
week, the others week by week, so that items that come later get rows, too; none is taken back.

A person's squared norm is 1 over the year in each of both streams. In week t it may have used (t /
T)^`EARLY` of it, whatever it has, and a report uses all of it that no earlier report has. Who comes
late, comes with a history, stops or clicks every week thus follows one rule, which public numbers
and its own clicks decide.

Guarantee (user, add/remove): two streams of `privacy.correlated`, whose mu compose to the plan's.
Rows are disjoint by `entering`: each has one week. Squared norms are differences of one rising
function, and sum to 1 at most (`unused`). All of it is a function of the person's own clicks, of
public numbers and of what was released. In a simulation it holds of devices that are asked in this
order and with these numbers. Real clients keep in which week each click was theirs first, and take
week, horizon and rows from that record and from the plan, whatever they are asked
(`on_device`, `fedrec_client.streams`); a click that is gone keeps its week there, and has the value
0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fedrec.arrays import Float64s, Int64s
from fedrec.data.interactions import Interactions
from fedrec.factorization.default_clicks.item_item import LEAST_HEAD, MOST, reached
from fedrec.factorization.default_clicks.model import ClickModel, ItemItemModel, PublicPriorModel
from fedrec.factorization.default_clicks.recipe import ClickRecipe
from fedrec.factorization.default_clicks.settings import ClickSettings
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.messages import ClientStep, Question, Release, ReleaseSpec, Reports, State
from fedrec.federation.reports import RealBlock, block, bounded
from fedrec.numerics import segments
from fedrec.privacy.calibration import Plan
from fedrec.privacy.correlated import column_norm, factor, prefix_norms

EARLY = 0.5
"""Exponent of the part of the year's squared norm that may be used by week t."""
_SLACK = 1e-12
"""Norms are so much smaller, relatively, that rounding of the squares brings no year past 1."""
_VECTOR_STEPS = {"counts": 1.0, "tastes": 2.0**-11}
"""Grids of the vectors, which are (1,) and z: coarser than elsewhere, so that 2^40 steps of the
noise's finer lattice are std 512 of pairs, enough for an epsilon of .05."""
_SUMS = tuple(_VECTOR_STEPS)


def places_of(*, users: int, items: int, mu: float, horizon: int, exponent: float) -> int:
    """K: items of a Gram, as many as one of this mu can tell at the end of the year."""
    noise = column_norm(horizon) * float(prefix_norms(horizon)[-1])
    told = reached(users=users, noise_std=noise / mu, exponent=exponent)
    return int(min(max(min(told, MOST), LEAST_HEAD), items))


def edges_of(period: tuple[int, int], horizon: int) -> Int64s:
    """(T - 1,) times at which weeks end: T equal ones from the first to the last time."""
    first, last = period
    return first + (last + 1 - first) * np.arange(1, horizon) // horizon


def unused(weeks: Int64s, last: Int64s, horizon: int) -> Float64s:
    """Squared norm of a report in these weeks, the one before being of `last`; 0 for none."""
    factor(horizon)  # a horizon that a stranger says is bounded before anything is allocated
    used = (np.arange(horizon + 1) / horizon) ** EARLY
    return np.asarray(used[weeks] - used[last], np.float64)


def entering(
    public: Mapping[str, npt.NDArray[np.generic]], mine: Interactions, since: Int64s
) -> tuple[Int64s, Float64s]:
    """(n,) the week of each click's row, and (num_users,) the squared norm of each user's report.

    since: (m,) from when an item has a row; 0 for never, whose clicks have the week 0. Times are
    weeks where the question has no edges of them. Clicks without times, of invented people, are of
    the first week."""
    week = int(public["week"])
    clicked = np.ones(len(mine), np.int64) if mine.times is None else mine.times
    if "edges" in public and mine.times is not None:
        clicked = 1 + np.searchsorted(public["edges"], mine.times, side="right")
    rows = since[mine.items]
    enters = np.where(rows > 0, np.maximum(clicked, rows), 0)
    last = np.zeros(mine.num_users, np.int64)
    np.maximum.at(last, mine.users, np.where(enters < week, enters, 0))
    return enters, unused(np.full_like(last, week), last, int(public["horizon"]))


def on_device(question: Question, since: Int64s, horizon: int) -> Question:
    """The question as a device answers it: what decides norms, and which rows are new, is its own.
    since: (m,) from when an item has had a row here, whether it is asked for now or not."""
    public = {name: array for name, array in question.public.items() if name != "edges"}
    week = np.array(question.releases[0].week)
    public |= {"week": week, "horizon": np.array(horizon), "known": since}
    return replace(question, public=public)


def report_week_counts(question: Question, mine: Interactions) -> Reports:
    """Block "counts": the items of this week, all alike."""
    enters, share = entering(question.public, mine, np.ones(mine.num_items, np.int64))
    new = mine.select(enters == int(question.public["week"]))
    each = np.diff(new.user_ptr)
    lengths = np.sqrt(share / np.maximum(each, 1)) * (1 - _SLACK)
    blocks = [RealBlock(np.repeat(lengths, each) * new.values, np.ones((mine.num_users, 1)))]
    return bounded(new.user_ptr, new.items, blocks, question.releases, scaling="clip")


def report_week_tastes(question: Question, mine: Interactions) -> Reports:
    """Block "tastes": rows z_j z of the items j of this week, z of all that were clicked so far."""
    week = int(question.public["week"])
    omega = np.asarray(question.public["omega"], np.float64)
    asked = np.asarray(question.public["items"], np.int64)
    width = question.blocks[0].width
    since = np.zeros(mine.num_items, np.int64)
    since[asked] = np.asarray(question.public.get("since", week), np.int64)
    since = np.asarray(question.public.get("known", since), np.int64)
    place = np.full(mine.num_items, -1, np.int32)
    place[asked] = np.arange(len(asked))
    enters, share = entering(question.public, mine, since)
    told = (enters > 0) & (enters <= week) & (place[mine.items] >= 0)
    enters = enters[told]
    mine = mine.select(told)
    order = np.lexsort((place[mine.items], mine.users))  # a report names its items in rising order
    z = (omega[mine.items] * mine.values)[order]
    columns = place[mine.items][order]
    rows = sparse.csr_array((z, columns, mine.user_ptr), (mine.num_users, width))
    new = enters[order] == week
    pointer = np.concatenate([[0], np.cumsum(new)])[mine.user_ptr].astype(np.int64)
    squares = segments.squares(pointer, z[new]) * segments.squares(mine.user_ptr, z)
    factors = np.sqrt(share / np.where(squares > 0, squares, 1)) * (1 - _SLACK)
    blocks = [RealBlock(z[new] * np.repeat(factors, np.diff(pointer)), rows)]
    return bounded(pointer, columns[new], blocks, question.releases, scaling="clip")


CLIENT_STEPS: Mapping[str, ClientStep] = {
    "stream/counts": report_week_counts,
    "stream/tastes": report_week_tastes,
}


@dataclass(frozen=True)
class StreamRecipe:
    """The server of a year: post-processing of prefix sums. edges: as `edges_of`, None where weeks
    are those of the questions. places: K. weeks: that are asked for."""

    plan: Plan
    settings: ClickSettings
    facts: PublicFacts
    edges: Int64s | None
    places: int
    weeks: int

    def begin(self) -> State:
        """Nothing is known."""
        return {"round": np.array(0)}

    def ask(self, state: State) -> Question | None:
        """Counts, then pairs, of each week."""
        t = int(state["round"])
        week = t // 2 + 1
        if week > self.weeks:
            return None
        name = _SUMS[t % 2]
        public: dict[str, npt.NDArray[Any]] = {"week": np.array(week)}
        public["horizon"] = np.array(self.plan.horizon)
        rows, width = self.facts.num_items, 1
        if t % 2:
            _, asked = self._of_counts(state)
            public |= {"omega": asked.public["omega"], "items": state["items"]}
            rows = width = self.places
        if self.edges is not None:
            public |= {"edges": self.edges} | ({"since": state["since"]} if t % 2 else {})
        grid = block(name, "linear", rows=rows, width=width)
        blocks = (replace(grid, vector_step=_VECTOR_STEPS[name]),)
        return Question(t, f"stream/{name}", public, (ReleaseSpec(name, blocks, week=week),))

    def tell(self, state: State, question: Question, answer: Release) -> State:
        """The sum of the weeks so far; after counts, which items get the places that are free."""
        name = _SUMS[question.round % 2]
        week = question.releases[0].week
        found = {
            **state,
            "round": np.array(question.round + 1),
            f"sum.{name}": answer.values[name] + np.asarray(state.get(f"sum.{name}", 0.0)),
            f"std.{name}": np.array(
                answer.noise_std[name] * prefix_norms(self.plan.horizon)[week - 1]
            ),
        }
        if name == "counts":
            found |= self._placed(found, week)
            found["counts"] = self._of_counts(found)[0]["counts"]
        return found

    def model(self, state: State) -> ClickModel | ItemItemModel | PublicPriorModel:
        """The model of all weeks so far: item-item weights, popularity before there are pairs."""
        if "sum.counts" not in state:
            return self._once.model(state)
        learned, question = self._of_counts(state)
        if "sum.tastes" not in state or "faint" in learned:
            return self._once.model(learned)
        held = len(np.asarray(state["items"]))
        gram = np.asarray(state["sum.tastes"], np.float64)[:held, :held]
        # items that came with the counts of this very week have no pairs yet, only noise
        answer = Release({"tastes": gram}, {"tastes": float(state["std.tastes"])})
        return self._once.model(self._once.tell(learned, question, answer))

    @property
    def _once(self) -> ClickRecipe:
        return ClickRecipe(self.plan, self.settings, self.facts)

    def _of_counts(self, state: State) -> tuple[State, Question]:
        """What one training had learned of these counts, and its question for a Gram."""
        once = self._once
        begun = once.begin()
        asked = once.ask(begun)
        assert asked is not None
        answer = Release(
            {"counts": np.asarray(state["sum.counts"], np.float64)},
            {"counts": float(state["std.counts"])},
        )
        learned = {**once.tell(begun, asked, answer), "again": np.array(1)}
        if "items" in state:
            learned["head"] = state["items"]
        gram = once.ask({key: told for key, told in learned.items() if key != "faint"})
        assert gram is not None
        return learned, gram

    def _placed(self, state: State, week: int) -> dict[str, npt.NDArray[Any]]:
        """The most clicked items in the places that are free: half in the first week, of the others
        as many as of the year is over."""
        items = np.asarray(state.get("items", np.zeros(0)), np.int64)
        since = np.asarray(state.get("since", np.zeros(0)), np.int64)
        # upwards: one item at least has a place
        room = math.ceil(self.places * (1 + week / self.plan.horizon) / 2) - len(items)
        counted = np.asarray(state["sum.counts"], np.float64)[:, 0]
        order = np.argsort(-counted, kind="stable")
        more = order[~np.isin(order, items)][:room]
        return {
            "items": np.concatenate([items, more]),
            "since": np.concatenate([since, np.full(len(more), week)]),
        }
