"""docs/habits.md: what people of other libraries write, and what they get; each line is carried out
to make the page.

python -m tests.release.pages
"""

from __future__ import annotations

import copy
import pickle
import tempfile
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.validation import check_is_fitted

import fedrec

HABITS: tuple[tuple[str, str, str], ...] = (
    # library, what is written, what it gives; nothing where it is an error with a remedy
    ("scikit-learn", "algo.fit(X, y=None)", "the estimator"),
    ("scikit-learn", "algo.fit(X, y)", ""),
    ("scikit-learn", "ItemItem(random_state=42)", ""),
    ("scikit-learn", "ItemItem(n_jobs=-1)", ""),
    ("scikit-learn", "ItemItem(verbose=1)", ""),
    ("scikit-learn", "MatrixFactorization(n_components=20)", ""),
    ("scikit-learn", "MatrixFactorization(max_iter=100)", ""),
    ("scikit-learn", "algo.get_params()", "the constructor's arguments"),
    ("scikit-learn", "algo.set_params(epsilon=2)", "the estimator"),
    ("scikit-learn", "algo.set_params(n_jobs=2)", ""),
    ("scikit-learn", "clone(algo)", "the same, not trained"),
    ("scikit-learn", "make_pipeline(algo).fit(train)", "a pipeline"),
    ("scikit-learn", "check_is_fitted(algo)", "nothing, or `NotFittedError`"),
    ("scikit-learn", "algo.score(test)", "-RMSE, or NDCG@10"),
    ("scikit-learn", "GridSearchCV(algo, {'epsilon': [1, 5]}).fit(train)", ""),
    ("scikit-learn", "algo.partial_fit(train)", ""),
    ("scikit-learn", "algo.transform(train)", ""),
    ("scikit-learn", "algo.kneighbors('3')", ""),
    ("scikit-learn", "algo.components_", ""),
    ("scikit-learn", "pickle.dumps(algo)", ""),
    ("scikit-learn", "fedrec.train_test_split(data)", ""),
    ("scikit-learn", "data.split(test_size=0.2)", ""),
    ("implicit", "fedrec.AlternatingLeastSquares(factors=64)", ""),
    ("implicit", "MatrixFactorization(factors=64)", ""),
    ("implicit", "MatrixFactorization(regularization=0.05)", ""),
    ("implicit", "MatrixFactorization(iterations=15)", ""),
    ("implicit", "MatrixFactorization(alpha=2.0)", ""),
    ("implicit", "algo.fit(csr_matrix)", "the estimator; every entry is a click"),
    ("implicit", "algo.fit(csr_matrix, show_progress=False)", ""),
    ("implicit", "algo.recommend(5, k=10)", "rank, item, title, score"),
    ("implicit", "algo.recommend(5, csr_matrix[5], N=10)", ""),
    ("implicit", "algo.recommend(userid=5)", ""),
    ("implicit", "algo.recommend('5', filter_already_liked_items=False)", ""),
    ("implicit", "algo.recommend('5', items=['3', '14'])", "these, ranked"),
    ("implicit", "algo.recommend('5', filter_items=['3'])", ""),
    ("implicit", "algo.recommend('5', recalculate_user=True)", ""),
    ("implicit", "algo.recommend(['1', '2'])", "a list for each"),
    ("implicit", "algo.recommend_all(csr_matrix)", ""),
    ("implicit", "algo.rank_items('5', csr_matrix, ['3', '14'])", ""),
    ("implicit", "algo.similar_items('3', N=10)", ""),
    ("implicit", "algo.similar_items(['3', '14'])", "a list for each"),
    ("implicit", "algo.similar_users('5')", ""),
    ("implicit", "algo.explain('7', users='5')", "a part of the score for each click"),
    ("implicit", "algo.item_factors", "an array"),
    ("implicit", "algo.save(folder)", "safetensors in a folder; no pickle"),
    ("implicit", "algo.to_gpu()", ""),
    ("LensKit", "fedrec.BiasedMFScorer", ""),
    ("LensKit", "fedrec.ItemKNNScorer", ""),
    ("LensKit", "MatrixFactorization(embedding_size=50)", ""),
    ("LensKit", "algo.train(train)", ""),
    ("LensKit", "algo.recommend('5', n=10)", ""),
    ("LensKit", "algo.recommend('5', candidates=['3', '14'])", ""),
    ("LensKit", "fedrec.sample_users(data, 5)", ""),
    ("RecBole", "fedrec.run_recbole('BPR', 'ml-100k')", ""),
    ("RecBole", "MatrixFactorization(embedding_size=64, learning_rate=0.001)", ""),
    ("RecBole", "algo.full_sort_predict(test)", ""),
    ("RecBole", "fedrec.evaluate(algo, test, topk=[10])", ""),
    ("RecBole", "fedrec.evaluate(algo, test, metrics=['Recall', 'NDCG', 'Hit'])", "these"),
    ("RecBole", "fedrec.evaluate(algo, test, metrics=['ItemCoverage', 'novelty'])", "these"),
    ("RecBole", "fedrec.load_model(folder)", ""),
    ("RecBole", "data.to_recbole(folder)", "`.inter` and `.item`"),
    ("Surprise", "fedrec.SVD(n_factors=100)", ""),
    ("Surprise", "fedrec.KNNBasic(sim_options={})", ""),
    ("Surprise", "MatrixFactorization(n_epochs=20, lr_all=0.005, reg_all=0.02)", ""),
    ("Surprise", "Dataset.load_from_df(frame, Reader)", ""),
    ("Surprise", "Dataset.load_builtin('ml-100k')", ""),
    ("Surprise", "Dataset.from_frame(frame, rating='stars', rating_scale=(1, 5))", ""),
    ("Surprise", "data.build_full_trainset()", ""),
    ("Surprise", "algo.fit(data)", "the algo, of all rows"),
    ("Surprise", "algo.predict('5', '7')", "user, item, prediction"),
    ("Surprise", "algo.predict('5', '7', r_ui=4)", ""),
    ("Surprise", "algo.test(test)", ""),
    ("Surprise", "algo.get_neighbors('3', k=10)", ""),
    ("Surprise", "fedrec.accuracy.rmse(predictions)", ""),
    ("Surprise", "fedrec.cross_validate(algo, data)", ""),
)


