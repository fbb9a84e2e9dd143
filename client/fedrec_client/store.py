"""The data of one user or of many users of one site, and its translation into a run's item numbers
and scale.

A shard is the exact native format, a safetensors file: what a launcher divides a data set into,
byte for byte. Its users may be without events. Every other format is read by `fedrec.data`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fedrec.data.interactions import Interactions
from fedrec.data.keyed_hash import id_words
from fedrec.data.kinds import KINDS, Kind
from fedrec.data.read import read
from fedrec.errors import DataError, RefusedError, SettingsError
from fedrec.federation.protocol import Refusal, Terms
from fedrec.storage import PRIVATE, write_bytes
from fedrec_client.settings import ClientData

SHARD_FORMAT = "fedrec-shard/1"
HELD = "public.safetensors"
"""Its name in a client's state."""


@dataclass(frozen=True)
class LocalUsers:
    """Private: the events of this site's users by the site's own item numbers, which `item_ids`
    names. Users keep their order.

    `out_of_range` is for runs with a narrower scale than the data's: refuse them, or clip.
    `events.user_words`, where there are any, are those by which a rehearsal draws for its users;
    without them the client draws by its own pseudonyms (`participant`).
    """

    events: Interactions
    item_ids: tuple[str, ...]
    user_ids: tuple[str, ...]
    out_of_range: Literal["refuse", "clip"] = "refuse"

    def __post_init__(self) -> None:
        found = (self.events.num_users, self.events.num_items)
        named = (len(self.user_ids), len(self.item_ids))
        if found != named:
            raise ValueError(
                f"{found[0]} users x {found[1]} items, but {named[0]} x {named[1]} are named"
            )
        if len(set(self.user_ids)) != named[0] or len(set(self.item_ids)) != named[1]:
            raise ValueError("every user and every item has one name")

    @property
    def num_users(self) -> int:
        """Users, with or without events."""
        return self.events.num_users

    def only(self, users: npt.NDArray[np.integer]) -> LocalUsers:
        """Those of these numbers."""
        events = self.events.users_subset(users)
        if self.events.user_words is None:  # pseudonyms say what is drawn, not these numbers
            events = replace(events, user_words=None)
        return replace(self, events=events, user_ids=tuple(self.user_ids[k] for k in users))

    def translate(self, terms: Terms) -> Interactions:
        """All users' events by the run's item numbers and scale; events on items that the catalogue
        does not name are left out.

        Whether this refuses depends on the kind and the scale of the data, never on an event: the
        server learns of a refusal. Raises RefusedError where the catalogue names an item twice,
        DataError on another kind or a narrower scale.
        """
        kind = self._require_kind_and_scale(terms)
        numbers = self._numbers(terms)
        placed = numbers[self.events.items]
        kept = placed >= 0
        return Interactions.from_columns(
            self.events.users[kept],
            placed[kept],
            np.clip(
                self.events.values[kept],
                np.float32(terms.value_range[0]),
                np.float32(terms.value_range[1]),
            ),
            num_users=self.num_users,
            num_items=len(terms.items),
            value_range=terms.value_range,
            kind=kind,
            times=None if self.events.times is None else self.events.times[kept],
            user_words=self.events.user_words,
            item_words=id_words(terms.items),
        )

    def unknown_events(self, terms: Terms) -> tuple[int, int]:
        """How many events `translate` leaves out, and how many there are. For the site's own
        eyes."""
        return int((self._numbers(terms)[self.events.items] < 0).sum()), len(self.events)

    def _require_kind_and_scale(self, terms: Terms) -> Kind:
        if terms.kind != self.events.kind:
            raise DataError(
                f"the run is about {terms.kind}, the data holds {self.events.kind}",
                (
                    'Set data.kind = "clicks" to take part with ratings as clicks; clicks cannot '
                    "become ratings."
                ),
            )
        (low, high), (lowest, highest) = terms.value_range, self.events.value_range
        if not (low <= lowest and highest <= high) and self.out_of_range == "refuse":
            raise DataError(
                f"the run's scale is {low:g} to {high:g}, the data's is {lowest:g} to {highest:g}",
                (
                    'Set data.out_of_range = "clip" to move values onto the nearest end, or do '
                    "not take part."
                ),
            )
        return self.events.kind

    def _numbers(self, terms: Terms) -> npt.NDArray[np.int64]:
        places = {item: j for j, item in enumerate(terms.items)}
        if len(places) != len(terms.items):
            raise RefusedError(
                Refusal.MALFORMED.value,
                "the catalogue names an item twice",
                "The server's operator must correct it.",
            )
        return np.array([places.get(item, -1) for item in self.item_ids], np.int64)


