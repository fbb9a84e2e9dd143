"""A data set as read or generated: private interactions, what anybody may know of the items, and
where all of it came from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from fedrec.data.features import PublicFeatures
from fedrec.data.interactions import Interactions
from fedrec.data.keyed_hash import id_words

CATALOGUE_OF_ROWS = (
    "the catalogue: no table of items came with the data, it is read off everybody's rows"
)
"""What `Provenance.not_covered` says of items that only the private rows name: an item of one
person alone leaves with that person."""

_BLOCK_BYTES = 1 << 24


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
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            size += len(block)
    return FileDigest(path.name, size, digest.hexdigest(), public)
