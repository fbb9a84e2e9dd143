"""Loss of a factorisation model when it is asked privately: B, form and epsilon of a query, beside
the model's own exact ranking.

Each line: a form, and what a device sends; the unit of its epsilon; the sensitivity.

- directions: noised mean of B - 1 signed directions of its last H likes, and how many there are;
  click, replaced; diameter / H
- topics: the same over B soft clusters of item vectors; click, replaced; sqrt2 / H
- one vector: noised attention of its own exact vector (PrivateRec Alg. 2); the whole history
  replaced; sqrt2 theta

Measured on the first ten items that the user has not rated, from one noised query a user. "exact"
are the ten of the model's own local solve on all ratings of the history.

    fidelity    sum_p g(r_p) g(p) / sum_p g(p)^2, g(x) = 1 / log2(1 + x), r_p the exact rank of the
                p-th item, g = 0 beyond 10: 1 only for the same ten in the same order
    shared      how many of the exact ten are among the ten
    held_out    NDCG@10 of held-out ratings of at least `liked`

Choices are made on validation; test is measured for the form that was chosen, at every B.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s
from fedrec.data.splits import Fold
from fedrec.evaluation.ranking import evaluate_ranking
from fedrec.evaluation.toplists import Scores, dot_product, top_items
from fedrec.factorization.facts import public_facts
from fedrec.factorization.rankers import Model
from fedrec.news import attention, text_topics
from fedrec.privacy import bounded_mean
from fedrec.privacy.accounting import mu_for
from fedrec.privacy.bounded_mean import TopicTable
from fedrec.privacy.guarantee import Guarantee, non_private
from fedrec.randomness import Streams
from fedrec.run.data.datasets import load_dataset, load_split
from fedrec.serving.factorization_basis import (
    BasisSettings,
    Released,
    Synthetic,
    SyntheticSettings,
    counted_rows,
    factorization_basis,
    fitted,
    latest_liked,
    leading,
    synthetic_users,
)
from fedrec.serving.model_bundles import liked_of, released_of
from fedrec.settings import Scenario, load
from fedrec_research.runner import trained
from fedrec_research.trials import Asked, Row

EPSILONS = (math.inf, 20.0, 10.0, 5.0, 2.0, 1.0, 0.5, 0.1)
SIZES = (9, 17, 33)
K = 10
DELTA = 1e-5
THETA = 0.5
"""Of one vector: as in the news models."""
SHARPNESS = 4.0
"""How peaked its attention is, for user vectors of mean square 1."""


@dataclass(frozen=True)
class Scored:
    """Scores users (n, C) x items (m, C)' + bias (m,), as a server makes them."""

    users: Float64s
    items: npt.NDArray[np.floating]
    bias: Float64s

    @property
    def scores(self) -> Scores:
        """Return the scores that lists are made from."""
        return dot_product(
            self.users.astype(np.float32),
            self.items.astype(np.float32),
            item_bias=self.bias.astype(np.float32),
        )


Query = Callable[[float], Scored]
"""From an epsilon to what a server would rank by."""


@dataclass(frozen=True)
class Measured:
    """A fold with the model's exact lists: what every query is held against. model: what makes
    them, `model.ranker_of`."""

    model: Model
    fold: Fold
    liked: float
    users: Float64s
    exact: npt.NDArray[np.int32]

    @staticmethod
    def of(model: Model, fold: Fold, liked: float) -> Measured:
        """By the model's local solve."""
        U = np.asarray(model.user_vectors(fold.history), np.float64)
        return Measured(
            model, fold, liked, U, top_items(_by(model, U).scores, history=fold.history, k=K)
        )

    def by(self, U: Float64s) -> Scored:
        """By the model's own item vectors, for user vectors (n, D)."""
        return _by(self.model, U)

    def row(self, scored: Scored) -> dict[str, float]:
        """Means over users, with standard errors."""
        lists = top_items(scored.scores, history=self.fold.history, k=K)
        same = lists[:, :, None] == self.exact[:, None, :]
        gain = 1 / np.log2(np.arange(2, K + 2))
        fidelity = np.einsum("p,upr,r->u", gain, same, gain) / (gain**2).sum()
        targets = self.fold.targets.select(self.fold.targets.values >= self.liked)
        counts = np.bincount(self.fold.history.items, minlength=self.fold.history.num_items)
        found = evaluate_ranking(
            scored.scores,
            history=self.fold.history,
            targets=targets,
            train_counts=counts,
            cutoffs=(K,),
        ).at[K]
        return {
            "fidelity": float(fidelity.mean()),
            "fidelity_stderr": float(np.std(fidelity, ddof=1) / math.sqrt(len(fidelity))),
            "shared": float(same.any(2).sum(1).mean()),
            "held_out": found.ndcg,
            "held_out_stderr": found.stderr["ndcg"],
        }


