"""The clicks of one site's users among news, public texts beside them, and their translation into a
run's item numbers.

A shard is the exact native format, a safetensors file. MIND's folders are read by `fedrec.data`; of
them all users take part, none is held out.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fedrec.data.features import PublicFeatures
from fedrec.data.impressions import Impressions, News
from fedrec.data.news_files import read_mind
from fedrec.errors import DataError
from fedrec.federation.protocol import Terms
from fedrec.storage import PRIVATE, UnreadableError, unreadable, write_bytes
from fedrec_client.settings import ClientData

SHARD_FORMAT = "fedrec-news-shard/1"
PRIVATE_COLUMNS = ("history_ptr", "history", "users", "candidate_ptr", "candidates", "clicked")
"""Of `Impressions`: what is read, kept and hashed of a site's users."""


@dataclass(frozen=True)
class LocalReaders:
    """Private: `clicks` of this site's users by the site's own item numbers.

    Public: `news`, and vectors (m, p) where there are some."""

    clicks: Impressions
    news: News
    user_ids: tuple[str, ...]
    vectors: npt.NDArray[np.float32] | None = None

    @property
    def num_users(self) -> int:
        """Users, with or without clicks."""
        return self.clicks.num_users

    def only(self, users: npt.NDArray[np.integer]) -> LocalReaders:
        """Those of these numbers."""
        names = tuple(self.user_ids[k] for k in users)
        return replace(self, clicks=self.clicks.users_subset(users), user_ids=names)

    def translate(self, terms: Terms) -> Impressions:
        """All users' clicks by the run's item numbers. A click on news that the catalogue does not
        name is a place of padding, -1: what a catalogue leaves out moves no other click.
        Impressions that show such news, which the server knows of, are left out whole. Raises
        DataError where the run is about something else.
        """
        if not terms.of_news:
            raise DataError(
                f"the run is about {terms.kind}, the data holds clicks on news", "Do not take part."
            )
        place = self._numbers(terms).astype(np.int32)
        data = self.clicks
        placed = replace(
            data,
            num_news=len(terms.items),
            candidates=place[data.candidates],
            history=place[data.history],
        )
        known = (
            np.minimum.reduceat(placed.candidates, placed.candidate_ptr[:-1]) >= 0
            if len(placed)
            else np.zeros(0, bool)
        )
        return placed if known.all() else placed.select(np.flatnonzero(known))

    def unknown_events(self, terms: Terms) -> tuple[int, int]:
        """How many clicks and shown news `translate` cannot place, and how many there are. For the
        site's own eyes."""
        named = np.concatenate([self.clicks.history, self.clicks.candidates])
        return int((self._numbers(terms)[named] < 0).sum()), len(named)

    def catalogue(self, terms: Terms, *, seed: int) -> tuple[News, npt.NDArray[np.float32]]:
        """This site's copy of the public texts and vectors, in the run's order.

        Raises DataError where one is missing."""
        from fedrec.news.topics import public_vectors  # brings torch

        own = {item: j for j, item in enumerate(self.news.ids)}
        if missing := next((item for item in terms.items if item not in own), None):
            raise DataError(
                f"this site has no text of item {missing}",
                "Bring the public news that the server has, and start again.",
            )
        rows = [own[item] for item in terms.items]
        news = News(
            **{name: tuple(column[j] for j in rows) for name, column in vars(self.news).items()}
        )
        if self.vectors is not None:
            return news, self.vectors[rows]
        return news, public_vectors(news, PublicFeatures({}), seed=seed)

    def _numbers(self, terms: Terms) -> npt.NDArray[np.int64]:
        places = {item: j for j, item in enumerate(terms.items)}
        return np.array([places.get(item, -1) for item in self.news.ids], np.int64)


def read_readers(data: ClientData) -> LocalReaders:
    """The users of the data that the settings name.

    Raises DataError as the readers do, with file and line."""
    path = Path(data.path)
    if data.format == "news-shard":
        return read_news_shard(path)
    mind = read_mind(path)
    clicks = mind.splits.get("train") or next(iter(mind.splits.values()))
    return LocalReaders(clicks, mind.news, tuple(str(k) for k in range(clicks.num_users)))


def write_clicks(path: Path, clicks: Impressions, names: tuple[str, ...]) -> None:
    """Keep the clicks of one run, by its item numbers: private, for this site alone."""
    arrays = {name: np.ascontiguousarray(getattr(clicks, name)) for name in PRIVATE_COLUMNS}
    metadata = {"names": "/".join(names), "items": str(clicks.num_news)}
    write_bytes(path, save(arrays, metadata), mode=PRIVATE)


def read_clicks(path: Path, items: int, names: tuple[str, ...]) -> Impressions | None:
    """What `write_clicks` kept of these users; None where nothing was kept of them, or it is
    damaged. Raises UnreadableError where it may be whole."""
    try:
        with safe_open(path, framework="numpy") as file:
            if file.metadata() != {"names": "/".join(names), "items": str(items)}:
                return None
            return Impressions(items, **{name: file.get_tensor(name) for name in PRIVATE_COLUMNS})
    except (OSError, SafetensorError) as failure:
        if isinstance(said := unreadable(path, failure, ""), UnreadableError):
            raise said from None
        return None


def write_news_shard(path: Path, readers: LocalReaders) -> None:
    """Write users so that `read_news_shard` gives the same bytes. `readers` have vectors."""
    assert readers.vectors is not None
    arrays = {
        name: np.ascontiguousarray(getattr(readers.clicks, name)) for name in PRIVATE_COLUMNS
    } | {"vectors": readers.vectors}
    texts = {"news": asdict(readers.news), "user_ids": list(readers.user_ids)}
    arrays |= {"texts": np.frombuffer(json.dumps(texts).encode(), np.uint8)}
    write_bytes(path, save(arrays, {"format": SHARD_FORMAT}), mode=PRIVATE)


def read_news_shard(path: Path) -> LocalReaders:
    """The users of a shard. Raises DataError where it is missing, damaged or inconsistent."""
    try:
        with safe_open(path, framework="numpy") as file:
            if (found := (file.metadata() or {}).get("format")) != SHARD_FORMAT:
                raise ValueError(f"its format is {found!r}, expected {SHARD_FORMAT!r}")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        texts = json.loads(arrays.pop("texts").tobytes())
        columns = {name: tuple(column) for name, column in texts["news"].items()}
        news = News(**{**columns, "entities": tuple(map(tuple, columns["entities"]))})
        vectors = arrays.pop("vectors")
        return LocalReaders(
            _checked(Impressions(len(news), **arrays)), news, tuple(texts["user_ids"]), vectors
        )
    except FileNotFoundError:
        raise DataError(f"{path} does not exist", "Check data.path.") from None
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as failure:
        raise DataError(f"{path} is no shard of news: {failure}", "Write it again.") from None


def _checked(clicks: Impressions) -> Impressions:
    for pointer, column in (
        (clicks.history_ptr, clicks.history),
        (clicks.candidate_ptr, clicks.candidates),
    ):
        if (
            not len(pointer)
            or pointer[0] != 0
            or pointer[-1] != len(column)
            or bool(np.any(np.diff(pointer) < 0))
        ):
            raise ValueError(f"a pointer must rise from 0 to {len(column)}")
        if len(column) and not 0 <= int(column.min()) <= int(column.max()) < clicks.num_news:
            raise ValueError(f"items must be in [0, {clicks.num_news})")
    if len(clicks.users) != len(clicks.candidate_ptr) - 1 or len(clicks.clicked) != len(
        clicks.candidates
    ):
        raise ValueError("every impression has a user, and every candidate is clicked or not")
    return clicks
