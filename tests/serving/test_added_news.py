"""News that came after training: what ranks them is a regression on their texts, and a device's
noise covers their rows too."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest

pytest.importorskip("torch")

import fedrec
from fedrec.data.added_items import added_items
from fedrec.errors import DataError, DataWarning
from fedrec.privacy.bounded_mean import BITS, diameter
from fedrec.serving.bundle import FILE, Bundle, read, write
from fedrec.serving.model_bundles import export, with_news

ABOUT = {
    "sport": "match goal team coach season",
    "food": "recipe oven butter dinner sauce",
    "money": "market shares profit bank trade",
}


def a_bundle(
    folder: Path, sizes: tuple[int, int, int] = (40, 40, 40)
) -> tuple[Bundle, pl.DataFrame]:
    """A bundle whose vectors are those of the topics, and the table of its articles."""
    from fedrec.data.impressions import News
    from fedrec.news.reports_training import Decoder, Trained
    from fedrec.news.trainer_state import ReportModel, ReportModelSettings
    from fedrec.news.variants.additive import AdditiveRecommender
    from fedrec.privacy.bounded_mean import Population, topic_table
    from fedrec.privacy.guarantee import Guarantee
    from fedrec.serving.exporting import Origin
    from fedrec.serving.news_bundles import news_bundle

    rng = np.random.default_rng(0)
    topics = np.repeat(np.arange(3), sizes)
    names = [list(ABOUT)[t] for t in topics]
    titles = [" ".join(rng.choice(ABOUT[name].split(), 3, replace=False)) for name in names]
    ids = [f"n{j}" for j in range(len(topics))]
    rows = 0.9 * np.eye(3)[topics]
    items = np.eye(3, dtype=np.float32)[topics]
    blank = ("",) * len(ids)
    news = News(tuple(ids), tuple(titles), blank, tuple(names), blank, ((),) * len(ids))
    model = ReportModel(items, rows.T, ReportModelSettings(), rng=rng)
    decoder = Decoder(Population(np.full(3, 0.3), 0.1 * np.eye(3)), 1.0)
    shown = np.where(topics == 0, 100, 10)
    trained = AdditiveRecommender(Trained(model, decoder, topic_table(rows), 10, shown))
    promised = Guarantee(5.0, 1e-5, "click", "replace")
    origin = Origin("test", 1e-5, promised, 5.0, "seeded")
    write(folder / FILE, *news_bundle(trained, news, origin))
    return read(folder / FILE), pl.DataFrame({"item": ids, "title": titles, "category": names})


LATE = pl.DataFrame(
    {
        "item": ["late-sport", "late-food", "blank"],
        "title": ["coach team goal", "butter sauce oven", ""],
        "category": ["sport", "food", ""],
    }
)


def test_a_new_article_stands_where_known_ones_of_the_same_text_stand(tmp_path: Path) -> None:
    known, table = a_bundle(tmp_path)
    today = partial(added_items, today=pl.concat([table, LATE]), item="item")
    with pytest.warns(DataWarning, match="such as that of 'blank'"):
        write(tmp_path / "more", *with_news(known, today))
    more = read(tmp_path / "more")
    m = known.size
    for name in ("items", "bias", "rows", "categories"):
        np.testing.assert_array_equal(getattr(more, name)[:m], getattr(known, name))
    assert more.ids.all()[m:] == ("late-sport", "late-food", "blank")
    assert more.titles[m + 2] == "blank"
    sport = more.items[m]
    of_sport = more.items[:40].mean(axis=0)
    cosine = sport @ of_sport / np.linalg.norm(sport) / np.linalg.norm(of_sport)
    assert cosine > 0.99
    assert more.rows[m].argmax() == 0
    assert more.rows[m + 1].argmax() == 1
    assert more.bias[m] == pytest.approx(known.bias[0], abs=0.1), "shown as often as its like"
    assert more.bias[m + 1] == pytest.approx(known.bias[41], abs=0.1)
    assert more.categories[m] == known.categories[0]
    assert more.categories[m + 2] == 0
    np.testing.assert_allclose(more.items[m + 2], known.items.mean(axis=0), atol=1e-3)


def test_the_noise_of_an_answer_covers_the_rows_of_new_articles(tmp_path: Path) -> None:
    """A vector opposite to that of a rare topic makes a row that is cut to length 1, and the bundle says
    the longest distance of all rows."""
    known, table = a_bundle(tmp_path, (80, 20, 20))
    ids = [*table["item"], "late"]
    opposite = -known.items[80:81]
    vectors = {"item": ids, "vector": np.concatenate([known.items, opposite]).tolist()}
    today = partial(
        added_items,
        today={"item": ids, "title": ["News"] * len(ids)},
        item="item",
        item_vectors=pl.DataFrame(vectors),
    )
    write(tmp_path / "more", *with_news(known, today))
    more = read(tmp_path / "more")  # which raises where a bundle states less than its rows can do
    new = more.rows[known.size :] * 2.0**-BITS
    assert 0.99 < np.linalg.norm(new) <= 1
    apart = diameter(more.rows.astype(np.int64)) * 2.0**-BITS / more.about.history
    assert more.about.sensitivity == pytest.approx(apart, rel=1e-12)
    assert more.about.sensitivity > known.about.sensitivity * 1.2
    assert math.isfinite(float(more.items.sum()))


def test_a_table_that_names_no_known_article_is_refused(tmp_path: Path) -> None:
    known, _ = a_bundle(tmp_path)
    with pytest.raises(DataError, match="names none of the 120 items"):
        with_news(known, partial(added_items, today=LATE, item="item"))


def test_words_of_an_abstract_tell_what_a_title_does_not(tmp_path: Path) -> None:
    known, table = a_bundle(tmp_path)
    said = table.select("item", pl.lit("News").alias("title"), pl.col("title").alias("abstract"))
    late = pl.DataFrame({"item": ["late"], "title": ["News"], "abstract": ["team coach goal"]})
    about, arrays = with_news(known, partial(added_items, today=pl.concat([said, late])))
    assert arrays["rows"][-1].argmax() == 0
    assert about.categories == known.about.categories


def test_export_adds_todays_news_to_a_folder_that_holds_a_bundle(tmp_path: Path) -> None:
    known, table = a_bundle(tmp_path)
    today = tmp_path / "today.csv"
    pl.concat([table, LATE]).write_csv(today)
    with pytest.warns(DataWarning, match="such as that of 'blank'"):
        export(tmp_path, tmp_path / "out", partial(added_items, today=today))
    assert read(tmp_path / "out").ids.all()[known.size] == "late-sport"


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["additive", "privaterec"])
def test_a_recommender_ranks_reads_and_saves_new_articles(tmp_path: Path, variant: str) -> None:
    short = {"news.epochs": 1, "news.rounds": 1, "news.serving_epsilons": ["inf"]}
    short |= {"compare.baselines": False}
    if variant == "additive":
        del short["news.rounds"]
    else:
        del short["news.epochs"]
    model = fedrec.NewsRecommender(epsilon=5, variant=variant, noise="seeded", settings=short).fit(
        fedrec.NewsData.planted()
    )
    found = model.recommend(history=["N1"], k=60)
    today = {
        "id": [*found["item"], "late"],
        "title": [*found["title"], found["title"][0]],
    }
    more = model.with_items(today, item="id")
    assert "late" in set(more.recommend(history=["N1"], k=500)["item"])
    with_late = more.recommend(history=["late"], k=500)
    assert "late" not in set(with_late["item"]), "what was read is not shown again"
    assert "late" not in set(model.recommend(history=["N1"], k=500)["item"])
    folder = more.save(tmp_path / "model")
    assert "late" in read(folder / FILE).ids.all()
    assert more.export(tmp_path / "file") == read(folder / FILE).version
    assert more.guarantee.epsilon == model.guarantee.epsilon
