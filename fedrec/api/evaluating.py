"""Evaluation of a model on a test set, beside controls without privacy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from html import escape
from numbers import Integral
from typing import Any, Protocol

import polars as pl
from rich.console import Console

from fedrec.api.datasets import TestSet
from fedrec.api.habits import Answering, answering
from fedrec.api.promises import PrivacyGuarantee, html_table
from fedrec.api.released import Released
from fedrec.data.interactions import Dataset as Source
from fedrec.data.splits import Split, require_unseen
from fedrec.errors import DataError, SettingsError
from fedrec.evaluation.controls import Verdict, in_one_line
from fedrec.evaluation.ranking import METRICS, ListStatistics, further_metrics
from fedrec.factorization.facts import public_facts
from fedrec.numerics.threads import one_blas_thread
from fedrec.report import wording
from fedrec.run.outcomes import Outcome, baselines
from fedrec.run.outcomes import evaluate as measured
from fedrec.settings import validated


@dataclass(frozen=True, repr=False)
class Evaluation(Answering):
    """What a model is worth on test rows.

    Args:
        model: The name of its class.
        guarantee: Of the model.
        outcome: Metrics of the model.
        controls: Those of methods without privacy, on the same rows.
        simple: Those of simple private recipes at the model's epsilon, whose models are
            dropped.
        asked: Names of the metrics that were asked for; of all where empty.

    >>> import fedrec
    >>> train, test = fedrec.Dataset.planted("small").split()
    >>> model = fedrec.ItemBias(noise="seeded").fit(train)
    >>> found = fedrec.evaluate(model, test, ranking=False)
    >>> [verdict.sentence for verdict in found.verdicts][:1]
    ['RMSE 0.8458 is better than global mean (0.9609).']
    """

    model: str
    guarantee: PrivacyGuarantee
    outcome: Outcome
    controls: Mapping[str, Outcome]
    simple: Mapping[str, Outcome] = field(default_factory=dict)
    asked: tuple[str, ...] = ()

    @property
    def metrics(self) -> dict[str, float | int | None]:
        """The model's metrics by name: rmse and mae; ndcg@20, recall@20, coverage@20, novelty@20
        and more for lists; those that were asked for, where any were."""
        return self._of(self.outcome)

    def _of(self, outcome: Outcome) -> dict[str, float | int | None]:
        found = outcome.metrics()
        return {name: found.get(name) for name in self.asked} if self.asked else found

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The model beside each control, paired by user: better, not clearly better, or no
        better."""
        return self.outcome.verdicts

    @property
    def frame(self) -> pl.DataFrame:
        """A row for each method: method, epsilon (null without privacy), and the metrics."""
        rows = [{"method": self.model, "epsilon": self.guarantee.epsilon, **self.metrics}]
        rows += [
            {"method": name, "epsilon": math.inf, **self._of(outcome)}
            for name, outcome in self.controls.items()
        ]
        rows += [
            {"method": name, "epsilon": self.guarantee.epsilon, **self._of(outcome)}
            for name, outcome in self.simple.items()
        ]
        return pl.DataFrame(rows, infer_schema_length=None)

    @property
    def answer(self) -> str:
        """What all verdicts come to, in one line; empty without controls."""
        return in_one_line(self.verdicts)

    @property
    def _rows(self) -> list[tuple[str, ...]]:
        """Controls, then the model, as the metrics of `headline` have it."""
        own = f"{self.guarantee.epsilon:g}" if math.isfinite(self.guarantee.epsilon) else "–"
        methods = {name: (outcome, "–") for name, outcome in self.controls.items()}
        methods |= {name: (outcome, own) for name, outcome in self.simple.items()}
        return [
            (
                name,
                *(wording.number(outcome.metrics().get(m) or math.nan) for m in self.headline),
                promised,
            )
            for name, (outcome, promised) in {**methods, self.model: (self.outcome, own)}.items()
        ]

    def __repr__(self) -> str:
        table = wording.aligned(("method", *self.headline, "epsilon"), self._rows)
        return "\n".join(filter(None, (table, self.answer, repr(self.guarantee))))

    def _repr_html_(self) -> str:
        table = html_table(("method", *self.headline, "epsilon"), self._rows)
        every = "".join(f"<li>{escape(verdict.sentence)}</li>" for verdict in self.verdicts)
        fold = f"<details><summary>Every comparison</summary><ul>{every}</ul></details>"
        words = "".join(f"<p>{escape(said)}</p>" for said in (self.answer, repr(self.guarantee)))
        return table + words + (fold if every else "")

    @property
    def headline(self) -> dict[str, float]:
        """The metrics that a person looks at first: those asked for, or rmse and mae of ratings;
        ndcg and recall at the longest cutoff."""
        lists = (
            [f"{name}@{max(self.outcome.ranking.at)}" for name in ("ndcg", "recall_capped")]
            if self.outcome.ranking
            else []
        )
        found = self.metrics
        return {
            name: float(value)
            for name in self.asked or ("rmse", "mae", *lists)
            if (value := found.get(name)) is not None
        }