def read_users(data: ClientData) -> LocalUsers:
    """The users of the data file that the settings name.

    Raises DataError and SettingsError as the readers do, with file and line."""
    path = Path(data.path)
    if data.format == "shard" or (data.format == "auto" and path.suffix == ".safetensors"):
        if (
            data.columns
            or data.duplicates != "auto"
            or data.rating_range
            or data.separator
            or data.header != "auto"
        ):
            raise SettingsError(
                "a shard has no columns, duplicates or rating_range to choose", "Leave them out."
            )
        users = read_shard(path)
    else:
        dataset = read(path, data.format, **data.reader_options())
        # devices call their users alike ("me"), whose draws would all be the same: pseudonyms are
        # as stable, and differ
        events = replace(dataset.interactions, user_words=None)
        users = LocalUsers(events, dataset.catalogue.item_ids, dataset.catalogue.user_ids)
    events = users.events.as_chosen(data.kind, threshold=data.click_threshold)
    return replace(users, events=events, out_of_range=data.out_of_range)


def write_shard(
    path: Path, interactions: Interactions, item_ids: Sequence[str], user_ids: Sequence[str]
) -> None:
    """Keep these users exactly, atomically. Raises ValueError where ids and events do not agree."""
    LocalUsers(interactions, tuple(item_ids), tuple(user_ids))
    arrays = {
        "user_ptr": interactions.user_ptr,
        "items": interactions.items,
        "values": interactions.values,
    }
    more = {"user_words": interactions.user_words, "times": interactions.times}
    words = {name: array for name, array in more.items() if array is not None}
    names = {"item_ids": _packed(item_ids), "user_ids": _packed(user_ids)}
    low, high = (float(bound).hex() for bound in interactions.value_range)
    metadata = {"format": SHARD_FORMAT, "kind": interactions.kind, "lowest": low, "highest": high}
    write_bytes(
        path,
        save(
            {
                name: np.ascontiguousarray(array)
                for name, array in {**arrays, **words, **names}.items()
            },
            metadata,
        ),
        mode=PRIVATE,
    )


def read_shard(path: Path) -> LocalUsers:
    """The users of a shard. Raises DataError where it is missing, damaged or inconsistent."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        if metadata.get("format") != SHARD_FORMAT:
            raise ValueError(f"its format is {metadata.get('format')!r}, expected {SHARD_FORMAT!r}")
        items = _unpacked(arrays["item_ids"])
        users = _unpacked(arrays["user_ids"])
        return LocalUsers(_checked(_events(arrays, metadata, num_items=len(items))), items, users)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist", "Check data.path.") from None
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as failure:
        raise DataError(f"{path} is no shard: {failure}", "Write it again.") from None


def _events(
    arrays: dict[str, npt.NDArray[Any]], metadata: dict[str, str], *, num_items: int
) -> Interactions:
    kind = metadata["kind"]
    if kind not in KINDS:
        raise ValueError(f"its kind is {kind!r}")
    for name, dtype in (("user_ptr", np.int64), ("items", np.int32), ("values", np.float32)):
        if arrays[name].dtype != dtype or arrays[name].ndim != 1:
            raise ValueError(
                f"{name} must be one-dimensional {np.dtype(dtype)}, found "
                f"{arrays[name].dtype} {arrays[name].shape}"
            )
    words = arrays.get("user_words")
    if words is not None and (
        words.dtype != np.uint64 or len(words) + 1 != len(arrays["user_ptr"])
    ):
        raise ValueError("user_words must be one uint64 for each user")
    times = arrays.get("times")
    if times is not None and (times.dtype != np.int64 or times.shape != arrays["items"].shape):
        raise ValueError("times must be one int64 for each event")
    low = float.fromhex(metadata["lowest"])
    high = float.fromhex(metadata["highest"])
    columns = arrays["user_ptr"], arrays["items"], arrays["values"]
    return Interactions(*columns, num_items, (low, high), kind, times, user_words=words)  # type: ignore[arg-type]


def _checked(events: Interactions) -> Interactions:
    pointer, items, (low, high) = events.user_ptr, events.items, events.value_range
    if (
        not len(pointer)
        or pointer[0] != 0
        or pointer[-1] != len(items)
        or bool(np.any(np.diff(pointer) < 0))
    ):
        raise ValueError(f"user_ptr must rise from 0 to {len(items)}")
    if len(events.values) != len(items):
        raise ValueError(f"{len(items)} items, but {len(events.values)} values")
    if len(items) and (int(items.min()) < 0 or int(items.max()) >= events.num_items):
        raise ValueError(
            f"items must be in [0, {events.num_items}), found "
            f"{int(items.min())}..{int(items.max())}"
        )
    if bool(np.any(np.diff(events.users.astype(np.int64) * events.num_items + items) <= 0)):
        raise ValueError("the items of a user must rise")
    if not (low < high and bool(np.all((events.values >= low) & (events.values <= high)))):
        raise ValueError(f"values must be on the scale {low:g} to {high:g}")
    return events


def _packed(names: Sequence[str]) -> npt.NDArray[np.uint8]:
    return np.frombuffer(json.dumps(list(names)).encode(), np.uint8)


def _unpacked(content: npt.NDArray[Any]) -> tuple[str, ...]:
    names = json.loads(content.tobytes())
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("ids must be a list of texts")
    return tuple(names)