def run(asked: Asked) -> Row:
    """Measure a model trained at epsilon 5 per user; for a small part one size, few synthetic
    users."""
    told = ("privacy.epsilon=5", "privacy.noise=seeded")
    place = "data.preset=small" if asked.path == "planted" else f"data.path={asked.path}"
    return of_scenario(load(None, [place, *told]), quick=asked.quick)


def of_scenario(scenario: Scenario, *, quick: bool) -> dict[str, Any]:
    """Measure the model of any scenario of ratings or clicks."""
    dataset = load_dataset(scenario)
    split = load_split(scenario, dataset)
    facts = public_facts(scenario.seed, dataset, split)
    made, state = trained(scenario, facts, split.train)
    liked = liked_of(scenario, split.train.kind, split.train.value_range)
    released = released_of(made.recipe, state, facts)
    validation, test = (
        Measured.of(released.ranker, fold, liked) for fold in (split.validation, split.test)
    )
    sizes, synthetic = (
        (SIZES[:1], SyntheticSettings(users=200)) if quick else (SIZES, SyntheticSettings())
    )
    basis = factorization_basis(
        released, BasisSettings(), synthetic, liked=liked, rng=Streams(1).numpy("serving-basis")
    )
    return {
        "data": {"users": split.train.num_users, "items": split.train.num_items, "liked": liked},
        "training": {
            "epsilon": scenario.privacy.epsilon,
            "delta": scenario.privacy.delta,
            "unit": "user",
            "neighbours": "add/remove",
        },
        "serving_delta": DELTA,
        "history": basis.history,
        "default": {"form": "directions", "coefficients": basis.table.topics},
        "validation": [
            *controls(validation),
            *_rows(validation, released, FORMS, sizes, synthetic),
        ],
        "test": [*controls(test), *_rows(test, released, FORMS[:1], sizes, synthetic)],
    }


def controls(on: Measured) -> list[dict[str, Any]]:
    """The exact lists themselves, and those of a user who has said nothing."""
    nothing = on.model.user_vectors(
        on.fold.history.select(np.zeros(len(on.fold.history), np.bool_))
    )
    return [
        {"form": name, **on.row(on.by(np.asarray(U, np.float64)))}
        for name, U in (("exact", on.users), ("no history", nothing))
    ]


def _rows(
    on: Measured,
    released: Released,
    forms: Sequence[Form],
    sizes: Sequence[int],
    synthetic: SyntheticSettings,
) -> Iterator[dict[str, Any]]:
    for form in forms:
        for B in sizes:
            ask = form.queries(on, released, replace(BasisSettings(), coefficients=B), synthetic)
            for epsilon in EPSILONS:
                said = "inf" if math.isinf(epsilon) else epsilon
                yield {
                    "form": form.name,
                    "coefficients": B,
                    "epsilon": said,
                    "unit": form.unit,
                    **on.row(ask(epsilon)),
                }


@dataclass(frozen=True)
class Form:
    """One line of the module's table."""

    name: str
    unit: str
    queries: Callable[[Measured, Released, BasisSettings, SyntheticSettings], Query]


