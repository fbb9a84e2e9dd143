"""Vectors of items' texts by a sentence encoder in a local folder, for `data.item_vectors`.

The file is public and made once: a later call encodes texts that it does not hold, by their
digests. What devices download of it are the leading directions in a few bits, which their recipe
broadcasts and counts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from fedrec.data.columns import plain_name, usual
from fedrec.data.frame_files import parquet, parquet_metadata
from fedrec.data.frames import polars_frame
from fedrec.data.item_tables import TITLES, frame_of_items
from fedrec.data.values import plain_ids
from fedrec.errors import DataError, require
from fedrec.storage import writing

if TYPE_CHECKING:  # torch comes with it
    from fedrec.encoders.text_encoder import TextEncoder

TEXTS = ("text", "plot", "description", "overview", "summary", "abstract", "synopsis")
"""Names of columns of text, after a title."""
_KEPT = "fedrec-texts"


def text_vectors(
    items: Any,
    *,
    language_model: str | Path,
    columns: Sequence[str] | None = None,
    item: str | None = None,
    file: str | Path | None = None,
) -> pl.DataFrame:
    """Vectors of items by their texts, as `item_vectors` takes them; nothing is fetched.

    Args:
        items: A frame or the path of a table of items.
        language_model: Folder of a Hugging Face encoder: config.json, weights, tokenizer. Needs
            `pip install 'fedrec[plm]'`.
        columns: Columns of text, joined by ". "; without them the title and what is called text,
            plot, description, overview, summary, abstract or synopsis.
        item: Column of ids; a usual name without it.
        file: Parquet that keeps the vectors: what an earlier call wrote is not encoded again.

    Returns:
        Columns item and vector, a row for each item with a text.

    Raises:
        DataError: The table has no such column, no text, or the folder holds no encoder.
        SettingsError: The extra `plm` is missing.

    >>> import fedrec
    >>> films = {"item": ["1"], "title": ["Winter Queen"], "plot": ["A spy returns."]}
    >>> vectors = fedrec.text_vectors(films, language_model="minilm")  # doctest: +SKIP
    >>> from fedrec.run.data.texts import TEXTS
    >>> "plot" in TEXTS
    True
    """
    require("plm", "text_vectors")
    from fedrec.encoders.language_model import open_encoder

    encoder = open_encoder(Path(language_model))
    return encoded(items, encoder, columns=columns, item=item, file=file)


def encoded(
    items: Any,
    encoder: TextEncoder,
    *,
    columns: Sequence[str] | None = None,
    item: str | None = None,
    file: str | Path | None = None,
) -> pl.DataFrame:
    """`text_vectors` by any encoder."""
    frame = (
        frame_of_items(Path(items))
        if isinstance(items, str | Path)
        else polars_frame(items, what="frame of items")
    )
    ids, texts = _texts(frame, columns, item)
    digests = [
        hashlib.sha256(f"{encoder.fingerprint}\0{text}".encode()).hexdigest() for text in texts
    ]
    known = _kept(None if file is None else Path(file))
    lacking = {d: text for d, text in zip(digests, texts, strict=True) if d not in known}
    if lacking:
        # alike in length, so that little is padded
        order = sorted(lacking, key=lambda digest: len(lacking[digest]))
        vectors = encoder.encode([lacking[digest] for digest in order])
        known |= dict(zip(order, np.asarray(vectors, np.float32), strict=True))
    rows = np.array([known[digest] for digest in digests], np.float32)
    found = pl.DataFrame(
        {"item": ids, "vector": rows},
        schema_overrides={"vector": pl.Array(pl.Float32, rows.shape[1])},
    )
    if file is not None and (lacking or not Path(file).exists()):
        with writing(Path(file), "Name another file."):
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            found.write_parquet(Path(file), metadata={_KEPT: json.dumps(digests)})
    return found


def _texts(
    frame: pl.DataFrame, columns: Sequence[str] | None, item: str | None
) -> tuple[list[str], list[str]]:
    """Ids and texts of the items that have one."""
    named = usual("item", frame.columns) if item is None else [item]
    wanted = columns or [name for name in frame.columns if plain_name(name) in (*TITLES, *TEXTS)]
    missing = [name for name in (*named, *wanted) if name not in frame.columns]
    if missing or not named or not wanted:
        asked = missing[0] if missing else "item" if not named else "title"
        raise DataError(
            f"the table of items has no column {asked!r}",
            f"Name columns of ids and texts; it has {', '.join(frame.columns)}.",
        )
    ids = plain_ids(frame[named[0]], "items").cast(pl.String).to_list()
    parts = frame.select(pl.col(wanted).cast(pl.String).fill_null("")).rows()
    texts = [". ".join(part.strip() for part in row if part.strip()) for row in parts]
    kept = [n for n, text in enumerate(texts) if text]
    if not kept:
        raise DataError("no item has a text", f"Columns of text were {', '.join(wanted)}.")
    return [ids[n] for n in kept], [texts[n] for n in kept]


def _kept(file: Path | None) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    """Vectors of an earlier call by their digests."""
    if file is None or not file.exists():
        return {}
    digests = json.loads(parquet_metadata(file).get(_KEPT, "[]"))
    if not digests:
        return {}
    return dict(zip(digests, parquet(file)["vector"].to_numpy(), strict=True))
