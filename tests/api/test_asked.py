"""What a list is asked for: some items alone, seen ones too, why an item is in it, and metrics by
name; a sparse matrix is the data that its frame is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import sparse

import fedrec
from fedrec.data.interactions import Interactions
from fedrec.factorization.default_clicks.item_item import ItemItem
from fedrec.factorization.default_clicks.model import ClickModel, ItemItemModel, PublicPriorModel
from fedrec.factorization.explaining import contributions

CLICKS = fedrec.Dataset.planted("small", kind="clicks")
OWN = ["3", "14", "7", "20"]
# a model that says parts of its own, and ones whose parts are means over orders
METHODS = [
    ("default", CLICKS),
    ("convex-ssp", CLICKS),
    ("default", fedrec.Dataset.planted("small")),
]


@pytest.fixture(scope="module", params=METHODS, ids=["sums", "solves", "ratings"])
def model(request: pytest.FixtureRequest) -> Any:
    method, data = request.param
    return fedrec.MatrixFactorization(method=method, noise="seeded").fit(data)


def test_items_are_ranked_alone_and_seen_ones_on_request(model: Any) -> None:
    every = model.recommend(history=OWN, k=120, seen="keep")
    assert set(every["item"]) == set(CLICKS.item_ids)
    asked = ["9", "3", "51", "20"]
    for seen, expected in (("keep", asked), ("drop", ["9", "51"])):
        some = model.recommend(history=OWN, items=asked, seen=seen)
        whole = every.filter(pl.col("item").is_in(expected))
        assert some["item"].to_list() == whole["item"].to_list()
        assert some["score"].to_list() == whole["score"].to_list()
    with pytest.raises(fedrec.DataError, match="argument items"):
        model.recommend(history=OWN, items=["nothing"])
    with pytest.raises(fedrec.SettingsError, match="neither 'drop' nor 'keep'"):
        model.recommend(history=OWN, seen="all")


def test_parts_of_a_score_add_up_and_name_each_event_once(model: Any) -> None:
    listed = model.recommend(history=OWN, k=3)
    for item, score in listed.select("item", "score").iter_rows():
        parts = model.explain(item, history=OWN)
        assert parts["contribution"].sum() == pytest.approx(score, abs=1e-6)
        assert sorted(parts["item"][:-1]) == sorted(OWN)
        assert parts["item"][-1] is None
        assert parts["contribution"][:-1].is_sorted(descending=True)


def _models() -> list[Any]:
    rng = np.random.default_rng(0)
    V, counts = rng.normal(size=(9, 3)).astype(np.float32), rng.uniform(1, 9, 9)
    sides = [rng.normal(size=(5, 2)).astype(np.float32) for _ in range(2)]
    similar = ItemItem(np.arange(2, 7), sides[0], sides[1] - sides[1].mean(axis=0), 1.0)
    public = (rng.normal(size=(9, 4)).astype(np.float32),)
    blended = ClickModel(V, counts, 1.5, 4.0, similar, 0.4)
    return [
        ClickModel(V, counts, 1.5, 4.0),
        blended,
        ItemItemModel(similar, counts),
        PublicPriorModel(blended, public, np.array([0.7, 0.3])),
        PublicPriorModel(ItemItemModel(similar, counts), public, np.array([0.5, 0.5])),
    ]


@pytest.mark.parametrize("model", _models(), ids=lambda model: type(model).__name__)
def test_parts_of_clicks_are_what_the_others_leave_to_each(model: Any) -> None:
    """Of a solve: the score's derivative by the click's own right side, as Hu et al. 2008, sec. 5;
    of sums: in the ratio of the clicks' own scores."""
    held = np.array([2, 4, 5, 8])
    history = Interactions(
        np.array([0, 4]), held.astype(np.int32), np.ones(4, np.float32), 9, (0, 1), "clicks"
    )
    score = model.user_vectors(history)[0] @ model.item_vectors.astype(np.float64).T
    for item in range(9):
        parts, rest = contributions(model, history, item)
        assert parts.sum() + rest == pytest.approx(score[item])
        if isinstance(model, ItemItemModel) and 2 <= item < 7:
            alone = np.zeros(4)
            alone[:3] = model.similar.left[held[:3] - 2] @ model.similar.right[item - 2]
            assert parts * alone.sum() == pytest.approx(alone * parts.sum(), rel=1e-5)  # float32
        if isinstance(model, ClickModel) and model.similar is None:
            V = model.vectors.astype(np.float64)
            A = V.T @ V + model.confidence * V[held].T @ V[held] + model.ridge * np.eye(3)
            solved = (1 + model.confidence) * V[held] @ np.linalg.inv(A) @ V[item]
            assert parts == pytest.approx(solved)
            assert rest == pytest.approx(0, abs=1e-9)