def by_directions(
    on: Measured, released: Released, settings: BasisSettings, synthetic: SyntheticSettings
) -> Query:
    """What `fedrec export` makes of a factorization."""
    people = _people(on, released, settings, synthetic)
    return _additive(on, released, counted_rows(leading(released, people), settings), people)


def by_topics(
    on: Measured, released: Released, settings: BasisSettings, synthetic: SyntheticSettings
) -> Query:
    """Soft clusters of the item vectors."""
    rng = Streams(1).numpy("serving-topics")
    table = text_topics.text_topics(
        released.ranker.item_vectors, topics=settings.coefficients, rng=rng, temperature=0.15
    )
    return _additive(on, released, table, _people(on, released, settings, synthetic))


def _people(
    on: Measured, released: Released, settings: BasisSettings, synthetic: SyntheticSettings
) -> Synthetic:
    return Synthetic.of(
        released, settings, synthetic, liked=on.liked, rng=Streams(1).numpy("serving-basis")
    )


def _additive(on: Measured, released: Released, table: TopicTable, people: Synthetic) -> Query:
    basis = fitted(released, table, people)
    history = latest_liked(on.fold.history, places=basis.history, liked=on.liked)

    def ask(epsilon: float) -> Scored:
        key = Streams(1).key(f"serving/{epsilon:g}")
        report = bounded_mean.report(
            history, table, mu=mu_for(epsilon, DELTA), name="serving", key=key
        )
        return Scored(
            basis.sizes.read(report.values, noise_std=report.noise_std),
            basis.directions,
            basis.prior,
        )

    return ask


def by_one_vector(
    on: Measured, released: Released, settings: BasisSettings, synthetic: SyntheticSettings
) -> Query:
    """Attention over B centres of synthetic users, of the exact vector; read by least squares at
    the same noise."""
    V = np.asarray(on.model.item_vectors, np.float64)
    values, Q = np.linalg.eigh((V - V.mean(0)).T @ (V - V.mean(0)) / len(V))
    metric = Q * np.sqrt(np.maximum(values, 0))  # distances of user vectors as their scores differ
    events = synthetic_users(released, synthetic, rng=Streams(1).numpy("serving-basis"))
    U = np.asarray(on.model.user_vectors(events), np.float64)
    middle = U.mean(0)
    size = math.sqrt(float((((U - U.mean(0)) @ metric) ** 2).sum(1).mean()))
    known, asked = ((W - middle) @ metric / size for W in (U, on.users))
    centres = text_topics.kmeans(
        known, settings.coefficients, rng=Streams(1).numpy("serving-centres")
    )

    def ask(epsilon: float) -> Scored:
        guarantee = (
            non_private(DELTA, "click", "replace")
            if math.isinf(epsilon)
            else Guarantee(epsilon, DELTA, "click", "replace")
        )
        plan = attention.gaussian_plan(guarantee, theta=THETA)
        a, mine = (
            _shares(X, centres, plan, Streams(1).key(f"one/{name}/{epsilon:g}"))
            for name, X in (("fit", known), ("ask", asked))
        )
        X = np.column_stack([a, np.ones(len(a))])
        fit = np.linalg.solve(X.T @ X + 1e-3 * np.eye(X.shape[1]), X.T @ U)
        return on.by(np.asarray(np.column_stack([mine, np.ones(len(mine))]) @ fit, np.float64))

    return ask


def _shares(
    X: Float64s, centres: Float64s, plan: attention.GaussianAttention, key: bytes
) -> Float64s:
    alpha = attention.attention(X * SHARPNESS * math.sqrt(X.shape[1]), centres)
    noised, _ = attention.release(alpha, plan, key=key)
    return (
        attention.renormalise_softplus(noised)
        if plan.noise_std
        else attention.renormalise_relu(noised)
    )


def _by(model: Model, U: Float64s) -> Scored:
    return Scored(U, model.item_vectors, np.zeros(len(model.item_vectors)))


FORMS = (
    Form("directions", "click", by_directions),
    Form("topics", "click", by_topics),
    Form("one vector", "history", by_one_vector),
)
"""The default first."""