@cache
def names() -> dict[str, Any]:
    """What the lines use: a small trained model, its data as other libraries hold it."""
    data = fedrec.Dataset.planted("small", kind="clicks")
    train, test = data.split("random", seed=1)
    rows = data.source.interactions
    ones = np.ones(len(rows))
    matrix = csr_matrix((ones, rows.items, rows.user_ptr), (rows.num_users, rows.num_items))
    own = (clone, make_pipeline, check_is_fitted, GridSearchCV)
    return {
        **{one.__name__: one for one in own},
        **{name: getattr(fedrec, name) for name in ("ItemItem", "MatrixFactorization", "Dataset")},
        **{"data": data, "train": train, "test": test, "X": train, "y": np.ones(3)},
        **{
            "csr_matrix": matrix,
            "pickle": pickle,
            "fedrec": fedrec,
            "predictions": [],
            "Reader": 0,
        },
        "frame": {"user": [1], "item": [2], "stars": [3]},
        "folder": tempfile.mkdtemp(),
    }


def answer(line: str) -> str:
    """The remedy that a line's error names; nothing where it works."""
    fresh = "fit(" in line and "is_fitted" not in line
    trained = _trained("csr_matrix" if "recommend(5" in line else "train")
    model = clone(trained) if fresh else copy.copy(trained)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            eval(line, {**names(), "algo": model})
    except fedrec.FedRecError as failure:
        return failure.remedy
    return ""


@cache
def _trained(data: str) -> Any:
    return fedrec.ItemItem(noise="seeded").fit(names()[data])


def lines() -> Iterator[str]:
    """A row for each habit."""
    for library, line, gives in HABITS:
        yield f"| {library} | `{line}` | {gives or answer(line)} |"


def page() -> str:
    """The whole page."""
    return "\n".join(
        (
            "# What your habit gets",
            "",
            "What users of other libraries write, and what fedrec answers: each line was carried "
            "out to make this table. An error names its remedy, for these words and for some 700 "
            "others (`fedrec.api.habits`).",
            "",
            "| library | you write | you get, or what to write |",
            "| --- | --- | --- |",
            *lines(),
            "",
        )
    )
