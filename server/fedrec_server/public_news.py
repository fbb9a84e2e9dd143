"""Public news that the server knows before a run: texts, and a vector for each.

From a folder that `write_public_news` made, which gives back the same bytes; from MIND's `news.tsv`
files; or from the folder of ratings that a click log is made of, of which only the public texts are
used.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np

from fedrec.data.features import PublicFeatures
from fedrec.data.impressions import News
from fedrec.data.news_files import merge_news, read_news
from fedrec.data.rated_news import read_rated_news
from fedrec.errors import DataError, RunError, SettingsError
from fedrec.news.trained import Catalogue, item_vectors
from fedrec.settings import NewsScenario
from fedrec.storage import read_arrays, read_json, write_arrays, write_json

FORMATS = ("news", "mind", "click-log")
"""Values of `public.format` that are about news."""


def write_public_news(folder: Path, catalogue: Catalogue) -> None:
    """Write what is public of a catalogue."""
    write_arrays(folder / "vectors.safetensors", {"vectors": catalogue.vectors})
    write_json(folder / "news.json", asdict(catalogue.news))


def read_public_news(path: Path, form: str, scenario: NewsScenario) -> Catalogue:
    """The catalogue of one of `FORMATS`.

    Raises DataError, and SettingsError where the format is not about news."""
    if form == "news":
        return _written(path)
    if form == "mind":
        files = sorted(path.rglob("news.tsv"))
        if not files:
            raise DataError(
                f"{path} holds no news.tsv",
                "Download or unpack it again: its items are the catalogue.",
            )
        news = merge_news([read_news(file) for file in files])
        return Catalogue(news, item_vectors(scenario, news, PublicFeatures({})))
    if form == "click-log":
        rated = read_rated_news(path)
        return Catalogue(rated.news, item_vectors(scenario, rated.news, rated.features))
    raise SettingsError(
        f"public.format = {form!r} is not about news", f"Use one of {', '.join(FORMATS)}."
    )


def _written(folder: Path) -> Catalogue:
    try:
        columns = {name: tuple(column) for name, column in read_json(folder / "news.json").items()}
        news = News(**{**columns, "entities": tuple(map(tuple, columns["entities"]))})
        vectors = np.asarray(read_arrays(folder / "vectors.safetensors")["vectors"], np.float32)
        if len(vectors) != len(news):
            raise ValueError(f"{len(news)} news, but {len(vectors)} vectors")
    except (RunError, ValueError, KeyError, TypeError, AttributeError) as failure:
        raise DataError(
            f"{folder} is no public catalogue of news: {failure}", "Write the folder again."
        ) from None
    return Catalogue(news, vectors)
