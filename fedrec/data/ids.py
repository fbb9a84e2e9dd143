"""Ids without what nobody sees: blanks around them, marks of no width, the Unicode form of an
accent.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from fedrec.errors import DataError, UnknownIdsWarning, warn

_UNSEEN = ("Cc", "Cf")  # control and format characters: line ends, joiners, marks of direction


_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
"""Of a glyph's variant: marks of no width that are no format characters."""
_DECIMALS = re.compile(r"\+?(-?[0-9]+)(\.0+)?")


def plain_id(text: str) -> str:
    """An id as it looks; 7.0 is 7, which a column of numbers with a gap was written as, and blanks
    within are one.

    >>> from fedrec.data.ids import plain_id
    >>> plain_id(" ann\\ufeff")
    'ann'
    """
    if text.isascii() and text.isalnum():
        return text
    if not (text.isascii() and text.isprintable()):
        # of all that NFKC unites only widths are united: x2 and x\u00b2 may be two items
        text = "".join(
            unicodedata.normalize("NFKC", letter)
            if unicodedata.decomposition(letter).startswith(("<wide>", "<narrow>"))
            else letter
            for letter in " ".join(unicodedata.normalize("NFC", text).split())
            if unicodedata.category(letter) not in _UNSEEN
        )
    plain = " ".join(text.split())
    number = _DECIMALS.fullmatch(plain)
    return plain if number is None else number[1]


def person_id(text: str) -> str:
    """A person's id as it looks: as `plain_id`, and what NFKC unites is one. Of items that would
    join two; of people it is the safe side, since whoever is not recognised pays nothing."""
    return plain_id(unicodedata.normalize("NFKC", _SELECTORS.sub("", text)))


def require_distinct(ids: Iterable[str], what: str, where: Path | str) -> None:
    """Raises DataError where ids look the same: each would be a person, or an item, of its own."""
    known = set(ids)
    look = person_id if what == "user" else plain_id
    changed = [(given, plain) for given in sorted(known) if (plain := look(given)) != given]
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
            "Write one form of each id, without blanks and signs of no width (NFC; 7, not 7.0).",
        )


def require_named(
    known: Iterable[str],
    given: Iterable[str],
    where: Path | str,
    *,
    what: str = "items",
    few: float = 1.0,
) -> str:
    """A note on how many of the known items, or `what`, a table names; empty where it names all.

    Raises DataError where it names none, or one but for blanks or '.0'; warns with
    `UnknownIdsWarning`, and one id of each side, where the share that it names is less than `few`,
    which is 1 but for what usually knows a part: links, public users, words, old news."""
    wanted = dict.fromkeys(known)
    found = dict.fromkeys(given)
    lacking = [item for item in wanted if item not in found]
    if not lacking:
        return ""
    plain = {plain_id(item): item for item in found if item not in wanted}
    if twin := next((item for item in lacking if plain_id(item) in plain), None):
        raise DataError(
            f"{plain[plain_id(twin)]!r} and {twin!r}, ids of {where} and of the data, are the same "
            "but for blanks, '.0' or the Unicode form",
            "Write one form of each id, without blanks and signs of no width (NFC; 7, not 7.0).",
        )
    named = len(wanted) - len(lacking)
    said = f"{where} names {named or 'none'} of the {len(wanted):,} {what}"
    example = next(iter(plain.values()), next(iter(found), ""))
    if not named:
        has = f"It has ids such as {example!r}, the data" if example else "The data has ids"
        raise DataError(said, f"{has} such as {lacking[0]!r}: give ids of one kind.")
    if named < few * len(wanted):
        has = f", and has ids such as {example!r}" if example else ""
        warn(UnknownIdsWarning(f"{said}: it lacks {lacking[0]!r}{has}"))
    return said
