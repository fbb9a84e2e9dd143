"""Private interactions (who rated or clicked what, one frozen type, compressed by user), and a data
set as read or generated: interactions, what anybody may know of the items, and where all of it came
from.

`Interactions` is private by type: it enters only functions that return a release, a local result or
an evaluation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float32s, Int32s, Int64s
from fedrec.data.features import PublicFeatures
from fedrec.data.keyed_hash import Words, first_words, hashed, hashed_events, id_words, number_words
from fedrec.data.kinds import KINDS, Kind
from fedrec.data.opening import require_file, shown_name, understood
from fedrec.errors import SettingsError

CATALOGUE_OF_ROWS = (
    "the catalogue: no table of items came with the data, it is read off everybody's rows"
)
"""What `Provenance.not_covered` says of items that only the private rows name: an item of one
person alone leaves with that person."""
_BLOCK_BYTES = 1 << 24  # read at a time into the checksum: a file of any size in little memory


@dataclass(frozen=True)
class Interactions:
    """n events of `num_users` users on `num_items` items, sorted by user, then item.

    user_ptr: (num_users + 1,) int64, the events of user k are `user_ptr[k]:user_ptr[k + 1]`.
    items: (n,) int32 in [0, num_items). values: (n,) float32, ratings, or 1 for a click.
    times: (n,) int64 seconds, or None. value_range: the public scale (lowest, highest) of values.
    user_words: (num_users,), item_words: (num_items,) uint64, the hash of each external id
    (`keyed_hash.id_words`), by which draws are made; None where the ids are the numbers. They stay
    with their users and items when those are numbered anew.
    """

    user_ptr: Int64s
    items: Int32s
    values: Float32s
    num_items: int
    value_range: tuple[float, float]
    kind: Kind = "ratings"
    times: Int64s | None = None
    user_words: Words | None = None
    item_words: Words | None = None

    def __len__(self) -> int:
        return len(self.items)

    @property
    def num_users(self) -> int:
        """Users, with or without events."""
        return len(self.user_ptr) - 1

    @property
    def rated(self) -> bool:
        """Whether events have values on a scale; clicks have none."""
        return KINDS[self.kind].rated

    @property
    def users(self) -> Int32s:
        """(n,) int32 user of each event, expanded from `user_ptr`."""
        return np.repeat(np.arange(self.num_users, dtype=np.int32), np.diff(self.user_ptr))

    def draws(self, key: bytes) -> Words:
        """(n,) uniform 64-bit draws, one for each event: functions of the key, its user's id and
        its item's id alone."""
        users = first_words(self.num_users) if self.user_words is None else self.user_words
        items = first_words(self.num_items) if self.item_words is None else self.item_words
        return hashed_events(key, self.user_ptr, self.items, users, items)

    def user_draws(self, key: bytes) -> Words:
        """(num_users,) uniform 64-bit draws, one for each user: functions of the key and the user's
        id alone."""
        return hashed(
            key, first_words(self.num_users) if self.user_words is None else self.user_words
        )

    @staticmethod
    def from_columns(
        users: npt.NDArray[np.integer],
        items: npt.NDArray[np.integer],
        values: npt.NDArray[np.floating] | None,
        *,
        num_users: int,
        num_items: int,
        value_range: tuple[float, float],
        kind: Kind = "ratings",
        times: npt.NDArray[np.integer] | None = None,
        user_words: Words | None = None,
        item_words: Words | None = None,
    ) -> Interactions:
        """Sort parallel columns by (user, item).

        Raises ValueError on ids outside [0, num_users) x [0, num_items)."""
        for name, ids, bound in (("user", users, num_users), ("item", items, num_items)):
            if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= bound):
                raise ValueError(
                    f"{name} ids must be in [0, {bound}), found {int(ids.min())}..{int(ids.max())}"
                )
        order = np.argsort(users.astype(np.int64) * num_items + items, kind="stable")
        user_ptr = np.zeros(num_users + 1, dtype=np.int64)
        np.cumsum(np.bincount(users, minlength=num_users), out=user_ptr[1:])
        return Interactions(
            user_ptr=user_ptr,
            items=items[order].astype(np.int32),
            values=np.ones(len(items), np.float32)
            if values is None
            else values[order].astype(np.float32),
            num_items=num_items,
            value_range=value_range,
            kind=kind,
            times=None if times is None else times[order].astype(np.int64),
            user_words=user_words,
            item_words=item_words,
        )

    def select(self, mask: npt.NDArray[np.bool_]) -> Interactions:
        """The events where `mask` (n,) is true, same users and items."""
        kept = np.concatenate([[0], np.cumsum(mask)])[self.user_ptr]
        times = None if self.times is None else self.times[mask]
        return replace(
            self,
            user_ptr=kept.astype(np.int64),
            items=self.items[mask],
            values=self.values[mask],
            times=times,
        )

    def liked(self, least: float) -> Interactions:
        """The events that say that a user likes an item: ratings of at least `least`, and every
        click."""
        return self.select(self.values >= least) if self.rated else self

    def as_clicks(self, threshold: float) -> Interactions:
        """The events of at least `threshold`, as clicks."""
        kept = self.select(self.values >= threshold)
        return replace(
            kept,
            values=np.ones(len(kept), np.float32),
            kind="clicks",
            value_range=KINDS["clicks"].scale(self.value_range),
        )

    def as_chosen(self, kind: str, *, threshold: float) -> Interactions:
        """These interactions where their kind is chosen or "auto"; the ratings of at least
        `threshold` where clicks are chosen (Liang et al. 2018 take 4 stars).

        Raises SettingsError where ratings are chosen, but these are clicks."""
        if kind not in KINDS or kind == self.kind:
            return self
        if not self.rated:
            raise SettingsError(
                'data.kind = "ratings" needs ratings, but this data holds clicks',
                'Set data.kind = "auto".',
            )
        return self.as_clicks(threshold)

    def users_subset(self, users: npt.NDArray[np.integer]) -> Interactions:
        """The events of the given users, renumbered 0..len(users)-1 in the given order."""
        starts = self.user_ptr[users]
        lengths = np.diff(self.user_ptr)[users]
        ptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        index = np.repeat(starts - ptr[:-1], lengths) + np.arange(ptr[-1])
        times = None if self.times is None else self.times[index]
        words = number_words(users) if self.user_words is None else self.user_words[users]
        return replace(
            self,
            user_ptr=ptr,
            items=self.items[index],
            values=self.values[index],
            times=times,
            user_words=words,
        )


