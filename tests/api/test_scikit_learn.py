"""Estimators keep the conventions of scikit-learn: its own checks of parameters, its `clone`, and a
search over a grid."""

from __future__ import annotations

from typing import Any

import pytest

import fedrec

pytest.importorskip("sklearn")
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, ParameterGrid
from sklearn.utils import estimator_checks

ESTIMATORS = [
    fedrec.MatrixFactorization,
    fedrec.ItemItem,
    fedrec.Popularity,
    fedrec.ItemBias,
    fedrec.NewsRecommender,
]
CHECKS = [
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_checks_of_scikit_learn_on_parameters_pass(estimator: Any, check: str) -> None:
    getattr(estimator_checks, check)(estimator.__name__, estimator())


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_clone_has_the_parameters_and_nothing_learned(estimator: Any) -> None:
    model = estimator(epsilon=3, seed=2, settings={"model.dimension": 4})
    copy = clone(model)
    assert copy is not model
    assert copy.get_params() == model.get_params()
    with pytest.raises(fedrec.RunError, match="not trained"):
        _ = copy.guarantee


def test_a_grid_of_parameters_trains_one_model_each() -> None:
    train, _ = fedrec.Dataset.planted("small").split("random", seed=1)
    fitted = [
        clone(fedrec.ItemBias(noise="seeded")).set_params(**chosen).fit(train)
        for chosen in ParameterGrid({"epsilon": [1, 5]})
    ]
    assert [model.guarantee.epsilon for model in fitted] == pytest.approx([1, 5])
    with pytest.raises(fedrec.SettingsError, match="no parameter 'eps'"):
        fitted[0].set_params(eps=1)


def test_a_search_chooses_by_the_score_on_one_split() -> None:
    train, test = fedrec.Dataset.planted("small").split("random", seed=1)
    scores = {
        chosen["epsilon"]: clone(fedrec.ItemBias(noise="seeded"))
        .set_params(**chosen)
        .fit(train)
        .score(test)
        for chosen in ParameterGrid({"epsilon": [0.05, 5]})
    }
    assert max(scores, key=lambda epsilon: scores[epsilon]) == 5


def test_a_search_over_folds_is_refused_with_the_reason() -> None:
    train, _ = fedrec.Dataset.planted("small").split("random", seed=1)
    with pytest.raises(fedrec.SettingsError, match="epsilons add up") as refused:
        GridSearchCV(fedrec.ItemBias(), {"epsilon": [1, 5]}).fit(train)
    assert "ParameterGrid" in refused.value.remedy
