"""Public data comes back as it was, to the last byte of what is computed from it, whichever way the
server gets it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedrec.data.features import METADATA_WEIGHTS, PublicFeatures, svd_embedding
from fedrec.data.interactions import Dataset
from fedrec.data.movielens import ML_1M, read_movielens
from fedrec.data.planted import SHAPES, write_parquet
from fedrec.data.read import read
from fedrec.errors import DataError, SettingsError
from fedrec.factorization.facts import PublicFacts
from fedrec.public_data import PublicData, read_public, write_public
from fedrec.randomness import Streams
from fedrec_server.settings_tables import read_film_file, read_item_file


def facts_of(dataset: Dataset, features: PublicFeatures | None) -> PublicFacts:
    events = dataset.interactions
    return PublicFacts(
        events.num_users, events.num_items, events.kind, events.value_range, features, Streams(1)
    )


def embedding(features: PublicFeatures | None) -> bytes:
    assert features is not None
    return svd_embedding(features, dimension=6, seed=0, weights=METADATA_WEIGHTS).tobytes()


def test_a_written_folder_gives_the_same_facts_and_the_same_embedding_byte_for_byte(
    dataset: Dataset, tmp_path: Path
) -> None:
    facts = facts_of(dataset, dataset.features)
    write_public(tmp_path, dataset.catalogue, facts)
    public = read_public(tmp_path)
    again = public.facts(num_users=facts.num_users, seed=1)
    assert embedding(again.features) == embedding(facts.features)
    assert [again.num_items, again.kind, again.value_range, again.streams] == [
        facts.num_items,
        facts.kind,
        facts.value_range,
        facts.streams,
    ]
    assert public.items == dataset.catalogue.item_ids
    assert (
        public.digest()
        == PublicData(
            dataset.catalogue.item_ids, facts.kind, facts.value_range, facts.features
        ).digest()
    )


def test_the_order_of_bags_and_of_entries_is_kept(dataset: Dataset, tmp_path: Path) -> None:
    turned = PublicFeatures(dict(reversed(dataset.features.bags.items())))
    bag = next(iter(turned.bags.values()))
    bag.counts.indices[:2] = bag.counts.indices[1::-1]  # unsorted, as a reader may leave them
    write_public(tmp_path, dataset.catalogue, facts_of(dataset, turned))
    read_back = read_public(tmp_path).features
    assert read_back is not None
    assert list(read_back.bags) == list(turned.bags)
    for name, kept in read_back.bags.items():
        assert kept.vocabulary == turned.bags[name].vocabulary
        for part in ("data", "indices", "indptr"):
            np.testing.assert_array_equal(
                getattr(kept.counts, part), getattr(turned.bags[name].counts, part)
            )
    bag.counts.indices[:2] = bag.counts.indices[1::-1]


def test_a_folder_holds_no_user_and_no_number_of_users(dataset: Dataset, tmp_path: Path) -> None:
    named = ("user-4711-of-them",) * len(dataset.catalogue.user_ids)
    write_public(
        tmp_path,
        type(dataset.catalogue)(dataset.catalogue.item_ids, None, named),
        facts_of(dataset, None),
    )
    content = (tmp_path / "public.json").read_text()
    assert "4711" not in content
    assert "num_users" not in json.loads(content)
    assert read_public(tmp_path).features is None


@pytest.mark.parametrize(
    ("file", "content", "named"),
    [
        ("public.json", b"", "cannot be read"),
        ("public.json", b"{}", "Field required"),
        ("public.json", b"[]", "no JSON object"),
        ("features.safetensors", b"", "cannot be read"),
    ],
)
def test_damaged_folders_are_refused_with_the_file_and_a_remedy(
    file: str, content: bytes, named: str, dataset: Dataset, tmp_path: Path
) -> None:
    write_public(tmp_path, dataset.catalogue, facts_of(dataset, dataset.features))
    (tmp_path / file).write_bytes(content)
    with pytest.raises(DataError, match=named) as caught:
        read_public(tmp_path)
    assert "again" in caught.value.remedy


def test_features_of_another_folder_are_refused(dataset: Dataset, tmp_path: Path) -> None:
    facts = facts_of(dataset, dataset.features)
    write_public(tmp_path / "one", dataset.catalogue, facts)
    write_public(
        tmp_path / "other",
        dataset.catalogue,
        facts_of(dataset, PublicFeatures({"genre": dataset.features.bags["genre"]})),
    )
    (tmp_path / "other" / "features.safetensors").replace(tmp_path / "one" / "features.safetensors")
    with pytest.raises(DataError, match="not the file"):
        read_public(tmp_path / "one")


def test_a_table_of_items_gives_the_features_that_the_reader_of_the_whole_data_set_gives(
    tmp_path: Path,
) -> None:
    write_parquet(tmp_path, SHAPES["small"], seed=1)
    whole = read(
        tmp_path,
        "table",
        rating="rating",
        rating_range=(1.0, 5.0),
        item_features=str(tmp_path / "items.csv"),
    )
    public = read_item_file(
        tmp_path / "items.csv",
        kind="ratings",
        value_range=(1.0, 5.0),
        id_column="item",
        separator="|",
        min_items=1,
    )
    assert public.items == whole.catalogue.item_ids
    assert embedding(public.features) == embedding(whole.features)


@pytest.mark.filterwarnings("ignore::fedrec.errors.UnknownIdsWarning")  # few rows suffice here
def test_films_alone_give_the_features_that_the_reader_of_films_and_ratings_gives(
    tmp_path: Path,
) -> None:
    films = [
        "10::Toy Story (1995)::Animation|Comedy",
        "7::Heat of the Toy Night (1995)::Action",
        "30::Night Moves (1975)::Comedy|Action",
    ]
    (tmp_path / "movies.dat").write_text("\n".join(films) + "\n")
    (tmp_path / "metadata.jsonl").write_text(
        '{"movieId": "7", "director": "A, B", "runtime": "100 min"}\n'
    )
    (tmp_path / "ratings.dat").write_text("1::10::5::1\n1::7::3::2\n2::30::4::3\n")
    whole = read_movielens(ML_1M, tmp_path)
    (tmp_path / "ratings.dat").unlink()
    public = read_film_file(tmp_path, "ml-1m", kind="ratings", metadata=None, min_items=None)
    assert (public.items, public.value_range) == (
        whole.catalogue.item_ids,
        whole.interactions.value_range,
    )
    assert embedding(public.features) == embedding(whole.features)
    assert read_film_file(
        tmp_path, "ml-1m", kind="clicks", metadata="none", min_items=None
    ).value_range == (0.0, 1.0)


def test_ratings_without_a_public_scale_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="rating_range"):
        read_item_file(
            tmp_path / "items.csv",
            kind="ratings",
            value_range=None,
            id_column="item",
            separator="|",
            min_items=1,
        )
