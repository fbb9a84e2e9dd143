"""Data sets for Python: from a data frame, a file or the generator, divided into what is trained on
and what is tested."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import polars as pl

from fedrec.api.habits import Answering
from fedrec.api.histories import id_column
from fedrec.api.promises import html_table
from fedrec.data import interactions as stored
from fedrec.data.frames import polars_frame, read_frame
from fedrec.data.interactions import Interactions
from fedrec.data.public_sources import (
    ITEM_VECTORS,
    SIMILAR_ITEMS,
    item_vectors_bag,
    pairs_of_frame,
    public_looking,
    similar_items_bag,
    with_bag,
)
from fedrec.data.recbole_export import write_recbole
from fedrec.data.resolving import Duplicates, Missing, OutOfRange
from fedrec.data.splits import Split, SplitKind, given, new_items
from fedrec.errors import DataError, SettingsError, UnusedColumnsWarning, warn
from fedrec.run.data.datasets import left_out, load_dataset, load_split
from fedrec.run.outcomes import Outcome
from fedrec.settings import Scenario, validated

_NO_ARRAY = (
    "a data set is no array whose rows could be divided again, as GridSearchCV does: every fold "
    "would train a model on the same people, whose epsilons add up",
    "Try each set of ParameterGrid on one split: clone(model).set_params(**chosen).fit(train)"
    ".score(test). The rows are in to_frame().",
)


@dataclass(frozen=True, repr=False)
class Dataset(Answering):
    """Ratings or clicks with their catalogue. Make one with `from_frame`, `from_file` or `planted`.

    Args:
        source: What the library reads and writes; the three ways above make it.

    >>> import fedrec
    >>> log = {"user": [1, 1, 2, 2], "item": ["a", "b", "a", "c"]}
    >>> fedrec.Dataset.from_frame(log)
    Dataset(clicks, 2 users, 3 items, 4 events)
    """

    source: stored.Dataset

    @staticmethod
    def from_frame(
        frame: Any,
        *,
        user: str = "user",
        item: str = "item",
        rating: str | None = None,
        time: str | None = None,
        rating_range: tuple[float, float] | None = None,
        click_threshold: float | None = None,
        items: Any = None,
        similar_items: Any = None,
        item_vectors: Any = None,
        validation: Any = None,
        test: Any = None,
        duplicates: Duplicates = "auto",
        out_of_range: OutOfRange = "refuse",
        missing: Missing = "refuse",
        decimal: str = ".",
        time_format: str = "",
    ) -> Dataset:
        """The rows of a polars or pandas data frame, of an Arrow table, or of a mapping of columns.

        Args:
            frame: One row for each rating or click.
            user: Column of user ids, numbers or text.
            item: Column of item ids, numbers or text.
            rating: Column of ratings. Without one, `rating_range` takes the column rating, or the
                one that is called as ratings are (stars, score ...); without both every row is a
                click.
            time: Column of times: seconds, dates or ISO text. Guessed where the name is usual.
            rating_range: Lowest and highest rating; needed with `rating`. It is public, so it must
                not be read off the data.
            click_threshold: Makes clicks of ratings: the lowest that counts as a click. Without a
                `rating_range`, the column `rating` may hold anything that grows with liking:
                thumbs (0 and 1) or counts of plays.
            items: A frame of public item features: the column named by `item`, a `title`
                (optional), and any others.
            similar_items: A frame of public pairs: item, neighbour and, if wished, a score.
            item_vectors: A frame of public vectors: item, then a list or a column for each number.
            validation: A frame of validation rows with the same columns, where the data comes
                divided.
            test: A frame of test rows with the same columns, where the data comes divided.
            duplicates: What to do with a second row of one user and item: "refuse", "last",
                "mean" or "sum", before a threshold makes clicks. "auto" merges clicks, adds up
                plays and refuses ratings.
            out_of_range: What to do with ratings outside `rating_range`: "refuse", "clip" or
                "drop".
            missing: What to do with rows that lack a value: "refuse" or "drop".
            decimal: The mark before decimals of ratings in text, a point or a comma.
            time_format: How times in text are written, for example "%d.%m.%Y %H:%M".

        Returns:
            The data set, with the ids and column names of the frame.

        Raises:
            DataError: A column is missing, or a row cannot be used; the message names the row and
                the remedy.
            SettingsError: An argument contradicts another.

        >>> import fedrec
        >>> log = {"who": [1, 1, 2], "what": ["a", "b", "a"], "stars": [5, 2, 4]}
        >>> columns = {"user": "who", "item": "what", "rating": "stars"}
        >>> fedrec.Dataset.from_frame(log, **columns, rating_range=(1, 5))
        Dataset(ratings, 2 users, 2 items, 3 events)
        """
        policies: dict[str, Any] = {
            "duplicates": duplicates,
            "out_of_range": out_of_range,
            "missing": missing,
            "decimal": decimal,
            "time_format": time_format,
        }
        columns: dict[str, Any] = {"user": user, "item": item, "rating": rating, "time": time}
        parts: dict[str, Any] = {"items": items, "validation": validation, "test": test}
        scale: dict[str, Any] = {"rating_range": rating_range, "click_threshold": click_threshold}
        read = read_frame(frame, **columns, **scale, **parts, **policies)
        ids = read.catalogue.item_ids
        features = read.features
        if similar_items is not None:
            pairs = polars_frame(similar_items, what="frame of similar items")
            rows = pairs_of_frame(pairs)
            bag = similar_items_bag(rows, Path("similar items"), ids, width=pairs.width)
            features = with_bag(features, SIMILAR_ITEMS, bag)
        if item_vectors is not None:
            vectors = polars_frame(item_vectors, what="frame of item vectors")
            bag = item_vectors_bag(vectors, Path("item vectors"), ids)
            features = with_bag(features, ITEM_VECTORS, bag)
        return Dataset(public_looking(replace(read, features=features)))

    @staticmethod
    def from_matrix(
        matrix: Any,
        *,
        user_ids: Any = None,
        item_ids: Any = None,
        rating_range: tuple[float, float] | None = None,
        click_threshold: float | None = None,
        items: Any = None,
    ) -> Dataset:
        """A sparse matrix of users x items, as scipy has it: every entry but 0 is a click, whatever
        its value, with a `click_threshold` those of so much or more, and with a `rating_range`
        every stored one is a rating. All columns are items of the public catalogue.

        Args:
            matrix: Of scipy.sparse, in any format.
            user_ids: An id for each row; without them their numbers.
            item_ids: An id for each column; without them their numbers.
            rating_range: Lowest and highest rating, which are public.
            click_threshold: The lowest value of a click; plays of one user and item add up.
            items: A frame of public item features, as in `from_frame`, with a column item.

        Returns:
            The data set.

        Raises:
            DataError: It is no such matrix, an entry is negative or no number, or ids are too few
                or come twice.

        >>> import fedrec, scipy.sparse
        >>> matrix = scipy.sparse.csr_matrix([[1, 0, 1], [0, 1, 0]])
        >>> fedrec.Dataset.from_matrix(matrix)
        Dataset(clicks, 2 users, 3 items, 3 events)
        """
        code = getattr(getattr(matrix, "dtype", None), "kind", "")
        if getattr(matrix, "ndim", 0) != 2 or not hasattr(matrix, "tocoo") or code not in "biuf":
            raise DataError(
                f"a {type(matrix).__name__} is no sparse matrix of users x items",
                "Give scipy.sparse.csr_matrix(matrix), of numbers.",
            )
        entries = matrix.tocsr(copy=True)
        entries.sum_duplicates()  # as SciPy means them
        rated = rating_range is not None or click_threshold is not None
        if not rated:
            entries.eliminate_zeros()
            if bad := entries.data[~(entries.data > 0)].tolist():
                raise DataError(
                    f"the matrix holds {bad[0]!r}",
                    "An entry is a click, or give rating_range= or click_threshold=.",
                )
            if (entries.data != 1).any():
                warn(UnusedColumnsWarning("the matrix holds counts, and each is one click"))
        coo = entries.tocoo()
        ids = dict[str, pl.Series]()
        named = {"user": user_ids, "item": item_ids}
        for (role, own), count in zip(named.items(), matrix.shape, strict=True):
            ids[role] = id_column(role, [*(range(count) if own is None else own)])
            if len(ids[role]) != count or ids[role].n_unique() != count:
                raise DataError(
                    f"{role}_ids holds {ids[role].n_unique():,} ids for {count:,} {role}s",
                    "Give an id for each, none twice.",
                )
        rows = {"user": ids["user"][coo.row], "item": ids["item"][coo.col]}
        if rated:
            rows["rating"] = pl.Series(coo.data.astype(np.float64))
        known = {"item": ids["item"]} if items is None else items
        return Dataset.from_frame(
            rows, rating_range=rating_range, click_threshold=click_threshold, items=known
        )

    @staticmethod
    def from_file(
        path: str | Path,
        format: str = "auto",
        *,
        user: str | None = None,
        item: str | None = None,
        rating: str | None = None,
        time: str | None = None,
        **settings: Any,
    ) -> Dataset:
        """A data set in any format of `fedrec data formats`: MovieLens, CSV, Parquet, RecBole,
        click lists.

        Args:
            path: A file or a folder.
            format: The format's name; "auto" looks at the contents.
            user: Column of user ids, of a table.
            item: Column of item ids, of a table.
            rating: Column of ratings, of a table.
            time: Column of times, of a table. Guessed where the name is usual.
            settings: Keys of the scenario's table `[data]`, for example `rating_range=(1, 5)`.

        Returns:
            The data set; `notes` says what was guessed about the file.

        Raises:
            DataError: There is nothing, no format fits, or a row cannot be used; the message
                names file and line.
            SettingsError: The format or a key is unknown.

        >>> import fedrec, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "log.csv"
        >>> _ = path.write_text("user,item\\n1,a\\n1,b\\n2,a\\n")
        >>> fedrec.Dataset.from_file(path)
        Dataset(clicks, 2 users, 2 items, 3 events)
        """
        empty = isinstance(path, str) and not path.strip()  # of a scenario, "" is planted data
        if empty or not isinstance(path, str | os.PathLike):
            raise DataError(
                f"{path!r} is no path" if empty else f"a {type(path).__name__} is no path",
                "Give the name of one file or folder, or Dataset.from_frame(frame).",
            )
        named = {"user": user, "item": item, "rating": rating, "timestamp": time}
        columns = {role: name for role, name in named.items() if name is not None}
        if columns:
            settings["columns"] = {**settings.get("columns", {}), **columns}
        if "click_threshold" in settings:
            settings = {"kind": "clicks", **settings}
        data = {"path": os.path.expanduser(path), "format": format, **settings}
        return Dataset(load_dataset(_scenario("from_file", data=data)))

    @staticmethod
    def planted(preset: str = "small", *, seed: int = 1, **settings: Any) -> Dataset:
        """Invented data with known tastes: "small", "demo", "skewed", "ml10m", "ml10m_x10" or
        "ml20m", or sizes of your own.

        Args:
            preset: The sizes' name.
            seed: Of all that is drawn.
            settings: Keys of the scenario's table `[data]`, for example `kind="clicks"` or
                `planted={"users": 1000, "items": 300}`.

        Returns:
            The data set; the same seed and sizes give the same bytes.

        Raises:
            SettingsError: The preset or a key is unknown, or sizes contradict each other.

        >>> import fedrec
        >>> fedrec.Dataset.planted("small", kind="clicks")
        Dataset(clicks, 300 users, 120 items, 7,500 events)
        """
        own = {} if "planted" in settings else {"preset": preset}
        return Dataset(load_dataset(_scenario("planted", seed=seed, data={**own, **settings})))

    def split(
        self, kind: SplitKind | None = None, *, seed: int = 1, **settings: Any
    ) -> tuple[TrainingSet, TestSet]:
        """Divide the data: "random", "held-out-users", "temporal", "leave-last-out", "given" where
        it came divided, or "new-items".

        "new-items" leaves a tenth of the items out of training, rows and all; the test set asks
        for lists of these, of `model.with_items(data)`.

        The test set is for `fedrec.evaluate`. The validation rows stay with the training set, where
        models use them for their choices.

        Args:
            kind: How rows are divided; without one "given" where the data came divided, otherwise
                "random".
            seed: Decides which rows go where, by a hash of it and of user and item ids.
            settings: Further keys of the scenario's table `[split]`, for example `cuts` or
                `validation_share`.

        Returns:
            What models are trained on, and what they are measured on.

        Raises:
            SettingsError: The kind of split or a key is unknown, or does not fit the data.
            DataError: The data is too small to be divided so.

        >>> import fedrec
        >>> train, test = fedrec.Dataset.planted("small").split("leave-last-out")
        >>> test
        TestSet(leave-last-out, 300 ratings)
        """
        chosen = kind or ("random" if self.source.given_test is None else "given")
        if chosen == "new-items":
            return _new_items(self.source, seed=seed, settings=settings)
        split = load_split(
            _scenario("split", split={"kind": chosen, "seed": seed, **settings}), self.source
        )
        return TrainingSet(self.source, split), TestSet(self.source, split)

    def to_recbole(self, folder: str | Path, name: str = "data") -> Path:
        """Write `NAME/NAME.inter` and `NAME/NAME.item`, RecBole's atomic files, and return their
        folder.

        Ratings have a column rating, and events with times a column timestamp. Items have their
        title and every public feature.

        Args:
            folder: Where the new folder is made.
            name: Of the new folder, and of the files.

        Returns:
            The new folder.

        Raises:
            RunError: It cannot be written.

        >>> import fedrec, tempfile
        >>> data = fedrec.Dataset.from_frame({"user": [1, 1, 2], "item": ["a", "b", "a"]})
        >>> folder = data.to_recbole(tempfile.mkdtemp(), name="mine")
        >>> sorted(path.name for path in folder.iterdir())
        ['mine.inter', 'mine.item']
        """
        return write_recbole(self.source, Path(folder), name)

    @property
    def kind(self) -> Literal["ratings", "clicks"]:
        """Ratings or clicks."""
        return self.source.interactions.kind

    @property
    def num_users(self) -> int:
        """Users, with or without events."""
        return self.source.interactions.num_users

    @property
    def num_items(self) -> int:
        """Items of the catalogue."""
        return self.source.interactions.num_items

    @property
    def item_ids(self) -> tuple[Any, ...]:
        """Ids as the source has them: numbers or text."""
        return tuple(_ids(self.source, "item"))

    def to_frame(self) -> pl.DataFrame:
        """A row for each event, in the columns of the source; times in seconds. Of data that came
        divided, a column part says which it is of.

        Returns:
            The rows, in no order that was promised.

        >>> import fedrec
        >>> data = fedrec.Dataset.from_frame({"who": [1, 1, 2], "item": [7, 8, 7]}, user="who")
        >>> data.to_frame().rows()
        [(1, 7), (1, 8), (2, 7)]
        """
        parts = {
            "train": self.source.interactions,
            "validation": self.source.given_validation,
            "test": self.source.given_test,
        }
        frames = {
            part: _frame(self.source, events)
            for part, events in parts.items()
            if events is not None
        }
        if len(frames) == 1:
            return frames["train"]
        return pl.concat(
            own.with_columns(pl.lit(part).alias("part")) for part, own in frames.items()
        )

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise SettingsError(*_NO_ARRAY)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader guessed, merged or dropped."""
        report = self.source.provenance.report
        merged = (
            (f"{report.duplicates_resolved:,} repeated rows merged",)
            if report.duplicates_resolved
            else ()
        )
        return (*merged, *report.notes)

    def __len__(self) -> int:
        return len(self.source.interactions)

    def __repr__(self) -> str:
        told = ("columns not used", "times are seconds")
        said = "".join(f"; {note}" for note in self.notes if any(words in note for words in told))
        return (
            f"Dataset({self.kind}, {self.num_users:,} users, {self.num_items:,} items, "
            f"{len(self):,} events{said})"
        )

    def _repr_html_(self) -> str:
        rows = [
            ("kind", self.kind),
            ("users", f"{self.num_users:,}"),
            ("items", f"{self.num_items:,}"),
            ("events", f"{len(self):,}"),
        ]
        return html_table(("data set", ""), [*rows, *(("note", note) for note in self.notes)])