class Measurable(Protocol):
    """A trained `Recommender`, as it is measured."""

    _evaluated: tuple[Source, Split] | None

    @property
    def released(self) -> Released:
        """What it consists of."""


@answering
def evaluate(
    model: Measurable,
    test: TestSet,
    *,
    k: Sequence[int] = (10, 20),
    controls: bool = True,
    ranking: bool = True,
    metrics: Sequence[str] | None = None,
) -> Evaluation:
    """Measure a model on test rows.

    Args:
        model: Trained, or loaded; of a loaded one the test set must have the catalogue that it was
            trained on.
        test: The second of what `Dataset.split` returns.
        k: Lengths of the lists that are measured.
        controls: Also measure means, popularity, item-item similarities and ALS without privacy,
            the model with users exchanged, and dp-bias or dp-item-item at the model's epsilon (of
            at most 2,000,000 events). Of new items, which none of these know: random order.
        ranking: Of ratings: measure lists over the whole catalogue too. Of clicks they always are.
        metrics: Names of those to show, in any case; all without them. rmse, mae; of lists, at
            every k or at one ("ndcg@10"), ndcg, recall, precision, mrr, hit_rate,
            average_precision, coverage, gini, novelty, diversity, mean_popularity and the
            training's, train_popularity.

    Returns:
        The metrics of the model and of everything beside it.

    Raises:
        SettingsError: The test set has another catalogue or kind of events, or k is empty.
        LeakageError: The model was trained on test rows: on another split, or on the whole data.
        DataError: `test` is no test set.

    >>> import fedrec
    >>> train, test = fedrec.Dataset.planted("small").split()
    >>> model = fedrec.ItemBias(noise="seeded").fit(train)
    >>> list(fedrec.evaluate(model, test, k=10, controls=False).headline)
    ['rmse', 'mae', 'ndcg@10', 'recall_capped@10']
    """
    cutoffs = cutoffs_of(k)
    require_test_set(test)
    asked = _asked(metrics, cutoffs, test.split.test.targets.rated, ranking)
    released = model.released
    if released.item_ids != test.source.catalogue.item_ids:
        raise SettingsError(
            "the test set has other items than the model",
            "Evaluate model.with_items(data), which lists new items too."
            if test.split.kind == "new-items"
            else "Evaluate on a split of the data that the model was trained on.",
        )
    _require_same_kind(released, test)
    trained = model._evaluated  # of a loaded model nobody knows
    if trained is not None:
        require_untrained(trained[1], test)
    with one_blas_thread():
        rivals = None
        simple: Mapping[str, Outcome] = {}
        if controls:
            rivals = controls_of(
                test, cutoffs, ranking=ranking, seed=int(released.settings.get("seed", 1))
            )
            simple = _simple_of(test, cutoffs, released)
        outcome = measured(
            released.model,
            test.split.test,
            test.split.train,
            cutoffs=cutoffs,
            ranking=ranking,
            rivals=None if rivals is None else {**rivals, **simple},
        )
    name = type(model).__name__
    return Evaluation(name, released.guarantee, outcome, rivals or {}, simple, asked)


_ELSEWHERE = {
    **{"hr": "hit_rate", "hit": "hit_rate", "hitrate": "hit_rate", "map": "average_precision"},
    **{"averagepopularity": "mean_popularity", "itemcoverage": "coverage", "giniindex": "gini"},
    **{"averageprecision": "average_precision", "popularity": "mean_popularity"},
}
"""Names of metrics in other libraries."""


