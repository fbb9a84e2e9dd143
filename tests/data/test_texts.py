"""Texts of items as public vectors: which texts, and each encoded once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import fedrec
from fedrec.errors import DataError
from fedrec.run.data.texts import encoded

FILMS = {
    "item": ["1", "2", "3"],
    "title": ["Winter Queen", "Jade Witness", ""],
    "genre": ["drama", "drama", "war"],
    "plot": ["A spy returns.", None, ""],
}


@dataclass
class Lengths:
    """Encodes a text as its length and a one, and keeps what it was asked for."""

    fingerprint: str = "lengths"
    asked: list[str] = field(default_factory=list)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        self.asked += texts
        return np.array([[len(text), 1] for text in texts], np.float32)


def test_titles_and_plots_are_the_texts_and_items_without_any_are_left_out() -> None:
    encoder = Lengths()
    found = encoded(FILMS, encoder)
    assert found["item"].to_list() == ["1", "2"]
    assert sorted(encoder.asked) == ["Jade Witness", "Winter Queen. A spy returns."]
    assert [row[0] for row in found["vector"].to_list()] == [28, 12]
    named = encoded(FILMS, encoder, columns=["genre"])
    assert named["item"].to_list() == ["1", "2", "3"]
    with pytest.raises(DataError, match="no column 'blurb'"):
        encoded(FILMS, encoder, columns=["blurb"])
    with pytest.raises(DataError, match="no item has a text"):
        encoded({"item": ["1"], "title": [" "]}, encoder)


def test_a_text_is_encoded_once_and_again_by_another_encoder(tmp_path: Path) -> None:
    file = tmp_path / "texts.parquet"
    encoded(FILMS, Lengths(), file=file)
    more = pl.DataFrame(FILMS, strict=False).with_columns(
        plot=pl.Series(["A spy returns.", "A jade is seen.", "War."])
    )
    encoder = Lengths()
    found = encoded(more, encoder, file=file)
    assert sorted(encoder.asked) == ["Jade Witness. A jade is seen.", "War."]
    np.testing.assert_array_equal(
        found["vector"].to_numpy(), encoded(more, Lengths())["vector"].to_numpy()
    )
    other = Lengths("others")
    encoded(more, other, file=file)
    assert len(other.asked) == 3


@pytest.mark.filterwarnings("ignore::fedrec.errors.UnknownIdsWarning")
def test_the_file_is_what_recipes_take_as_item_vectors(tmp_path: Path) -> None:
    file = tmp_path / "texts.parquet"
    encoded(FILMS, Lengths(), file=file)
    log = {"user": ["a", "a", "b"], "item": ["1", "2", "3"]}
    data = fedrec.Dataset.from_frame(log, item_vectors=pl.read_parquet(file))
    assert data.source.features.bags["item vectors"].counts.toarray().tolist() == [
        [28, 1],
        [12, 1],
        [0, 0],
    ]


def test_a_folder_that_holds_no_encoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(fedrec.FedRecError):
        fedrec.text_vectors(FILMS, language_model=tmp_path)
