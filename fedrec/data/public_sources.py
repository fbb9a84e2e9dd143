"""Public data from people and models: ratings of public users, item-item similarities and item
vectors, as feature bags beside the metadata.

A public user is to an item what a director is: a value that it carries (Curmei et al. 2023, 3.1),
the "count" being the rating. As `PublicFeatures` they go where metadata goes, to a file or to a
server, and nothing else has to know of them.

A user whose data is public cannot be a private user too: the statistics made of that user's data
are released without noise, and no guarantee covers them. Public users are therefore other people,
or taken out of the private data.

What is given as public must not be counted from the private data itself: a column of items that
orders them as their own counts do, or pairs whose weights do as people have both, says of private
rows what no noise hides. The check reads the private rows, so it is made only where they are
already: by whoever loads them. What it says stays there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy import sparse

from fedrec.arrays import Float64s
from fedrec.data.delimited import NO_VALUE, is_number
from fedrec.data.features import FeatureBag, PublicFeatures
from fedrec.data.frame_files import parquet
from fedrec.data.ids import require_named
from fedrec.data.interactions import (
    Catalogue,
    Dataset,
    FileDigest,
    Interactions,
    Provenance,
    digest_file,
    with_events,
)
from fedrec.data.item_tables import PARQUET, item_layout
from fedrec.data.keyed_hash import below
from fedrec.data.opening import understood
from fedrec.data.text_tables import rows_of
from fedrec.data.values import AN_ID, FLOATED, floated, plain_ids
from fedrec.errors import (
    DataError,
    DataWarning,
    MalformedRowError,
    PrivacyError,
    SettingsError,
    warn,
)

_TABLE = "Give a column of ids as text or integers, then numbers."
PUBLIC_USERS = "public users"
"""Name of the bag whose values are users, and whose counts are their ratings (1 for a click)."""
SIMILAR_ITEMS = "similar items"
"""Name of the bag whose values are items, and whose counts say how similar."""
ITEM_VECTORS = "item vectors"
"""Name of the bag whose values are coordinates."""
_LARGEST = 1e30
"""Of a score or a coordinate: squares of larger ones are no 32-bit numbers."""
SOURCES = frozenset({PUBLIC_USERS, SIMILAR_ITEMS, ITEM_VECTORS})
SEEN_BEFORE = (
    "which public users are left out follows from the private rows: a public user whose events "
    "have the items and seconds of private ones is taken for the same person"
)
ALIKE = 0.9
"""Rank correlation from which on a column is taken for a count of the same data. Years of MovieLens
1M have .2 with how often films are rated."""
LEAST = 30
"""Items or pairs, below which chance may do as much."""
_PAIRS = 20_000
_ITEMS = 2_000
"""Pairs and items of a sample, spread evenly: a rank correlation of so many is off by about .02 or
less, far less than `ALIKE` is from what other data have."""
_REMEDY = (
    "Leave it out: it is not public, and would tell what the noise hides. Counts of other people "
    "are public only where nobody here is among them."
)


def with_users_made_public(dataset: Dataset, *, share: float, key: bytes) -> Dataset:
    """The data set with about `share` of its users, by a hash of the key and their ids, moved to
    the bag `PUBLIC_USERS`.

    For experiments without a second source: in the place of people who publish what they rate. All
    of their events become public, so it comes before any split. Raises DataError where nobody is
    left on one side.
    """
    n = dataset.interactions.num_users
    drawn = np.flatnonzero(below(dataset.interactions.user_draws(key), share))
    if not 0 < len(drawn) < n:
        raise DataError(
            f"{share:g} of {n} users as public users leaves one side empty", "Choose another share."
        )
    kept = np.setdiff1d(np.arange(n), drawn)
    catalogue = dataset.catalogue
    public = dataset.interactions.users_subset(drawn)
    bag = _ratings_bag(public, _named(catalogue, drawn).user_ids)
    return with_events(
        dataset,
        lambda events: events.users_subset(kept),
        catalogue=_named(catalogue, kept),
        features=with_bag(dataset.features, PUBLIC_USERS, bag),
        provenance=_also_read(dataset.provenance, (), f"{len(drawn)} of {n} users made public"),
    )


def with_public_users(dataset: Dataset, public: Dataset, *, same_ids: bool) -> Dataset:
    """The data set with the users of `public`, matched by item id, in the bag `PUBLIC_USERS`; items
    it does not know are passed over.

    same_ids: both sources number people alike, and a number in both is one person: PrivacyError.
    Otherwise numbers say nothing, and a public user of whom half the events have the item and
    second of a private event is taken for the same person and left out (MovieLens numbers people
    anew in every release). That prepares a benchmark: a deployment knows who has agreed to be
    public. Raises DataError where no event is left.
    """
    events = public.interactions
    if same_ids:
        _require_other_people(dataset.catalogue, public.catalogue)
        kept = np.arange(events.num_users)
    else:
        kept = np.flatnonzero(~_seen_before(dataset, public))
    bag = _ratings_bag(events.users_subset(kept), _named(public.catalogue, kept).user_ids)
    wanted = dataset.catalogue.item_ids
    require_named(wanted, public.catalogue.item_ids, "the table of public users", few=0.5)
    counts = sparse.csr_matrix(rows_in_order(bag.counts, public.catalogue.item_ids, wanted))
    if not counts.nnz:
        raise DataError(
            "no public user has rated an item of the catalogue",
            "Check that both sources name items alike.",
        )
    provenance = dataset.provenance
    if not same_ids:
        provenance = replace(provenance, not_covered=(*provenance.not_covered, SEEN_BEFORE))
    left_out = events.num_users - len(kept)
    note = f"{len(kept)} public users" + (
        f", {left_out} more left out because they are private users" if left_out else ""
    )
    features = with_bag(dataset.features, PUBLIC_USERS, FeatureBag(bag.vocabulary, counts))
    return replace(
        dataset,
        features=features,
        provenance=_also_read(provenance, public.provenance.files, note),
    )


def with_similar_items(dataset: Dataset, path: Path) -> Dataset:
    """The data set with the similarities of a table (CSV, TSV or Parquet) in the bag
    `SIMILAR_ITEMS`: a header, then `item,neighbour,score` a row; without a third column every score
    is 1.

    Rows of items that the catalogue does not have are passed over. What made the file must be
    public: similarities learned from private users are private. Raises DataError on a missing or
    empty file or one of other items, MalformedRowError on a bad row.
    """
    rows: Iterable[tuple[int, list[str]]]
    if path.suffix in PARQUET:
        frame = parquet(path)
        with understood(path, _TABLE):
            rows = pairs_of_frame(frame, path)
        width = frame.width
    else:
        layout = item_layout(path)
        rows = rows_of(layout)
        width = len(layout.names)
    bag = similar_items_bag(rows, path, dataset.catalogue.item_ids, width=width)
    provenance = _also_read(
        dataset.provenance, [digest_file(path)], f"{bag.counts.nnz} similar items"
    )
    return replace(
        dataset, features=with_bag(dataset.features, SIMILAR_ITEMS, bag), provenance=provenance
    )


def pairs_of_frame(
    frame: pl.DataFrame, where: Path = Path("similar items")
) -> list[tuple[int, list[str]]]:
    """Numbered rows of a frame as text, ids first."""
    plain = frame.with_columns(plain_ids(own, where) for own in frame.get_columns()[:2])
    return [(n, [str(value) for value in row]) for n, row in enumerate(plain.iter_rows())]


def similar_items_bag(
    rows: Iterable[tuple[int, list[str]]], path: Path, item_ids: Sequence[str], *, width: int
) -> FeatureBag:
    """The bag of rows of so many fields, two or three: item j carries value i with the score of the
    row `j,i,score`; `path` names them in errors."""
    number = {item: j for j, item in enumerate(item_ids)}
    cells = dict[tuple[int, int], float]()
    named = dict[str, None]()
    for line, fields in rows:
        score = fields[2] if len(fields) == 3 else "1"
        if (
            {*NO_VALUE} & {*fields[:2]}
            or len(fields) != width
            or width not in {2, 3}
            or not is_number(score)
            or abs(float(score)) > _LARGEST
        ):
            raise MalformedRowError(
                path, line, "an item, a neighbour and a finite score", ",".join(fields)
            )
        named |= dict.fromkeys(fields[:2])
        pair = number.get(fields[0], -1), number.get(fields[1], -1)
        if pair in cells:
            raise MalformedRowError(path, line, "every pair once", ",".join(fields))
        if min(pair) >= 0:
            cells[pair] = float(score)
    if bad := floated(named):
        raise DataError(f"{path}: expected {AN_ID}, found {bad[0]!r}", FLOATED)
    require_named(item_ids, named, path, few=0.5)
    if not cells:
        raise DataError(
            f"{path} knows no two of the {len(item_ids)} items",
            "Check that it names items as the data does.",
        )
    items, values = np.array(list(cells), np.int64).T
    if (items == values).all():
        raise DataError(f"{path} links every item to itself alone", "Give each item's neighbours.")
    m = len(item_ids)
    scores = np.fromiter(cells.values(), np.float32, len(cells))
    return FeatureBag(tuple(item_ids), sparse.csr_matrix((scores, (items, values)), shape=(m, m)))


def with_item_vectors(dataset: Dataset, path: Path) -> Dataset:
    """The data set with the vectors of a Parquet file in the bag `ITEM_VECTORS`; see
    `item_vectors_bag`."""
    if path.suffix not in PARQUET:
        raise DataError(
            f"{path} is no Parquet file", "Give item vectors as Parquet: an id, then numbers."
        )
    with understood(path, _TABLE):
        bag = item_vectors_bag(parquet(path), path, dataset.catalogue.item_ids)
    note = f"item vectors of {len(bag.vocabulary)} numbers"
    provenance = _also_read(dataset.provenance, [digest_file(path)], note)
    return replace(
        dataset, features=with_bag(dataset.features, ITEM_VECTORS, bag), provenance=provenance
    )


def item_vectors_bag(frame: pl.DataFrame, path: Path, item_ids: Sequence[str]) -> FeatureBag:
    """The bag of a frame: its first column holds ids, the next a list of numbers, or the others a
    number each. Items that it does not name have a vector of zeros.

    Raises DataError where it names no item of the catalogue or one twice, and where vectors differ
    in length or are not finite numbers."""
    ids = [str(value) for value in plain_ids(frame.to_series(0), path)]
    columns = frame.get_columns()[1:]
    listed = len(columns) == 1 and columns[0].dtype in (pl.List, pl.Array)
    try:
        rows = np.array(columns[0].to_list() if listed else list(zip(*columns, strict=True)), float)
    except (TypeError, ValueError):
        rows = np.full((len(ids), 1), np.nan)
    if rows.ndim != 2 or not (np.abs(rows) <= _LARGEST).all():
        raise DataError(
            f"{path} does not hold vectors of finite numbers of one length",
            "Give a column of ids, then a column of lists, or a column for each coordinate.",
        )
    place = {item: n for n, item in enumerate(ids)}
    if lost := next((item for item in ids if item in NO_VALUE), None):
        raise DataError(f"{path} has {lost!r} in the place of an id", "Drop the row.")
    if len(place) < len(ids):
        raise DataError(
            f"{path} names an item twice",
            "Check that its first column holds the data's item ids, each once.",
        )
    require_named(item_ids, place, path)
    known = [(j, place[item]) for j, item in enumerate(item_ids) if item in place]
    found = np.zeros((len(item_ids), rows.shape[1]))
    items, places = np.array(known).T
    found[items] = rows[places]
    if len(known) > 1 and not np.ptp(found[items], axis=0).any():
        warn(DataWarning(f"{path}: the vectors of all items are the same, and tell nothing"))
    names = tuple(map(str, range(rows.shape[1])))
    return FeatureBag(names, sparse.csr_matrix(found.astype(np.float32)))


def _require_other_people(private: Catalogue, public: Catalogue) -> None:
    both = set(private.user_ids) & set(public.user_ids)
    if both:
        raise PrivacyError(
            (
                f"user {min(both)!r} and {len(both) - 1} more are private and public: exact "
                "public statistics would tell their data"
            ),
            (
                'Take them out of one file, or say users_ids = "separate" where equal ids are '
                "not the same person."
            ),
        )


def _seen_before(private: Dataset, public: Dataset) -> npt.NDArray[np.bool_]:
    """(public users,) whether at least half of a user's events have the item and the second of a
    private event. False without times."""
    theirs = public.interactions
    ours = private.interactions
    if theirs.times is None or ours.times is None:
        return np.zeros(theirs.num_users, np.bool_)
    number = {item: j for j, item in enumerate(private.catalogue.item_ids)}
    item = np.array([number.get(name, -1) for name in public.catalogue.item_ids], np.int64)[
        theirs.items
    ]
    m = len(number)
    known = (
        np.isin(theirs.times * m + item, ours.times * m + ours.items)
        & (item >= 0)
        & (theirs.times > 0)
    )
    shared = np.bincount(theirs.users[known], minlength=theirs.num_users)
    return np.asarray((shared > 0) & (2 * shared >= np.diff(theirs.user_ptr)))


def _ratings_bag(events: Interactions, user_ids: Sequence[str]) -> FeatureBag:
    """(m, users): a rating of 0 stays an entry."""
    rows = sparse.csr_matrix(
        (events.values, events.items, events.user_ptr), shape=(events.num_users, events.num_items)
    )
    return FeatureBag(tuple(user_ids), sparse.csr_matrix(rows.T))


def rows_in_order(
    counts: sparse.csr_matrix, names: Sequence[str], wanted: Sequence[str]
) -> sparse.csr_matrix:
    """The rows of `counts`, named `names`, in the order `wanted`; empty rows where a name is
    unknown."""
    place = {name: j for j, name in enumerate(names)}
    pairs = [(j, place[name]) for j, name in enumerate(wanted) if name in place]
    rows, columns = np.array(pairs, np.int64).reshape(-1, 2).T
    chosen = sparse.csr_matrix(
        (np.ones(len(pairs), np.float32), (rows, columns)), shape=(len(wanted), len(names))
    )
    return sparse.csr_matrix(chosen @ counts)


def _also_read(provenance: Provenance, files: Sequence[FileDigest], note: str) -> Provenance:
    report = replace(provenance.report, notes=(*provenance.report.notes, note))
    public = [replace(file, public=True) for file in files]
    return replace(provenance, files=(*provenance.files, *public), report=report)


def _named(catalogue: Catalogue, users: npt.NDArray[np.integer]) -> Catalogue:
    return replace(catalogue, user_ids=tuple(catalogue.user_ids[k] for k in users))


def with_bag(features: PublicFeatures, name: str, bag: FeatureBag) -> PublicFeatures:
    """The features and one bag more."""
    return PublicFeatures({**features.bags, name: bag})


def public_looking(dataset: Dataset) -> Dataset:
    """The data set, with a warning for whoever holds it where a column of items, a coordinate of
    vectors, or similar items look like counts of its own events.

    No refusal: whether there is a model would tell whoever made the table what the counts are."""
    events = dataset.interactions
    counts = np.bincount(events.items, minlength=events.num_items).astype(np.float64)
    for name, bag in dataset.features.bags.items():
        numbers = None if name in SOURCES else _numbers(bag)
        if numbers is not None and _alike(numbers, counts):
            said = f"the column {name!r} of items orders them as the data's own counts do"
            warn(DataWarning(f"{said}. {_REMEDY}"))
    vectors = dataset.features.bags.get(ITEM_VECTORS)
    if vectors is not None and _one_counts(vectors, counts):
        said = "a coordinate of the item vectors orders items as the data's own counts do"
        warn(DataWarning(f"{said}. {_REMEDY}"))
    pairs = dataset.features.bags.get(SIMILAR_ITEMS)
    if pairs is not None and _looks_counted(dataset, pairs):
        said = "the weights of similar items are ordered as the data's own pairs of clicks are"
        warn(DataWarning(f"{said}. {_REMEDY}"))
    return dataset


def _one_counts(bag: FeatureBag, counts: Float64s) -> bool:
    """Whether a coordinate of vectors looks like counts; evenly chosen items of many."""
    known = np.flatnonzero(np.diff(bag.counts.indptr))
    some = known[:: max(len(known) // _ITEMS, 1)]
    rows = bag.counts[some].toarray().astype(np.float64)
    return len(some) >= LEAST and any(_alike(column, counts[some]) for column in rows.T)


def _numbers(bag: FeatureBag) -> Float64s | None:
    """(m,) the number that each item carries, NaN where it has none; None where values are not
    numbers, or items have several."""
    words = [value.removeprefix("up to ") for value in bag.vocabulary]
    if len(words) < 2 or not all(map(is_number, words)):
        return None
    each = np.diff(bag.counts.indptr)
    if each.max(initial=0) > 1:
        return None
    numbers = np.full(len(each), np.nan)
    numbers[each == 1] = np.array([float(word) for word in words])[bag.counts.indices]
    return numbers


def _looks_counted(dataset: Dataset, bag: FeatureBag) -> bool:
    events = dataset.interactions
    pairs = bag.counts.tocoo()
    step = max(pairs.nnz // _PAIRS, 1)
    X = sparse.csr_matrix(
        (np.ones(len(events)), events.items, events.user_ptr),
        shape=(events.num_users, events.num_items),
    ).T.tocsr()
    both = X[pairs.row[::step]].multiply(X[pairs.col[::step]]).sum(axis=1)
    return _alike(pairs.data[::step].astype(np.float64), np.asarray(both, np.float64).ravel())


def _alike(given: Float64s, counted: Float64s) -> bool:
    known = np.isfinite(given)
    if np.count_nonzero(known) < LEAST or np.ptp(given[known]) == 0 or np.ptp(counted[known]) == 0:
        return False
    return bool(abs(np.corrcoef(_ranks(given[known]), _ranks(counted[known]))[0, 1]) > ALIKE)


def _ranks(values: Float64s) -> Float64s:
    """Positions in order, equal values sharing their mean position: Spearman's correlation is
    Pearson's of these."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - counts / 2)[place], np.float64)


def metadata_of(
    features: PublicFeatures | None, categories: Sequence[str]
) -> PublicFeatures | None:
    """The features of these categories, of all where none is named, but for public users, links and
    vectors; None where there are none. Raises SettingsError on an unknown category.

    Features without a bag are those of data that is not there yet (`fedrec account`): what they
    will say is not asked.
    """
    if features is None or not features.bags:
        return features
    there = [name for name in features.bags if name not in SOURCES]
    if unknown := [name for name in categories if name not in there]:
        raise SettingsError(
            f"collective.categories: no feature {unknown[0]!r}",
            f"There are: {', '.join(there) or 'none'}.",
        )
    return features.only(categories or there) if there else None