def _asked(names: Any, cutoffs: tuple[int, ...], rated: bool, ranking: bool) -> tuple[str, ...]:
    """Keys of the metrics that are asked for. Raises SettingsError on a name that is none of this
    evaluation's."""
    lists = (*METRICS, *(f.name for f in fields(ListStatistics) if f.name != "k"))
    known: dict[str, tuple[str, ...]] = {name: (name,) for name in ("rmse", "mae") if rated}
    for name in (*lists, *further_metrics()) if ranking or not rated else ():
        known[name] = tuple(f"{name}@{k}" for k in cutoffs)
        known |= {key: (key,) for key in known[name]}
    found = list[str]()
    for name in [names] if isinstance(names, str) else names or ():
        base, at, k = str(name).lower().replace("-", "_").partition("@")
        key = _ELSEWHERE.get(base.replace("_", ""), base) + at + k
        if key not in known:
            near = get_close_matches(key, known, n=1)
            raise SettingsError(
                f"this evaluation has no metric {name!r}",
                f"{f'Did you mean {near[0]}? ' if near else ''}"
                f"There are: {', '.join(one for one in known if '@' not in one)}.",
            )
        found += known[key]
    return tuple(dict.fromkeys(found))


def require_test_set(test: Any) -> None:
    """Raises DataError where it is none."""
    if not isinstance(test, TestSet):
        raise DataError(
            f"evaluate needs a test set, found a {type(test).__name__}",
            "Give data.split()[1], or split('given')[1] of Dataset.from_frame(frame, test=...).",
        )


def require_untrained(trained: Split, test: TestSet) -> None:
    """Raises LeakageError where a model of this split's training rows would be tested on some of
    them."""
    if trained is not test.split:
        require_unseen(trained.train, test.split.test.targets)


def _require_same_kind(released: Released, test: TestSet) -> None:
    tested = test.split.test.targets
    if tested.kind != released.kind:
        raise SettingsError(
            f"a model of {released.kind} predicts no {tested.kind}, which the test set holds",
            f"Evaluate it on {released.kind}, or train a model of {tested.kind}.",
        )
    if tested.value_range != released.value_range:
        scales = [
            f"{low:g} to {high:g}" for low, high in (released.value_range, tested.value_range)
        ]
        raise SettingsError(
            f"the model predicts ratings of {scales[0]}, and the test set holds ratings of "
            f"{scales[1]}",
            "Evaluate on a split of the data that the model was trained on.",
        )


def cutoffs_of(k: Any) -> tuple[int, ...]:
    """Lengths of lists, ascending. Raises SettingsError where k holds something else."""
    given = (k,) if isinstance(k, Integral) else tuple(k) if isinstance(k, Iterable) else ()
    if not given or not all(isinstance(one, Integral) and int(one) >= 1 for one in given):
        raise SettingsError(
            f"k = {k!r} is no length of a list, and no list of them",
            "Give lengths of 1 or more, for example k=(10, 20).",
        )
    return tuple(sorted({int(one) for one in given}))


def controls_of(
    test: TestSet, cutoffs: tuple[int, ...], *, ranking: bool, seed: int
) -> Mapping[str, Outcome]:
    """Methods without privacy on the same rows, measured once for a test set."""
    asked = f"{cutoffs} {ranking} {seed}"
    if asked not in test.measured:
        chosen: dict[str, Any] = {
            "seed": seed,
            "evaluation": {"cutoffs": cutoffs, "ranking": ranking},
        }
        scenario = validated(chosen, source="evaluate")
        facts = public_facts(scenario.seed, test.source, test.split)
        if test.split.test.among is not None:  # of which no training knows anything
            found = baselines(test.split.test, test.split.train, cutoffs=cutoffs, ranking=ranking)
            by_chance = {"popularity": "random order"}
            test.measured[asked] = {by_chance.get(name, name): own for name, own in found.items()}
            return test.measured[asked]
        # reports and serving come with it, which a first fit does without
        from fedrec.run.ratings import rivals_of

        found, _, limits = rivals_of(scenario, test.split, Console(quiet=True), facts)
        said = {name: f"{name} ({limits[name]})" if name in limits else name for name in found}
        test.measured[asked] = {said[name]: outcome for name, outcome in found.items()}
    return test.measured[asked]


def _simple_of(
    test: TestSet, cutoffs: tuple[int, ...], released: Released
) -> Mapping[str, Outcome]:
    """Simple private recipes at the model's guarantee on the same rows, measured once for each."""
    promised = released.guarantee
    recipe = str(released.settings["recipe"])
    asked = f"{cutoffs} {promised.epsilon} {promised.delta} {recipe}"
    if test.split.test.among is not None:
        return {}
    if asked not in test.measured:
        from fedrec.run.ratings import simple_of

        seed = int(released.settings.get("seed", 1))
        facts = public_facts(seed, test.source, test.split)
        found = simple_of(
            test.split,
            facts,
            epsilon=promised.epsilon,
            delta=promised.delta,
            seed=seed,
            cutoffs=cutoffs,
            recipe=recipe,
        )
        test.measured[asked] = {name: outcome for name, (_, outcome) in found.items()}
    return test.measured[asked]
