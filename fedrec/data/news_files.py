"""MIND (Wu et al. 2020) in its official files: `news.tsv`, `behaviors.tsv`, in folders for train,
dev and test; demo, small and large.

    news.tsv       id, category, subcategory, title, abstract, URL, title entities, abstract
                   entities (JSON); 8 columns
    behaviors.tsv  impression id, user, time, history, candidates; 5 columns; `N12-1` was clicked,
                   `N12-0` was not, `N12` is not told

Embeddings of entities, relations and words are read by `encoders.word_vectors.read_vectors`;
candidates and histories by `behaviors.read_behaviors`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedrec.data.behaviors import Unknown, read_behaviors, read_growing
from fedrec.data.clicklog import ClickLog
from fedrec.data.delimited import decoded
from fedrec.data.impressions import Impressions, News
from fedrec.data.item_tables import untitled
from fedrec.data.keyed_hash import below
from fedrec.data.opening import lines_of, open_bytes, require_file
from fedrec.errors import DataError, DataWarning, MalformedRowError, warn
from fedrec.randomness import Streams
from fedrec.storage import parsed_json

__all__ = ["Mind", "merge_news", "read_behaviors", "read_mind", "read_news", "splits_of"]

_SPLITS = {"train": "train", "dev": "dev", "valid": "dev", "test": "test"}
"""How a word of a folder's name ends, and the split that the folder holds."""
_COLUMNS = 8  # of news.tsv, as MIND describes it


@dataclass(frozen=True)
class Mind:
    """One catalogue for all splits, and the impressions of each split by its name.

    Users are numbered in each split by itself."""

    news: News
    splits: dict[str, Impressions]

    def click_log(self, *, streams: Streams, held_out_users: bool = False) -> ClickLog:
        """Train and dev as train, validation (about a tenth of the users of train) and test; or
        train alone, a tenth its test.

        MIND's dev holds later impressions of the same users: unlike with `held_out_users`, a test
        user may have been in train. Raises DataError where a split is missing.
        """
        if missing := [
            name for name in ("train", "dev")[: 2 - held_out_users] if name not in self.splits
        ]:
            remedy = (
                "Give the folder that holds the folders of train and of dev, or test on users of "
                'train: split.kind = "held-out-users".'
            )
            raise DataError(f"there is no split {missing[0]}", remedy)
        others = self.splits["train"]
        test = self.splits.get("dev")
        if held_out_users or test is None:
            others, test = _a_tenth(others, streams.key("click-log-test"))
        return ClickLog(*_a_tenth(others, streams.key("click-log-validation")), test)


def read_mind(path: Path, *, unknown: Unknown = "refuse") -> Mind:
    """All splits below a folder (`MINDsmall_train` and `MINDsmall_dev`, or `train` and `dev` or
    `valid`), or the one split it is.

    The catalogue is the union of the splits' news. unknown: what to do with news that no `news.tsv`
    has, see `behaviors`. Raises DataError where no split is found or a file is missing,
    MalformedRowError at a bad line.
    """
    folders = _split_folders(path)
    known = [
        read_news(folder / "news.tsv")
        for folder in folders.values()
        if unknown != "add" or (folder / "news.tsv").exists()
    ]
    news = merge_news(known)
    require_titles(news.ids, news.titles, path)
    splits: dict[str, Impressions] = {}
    for name, folder in folders.items():
        news, splits[name] = read_growing(folder / "behaviors.tsv", news, unknown=unknown)
    return Mind(news, {name: replace(split, num_news=len(news)) for name, split in splits.items()})


def splits_of(path: Path) -> tuple[str, ...]:
    """Splits that a folder of MIND holds: "train", "dev", "test"; none where it does not look like
    MIND's."""
    try:
        return tuple(_split_folders(path))
    except DataError:
        return ()


