"""Public data that a server reads: the catalogue, the scale of values, and features of items, from
a table of items, from a films file of MovieLens, or from a folder (`fedrec.public_data`)."""

from __future__ import annotations

from pathlib import Path

from fedrec.data.features import PublicFeatures
from fedrec.data.interactions import Catalogue
from fedrec.data.item_tables import read_item_table
from fedrec.data.kinds import KINDS, Kind
from fedrec.data.movielens import ML_1M, ML_10M, ML_20M, ML_100K, film_features, read_films
from fedrec.errors import SettingsError
from fedrec.public_data import PublicData

FILMS = {form.name: form for form in (ML_100K, ML_1M, ML_10M, ML_20M)}


def read_item_file(
    path: Path,
    *,
    kind: Kind,
    value_range: tuple[float, float] | None,
    id_column: str,
    separator: str,
    min_items: int,
) -> PublicData:
    """The items of a table (CSV, TSV, Parquet, RecBole's `.item`) in its order, its other columns
    as features.

    Raises SettingsError where ratings come without their public scale, and what `read_item_table`
    raises.
    """
    if KINDS[kind].rated and value_range is None:
        raise SettingsError(
            "public.rating_range is needed where values are ratings",
            "Give the public scale, as in [1.0, 5.0].",
        )
    table = read_item_table(path, id_column=id_column, separator=separator, min_items=min_items)
    features = table.features_of(table.ids)
    scale = KINDS[kind].scale(value_range or (0.0, 1.0))
    return PublicData(table.ids, kind, scale, _some(features), table.titles)


def read_film_file(
    folder: Path, form: str, *, kind: Kind, metadata: str | None, min_items: int | None
) -> PublicData:
    """The films of a folder with MovieLens's films file, without its ratings: the features that its
    reader gives them.

    form: one of `FILMS`. metadata: as `item_features` of the reader. Raises what `read_films` and
    `read_metadata` raise.
    """
    chosen = FILMS[form]
    films = read_films(folder / chosen.films, chosen)
    catalogue = Catalogue(
        tuple(str(film.id) for film in films), tuple(film.title for film in films), ()
    )
    features = film_features(folder, catalogue, films, metadata, min_items)[0]
    scale = KINDS[kind].scale(chosen.value_range)
    return PublicData(catalogue.item_ids, kind, scale, _some(features), catalogue.titles)


def _some(features: PublicFeatures) -> PublicFeatures | None:
    return features if features.bags else None
