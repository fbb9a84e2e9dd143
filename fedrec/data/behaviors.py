"""`behaviors.tsv` of MIND: five columns of text to `Impressions`, in blocks of whole lines, each
checked and named when it is wrong.

MIND writes a user's history, the clicks of the weeks before, on each of its lines. Where the lines
of a user differ, each must begin with the shortest, and the shortest is taken: it holds no click
that one of these impressions asks about. A user may click again what it clicked weeks ago (0.5% of
MIND's clicks): those are two clicks on one news, as they are in MIND.

Of 2.2 million impressions (MINDlarge) the result takes 5 bytes a candidate; reading needs about
twice that.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NoReturn, get_args

import numpy as np
import numpy.typing as npt
import polars as pl

from fedrec.arrays import Int32s, Int64s
from fedrec.data.delimited import decoded
from fedrec.data.frame_files import csv
from fedrec.data.ids import require_distinct
from fedrec.data.impressions import Impressions, News
from fedrec.data.keyed_hash import id_words
from fedrec.data.opening import faults, line_of, open_bytes, require_file
from fedrec.errors import DataError, MalformedRowError

Unknown = Literal["refuse", "add", "drop"]
"""News that `news.tsv` does not have: refuse the line that names it, add it to the catalogue
without any text, or leave it out."""

_BLOCK_BYTES = 1 << 25
"""Text parsed at a time: a log of gigabytes is read in bounded memory, and a block of 32 MB is long
enough for the columns to be parsed fast."""
_COLUMNS = ("impression", "user", "time", "history", "shown")
_TIME = r"^\d{1,2}/\d{1,2}/\d{4} \d{1,2}:\d{2}:\d{2} [AP]M$"
_LABEL = re.compile(r".+-[01]")


def read_behaviors(path: Path, news: News) -> Impressions:
    """The impressions of one file in its order, users numbered as they come; clicked is False
    throughout in a file without labels.

    Raises DataError on a missing or empty file, MalformedRowError at the first line that is
    malformed, that names news which `news` does not have, or whose history contradicts an earlier
    line of its user.
    """
    return read_growing(path, news, unknown="refuse")[1]


def read_growing(path: Path, news: News, *, unknown: Unknown) -> tuple[News, Impressions]:
    """Impressions as `read_behaviors` reads them, and the catalogue with the news that were added
    to it at its end.

    unknown "drop": such news leave histories and candidates, and impressions that show nothing else
    leave with them.
    """
    if unknown not in get_args(Unknown):
        raise ValueError(
            f"unknown must be one of {', '.join(get_args(Unknown))}, found {unknown!r}"
        )
    reading = _Reading(require_file(path), list(news.ids), unknown)
    for first_line, block in _blocks(path):
        reading.read(first_line, block)
    return _with_placeholders(news, reading.ids), reading.finish()


@dataclass
class _Reading:
    """What the blocks read so far have added up to."""

    path: Path
    ids: list[str]
    unknown: Unknown
    labelled: bool | None = None
    users: dict[str, int] = field(default_factory=dict)
    digests: npt.NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    others: list[tuple[int, int, Int32s]] = field(default_factory=list)
    columns: dict[str, list[npt.NDArray[np.generic]]] = field(
        default_factory=lambda: {name: [] for name in Impressions.__annotations__}
    )

    def read(self, first_line: int, block: bytes) -> None:
        frame = self._frame(first_line, block)
        known = len(self.users)
        numbers = np.array(
            [self.users.setdefault(user, len(self.users)) for user in frame["user"].to_list()],
            np.int32,
        )
        self._add("users", numbers)
        self._read_histories(frame["history"], numbers, known, first_line)
        tokens = frame["shown"].str.split(" ")
        self._add("candidate_ptr", tokens.list.len().to_numpy())
        shown = tokens.explode()
        if self.labelled:
            self._add("clicked", shown.str.ends_with("-1").to_numpy())
            shown = shown.str.head(-2)
        self._add("candidates", self._encode(shown, tokens.list.len().to_numpy(), first_line))

    def finish(self) -> Impressions:
        """Everything in one piece."""
        if not self.columns["users"]:
            raise DataError(f"{self.path} holds no impressions", "Download or unpack it again.")
        require_distinct(self.users, "user", self.path)
        require_distinct(self.ids, "news", self.path)
        joined = {name: np.concatenate(parts) for name, parts in self.columns.items() if parts}
        ptr, history = self._shortened(
            _pointers(joined["history_ptr"]), joined["history"].astype(np.int32)
        )
        candidates = joined["candidates"].astype(np.int32)
        clicked = (
            joined["clicked"].astype(np.bool_)
            if self.labelled
            else np.zeros(len(candidates), np.bool_)
        )
        shown = _pointers(joined["candidate_ptr"])
        words = id_words(list(self.users))
        found = Impressions(
            len(self.ids),
            ptr,
            history,
            joined["users"].astype(np.int32),
            shown,
            candidates,
            clicked,
            words,
        )
        return _only_known(found) if self.unknown == "drop" else found

    def _add(self, name: str, values: npt.NDArray[np.generic]) -> None:
        self.columns[name].append(values)

    def _frame(self, first_line: int, block: bytes) -> pl.DataFrame:
        """The block's rows, all of them well-formed."""
        if self.labelled is None:
            self.labelled = (
                _LABEL.fullmatch(
                    block.split(b"\n", 1)[0]
                    .decode("utf-8", "replace")
                    .rstrip("\r")
                    .rpartition(" ")[2]
                )
                is not None
            )
        lines = block.count(b"\n") + (not block.endswith(b"\n"))
        try:
            schema = dict.fromkeys(_COLUMNS, pl.String)
            frame = csv(
                block, separator="\t", has_header=False, quote_char=None, schema=schema
            ).fill_null("")
        except faults() as error:
            self._refuse_first_malformed(first_line, block, str(error))
        if (
            len(frame) != lines
            or block.count(b"\t") != lines * (len(_COLUMNS) - 1)
            or not frame.select(_well_formed(self.labelled)).item()
        ):
            self._refuse_first_malformed(first_line, block, "a line is malformed")
        return frame

    def _read_histories(
        self, histories: pl.Series, numbers: Int32s, known: int, first_line: int
    ) -> None:
        """Those of users who come for the first time, and those that differ from the user's
        first."""
        digests = histories.hash().to_numpy()
        firsts = np.unique(numbers, return_index=True)[1]
        # in the order of their numbers, since users are numbered as they come
        firsts = firsts[numbers[firsts] >= known]
        self.digests = np.concatenate([self.digests, digests[firsts]])
        differing = np.flatnonzero(digests != self.digests[numbers])
        rows = np.concatenate([firsts, differing])
        written = histories.gather(rows)
        tokens = written.str.split(" ")
        sizes = np.where((written == "").to_numpy(), 0, tokens.list.len().to_numpy())
        names = tokens.explode()
        items = self._encode(names.filter(names != ""), sizes, first_line, rows)
        cut = int(sizes[: len(firsts)].sum())
        self._add("history_ptr", sizes[: len(firsts)])
        self._add("history", items[:cut])
        rest = np.split(items[cut:], np.cumsum(sizes[len(firsts) :])[:-1]) if len(differing) else []
        self.others += [
            (first_line + int(row), int(numbers[row]), mine)
            for row, mine in zip(differing, rest, strict=True)
        ]

    def _encode(
        self,
        names: pl.Series,
        sizes: npt.NDArray[np.integer],
        first_line: int,
        rows: Int64s | None = None,
    ) -> Int32s:
        """News ids to numbers; `sizes` of them belong to each row of the block (or to each of
        `rows`)."""
        codes = names.cast(pl.Enum(self.ids), strict=False)
        if codes.null_count() and self.unknown != "drop":
            if self.unknown == "refuse":
                place = np.searchsorted(
                    np.cumsum(sizes), np.flatnonzero(codes.is_null().to_numpy()), side="right"
                )
                row = place if rows is None else np.asarray(rows)[place]
                worst = int(np.argmin(row))
                name = names.filter(codes.is_null())[worst]
                remedy = (
                    'Use the news.tsv of the same release, or data.unknown_news = "add" (kept '
                    'without text) or "drop".'
                )
                raise MalformedRowError(
                    self.path, first_line + int(row[worst]), "news that news.tsv has", name, remedy
                )
            self.ids += names.filter(codes.is_null()).unique(maintain_order=True).to_list()
            codes = names.cast(pl.Enum(self.ids))
        return codes.to_physical().cast(pl.Int32).fill_null(-1).to_numpy()

    def _shortened(self, ptr: Int64s, history: Int32s) -> tuple[Int64s, Int32s]:
        """Histories with the shortest of each user whose lines differ.

        Raises MalformedRowError where one does not begin with it."""
        shortest: dict[int, Int32s] = {}
        for line, user, other in self.others:
            mine = shortest.get(user, history[ptr[user] : ptr[user + 1]])
            size = min(len(mine), len(other))
            if not np.array_equal(mine[:size], other[:size]):
                expected = "a history that continues or begins the user's others"
                found = " ".join(self.ids[j] for j in other)
                raise MalformedRowError(
                    self.path,
                    line,
                    expected,
                    found[:80],
                    "Read files of different weeks one by one.",
                )
            shortest[user] = mine[:size]
        sizes = np.diff(ptr)
        sizes[list(shortest)] = [len(mine) for mine in shortest.values()]
        return _pointers(sizes), history[
            np.arange(len(history)) - np.repeat(ptr[:-1], np.diff(ptr))
            < np.repeat(sizes, np.diff(ptr))
        ]

    def _refuse_first_malformed(self, first_line: int, block: bytes, reason: str) -> NoReturn:
        """Line by line; DataError with `reason` where no line explains it."""
        for line, raw in enumerate(block.removesuffix(b"\n").split(b"\n"), start=first_line):
            text = decoded(raw.removesuffix(b"\r"), self.path, line)
            if fault := _fault(text, bool(self.labelled)):
                raise MalformedRowError(self.path, line, *fault)
        raise DataError(
            f"{self.path} cannot be read: {reason.splitlines()[0]}", "Check that the file is whole."
        )