def read_news(path: Path) -> News:
    """A `news.tsv`, in its order; abstracts and entities may be empty, entities are Wikidata ids.

    Raises DataError on a missing or empty file, MalformedRowError at a line without 8 columns,
    without an id, with an id that came before, or with entities that are not MIND's JSON.
    """
    rows: dict[str, tuple[str, str, str, str, tuple[str, ...]]] = {}
    for line, fields in _news_lines(require_file(path)):
        if len(fields) != _COLUMNS:
            raise MalformedRowError(
                path, line, f"{_COLUMNS} fields separated by tabs", "\t".join(fields)[:80]
            )
        item, category, subcategory, title, abstract, _, *entities = fields
        if not item or " " in item or item in rows:
            raise MalformedRowError(path, line, "a news id that did not come before", item)
        rows[item] = (title, abstract, category, subcategory, _entities(path, line, entities))
    if not rows:
        raise DataError(f"{path} holds no news", "Download or unpack it again.")
    return News(tuple(rows), *zip(*rows.values(), strict=True))


def merge_news(parts: Sequence[News]) -> News:
    """Every news of any part once, as its first part has it."""
    rows: dict[str, tuple[object, ...]] = {}
    for part in parts:
        for row in zip(*vars(part).values(), strict=True):
            rows.setdefault(row[0], row)
    columns: Iterable[tuple[object, ...]] = zip(*rows.values(), strict=True) if rows else [()] * 6
    return News(*columns)  # type: ignore[arg-type]  # the columns of News again


def require_titles(ids: Sequence[str], titles: Sequence[str], where: Path | str) -> None:
    """Warns of blank titles, whose articles are known by their other columns alone; raises
    DataError where all are."""
    if note := untitled(ids, titles, where):
        if not any(map(str.strip, titles)):
            raise DataError(
                f"every title of {where} is blank",
                "Give the column of titles, for example title='headline' of frames.",
            )
        warn(DataWarning(note))


def _split_folders(path: Path) -> dict[str, Path]:
    """Split name to folder. A single folder whose name says nothing is train."""
    if (path / "behaviors.tsv").exists():
        return {_split_of(path) or "train": path}
    found: dict[str, Path] = {}
    for folder in sorted(path.iterdir()) if path.is_dir() else []:
        name = _split_of(folder)
        if name and (folder / "behaviors.tsv").exists():
            if name in found:
                raise DataError(
                    f"{path} holds two folders for {name}", "Give the folder of one size of MIND."
                )
            found[name] = folder
    if not found:
        raise DataError(
            f"{path} holds no behaviors.tsv",
            "Give a folder of MIND, or the folder that holds its train and dev.",
        )
    return {name: found[name] for name in dict.fromkeys(_SPLITS.values()) if name in found}


def _split_of(folder: Path) -> str | None:
    """By the end of a word of its name: MINDsmall_train, and MINDsmall_train-5000 too."""
    words = re.split(r"[^a-z]+", folder.name.lower())
    return next(
        (name for end, name in _SPLITS.items() if any(word.endswith(end) for word in words)), None
    )


def _a_tenth(part: Impressions, key: bytes) -> tuple[Impressions, Impressions]:
    """All but about a tenth of the users, and that tenth: each user by a hash of the key and its
    id, whoever else is there."""
    tenth = below(part.user_draws(key), 0.1)
    return part.users_subset(np.flatnonzero(~tenth)), part.users_subset(np.flatnonzero(tenth))


def _news_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    with open_bytes(path) as file:
        for line, raw in enumerate(lines_of(file), start=1):
            if (text := decoded(raw, path, line)).strip():
                yield line, text.rstrip("\r\n").split("\t")


def _entities(path: Path, line: int, columns: list[str]) -> tuple[str, ...]:
    """Distinct Wikidata ids of the title's and the abstract's entities."""
    ids: dict[str, None] = {}
    for text in columns:
        try:
            ids |= {
                str(entity["WikidataId"]): None for entity in (parsed_json(text) if text else [])
            }
        except (ValueError, TypeError, KeyError):
            raise MalformedRowError(
                path, line, "a JSON list of entities with a WikidataId", text[:80]
            ) from None
    return tuple(ids)
