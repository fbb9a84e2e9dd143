"""Items that came after training: the regression that gives them vectors, and models, files and
bundles that have them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import fedrec
from fedrec.cli.main import guarded
from fedrec.data.added_items import added_items
from fedrec.data.kinds import Kind
from fedrec.errors import DataError, SettingsError
from fedrec.numerics.segments import regressed
from fedrec.serving.bundle import read
from fedrec.serving.model_bundles import export
from fedrec_client.public_model import best

KINDS = ("clicks", "ratings")


@pytest.fixture(scope="module", params=KINDS)
def parts(
    request: pytest.FixtureRequest,
) -> tuple[fedrec.Dataset, fedrec.TrainingSet, fedrec.TestSet]:
    data = fedrec.Dataset.planted("demo", kind=request.param)
    return data, *data.split("new-items", seed=1)


@pytest.fixture(scope="module")
def model(
    parts: tuple[fedrec.Dataset, fedrec.TrainingSet, fedrec.TestSet],
) -> fedrec.Recommender:
    return fedrec.MatrixFactorization(noise="seeded").fit(parts[1])


def table_of(data: fedrec.Dataset) -> pl.DataFrame:
    """The catalogue's features as a frame."""
    features = data.source.features
    columns = {"item": data.source.catalogue.item_ids, "title": data.source.catalogue.titles}
    for name, bag in features.bags.items():
        if name != "title":
            columns[name] = [
                "|".join(bag.vocabulary[k] for k in bag.counts[j].indices)
                for j in range(len(data.item_ids))
            ]
    return pl.DataFrame(columns)


def test_a_linear_truth_is_found_and_nothing_is_made_of_nothing() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 20))
    B = rng.standard_normal((20, 6))
    Y = 3 + X @ B + 0.1 * rng.standard_normal((500, 6))
    new = rng.standard_normal((40, 20))
    np.testing.assert_allclose(regressed(Y, X, new), 3 + new @ B, atol=0.2)
    noise = 3 + rng.standard_normal((500, 6))
    far = np.abs(regressed(noise, X, new) - noise.mean(axis=0)).mean()
    # least squares would be sqrt(20 / 500) = .2 away on average, times sqrt(2 / pi)
    assert far < 0.05


@pytest.mark.slow
def test_new_items_are_listed_far_better_than_by_chance(
    parts: tuple[fedrec.Dataset, fedrec.TrainingSet, fedrec.TestSet], model: fedrec.Recommender
) -> None:
    data, train, test = parts
    unseen = set(data.item_ids) - set(model.item_ids)
    assert 0.05 < len(unseen) / len(data.item_ids) < 0.15
    assert not unseen & set(train.to_frame()["item"])
    assert set(test.to_frame()["item"]) <= unseen
    with pytest.raises(SettingsError, match="other items"):
        fedrec.evaluate(model, test)
    found = fedrec.evaluate(model.with_items(data), test, k=20)
    ndcg = dict(found.frame.select("method", "ndcg@20").iter_rows())
    assert ndcg["MatrixFactorization"] > 2 * ndcg["random order"]


@pytest.mark.slow
def test_what_is_known_keeps_its_scores_and_lists_name_new_items(
    parts: tuple[fedrec.Dataset, fedrec.TrainingSet, fedrec.TestSet], model: fedrec.Recommender
) -> None:
    more = model.with_items(parts[0])
    m = len(model.item_ids)
    assert more.item_ids[:m] == model.item_ids
    np.testing.assert_array_equal(more.item_factors[:m], model.item_factors)
    assert more.guarantee == model.guarantee
    history = list(model.item_ids[:5])
    np.testing.assert_array_equal(more.user_factors(history), model.user_factors(history))
    new = [str(item) for item in more.item_ids[m:]]
    np.testing.assert_array_equal(  # a click on what came later says nothing
        more.user_factors([*history, new[0]]), model.user_factors(history)
    )
    listed = more.recommend(history=history, filter=new, k=5)
    assert set(map(str, listed["item"])) <= set(new)
    assert len(more.recommend(["1"], k=m + len(new))) > m - 300
    assert len(more.with_items(parts[0]).item_ids) == len(parts[0].item_ids)


@pytest.mark.slow
def test_a_table_says_of_new_items_what_the_data_set_says(
    parts: tuple[fedrec.Dataset, fedrec.TrainingSet, fedrec.TestSet],
    model: fedrec.Recommender,
    tmp_path: Path,
) -> None:
    table = table_of(parts[0])
    table.write_csv(tmp_path / "today.csv")
    one = model.with_items(table)
    two = model.with_items(tmp_path / "today.csv")
    assert one.item_ids == two.item_ids
    np.testing.assert_allclose(one.item_factors, two.item_factors, atol=1e-5)
    with pytest.raises(DataError, match="names none"):
        model.with_items(table.with_columns((pl.lit("x") + pl.col("item")).alias("item")))
    with pytest.raises(DataError, match="tells one from another"):
        model.with_items(table.select("item"))
    with pytest.raises(DataError, match="no column of ids"):
        model.with_items(table.select("title"))