@dataclass(frozen=True, repr=False)
class TrainingSet(Answering):
    """The part of a split that a model may learn from, with its validation rows.

    Args:
        source: The data set that was divided.
        split: Which of its rows are whose.

    >>> import fedrec
    >>> train, test = fedrec.Dataset.planted("small").split()
    >>> train
    TrainingSet(300 users, 5,943 ratings, 768 for validation)
    """

    source: stored.Dataset
    split: Split

    def to_frame(self) -> pl.DataFrame:
        """A row for each event that is trained on, as `Dataset.to_frame`.

        Returns:
            The rows.

        >>> import fedrec
        >>> train, test = fedrec.Dataset.planted("small").split()
        >>> train.to_frame().columns
        ['user', 'item', 'rating', 'timestamp']
        """
        return _frame(self.source, self.split.train, self.split.train_users)

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise SettingsError(*_NO_ARRAY)

    @property
    def kind(self) -> Literal["ratings", "clicks"]:
        """Ratings or clicks."""
        return self.split.train.kind

    def __len__(self) -> int:
        return len(self.split.train)

    def __repr__(self) -> str:
        validated_by = len(self.split.validation.targets)
        return (
            f"TrainingSet({self.split.train.num_users:,} users, {len(self):,} {self.kind}, "
            f"{validated_by:,} for validation)"
        )


