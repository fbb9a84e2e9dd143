"""Reader of every file format: `read("ml-1m")`, `read("log.csv", format="table", user="who",
item="what")`.

A package adds a format by naming a `Reader` in its metadata:

    [project.entry-points."fedrec.formats"]
    json-lines = "my_package.formats:READER"
"""

from __future__ import annotations

import inspect
import os
from codecs import BOM_UTF8
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import partial
from importlib import metadata
from pathlib import Path

from fedrec.data.click_lists import read_click_lists, read_click_matrices
from fedrec.data.delimited import JSON_LINES
from fedrec.data.interactions import Dataset
from fedrec.data.item_tables import PARQUET
from fedrec.data.movielens import ML_1M, ML_10M, ML_20M, ML_100K, MovieLensFormat, read_movielens
from fedrec.data.opening import line_of, open_bytes, require_file, understood
from fedrec.data.partitions import MANIFEST, read_partitions
from fedrec.data.recbole import read_recbole
from fedrec.data.resolving import is_divided
from fedrec.data.tables import TableOptions, read_table
from fedrec.data.text_tables import SEPARATORS, suffix_of
from fedrec.errors import DataError, SettingsError, of_weights

GROUP = "fedrec.formats"
_PEEK_BYTES = 1 << 20  # the first rows of any table, which say its format
_PACKED = (".zip", ".bz2", ".xz", ".zst", ".7z", ".tar", ".tgz", ".rar")
_CONVERTED = (
    *(".xlsx", ".xls", ".ods", ".feather", ".arrow", ".ipc", ".orc", ".avro", ".h5", ".hdf5"),
    *(".pkl", ".pickle", ".npy", ".mat", ".db", ".sqlite", ".sqlite3", ".sql"),
)
"""Suffixes of tables that another program can write as CSV."""


@dataclass(frozen=True)
class Reader:
    """One format: what it is in words, the reader, and whether a path looks like it.

    Args:
        summary: What the format is, in words.
        read: From a path and options to a data set.
        matches: Whether a path looks like it.
        options: A dataclass of what may be said, which the reader takes beside the path;
            without one its keywords.

    >>> formats()["ml-1m"].keywords()
    ['item_features', 'min_items', 'given', 'duplicates', 'out_of_range']
    """

    summary: str
    read: Callable[..., Dataset]
    matches: Callable[[Path], bool]
    options: type | None = None

    def keywords(self) -> list[str]:
        """What may be said of a path of this format.

        Returns:
            Parameters of its function but for the path.
        """
        if self.options is not None:
            return [field.name for field in fields(self.options)]
        return [
            key
            for key, p in inspect.signature(self.read).parameters.items()
            if p.kind is inspect.Parameter.KEYWORD_ONLY
        ]


def formats() -> dict[str, Reader]:
    """All formats by name: fedrec's own, and those of installed packages.

    Returns:
        Readers by the name of their format.

    Raises:
        SettingsError: An installed package names something that is no `Reader`.

    >>> formats()["ml-1m"].summary
    'MovieLens 1M: ratings.dat, movies.dat, whole stars'
    """
    known = dict(FORMATS)
    for point in metadata.entry_points(group=GROUP):
        reader = point.load()
        if not isinstance(reader, Reader) or point.name in FORMATS:
            raise SettingsError(
                f"format {point.name!r} of {point.value} is no new Reader",
                "Name a fedrec.data.read.Reader.",
            )
        known[point.name] = reader
    return known