def _well_formed(labelled: bool) -> pl.Expr:
    spaced = pl.col("shown") + pl.lit(" ")  # every candidate ends in a blank
    candidates = pl.col("shown").str.count_matches(" ", literal=True) + 1
    marked = (
        spaced.str.count_matches(r"[^ ]-[01] ") if labelled else spaced.str.count_matches(r"[^ ] ")
    )
    return (
        pl.col("impression").str.contains(r"^\d+$")
        & pl.col("user").str.contains(r"^[^ ]+$")
        & pl.col("time").str.contains(_TIME)
        & (candidates == marked)
        & ~pl.col("shown").str.starts_with(" ")
        & ~pl.col("history").str.contains(r"^ | $|  ")
    ).all()


def _fault(text: str, labelled: bool) -> tuple[str, str] | None:
    """What was expected and what came, of the first thing that is wrong with a line."""
    fields = text.split("\t")
    if len(fields) != len(_COLUMNS):
        return f"{len(_COLUMNS)} fields separated by tabs", text[:80]
    impression, user, time, history, shown = fields
    label = "news ids with -0 or -1" if labelled else "news ids"
    checks = (
        ("an impression id, a number", impression, re.fullmatch(r"\d+", impression)),
        ("a user id", user, re.fullmatch(r"[^ ]+", user)),
        ("a time as in 11/15/2019 10:22:32 AM", time, re.match(_TIME, time)),
        ("news ids, one blank between", history, not re.search(r"^ | $|  ", history)),
    )
    for expected, found, right in checks:
        if not right:
            return expected, found[:80]
    bad = [
        token for token in shown.split(" ") if not (_LABEL.fullmatch(token) if labelled else token)
    ]
    return (f"{label}, one blank between", bad[0][:80]) if bad else None