def undivided(data: Dataset) -> TrainingSet:
    """All rows of the data to train on, none to test; where it came divided, its training rows."""
    source = data.source
    if source.given_test is not None:
        return data.split("given")[0]
    events = source.interactions
    own = source.given_validation
    split = given(events, events.select(np.zeros(len(events), bool)), seed=1, validation=own)
    said = source.provenance.not_covered
    return TrainingSet(source, replace(split, not_covered=said, follows=True))


def _new_items(
    source: stored.Dataset, *, seed: int, settings: Mapping[str, Any]
) -> tuple[TrainingSet, TestSet]:
    if settings or source.given_test is not None:
        raise SettingsError(
            "a split by new items has a seed alone, and data that came divided has another",
            "Leave the settings out, and give all rows in one part.",
        )
    known, whole = left_out(source, seed=seed)
    new = np.arange(len(whole.catalogue.item_ids)) >= len(known.catalogue.item_ids)
    split = new_items(whole.interactions, new, seed=seed)
    return undivided(Dataset(known)), TestSet(whole, split)


@dataclass(frozen=True, repr=False)
class TestSet(Answering):
    """The part of a split that only `fedrec.evaluate` reads.

    Args:
        source: The data set that was divided.
        split: Which of its rows are whose.
        measured: Controls that were measured already, by what was asked of them.

    >>> import fedrec
    >>> train, test = fedrec.Dataset.planted("small").split()
    >>> len(test)
    789
    """

    __test__ = False  # no test class, for pytest
    source: stored.Dataset
    split: Split
    measured: dict[str, Mapping[str, Outcome]] = field(default_factory=dict, compare=False)
    """Controls by what was asked of them: they do not depend on the model, and take longer than
    it."""

    def to_frame(self) -> pl.DataFrame:
        """A row for each event that is to be predicted, as `Dataset.to_frame`.

        Returns:
            The rows.

        >>> import fedrec
        >>> train, test = fedrec.Dataset.planted("small").split()
        >>> len(test.to_frame()) == len(test)
        True
        """
        fold = self.split.test
        numbers = self.split.train_users if fold.users is None else fold.users
        return _frame(self.source, fold.targets, numbers)

    def __len__(self) -> int:
        return len(self.split.test.targets)

    def __repr__(self) -> str:
        return f"TestSet({self.split.kind}, {len(self):,} {self.split.test.targets.kind})"


def _ids(source: stored.Dataset, role: Literal["user", "item"]) -> list[Any]:
    known = source.catalogue.user_ids if role == "user" else source.catalogue.item_ids
    return [*map(int, known)] if role in source.whole else [*known]


def _frame(source: stored.Dataset, events: Interactions, numbers: Any = None) -> pl.DataFrame:
    """Events in the source's columns. numbers: of their users in the catalogue, None for all."""
    users = events.users if numbers is None else numbers[events.users]
    columns: dict[str, Any] = {
        "user": pl.Series(_ids(source, "user"))[users],
        "item": pl.Series(_ids(source, "item"))[events.items],
    }
    if events.rated:
        columns["rating"] = events.values
    if events.times is not None:
        columns["timestamp"] = events.times
    return pl.DataFrame({source.columns.get(role, role): own for role, own in columns.items()})


def _scenario(source: str, **tables: Any) -> Scenario:
    return validated(tables, source=source)
