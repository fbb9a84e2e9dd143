"""Ids without what nobody sees: blanks around them, marks of no width, and the Unicode form in
which an accent is written."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from pathlib import Path

from fedrec.errors import DataError

_UNSEEN = "\u200b\u200c\u200d\u2060\ufeff"


def plain_id(text: str) -> str:
    """An id as it looks; 7.0 is 7, which a column of numbers with a gap was written as.

    >>> from fedrec.data.plain_ids import plain_id
    >>> plain_id(" ann\\ufeff")
    'ann'
    """
    if text.isascii():
        plain = text.strip()
        return plain[:-2] if plain.endswith(".0") and plain[:-2].isdigit() else plain
    return unicodedata.normalize("NFC", text).strip().strip(_UNSEEN).strip()


def require_distinct(ids: Iterable[str], what: str, where: Path | str) -> None:
    """Raises DataError where ids look the same: each would be a person, or an item, of its own."""
    known = set(ids)
    changed = [(given, plain) for given in sorted(known) if (plain := plain_id(given)) != given]
    first = dict[str, str]()
    twins = [
        (first.setdefault(plain, plain if plain in known else given), given)
        for given, plain in changed
    ]
    if same := [(one, other) for one, other in twins if one != other]:
        one, other = same[0]
        raise DataError(
            f"{len(same):,} {what} ids of {where} are another's but for blanks, '.0' or the "
            f"Unicode form, such as {one!r} and {other!r}: each would be {what} of its own",
            "Strip the blanks and write one form (NFC; 7, not 7.0) of each id.",
        )