@dataclass(frozen=True)
class Catalogue:
    """Names of items and users: `item_ids[j]`, `titles[j]` (or no titles) and `user_ids[k]` as the
    source wrote them.

    Items without any interaction are part of it. Item ids and titles are public, user ids stay
    where the interactions are.
    """

    item_ids: tuple[str, ...]
    titles: tuple[str, ...] | None
    user_ids: tuple[str, ...]


@dataclass(frozen=True)
class ReadReport:
    """What a reader did to the rows it found; a row is resolved only when the caller's policy says
    so."""

    rows_read: int
    rows_kept: int
    duplicates_resolved: int = 0
    out_of_range_clipped: int = 0
    out_of_range_dropped: int = 0
    notes: tuple[str, ...] = ()


def added(reports: Sequence[ReadReport], notes: tuple[str, ...] = ()) -> ReadReport:
    """The reports of several files as one."""
    counts = (
        "rows_read",
        "rows_kept",
        "duplicates_resolved",
        "out_of_range_clipped",
        "out_of_range_dropped",
    )
    sums = {name: sum(getattr(report, name) for report in reports) for name in counts}
    return ReadReport(
        **sums, notes=(*(note for report in reports for note in report.notes), *notes)
    )


@dataclass(frozen=True)
class FileDigest:
    """One file that was read: its name, size in bytes and SHA-256.

    public: whether it holds nobody's rows. rows: a digest of who has which item, whatever the rows'
    order and form, where one was made: people are found again by it.
    """

    name: str
    size_bytes: int
    sha256: str
    public: bool = False
    rows: str = ""


@dataclass(frozen=True)
class Provenance:
    """Where a data set came from: the format's name, the files with their digests, and the reader's
    report.

    not_covered: sentences on what the reader took from all users' rows, so that no guarantee for
    training covers it.
    """

    format: str
    files: tuple[FileDigest, ...]
    report: ReadReport
    not_covered: tuple[str, ...] = ()

    def describe(self) -> dict[str, object]:
        """These facts as plain values, for a run's record."""
        return asdict(self)


@dataclass(frozen=True)
class Dataset:
    """Interactions with their catalogue, public features and provenance.

    `given_test` holds the test events of a source that comes with its own split (`interactions` are
    then its train events), and `given_validation` its validation events, where it has any.
    `columns`: role to column name, of a table. `whole`: roles (user, item) whose ids came as whole
    numbers.
    Events that do not carry the hashes of their ids get those of the catalogue's, so that draws
    never depend on numbers. Raises ValueError when the parts disagree on the number of users or
    items.
    """

    interactions: Interactions
    catalogue: Catalogue
    features: PublicFeatures
    provenance: Provenance
    given_test: Interactions | None = None
    given_validation: Interactions | None = None
    columns: Mapping[str, str] = field(default_factory=dict, compare=False)
    whole: frozenset[str] = field(default=frozenset(), compare=False)

    def __post_init__(self) -> None:
        items = len(self.catalogue.item_ids)
        users = len(self.catalogue.user_ids)
        for events in (self.interactions, self.given_test, self.given_validation):
            if events is not None and (events.num_items, events.num_users) != (items, users):
                raise ValueError(
                    f"{events.num_users} users x {events.num_items} items, but the catalogue "
                    f"names {users} x {items}"
                )
        for name, bag in self.features.bags.items():
            if bag.counts.shape[0] != items:
                raise ValueError(
                    f"feature bag {name!r} has {bag.counts.shape[0]} rows for {items} items"
                )
        if self.interactions.user_words is None or self.interactions.item_words is None:
            user_words = id_words(self.catalogue.user_ids)
            item_words = id_words(self.catalogue.item_ids)
            for name in ("interactions", "given_test", "given_validation"):
                part: Interactions | None = getattr(self, name)
                if part is not None:
                    object.__setattr__(
                        self, name, replace(part, user_words=user_words, item_words=item_words)
                    )


def with_events(
    dataset: Dataset,
    change: Callable[[Interactions], Interactions],
    *,
    catalogue: Catalogue | None = None,
    features: PublicFeatures | None = None,
    provenance: Provenance | None = None,
) -> Dataset:
    """The data set with every part of its events changed alike, and what else that changes."""
    test = dataset.given_test
    validation = dataset.given_validation
    return replace(
        dataset,
        interactions=change(dataset.interactions),
        given_test=None if test is None else change(test),
        given_validation=None if validation is None else change(validation),
        catalogue=catalogue or dataset.catalogue,
        features=dataset.features if features is None else features,
        provenance=provenance or dataset.provenance,
    )


def digest_file(path: Path, *, public: bool = False) -> FileDigest:
    """Name, size and SHA-256 of one file, read in blocks."""
    digest = hashlib.sha256()
    size = 0
    with understood(path), require_file(path).open("rb") as file:  # as it is, not unpacked
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            size += len(block)
    return FileDigest(shown_name(path), size, digest.hexdigest(), public)