def test_vectors_and_links_alone_say_what_a_new_item_is_like() -> None:
    """Items of two sorts: 40 users have those of one, 40 those of the other."""
    rng = np.random.default_rng(0)
    rows = [
        (f"u{u}", f"i{j}")
        for u in range(80)
        for j in rng.choice(np.arange(u % 2, 60, 2), 12, replace=False)
    ]
    log = pl.DataFrame(rows, schema=["user", "item"], orient="row")
    sort = {f"i{j}": [1.0, 0.0] if j % 2 else [0.0, 1.0] for j in range(64)}
    vectors = pl.DataFrame({"item": list(sort), "vector": list(sort.values())})
    pairs = [(f"i{j}", f"i{i}") for j in range(64) for i in range(j % 2, 64, 2) if i != j]
    links = pl.DataFrame(pairs, schema=["item", "neighbour"], orient="row")
    names = pl.DataFrame({"item": list(sort)})
    trained = fedrec.MatrixFactorization(epsilon=20, noise="seeded").fit(
        fedrec.Dataset.from_frame(log)
    )
    for public in ({"item_vectors": vectors}, {"similar_items": links}):
        more = trained.with_items(names, **public)
        listed = more.recommend(
            history=["i1", "i3", "i5"], filter=["i60", "i61", "i62", "i63"], k=4
        )
        assert set(listed["item"].to_list()[:2]) == {"i61", "i63"}, public


@pytest.mark.slow
def test_a_model_with_new_items_has_no_certificate_of_the_one_without(
    parts: tuple[fedrec.Dataset, fedrec.TrainingSet, fedrec.TestSet], tmp_path: Path
) -> None:
    model = fedrec.MatrixFactorization().fit(parts[1])  # of system noise: seeded models have none
    assert (model.save(tmp_path / "model") / "certificate").exists()
    assert not (model.with_items(parts[0]).save(tmp_path / "more") / "certificate").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_and_its_bundle_have_new_items(kind: Kind, tmp_path: Path) -> None:
    data = fedrec.Dataset.planted("small", kind=kind)
    train, _ = data.split("new-items", seed=1)
    model = fedrec.MatrixFactorization(epsilon=50, noise="seeded").fit(train)
    more = model.with_items(data)
    again = fedrec.load(more.save(tmp_path / "more"))
    history = list(model.item_ids[:5])
    one = more.recommend(history=history, k=20)
    two = again.recommend(history=history, k=20)
    assert one["item"].to_list() == two["item"].to_list()
    assert "came after training" in (tmp_path / "more" / "README.md").read_text()
    version = again.export(tmp_path / "python.safetensors")
    bundle = read(tmp_path / "python.safetensors")
    rows = {item: row for row, item in enumerate(bundle.ids)}
    window = np.full(bundle.about.history, -1, np.int32)
    window[: len(history)] = [rows[str(item)] for item in history]
    events = [(rows[str(item)], None) for item in history]
    found, _ = best(bundle, window, events, k=20, categories=0)
    assert [bundle.ids[row] for row in found] == list(map(str, one["item"]))
    # the command makes the same of the folder without them
    table_of(data).write_csv(tmp_path / "today.csv")
    folder = model.save(tmp_path / "model")
    words = ["export", str(folder), "--items", str(tmp_path / "today.csv"), "--json"]
    assert guarded([*words, "--output", str(tmp_path / "command.safetensors")]) == 0
    command = read(tmp_path / "command.safetensors")
    assert list(command.ids) == list(bundle.ids)
    assert version


@pytest.mark.slow
def test_options_of_new_items_need_a_table_of_them(
    model: fedrec.Recommender, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(model.save(tmp_path / "model"))
    words = ["export", folder, "--item-vectors", "v.parquet", "--output", str(tmp_path / "b")]
    assert guarded(words) != 0
    assert "--items" in capsys.readouterr().err


def test_todays_titles_and_features_stand_with_known_items_first() -> None:
    today = {"item": ["c", "b"], "title": ["Cee", "Bee"], "genre": ["war", "drama"]}
    added = added_items(["a", "b"], ["A", "B"], today)
    assert added.ids == ("a", "b", "c")
    assert added.titles == ("A", "Bee", "Cee")
    assert added.described.tolist() == [False, True]
    assert added.number == 1
    genre = added.features.bags["genre"]
    assert genre.vocabulary == ("drama", "war")
    assert genre.counts.toarray().tolist() == [[0, 0], [1, 0], [0, 1]]


def test_ids_that_were_read_off_rows_are_not_covered_wherever_they_go(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tastes = [20 * (u % 2) + rng.choice(20, 8, replace=False) for u in range(200)]
    rows = [(f"p{u}", f"i{i}") for u, items in enumerate(tastes) for i in items]
    names = [f"i{i}" for i in range(40)]

    def frame(more: list[tuple[str, str]]) -> dict[str, list[str]]:
        users, items = zip(*rows, *more, strict=True)
        return {"user": list(users), "item": list(items)}

    genres = [("a", "b", "c")[i % 3] for i in range(40)]
    known = fedrec.Dataset.from_frame(frame([]), items={"item": names, "genre": genres})
    model = fedrec.ItemItem(epsilon=20, noise="seeded").fit(known)
    assert model.guarantee.not_covered == ()
    links = {"item": [*names, "of-one"], "similar": [*names[1:], "of-one", "i0"]}
    today = fedrec.Dataset.from_frame(frame([("p0", "of-one")]), similar_items=links)
    found = model.with_items(today)
    (said,) = found.guarantee.not_covered
    assert "read off everybody's rows" in said
    folder = found.save(tmp_path / "model")
    assert fedrec.load(folder).guarantee.not_covered == (said,)
    assert said in (folder / "README.md").read_text()
    export(folder, tmp_path / "bundle")
    assert read(tmp_path / "bundle").about.training["not_covered"] == [said]