def read(path: str | Path, format: str = "auto", **options: object) -> Dataset:
    """The data set at `path`, a file or a folder, in the named format, or in the one its contents
    show.

    Args:
        path: A file or a folder.
        format: The format's name; "auto" looks at the contents.
        options: Keywords of the format's reader (see `formats`): `item_features`, `min_items`,
            `given` for MovieLens; those of `tables.read_table` for tables; `duplicates` and
            `out_of_range` for all that have ratings.

    Returns:
        The data set, and what is known of its source.

    Raises:
        SettingsError: The format or an option is unknown.
        DataError: Nothing is there, no format fits, or the reader refuses a row.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "log.csv"
    >>> _ = path.write_text("who,what\\n1,a\\n1,b\\n2,a\\n")
    >>> read(path, user="who", item="what").interactions.num_items
    2
    """
    where = Path(path)
    known_formats = formats()
    if format != "auto" and format not in known_formats:
        alike = get_close_matches(format, known_formats, n=1)
        did = f"Did you mean {alike[0]!r}? " if alike else ""
        raise SettingsError(
            f"unknown data format {format!r}",
            f"{did}Use auto or one of: {', '.join(known_formats)}.",
        )
    if ":/" in str(path) and not os.path.lexists(where):  # Path makes one slash of two
        raise DataError(f"{path} is an address", "Download it: files of this machine are read.")
    if not (os.path.lexists(where) or str(where) == "-"):
        beside = [path.name for path in where.parent.iterdir()] if where.parent.is_dir() else []
        near = get_close_matches(where.name, beside, n=1)
        raise DataError(
            f"{where} does not exist",
            f"{f'Did you mean {where.parent / near[0]}? ' if near else ''}Check the path.",
        )
    if not os.path.isdir(where):
        require_file(where)
    name = format
    if format == "auto":
        name = "table" if _described(where, options) else detect(where)
    reader = known_formats[name]
    known = reader.keywords()
    if "click_threshold" not in known:
        # they have a scale, and become clicks once they are read; or have no values, which whoever
        # knows the data set refuses
        options.pop("click_threshold", None)
    require_options(name, options, known)
    with understood(where):
        return (
            reader.read(where, **options)
            if reader.options is None
            else reader.read(where, reader.options(**options))
        )


def require_options(name: str, options: Collection[str], known: Collection[str]) -> None:
    """Raises SettingsError at an option that the format of this name does not know."""
    if unknown := [key for key in options if key not in known]:
        meant = get_close_matches(unknown[0], known, n=1)
        did = of_weights(unknown[0]) or (f"Did you mean {meant[0]!r}? " if meant else "")
        called = " (data.features_path)" if unknown[0] == "item_features" else ""
        raise SettingsError(
            f"format {name} has no option {unknown[0]!r}{called}",
            f"{did}Its options are: {', '.join(known)}.",
        )


def detect(path: Path) -> str:
    """The name of the only format a path looks like; one of an installed package goes before ours.

    Args:
        path: A file or a folder.

    Returns:
        A key of `formats`.

    Raises:
        DataError: There is no such format, or more than one.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "log.csv"
    >>> _ = path.write_text("user,item\\n1,a\\n")
    >>> detect(path)
    'table'
    """
    known = formats()
    found = [name for name, reader in known.items() if reader.matches(path)]
    found = [name for name in found if name not in FORMATS] or found
    if len(found) == 1:
        return found[0]
    if found:
        raise DataError(
            f"{path} may be {' or '.join(found)}",
            f"Say which: data.format = {found[0]} (format= in Python); table reads any rows.",
        )
    if path.suffix.lower() in _PACKED:
        raise DataError(f"{path} is packed", "Unpack it, or pack the table alone by gzip (.gz).")
    if path.suffix.lower() in _CONVERTED:
        raise DataError(
            f"{path} is a {path.suffix} file, which is not read",
            "Save its rows as CSV or Parquet, with a row for each rating or click.",
        )
    tables = [] if path.is_file() else [file for file in sorted(path.iterdir()) if _is_table(file)]
    if tables:
        raise DataError(
            f"{path} is a folder, and no format says what is in it",
            f"Give one file, for example {tables[0]}; Parquet parts or train.csv and test.csv may "
            "be a folder.",
        )
    raise DataError(
        f"{path} is in no known format",
        "Name one: "
        + "; ".join(f"{name} ({reader.summary})" for name, reader in known.items())
        + ".",
    )


def _described(path: Path, options: Collection[str]) -> bool:
    """Whether options say how a text file is laid out, as those of a table do; a file that has the
    name of another format is then no such file."""
    layout = {"separator", "header", "user", "item", "rating", "timestamp"}
    text = suffix_of(path) in SEPARATORS and not _is_recbole(path)
    return path.is_file() and text and bool(layout.intersection(options))


