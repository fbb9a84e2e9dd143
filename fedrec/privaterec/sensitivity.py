"""Per-category sensitivity (Sec. 3.1): a user declares, publicly, categories that need no protection, and spends nothing on them.

The additive report in two parts: clicks on free categories are summed exactly, all others with noise. The label of a click on a free
candidate is told; all others answer among the protected candidates, by randomised response.

Guarantee of both: that of the plain report or label; unit "click", neighbours "replace" where both clicks, the one exchanged and the
one it is exchanged for, are of protected categories. Proof: the declaration is public. Neighbours have the same free clicks, so the
exact part, and which labels are told, are the same. The noised part is `additive.report` of the history with free clicks left out: one
term changes, from one row of a protected item to another. A label is told where no protected candidate was clicked, which is so in
both neighbours or in none; else one protected click is drawn, and answers among the same protected candidates with the same mechanism.

Not covered, and to be said with it: that a click was on a free category at all, how many were, and so how many places remain. Where one
candidate alone is protected, there is nothing to exchange its click for, and the answer names it.
Who declares everything free is told exactly and charged nothing; who declares nothing has exactly the plain report. Declaring what one
reads after the fact would make the declaration a function of the clicks: it comes first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedrec.data.impressions import Impressions
from fedrec.privacy.accounting import GaussianEvent
from fedrec.privacy.keystream import derive
from fedrec.privacy.selection import PureEvent, draw, randomised_response
from fedrec.privaterec.additive import Coefficients, Population, TopicTable, coefficients, decode, report
from fedrec.privaterec.labels import drawn_clicks

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Declarations:
    """What users declared. categories: (m,) the category of each item; free: (users, categories) bool, True needs no protection."""

    categories: Int64s
    free: Bools

    @property
    def protect_all(self) -> Bools:
        """(users,) whether nothing is declared free."""
        return np.asarray(~self.free.any(axis=1))

    @property
    def free_all(self) -> Bools:
        """(users,) whether everything is."""
        return np.asarray(self.free.all(axis=1))

    def of_clicks(self, users: npt.NDArray[np.integer], items: npt.NDArray[np.integer]) -> Bools:
        """Whether each item is free for its user; broadcasts. -1 (padding) is not: it stays in the protected part, where it adds 0."""
        return np.asarray(self.free[users, self.categories[items]] & (items >= 0))


@dataclass(frozen=True)
class SplitCoefficients:
    """exact: (n, B) the free clicks' share; noised: (n, B) the others', where `exempt` (n,) is False, else exactly 0.

    The coefficients are exact + noised; both are divided by the same H. `event` is the price of a row that is not exempt.
    """

    exact: Floats
    noised: Coefficients
    exempt: Bools

    @property
    def event(self) -> GaussianEvent:
        """What each protected click of a row costs."""
        return self.noised.event

    def decoded(self, over: Population) -> Floats:
        """(n, B) exact part plus posterior mean of the noised one; `over` is the population of protected parts."""
        return self.exact + np.where(self.exempt[:, None], 0.0, decode(self.noised, over))


@dataclass(frozen=True)
class SplitLabels:
    """places: (n,) reported; told: (n,) True where it is the truth on a free candidate. `event` is the price where it is not."""

    places: Int64s
    told: Bools
    event: PureEvent


def declarations(categories: tuple[str, ...], free: tuple[frozenset[str], ...]) -> Declarations:
    """From the items' categories and each user's set of free ones. Raises ValueError on a category that no item has."""
    names, index = np.unique(np.array(categories, dtype=np.str_), return_inverse=True)
    known = set(names.tolist())
    if unknown := set().union(*free) - known:
        raise ValueError(f"no item has category {min(unknown)!r}; there are {sorted(known)[:10]}")
    table = np.array([[name in mine for name in names.tolist()] for mine in free], np.bool_).reshape(len(free), len(names))
    return Declarations(index.astype(np.int64), table)


def split_report(history: Int32s, topics: TopicTable, declared: Declarations, *, mu: float, name: str, key: bytes) -> SplitCoefficients:
    """The additive report of (n, H) histories, user k's declaration in row k: mu-GDP per protected click replaced, free ones exact."""
    free = declared.of_clicks(np.arange(len(history))[:, None], history)
    noised = report(np.where(free, -1, history), topics, mu=mu, name=name, key=key)
    exempt = declared.free_all
    values = np.where(exempt[:, None], 0.0, noised.values)  # no click of theirs is in this part, whatever they clicked
    exact = coefficients(np.where(free, history, -1), topics)
    return SplitCoefficients(exact, Coefficients(values, noised.noise_std, noised.event), exempt)


def split_labels(impressions: Impressions, declared: Declarations, *, epsilon: float, key: bytes) -> SplitLabels:
    """Labels with free candidates told and the others randomised among themselves. Every impression needs a click."""
    ptr = impressions.candidate_ptr
    free = declared.of_clicks(np.repeat(impressions.users, np.diff(ptr)), impressions.candidates)
    guarded = np.concatenate([[0], np.cumsum(impressions.clicked & ~free)])
    told = np.diff(guarded[ptr]) == 0
    eligible = impressions.clicked & (~free | np.repeat(told, np.diff(ptr)))
    truth = drawn_clicks(replace(impressions, clicked=eligible), key=derive(key, "drawn"))
    if (truth < 0).any():
        raise ValueError(f"impression {int(np.argmin(truth))} has no click")
    places, event = truth.copy(), PureEvent("label", epsilon, told=0.0)
    protected = np.concatenate([[0], np.cumsum(~free)])
    rank = protected[ptr[:-1] + truth] - protected[ptr[:-1]]  # the click's number among the protected candidates
    sizes, where = protected[ptr[1:]] - protected[ptr[:-1]], np.flatnonzero(~free)
    for size in np.unique(sizes[~told]).tolist():
        those = np.flatnonzero(~told & (sizes == size))
        drawn, one = draw(rank[those], randomised_response(size, epsilon), name="label", key=derive(key, f"size/{size}"))
        places[those] = where[protected[ptr[those]] + drawn[:, 0]] - ptr[those]
        event = max(event, one, key=lambda e: e.told or 0.0)
    return SplitLabels(places, told, event)


def split_log_likelihood(probabilities: Floats, protected: Floats, labels: SplitLabels) -> Floats:
    """(n,) log P of each label up to a constant: log pi_y where told, else log(sum of pi over the protected + (e^epsilon - 1) pi_y).

    probabilities: (n,) the model's of the reported place; protected: (n,) its sum over all protected candidates.
    """
    if math.isinf(labels.event.epsilon):
        return np.log(probabilities)
    return np.log(np.where(labels.told, probabilities, protected + math.expm1(labels.event.epsilon) * probabilities))
