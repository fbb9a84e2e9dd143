"""A refusal of a row names the line on which it stands, whatever is wrong with it and whatever the
file holds before it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedrec
from fedrec.errors import MalformedRowError

HEAD = "user,item,stars,when"
GOOD = [f"u{k % 20},i{k // 20},{k % 5 + 1},{1000 + k}" for k in range(60)]
READ: dict[str, Any] = {"rating": "stars", "time": "when", "rating_range": (1, 5)}
FAULTS = {
    "an id that was a float": "7.0,i1,3,1000",
    "an item that was a float": "u1,7e+16,3,1000",
    "no number": "u99,i1,many,1000",
    "off the scale": "u99,i1,9,1000",
    "a pair again": "u0,i0,3,1000",
    "a time of another unit": "u99,i1,3,1700000000000",
    "no time": "u99,i1,3,soon",
    "the header again": HEAD,
    "a field more": "u99,i1,3,1000,5",
}
Before = Callable[[list[str], Path], tuple[list[str], dict[str, Any]]]
"""The lines of a file from those of its rows, and how it is read."""


def _listed(rows: list[str], folder: Path) -> tuple[list[str], dict[str, Any]]:
    """Rows on items that the table of items lacks are left out, and one that lacks a value."""
    (folder / "items.csv").write_text("item,title\n" + "".join(f"i{j},t{j}\n" for j in range(3)))
    lost = ["u1,i77,3,1000", "u2,,3,1000", "u3,i78,3,1000"]
    table = {"features_path": str(folder / "items.csv"), "missing": "drop"}
    return [HEAD, *lost, *rows], table


BEFORE: dict[str, Before] = {
    "a header": lambda rows, _: ([HEAD, *rows], {}),
    "a byte order mark": lambda rows, _: ([f"\ufeff{HEAD}", *rows], {}),
    "semicolons": lambda rows, _: ([one.replace(",", ";") for one in (HEAD, *rows)], {}),
    "no header": lambda rows, _: (
        rows,
        {"user": "1", "item": "2", "rating": "3", "time": "4", "header": "no"},
    ),
    "rows that are dropped": lambda rows, _: (
        [HEAD, ",i0,3,1000", "u1,,3,1000", *rows],
        {"missing": "drop"},
    ),
    "rows that are left out": _listed,
    "no line end at the end": lambda rows, _: ([HEAD, *rows], {}),
}


@pytest.mark.filterwarnings("ignore::fedrec.errors.UnknownIdsWarning")
@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_refusal_names_the_line_on_which_the_row_stands(
    fault: str, before: str, tmp_path: Path
) -> None:
    row = FAULTS[fault]
    lines, said = BEFORE[before]([*GOOD[:40], row, *GOOD[40:]], tmp_path)
    written = row.replace(",", ";") if before == "semicolons" else row
    place = len(lines) - lines[::-1].index(written)  # the header's own line is the first of two
    file = tmp_path / "log.csv"
    file.write_text("\n".join(lines) + ("" if before.startswith("no line") else "\n"))
    with pytest.raises(MalformedRowError) as caught:
        fedrec.Dataset.from_file(file, **{**READ, **said})
    assert re.findall(r"log\.csv, line (\d+)", caught.value.cause) == [str(place)]