def _movielens(form: MovieLensFormat) -> Callable[..., Dataset]:
    return partial(read_movielens, form)


def _is_100k(path: Path) -> bool:
    return (
        (path / "u.data").is_file()
        or path.name == "u.data"
        or ((path / "u.item").is_file() and (path / "u1.base").is_file())
    )


def _dat(path: Path) -> Path | None:
    file = path / "ratings.dat" if path.is_dir() else path
    return file if file.name == "ratings.dat" and file.is_file() else None


def _evidence_10m(path: Path) -> bool | None:
    """Whether a `ratings.dat` is the 10M release: by the files and the folder it came with, else by
    half stars; None says nothing."""
    file = _dat(path)
    if file is None:
        return None
    for name, answer in (("users.dat", False), ("tags.dat", True)):
        if (file.parent / name).exists():
            return answer
    folder = file.resolve().parent.name.lower()
    for name, answer in (("10m", True), ("ml-1m", False)):
        if name in folder:
            return answer
    with open_bytes(file) as content:
        return True if b"." in content.read(_PEEK_BYTES) else None


def _is_1m(path: Path) -> bool:
    return _dat(path) is not None and _evidence_10m(path) is not True


def _is_10m(path: Path) -> bool:
    return _dat(path) is not None and _evidence_10m(path) is not False


def _is_20m(path: Path) -> bool:
    file = path / "ratings.csv" if path.is_dir() else path
    if file.name != "ratings.csv" or not file.is_file():
        return False
    with open_bytes(file) as content:
        return line_of(content).removeprefix(BOM_UTF8).strip() == b"userId,movieId,rating,timestamp"


def _is_recbole(path: Path) -> bool:
    return path.suffix == ".inter" or (path.is_dir() and any(path.glob("*.inter")))


def _is_lists(path: Path) -> bool:
    return (path / "train.txt").is_file() or path.name == "train.txt"


def _is_npz(path: Path) -> bool:
    return (path.suffix == ".npz" and path.is_file()) or (
        path.is_dir() and any(path.glob("*train*.npz"))
    )


def _is_partitions(path: Path) -> bool:
    return (path / MANIFEST).is_file()


def _is_table(path: Path) -> bool:
    if _is_partitions(path):
        return False
    if path.is_dir():
        return is_divided(path) or any(file.suffix in PARQUET for file in path.iterdir())
    known = (".csv", ".tsv", ".tab", ".txt", ".dat", *JSON_LINES, *PARQUET)
    named = path.name in ("train.txt", "ratings.dat")  # which are other formats
    others = named or _is_20m(path)
    return suffix_of(path) in known and not others


FORMATS: dict[str, Reader] = {
    "ml-100k": Reader("MovieLens 100K: u.data, u.item", _movielens(ML_100K), _is_100k),
    "ml-1m": Reader(
        "MovieLens 1M: ratings.dat, movies.dat, whole stars", _movielens(ML_1M), _is_1m
    ),
    "ml-10m": Reader(
        "MovieLens 10M: ratings.dat, movies.dat, half stars", _movielens(ML_10M), _is_10m
    ),
    "ml-20m": Reader(
        "MovieLens 20M and later: ratings.csv, movies.csv", _movielens(ML_20M), _is_20m
    ),
    "table": Reader(
        "CSV and its kin, JSON lines (also .gz), Parquet; or a folder of train.csv, "
        "validation.csv, test.csv",
        read_table,
        _is_table,
        TableOptions,
    ),
    "recbole": Reader("RecBole .inter and .item", read_recbole, _is_recbole),
    "clicks-lists": Reader(
        "train.txt, test.txt: a user and its items per line", read_click_lists, _is_lists
    ),
    "partitions": Reader(
        "partitions by user, as fedrec data partition makes them", read_partitions, _is_partitions
    ),
    "clicks-npz": Reader("sparse matrices *train*.npz, *test*.npz", read_click_matrices, _is_npz),
}