def _blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """Whole lines, and the number of the first of them."""
    first_line = 1
    with open_bytes(path) as file:
        while block := file.read(_BLOCK_BYTES) + line_of(file):
            yield first_line, block.removeprefix(BOM_UTF8 if first_line == 1 else b"")
            first_line += block.count(b"\n")


def _only_known(found: Impressions) -> Impressions:
    """Without places of -1, and without impressions that had no other."""
    history = found.history >= 0
    shown = found.candidates >= 0
    left = np.diff(_pointers(shown)[found.candidate_ptr])
    return replace(
        found,
        history_ptr=_pointers(history)[found.history_ptr],
        history=found.history[history],
        users=found.users[left > 0],
        candidate_ptr=_pointers(left[left > 0]),
        candidates=found.candidates[shown],
        clicked=found.clicked[shown],
    )


def _pointers(sizes: npt.NDArray[np.generic]) -> Int64s:
    return np.concatenate([[0], np.cumsum(sizes.astype(np.int64))]).astype(np.int64)


def _with_placeholders(news: News, ids: list[str]) -> News:
    added = len(ids) - len(news)
    if not added:
        return news
    blank = ("",) * added
    return News(
        tuple(ids),
        news.titles + blank,
        news.abstracts + blank,
        news.categories + blank,
        news.subcategories + blank,
        news.entities + ((),) * added,
    )