def test_parts_of_means_over_orders_belong_to_their_event() -> None:
    """Of a score that is a sum, each part is the event's own number, whatever the order."""

    class Sums:
        offset = 0.0
        item_vectors = np.eye(6, dtype=np.float32)

        def user_vectors(self, history: Interactions) -> Any:
            sums = np.zeros((history.num_users, 6))
            sums[:, 0] = np.bincount(history.users, history.values, history.num_users)
            return sums + 1

    values = np.array([5, 1, 3, 2], np.float32)
    history = Interactions(np.array([0, 4]), np.arange(4, dtype=np.int32), values, 6, (1, 5))
    parts, rest = contributions(Sums(), history, 0)  # type: ignore[arg-type]
    assert parts.tolist() == pytest.approx(values.tolist())
    assert rest == pytest.approx(1)


def test_a_sparse_matrix_is_the_data_of_its_rows() -> None:
    rows, columns = np.array([0, 0, 1, 1, 0]), np.array([0, 2, 0, 1, 2])
    entries = sparse.coo_matrix((np.array([1, 2, 0, 1, 1]), (rows, columns)), (2, 4))
    with pytest.warns(fedrec.UnusedColumnsWarning, match="holds counts, and each is one click"):
        data = fedrec.Dataset.from_matrix(entries)
    assert data.to_frame().rows() == [(0, 0), (0, 2), (1, 1)]  # a stored 0 is no click
    assert data.item_ids == (0, 1, 2, 3)
    named = fedrec.Dataset.from_matrix(
        entries, user_ids=["a", "b"], item_ids=list("wxyz"), rating_range=(0, 5)
    )
    assert named.to_frame().rows() == [("a", "w", 1), ("a", "y", 3), ("b", "w", 0), ("b", "x", 1)]
    cases: list[dict[str, Any]] = [{"item_ids": ["a"]}, {"user_ids": ["a", "a"]}]
    for wrong in cases:
        with pytest.raises(fedrec.DataError, match="ids for"):
            fedrec.Dataset.from_matrix(entries > 0, **wrong)
    with pytest.raises(fedrec.DataError, match="holds -1"):
        fedrec.Dataset.from_matrix(-entries)


PLAYS = sparse.csr_matrix([[5, 0, 1, 0], [0, 3, 0, 2], [1, 0, 2, 4]])


@pytest.mark.filterwarnings("ignore::fedrec.UnusedColumnsWarning")
@pytest.mark.parametrize("least", [None, 1, 3])
def test_counts_of_a_matrix_mean_the_same_in_every_door(least: int | None, tmp_path: Path) -> None:
    coo = PLAYS.tocoo()
    frame = {"user": coo.row.tolist(), "item": coo.col.tolist(), "plays": coo.data.tolist()}
    pl.DataFrame(frame).write_csv(tmp_path / "plays.csv")
    plays: dict[str, Any] = {} if least is None else {"click_threshold": least}
    named: dict[str, Any] = {"rating": "plays", **plays} if plays else {}
    found = [
        fedrec.Dataset.from_matrix(PLAYS, **plays),
        fedrec.Dataset.from_frame(frame, **named),
        fedrec.Dataset.from_file(tmp_path / "plays.csv", **named),
    ]
    rows = [sorted((int(u), int(i)) for u, i in data.to_frame().rows()) for data in found]
    assert rows[0] == [
        pair[:2] for pair in zip(*frame.values(), strict=True) if pair[2] >= (least or 1)
    ]
    assert all(row == rows[0] for row in rows)


@pytest.mark.parametrize(
    "matrix",
    [PLAYS.toarray(), np.ones(3), PLAYS * 1j, sparse.coo_array(np.ones((2, 2, 2))), [[1]], None],
    ids=["dense", "vector", "complex", "cube", "list", "nothing"],
)
def test_what_is_no_sparse_matrix_of_numbers_is_refused(matrix: Any) -> None:
    with pytest.raises(fedrec.DataError, match="no sparse matrix of users x items"):
        fedrec.Dataset.from_matrix(matrix)


def test_metrics_are_asked_for_by_the_names_that_libraries_have() -> None:
    train, test = CLICKS.split("random", seed=1)
    model = fedrec.Popularity(noise="seeded").fit(train)
    whole = fedrec.evaluate(model, test, k=(5, 10), controls=False).metrics
    names = ["NDCG@10", "ItemCoverage", "map@5"]
    found = fedrec.evaluate(model, test, k=(5, 10), controls=False, metrics=names)
    keys = ["ndcg@10", "coverage@5", "coverage@10", "average_precision@5"]
    assert found.metrics == {key: whole[key] for key in keys}
    assert list(found.headline) == keys
    assert found.frame.columns == ["method", "epsilon", *keys]
    for name in ("ndgc", "rmse", "ndcg@7"):
        with pytest.raises(fedrec.SettingsError, match="no metric"):
            fedrec.evaluate(model, test, k=(5, 10), controls=False, metrics=[name])
